"""A stage of the pipeline as a value, and the runner of several stages in order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from taso_mirage.errors import OutOfTime, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.lowering.backend import Backend
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.report.result import Result
from taso_mirage.search.config import SPENT, Config, Progress, Stop
from taso_mirage.system.deadline import UNBOUNDED, Deadline
from taso_mirage.system.spending import staged
from taso_mirage.system.workers import Workers

Values = Mapping[str, Any]
"""The results of the stages so far, by name."""


class Kept(Exception):
    """Raised by a stage that finds a reason to keep the original's graph; later stages do not
    run."""


Traced = Callable[[str, Values, float], None]
"""Called with a stage's name, the values that it gave, and its seconds."""


def untraced(stage: str, made: Values, seconds: float) -> None:
    """The default of stages without a trace."""


def _nothing_nested(model: Model, config: Config, progress: Progress, stop: Stop) -> Result:
    raise TasoMirageError("no models are optimized inside of this one")


@dataclass(slots=True)
class Job:
    """State that all stages of one optimization share: the options, progress, interrupts, and the
    cache of measurements.

    `remarks` are for the user; `failure` says which rewrite broke the model, `kept` why its graph
    is kept. `seconds` are those of each stage, `checking` those that a check may take, `regions`
    those of the check of regions, `running` those of one run of the original, `loading` those of
    the last load of another model, `reading` those that its file took. The `deadline` is that of
    the stages that run. `nested` optimizes another model with options of its own. `backend`: that
    of kernels on a GPU, if they are searched and can be made, and `searchers` the processes that
    search them. `terms`: how many the original has. `chains`: whether it has recurrences that are
    written out, whose loops are slower without kernels. `traced` is called after every stage.
    """

    config: Config
    progress: Progress
    stop: Stop
    cache: CostCache
    remarks: list[str] = field(default_factory=list)
    failure: str | None = None
    kept: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    deadline: Deadline = UNBOUNDED
    reading: float = 0.0
    checking: float = 0.0
    regions: float = 0.0
    running: float = 0.0
    loading: float | None = None
    nested: Callable[[Model, Config, Progress, Stop], Result] = _nothing_nested
    backend: Future[Backend | None] | None = None
    searchers: Workers | None = None
    terms: int = 0
    chains: bool = False
    traced: Traced = untraced


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    `work` gets the job and the values that `takes` names, and returns those that `gives` names, in
    this order (one value alone, or a tuple). A stage runs where all that it takes is there.
    `per_term`: the seconds for each term of the original that it takes in any case, though its own
    work ends with the time. Where they are not left it does not begin, and `otherwise` gives its
    result; None where nothing is there without it.
    """

    name: str
    work: Callable[..., Any]
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    per_term: float = 0.0
    otherwise: tuple[Any, ...] | None = None

    def __call__(self, job: Job, values: Values) -> dict[str, Any]:
        """The values that the stage gives; its seconds are noted.

        Raises OutOfTime where its own seconds, and those of the stages that end the command, are
        not left.
        """
        if self.per_term > 0:
            seconds = self.per_term * job.terms
            job.deadline.demand(f"on {job.terms} terms it takes {seconds:.2g} s", seconds + job.deadline.closing)
        if job.deadline.seconds < math.inf:
            job.progress(SPENT, int(job.deadline.spent), int(job.deadline.seconds))
        job.progress(self.name, 0, 0)
        start = time.perf_counter()
        with staged(self.name):
            made = self.work(job, *(values[name] for name in self.takes))
        job.seconds[self.name] = time.perf_counter() - start
        given = dict(zip(self.gives, made if len(self.gives) != 1 else (made,), strict=True))
        job.traced(self.name, given, job.seconds[self.name])
        return given


def run(stages: Iterable[Stage], job: Job, given: Values) -> dict[str, Any]:
    """All values after the stages, `given` among them.

    Where a stage raises Kept, or its time is over and nothing is there without it, the later ones
    find nothing to take.
    """
    values = dict(given)
    for stage in stages:
        if all(name in values for name in stage.takes):
            try:
                values |= stage(job, values)
            except Kept as why:
                job.kept = str(why)
                break
            except OutOfTime as why:
                if stage.otherwise is not None:
                    values |= dict(zip(stage.gives, stage.otherwise, strict=True))
                    continue
                asked = f"the budget of {job.deadline.seconds:g} s" if not job.stop.asked else "after the interrupt it"
                job.kept = f"{asked} ended in the stage {stage.name!r} ({why}): the original's graph is kept"
                break
    return values
