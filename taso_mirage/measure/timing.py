"""Statistics of paired runs of two models: their times, and which of the two is faster.

Both models run once in every round, so that a drift of the machine meets both. Of each round only
the sign of its gain counts, so that no outlier decides. A sequential test on these signs (a mixture
of bets on a coin; Shafer and Vovk, Game-Theoretic Foundations, 2019; Ville's inequality) may look
after every round: it calls two models of equal times different with a probability below ALPHA in
all of its looks together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import exp, fsum, lgamma, log

import numpy as np

ALPHA = 0.05
"""The error rate of a verdict: of either side, over all looks."""
GAIN = 1.01
"""The ratio from which a model is faster; a smaller gain is not worth another graph."""
LUCK = 1.03
"""The largest ratio of a pair of sessions that can result from the placement of their memory
alone."""
PAIRS = 3
"""The number of pairs of sessions whose agreement is not chance; if they agree, GAIN is enough."""
CLOSE = 1.03
"""The largest relative distance between the ends of an interval at which a comparison may stop."""
AS_FAST = 0.99
"""A model that is at least this many times as fast is no slower."""
Ends = Callable[[Sequence[Sequence[float]]], bool]
"""Whether a comparison may end after the runs so far, whose seconds are given for every model."""


class Verdict(Enum):
    """The verdict of a comparison on the second model."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one model over paired rounds; the median of the rounds' ratios, by which
    the seconds of the other are said; and the interval that the sequential test does not exclude
    (error rate ALPHA; it contains the ratio).

    Of several sets of sizes the seconds are weighted sums; `each` has the times of every set.
    `pairs`: the ratio of each pair of sessions. `rounds`: the seconds of both models, round by
    round. `works`: whether the seconds are those of the processor (CPU time).
    """

    original: float
    optimized: float
    ratio: float
    low: float
    high: float
    runs: int
    each: tuple[Timing, ...] = ()
    pairs: tuple[float, ...] = ()
    rounds: tuple[tuple[float, float], ...] = ()
    works: bool = False

    def __str__(self) -> str:
        """The times and their ratio as one line for people."""
        clock = " of CPU time" if self.works else ""
        milliseconds = f"{self.original * 1e3:.3g} ms, then {self.optimized * 1e3:.3g} ms{clock}"
        return f"{milliseconds}: {self.ratio:.2f} times as fast (between {self.low:.2f} and {self.high:.2f})"

    @property
    def verdict(self) -> Verdict:
        """The verdict on which model is faster.

        One pair of sessions decides where luck does not explain the ratio; of a smaller gain PAIRS
        have to agree.
        """
        if self.low >= self._bar(min(self.pairs, default=0.0) >= 1):
            return Verdict.FASTER
        if 1 / self.high >= self._bar(max(self.pairs, default=2.0) <= 1):
            return Verdict.SLOWER
        return Verdict.UNDECIDED

    @property
    def faster(self) -> bool:
        """Whether the verdict is that the other model is faster."""
        return self.verdict is Verdict.FASTER

    @property
    def slower(self) -> bool:
        """Whether the verdict is that the other model is slower."""
        return self.verdict is Verdict.SLOWER

    @property
    def as_fast(self) -> bool:
        """Whether the other model is no slower, as far as one can see."""
        return self.faster or (self.verdict is Verdict.UNDECIDED and self.ratio >= AS_FAST)

    @property
    def sure(self) -> float:
        """The factor by which the other model is certainly faster, or slower if below 1: the end of
        the interval nearest to 1; 1 if undecided."""
        return max(self.low, 1.0) if self.high > 1 else self.high

    def _bar(self, agree: bool) -> float:
        """The ratio that the whole interval must exceed."""
        return GAIN if agree and len(self.pairs) >= PAIRS else LUCK


def compared_times(
    original: Sequence[Sequence[float]],
    other: Sequence[Sequence[float]],
    shares: Sequence[float],
    works: bool = False,
) -> Timing:
    """The timing of one pair of sessions, from its times at every set of sizes; the shares weigh
    the sets."""
    count = min(map(len, original))
    sums = [np.dot(shares, [times[:count] for times in side]) for side in (original, other)]
    each: tuple[Timing, ...] = ()
    if len(shares) > 1:
        each = tuple([compared_times([a], [b], [1.0], works) for a, b in zip(original, other, strict=True)])
    rounds = tuple([(float(a), float(b)) for a, b in zip(*sums, strict=True)])
    return _timing(rounds, (_ratio(rounds),), each, works)


def clear(times: Sequence[Sequence[float]]) -> bool:
    """Whether the rounds so far decide between one model and every other one and give narrow
    intervals of their ratios, so that the sequential test may end."""
    first, *others = times
    timings = [compared_times([first], [each], [1.0]) for each in others]
    return all(t.verdict is not Verdict.UNDECIDED and t.high <= CLOSE * t.low for t in timings)


def has_verdict(times: Sequence[Sequence[float]]) -> bool:
    """Whether the rounds so far decide between one model and every other one, however wide the
    intervals of their ratios are."""
    first, *others = times
    return all(compared_times([first], [each], [1.0]).verdict is not Verdict.UNDECIDED for each in others)


def as_fast(times: Sequence[Sequence[float]]) -> bool:
    """Whether the rounds so far decide between one model and every other one, or show that none of
    the others is slower."""
    first, *others = times
    timings = [compared_times([first], [each], [1.0]) for each in others]
    return all(t.verdict is not Verdict.UNDECIDED or t.low >= AS_FAST for t in timings)


def pooled(timings: Sequence[Timing]) -> Timing:
    """The times of several pairs of sessions of the same models together."""
    if len(timings) == 1:
        return timings[0]
    each = tuple([pooled(same) for same in zip(*(t.each for t in timings), strict=True)])
    rounds = tuple([both for t in timings for both in t.rounds])
    return _timing(rounds, tuple([ratio for t in timings for ratio in t.pairs]), each, timings[0].works)


def _timing(
    rounds: tuple[tuple[float, float], ...], pairs: tuple[float, ...], each: tuple[Timing, ...], works: bool
) -> Timing:
    first = float(np.median([a for a, _ in rounds]))
    low, high = interval([a / b for a, b in rounds])
    ratio = min(max(_ratio(rounds), low), high)  # by rounding, it may be outside of the interval
    return Timing(first, first / ratio, ratio, low, high, len(rounds), each, pairs, rounds, works)


def _ratio(rounds: Sequence[tuple[float, float]]) -> float:
    """The median of the ratios, as logarithms: the same for both orders of the models."""
    return exp(float(np.median([log(a / b) for a, b in rounds])))


def interval(ratios: Sequence[float], alpha: float = ALPHA) -> tuple[float, float]:
    """The medians that the test does not exclude: it excludes one that enough ratios are above, or
    below. Of too few rounds all that was seen, which decides nothing only if it is on both sides of
    1; where even that is on one side, the interval reaches to 1."""
    ordered, wins = sorted(ratios), enough_wins(len(ratios), alpha)
    if wins is None:
        return min(ordered[0], 1.0), max(ordered[-1], 1.0)
    return ordered[len(ordered) - wins], ordered[wins - 1]


@cache
def enough_wins(rounds: int, alpha: float = ALPHA) -> int | None:
    """In how many rounds one model must win so that equal ones would not, by the test; None where
    not even all are enough."""
    return next((wins for wins in range(rounds // 2 + 1, rounds + 1) if evidence(wins, rounds) >= 1 / alpha), None)


@cache
def evidence(wins: int, rounds: int) -> float:
    """The growth of the stake of a gambler who bets on more wins than losses, uniformly over all
    probabilities above one half: 2^n times the mean of p^k (1-p)^(n-k) over p from 1/2 to 1.

    By the binomial sum of the incomplete beta function: 2^(n+1) B(k+1, n-k+1) P(X <= k), X of n+1
    fair coins.
    """
    losses, tosses = rounds - wins, rounds + 1
    beta = lgamma(wins + 1) + lgamma(losses + 1) - lgamma(tosses + 1)
    terms = (
        exp(lgamma(tosses + 1) - lgamma(i + 1) - lgamma(tosses - i + 1) - tosses * log(2)) for i in range(wins + 1)
    )
    return exp(tosses * log(2) + beta) * fsum(terms)
