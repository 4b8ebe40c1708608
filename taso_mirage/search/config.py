"""The options of an optimization, and the state that all of its stages share: progress, interrupts,
and the cache of measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from taso_mirage.devices.cuda.options import ROUNDED
from taso_mirage.errors import InvalidOption, TasoMirageError
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.measure.child import LIMIT
from taso_mirage.measure.cost_cache import CostCache, cache_path
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.rounding import AllowedRounding
from taso_mirage.measure.session import Session, open_in_child
from taso_mirage.measure.shapes import Workloads, learned, workloads
from taso_mirage.measure.sizes import SettledSizes, kept_integers, settle
from taso_mirage.measure.target import CPU, Target
from taso_mirage.measure.timing import Timing
from taso_mirage.search.effort import USUAL_EFFORT, Effort
from taso_mirage.search.passes import multiplies_alike, runtime_specific
from taso_mirage.search.rulesets import RuleSet, rules
from taso_mirage.search.saturate import saturate_part
from taso_mirage.search.search import Budget, Strategy, search_part
from taso_mirage.system.deadline import Deadline
from taso_mirage.system.wording import option

STRATEGIES: Mapping[str, tuple[Strategy, ...]] = {
    "best-first": (search_part,),
    "saturate": (saturate_part,),
    "both": (search_part, saturate_part),
}
"""How one part of a model is searched, one way after the other, by the names of `--strategy`."""
OFF, CACHED, SEARCH = "off", "cached", "search"
KERNELS = (OFF, CACHED, SEARCH)
"""The values of `--kernels`: no kernels, those that were searched on this machine before, or a
search."""

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how much of it is done, and how much there is (0: not known)."""
SPENT = "budget"
"""The name of the whole command in a mapping from stages to the seconds that were spent before
each."""

Candidates = Callable[[str, float, Timing | None, str | None], None]
"""Called for each model that is tried, with its name, its predicted seconds, its times against the
original (None: not measured), and the reason why it was dropped (None: it was not dropped)."""


def quiet(stage: str, done: int, total: int) -> None:
    """Progress without a listener."""


def unseen(name: str, cost: float, timing: Timing | None, dropped: str | None) -> None:
    """A candidate without a listener."""


@dataclass(frozen=True, slots=True)
class Config:
    """The options of `optimize`, with their names on the command line.

    `budget`: seconds of everything except reading and writing. `seconds`: the largest number of
    seconds of one comparison of whole models. `shapes`: sets of named sizes, each with its weight.
    `inputs`: the user's own, for the check and the timing. `part`: the model is
    a part of another one, which is measured as a whole afterwards, so a candidate that is predicted
    to be faster and measured no slower is taken. `partial`: whether mutants with corrections take
    part in the search. `run_limit`: seconds that the runtime may take for one load, run or
    measurement. `rules`: the rules that may be applied (None: all). `kernels`: one of KERNELS.
    `explain`: whether every change is explained afterwards. `may_grow`: whether the file may become
    much larger, or a function that asks the user. `allow_rounding`: the rewrites that may change
    decisions of quantizers, and the largest change of the outputs. `effort`: the extent of searches
    and check. `elsewhere`: whether the model is also used on other machines, or without the library
    of kernels. `runtimes`: other targets on the same hardware, of which the fastest is taken.
    `candidates` is called for every model that is tried. `trace`: the folder that the
    graph after every stage and rule is written to.
    """

    budget: float = 60.0
    alpha: float = 1.05
    measure: bool = True
    seconds: float = 6.0
    shapes: Workloads = (({}, 1.0),)
    inputs: tuple[Arrays, ...] = ()
    default_size: int = 8
    cache: Path | None = None
    target: Target = CPU
    strategy: str = "best-first"
    portable: bool = False
    partial: bool = True
    run_limit: float = LIMIT
    rules: RuleSet | None = None
    kernels: str = OFF
    explain: bool = False
    may_grow: bool | Callable[[str], bool] = False
    allow_rounding: AllowedRounding | None = None
    effort: Effort = USUAL_EFFORT
    part: bool = False
    elsewhere: bool = True
    runtimes: tuple[Target, ...] = ()
    candidates: Candidates = unseen
    trace: Path | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise InvalidOption(
                f"{option('strategy', self.strategy)} is not known; the strategies are: {', '.join(STRATEGIES)}"
            )
        for pattern in () if self.allow_rounding is None else self.allow_rounding.rules:
            _ = self.applied - pattern  # raises if no rule has such a name

    @property
    def applied(self) -> RuleSet:
        """The rules that may be applied. A portable result excludes rules with the runtime's own
        operators. If operands are rounded, rules that turn a pool into a convolution are
        excluded."""
        allowed = rules() if self.rules is None else self.rules
        if ROUNDED in self.target.options:
            allowed = allowed.where(multiplies_alike)
        portable = self.portable or "com.microsoft" not in self.target.domains
        return allowed.where(lambda each: not runtime_specific(each)) if portable else allowed


class Stop:
    """A flag that an interrupt sets. The running stage and all later ones then end early, and the
    best result so far is measured and checked in the few seconds that the `deadline` leaves. Before
    the first search there is no result to keep (`began`)."""

    def __init__(self) -> None:
        self._budget: Budget | None = None
        self._deadline: Deadline | None = None
        self.began = self.asked = False

    @property
    def deadline(self) -> Deadline | None:
        """The deadline of the whole command."""
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: Deadline) -> None:
        self._deadline = deadline
        if self.asked:
            deadline.hasten()

    @property
    def budget(self) -> Budget | None:
        """The budget of the stage that runs; None between stages."""
        return self._budget

    @budget.setter
    def budget(self, budget: Budget | None) -> None:
        self._budget = budget
        if budget is not None:
            self.began = True
            budget.stop |= self.asked

    def __call__(self) -> None:
        self.asked = True
        if self._budget is not None:
            self._budget.stop = True
        if self._deadline is not None:
            self._deadline.hasten()


@contextmanager
def measuring(config: Config) -> Iterator[CostCache]:
    """The cache of measurements; without measurements, one in memory."""
    with closing(CostCache((config.cache or cache_path()) if config.measure else None)) as cache:
        yield cache


def weighted_sizes(model: Model, config: Config) -> list[tuple[dict[str, int], float]]:
    """The sets of sizes that the model is measured at, each with its share; the one that weighs
    most comes first."""
    return workloads(model, config.shapes, config.inputs, config.default_size)


def settled_sizes(model: Model, session: Session, config: Config) -> SettledSizes:
    """The sets of sizes, and scalars, at which the original runs."""
    asked = weighted_sizes(model, config)
    held = {**learned(model, config.inputs), **heaviest(config.shapes)}
    return settle(model, session, asked, held, config.default_size, kept_integers(model, config.inputs))


def runs_on(model: Model, config: Config, target: Target) -> bool:
    """Whether the original loads and runs on a target, on the user's first inputs or random
    ones."""
    try:
        session = open_in_child(model, target, source=True)
        settled = settled_sizes(model, session, config)
        sized = replace(model, sizes=settled.workloads[0][0], integers=settled.integers)
        session.run(config.inputs[0] if config.inputs else random_inputs(sized, 0))
    except (TasoMirageError, ValueError):  # numpy has no arrays of so many axes
        return False
    return True


def heaviest(shapes: Workloads) -> Mapping[str, int]:
    """The sizes of the set that weighs most."""
    return max(shapes, key=lambda each: each[1])[0]


def representative(model: Model, config: Config) -> dict[str, int]:
    """The sizes that weigh most."""
    return weighted_sizes(model, config)[0][0]
