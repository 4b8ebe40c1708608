"""Rules with several outputs: joins of single equations that share a computation (TASO, SOSP'19,
section 2.2).

A join (l1, l2) = (r1, r2) is *essential* if some r has a variable that its own l lacks and the
other l has: conv(x, v) and conv(x, w) become the halves of conv(x, concat(v, w)). Any other join is
its single equations, applied one after the other. Only joins that cut their right-hand sides out of
one term are looked for: others compute each side from more variables than before. A join is
*composed* if the split term has more operators than one on concatenated variables, and single
equations give both left-hand sides its root: then a smaller join of that root follows on them (an
enlarged convolution merges with another one).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from taso_mirage.generate.enumeration import Table
from taso_mirage.generate.equations import Classes, EquationPairs, Tree, Trees
from taso_mirage.operators.ops import traits

Join = tuple[Tree, Tree, Tree, Tree]
"""The two left-hand sides and the two right-hand sides, in canonical names."""


@dataclass(frozen=True)
class _Merge:
    """One equation whose right-hand side has variables that the left-hand side lacks."""

    left: int
    right: int
    left_nodes: frozenset[int]
    right_nodes: frozenset[int]
    left_mask: int
    right_mask: int


_Key = tuple[tuple[int, int], ...]
"""The key of a join: the class of either side, and the part of the whole that it becomes."""


def merges(table: Table, classes: Classes) -> EquationPairs:
    """Pairs (by place in `classes`) of a smallest member of a class and a member with a variable
    more. A class with a bare variable has none: that would match everywhere."""
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
    return EquationPairs(a[apart], b[apart])


def _meet(a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.bool_]:
    met: NDArray[np.bool_] = ((a[:, :, None] == b[:, None, :]) & (a >= 0)[:, :, None]).any(axis=(1, 2))
    return met


def joins(table: Table, classes: Classes, limit: int) -> dict[Join, tuple[int, int, int, int]]:
    """All essential joins of at most `limit` operators on each side, canonical, with one instance
    (candidates) of each.

    Of the joins of two classes that are split alike the smallest is taken: single equations give
    the others.
    """
    trees = Trees(table)
    places = merges(table, classes)
    equations = [_merge(table, classes, int(a), int(b)) for a, b in zip(places.left, places.right, strict=True)]
    best: dict[_Key, tuple[tuple[int, ...], _Merge, _Merge]] = {}
    composed: set[_Key] = set()
    roots = _roots(table, equations)
    for one, two in _sharing(equations, limit):
        if not _cut(table, one, two):
            continue
        key = tuple(sorted((int(table.all.hash[e.left]), int(table.all.op[e.right])) for e in (one, two)))
        if _composed(table, one, two, roots):
            composed.add(key)
        elif _essential(one, two, limit) and _prefix(table, one, two):
            first, second = sorted((one, two), key=lambda e: (e.left, e.right))
            several = len(one.left_nodes | two.left_nodes), len(one.right_nodes | two.right_nodes)
            rank = (*several, first.left, second.left, first.right, second.right)
            if key not in best or rank < best[key][0]:
                best[key] = rank, first, second
    found: dict[Join, tuple[int, int, int, int]] = {}
    for _, one, two in sorted((b for key, b in best.items() if key not in composed), key=lambda b: b[0]):
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
    """Pairs whose right-hand sides share a node: equal node sets, one inside the other, or
    overlapping within the limit."""
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


def _roots(table: Table, equations: list[_Merge]) -> dict[int, set[str]]:
    """By class of a left-hand side the symbols that its members have at the root."""
    hashes = np.unique(table.all.hash[[e.left for e in equations]])
    members = np.flatnonzero(np.isin(table.all.hash, hashes) & (table.all.op >= 0))
    found: dict[int, set[str]] = {}
    for value, operator in set(zip(table.all.hash[members].tolist(), table.all.op[members].tolist(), strict=True)):
        found.setdefault(value, set()).add(table.family.operators[operator].symbol)
    return found


def _cut(table: Table, one: _Merge, two: _Merge) -> bool:
    """Whether both right-hand sides are functions of one term alone: its parts."""
    args = table.all.args[[one.right, two.right]]
    return bool((args[0] == args[1]).all() and (args[:, 1:] < 0).all())


def _composed(table: Table, one: _Merge, two: _Merge, roots: Mapping[int, set[str]]) -> bool:
    columns, operators = table.all, table.family.operators
    whole = int(table.candidate[columns.args[one.right, 0]])
    if columns.op[whole] < 0:
        return False
    symbol = operators[int(columns.op[whole])].symbol
    if any(symbol not in roots[int(columns.hash[e.left])] for e in (one, two)):
        return False
    return not all(_concatenated(table, int(a)) for a in columns.args[whole] if a >= 0)


def _concatenated(table: Table, term: int) -> bool:
    """Whether a kept term is a variable, or variables one behind the other."""
    columns, place = table.all, int(table.candidate[term])
    if columns.op[place] < 0:
        return True
    pattern = table.family.operators[int(columns.op[place])].pattern
    return traits(pattern.outputs[0]).joins is not None and int(columns.size[place]) == 1


def _prefix(table: Table, one: _Merge, two: _Merge) -> bool:
    mask = np.array([one.left_mask | two.left_mask], np.uint64)
    return bool(table.prefix(mask)[0])
