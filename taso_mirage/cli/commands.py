"""The command line: `taso-mirage optimize | inspect | diff | substitutions | doctor`.

Commands import what is heavy.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from taso_mirage.cli import cache, partial, plugin, substitutions, verify
from taso_mirage.cli import kernels as cli_kernels
from taso_mirage.cli.options import FIXES, JsonOption, ModelFile, ShapeOption, TrustKernels
from taso_mirage.errors import OutputError, TasoMirageError
from taso_mirage.system.memory import reuse_memory
from taso_mirage.system.terminal import one_line, say, say_lines
from taso_mirage.version import __version__

if TYPE_CHECKING:
    from taso_mirage.report.result import Result
    from taso_mirage.search.config import Stop

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A superoptimizer for ONNX models: faster, equal, and with the evidence for every step.",
    epilog="Exit codes: 0 done; 1 error; 2 wrong option; 3 invalid model; 4 cannot write; 5 check failed; "
    "6 runtime unavailable; 130 interrupted.",
)

app.add_typer(substitutions.app, name="substitutions")
app.add_typer(cache.cache_app, name="cache")
app.command("kernels")(cli_kernels.kernels_command)
app.command("mutants")(partial.mutants_command)
app.command()(plugin.export_plugin)
app.command()(verify.verify)

WeightedShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME:DIMS[+...][@WEIGHT]",
        help=f"{FIXES} For several sets of sizes give each its weight, how often it is run: "
        "--shape batch:1+seq:512@3 --shape batch:8+seq:128@1; what has no weight holds in every set.",
    ),
]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        say(f"taso-mirage {__version__}")
        raise typer.Exit


@app.command()
def optimize(
    model: ModelFile,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; MODEL.optimized.onnx if left out.")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="Where the model will run: cpu, cuda (ONNX Runtime's CUDA provider with CUDA graphs), or openvino."
        ),
    ] = "cpu",
    portable: Annotated[
        bool, typer.Option("--portable", help="Keep to standard ONNX: none of the runtime's own operators.")
    ] = False,
    strategy: Annotated[
        str, typer.Option(help="best-first, or saturate (equality saturation and extraction).")
    ] = "best-first",
    shape: WeightedShapes = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(help="Inputs (.npz, arrays by input name) for timing and the check; repeatable."),
    ] = None,
    budget: Annotated[float, typer.Option(min=0, help="Seconds that all may take but reading and writing.")] = 60.0,
    run_limit: Annotated[
        float, typer.Option(min=0, help="Seconds that ONNX Runtime may take for one load, run or measurement.")
    ] = 300.0,
    kernels: Annotated[
        str | None,
        typer.Option(
            help="off, search (fused kernels for regions), or cached (what was searched here before); search if left out, unless the "
            "model is to be portable, or nothing is measured here. Kernels run where taso_mirage.register was called; elsewhere the "
            "model runs without them."
        ),
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--partial/--no-partial", help="Try mutants with corrections of costly operators (PET).")
    ] = True,
    alpha: Annotated[
        float, typer.Option(min=1, help="How much worse than the best a state may be and still be expanded.")
    ] = 1.05,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure operators and models, or estimate by a roofline.")
    ] = True,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Measure operators on the workers of this Dask scheduler (tcp://host:8786)."
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say of every change where, how much it wins, and what proves it.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--report", metavar="OUT.html", help="Write a page with times, pictures and proofs.")
    ] = None,
    certified: Annotated[
        Path | None,
        typer.Option("--certificate", metavar="OUT.json", help="Write every step with its proof; `verify` follows it."),
    ] = None,
    trust_kernels: TrustKernels = False,
    may_grow: Annotated[
        bool, typer.Option("--may-grow", help="Write a file that is more than 1.2 times as large, without a question.")
    ] = False,
    allow_rounding: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS[:RULE,...]",
            help="Quantized models: let rewrites that are right in float64 but round otherwise turn roundings of quantizers, "
            "where that moves no output further than STEPS quantization steps (one of a quantized output; of floats, a 255th "
            "of their range). With names, let these rules alone. What was let through is said, with its measured error.",
        ),
    ] = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.toml", help="Rules to apply beside all others, each where it is proved; repeatable."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make MODEL.onnx faster.

    The result computes the same, is never slower, and is checked before it is written.
    """
    from taso_mirage import api
    from taso_mirage.report import summary

    with summary.Stages(quiet=as_json) as stages, _interruptible() as stop:

        def progress(stage: str, done: int, total: int) -> None:
            if stage == "write":  # from here on it could not be said that nothing was written
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            stages(stage, done, total)

        _, result = api.optimize(
            model,
            return_result=True,
            output=output,
            target=target,
            portable=portable,
            strategy=strategy,
            shape=shape or (),
            inputs=inputs or (),
            budget=budget,
            run_limit=run_limit,
            kernels=kernels,
            partial=mutants,
            alpha=alpha,
            measure=measure,
            scheduler=scheduler,
            explain=explain,
            report=page,
            certificate=certified,
            trust_kernels=trust_kernels,
            may_grow=may_grow or (stages.asked if _asking(as_json) else False),
            allow_rounding=allow_rounding,
            rules=rules,
            progress=progress,
            stop=stop,
            command=["taso-mirage", *sys.argv[1:]],
        )
    _print(result, explain, model, as_json)
    if result.failure is not None:
        raise result.failure


