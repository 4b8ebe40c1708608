"""The Python API for ONNX models: `taso_mirage.optimize`, which the command line also calls."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from typing_extensions import Unpack

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.model import Model
from taso_mirage.measure.child import LIMIT
from taso_mirage.measure.cost_cache import proofs_path
from taso_mirage.measure.rounding import parse_rounding
from taso_mirage.measure.session import begin_runtime, weight_bytes
from taso_mirage.measure.shapes import parse_shapes
from taso_mirage.measure.target import Target
from taso_mirage.measure.target import target as named
from taso_mirage.onnx_io.defaults import with_fixed_defaults
from taso_mirage.onnx_io.files import data_files, from_memory, like, load
from taso_mirage.onnx_io.outputs import check_empty, check_outputs, check_space, same_file
from taso_mirage.option_types import OptimizeOptions
from taso_mirage.pipeline import stages
from taso_mirage.pipeline.fuse import check_mode, usual_mode
from taso_mirage.prove.rules.proofs import PROVED_WHERE_APPLIED, Proofs
from taso_mirage.report import certificate as certificates
from taso_mirage.report import html, logs
from taso_mirage.report.result import Result
from taso_mirage.search.arrays import fitting, read_inputs
from taso_mirage.search.config import Candidates, Config, Progress, Stop, quiet, unseen
from taso_mirage.search.effort import USUAL_EFFORT, effort_named
from taso_mirage.search.rulesets import RuleSet, rules_of
from taso_mirage.search.rulesets import rules as all_rules
from taso_mirage.system.deadline import Deadline
from taso_mirage.system.locks import locked
from taso_mirage.system.spending import Purpose, accounting, spent, staged
from taso_mirage.system.wording import option

Given = TypeVar("Given")
"""The type of a user's model: an `onnx.ModelProto`, an `onnx_ir.Model`, a `str` or a `Path`."""
_Inputs = str | Path | Mapping[str, Any]


@overload
def optimize(model: Given, *, return_result: Literal[False] = False, **options: Unpack[OptimizeOptions]) -> Given: ...
@overload
def optimize(
    model: Given, *, return_result: Literal[True], **options: Unpack[OptimizeOptions]
) -> tuple[Given, Result]: ...
def optimize(model: Any, *, return_result: bool = False, **options: Any) -> Any:
    """Return a model of the same type that computes the same results and is no slower.

    `model` is an `onnx.ModelProto`, an `onnx_ir.Model`, or a path. For a path, the optimized model
    is written to `output` (default: `MODEL.optimized.onnx`), and its path is returned. The options
    are those of `taso_mirage.option_types.OptimizeOptions`, with the names of the command-line
    options.
    Of shape, inputs and rules one may stand without a list around it.

    With effort="quick" an exporter may call this function on every model: it takes seconds, gives
    the same bytes every time, prints nothing, and writes no file for a model in memory.

    The logger "taso_mirage" of `logging` has the stages, the outcome and the notes (INFO), and all
    models that were tried (DEBUG).

    With `return_result` the result is a pair: the model, and a `Result` with its changes, times,
    evidence and notes. A rewrite that fails the check is left out; `result.failure` names it, or a
    warning if `return_result` is false. Raises TasoMirageError.
    """
    began = time.monotonic()
    asked = options_of(options)
    found = _run(model, asked, Deadline(asked.budget, began=began if asked.began is None else asked.began))
    if isinstance(model, str | Path):
        written: Any = type(model)(found.written[0])
    else:
        written = like(found.model, model, source=not found.changed)
    if return_result:
        return written, found
    if found.failure is not None:
        warnings.warn(str(found.failure), stacklevel=2)
    return written


FLAGS = "portable partial measure explain trust_kernels fix_defaults in_place elsewhere".split()
FILE = 0.04
"""The shares of the budget for the report and for the certificate."""
TARGET = str | Target
"""A protocol, of which no value is an instance."""
HUGE = 1e300
"""The bound from which on numbers are too large to be added to others; only infinity itself is
accepted."""
KINDS: tuple[tuple[str, Any, str], ...] = (
    ("shape", (), "texts like 'batch:8'"),
    ("inputs", (), "paths of .npz files, or mappings of arrays by input name"),
    ("rules", RuleSet | None, "a RuleSet, or paths of rule files"),
    *((name, str | Path | None, "a path") for name in ("output", "report", "certificate", "trace")),
    *((name, bool, "True or False") for name in FLAGS),
    ("may_grow", bool | Callable, "True or False, or a function"),
    ("target", TARGET, "a text like 'cpu'"),
    ("strategy", str, "a text like 'best-first'"),
    ("kernels", str | None, "a text like 'off'"),
    ("effort", str, "'quick', 'default' or 'thorough'"),
    ("scheduler", str | None, "a text like 'tcp://host:8786'"),
    ("allow_rounding", str | int | float | None, "a number of steps, or a text like '1:add.3'"),
    ("progress", Callable, "a function"),
    ("candidates", Callable, "a function"),
    ("stop", Stop | None, "a Stop"),
    ("command", Sequence, "a list of texts"),
    ("began", float | None, "a time of time.monotonic"),
)
"""The type of each option that is not a list, and its description in errors."""
LISTS: Mapping[str, Any] = {"shape": str, "inputs": str | Path | Mapping, "rules": str | Path}
"""The types of the elements of list options; one element may also stand without a list."""


