"""The end of a command's time, which all of its stages and measurements read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from taso_mirage.errors import OutOfTime

OVERTIME, GRACE = 1.05, 1.2
"""The factor of its seconds, and the additional seconds, after which all work of a command is
abandoned. The documented limit is a tenth and 2 s; the difference is for the end of the process."""
EXTRA = 1.02
"""The factor of its seconds after which work that only improves a result is abandoned."""
FOREVER = 1e9
"""The remaining seconds of a deadline without an end."""
INTERRUPTED = 1.5, 4.0
"""The remaining seconds after an interrupt, in addition to those of the stages that end a command:
until only necessary work begins, and until all work is abandoned."""


@dataclass(slots=True, eq=False)
class Deadline:
    """The end of `seconds` that `began` at a time of the clock (default: now), and a later, last
    end.

    After the first end only necessary work begins; at the last end all work is abandoned. An
    interrupt moves both ends forward (`hasten`), as far as the stages that end the command permit:
    `closing` are the estimated seconds of loading, comparing and checking a result. Neither end is
    later than that of the deadline that it is `within`.
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

        Without an end they are FOREVER, so that shares of them are numbers.
        """
        return min(max(self._ends[0] - self.clock(), 0.0), FOREVER)

    def last(self) -> float:
        """Seconds to the last end."""
        around = math.inf if self.within is None else self.within.last()
        return min(max(self._ends[1] - self.clock(), 0.0), around)

    def earlier(self, seconds: float) -> Deadline:
        """A deadline with both ends some seconds earlier, which leaves time for later work."""
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
        """Shorten the deadline after an interrupt, so that only the results so far are measured and
        checked."""
        now = self.clock()
        least = (seconds + times * self.closing for seconds, times in zip(INTERRUPTED, (1, 2), strict=True))
        end, last = (min(old, now + seconds) for old, seconds in zip(self._ends, least, strict=True))
        self._ends = end, last

    def demand(self, what: str, seconds: float = 0.0) -> None:
        """Raise OutOfTime where fewer seconds are left to the last end."""
        if self.last() <= seconds:
            raise OutOfTime(f"the time is over: {what}")


UNBOUNDED = Deadline()
