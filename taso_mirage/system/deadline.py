"""The end of a command's time, which all of its stages and measurements read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from taso_mirage.errors import OutOfTime

OVERTIME = 1.2
"""How many times its seconds a command may take where what must come at the end is not done: what
goes on then is given up."""
SHORTEST = 15.0
"""Nothing is given up before so many seconds: to load a model and to check it takes its time."""
EXTRA = 1.05
"""The same of work that only makes more of a result."""
INTERRUPTED = 1.5, 4.0
"""Seconds that are left after an interrupt: for what is measured, and for what is given up."""


@dataclass(slots=True, eq=False)
class Deadline:
    """The end of `seconds` from now on, and a later, last one.

    At the first no work begins that is not needed, at the last all work is given up. An interrupt
    moves both up (`hasten`). Neither is later than that of the deadline that it is `within`.
    """

    seconds: float = math.inf
    clock: Callable[[], float] = time.monotonic
    within: Deadline | None = None
    began: float = field(init=False)
    _ends: tuple[float, float] = field(init=False)
    _room: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()
        ends = self.began + self.seconds, self.began + max(OVERTIME * self.seconds, SHORTEST)
        around = ends if self.within is None else self.within._ends
        self._ends = min(ends[0], around[0]), min(ends[1], around[1])
        self._room = min(max(self._ends[0], self.began + SHORTEST), self._ends[1])

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self.clock() - self.began

    def left(self) -> float:
        """Seconds to the end; none are left after it."""
        return max(self._ends[0] - self.clock(), 0.0)

    def room(self) -> float:
        """Seconds to the end, or to when the first work may be given up, if that is later: for what
        is to be done by then."""
        return max(self._room - self.clock(), 0.0)

    def last(self) -> float:
        """Seconds to the last end."""
        around = math.inf if self.within is None else self.within.last()
        return min(max(self._ends[1] - self.clock(), 0.0), around)

    def of_extras(self) -> Deadline:
        """The same end, and a last one soon after it, for work that only makes more of a result."""
        found = Deadline(self.left(), self.clock, within=self)
        last = self.began + max(EXTRA * self.seconds, SHORTEST)
        found._ends = found._ends[0], min(found._ends[1], last)
        found._room = min(found._room, found._ends[1])
        return found

    def hasten(self) -> None:
        """An interrupt: what was found is to be measured and checked, and no more."""
        now = self.clock()
        end, last = (min(old, now + seconds) for old, seconds in zip(self._ends, INTERRUPTED, strict=True))
        self._ends, self._room = (end, last), end

    def demand(self, what: str) -> None:
        """Raise OutOfTime after the last end."""
        if self.last() <= 0:
            raise OutOfTime(f"the time is over: {what}")


UNBOUNDED = Deadline()
