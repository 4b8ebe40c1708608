"""The order of work of the kernel stage: the predicted kernels of all kinds of regions are tried in
the model as one set; then it tunes the kernel of another kind, or it tries made kernels in the
model, whichever is expected to gain more per second."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from taso_mirage.ir.terms import Graph
from taso_mirage.measure.child import child
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel, kernel_savings, refused_parts, without_places
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.search.search import Budget
from taso_mirage.system.schedule import Schedule, ScheduledWork

KERNEL, KNOWN = 4.0, 0.5
"""Expected seconds for a kind of regions, and for one whose kernel is on disk; the times of earlier
kinds correct them."""
LEAST = 0.5
"""The least seconds left in which a kernel is begun."""
LONGEST = 1.5 * KERNEL
"""The seconds that a kernel may take on a busy machine: with less time left, no further one is
begun if all are tried at once."""
PART = 1 / 3
"""The largest share of the remaining time for one kind of regions: longer tuning gains less than
the next kind. A kind whose share of all possible savings is smaller gets no more than that share,
also if it is the last one."""
REACH = 0.2
"""The share of the time of a predicted kernel that tuning may save."""
LEAST_REGIONS = 2.0
"""The least seconds that are kept for the check of kernels on the inputs of their regions."""
MADE, TRIED, PART_TRIED = "kernels", "kernels in the model", "some kernels in the model"


@dataclass(slots=True)
class StageTime:
    """The time of the kernel stage. `trial` are the seconds of the last trial in the model, or the
    least seconds of one. With `reserve`, the time of one more trial is kept for the model without
    the kernels' library, which was not measured. Known kernels (not `searching`) may use all of the
    time. A check on the inputs of regions takes `of_a_kind` seconds for each of the `checked` goals
    with a kernel; LEAST_REGIONS of these are no part of the stage's time."""

    budget: Budget
    searching: bool
    trial: float
    reserve: bool = False
    of_a_kind: float = 0.0
    checked: set[Graph] = field(default_factory=set)

    def over(self) -> bool:
        """Whether it is too late to begin anything."""
        return self.searching and child().deadline.left() <= 0

    def left(self) -> float:
        """The seconds for kernels and trials, without those of the check that follows, which takes
        about as long as a trial."""
        left = self.budget.left() if self.searching else math.inf
        checks = max(self.of_a_kind * len(self.checked) - LEAST_REGIONS, 0.0)
        return min(left - self.trial * self.reserve, child().deadline.last() - self.trial) - checks

    def of_a_kernel(self) -> float:
        """The seconds for a kernel on another worker, after which it can be tried in the model."""
        left = self.left() - self.trial
        return min(max(PART * left, KERNEL), left)

    def late(self) -> bool:
        """Whether less time is left than for a trial and a check of a set of kernels."""
        return self.left() < self.trial


