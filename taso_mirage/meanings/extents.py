"""The meaning `extents`: integer arrays whose elements are sizes, so that values that a model
computes from shapes are known symbolically."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taso_mirage.errors import Undecidable
from taso_mirage.ir.dims import Dim, Floor, Shape, Symbolic
from taso_mirage.ir.terms import Literal
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.base import Scalar
from taso_mirage.meanings.functions import EQUAL, NOT_EQUAL, TRUNCATED_DIVIDE, WHERE, function_of
from taso_mirage.meanings.reals import Reals
from taso_mirage.meanings.sizes import fits


class Extents(Reals):
    """Values are object arrays of Dims, which are of a dtype to the program; functions beyond their
    arithmetic are Undecidable.

    Sums and products are known modulo 2^n. A function that reads a number (a quotient, a
    comparison, a conversion to more digits) needs one that surely fits.
    """

    def __init__(self, held: str = "int64") -> None:
        super().__init__()
        self.held = held

    def dtype(self, a: Array) -> str:
        return self.held if a.dtype == object else str(a.dtype.name)

    def constant(self, value: Literal) -> Array:
        return _objects(value.numpy())

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Array:
        result = np.empty((len(values),), object)
        result[:] = list(values)
        return result.reshape(()) if scalar else result

    def shape(self, a: Array) -> Shape:
        return a.shape

    def map(self, fn: Scalar, *xs: Array) -> Array:
        symbolic = any(isinstance(v, Symbolic) for x in xs for v in x.flat)
        if not symbolic:
            numbers = [wrapped(x, self.held) if x.dtype == object else x for x in xs]
            return _objects(super().map(fn, *numbers))
        function = function_of(fn)
        if function is TRUNCATED_DIVIDE and all(_positive(v) for x in xs for v in x.flat):
            function = function_of(np.floor_divide)
        if not function.sizes:
            raise Undecidable(f"{function.name} of sizes that are not fixed")
        if not function.ring and function is not WHERE:
            self._looked_at(xs)
        if function in (EQUAL, NOT_EQUAL):
            compare = np.vectorize(lambda a, b: _same(a, b) is (function is EQUAL), otypes=[bool])
            return np.asarray(compare(*xs))
        return np.asarray(function(*xs), object)

    def _looked_at(self, xs: Sequence[Array]) -> None:
        """Undecidable where a number may differ from its digits."""
        for v in (v for x in xs for v in x.flat if x.dtype == object):
            if not fits(v, self.held):
                raise Undecidable(f"whether {v} fits {self.held}")

    def cast(self, a: Array, dtype: str) -> Array:
        if not any(isinstance(v, Symbolic) for v in a.flat):
            return _objects(super().cast(wrapped(a, self.held) if a.dtype == object else a, dtype))
        if dtype not in ("int64", "int32"):
            raise Undecidable(f"a cast of a size to {dtype}")
        if dtype == "int64":
            self._looked_at([a])
        return a

    def reduce(self, fn: np.ufunc, a: Array, axes: Sequence[int], keepdims: bool = True) -> Array:
        if fn not in (np.add, np.multiply) and any(isinstance(v, Symbolic) for v in a.flat):
            raise Undecidable(f"{fn.__name__} of sizes that are not fixed")
        return np.asarray(fn.reduce(a, axis=tuple(axes), keepdims=keepdims), object)

    def take(self, a: Array, indices: Array, axis: int) -> Array:
        return np.take(a, indices.astype(np.int64), axis)


def _objects(array: Array) -> Array:
    return array.astype(object) if array.dtype.kind in "iu" else array


def wrapped(a: Array, dtype: str) -> Array:
    """Numbers modulo 2^n, as a dtype holds them."""
    return a.astype(np.int64).astype(dtype)


def _positive(a: Dim) -> bool:
    """Whether a number is nowhere negative: dims are not."""
    if isinstance(a, int):
        return a >= 0
    quotients = [f for m, _ in a.terms for f, _ in m if isinstance(f, Floor)]
    whole = all(_positive(f.numerator) and _positive(f.denominator) for f in quotients)
    return whole and all(c > 0 for _, c in a.terms)


def _same(a: Dim, b: Dim) -> bool:
    if a == b:
        return True
    difference = a - b
    if isinstance(difference, int):
        return False
    if isinstance(b, int) and b < 0 and isinstance(a, Symbolic) and _positive(a):
        return False  # a size is never negative
    raise Undecidable(f"whether {a} equals {b}")


EXTENTS = {dtype: Extents(dtype) for dtype in ("int64", "int32")}
"""By the dtype that sizes are computed in."""
