"""The meaning `boxes`: the positions at which the computation of a tensor's elements changes (PET,
OSDI'21, section 4).

In a multi-linear program an element at v is a sum over r of products of input elements at positions
that are linear in v and r. Within a *box* the range of r and the linear maps are the same for all
v. Boxes are products of intervals here, so a value holds, for each dim, the *split points* at which
the next interval begins. More points than needed are harmless: they cost tests and pieces, not
soundness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Literal, Tensor, numpy_dtype
from taso_mirage.meanings.base import Meaning, Scalar, contraction
from taso_mirage.meanings.functions import ADD, Linear, function_of
from taso_mirage.meanings.shapes import SHAPES

Splits = tuple[frozenset[int], ...]
"""For each dim the positions above 0 at which an interval begins."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor of fixed sizes with its split points.

    `known`: its elements, where no input is part of them.
    """

    type: Tensor
    splits: Splits
    known: bool = False
    value: NDArray[Any] | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.type.shape or ())


class Boxes(Meaning[Cut]):
    """The meaning `boxes` for fixed sizes.

    Operators that are not linear in the operands that depend on an input raise Unsupported; they
    end a region.
    """

    def shape(self, a: Cut) -> Shape:
        return SHAPES.shape(a.type)

    def dtype(self, a: Cut) -> str:
        return a.type.dtype

    # ------------------------------------------------------------ leaves

    def leaf(self, type: Tensor) -> Cut:
        """An input or a weight: its own positions, in one box."""
        return Cut(type, (frozenset(),) * len(type.shape or ()))

    def constant(self, value: Literal) -> Cut:
        array = value.numpy()
        return Cut(Tensor(value.dtype, value.shape), tuple(map(frozenset, _changes(array))), True, array)

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Cut:
        array = np.asarray([int(v) for v in values], np.int64)
        return self.constant(Literal.of(array[0] if scalar else array))

    def iota(self, n: Dim, dtype: str = "int64") -> Cut:
        return self.constant(Literal.of(np.arange(int(n), dtype=dtype)))

    # ------------------------------------------------------------ elements

    def map(self, fn: Scalar, *xs: Cut) -> Cut:
        function = function_of(fn)
        result = SHAPES.map(fn, *[x.type for x in xs])
        known = all(x.known for x in xs)
        if not known and not _is_linear(function.linear, xs):
            raise Unsupported(f"{function.name} is not linear")
        rank = len(result.shape or ())
        splits = [frozenset[int]().union(*[s for x in xs for s in _aligned(x, axis, rank)]) for axis in range(rank)]
        return Cut(result, tuple(splits), known, None)

    def cast(self, a: Cut, dtype: str) -> Cut:
        if not a.known and not np.can_cast(numpy_dtype(a.type.dtype), numpy_dtype(dtype)):
            raise Unsupported(f"a conversion from {a.type.dtype} to {dtype} rounds; it is not linear")
        return Cut(SHAPES.cast(a.type, dtype), a.splits, a.known, None)

    def contract(self, equation: str, a: Cut, b: Cut) -> Cut:
        result = SHAPES.contract(equation, a.type, b.type)
        left, right, letters = contraction(equation, len(a.sizes), len(b.sizes))
        found: dict[str, frozenset[int]] = {}
        for own, x in ((left, a), (right, b)):
            for letter, split in zip(own, x.splits, strict=True):
                found[letter] = found.get(letter, frozenset()) | split
        return Cut(result, tuple(found[c] for c in letters), a.known and b.known)

    def reduce(self, fn: np.ufunc, a: Cut, axes: Sequence[int], keepdims: bool = True) -> Cut:
        if function_of(fn) is not ADD and not a.known:
            raise Unsupported(f"a fold of {function_of(fn).name} is not linear")
        result = SHAPES.reduce(fn, a.type, axes, keepdims)
        kept = [frozenset[int]() if i in axes else s for i, s in enumerate(a.splits) if keepdims or i not in axes]
        return Cut(result, tuple(kept), a.known)

    def cumulate(self, fn: np.ufunc, a: Cut, axis: int) -> Cut:
        """The result of an operator for which every element along the axis has its own range."""
        if function_of(fn) is not ADD and not a.known:
            raise Unsupported(f"a running fold of {function_of(fn).name} is not linear")
        splits = [_every(n) if i == axis else s for i, (n, s) in enumerate(zip(a.sizes, a.splits, strict=True))]
        return Cut(a.type, tuple(splits), a.known)

    # ------------------------------------------------------------ positions

    def reshape(self, a: Cut, shape: Sequence[Dim]) -> Cut:
        """Runs of dims with equal products are taken together: a merged dim is linear only within a
        row."""
        result = SHAPES.reshape(a.type, shape)
        wanted = tuple(int(n) for n in result.shape or ())
        splits: list[frozenset[int]] = []
        for old, new in regrouped_runs(a.sizes, wanted):
            splits += _regrouped([(a.sizes[i], a.splits[i]) for i in old], [wanted[i] for i in new])
        return Cut(result, tuple(splits), a.known)

    def transpose(self, a: Cut, perm: Sequence[int]) -> Cut:
        return Cut(SHAPES.transpose(a.type, perm), tuple(a.splits[i] for i in perm), a.known)

    def expand(self, a: Cut, shape: Sequence[Dim]) -> Cut:
        result = SHAPES.expand(a.type, shape)
        rank = len(result.shape or ())
        return Cut(result, tuple(frozenset[int]().union(*_aligned(a, axis, rank)) for axis in range(rank)), a.known)

    def concat(self, xs: Sequence[Cut], axis: int) -> Cut:
        result = SHAPES.concat([x.type for x in xs], axis)
        splits = [frozenset[int]().union(*each) for each in zip(*[x.splits for x in xs], strict=True)]
        along: set[int] = set()
        start = 0
        for x in xs:
            along |= {start, *(start + s for s in x.splits[axis])}
            start += x.sizes[axis]
        splits[axis] = frozenset(along - {0, start})
        return Cut(result, tuple(splits), all(x.known for x in xs))

    def slice(self, a: Cut, axis: int, start: Dim, stop: Dim, step: int = 1) -> Cut:
        result = SHAPES.slice(a.type, axis, start, stop, step)
        positions = np.arange(int(start), int(stop), step)
        return Cut(result, tuple(_seen(s, positions) if i == axis else s for i, s in enumerate(a.splits)), a.known)

    def pad(
        self, a: Cut, low: Sequence[Dim], high: Sequence[Dim], value: float = 0, interior: Sequence[int] | None = None
    ) -> Cut:
        """Pad a tensor: the border is another box, and with copies of a value between elements
        every position is a box."""
        result = SHAPES.pad(a.type, low, high, value, interior)
        sizes = tuple(int(n) for n in result.shape or ())
        splits = []
        for i, (n, whole) in enumerate(zip(a.sizes, sizes, strict=True)):
            gap, before = (interior[i] if interior is not None else 0), int(low[i])
            if gap and n > 1:
                splits.append(_every(whole))
                continue
            found = {before, before + n, *(before + s for s in a.splits[i])}
            splits.append(frozenset(s for s in found if 0 < s < whole))
        return Cut(result, tuple(splits), a.known)

    def window(
        self, a: Cut, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Cut:
        """A position of the window crosses a split point where its first does, its second...: each
        is a split point of the result."""
        result = SHAPES.window(a.type, axes, sizes, strides, dilations)
        whole = tuple(int(n) for n in result.shape or ())
        splits, inner = list(a.splits), []
        for axis, size, stride, dilation in zip(axes, sizes, strides, dilations, strict=True):
            own = a.splits[axis]
            found = {-(-(s - k * dilation) // stride) for s in own for k in range(size)}
            splits[axis] = frozenset(s for s in found if 0 < s < whole[axis])
            inner.append(_every(size) if own else frozenset[int]())
        return Cut(result, (*splits, *inner), a.known)

    def take(self, a: Cut, indices: Cut, axis: int) -> Cut:
        if indices.value is None:
            raise Unsupported("a gather whose indices are computed")
        result = SHAPES.take(a.type, indices.type, axis)
        positions = np.where(indices.value < 0, indices.value + a.sizes[axis], indices.value)
        along = tuple(_every(n) for n in positions.shape)
        if positions.ndim == 1 and len(positions) > 1 and len(set(np.diff(positions))) == 1:
            along = (_seen(a.splits[axis], positions),)
        return Cut(result, (*a.splits[:axis], *along, *a.splits[axis + 1 :]), a.known)

    def take_along(self, a: Cut, indices: Cut, axis: int) -> Cut:
        raise Unsupported("a gather with an index for each element")

    def put(self, a: Cut, places: Sequence[Cut], updates: Cut, fn: np.ufunc | None = None) -> Cut:
        raise Unsupported("a scatter")


BOXES = Boxes()


def _is_linear(linear: Linear | None, xs: Sequence[Cut]) -> bool:
    """Whether a function is linear in each of its operands that is not known."""
    if linear is Linear.QUOTIENT:
        return xs[1].known
    return xs[0].known if linear is Linear.CHOICE else linear is not None


def _every(n: int) -> frozenset[int]:
    return frozenset(range(1, n))


def _aligned(x: Cut, axis: int, rank: int) -> list[frozenset[int]]:
    """The split points of an operand along an axis of a result of `rank` dims; a dim of 1 has
    none."""
    own = axis - (rank - len(x.sizes))
    return [x.splits[own]] if own >= 0 else []


def _seen(points: frozenset[int], positions: NDArray[Any]) -> frozenset[int]:
    """The split points of elements picked at positions of one step."""
    interval = np.searchsorted(sorted(points), positions, side="right")
    return frozenset((np.flatnonzero(np.diff(interval)) + 1).tolist())


def _changes(array: NDArray[Any]) -> Iterator[set[int]]:
    """For each axis, the positions whose elements differ from the previous ones."""
    for axis in range(array.ndim):
        rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
        differ = [i for i in range(1, len(rows)) if not np.array_equal(rows[i], rows[i - 1])]
        yield set(differ)


def regrouped_runs(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Dims of the old and of the new shape in runs of equal products, as short as they can be."""
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [], []
        if i < len(old):
            left.append(i)
            i += 1
        if j < len(new):
            right.append(j)
            j += 1
        while prod(old[k] for k in left) != prod(new[k] for k in right):
            smaller = prod(old[k] for k in left) < prod(new[k] for k in right)
            if smaller and i < len(old):
                left.append(i)
                i += 1
            elif j < len(new):
                right.append(j)
                j += 1
            else:
                left += range(i, len(old))
                i = len(old)
                break
        yield left, right


def _regrouped(old: Sequence[tuple[int, frozenset[int]]], new: Sequence[int]) -> list[frozenset[int]]:
    """The split points of dims that are merged into one and cut anew."""
    large = [(n, s) for n, s in old if n != 1]
    if [n for n, _ in large] == [n for n in new if n != 1]:
        left = iter(s for _, s in large)
        return [next(left) if n != 1 else frozenset() for n in new]
    flat, size = set[int](), 1
    for n, own in reversed(large):
        flat = {i * size + s for i in range(n) for s in (flat | {0})} - {0} if size > 1 else set(own)
        size *= n
    found: list[frozenset[int]] = []
    for k, n in enumerate(new):
        below = prod(new[k + 1 :])
        within = n * below
        local = {s % within for s in flat}
        points = {s // below for s in local} | {s // below + 1 for s in local if s % below}
        found.append(frozenset(s for s in points if 0 < s < n))
    return found