class KernelOrder:
    """Kernels of kinds of regions, with the `possible` seconds that they may save, and trials of
    them in the model.

    `first` returns the predicted kernels of kinds, `make` the kernels of a kind that are faster
    alone, and clearly faster than the predicted one, within some seconds. `place` puts some in the
    model, in place of others of the same regions, and returns whether the model is faster then. A
    trial takes about `trial()` seconds, which are kept in reserve while a made kernel is untried;
    of a set that is refused, the parts are tried. `left` are the seconds for everything. With
    `once` the kernels are tried after the last one is made: one trial of all costs as much as one
    of each.
    """

    def __init__(
        self,
        possible: Mapping[EqualRegions, float],
        known: Container[EqualRegions],
        first: Callable[[], Mapping[EqualRegions, RegionKernel]],
        make: Callable[[EqualRegions, float], Sequence[RegionKernel]],
        place: Callable[[Sequence[RegionKernel]], bool],
        trial: Callable[[], float],
        left: Callable[[], float],
        once: bool = False,
    ) -> None:
        self.first, self.make, self.place = first, make, place
        self.trial, self.left, self.once = trial, left, once
        self.made: list[RegionKernel] = []
        """Faster alone, and not in the model."""
        self.fresh: list[RegionKernel] = []
        """Kernels that were not tried yet, among those."""
        self.model: list[RegionKernel] = []
        self.known, self.waiting = known, dict(possible)
        self.possible = sum(possible.values())
        self.schedule = Schedule(left)

    def run(self, going: Callable[[], bool]) -> None:
        """Do all work for which there is time, while `going`.

        A kernel that took longer than its time is tried nevertheless.
        """
        predicted = self.first()
        for kind, gain in self.waiting.items():
            seconds = KNOWN if kind in self.known else KERNEL
            gain = gain if kind not in predicted else _by_tuning(gain, predicted[kind])
            self.schedule.add(
                [ScheduledWork(MADE, gain, seconds, partial(self._make, kind), f"{MADE} {seconds}", LEAST)]
            )
        self._add([each for each in predicted.values() if each.faster])
        if not self.once and going():
            self._try_made()
        while going() and (self._step() or self._try_made()):
            pass

    def _step(self) -> ScheduledWork | None:
        """The next work; if there is no time for both a kernel and a trial, the trial."""
        least = LONGEST if self.once and self.made else LEAST  # made kernels must not be lost for another
        late = self.left() < self.trial() + least
        if late:
            self.schedule.waiting = [each for each in self.schedule.waiting if each.name != MADE]
        return self.schedule.step()

    def _make(self, kind: EqualRegions, seconds: float) -> float:
        share = min(self.waiting.pop(kind) / self.possible, PART) if self.possible > 0 else PART
        left = max(self.left() - self.trial(), 0.0)
        found = self.make(kind, min(seconds, left, max(KERNEL, share * left)))
        return self._add(found)

    def _add(self, found: Sequence[RegionKernel]) -> float:
        """The seconds that kernels save, which are tried together with all others that wait for
        that; those of the same places that are not in the model do not wait any more."""
        if not found:
            return 0.0
        self.made = [*without_places(self.made, found), *found]
        self.fresh = [*without_places(self.fresh, found), *found]
        self.schedule.waiting = [each for each in self.schedule.waiting if each.name != TRIED]
        gain = 0.0 if self.once else self._gain(self.fresh)  # a trial gains as much later
        self._try(TRIED, self.fresh, gain)
        return kernel_savings(found)

    def _try(self, name: str, kernels: Sequence[RegionKernel], gain: float, least: float = 0.0) -> None:
        work = partial(self._place, tuple(kernels))
        self.schedule.add([ScheduledWork(name, gain, self.trial(), work, TRIED, least)])

    def _place(self, kernels: Sequence[RegionKernel], seconds: float = 0.0) -> float:
        """The seconds that some kernels save in addition, if the model is faster with those of them
        that are not in it; if not, their parts are tried."""
        kernels = [each for each in kernels if each in self.made]
        self.fresh = [each for each in self.fresh if each not in kernels]
        gain = self._gain(kernels)
        if not kernels or self.place(kernels):
            self.made = [each for each in self.made if each not in kernels]
            self.model = [*without_places(self.model, kernels), *kernels]
            return gain
        for part in refused_parts(kernels):
            self._try(PART_TRIED, part, self._gain(part), self.trial())
        return 0.0

    def _try_made(self) -> bool:
        """Try the kernels that wait for it, whatever the time; whether there are any."""
        waiting = [each for each in self.schedule.waiting if each.name == TRIED]
        self.schedule.waiting = [each for each in self.schedule.waiting if each.name != TRIED]
        for work in waiting:
            work.run(0.0)
        return bool(waiting)

    def _gain(self, kernels: Sequence[RegionKernel]) -> float:
        """The seconds that kernels save in addition to those in the model."""
        return max(
            kernel_savings(kernels) + kernel_savings(without_places(self.model, kernels)) - kernel_savings(self.model),
            0.0,
        )


def _by_tuning(possible: float, predicted: RegionKernel) -> float:
    """The seconds that a tuned kernel may save in addition to a predicted one."""
    return REACH * predicted.seconds if predicted.faster else max(possible + predicted.saved, 0.0)
