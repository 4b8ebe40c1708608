"""Interleaved runs of two whole models, one of them with kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session, interleaved
from taso_mirage.measure.timing import Timing, compared_times

KEEP = 1.01
"""A kind of region is kept if the whole model was measured so many times as fast with it, in more
rounds than chance gives; so many times as fast as the original is the result."""
CLEAR = 0.03
"""A difference of two models that a short look is enough for."""
Rounds = list[list[list[float]]]
"""Seconds of all runs of both models, at every set of sizes."""


@dataclass(frozen=True)
class Comparisons:
    """Comparisons of models at sets of sizes, whose inputs `feeds` are and which the shares weigh,
    each in so many seconds."""

    feeds: Sequence[Arrays]
    shares: Sequence[float]
    seconds: float

    def short(self, before: Session, after: Session) -> Timing:
        """A first look, and a longer one where that leaves it open which is faster."""
        first = self._timed(before, after, self.seconds / 8)
        clear = first.ratio < 1 - CLEAR or (first.ratio > 1 + CLEAR and first.certain)
        return first if clear else self._timed(before, after, self.seconds / 2)

    def whole(self, before: Session, after: Session, anew: Callable[[], tuple[Session, Session] | None]) -> Timing:
        """The original against the model with kernels.

        Where that is no faster, runs of the sessions that `anew` opens count as well, if it opens
        any, as luck lasts as long as a session.
        """
        times = self._rounds(before, after, self.seconds)
        if self._judged(times).ratio < KEEP and (others := anew()) is not None:
            again = self._rounds(*others, self.seconds)
            times = [[a + b for a, b in zip(*both, strict=True)] for both in zip(times, again, strict=True)]
        return self._judged(times)

    def elsewhere(self, before: Session, without: Session) -> Timing:
        """The original against the model without the library of kernels; what looks slower at first
        is looked at again, longer."""
        first = self._timed(before, without, self.seconds / 2)
        return self._timed(before, without, self.seconds) if first.slower else first

    def _timed(self, before: Session, after: Session, seconds: float) -> Timing:
        return self._judged(self._rounds(before, after, seconds))

    def _rounds(self, before: Session, after: Session, seconds: float) -> Rounds:
        return [interleaved([before, after], feed, seconds / len(self.feeds)) for feed in self.feeds]

    def _judged(self, times: Rounds) -> Timing:
        return compared_times([t[0] for t in times], [t[1] for t in times], self.shares)