def _asking(as_json: bool) -> bool:
    """Whether somebody is there to answer."""
    return not as_json and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _print(result: Result, explain: bool, model: Path, as_json: bool) -> None:
    """The result, with its changes where they were asked for, as one JSON object or as tables and
    lines."""
    from taso_mirage.report import explanations, summary

    if as_json:
        changes = {"changes": explanations.explanation_data(result.explanations, result)} if explain else {}
        say(json.dumps(summary.result_data(result, model, result.written) | changes, indent=2))
        return
    summary.show(result, model, result.written)
    say_lines(explanations.as_lines(result.explanations, result) if explain else ())


@app.command()
def inspect(
    model: ModelFile,
    shape: ShapeOption = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Run it too: what of a quantized model runs in integers, what falls back to floats and why, what conversions take.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what MODEL.onnx consists of: operators, shapes, flops, bytes, and what is opaque and
    why."""
    from taso_mirage.measure.shapes import parse_shape
    from taso_mirage.onnx_io import load
    from taso_mirage.report import inspection, quantized
    from taso_mirage.search.config import Config, representative

    loaded = load(model, trust_kernels=True)  # no code of it runs here: its library is not registered
    config = Config(shapes=((parse_shape(loaded, shape or []), 1.0),))
    found = inspection.inspection(loaded, representative(loaded, config))
    if profile:
        found["profile"] = quantized.runtime_profile(loaded, model, config)
    if as_json:
        say(json.dumps(found, indent=2))
        return
    inspection.show_inspection(found, model)
    if profile:
        quantized.show_profile(found["profile"])


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="The ONNX model that is right.", metavar="A.onnx")],
    second: Annotated[Path, typer.Argument(help="The one to compare with it.", metavar="B.onnx")],
    shape: ShapeOption = None,
    inputs: Annotated[
        list[Path] | None, typer.Option(help="Inputs (.npz, arrays by input name) to compare on; repeatable.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="Where both run: cpu, cuda (which a model made for it may need), or openvino.")
    ] = "cpu",
    trust_kernels: TrustKernels = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two models: their structure, and their outputs by the check's criterion (exit code 5
    where they differ)."""
    from taso_mirage.measure.shapes import parse_shape
    from taso_mirage.measure.target import target as named
    from taso_mirage.onnx_io import load
    from taso_mirage.onnx_io.kernels import dropped
    from taso_mirage.report import diff
    from taso_mirage.search.arrays import read_inputs

    where = named(target)
    a, b = load(first, trust_kernels), load(second, trust_kernels)
    for path, each in ((first, a), (second, b)):
        if (said := dropped(each.header)) is not None:
            say(one_line(f"{path}: {said}"), err=True)
    found = diff.structure(a, b)
    given = [read_inputs(a, file) for file in inputs or []]
    if not as_json:
        say_lines(diff.structure_lines(found))
    try:
        differences = diff.numbers(a, b, parse_shape(a, shape or []), given, where)
    except TasoMirageError:
        if as_json:
            say(json.dumps(diff.diff_data(found, None), indent=2))
        raise
    if as_json:
        say(json.dumps(diff.diff_data(found, differences), indent=2))
    else:
        say_lines(diff.number_lines(differences))
    problem = diff.failure(differences)
    if problem is not None:
        raise problem


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Show versions, the execution providers that really work here, and the cost cache."""
    from taso_mirage.report import inspection

    found = inspection.diagnosis()
    if as_json:
        say(json.dumps(found, indent=2))
    else:
        inspection.show_diagnosis(found)


class CtrlC(BaseException):
    """Ctrl-C. Not an Exception, so that no fallback swallows it."""


def _give_up(number: int, frame: FrameType | None) -> None:
    """Raises Interrupted, but not inside of an import: a module in C++ makes an ImportError of it,
    or ends the process."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return _again()
        frame = frame.f_back
    raise CtrlC


_postponed = threading.Event()
"""Whether a Ctrl-C that gives up is to come again: it still does once the search began."""


def _again() -> None:
    """The same signal a moment later.

    It is sent to the process: only so does it wake the main thread from a wait.
    """
    _postponed.set()
    later = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    later.daemon = True  # the program's end does not wait for it
    later.start()


def _unraisable(dropped: sys.UnraisableHookArgs) -> None:
    """What Python drops, because it is raised in `__del__` or in a weak reference's callback; a
    Ctrl-C is not to be lost there."""
    if isinstance(dropped.exc_value, CtrlC):
        _again()
    else:
        sys.__unraisablehook__(dropped)


@contextlib.contextmanager
def _interruptible() -> Iterator[Stop]:
    """The first Ctrl-C after the start of the search ends it and keeps the best found; the next
    ends the program with nothing written."""
    from taso_mirage.search.config import Stop

    stop = Stop()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not stop.began or _postponed.is_set():
            return _give_up(number, frame)
        stop()
        signal.signal(signal.SIGINT, _give_up)
        say("interrupted: keeping the best found so far, measured and checked (Ctrl-C again to give up)", err=True)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _give_up)


