"""The meaning `shapes`: an operator's type rule, derived from its definition, with symbolic
dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from taso_mirage.errors import IllTyped, Undecidable
from taso_mirage.ir.dims import Dim, Shape, broadcast_dims, broadcast_shapes, dim_product, show_shape
from taso_mirage.ir.terms import Literal, Tensor, numpy_dtype
from taso_mirage.meanings.base import Meaning, R, Scalar, contraction, window_count
from taso_mirage.meanings.functions import function_of


class ShapesMeaning(Meaning[Tensor]):
    """A meaning whose values are types. Every mismatch raises IllTyped with the dimension and both
    values."""

    def shape(self, a: Tensor) -> Shape:
        if a.shape is None:
            raise IllTyped(f"an operand of type {a} has no known rank")
        return a.shape

    def dtype(self, a: Tensor) -> str:
        return a.dtype

    def constant(self, value: Literal) -> Tensor:
        return Tensor(value.dtype, value.shape)

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Tensor:
        return Tensor("int64", () if scalar else (len(values),))

    def iota(self, n: Dim, dtype: str = "int64") -> Tensor:
        return Tensor(dtype, (n,))

    def map(self, fn: Scalar, *xs: Tensor) -> Tensor:
        try:
            shape = broadcast_shapes(*[self.shape(x) for x in xs])
        except ValueError as error:
            raise IllTyped(str(error)) from None
        return Tensor(_result_dtype(fn, tuple(x.dtype for x in xs)), shape)

    def cast(self, a: Tensor, dtype: str) -> Tensor:
        return Tensor(dtype, self.shape(a))

    def contract(self, equation: str, a: Tensor, b: Tensor) -> Tensor:
        letters_a, letters_b, result = contraction(equation, len(self.shape(a)), len(self.shape(b)))
        dims: dict[str, Dim] = {}
        for letters, operand in ((letters_a, a), (letters_b, b)):
            if len(letters) != operand.rank:
                raise IllTyped(f"{equation}: operand of rank {operand.rank} {show_shape(self.shape(operand))}")
            for letter, n in zip(letters, self.shape(operand), strict=True):
                dims[letter] = self._unify(equation, letter, dims.get(letter, n), n)
        if a.dtype != b.dtype:
            raise IllTyped(f"{equation}: dtypes differ, {a.dtype} against {b.dtype}")
        return Tensor(a.dtype, tuple(dims[letter] for letter in result))

    @staticmethod
    def _unify(equation: str, letter: str, known: Dim, n: Dim) -> Dim:
        if known == n:
            return n
        if letter.isupper():
            try:
                return broadcast_dims(known, n)
            except ValueError:
                raise IllTyped(f"{equation}: batch dimensions {known} and {n} do not broadcast") from None
        if isinstance(known, int) and isinstance(n, int):
            raise IllTyped(f"{equation}: dimension {letter} is {known} in one operand and {n} in the other")
        raise Undecidable(f"{equation}: dimension {letter} is {known} in one operand and {n} in the other")

    def reduce(self, fn: np.ufunc, a: Tensor, axes: Sequence[int], keepdims: bool = True) -> Tensor:
        self._axes(a, axes)
        if keepdims:
            return Tensor(a.dtype, tuple(1 if i in axes else n for i, n in enumerate(self.shape(a))))
        return Tensor(a.dtype, tuple(n for i, n in enumerate(self.shape(a)) if i not in axes))

    def cumulate(self, fn: np.ufunc, a: Tensor, axis: int) -> Tensor:
        self._axes(a, [axis])
        return a

    def reshape(self, a: Tensor, shape: Sequence[Dim]) -> Tensor:
        have, want = dim_product(self.shape(a)), dim_product(shape)
        if have != want:
            kind = IllTyped if isinstance(have, int) and isinstance(want, int) else Undecidable
            raise kind(f"reshape of {show_shape(self.shape(a))} ({have} elements) to {show_shape(shape)} ({want})")
        return Tensor(a.dtype, tuple(shape))

    def transpose(self, a: Tensor, perm: Sequence[int]) -> Tensor:
        if sorted(perm) != list(range(len(self.shape(a)))):
            raise IllTyped(f"perm {tuple(perm)} does not permute the axes of {show_shape(self.shape(a))}")
        return Tensor(a.dtype, tuple(self.shape(a)[i] for i in perm))

    def expand(self, a: Tensor, shape: Sequence[Dim]) -> Tensor:
        try:
            fits = broadcast_shapes(self.shape(a), tuple(shape)) == tuple(shape)
        except ValueError as error:
            raise IllTyped(str(error)) from None
        if not fits:
            raise IllTyped(f"{show_shape(self.shape(a))} does not broadcast to {show_shape(shape)}")
        return Tensor(a.dtype, tuple(shape))

    def concat(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        first = self.shape(xs[0])
        self._axes(xs[0], [axis])
        total: Dim = 0
        for x in xs:
            shape = self.shape(x)
            for i, (n, m) in enumerate(zip(first, shape, strict=False)):
                if i != axis and n != m:
                    kind = IllTyped if isinstance(n, int) and isinstance(m, int) else Undecidable
                    raise kind(f"dimension {i} is {n} in one operand and {m} in another")
            if len(shape) != len(first) or x.dtype != xs[0].dtype:
                raise IllTyped(f"operands differ in rank or dtype: {xs[0]} and {x}")
            total = total + shape[axis]
        return Tensor(xs[0].dtype, tuple(total if i == axis else n for i, n in enumerate(first)))

    def slice(self, a: Tensor, axis: int, start: Dim, stop: Dim, step: int = 1) -> Tensor:
        self._axes(a, [axis])
        n = self.shape(a)[axis]
        if isinstance(n, int):
            inside = (0, n) if step > 0 else (-1, max(n - 1, 0))
            for at in (start, stop):
                if isinstance(at, int) and not inside[0] <= at <= inside[1]:
                    raise IllTyped(f"the slice {start}:{stop}:{step} of dimension {axis}, which is {n}")
        length: Dim = (stop - start + step - 1) // step if step > 0 else (start - stop - step - 1) // -step
        if isinstance(length, int) and length < 0:
            raise IllTyped(f"the slice {start}:{stop}:{step} of dimension {axis} has length {length}")
        return Tensor(a.dtype, tuple(length if i == axis else n for i, n in enumerate(self.shape(a))))

    def pad(
        self,
        a: Tensor,
        low: Sequence[Dim],
        high: Sequence[Dim],
        value: float = 0,
        interior: Sequence[int] | None = None,
    ) -> Tensor:
        shape = self.shape(a)
        inner = interior or [0] * len(shape)
        if not len(low) == len(high) == len(inner) == len(shape):
            raise IllTyped(f"pads of length {len(low)}, {len(high)} for {show_shape(shape)}")
        padded = tuple(n + (n - 1) * i + p + q for n, i, p, q in zip(shape, inner, low, high, strict=True))
        for i, n in enumerate(padded):
            if isinstance(n, int) and n < 0:
                raise IllTyped(f"dimension {i}: {shape[i]} with pads {low[i]} and {high[i]} is negative")
        return Tensor(a.dtype, padded)

    def window(
        self, a: Tensor, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Tensor:
        shape = list(self.shape(a))
        self._axes(a, axes)
        for axis, size, stride, dilation in zip(axes, sizes, strides, dilations, strict=True):
            if any(isinstance(d, int) and d < 1 for d in (size, stride, dilation)):
                raise IllTyped(f"dimension {axis}: a window of size {size}, stride {stride} and dilation {dilation}")
            n = window_count(shape[axis], size, stride, dilation)
            if isinstance(n, int) and n <= 0:
                extent = (size - 1) * dilation + 1
                raise IllTyped(f"dimension {axis}: a window of {extent} does not fit into {shape[axis]} positions")
            shape[axis] = n
        return Tensor(a.dtype, (*shape, *sizes))

    def take(self, a: Tensor, indices: Tensor, axis: int) -> Tensor:
        self._axes(a, [axis])
        shape = self.shape(a)
        return Tensor(a.dtype, (*shape[:axis], *self.shape(indices), *shape[axis + 1 :]))

    def take_along(self, a: Tensor, indices: Tensor, axis: int) -> Tensor:
        self._axes(a, [axis])
        if indices.rank != a.rank:
            raise IllTyped(f"indices of rank {indices.rank} for data of rank {a.rank}")
        return Tensor(a.dtype, self.shape(indices))

    def put(self, a: Tensor, places: Sequence[Tensor], updates: Tensor, fn: np.ufunc | None = None) -> Tensor:
        shape, at = self.shape(a), self.shape(places[0])
        if len(places) > len(shape) or any(self.shape(place) != at for place in places):
            raise IllTyped(f"{len(places)} places of {show_shape(at)} for {show_shape(shape)}")
        if (found := self.shape(updates)) != (expected := (*at, *shape[len(places) :])):
            raise IllTyped(f"updates of {show_shape(found)}, where {show_shape(expected)} are stored")
        if updates.dtype != a.dtype:
            raise IllTyped(f"updates of dtype {updates.dtype} for data of {a.dtype}")
        if fn is not None:
            self.map(fn, a, a)
        return a

    def each(self, n: int, fn: Callable[[int], R]) -> list[R]:
        return [fn(0)] * n

    def _axes(self, a: Tensor, axes: Sequence[int]) -> None:
        for axis in axes:
            if not 0 <= axis < len(self.shape(a)):
                raise IllTyped(f"axis {axis} of {show_shape(self.shape(a))}")


SHAPES = ShapesMeaning()


@lru_cache(maxsize=4096)
def _result_dtype(fn: Scalar, dtypes: tuple[str, ...]) -> str:
    """The dtype of `fn`, from `fn` itself: run it on one element of each.

    ONNX never promotes, so operands agree.
    """
    arrays = [np.ones((1,), numpy_dtype(d)) for d in dtypes]
    function = function_of(fn)
    values = [d for i, d in enumerate(dtypes) if i not in function.free]
    if len(set(values)) > 1:
        raise IllTyped(f"{function.name}: dtypes differ, {' against '.join(dict.fromkeys(values))}")
    if "string" in dtypes or "object" in dtypes:
        raise IllTyped(f"{function.name} has no meaning on strings")
    with np.errstate(all="ignore"):
        result = np.asarray(fn(*arrays)).dtype
    return dtypes[0] if result.name == "float64" and "float64" not in dtypes else result.name
