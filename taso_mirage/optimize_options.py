"""The options of `taso_mirage.optimize`, checked, and the options of the pipeline that follow from
them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any

from taso_mirage.devices.cpu.options import MOST_THREADS
from taso_mirage.errors import InvalidOption
from taso_mirage.ir.model import Model
from taso_mirage.measure.child import LIMIT
from taso_mirage.measure.rounding import parse_rounding
from taso_mirage.measure.shapes import parse_shapes
from taso_mirage.measure.target import AUTO, Target, on_threads, runtimes_beside
from taso_mirage.measure.target import target as named
from taso_mirage.pipeline.fuse import check_mode, usual_mode
from taso_mirage.prove.rules.proofs import PROVED_WHERE_APPLIED
from taso_mirage.search.arrays import fitting, read_inputs
from taso_mirage.search.config import Candidates, Config, Progress, Stop, quiet, unseen
from taso_mirage.search.effort import USUAL_EFFORT, effort_named
from taso_mirage.search.rulesets import RuleSet, rules_of
from taso_mirage.search.rulesets import rules as all_rules
from taso_mirage.system.wording import option

_Inputs = str | Path | Mapping[str, Any]

FLAGS = "portable partial measure explain trust_kernels fix_defaults in_place elsewhere".split()
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
    threads: int | None = None
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
        if self.threads is not None and not (_is_number(self.threads, 1) and self.threads in range(MOST_THREADS + 1)):
            raise InvalidOption(f"{option('threads', self.threads)}: it is a whole number from 1 to {MOST_THREADS}")
        for name, kinds, said in KINDS:
            given = getattr(self, name)
            alone = name not in LISTS or isinstance(given, RuleSet | None)
            for each in (given,) if alone else several(given):
                if not _is(each, kinds if alone else LISTS[name]):
                    raise InvalidOption(f"{option(name, each)}: give {said}")

    @property
    def place(self) -> Target:
        """Return the target of this name, with its number of threads. Raises InvalidOption if there
        is none, or if it takes no such number."""
        target = named(self.target) if isinstance(self.target, str) else self.target
        return target if self.threads is None else on_threads(target, self.threads)

    def config(self, model: Model | None = None) -> Config:
        """Return the options of the pipeline for a model; without a model, the options that do not
        depend on it.

        Raises InvalidOption, and RuntimeUnavailable if this machine does not support the requested
        kernels.
        """
        target = self.place
        if self.kernels is not None:
            check_mode(self.kernels, self.measure, target if self.scheduler is None else None)
        config = Config(
            budget=self.budget,
            alpha=self.alpha,
            measure=self.measure,
            shapes=(({}, 1.0),) if model is None else parse_shapes(model, several(self.shape)),
            inputs=() if model is None else tuple(_arrays(model, each) for each in several(self.inputs)),
            target=target,
            strategy=self.strategy,
            portable=self.portable,
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
            runtimes=runtimes_beside(target) if self.target == AUTO else (),
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


def several(given: Any) -> Sequence[Any]:
    """The argument as a list. A value that is not a list becomes a list of one; strings and
    mappings are not iterated."""
    return given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def _to_be_proved(given: RuleSet | str | Path | Sequence[str | Path]) -> RuleSet:
    """The given set, or all rules and the rules of some files. No rule is trusted, independent of
    the evidence in its file."""
    files = () if isinstance(given, RuleSet) else [rules_of(Path(file)) for file in several(given)]
    asked = given if isinstance(given, RuleSet) else reduce(RuleSet.__add__, files, all_rules())
    return RuleSet(tuple(e if e.evidence in PROVED_WHERE_APPLIED else replace(e, evidence="law") for e in asked))


def _arrays(model: Model, given: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    return fitting(model, given, option("inputs")) if isinstance(given, Mapping) else read_inputs(model, Path(given))
