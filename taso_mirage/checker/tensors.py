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
    ONE,
    WORK,
    ZERO,
    Poly,
    called,
    constant,
    floor,
    fresh,
    greatest,
    holds,
    inverse,
    just,
    multiplied,
    need,
    poly,
    spend,
    summed,
    total,
    valued,
)
from taso_mirage.errors import Unsupported

# ---------------------------------------------------------------- tensors and operators


@dataclass(frozen=True, eq=False)
class Tensor:
    """A dtype, a shape, and each element as a polynomial of its index."""

    dtype: str
    shape: tuple[Poly, ...]
    read: Callable[..., Poly]

    def at(self, *index: Poly) -> Poly:
        """The element, broadcast over what comes before, and where the size is 1."""
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
            lambda a, b: a * inverse(b) if self.dtype in FLOATS else called(f"div {self.dtype}", a, b), other
        )

    def call(self, name: str) -> Tensor:
        return self.over(lambda p: called(name, p), real=True)

    def most(self, *others: Any, sign: int = 1) -> Tensor:
        """The largest, or with sign -1 the smallest (a function of its own on integers, where -x
        may wrap)."""
        dtype, turn = (self.dtype, sign) if self.dtype in FLOATS else (f"{sign}{self.dtype}", 1)
        return self.over(lambda *ps: greatest(dtype, total(valued(dtype, p * turn) for p in ps)) * turn, *others)

    def fold(self, axes: Sequence[int], keepdims: int, top: str = "") -> Tensor:
        """The sum (or the largest) over axes."""
        rank, value = len(self.shape), (lambda p: valued(top, p)) if top else poly
        need(all(0 <= a < rank for a in axes) and len(set(axes)) == len(axes) and keepdims in (0, 1), "no such axes")
        kept = [i for i in range(rank) if keepdims or i not in axes]

        def read(*index: Poly) -> Poly:
            runs, at = {a: fresh(self.shape[a]) for a in axes}, dict(zip(kept, index, strict=True))
            found = summed(
                value(self.at(*(just(*runs[i]) if i in runs else at[i] for i in range(rank)))), frozenset(runs.values())
            )
            return greatest(top, found) if top else found

        return Tensor(self.dtype, tuple(ONE if i in axes else self.shape[i] for i in kept), read)

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
        need(holds(self.shape[axis] - start - size, WORK.get().facts), "a part that may leave the tensor")
        shape = tuple(size if a == axis else n for a, n in enumerate(self.shape))
        return Tensor(self.dtype, shape, lambda *i: self.at(*(start + j if a == axis else j for a, j in enumerate(i))))

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
    numbers = [poly(Fraction(float(kind.type(x)) if dtype in FLOATS else int(kind.type(x)))) for x in data]
    need(
        dtype in FLOATS or all(n == poly(x) for n, x in zip(numbers, data, strict=True)), "numbers that the dtype lacks"
    )
    one = numbers[0] if len(set(numbers)) == 1 else None
    return Tensor(dtype, tuple(map(poly, shape)), lambda *i: one or just("table", dtype, shape, tuple(numbers), *i))


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
