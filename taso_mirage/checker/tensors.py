"""Tensors of the checker: a shape of polynomials, and the element at a symbolic index."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from taso_mirage.checker.forms import (
    FLOATS,
    INTS,
    MAKERS,
    ONE,
    WORK,
    ZERO,
    Poly,
    constant,
    floor,
    fresh,
    holds,
    just,
    multiplied,
    need,
    poly,
    spend,
    summed,
    total,
)
from taso_mirage.checker.functions import REAL, called, greatest, inverse, of_some, valued
from taso_mirage.errors import Unsupported

# ---------------------------------------------------------------- tensors and operators


@dataclass(frozen=True, eq=False)
class Tensor:
    """A dtype, a shape, and each element as a polynomial of its index."""

    dtype: str
    shape: tuple[Poly, ...]
    read: Callable[..., Poly]

    def at(self, *index: Poly) -> Poly:
        """The element, broadcast over the axes before, and where the size is 1."""
        spend()
        last = index[len(index) - len(self.shape) :]
        return self.read(*(ZERO if n == ONE else i for n, i in zip(self.shape, last, strict=True)))

    def over(self, fn: Callable[..., Poly], *others: Any, dtype: str = "", real: bool = False) -> Tensor:
        """A function of this and others of its dtype, element by element."""
        ts = [self, *(t if isinstance(t, Tensor) else literal(value=(self.dtype, (), (t,))) for t in others)]
        need(
            all(t.dtype == self.dtype for t in ts) and (self.dtype in FLOATS or not real),
            f"an operand of dtype {self.dtype}",
        )
        need(dtype == "bool" or self.dtype != "bool", "arithmetic of booleans")
        return Tensor(dtype or self.dtype, broadcast(*(t.shape for t in ts)), lambda *i: fn(*(t.at(*i) for t in ts)))

    def __add__(self, other: Any) -> Tensor:
        return self.over(Poly.__add__, other)

    def __sub__(self, other: Any) -> Tensor:
        return self.over(Poly.__sub__, other)

    def __mul__(self, other: Any) -> Tensor:
        return self.over(Poly.__mul__, other)

    def __truediv__(self, other: Any) -> Tensor:
        return self.over(
            lambda a, b: (
                a * inverse(b) if self.dtype in FLOATS else a if b == ONE else called(f"div {self.dtype}", a, b)
            ),
            other,
        )

    def call(self, name: str) -> Tensor:
        return self.over(lambda p: called(name, p), real=True)

    def most(self, *others: Any, sign: int = 1) -> Tensor:
        """The largest, or with sign -1 the smallest (a function of its own on integers, where -x
        may wrap)."""
        dtype, turn = bag(self.dtype, sign), sign if self.dtype in FLOATS else 1
        return self.over(lambda *ps: greatest(dtype, total(valued(dtype, p * turn) for p in ps)) * turn, *others)

    def fold(self, axes: Sequence[int], keepdims: int, top: str = "") -> Tensor:
        """The sum over axes; with the name of a bag its largest."""
        rank, value = len(self.shape), (lambda p: valued(top, p)) if top else poly
        need(all(0 <= a < rank for a in axes) and len(set(axes)) == len(axes) and keepdims in (0, 1), "no such axes")
        kept = [i for i in range(rank) if keepdims or i not in axes]

        def read(*index: Poly) -> Poly:
            runs, at = {a: fresh(self.shape[a]) for a in axes}, dict(zip(kept, index, strict=True))
            element = self.at(*(just(*runs[i]) if i in runs else at[i] for i in range(rank)))
            found = summed(value(element), frozenset(runs.values()))
            some = top and all(holds(v[2] - 1, WORK.get().facts) for v in runs.values())
            return greatest(top, of_some(found) if some else found) if top else found

        return Tensor(self.dtype, tuple(ONE if i in axes else self.shape[i] for i in kept), read)

    def most_of(self, axes: Sequence[int], keepdims: int, sign: int = 1) -> Tensor:
        """The largest over axes, or with sign -1 the smallest."""
        turn = sign if self.dtype in FLOATS else 1
        return (self * turn).fold(axes, keepdims, bag(self.dtype, sign)) * turn

    def mean(self, axes: Sequence[int], keepdims: int = 1) -> Tensor:
        return self.fold(axes, keepdims).over(lambda p: p * inverse(multiplied(self.shape[a] for a in axes)), real=True)

    def moved(self, perm: Sequence[int]) -> Tensor:
        need(sorted(perm) == list(range(len(self.shape))), "no permutation")
        return Tensor(
            self.dtype,
            tuple(self.shape[a] for a in perm),
            lambda *i: self.at(*(i[perm.index(a)] for a in range(len(perm)))),
        )

    def cut(self, axis: int, start: Poly, size: Poly) -> Tensor:
        need(0 <= axis < len(self.shape) and legal(start) and legal(size), "no such part")
        need(legal(self.shape[axis] - start - size), "a part that may leave the tensor")
        return self.along(axis, size, lambda *i: start + i[axis])

    def along(self, axis: int, size: Poly, place: Callable[..., Poly]) -> Tensor:
        """The tensor with another size along an axis, where `place` gives the position that an
        index reads."""
        shape = tuple(size if a == axis else n for a, n in enumerate(self.shape))
        return Tensor(self.dtype, shape, lambda *i: self.at(*(place(*i) if a == axis else j for a, j in enumerate(i))))

    def reshape(self, shape: tuple[Poly, ...]) -> Tensor:
        """Elements in their order; runs of dims with equal products are matched."""
        ins, outs = ([i for i, n in enumerate(s) if n != ONE] for s in (self.shape, shape))
        a, b = (
            [multiplied(s[i] for i in at[:k]) for k in range(len(at) + 1)]
            for s, at in ((self.shape, ins), (shape, outs))
        )
        need(a[-1] == b[-1] and all(map(legal, shape)), "a reshape to another number of elements")
        cuts = [(i, b.index(p)) for i, p in enumerate(a) if p in b]

        def read(*index: Poly) -> Poly:
            at = [ZERO] * len(self.shape)
            for (i, j), (k, m) in pairwise(cuts):
                flat = reduce(lambda x, o: x * shape[o] + index[o], outs[j:m], ZERO)
                for n in reversed(ins[i + 1 : k]):
                    at[n], flat = flat - (high := floor(flat, self.shape[n])) * self.shape[n], high
                at[ins[i]] = flat
            return self.at(*at)

        return Tensor(self.dtype, shape, read)


def legal(n: Poly) -> bool:
    """A size is not negative: on the left that is taken to be so."""
    work = WORK.get()
    if work.trusted and constant(n) is None and not holds(n, work.facts):
        work.facts |= {n}
    return holds(n, work.facts)


def bag(dtype: str, sign: int) -> str:
    """The name of a bag of which the largest is sought, or with sign -1 the smallest."""
    return REAL if dtype in FLOATS else f"{sign}{dtype}"


def broadcast(*shapes: tuple[Poly, ...]) -> tuple[Poly, ...]:
    rows = zip(*((ONE,) * (max(map(len, shapes)) - len(s)) + s for s in shapes), strict=True)
    sizes = [set(row) - {ONE} or {ONE} for row in rows]
    need(all(len(n) == 1 for n in sizes), "shapes that do not broadcast")
    return tuple(n.pop() for n in sizes)


def literal(*, value: tuple[str, Any, Any]) -> Tensor:
    """An array; its numbers as the dtype has them."""
    dtype, shape, data = value
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    need(dtype in (*FLOATS, *INTS, "bool") and len(data) == math.prod(shape) and min(shape, default=0) >= 0, "no array")
    need(all(map(math.isfinite, data)), "numbers that are not finite")
    need(dtype in FLOATS or all(kind.type(x) == x for x in data), "numbers that the dtype lacks")
    numbers = tuple(poly(Fraction(float(kind.type(x)) if dtype in FLOATS else int(x))) for x in data)
    one = numbers[0] if len(set(numbers)) == 1 else None
    return Tensor(dtype, tuple(map(poly, shape)), lambda *i: one or table(dtype, shape, numbers, *i))


def table(dtype: str, shape: tuple[int, ...], numbers: tuple[Poly, ...], *index: Poly) -> Poly:
    """An element of an array of numbers."""
    at = [constant(i) for i in index]
    if any(i is None for i in at):
        return just("table", dtype, shape, numbers, *index)
    need(all(i in range(n) for i, n in zip(at, shape, strict=True)), "a position that the array lacks")
    return numbers[reduce(lambda flat, pair: flat * pair[0] + int(pair[1] or 0), zip(shape, at, strict=True), 0)]


MAKERS["table"] = table


def dims(values: Iterable[Any]) -> tuple[Poly, ...]:
    return tuple(size(ast.parse(x, mode="eval").body if isinstance(x, str) else x) for x in values)


def size(tree: Any) -> Poly:
    match tree:
        case Poly():
            return tree
        case int(n) | ast.Constant(value=int(n)) if abs(n) < 2**40 and n is not True and n is not False:
            return poly(n)
        case ast.Name(id=name):
            return just("size", name)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() as sign, right=right):
            how = {ast.Add: Poly.__add__, ast.Sub: Poly.__sub__, ast.Mult: Poly.__mul__, ast.FloorDiv: floor}[
                type(sign)
            ]
            return how(size(left), size(right))
    raise Unsupported("a text that is no size")
