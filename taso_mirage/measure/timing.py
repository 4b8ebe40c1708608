"""What interleaved runs of two models say about their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

AS_FAST = 0.99
"""What is at least so many times as fast is no slower."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Lower quartiles in seconds over interleaved runs (a shared machine only ever adds time),
    their ratio, and the quartiles of the ratio round by round, of which the ratio is at most the
    upper one: few runs of one model may fall into a good moment. `wins` is the part of the rounds
    in which the other was faster. Of several sets of sizes the weighted sums; `each` has the times
    of every set."""

    original: float
    optimized: float
    ratio: float
    low: float
    high: float
    runs: int
    each: tuple[Timing, ...] = ()
    wins: float = 1.0

    def __str__(self) -> str:
        """As one line for people."""
        milliseconds = f"{self.original * 1e3:.3g} ms, then {self.optimized * 1e3:.3g} ms"
        return f"{milliseconds}: {self.ratio:.2f} times as fast (quartiles {self.low:.2f} and {self.high:.2f})"

    @property
    def certain(self) -> bool:
        """Whether the other was faster in so many rounds as two equal ones would not be by chance
        (two standard deviations)."""
        return self.wins >= min(1.0, 0.5 + 1 / sqrt(self.runs))

    @property
    def slower(self) -> bool:
        """Whether the other was clearly slower: by 1 %, in more rounds than chance gives."""
        return self.ratio < AS_FAST and self.wins <= max(0.0, 0.5 - 1 / sqrt(self.runs))


def compared_times(
    original: Sequence[Sequence[float]], other: Sequence[Sequence[float]], shares: Sequence[float]
) -> Timing:
    """Of the times of both models at every set of sizes; the shares weigh the sets."""
    rounds = min(map(len, original))
    sums = [np.dot(shares, [times[:rounds] for times in side]) for side in (original, other)]
    low, high = (float(v) for v in np.percentile(sums[0] / sums[1], (25, 75)))
    quiet, other_quiet = (
        float(np.dot(shares, [np.percentile(times, 25) for times in side])) for side in (original, other)
    )
    each = (
        tuple(compared_times([a], [b], [1.0]) for a, b in zip(original, other, strict=True)) if len(shares) > 1 else ()
    )
    wins = float(np.mean(sums[1] < sums[0]))
    return Timing(quiet, other_quiet, min(quiet / other_quiet, high), low, high, rounds, each, wins)
