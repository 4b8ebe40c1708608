"""Pairs of terms whose operator nodes together have a given number: the possible operands of a new
operator."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]
_Ints = NDArray[np.int64]
Two = tuple[Numbers, Numbers]
BITS = 20
"""The bits of a node number; three numbers are the key of a node set."""


def uniting(size: NDArray[np.int8], nodes: Numbers, count: int) -> Two:
    """Unordered pairs of different terms whose node sets unite to exactly `count` nodes (at most
    3).

    `size` counts the nodes of each term, `nodes` has them in descending order, -1 for none.
    """
    by_size = [np.flatnonzero(size == n).astype(np.int32) for n in range(count + 1)]
    if count == 0:
        a, b = _cross(by_size[0], by_size[0])
        return a[a < b], b[a < b]
    found = [_cross(by_size[count], by_size[0]), _nested(nodes, by_size, count)]
    if count == 2:
        found.append(_disjoint(nodes, by_size[1], by_size[1]))
    if count == 3:
        found += [_disjoint(nodes, by_size[2], by_size[1]), _sharing_one(nodes, by_size[2])]
    return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])


def _nested(nodes: Numbers, by_size: list[Numbers], count: int) -> Two:
    """One node set inside the other, or equal."""
    inner = np.concatenate(by_size[1:])
    keys = _set_keys(nodes[inner])
    order = np.argsort(keys, kind="stable")
    keys, inner = keys[order], inner[order]
    outer, firsts, seconds = by_size[count], [], []
    for several in range(1, count + 1):
        for columns in combinations(range(count), several):
            wanted = _set_keys(nodes[outer][:, list(columns)])
            low, high = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
            a = np.repeat(outer, high - low)
            b = inner[_ranges(low, high)]
            ok = a < b if several == count else np.ones(len(a), bool)
            firsts.append(a[ok])
            seconds.append(b[ok])
    return np.concatenate(firsts), np.concatenate(seconds)


def _disjoint(nodes: Numbers, xs: Numbers, ys: Numbers) -> Two:
    """Terms of one or two nodes with terms of one node that is another."""
    a, b = _cross(xs, ys)
    ok = np.ones(len(a), bool) if xs is not ys else a < b
    for i in range(2):
        ok &= nodes[a, i] != nodes[b, 0]
    return a[ok], b[ok]


def _sharing_one(nodes: Numbers, xs: Numbers) -> Two:
    """Pairs of terms of two nodes with exactly one in common."""
    two = nodes[xs][:, :2]
    flat, owner, other = two.ravel(), np.repeat(xs, 2), two[:, ::-1].ravel()
    order = np.argsort(flat, kind="stable")
    flat, owner, other = flat[order], owner[order], other[order]
    high = np.searchsorted(flat, flat, "right")
    low = np.arange(len(flat)) + 1
    i, j = np.repeat(np.arange(len(flat)), high - low), _ranges(low, high)
    ok = other[i] != other[j]
    a, b = owner[i[ok]], owner[j[ok]]
    return np.minimum(a, b), np.maximum(a, b)


def _cross(xs: Numbers, ys: Numbers) -> Two:
    return np.repeat(xs, len(ys)), np.tile(ys, len(xs))


def _ranges(low: _Ints, high: _Ints) -> _Ints:
    """The concatenation of range(low[i], high[i])."""
    counts = high - low
    ends = np.cumsum(counts)
    places: _Ints = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts - low, counts)
    return places


def _set_keys(nodes: Numbers) -> _Ints:
    """A number for every set of at most three nodes (descending, -1 for none)."""
    key = np.zeros(len(nodes), np.int64)
    for column in nodes.T[:3]:
        key = np.where(column >= 0, key << BITS | (column.astype(np.int64) + 1), key)
    return key