@dataclass(frozen=True, slots=True)
class Options:
    """The keyword options of `optimize`; see there, and `taso-mirage optimize --help`.

    `elsewhere`: the model is also for other machines; else its kernels are for this GPU alone, and
    nothing was checked or measured without their library. Options: `command` is the command that a
    report says to repeat; `began` is the start of the budget, by `time.monotonic`: with the call,
    if left out; `progress` is called with the current stage, `candidates` with every model that is
    tried; `stop` ends the searches.
    """

    output: str | Path | None = None
    target: str | Target = "cpu"
    portable: bool = False
    strategy: str = "best-first"
    shape: str | Sequence[str] = ()
    inputs: _Inputs | Sequence[_Inputs] = ()
    effort: str = "default"
    budget: float = 60.0
    run_limit: float = LIMIT
    kernels: str | None = None
    partial: bool = True
    alpha: float = 1.05
    measure: bool = True
    scheduler: str | None = None
    explain: bool = False
    report: str | Path | None = None
    certificate: str | Path | None = None
    trace: str | Path | None = None
    trust_kernels: bool = False
    fix_defaults: bool = False
    in_place: bool = False
    may_grow: bool | Callable[[str], bool] = False
    allow_rounding: str | float | None = None
    rules: RuleSet | str | Path | Sequence[str | Path] | None = None
    elsewhere: bool = True
    progress: Progress = quiet
    candidates: Candidates = unseen
    stop: Stop | None = None
    command: Sequence[str] = ()
    began: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("budget", 0), ("run_limit", 0), ("alpha", 1)):
            if not _is_number(value := getattr(self, name), least):
                raise InvalidOption(
                    f"{option(name, value)}: it is a number of at least {least}, below {HUGE:g} or infinite"
                )
        for name, kinds, said in KINDS:
            given = getattr(self, name)
            alone = name not in LISTS or isinstance(given, RuleSet | None)
            for each in (given,) if alone else _several(given):
                if not _is(each, kinds if alone else LISTS[name]):
                    raise InvalidOption(f"{option(name, each)}: give {said}")

    @property
    def place(self) -> Target:
        """Return the target of this name. Raises InvalidOption if there is none."""
        return named(self.target) if isinstance(self.target, str) else self.target

    def config(self, model: Model | None = None) -> Config:
        """Return the options of the pipeline for a model; without a model, the options that do not
        depend on it.

        Raises InvalidOption, and RuntimeUnavailable if this machine does not support the requested
        kernels.
        """
        target = self.place
        if self.kernels is not None:
            check_mode(self.kernels, self.measure, target.name)
        config = Config(
            budget=self.budget,
            alpha=self.alpha,
            measure=self.measure,
            shapes=(({}, 1.0),) if model is None else parse_shapes(model, _several(self.shape)),
            inputs=() if model is None else tuple(_arrays(model, each) for each in _several(self.inputs)),
            target=target,
            strategy=self.strategy,
            portable=self.portable,
            scheduler=self.scheduler,
            partial=self.partial,
            run_limit=self.run_limit,
            rules=None if self.rules is None else _to_be_proved(self.rules),
            kernels=self.kernels or "off",
            effort=effort_named(self.effort),
            explain=self.explain or self.report is not None,
            may_grow=self.may_grow,
            candidates=self.candidates,
            trace=None if self.trace is None else Path(self.trace),
            elsewhere=self.elsewhere,
            allow_rounding=None if self.allow_rounding is None else parse_rounding(self.allow_rounding),
        )
        return config if self.kernels is not None else replace(config, kernels=usual_mode(config))


def options_of(given: Mapping[str, Any]) -> Options:
    """The options of `optimize` by name, with the values of the effort for options that are not
    given. Raises InvalidOption for an unknown option or a value of a wrong type."""
    if unknown := given.keys() - Options.__dataclass_fields__.keys():
        name = min(unknown)
        near = get_close_matches(name, Options.__dataclass_fields__, 1)
        raise InvalidOption(f"no option is called {name!r}{f', did you mean {near[0]!r}?' if near else ''}")
    name = given.get("effort", "default")
    effort = effort_named(name) if isinstance(name, str) else USUAL_EFFORT  # the check of the options reports the error
    return Options(**{**effort.options, **given})


