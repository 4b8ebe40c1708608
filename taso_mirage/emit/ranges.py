"""The choice of a program by the sizes of a run, where several programs have free sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isqrt, prod

CLEARLY = 0.95
"""A program whose time is at most this share of the usual program's has a range of sizes."""


def ranges(
    measured: Sequence[Mapping[str, int]], times: Sequence[Sequence[float]], usual: int
) -> tuple[int, list[tuple[int, int]]]:
    """The place of the program for most runs, and before it those of the programs for smaller runs,
    each with the largest product of named sizes for which it runs: the geometric mean of the
    measured sizes on both sides. `times` has the times of all programs at each of the `measured`
    sizes, of which the first are the usual ones; `usual` is the fastest there."""
    fastest = [own.index(min(own)) if min(own) < CLEARLY * own[usual] else usual for own in times]
    order = sorted(range(len(measured)), key=lambda i: prod(measured[i].values()))
    found: list[tuple[int, int]] = []
    for i, j in pairwise(order):
        if fastest[i] != fastest[j]:
            between = prod(measured[i].values()) * prod(measured[j].values())
            found.append((fastest[i], isqrt(between)))
    return fastest[order[-1]], found
