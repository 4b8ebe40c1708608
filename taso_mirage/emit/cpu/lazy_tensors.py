"""Lazy tensors: how each element of a value is computed, before any loop is chosen; their memory;
and views, which only change indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from taso_mirage.ir.dims import Dim, dim_product, symbol
from taso_mirage.ir.mugraph import product_factor
from taso_mirage.meanings.functions import Function
from taso_mirage.meanings.index_maps import IndexMap

Strides = tuple[int, ...]
BufferSizes = tuple[Dim, ...]
"""Sizes or strides; those that only a run knows are variables of the code."""


@dataclass(frozen=True, slots=True)
class Affine:
    """An affine index: constant + the sum of coefficient * variable."""

    constant: Dim = 0
    terms: tuple[tuple[str, Dim], ...] = ()

    def __add__(self, other: Affine) -> Affine:
        found = dict(self.terms)
        for name, k in other.terms:
            found[name] = found.get(name, 0) + k
        kept = tuple(sorted(((name, k) for name, k in found.items() if k != 0), key=lambda pair: pair[0]))
        return Affine(self.constant + other.constant, kept)

    def __mul__(self, k: Dim) -> Affine:
        return Affine(self.constant * k, tuple((name, c * k) for name, c in self.terms) if k != 0 else ())

    @property
    def dim(self) -> Dim:
        """The index as a polynomial."""
        return sum([symbol(name) * k for name, k in self.terms], start=self.constant)

    def __str__(self) -> str:
        parts = [name if k == 1 else f"{product_factor(k)} * {name}" for name, k in self.terms]
        parts += [str(self.constant)] if self.constant != 0 or not parts else []
        return " + ".join(parts).replace("+ -", "- ")


AffineIndex = tuple[Affine, ...]
Axis = tuple[Dim, tuple[tuple[int, Dim], ...]]
"""The index along one axis of a view's operand: a constant, and (axis of the view, coefficient)
pairs."""


@dataclass(eq=False, slots=True)
class LoopValue:
    """A tensor, computed from others, `args`; its subclasses define its elements."""

    dtype: str
    shape: BufferSizes
    args: tuple[LoopValue, ...] = field(default=(), kw_only=True)

    @property
    def arg(self) -> LoopValue:
        """The first argument."""
        return self.args[0]

    @property
    def count(self) -> Dim:
        return dim_product(self.shape)


@dataclass(eq=False, slots=True)
class CppBuffer(LoopValue):
    """Memory at a C++ pointer; strides in elements."""

    name: str
    strides: BufferSizes
    start: Dim = 0

    @property
    def dense(self) -> bool:
        """Whether the elements lie row by row."""
        return all(s == t or n == 1 for s, t, n in zip(self.strides, contiguous(self.shape), self.shape, strict=True))

    def offset(self, index: AffineIndex) -> Affine:
        """The place of an element, in elements from the pointer."""
        found = Affine(self.start)
        for at, stride in zip(index, self.strides, strict=True):
            found = found + at * stride
        return found

    def viewed(self, index: AffineIndex, shape: BufferSizes) -> CppBuffer:
        """The memory at an index as a buffer of this shape; the index is in the variables "0",
        "1"..."""
        at = self.offset(index)
        steps = dict(at.terms)
        strides = tuple([steps.get(str(i), 0) for i in range(len(shape))])
        return replace(self, shape=shape, strides=strides, start=at.constant)

    def part(self, shape: BufferSizes, axis: int, start: Dim) -> CppBuffer:
        """The part that begins at `start` of an axis."""
        return replace(self, shape=shape, start=self.start + start * self.strides[axis])


@dataclass(eq=False, slots=True)
class LoopConstant(LoopValue):
    """A scalar constant."""

    value: float


@dataclass(eq=False, slots=True)
class LoopIota(LoopValue):
    """The numbers 0, 1, ..., n-1."""


@dataclass(eq=False, slots=True)
class Map(LoopValue):
    """The function `fn` of the elements at the same index; operands have the shape of the result,
    or are numbers."""

    fn: Function


@dataclass(eq=False, slots=True)
class LoopView(LoopValue):
    """Elements of `arg` at indices that are affine in its own."""

    axes: tuple[Axis, ...]

    @property
    def permutes(self) -> bool:
        """Whether it shows every element of its operand once."""
        return self.count == self.arg.count and all(c == 0 for c, _ in self.axes)

    def inner(self, index: AffineIndex) -> AffineIndex:
        """The index into `arg`."""
        found = []
        for constant, terms in self.axes:
            at = Affine(constant)
            for axis, k in terms:
                at = at + index[axis] * k
            found.append(at)
        return tuple(found)


@dataclass(eq=False, slots=True)
class Flat(LoopValue):
    """The elements of `arg`, row by row, in a shape that merges its axes: `arg` has to be in
    memory."""


@dataclass(eq=False, slots=True)
class Concat(LoopValue):
    """The arguments side by side along an axis."""

    axis: int

    def starts(self) -> list[Dim]:
        sizes = [part.shape[self.axis] for part in self.args]
        return [sum(sizes[:i], start=cast(Dim, 0)) for i in range(len(sizes))]


@dataclass(eq=False, slots=True)
class Mapped(LoopValue):
    """Elements of the arguments, which have to be in memory, by an index map over
    `index_map.sources`, in that order."""

    index_map: IndexMap


@dataclass(eq=False, slots=True)
class Reduce(LoopValue):
    """A fold over axes, which stay with size 1."""

    fn: Function
    axes: Strides


@dataclass(eq=False, slots=True)
class Contract(LoopValue):
    """The einsum of two operands; `letters` are those of both and of the result."""

    letters: tuple[str, str, str]


@dataclass(eq=False, slots=True)
class BestColumn(Contract):
    """For each row of the first operand, the first column of the second whose product with it is
    the largest: by the object `finder`, which knows the second operand."""

    finder: str


LOWEST_FLOAT32 = float(np.finfo(np.float32).min)


def contiguous(shape: Sequence[Dim]) -> BufferSizes:
    """The strides of a tensor that lies row by row."""
    return tuple(dim_product(shape[i + 1 :]) for i in range(len(shape)))


def own_axes(shape: BufferSizes) -> tuple[Axis, ...]:
    """The axes of a view whose index is the operand's."""
    return tuple([(0, ((i, 1),)) for i in range(len(shape))])


def shape_axes(shape: Sequence[Dim]) -> AffineIndex:
    """The index of an element by variables "0", "1"..., one an axis."""
    return tuple([Affine(0, ((str(i), 1),)) for i in range(len(shape))])


def view_of(a: LoopValue, shape: BufferSizes, axes: Sequence[Axis]) -> LoopValue:
    """A view of `a`; if `a` is a view, a view of its base. Axes of size 1 have the index 0."""
    axes = [(c, tuple((j, k) for j, k in terms if shape[j] != 1)) for c, terms in axes]
    made = LoopView(a.dtype, shape, tuple(axes), args=(a,))
    if not isinstance(a, LoopView):
        return made
    index = a.inner(made.inner(shape_axes(shape)))
    merged = tuple([(i.constant, tuple([(int(n), k) for n, k in i.terms])) for i in index])
    return LoopView(a.dtype, shape, merged, args=a.args)


def base_value(value: LoopValue) -> LoopValue:
    """The value under all views of a value."""
    while isinstance(value, LoopView):
        value = value.arg
    return value
