"""An element as cases: conditions on its index, and the scalar under each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Tensor
from taso_mirage.meanings.conditions import Conditions, Unprovable
from taso_mirage.meanings.indices import Indices
from taso_mirage.meanings.polynomials import LEAST, MOST, ZERO, Poly, constant_poly, infinite, plain_rational

_Index: TypeAlias = tuple[Dim, ...]
Cases: TypeAlias = tuple[tuple[Conditions, Poly], ...]
"""Disjoint conditions that cover every index, and the scalar under each."""


class Element:
    """A tensor as a function from indices to elements; results are memoized by index."""

    def __init__(self, type: Tensor, read: Callable[[_Index], Cases]) -> None:
        self.type, self._read = type, read
        self._known: dict[_Index, Cases] = {}

    @property
    def shape(self) -> Shape:
        return self.type.shape or ()

    def at(self, index: _Index) -> Cases:
        found = self._known.get(index)
        if found is None:
            found = self._known[index] = self._read(index)
        return found


def broadcast_index(index: _Index, whole: Shape, shape: Shape) -> _Index:
    """An operand's index under broadcasting to `whole`."""
    behind = len(whole) - len(shape)
    for n, m in zip(shape, whole[behind:], strict=True):
        if n != 1 and n != m:
            raise Unprovable(f"dims {n} and {m} broadcast only at some sizes")
    return tuple(0 if n == 1 else i for n, i in zip(shape, index[behind:], strict=True))


def under_conditions(indices: Indices, given: Conditions, pieces: Cases, free: list[Dim]) -> Cases:
    """The cases that can hold under `given`, without the free conditions that it implies."""
    kept = []
    for conditions, p in pieces:
        some = [e for e in conditions if e in free]
        if any(indices.contradictory(given, e) for e in some):
            continue
        kept.append((tuple(e for e in conditions if e not in some or not indices.entails(given, e)), p))
    return tuple(kept)


def merged_cases(cases: Sequence[tuple[Conditions, Poly]]) -> Cases:
    """One case where all have the same value and together cover everything."""
    if len(cases) > 1 and all(p is cases[0][1] or (p == cases[0][1] and not infinite(p)) for _, p in cases):
        return (((), cases[0][1]),)
    return tuple(cases)


def finite(ps: list[Poly]) -> list[Poly]:
    if any(infinite(p) for p in ps):
        raise Unprovable("arithmetic on an infinite element")
    return ps


def numeral(value: Any) -> Poly:
    v = float(value)
    if v != v:
        raise Unprovable("a constant that is no number")
    if not isfinite(v):
        return LEAST if v < 0 else MOST
    return constant_poly(
        plain_rational(Fraction(int(value)) if isinstance(value, (bool, int, np.integer, np.bool_)) else Fraction(v))
    )


def decided(indices: Indices, given: Conditions, p: Poly) -> list[tuple[Conditions, Poly]]:
    """A factor that is 1 under conditions on free integers, and else 0, becomes a distinction of
    cases."""
    atom = next((a for m in p.terms for a, _ in m if a.kind == "sum" and not a.args[0]), None)
    if atom is None or infinite(p):
        return [(given, p)]
    without = {m: tuple(x for x in m if x[0] is not atom) for m in p.terms}
    yes = ZERO
    for m, c in p.terms.items():
        yes = yes + Poly({without[m]: c})
    no = Poly({m: c for m, c in p.terms.items() if len(without[m]) == len(m)})
    tests = list(atom.args[1])
    found: list[tuple[Conditions, Poly]] = []
    for conditions, value in [(tests, yes), *(([*tests[:i], -e - 1], no) for i, e in enumerate(tests))]:
        joined = indices.joined(given, conditions)
        if joined is not None:
            found += decided(indices, joined, value)
    return found


def cases_where(indices: Indices, conditions: Sequence[Dim], cases: Callable[[], Cases]) -> Cases:
    """The cases under some conditions; none where those cannot hold."""
    tidied = [indices.tidy(e) for e in conditions]
    if any(e is False for e in tidied):
        return ()
    given = indices.joined((), [e for e in tidied if e is not True])
    if given is None:
        return ()
    pieces = [(indices.joined(given, c), p) for c, p in cases()]
    return tuple((c, p) for c, p in pieces if c is not None)


def smallest_ranges(bound: Iterable[str], extents: Mapping[str, Dim], most: int) -> list[str]:
    """The integers of fixed ranges, the smallest first, that take at most so many values
    together."""
    found: list[str] = []
    for n, name in sorted((n, b) for b in bound if isinstance(n := extents[b], int)):
        most //= max(n, 1)
        found += [name] if most else []
    return found
