"""The base of meanings that annotate types: every primitive types its result, and a note is
combined beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Literal, Tensor
from taso_mirage.meanings.base import Meaning, R, Scalar
from taso_mirage.meanings.shapes import SHAPES

N = TypeVar("N")


class Typed(Meaning[tuple[Tensor, N]], Generic[N]):
    """A value is (type, note).

    A subclass defines in `note` the note of a primitive's result, given its operands' notes.
    """

    def note(self, primitive: str, fn: Any, notes: Sequence[N], operands: Sequence[Tensor], result: Tensor) -> N:
        raise NotImplementedError

    def _lift(self, primitive: str, fn: Any, xs: Sequence[tuple[Tensor, N]], *args: Any) -> tuple[Tensor, N]:
        types = [t for t, _ in xs]
        result: Tensor = getattr(SHAPES, primitive)(*args)
        return result, self.note(primitive, fn, [n for _, n in xs], types, result)

    def shape(self, a: tuple[Tensor, N]) -> Shape:
        return SHAPES.shape(a[0])

    def dtype(self, a: tuple[Tensor, N]) -> str:
        return a[0].dtype

    def constant(self, value: Literal) -> tuple[Tensor, N]:
        return self._lift("constant", None, [], value)

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> tuple[Tensor, N]:
        return self._lift("extents", None, [], values, scalar)

    def iota(self, n: Dim, dtype: str = "int64") -> tuple[Tensor, N]:
        return self._lift("iota", None, [], n, dtype)

    def map(self, fn: Scalar, *xs: tuple[Tensor, N]) -> tuple[Tensor, N]:
        return self._lift("map", fn, xs, fn, *[t for t, _ in xs])

    def cast(self, a: tuple[Tensor, N], dtype: str) -> tuple[Tensor, N]:
        return self._lift("cast", dtype, [a], a[0], dtype)

    def contract(self, equation: str, a: tuple[Tensor, N], b: tuple[Tensor, N]) -> tuple[Tensor, N]:
        return self._lift("contract", equation, [a, b], equation, a[0], b[0])

    def reduce(self, fn: np.ufunc, a: tuple[Tensor, N], axes: Sequence[int], keepdims: bool = True) -> tuple[Tensor, N]:
        return self._lift("reduce", fn, [a], fn, a[0], axes, keepdims)

    def cumulate(self, fn: np.ufunc, a: tuple[Tensor, N], axis: int) -> tuple[Tensor, N]:
        return self._lift("cumulate", fn, [a], fn, a[0], axis)

    def reshape(self, a: tuple[Tensor, N], shape: Sequence[Dim]) -> tuple[Tensor, N]:
        return self._lift("reshape", None, [a], a[0], shape)

    def transpose(self, a: tuple[Tensor, N], perm: Sequence[int]) -> tuple[Tensor, N]:
        return self._lift("transpose", None, [a], a[0], perm)

    def expand(self, a: tuple[Tensor, N], shape: Sequence[Dim]) -> tuple[Tensor, N]:
        return self._lift("expand", None, [a], a[0], shape)

    def concat(self, xs: Sequence[tuple[Tensor, N]], axis: int) -> tuple[Tensor, N]:
        return self._lift("concat", None, xs, [t for t, _ in xs], axis)

    def slice(self, a: tuple[Tensor, N], axis: int, start: Dim, stop: Dim, step: int = 1) -> tuple[Tensor, N]:
        return self._lift("slice", None, [a], a[0], axis, start, stop, step)

    def pad(
        self,
        a: tuple[Tensor, N],
        low: Sequence[Dim],
        high: Sequence[Dim],
        value: float = 0,
        interior: Sequence[int] | None = None,
    ) -> tuple[Tensor, N]:
        return self._lift("pad", value, [a], a[0], low, high, value, interior)

    def window(
        self,
        a: tuple[Tensor, N],
        axes: Sequence[int],
        sizes: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
    ) -> tuple[Tensor, N]:
        return self._lift("window", None, [a], a[0], axes, sizes, strides, dilations)

    def take(self, a: tuple[Tensor, N], indices: tuple[Tensor, N], axis: int) -> tuple[Tensor, N]:
        return self._lift("take", None, [a, indices], a[0], indices[0], axis)

    def take_along(self, a: tuple[Tensor, N], indices: tuple[Tensor, N], axis: int) -> tuple[Tensor, N]:
        return self._lift("take_along", None, [a, indices], a[0], indices[0], axis)

    def put(
        self,
        a: tuple[Tensor, N],
        places: Sequence[tuple[Tensor, N]],
        updates: tuple[Tensor, N],
        fn: np.ufunc | None = None,
    ) -> tuple[Tensor, N]:
        return self._lift("put", fn, [a, updates, *places], a[0], [t for t, _ in places], updates[0], fn)

    def each(self, n: int, fn: Callable[[int], R]) -> list[R]:
        return [fn(0)] * n