def main() -> None:
    """Run the command line; every expected error is one line on stderr and its exit code."""
    signal.signal(signal.SIGINT, _give_up)
    sys.unraisablehook = _unraisable
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries log of a model is not escaped
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    reuse_memory()
    try:
        try:
            app()
        except SystemExit:
            if sys.stdout is not None:
                sys.stdout.flush()  # here a full disk can still be told
            raise
        finally:  # a late one would end in a traceback, or cut the threads' end short
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except TasoMirageError as error:
        _complain(one_line(str(error)))
        sys.exit(error.exit_code)
    except CtrlC:
        _complain("interrupted; nothing was written")
        sys.exit(130)
    except MemoryError:
        _complain("not enough memory for this model")
        sys.exit(1)
    except Exception as error:
        sys.exit(_unexpected(error))


def _complain(text: str) -> None:
    """Say what went wrong on stderr. Where that takes no more, the exit code still says it."""
    with contextlib.suppress(OSError):
        say(f"taso-mirage: {text}", err=True)


def _unexpected(error: Exception) -> int:
    """Say what is no error of ours: a terminal or a pipe that takes no more, or a bug.

    The exit code.
    """
    if isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EPIPE):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for what Python itself would write at its end)
        why = "what was to be printed could not be written"
        _complain(f"{why} ({error.strerror}); files that were written before stay")
        return OutputError.exit_code
    if os.environ.get("TASO_MIRAGE_TRACEBACK"):
        raise error
    text = (str(error).splitlines() or [""])[0][:300]
    _complain(f"internal error: {type(error).__name__}: {text} (please report it; TASO_MIRAGE_TRACEBACK=1 shows where)")
    return 1
