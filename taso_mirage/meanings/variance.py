"""A variance in one pass: parts that are merged one after the other (Chan, Golub and LeVeque 1979;
Welford 1962)."""

from __future__ import annotations

from typing import TypeVar

from taso_mirage.meanings.base import Meaning

V = TypeVar("V")


def merged_variance(xp: Meaning[V], variance: V, mean: V, part: V, part_mean: V, count: V) -> tuple[V, V]:
    """The variance and the mean of `count` equal parts, from those of all but the last one and its
    own.

    No large squares are subtracted, so a large mean costs no digits.
    """
    apart = xp.sub(part_mean, mean)
    mean = xp.add(mean, xp.div(apart, count))
    part = xp.add(part, xp.mul(apart, xp.sub(part_mean, mean)))
    return xp.add(variance, xp.div(xp.sub(part, variance), count)), mean
