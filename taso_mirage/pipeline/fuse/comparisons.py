"""Comparisons of two whole models, one of them with kernels, in interleaved runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taso_mirage.ir.model import Model
from taso_mirage.measure import session as runtime
from taso_mirage.measure.load import observed_load
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session, interleaved
from taso_mirage.measure.target import Target
from taso_mirage.measure.timing import PAIRS, Ends, Timing, Verdict, clear, compared_times, has_verdict, pooled
from taso_mirage.system.wording import option

FRESH = 3.0
"""Seconds for which a look at the load holds."""
OpenSessions = tuple[Session, Session]
ELSEWHERE = (
    "kernels run where taso_mirage.register was called (docs/shipping.md); elsewhere the model runs its own operators, {:.2f} times as "
    "fast as the original"
)


@dataclass(frozen=True)
class Comparisons:
    """Comparisons of models at sets of sizes, each in so many seconds. `feeds` are the inputs of
    each set, the shares its weights; the load of the machine decides the clock."""

    target: Target
    feeds: Sequence[Arrays]
    shares: Sequence[float]
    seconds: float
    held: list[Session] = field(default_factory=list)
    """The original's session of the last comparison, for the next one."""

    def clock(self) -> Target:
        """The target for new sessions, by the load of the machine, which is looked at every few
        seconds."""
        return self.target if self.target.serial is None else observed_load(FRESH).clock(self.target)

    def opened(self, model: Model) -> Session:
        """A session that is measured by that clock."""
        return runtime.open_in_child(model, self.clock())

    def beside(self, model: Model, other: Session) -> Session:
        """A session that runs in turn with another one, which may be the original's with its own
        options: by the same clock."""
        same = other.target.plain == self.target.plain
        return runtime.open_in_child(model, self.target if same else other.target)

    def short(self, before: Session, after: Session, ends: Ends = has_verdict) -> Timing:
        """A comparison that ends once it decides which is faster, or as another rule says."""
        return self._time(before, after, self.seconds / 2, ends)

    def whole(self, original: Model, model: Model, opened: OpenSessions, more: Callable[[], bool]) -> Timing:
        """The comparison of the original with another model; `opened` are sessions on both, by the
        wall clock.

        If no verdict is clear, runs of new sessions count as well while there is `more` time, as
        luck lasts as long as a session. The opened sessions are used first.
        """
        clock, looks = self.clock(), list[Timing]()
        sessions = opened if clock.plain == self.target.plain else _both(original, model, clock, anew=False)
        self.held[:] = sessions[:1]
        while True:
            looks.append(self._time(*sessions, self.seconds))
            if len(looks) == PAIRS or pooled(looks).verdict is not Verdict.UNDECIDED or not more():
                return pooled(looks)
            sessions = _both(original, model, clock, anew=True)

    def _time(self, before: Session, after: Session, seconds: float, ends: Ends = clear) -> Timing:
        share = seconds / len(self.feeds)
        times = [interleaved([before, after], feed, share, ends=ends) for feed in self.feeds]
        works = before.target.plain != self.target.plain
        return compared_times([t[0] for t in times], [t[1] for t in times], self.shares, works)


def elsewhere_note(as_fast: bool, ratio: float) -> str:
    """The line about a model without the library of its kernels, which is so many times as fast as
    the original."""
    if as_fast:
        return ELSEWHERE.format(ratio)
    return (
        f"no kernels: where their library is not registered the model would be {ratio:.3f} times as fast as the original; "
        f"{option('elsewhere', False)} is for models that stay on this machine"
    )


def _both(original: Model, model: Model, clock: Target, anew: bool) -> OpenSessions:
    return runtime.original(original, clock.plain, anew), runtime.open_in_child(model, clock, anew=anew)
