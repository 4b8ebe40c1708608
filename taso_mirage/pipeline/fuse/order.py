"""The order of work of the kernel stage: it makes the kernel of another kind of regions, or it
tries made kernels in the model, whichever is expected to gain more per second."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from taso_mirage.measure.child import child
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel, trials
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.search.search import Budget
from taso_mirage.system.schedule import Schedule, ScheduledWork

KERNEL, KNOWN = 4.0, 0.5
"""Expected seconds for a kind of regions, and for one whose kernel is on disk; the times of earlier
kinds correct them."""
LEAST = 0.5
"""The least seconds left in which a kernel is begun."""
LONGEST = 2 * KERNEL
"""The seconds that a kernel may take on a busy machine: with less time left, no further one is
begun if all are tried at once."""
PART = 1 / 3
"""The largest share of the remaining time for one kind of regions: longer tuning gains less than
the next kind. A kind whose share of all possible savings is smaller gets no more than that share,
also if it is the last one."""
MADE, TRIED = "kernels", "kernels in the model"


@dataclass(slots=True)
class StageTime:
    """The time of the kernel stage. `trial` are the seconds of the last trial in the model, or the
    least seconds of one. With `reserve`, the time of one more trial is kept for the model without
    the kernels' library, which was not measured. Known kernels (not `searching`) may use all of the
    time."""

    budget: Budget
    searching: bool
    trial: float
    reserve: bool = False

    def over(self) -> bool:
        """Whether it is too late to begin anything."""
        return self.searching and child().deadline.left() <= 0

    def left(self) -> float:
        """The seconds for kernels and trials, without those of the check that follows, which takes
        about as long as a trial."""
        left = self.budget.left() if self.searching else math.inf
        return min(left - self.trial * self.reserve, child().deadline.last() - self.trial)

    def late(self) -> bool:
        """Whether less time is left than for a trial and a check of a set of kernels."""
        return self.left() < self.trial


class KernelOrder:
    """Kernels of kinds of regions, with the `possible` seconds that they may save, and trials of
    them in the model.

    `make` returns the kernels of a kind that are faster alone, within some seconds. `place` puts
    some in the model and returns whether the model is faster then. A trial takes about `trial()`
    seconds, which are kept in reserve while a made kernel is untried. `left` are the seconds for
    everything. With `once` the kernels are tried after the last one is made: one trial of all costs
    as much as one of each.
    """

    def __init__(
        self,
        possible: Mapping[EqualRegions, float],
        known: Container[EqualRegions],
        make: Callable[[EqualRegions, float], Sequence[RegionKernel]],
        place: Callable[[Sequence[RegionKernel]], bool],
        trial: Callable[[], float],
        left: Callable[[], float],
        once: bool = False,
    ) -> None:
        self.make, self.place, self.trial, self.left, self.once = make, place, trial, left, once
        self.made: list[RegionKernel] = []
        """Faster alone, and not in the model."""
        self.split = False
        self.waiting = dict(possible)
        self.possible = sum(possible.values())
        self.schedule = Schedule(left)
        for kind, gain in possible.items():
            seconds = KNOWN if kind in known else KERNEL
            self.schedule.add(
                [ScheduledWork(MADE, gain, seconds, partial(self._make, kind), f"{MADE} {seconds}", LEAST)]
            )

    def run(self, going: Callable[[], bool]) -> None:
        """Do all work for which there is time, while `going`.

        A kernel that took longer than its time is tried nevertheless.
        """
        while going() and (self._step() or self._apart()):
            pass
        for work in [each for each in self.schedule.waiting if each.name == TRIED and not each.least]:
            if going():
                work.run(0.0)

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
        if found:
            self.made += found
            self.schedule.waiting = [each for each in self.schedule.waiting if each.name != TRIED]
            self._try(self.made, gain=0.0 if self.once else None)  # a trial gains as much later
        return _saved(found)

    def _try(self, kinds: Sequence[RegionKernel], least: float = 0.0, gain: float | None = None) -> None:
        work, gain = partial(self._place, tuple(kinds)), _saved(kinds) if gain is None else gain
        self.schedule.add([ScheduledWork(TRIED, gain, self.trial(), work, TRIED, least)])

    def _place(self, kinds: Sequence[RegionKernel], seconds: float) -> float:
        """The seconds that some kinds save, if the model is faster with those of them that are not
        yet in it."""
        kinds = [each for each in kinds if each in self.made]
        if not kinds or not self.place(kinds):
            return 0.0
        self.made = [each for each in self.made if each not in kinds]
        return _saved(kinds)

    def _apart(self) -> bool:
        """Try sets of the made kernels once all of them together are refused."""
        if self.split or len(self.made) < 2:
            return False
        self.split = True
        for kinds in trials(sorted(self.made, key=lambda each: -each.saved)):
            self._try(kinds, self.trial())
        return True


def _saved(kinds: Sequence[RegionKernel]) -> float:
    """The seconds that a kernel saves; one that prepares weights may be slower alone."""
    return max(sum(each.saved for each in kinds), 0.0)
