"""The choice of the next work: the work with the highest expected gain per second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScheduledWork:
    """A piece of work that may make a result better.

    `gain` is its expected saving in one run of the model, in all of its places, and `seconds` its
    expected time; where fewer than `least` are left, it is not begun. `run` does the work within
    approximately the given seconds and returns its gain. Works of one `sort` are similar: the
    actual seconds and gains of some correct the expectations of the others.
    """

    name: str
    gain: float
    seconds: float
    run: Callable[[float], float]
    sort: str = ""
    least: float = 0.0


@dataclass(slots=True)
class _Record:
    """The expected and the actual seconds and gains of the works of one sort; it begins with one
    work whose expectations were exact."""

    expected: float
    taken: float
    hoped: float
    gained: float

    @property
    def pace(self) -> float:
        """How many times its expected seconds a work takes."""
        return self.taken / self.expected if self.expected > 0 else 1.0

    @property
    def part(self) -> float:
        """The part of its expected gain that a work has."""
        return self.gained / self.hoped if self.hoped > 0 else 1.0


@dataclass(slots=True)
class Schedule:
    """Waiting works.

    The best one is done first, until no time is `left` for another one. `left` gives the seconds
    that works may still take, without the seconds reserved for later steps.
    """

    left: Callable[[], float]
    clock: Callable[[], float] = time.monotonic
    waiting: list[ScheduledWork] = field(default_factory=list)
    _records: dict[str, _Record] = field(default_factory=dict)

    def add(self, works: Iterable[ScheduledWork]) -> None:
        self.waiting += works

    def expected(self, work: ScheduledWork) -> float:
        """The seconds that a work will take, by those that others of its sort took."""
        record = self._records.get(work.sort)
        return work.seconds * (record.pace if record is not None else 1.0)

    def rate(self, work: ScheduledWork) -> float:
        """The gain of a work for each of its seconds, by the gains of others of its sort."""
        record, seconds = self._records.get(work.sort), self.expected(work)
        gain = work.gain * (record.part if record is not None else 1.0)
        return gain / seconds if seconds > 0 else math.inf if gain > 0 else 0.0

    def given(self, work: ScheduledWork) -> float:
        """The seconds given to a work: its expected seconds, and a part of the additional time in
        proportion to its gain among all waiting works."""
        left = max(self.left(), 0.0)
        together = sum(each.gain for each in self.waiting) or work.gain
        share = left * (work.gain / together) if together > 0 and left < math.inf else left
        return min(max(self.expected(work), share), left)

    def next(self) -> ScheduledWork | None:
        """The best of those for which there is time; the first of equal ones."""
        left = self.left()
        fitting = [each for each in self.waiting if left > 0 and each.least <= left]
        return max(fitting, key=self.rate, default=None)

    def step(self) -> ScheduledWork | None:
        """Do the best work; None where no other one can be."""
        work = self.next()
        if work is None:
            return None
        seconds = self.given(work)
        self.waiting.remove(work)
        start = self.clock()
        gained = work.run(seconds)
        self._note(work, self.clock() - start, gained)
        return work

    def run(self) -> list[ScheduledWork]:
        """Do all works for which there is time; the others still wait. Returns those done, in their
        order."""
        done = list[ScheduledWork]()
        while (work := self.step()) is not None:
            done.append(work)
        return done

    def _note(self, work: ScheduledWork, seconds: float, gained: float) -> None:
        if (record := self._records.get(work.sort)) is None:
            record = self._records[work.sort] = _Record(work.seconds, work.seconds, work.gain, work.gain)
        record.expected += work.seconds
        record.taken += seconds
        record.hoped += work.gain
        record.gained += max(gained, 0.0)
