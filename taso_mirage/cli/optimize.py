"""The command `taso-mirage optimize`, for one model or for all models below a folder."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taso_mirage.cli.interrupt import CtrlC, interruptible, stop_later
from taso_mirage.cli.options import FIXES, TARGET_NAMES, TrustKernels
from taso_mirage.devices.cpu.options import MOST_THREADS
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
        metavar="FILE",
        help="Output file (default: MODEL.optimized.onnx). For a folder of models, the output folder (default: "
        "FOLDER.optimized), which has the models at the same paths, with index.html and index.json.",
    ),
]
_TargetName = Annotated[
    str,
    typer.Option(
        metavar=f"{TARGET_NAMES}|auto",
        help="Target on which the model will run: cpu, cuda (ONNX Runtime's CUDA provider with CUDA graphs), openvino, or auto: "
        "cpu or openvino, whichever is measured to be faster.",
    ),
]
_Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_THREADS,
        metavar="N",
        help="Threads of one run on the CPU, for measurements and kernels; the file says so, and `taso_mirage.session` opens it "
        "with as many. Default: one for each core.",
    ),
]
_Portable = Annotated[
    bool, typer.Option("--portable", help="Use only standard ONNX operators, none of the runtime's own.")
]
_Effort = Annotated[
    str,
    typer.Option(
        metavar="quick|default|thorough",
        help="How much work to do. quick: substitutions by predicted costs, a search of few steps and a short check; takes "
        "seconds and is deterministic (implies --no-measure --no-partial --kernels off). thorough: ten minutes and wider "
        "searches. Other options override the effort.",
    ),
]
_Strategy = Annotated[
    str | None,
    typer.Option(
        metavar="best-first|saturate|both",
        help="Search strategy: best-first (default), saturate (equality saturation and extraction), or both, one after the "
        "other (default of --effort thorough).",
    ),
]
_WeightedShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME:DIMS[+...][@WEIGHT]",
        help=f"{FIXES} For several sets of sizes, give each a weight, which says how often it runs: "
        "--shape batch:1+seq:512@3 --shape batch:8+seq:128@1. Sizes without a weight hold in every set.",
    ),
]
_InputFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE.npz",
        help="Inputs for timing, and for the check beside random ones (arrays by input name); repeatable.",
    ),
]
_Seconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="Time limit of the whole command in seconds; for a folder, of each model (default: 60, with --effort thorough "
        "600).",
    ),
]
_RunLimit = Annotated[
    float,
    typer.Option(
        min=0, metavar="SECONDS", help="Time limit in seconds for one load, run or measurement in ONNX Runtime."
    ),
]
_KernelMode = Annotated[
    str | None,
    typer.Option(
        metavar="off|cached|search",
        help="Fused kernels: off, search, or cached (only kernels found here before). Default: search, or off with --portable "
        "or --no-measure. Kernels run where taso_mirage.register was called; elsewhere the model runs its "
        "ordinary operators.",
    ),
]
_Mutants = Annotated[
    bool | None,
    typer.Option(
        "--partial/--no-partial",
        help="Try corrected mutants of costly operators (PET). Default: on, except with --effort quick.",
    ),
]
_Alpha = Annotated[
    float,
    typer.Option(
        min=1, metavar="RATIO", help="Largest cost, relative to the best state, of a state that the search expands."
    ),
]
_Measure = Annotated[
    bool | None,
    typer.Option(
        "--measure/--no-measure",
        help="Measure operators and models, or estimate costs by a roofline. Default: measure, except with --effort quick.",
    ),
]
_Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Work on the workers of this Dask scheduler (tcp://host:8786): of a folder, one model on each at a time.",
    ),
]
_Explain = Annotated[bool, typer.Option("--explain", help="Print every change with its place, its gain and its proof.")]
_Page = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="OUT.html",
        help="Write an HTML page with times, pictures and proofs. A folder of models always gets a page for each.",
    ),
]
_CertificateFile = Annotated[
    Path | None,
    typer.Option(metavar="OUT.json", help="Write every step with its proof, for `taso-mirage verify`."),
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
        help="Turn inputs that have an initializer as their default into weights: callers can no longer replace them.",
    ),
]
_InPlace = Annotated[
    bool,
    typer.Option("--in-place", help="Replace the input file, once the new one is complete."),
]
_MayGrow = Annotated[
    bool,
    typer.Option(
        "--may-grow", help="Write a file that is more than 1.2 times as large as the original, without asking."
    ),
]
_Elsewhere = Annotated[
    bool,
    typer.Option(
        "--elsewhere/--no-elsewhere",
        help="Whether the file may run on other machines and without the kernel library: if so, it is no slower than the "
        "original there either. With --no-elsewhere it runs only on this machine and with the library.",
    ),
]
_Rounding = Annotated[
    str | None,
    typer.Option(
        metavar="STEPS[:RULE,...]",
        help="For quantized models: accept rewrites that are exact in float64 but change the rounding of quantizers, as long as "
        "no output changes by more than STEPS quantization steps (for a float output, a step is 1/255 of its range). With "
        "names, accept only these rules. Accepted rewrites are reported with their measured error.",
    ),
]
_Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print nothing but errors, ask nothing, and show no progress.")
]
_Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="Print each stage and each model that is tried on stderr, with the time."),
]
_ShowTiming = Annotated[bool, typer.Option("--timing", help="Print how the time of each stage was spent.")]
_RuleFiles = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE.toml", help="File of additional rules, each applied where it is proved; repeatable."),
]


# ---------------------------------------------------------------- the command


def optimize(
    context: typer.Context,
    model: _Given,
    output: _Output = None,
    target: _TargetName = "cpu",
    threads: _Threads = None,
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
    quiet: _Quiet = False,
    verbose: _Verbose = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line instead of text.")] = False,
) -> None:
    """Optimize MODEL.onnx, or every model below a folder.

    The optimized model computes the same results, is never slower, and is checked before it is
    written.
    """
    options = dict(locals())  # before anything else is local: the options have the names of `api.optimize`
    for name in ("context", "model", "as_json", "timing", "quiet", "verbose"):
        del options[name]
    shown = Shown(timing, quiet, verbose)
    options["began"] = context.obj
    options |= {"shape": shape or (), "inputs": inputs or ()}
    options = {name: each for name, each in options.items() if each is not None}  # the effort sets these
    log = _log(model) if as_json else None
    if quiet and (as_json or timing or explain or verbose):
        raise InvalidOption("--quiet prints nothing: leave --json, --timing, --explain and --verbose out")
    with nullcontext() if log is None else log.failing(), _records(context.obj) if verbose else nullcontext():
        (_optimize_folder if model.is_dir() else _optimize_model)(model, options, log, shown)


@dataclass(frozen=True, slots=True)
class Shown:
    """The text that a command prints besides its errors."""

    timing: bool
    quiet: bool
    verbose: bool

    @property
    def progress(self) -> bool:
        """Whether a bar of progress is shown; lines of the logger would break it."""
        return not self.quiet and not self.verbose


class _OnStderr(logging.Handler):
    """Prints each record on stderr, with the seconds since the command began."""

    def __init__(self, began: float) -> None:
        super().__init__()
        self.began = began

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{time.monotonic() - self.began:7.2f} s  {record.getMessage()}", err=True)


@contextmanager
def _records(began: float) -> Iterator[None]:
    """Print the records of the logger `taso_mirage` until the end of the block."""
    logger, handler = logging.getLogger("taso_mirage"), _OnStderr(began)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _log(model: Path) -> Log:
    from taso_mirage.cli.log import Log

    return Log(model)


def _optimize_model(model: Path, options: Mapping[str, Any], log: Log | None, shown: Shown) -> None:
    with accounting(time.monotonic() - options.get("began", time.monotonic())):
        with staged(START), spent(Purpose.STARTING):
            from taso_mirage.report import data, explanations, summary
        result = _optimized(model, options, log, shown)
    explained = options["explain"]
    if log is None:
        if not shown.quiet:
            summary.show(result, model, result.written, shown.timing)
            say_lines(explanations.as_lines(result.explanations, result) if explained else ())
    else:
        found = data.result_data(result, model, result.written)
        if explained:
            found["changes"] = explanations.explanation_data(result.explanations, result)
        log.result(found)
    if result.failure is not None:
        raise result.failure


def _optimized(model: Path, options: Mapping[str, Any], log: Log | None, shown: Shown) -> Result:
    from taso_mirage import api
    from taso_mirage.optimize_options import options_of
    from taso_mirage.report import summary

    if log is not None:
        log.start(1, options_of(options).budget)
    with summary.Stages(quiet=log is not None or not shown.progress) as stages, interruptible() as stop:
        own = {"stop": stop, "command": ["taso-mirage", *sys.argv[1:]]}
        own |= _heard(stages, log, lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        if log is None and not shown.quiet and not options["may_grow"] and "scheduler" not in options and asking():
            own["may_grow"] = stages.asked
        return api.optimize(model, return_result=True, **{**options, **own})[1]


def _optimize_folder(source: Path, options: Mapping[str, Any], log: Log | None, shown: Shown) -> None:
    """Optimize one model after the other. Finished models are kept, and a later command does not
    optimize them again."""
    from taso_mirage.folder import PAGE, Folder

    for name in ("report", "certificate", "trace"):
        if name in options:
            raise InvalidOption(f"--{name} is for one model; in a folder each model has a page, linked from {PAGE}")
    if options["in_place"]:
        raise InvalidOption("--in-place is for one model; the results of a folder need a folder of their own")
    folder = Folder(source, options.get("output"), options)
    try:
        with folder.locked():
            folder.write()
            if log is not None:
                log.start(len(folder.waiting), folder.budget)
            if not shown.quiet:
                say(folder.plan, err=True)
            (_optimize_each if folder.scheduler is None else _optimize_on_workers)(folder, log, shown)
    except CtrlC as given_up:
        said = str(given_up) or "interrupted; finished models are kept, and the same command continues from there"
        if log is not None:
            log.error(said, 130)
            log.folder(folder.as_data(), 130)
        raise CtrlC(said) from None
    if log is not None:
        log.folder(folder.as_data(), folder.exit_code)
    elif not shown.quiet:
        say_lines(folder.said())
    if folder.exit_code:
        raise typer.Exit(folder.exit_code)


def _optimize_each(folder: Folder, log: Log | None, shown: Shown) -> None:
    from taso_mirage.folder_report import row_text
    from taso_mirage.report import data, summary

    names = folder.waiting
    for i, name in enumerate(names, 1):
        if log is not None:
            log.begin(folder.source / name)
        with summary.Stages(quiet=log is not None or not shown.progress) as stages, interruptible() as stop:
            row, result = folder.optimize(name, stop=stop, **_heard(stages, log, lambda: stop_later(stop)))
        if log is None:
            say_lines([] if shown.quiet else [f"{i}/{len(names)} {row_text(row)}"])
            if shown.timing and result is not None:
                summary.show_spending(result.spending)
        elif result is not None:
            log.result(data.result_data(result, folder.source / name, result.written))
        elif row["error"] is not None:
            log.error(row["error"], row["exit_code"])
        if stop.asked:
            raise CtrlC("interrupted; the same command continues from here")


def _optimize_on_workers(folder: Folder, log: Log | None, shown: Shown) -> None:
    """Optimize models on the workers of a scheduler, several at a time, each on a worker of its
    own."""
    from taso_mirage.folder_report import row_text
    from taso_mirage.measure.cluster import cluster
    from taso_mirage.report import data, summary

    count = len(folder.waiting)
    if not count or folder.scheduler is None:
        return
    keeping = "the best results so far of the models that workers are at"
    with cluster(folder.scheduler, folder.target) as there, interruptible(keeping, begun=True) as stop:
        for i, (row, result) in enumerate(folder.optimize_on(there, stop), 1):
            if log is None:
                say_lines([] if shown.quiet else [f"{i}/{count} {row_text(row)}"])
                if shown.timing and result is not None:
                    summary.show_spending(result.spending)
                continue
            log.begin(folder.source / row["model"])
            if result is not None:
                log.result(data.result_data(result, folder.source / row["model"], result.written))
            elif row["error"] is not None:
                log.error(row["error"], row["exit_code"])
        if stop.asked:
            raise CtrlC("interrupted; the same command continues from here")


def _heard(stages: Stages, log: Log | None, writing: Callable[[], object]) -> dict[str, Any]:
    """The options of `api.optimize` that report progress. `writing` is called before a file is
    written, because an interrupt afterwards may not report that nothing was written."""
    show = stages if log is None else log.progress

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "write":
            writing()
        show(stage, done, total)

    return {"progress": progress} | ({} if log is None else {"candidates": log.candidates})
