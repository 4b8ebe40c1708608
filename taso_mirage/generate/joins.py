"""Rules with several outputs: joins of single equations that share what they compute (TASO section 2.2; GENERATOR, "Joins").

A join (l1, l2) = (r1, r2) is *essential* if some r has a variable that its own l lacks and the other l has: conv(x, v) and conv(x, w)
become the halves of conv(x, concat(v, w)). Any other join is its single equations, applied one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from taso_mirage.generate.equations import Classes, Pairs, Tree, Trees
from taso_mirage.generate.terms import Table

Join = tuple[Tree, Tree, Tree, Tree]
"""Both left-hand sides and both right-hand sides, in canonical names."""


@dataclass(frozen=True)
class _Merge:
    """One equation whose right-hand side has variables that the left-hand side lacks."""

    left: int
    right: int
    left_nodes: frozenset[int]
    right_nodes: frozenset[int]
    left_mask: int
    right_mask: int


def merges(table: Table, classes: Classes) -> Pairs:
    """Pairs (by place in `classes`) of a smallest member of a class and a member with a variable more. A class with a bare variable has
    none: that would match everywhere."""
    columns = table.all
    mask, size = columns.mask[classes.members], columns.size[classes.members]
    lefts, rights = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for start, length in zip(classes.starts, classes.lengths, strict=True):
        places = np.arange(start, start + length)
        if size[start] == 0 or (mask[places] == mask[start]).all():
            continue
        left, right = np.meshgrid(places[size[places] == size[start]], places, indexing="ij")
        more = (mask[right] & ~mask[left]) != 0
        lefts.append(left[more])
        rights.append(right[more])
    a, b = np.concatenate(lefts), np.concatenate(rights)
    apart = ~_meet(classes.nodes[a], classes.nodes[b])
    return Pairs(a[apart], b[apart])


def _meet(a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.bool_]:
    met: NDArray[np.bool_] = ((a[:, :, None] == b[:, None, :]) & (a >= 0)[:, :, None]).any(axis=(1, 2))
    return met


def joins(table: Table, classes: Classes, limit: int) -> dict[Join, tuple[int, int, int, int]]:
    """All essential joins of at most so many operators on each side, canonical, with one instance (candidates) of each.

    Of the joins of two classes that are split alike the smallest is taken: single equations give the others.
    """
    trees = Trees(table)
    places = merges(table, classes)
    equations = [_merge(table, classes, int(a), int(b)) for a, b in zip(places.left, places.right, strict=True)]
    best: dict[tuple[int, ...], tuple[tuple[int, ...], _Merge, _Merge]] = {}
    for one, two in _sharing(equations, limit):
        if _essential(one, two, limit) and _prefix(table, one, two):
            first, second = sorted((one, two), key=lambda e: (e.left, e.right))
            several = len(one.left_nodes | two.left_nodes), len(one.right_nodes | two.right_nodes)
            rank = (*several, first.left, second.left, first.right, second.right)
            roots = int(table.all.op[first.right]), int(table.all.op[second.right])
            key = (int(table.all.hash[first.left]), int(table.all.hash[second.left]), *roots)
            if key not in best or rank < best[key][0]:
                best[key] = rank, first, second
    found: dict[Join, tuple[int, int, int, int]] = {}
    for _, one, two in sorted(best.values(), key=lambda b: b[0]):
        a, b = trees.tree(one.left), trees.tree(two.left)
        c, d = trees.tree(one.right), trees.tree(two.right)
        straight, swapped = trees.canonical(a, b, c, d), trees.canonical(b, a, d, c)
        if repr(straight) <= repr(swapped):
            found.setdefault(straight, (one.left, two.left, one.right, two.right))  # type: ignore[arg-type]
        else:
            found.setdefault(swapped, (two.left, one.left, two.right, one.right))  # type: ignore[arg-type]
    return found


def _merge(table: Table, classes: Classes, a: int, b: int) -> _Merge:
    left, right = int(classes.members[a]), int(classes.members[b])
    ours, theirs = (frozenset(int(n) for n in classes.nodes[i] if n >= 0) for i in (a, b))
    return _Merge(left, right, ours, theirs, int(table.all.mask[left]), int(table.all.mask[right]))


def _sharing(equations: list[_Merge], limit: int) -> Iterator[tuple[_Merge, _Merge]]:
    """Pairs whose right-hand sides share a node: equal node sets, one inside the other, or overlapping within the limit."""
    by_set: dict[frozenset[int], list[int]] = {}
    by_node: dict[int, list[int]] = {}
    for i, equation in enumerate(equations):
        by_set.setdefault(equation.right_nodes, []).append(i)
        if len(equation.right_nodes) < limit:
            for node in equation.right_nodes:
                by_node.setdefault(node, []).append(i)
    for i, equation in enumerate(equations):
        members = sorted(equation.right_nodes)
        for count in range(1, len(members) + 1):
            for part in combinations(members, count):
                for j in by_set.get(frozenset(part), ()):
                    if count < len(members) or j > i:
                        yield equation, equations[j]
    seen = set()
    for bucket in by_node.values():
        for i, j in combinations(bucket, 2):
            a, b = equations[i].right_nodes, equations[j].right_nodes
            if len(a | b) <= limit and not (a <= b or b <= a) and (i, j) not in seen:
                seen.add((i, j))
                yield equations[i], equations[j]


def _essential(one: _Merge, two: _Merge, limit: int) -> bool:
    left, right = one.left_nodes | two.left_nodes, one.right_nodes | two.right_nodes
    if one.left == two.left or one.right == two.right or len(left) > limit or len(right) > limit or left & right:
        return False
    bound = one.left_mask | two.left_mask
    return not (one.right_mask | two.right_mask) & ~bound


def _prefix(table: Table, one: _Merge, two: _Merge) -> bool:
    mask = np.array([one.left_mask | two.left_mask], np.uint64)
    return bool(table.prefix(mask)[0])