def _is_number(value: Any, least: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (least <= value < HUGE or (isinstance(value, float) and value == math.inf))


def _is(value: Any, kinds: Any) -> bool:
    """Whether a value has one of these types; a string with a zero byte is not a path."""
    if kinds is TARGET:
        return isinstance(value, str) or hasattr(value, "machine")
    return isinstance(value, kinds) and "\0" not in (str(value) if isinstance(value, str | Path) else "")


def _several(given: Any) -> Sequence[Any]:
    """The argument as a list. A value that is not a list becomes a list of one; strings and
    mappings are not iterated."""
    return given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def _to_be_proved(given: RuleSet | str | Path | Sequence[str | Path]) -> RuleSet:
    """The given set, or all rules and the rules of some files. No rule is trusted, independent of
    the evidence in its file."""
    files = () if isinstance(given, RuleSet) else [rules_of(Path(file)) for file in _several(given)]
    asked = given if isinstance(given, RuleSet) else reduce(RuleSet.__add__, files, all_rules())
    return RuleSet(tuple(e if e.evidence in PROVED_WHERE_APPLIED else replace(e, evidence="law") for e in asked))


def _arrays(model: Model, given: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    return fitting(model, given, option("inputs")) if isinstance(given, Mapping) else read_inputs(model, Path(given))


def _run(given: Any, options: Options, deadline: Deadline) -> Result:
    """The result in the user's type, with all requested files and the account of all seconds."""
    name = str(given) if isinstance(given, str | Path) else "model"
    heard, seen = logs.with_stages(name, options.progress), logs.with_candidates(name, options.candidates)
    with accounting() as account:
        result = _with_files(given, replace(options, progress=heard, candidates=seen), deadline)
        result = replace(result, spending=account.spending())
    logs.log_result(name, result)
    return result


def _with_files(given: Any, options: Options, deadline: Deadline) -> Result:
    opened = time.monotonic()
    if isinstance(given, str | Path):
        path = Path(given)
        begin_runtime(options.place)
        with staged("open the file"), spent(Purpose.FILES):
            model = load(path, options.trust_kernels)
        output: Path | None = _output(path, options)
    else:
        model = from_memory(given, options.trust_kernels)
        path = Path(given.graph.name or "model")
        output = _in_memory(options)
    reading = time.monotonic() - opened
    model = with_fixed_defaults(model) if options.fix_defaults else model
    page, certified = (None if each is None else Path(each) for each in (options.report, options.certificate))
    read = {option("inputs", file): Path(file) for file in _several(options.inputs) if isinstance(file, str | Path)}
    check_outputs(
        {"output": output, "report": page, "certificate": certified},
        read | ({"the model": path} if isinstance(given, str | Path) else {}),
        data_files(model),
        options.in_place,
    )
    if output is not None:
        check_space(output, weight_bytes(model))
    if options.trace is not None:
        check_empty(Path(options.trace), (output, page, certified))
    with locked(*(each for each in (output, page, certified) if each is not None)):
        config, heard = options.config(model), (options.progress, options.stop)
        each_file = FILE * deadline.seconds if math.isfinite(deadline.seconds) else 0.0
        files = deadline.earlier(each_file * sum(each is not None for each in (page, certified)))
        result = stages.optimize_model(model, config, *heard, output, files, reading)
        if options.kernels is None and usual_mode(config) != usual_mode(replace(config, scheduler=None)):
            result = result.noted(_no_kernels())
        if certified is not None:
            with staged("certificate"):
                certificates.write_certificate(certified, result, Proofs(proofs_path()))
        if page is not None:
            with staged("report"):
                html.write_page(page, result, result.explanations, path, result.written, options.command)
    return result


def _no_kernels() -> str:
    return (
        f"no kernels were searched, as {option('scheduler')} measures operators on other machines; "
        f"{option('kernels', 'search')} does so here"
    )


def _output(path: Path, options: Options) -> Path:
    """The output path for a model from a path. With `in_place` it is the file that a link points
    to, so the link stays."""
    if options.in_place:
        if options.output is not None and not same_file(Path(options.output), path):
            raise InvalidOption(
                f"{option('in_place', True)} writes onto the model {path}; leave {option('output')} out"
            )
        return Path(options.output or path).resolve()
    return Path(options.output or path.with_name(f"{path.stem}.optimized.onnx"))


def _in_memory(options: Options) -> Path | None:
    if options.in_place:
        raise InvalidOption(f"{option('in_place', True)} is for a model in a file; one in memory is returned")
    return None if options.output is None else Path(options.output)
