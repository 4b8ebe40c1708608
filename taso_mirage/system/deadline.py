"""The end of a command's time, which all of its stages and measurements read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from taso_mirage.errors import OutOfTime

OVERTIME, GRACE = 1.05, 1.2
"""How many times its seconds, and how many more, a command may take before all of its work is given
up. It promises a tenth and 2 s: the rest is for the end of the process."""
EXTRA = 1.02
"""How many times its seconds work may take that only makes more of a result."""
FOREVER = 1e9
"""Seconds that are left where there is no end."""
INTERRUPTED = 1.5, 4.0
"""Seconds that are left after an interrupt, beside those of the stages that end a command: until
nothing begins that is not needed, and until all is given up."""


@dataclass(slots=True, eq=False)
class Deadline:
    """The end of `seconds` that `began` at a time of the clock (now, if left out), and a later,
    last one.

    After the first end no work begins that is not needed, at the last all work is given up. An
    interrupt moves both up (`hasten`), as far as the stages that end the command allow: `closing`
    are the seconds that loading, comparing and checking a result take, by their times so far.
    Neither is later than that of the deadline that it is `within`.
    """

    seconds: float = math.inf
    clock: Callable[[], float] = time.monotonic
    within: Deadline | None = None
    began: float | None = None
    closing: float = field(default=0.0, init=False)
    start: float = field(init=False)
    _ends: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock() if self.began is None else self.began
        ends = self.start + self.seconds, self.start + OVERTIME * self.seconds + GRACE
        around = ends if self.within is None else self.within._ends
        self._ends = min(ends[0], around[0]), min(ends[1], around[1])

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self.clock() - self.start

    def left(self) -> float:
        """Seconds to the end; none are left after it.

        Where there is no end, FOREVER: parts of them have to be numbers.
        """
        return min(max(self._ends[0] - self.clock(), 0.0), FOREVER)

    def last(self) -> float:
        """Seconds to the last end."""
        around = math.inf if self.within is None else self.within.last()
        return min(max(self._ends[1] - self.clock(), 0.0), around)

    def earlier(self, seconds: float) -> Deadline:
        """A deadline with both ends some seconds earlier, to leave time for work that follows."""
        found = Deadline(self.seconds, self.clock, self, self.start)
        found._ends = self._ends[0] - seconds, self._ends[1] - seconds
        return found

    def of_extras(self) -> Deadline:
        """A deadline with the same end, and a last end soon after it, for work that only adds to a
        result."""
        found = self.earlier(0.0)
        extra = (EXTRA - 1) * self.seconds + GRACE / 2
        found._ends = self._ends[0], min(self._ends[0] + extra, self._ends[1])
        return found

    def hasten(self) -> None:
        """An interrupt: the results so far are to be measured and checked, and no more."""
        now = self.clock()
        least = (seconds + times * self.closing for seconds, times in zip(INTERRUPTED, (1, 2), strict=True))
        end, last = (min(old, now + seconds) for old, seconds in zip(self._ends, least, strict=True))
        self._ends = end, last

    def demand(self, what: str, seconds: float = 0.0) -> None:
        """Raise OutOfTime where fewer seconds are left to the last end."""
        if self.last() <= seconds:
            raise OutOfTime(f"the time is over: {what}")


UNBOUNDED = Deadline()
