"""The command line: `taso-mirage optimize | inspect | diff | substitutions | doctor`.

Commands import heavy modules when they run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from taso_mirage.cli import cache, interrupt, partial, plugin, schema, substitutions, verify
from taso_mirage.cli import kernels as cli_kernels
from taso_mirage.cli.optimize import optimize
from taso_mirage.cli.options import TARGET_NAMES, JsonOption, ModelFile, ShapeOption, TrustKernels
from taso_mirage.errors import InvalidOption, TasoMirageError
from taso_mirage.system.memory import collect_seldom, reuse_memory
from taso_mirage.system.streams import steady
from taso_mirage.system.terminal import one_line, say, say_lines
from taso_mirage.system.wording import for_command_line
from taso_mirage.version import __version__


class _Commands(TyperGroup):
    """The commands; a model in place of one is said."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and os.path.exists(args[0]):
            raise InvalidOption(f"{args[0]} is no command; for a model write: taso-mirage optimize {args[0]}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    add_completion=True,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A superoptimizer for ONNX models: faster, equivalent models, with evidence for every step.",
    epilog="Exit codes: 0 success; 1 error; 2 wrong option; 3 invalid model; 4 cannot write; 5 check failed; "
    "6 runtime unavailable; 130 interrupted.",
)

app.command()(optimize)
app.add_typer(substitutions.app, name="substitutions")
app.add_typer(cache.cache_app, name="cache")
app.command("kernels")(cli_kernels.kernels_command)
app.command("mutants")(partial.mutants_command)
app.command()(plugin.export_plugin)
app.command()(verify.verify)
app.command()(schema.schema)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        say(f"taso-mirage {__version__}")
        raise typer.Exit


@app.command()
def inspect(
    model: ModelFile,
    shape: ShapeOption = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Run the model, and show which nodes of a quantized model run in integers, which run in floats and why, and the "
            "time of conversions.",
        ),
    ] = False,
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels", help="Show the fused kernels that the file carries: their places, plans and programs."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the operators of MODEL.onnx with their shapes, flops and bytes, and the nodes that are
    opaque, with the reason."""
    from taso_mirage.measure.shapes import parse_shape
    from taso_mirage.onnx_io.files import load_as_data
    from taso_mirage.onnx_io.kernels import carried_kernels
    from taso_mirage.report import inspection, quantized
    from taso_mirage.search.config import Config, representative

    loaded = load_as_data(model)
    config = Config(shapes=((parse_shape(loaded, shape or []), 1.0),))
    found = inspection.inspection(loaded, representative(loaded, config))
    if profile:
        found["profile"] = quantized.runtime_profile(loaded, model, config)
    carried = carried_kernels(loaded.header) if kernels else []
    if as_json:
        listed = [{**asdict(each), "target": each.target} for each in carried]
        say(json.dumps(found | ({"kernels": listed} if kernels else {}), indent=2))
        return
    inspection.show_inspection(found, model)
    if profile:
        quantized.show_profile(found["profile"])
    if kernels:
        say_lines(inspection.show_kernels(carried))


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="The reference ONNX model.", metavar="A.onnx")],
    second: Annotated[Path, typer.Argument(help="The ONNX model to compare with it.", metavar="B.onnx")],
    shape: ShapeOption = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.npz", help="Inputs for the comparison (arrays by input name); repeatable."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            metavar=TARGET_NAMES,
            help="Target on which both run: cpu, cuda (models optimized for CUDA may need it) or openvino.",
        ),
    ] = "cpu",
    trust_kernels: TrustKernels = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the structure and the outputs of two models.

    The outputs must agree by the criterion of the optimizer's check; exit code 5 if they differ.
    """
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
    """Show versions, the execution providers that work on this machine, its GPU and compiler, and
    the cost cache."""
    from taso_mirage.report import inspection

    found = inspection.diagnosis()
    if as_json:
        say(json.dumps(found, indent=2))
    else:
        inspection.show_diagnosis(found)


def main(began: float | None = None) -> None:
    """Run the command line. Every expected error is one line on stderr and an exit code. `began`:
    the start of the command, by `time.monotonic` (now, if left out)."""
    steady()
    signal.signal(signal.SIGINT, interrupt.give_up)
    interrupt.end_cleanly()
    sys.unraisablehook = interrupt.unraisable
    logging.getLogger().addHandler(logging.NullHandler())  # libraries' messages about a model are not escaped
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    reuse_memory()
    collect_seldom()
    try:
        try:
            with for_command_line():
                if "" in sys.argv[1:]:  # as a path, it would be the folder of now
                    raise InvalidOption("an argument is empty: leave it out, or give the variable a value")
                app(obj=time.monotonic() if began is None else began)
        except SystemExit:
            sys.stdout.flush()  # a full disk can still be reported here
            raise
        finally:  # a late signal would end in a traceback, or interrupt the end of threads
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            interrupt.end_at_once()
    except TasoMirageError as error:
        _complain(one_line(str(error)))
        sys.exit(error.exit_code)
    except interrupt.CtrlC as given_up:
        _complain(str(given_up) or "interrupted; nothing was written")
        sys.exit(130)
    except interrupt.Ended as ended:
        interrupt.die(ended.number)
    except MemoryError:
        _complain("not enough memory for this model")
        sys.exit(1)
    except Exception as error:
        sys.exit(_unexpected(error))


def _complain(text: str) -> None:
    """Print an error on stderr. Where stderr is closed, the exit code still reports it."""
    with contextlib.suppress(OSError):
        say(f"taso-mirage: {text}", err=True)


def _unexpected(error: Exception) -> int:
    """Print that there is a bug; return the exit code."""
    if os.environ.get("TASO_MIRAGE_TRACEBACK"):
        raise error
    text = (str(error).splitlines() or [""])[0][:300]
    _complain(f"internal error: {type(error).__name__}: {text} (please report it; TASO_MIRAGE_TRACEBACK=1 shows where)")
    return 1
