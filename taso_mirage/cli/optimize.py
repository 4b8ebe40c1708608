"""The command `taso-mirage optimize`: of one model, or of all below a folder."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taso_mirage.cli.interrupt import CtrlC, interruptible, stop_later
from taso_mirage.cli.options import FIXES, JsonOption, TrustKernels
from taso_mirage.errors import InvalidOption
from taso_mirage.system.spending import START, Purpose, accounting, spent, staged
from taso_mirage.system.terminal import asking, say, say_lines

if TYPE_CHECKING:
    from taso_mirage.cli.log import Log
    from taso_mirage.folder import Folder
    from taso_mirage.report.result import Result
    from taso_mirage.report.summary import Stages

# ---------------------------------------------------------------- options

_Given = Annotated[Path, typer.Argument(help="The ONNX model, or a folder of models.", metavar="MODEL.onnx")]
_Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Where to write; MODEL.optimized.onnx if left out. Of a folder the folder, FOLDER.optimized if left out: "
        "models have the same paths there, beside index.html and index.json.",
    ),
]
_TargetName = Annotated[
    str,
    typer.Option(
        help="Where the model will run: cpu, cuda (ONNX Runtime's CUDA provider with CUDA graphs), or openvino."
    ),
]
_Portable = Annotated[
    bool, typer.Option("--portable", help="Keep to standard ONNX: none of the runtime's own operators.")
]
_Effort = Annotated[
    str,
    typer.Option(
        metavar="quick|default|thorough",
        help="How much is done for a result. quick: substitutions by predicted costs, a search of few steps and a short check, "
        "in seconds and the same every time (beside it --no-measure --no-partial --kernels off). thorough: ten minutes and wider "
        "searches. Options that are given beside it count.",
    ),
]
_Strategy = Annotated[
    str | None,
    typer.Option(
        help="best-first (if left out), saturate (equality saturation and extraction), or both, one after the other "
        "(of --effort thorough)."
    ),
]
_WeightedShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME:DIMS[+...][@WEIGHT]",
        help=f"{FIXES} For several sets of sizes give each its weight, how often it is run: "
        "--shape batch:1+seq:512@3 --shape batch:8+seq:128@1; what has no weight holds in every set.",
    ),
]
_InputFiles = Annotated[
    list[Path] | None,
    typer.Option(help="Inputs (.npz, arrays by input name) for timing and the check; repeatable."),
]
_Seconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Seconds that the command may take, from its start to its end; of a folder, for each model. 60 if left out, 600 "
        "of --effort thorough.",
    ),
]
_RunLimit = Annotated[
    float, typer.Option(min=0, help="Seconds that ONNX Runtime may take for one load, run or measurement.")
]
_KernelMode = Annotated[
    str | None,
    typer.Option(
        help="off, search (fused kernels for regions), or cached (what was searched here before); search if left out, unless the "
        "model is to be portable, or nothing is measured here. Kernels run where taso_mirage.register was called; elsewhere the "
        "model runs without them."
    ),
]
_Mutants = Annotated[
    bool | None,
    typer.Option(
        "--partial/--no-partial",
        help="Try mutants with corrections of costly operators (PET), as is usual but for --effort quick.",
    ),
]
_Alpha = Annotated[
    float, typer.Option(min=1, help="How much worse than the best a state may be and still be expanded.")
]
_Measure = Annotated[
    bool | None,
    typer.Option(
        "--measure/--no-measure",
        help="Measure operators and models, as is usual but for --effort quick, or estimate by a roofline.",
    ),
]
_Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Measure operators on the workers of this Dask scheduler (tcp://host:8786)."),
]
_Explain = Annotated[
    bool, typer.Option("--explain", help="Say of every change where, how much it wins, and what proves it.")
]
_Page = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="OUT.html",
        help="Write a page with times, pictures and proofs. Of a folder there is always one of each model.",
    ),
]
_CertificateFile = Annotated[
    Path | None,
    typer.Option(metavar="OUT.json", help="Write every step with its proof; `verify` follows it."),
]
_TraceFolder = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="DIR",
        help="Write the graph after every stage and every applied rule as text into this folder, with an index.",
    ),
]
_FixDefaults = Annotated[
    bool,
    typer.Option(
        "--fix-defaults",
        help="Make weights of the inputs that have an initializer as their default: no caller can replace them any more.",
    ),
]
_InPlace = Annotated[
    bool,
    typer.Option("--in-place", help="Write onto the model itself: it is replaced once the new one is whole."),
]
_MayGrow = Annotated[
    bool, typer.Option("--may-grow", help="Write a file that is more than 1.2 times as large, without a question.")
]
_Elsewhere = Annotated[
    bool,
    typer.Option(
        "--elsewhere/--no-elsewhere",
        help="The file may go to other machines, and be opened where its library of kernels is not registered: it is no slower "
        "than the original there, either. Without: only here, and with the library.",
    ),
]
_Rounding = Annotated[
    str | None,
    typer.Option(
        metavar="STEPS[:RULE,...]",
        help="Quantized models: let rewrites that are right in float64 but round otherwise turn roundings of quantizers, "
        "where that moves no output further than STEPS quantization steps (one of a quantized output; of floats, a 255th "
        "of their range). With names, let these rules alone. What was let through is said, with its measured error.",
    ),
]
_ShowTiming = Annotated[bool, typer.Option("--timing", help="Say what the seconds of each stage were spent on.")]
_RuleFiles = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE.toml", help="Rules to apply beside all others, each where it is proved; repeatable."),
]


# ---------------------------------------------------------------- the command


def optimize(
    context: typer.Context,
    model: _Given,
    output: _Output = None,
    target: _TargetName = "cpu",
    portable: _Portable = False,
    effort: _Effort = "default",
    strategy: _Strategy = None,
    shape: _WeightedShapes = None,
    inputs: _InputFiles = None,
    budget: _Seconds = None,
    run_limit: _RunLimit = 300.0,
    kernels: _KernelMode = None,
    partial: _Mutants = None,
    alpha: _Alpha = 1.05,
    measure: _Measure = None,
    scheduler: _Scheduler = None,
    explain: _Explain = False,
    report: _Page = None,
    certificate: _CertificateFile = None,
    trace: _TraceFolder = None,
    trust_kernels: TrustKernels = False,
    fix_defaults: _FixDefaults = False,
    in_place: _InPlace = False,
    may_grow: _MayGrow = False,
    elsewhere: _Elsewhere = True,
    allow_rounding: _Rounding = None,
    rules: _RuleFiles = None,
    timing: _ShowTiming = False,
    as_json: JsonOption = False,
) -> None:
    """Make MODEL.onnx faster, or every model below a folder.

    The result computes the same, is never slower, and is checked before it is written.
    """
    options = dict(locals())  # before anything else is local: the options have the names of `api.optimize`
    del options["context"], options["model"], options["as_json"], options["timing"]
    options["began"] = context.obj
    options |= {"shape": shape or (), "inputs": inputs or ()}
    options = {name: each for name, each in options.items() if each is not None}  # the effort says what these are
    log = _log(model) if as_json else None
    with nullcontext() if log is None else log.failing():
        (_optimize_folder if model.is_dir() else _optimize_model)(model, options, log, timing)


def _log(model: Path) -> Log:
    from taso_mirage.cli.log import Log

    return Log(model)


def _optimize_model(model: Path, options: Mapping[str, Any], log: Log | None, timing: bool) -> None:
    with accounting(time.monotonic() - options.get("began", time.monotonic())):
        with staged(START), spent(Purpose.STARTING):
            from taso_mirage.report import data, explanations, summary
        result = _optimized(model, options, log)
    explained = options["explain"]
    if log is None:
        summary.show(result, model, result.written, timing)
        say_lines(explanations.as_lines(result.explanations, result) if explained else ())
    else:
        found = data.result_data(result, model, result.written)
        if explained:
            found["changes"] = explanations.explanation_data(result.explanations, result)
        log.result(found)
    if result.failure is not None:
        raise result.failure


def _optimized(model: Path, options: Mapping[str, Any], log: Log | None) -> Result:
    from taso_mirage import api
    from taso_mirage.report import summary

    if log is not None:
        log.start(1, api.options_of(options).budget)
    with summary.Stages(quiet=log is not None) as stages, interruptible() as stop:
        own = {"stop": stop, "command": ["taso-mirage", *sys.argv[1:]]}
        own |= _heard(stages, log, lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        if log is None and not options["may_grow"] and asking():
            own["may_grow"] = stages.asked
        return api.optimize(model, return_result=True, **{**options, **own})[1]


def _optimize_folder(source: Path, options: Mapping[str, Any], log: Log | None, timing: bool) -> None:
    """One model after the other. What was done stays, and is not done again, however it ends."""
    from taso_mirage.folder import PAGE, Folder

    for name in ("report", "certificate", "trace"):
        if name in options:
            raise InvalidOption(f"--{name} is for one model; of a folder each has a page, and {PAGE} leads to it")
    if options["in_place"]:
        raise InvalidOption("--in-place is for one model; the results of a folder need a folder of their own")
    folder = Folder(source, options.get("output"), options)
    try:
        with folder.locked():
            folder.write()
            if log is not None:
                log.start(len(folder.waiting), folder.budget)
            say(folder.plan, err=True)
            _optimize_each(folder, log, timing)
    except CtrlC as given_up:
        said = str(given_up) or "interrupted; what was done before stays, and the same command goes on from there"
        if log is not None:
            log.error(said, 130)
            log.folder(folder.as_data(), 130)
        raise CtrlC(said) from None
    if log is not None:
        log.folder(folder.as_data(), folder.exit_code)
    else:
        say_lines(folder.said())
    if folder.exit_code:
        raise typer.Exit(folder.exit_code)


def _optimize_each(folder: Folder, log: Log | None, timing: bool) -> None:
    from taso_mirage.folder import row_text
    from taso_mirage.report import data, summary

    names = folder.waiting
    for i, name in enumerate(names, 1):
        if log is not None:
            log.begin(folder.source / name)
        with summary.Stages(quiet=log is not None) as stages, interruptible() as stop:
            row, result = folder.optimize(name, stop=stop, **_heard(stages, log, lambda: stop_later(stop)))
        if log is None:
            say_lines([f"{i}/{len(names)} {row_text(row)}"])
            if timing and result is not None:
                summary.show_spending(result.spending)
        elif result is not None:
            log.result(data.result_data(result, folder.source / name, result.written))
        elif row["error"] is not None:
            log.error(row["error"], row["exit_code"])
        if stop.asked:
            raise CtrlC("interrupted; the same command goes on from here")


def _heard(stages: Stages, log: Log | None, writing: Callable[[], object]) -> dict[str, Any]:
    """Options of `api.optimize` for what is heard of its work. `writing` is done before a file is
    written: from there on it could not be said that nothing was."""
    show = stages if log is None else log.progress

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "write":
            writing()
        show(stage, done, total)

    return {"progress": progress} | ({} if log is None else {"candidates": log.candidates})
