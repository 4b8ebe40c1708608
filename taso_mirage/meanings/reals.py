"""The meaning `reals`: numpy arrays, in the declared dtypes or (the check's reference) with every
float in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Literal, is_computed, is_float, numpy_dtype
from taso_mirage.meanings.arrays import CONTRACTING, Array, padded_array, pairwise, windows
from taso_mirage.meanings.base import Meaning, Scalar, contraction

WINDOW, MANY = 64, 1024
"""The largest number of elements of a window, and the smallest number of windows, for a fold over
all windows at once, element by element. numpy takes ten times as long for folds along few
elements."""


class Reals(Meaning[Array]):
    """`exact` evaluates every float in float64 and rounds nowhere; otherwise the declared dtypes
    hold. Floats of 8 bits are unchanged in both: making one is a decision of rounding."""

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact

    def load(self, array: Array) -> Array:
        """An input or weight in the form in which this meaning computes."""
        return array.astype(np.float64) if self.exact and is_computed(array.dtype.name) else array

    def shape(self, a: Array) -> Shape:
        return a.shape

    def dtype(self, a: Array) -> str:
        return a.dtype.name

    def constant(self, value: Literal) -> Array:
        return self.load(value.numpy())

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Array:
        return np.array(values[0] if scalar else list(values), np.int64)

    def iota(self, n: Dim, dtype: str = "int64") -> Array:
        return np.arange(int(n), dtype=np.float64 if self.exact and is_float(dtype) else numpy_dtype(dtype))

    def map(self, fn: Scalar, *xs: Array) -> Array:
        with np.errstate(all="ignore"):
            result = np.asarray(fn(*xs))
            narrow = result.dtype == np.float64 and not any(x.dtype == np.float64 for x in xs)
            return result.astype(xs[0].dtype) if narrow else result

    def cast(self, a: Array, dtype: str) -> Array:
        if self.exact and is_computed(dtype):
            return a.astype(np.float64)
        with np.errstate(all="ignore"):
            return a.astype(numpy_dtype(dtype))

    def contract(self, equation: str, a: Array, b: Array) -> Array:
        letters = contraction(equation, a.ndim, b.ndim)
        a, b = _shared(a, b, letters)
        if a.dtype.kind in "iu" and _sums_are_doubles(a, b):  # BLAS supports only floats
            product = pairwise(a.astype(np.float64), b.astype(np.float64), *letters)
            return np.asarray(product).astype(np.int64).astype(a.dtype)
        if (
            a.dtype.kind == "V" or a.dtype.itemsize == 2
        ):  # half precisions: numpy's own products are slow and lose digits
            return np.asarray(pairwise(a.astype(np.float32), b.astype(np.float32), *letters)).astype(a.dtype)
        return np.asarray((CONTRACTING.by if self.exact else pairwise)(a, b, *letters))

    def reduce(self, fn: np.ufunc, a: Array, axes: Sequence[int], keepdims: bool = True) -> Array:
        identity: dict[str, Any] = {}
        if fn in (np.maximum, np.minimum) and a.size == 0 and is_float(a.dtype.name):
            identity["initial"] = -np.inf if fn is np.maximum else np.inf
        if fn in (np.maximum, np.minimum) and a.size == 0 and a.dtype == bool:
            identity["initial"] = fn is np.minimum
        wide = a.astype(np.float32) if _is_half(a) else a
        few = math.prod(wide.shape[axis] for axis in axes)
        if {wide.ndim - 1, -1} & {*axes} and 1 < few <= WINDOW and wide.size >= MANY * few:
            result = _folded(fn, wide, axes)
            return (np.expand_dims(result, tuple(axes)) if keepdims else result).astype(a.dtype, copy=False)
        result = fn.reduce(wide, axis=tuple(axes), keepdims=keepdims, **identity) if axes else wide
        return np.asarray(result).astype(a.dtype)

    def mean(self, a: Array, axes: Sequence[int], keepdims: bool = True) -> Array:
        """The mean; half precisions are averaged in float32, in which the sum and the count are
        finite."""
        if not _is_half(a):
            return super().mean(a, axes, keepdims)
        with np.errstate(all="ignore"):
            return super().mean(a.astype(np.float32), axes, keepdims).astype(a.dtype)

    def cumulate(self, fn: np.ufunc, a: Array, axis: int) -> Array:
        return np.asarray(fn.accumulate(a, axis=axis), a.dtype)

    def reshape(self, a: Array, shape: Sequence[Dim]) -> Array:
        return a.reshape([int(n) for n in shape])

    def transpose(self, a: Array, perm: Sequence[int]) -> Array:
        return a.transpose(tuple(perm))

    def expand(self, a: Array, shape: Sequence[Dim]) -> Array:
        return np.broadcast_to(a, [int(n) for n in shape])

    def concat(self, xs: Sequence[Array], axis: int) -> Array:
        return np.concatenate(list(xs), axis)

    def slice(self, a: Array, axis: int, start: Dim, stop: Dim, step: int = 1) -> Array:
        end = None if step < 0 and stop == -1 else int(stop)
        return a[(slice(None),) * axis + (slice(int(start), end, step),)]

    def pad(
        self, a: Array, low: Sequence[Dim], high: Sequence[Dim], value: float = 0, interior: Sequence[int] | None = None
    ) -> Array:
        fill = a.dtype.type(value) if a.dtype.kind in "fV" else value
        return padded_array(a, [int(n) for n in low], [int(n) for n in high], fill, interior or [0] * a.ndim)

    def window(
        self, a: Array, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Array:
        return windows(a, axes, sizes, strides, dilations)

    def take(self, a: Array, indices: Array, axis: int) -> Array:
        return np.asarray(np.take(a, indices, axis))  # numpy turns an array of rank 0 into a number

    def decided(self, fn: Callable[..., Any], operands: Sequence[Array | None], dtypes: Sequence[str]) -> Any:
        if not self.exact:
            return fn(self, *operands)
        with np.errstate(all="ignore"):
            found = fn(REALS, *map(_narrowed, operands, dtypes))
        return tuple(map(self.load, found)) if isinstance(found, tuple) else self.load(found)

    def take_along(self, a: Array, indices: Array, axis: int) -> Array:
        return np.take_along_axis(a, np.where(indices < 0, indices + a.shape[axis], indices), axis)

    def put(self, a: Array, places: Sequence[Array], updates: Array, fn: np.ufunc | None = None) -> Array:
        made = a.copy()
        if fn is None:
            made[tuple(places)] = updates
            return made
        with np.errstate(all="ignore"):
            if a.dtype.kind == "V":  # numpy folds no floats of other packages in place
                for j in np.ndindex(*places[0].shape):
                    at = tuple([place[j] for place in places])
                    made[at] = fn(made[at], updates[j])
            else:
                fn.at(made, tuple(places), updates)
        return made


def _folded(fn: np.ufunc, a: Array, axes: Sequence[int]) -> Array:
    """A fold over few elements of many windows, without the axes."""
    axes = [axis % a.ndim for axis in axes]
    first = np.moveaxis(a, axes, range(len(axes)))
    with np.errstate(all="ignore"):
        return np.asarray(reduce(fn, (first[i] for i in np.ndindex(*first.shape[: len(axes)]))))


def _is_half(a: Array) -> bool:
    return is_float(a.dtype.name) and a.dtype.itemsize <= 2


def _sums_are_doubles(a: Array, b: Array) -> bool:
    """Whether every sum of products is an integer that float64 holds."""
    if 0 in (a.size, b.size):
        return False
    largest = [max(abs(int(x.min())), abs(int(x.max()))) for x in (a, b)]
    return largest[0] * largest[1] * max(a.size, b.size) < 1 << 53


def _narrowed(a: Array | None, dtype: str) -> Array | None:
    return a if a is None or not is_float(dtype) else a.astype(numpy_dtype(dtype))


def _shared(a: Array, b: Array, letters: tuple[str, str, str]) -> tuple[Array, Array]:
    """Broadcast the dims of equal letters, so that a product of batches of 1 and n is legal."""
    letters_a, letters_b, _ = letters
    sizes = dict(zip(letters_a, a.shape, strict=True))
    for letter, n in zip(letters_b, b.shape, strict=True):
        sizes[letter] = max(n, sizes.get(letter, n)) if n != 0 else 0
    return np.broadcast_to(a, [sizes[c] for c in letters_a]), np.broadcast_to(b, [sizes[c] for c in letters_b])


REALS = Reals()
EXACT = Reals(exact=True)
