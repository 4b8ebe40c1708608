"""The primitives that operators are defined over; a `Meaning` interprets them (shapes, reals,
finite field, degree...)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Literal

V = TypeVar("V")
R = TypeVar("R")
Scalar = Callable[..., Any]
"""A function that is applied to every element: a numpy function (np.add, np.exp, np.where...), or a
record of `functions`."""


class Meaning(Generic[V]):
    """An array namespace.

    Shapes are as in numpy; a `Dim` is an int unless the meaning says otherwise.
    """

    own: ClassVar[Mapping[str, Callable[..., Any]]] = MappingProxyType({})
    """Operators that the meaning computes in its own way, by ONNX name. The function is called in
    place of the operator's definition; if it returns NotImplemented, the definition is used."""

    def shape(self, a: V) -> Shape:
        raise NotImplementedError

    def dtype(self, a: V) -> str:
        raise NotImplementedError

    def constant(self, value: Literal) -> V:
        """The array itself."""
        raise NotImplementedError

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> V:
        """The int64 vector (or scalar) of some sizes."""
        raise NotImplementedError

    def iota(self, n: Dim, dtype: str = "int64") -> V:
        """0, 1, ..., n-1."""
        raise NotImplementedError

    def map(self, fn: Scalar, *xs: V) -> V:
        """`fn` on every element, with broadcasting."""
        raise NotImplementedError

    def cast(self, a: V, dtype: str) -> V:
        raise NotImplementedError

    def contract(self, equation: str, a: V, b: V) -> V:
        """einsum of two operands; `...` broadcasts."""
        raise NotImplementedError

    def reduce(self, fn: np.ufunc, a: V, axes: Sequence[int], keepdims: bool = True) -> V:
        """Fold an associative ufunc (add, multiply, maximum, minimum) over non-negative `axes`."""
        raise NotImplementedError

    def cumulate(self, fn: np.ufunc, a: V, axis: int) -> V:
        """Running fold of a ufunc along one axis."""
        raise NotImplementedError

    def reshape(self, a: V, shape: Sequence[Dim]) -> V:
        raise NotImplementedError

    def transpose(self, a: V, perm: Sequence[int]) -> V:
        raise NotImplementedError

    def expand(self, a: V, shape: Sequence[Dim]) -> V:
        """Broadcast to exactly `shape`."""
        raise NotImplementedError

    def concat(self, xs: Sequence[V], axis: int) -> V:
        raise NotImplementedError

    def slice(self, a: V, axis: int, start: Dim, stop: Dim, step: int = 1) -> V:
        """Python's slice along one axis, with start and stop already within [0, n] (stop may be -1
        for a negative step)."""
        raise NotImplementedError

    def pad(
        self, a: V, low: Sequence[Dim], high: Sequence[Dim], value: float = 0, interior: Sequence[int] | None = None
    ) -> V:
        """`interior` copies of `value` between neighbours, then `low` before and `high` after, each
        axis."""
        raise NotImplementedError

    def window(
        self, a: V, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> V:
        """Sliding windows: each of `axes` becomes its positions, and one axis per window dim is
        appended."""
        raise NotImplementedError

    def take(self, a: V, indices: V, axis: int) -> V:
        """Gather: `axis` is replaced by the axes of `indices`; a negative index counts from the
        end."""
        raise NotImplementedError

    def take_along(self, a: V, indices: V, axis: int) -> V:
        """numpy's take_along_axis."""
        raise NotImplementedError

    def put(self, a: V, places: Sequence[V], updates: V, fn: np.ufunc | None = None) -> V:
        """`a` of shape (n..., r...) in which the element [p..., q...] is that of `updates` (i...,
        r...) at [j..., q...], where `places`, integers (i...) for each axis of n, have p at j.
        Without `fn` the last of equal places counts; with it, all are folded by it into that of
        `a`, in their order. A negative place counts from the end."""
        raise NotImplementedError

    def each(self, n: int, fn: Callable[[int], R]) -> list[R]:
        """The values fn(0), ..., fn(n-1) of one type; a meaning of types computes only the
        first."""
        return [fn(i) for i in range(n)]

    def decided(self, fn: Callable[..., Any], operands: Sequence[V | None], dtypes: Sequence[str]) -> Any:
        """Call `fn` with this meaning and with operands of declared dtypes; `fn` decides how to
        round."""
        return fn(self, *operands)

    # The methods below are shorthands. A meaning overrides one if it counts or rounds otherwise.
    def operator(self, name: str | None, definition: Callable[..., Any], /, *operands: V | None, **attrs: Any) -> Any:
        """An operator of ONNX's name, if it has one: in the meaning's own way, else by its
        definition."""
        own = self.own.get(name or "")
        found = NotImplemented if own is None else own(self, *operands, **attrs)
        return definition(self, *operands, **attrs) if found is NotImplemented else found

    def rank(self, a: V) -> int:
        return len(self.shape(a))

    def literal(self, value: float, like: V) -> V:
        """A scalar of the dtype of `like`."""
        return self.scalar(value, self.dtype(like))

    def scalar(self, value: float, dtype: str) -> V:
        from taso_mirage.ir.terms import numpy_dtype

        return self.constant(Literal.of(np.asarray(value, numpy_dtype(dtype))))

    def add(self, a: V, b: V) -> V:
        return self.map(np.add, a, b)

    def sub(self, a: V, b: V) -> V:
        return self.map(np.subtract, a, b)

    def mul(self, a: V, b: V) -> V:
        return self.map(np.multiply, a, b)

    def div(self, a: V, b: V) -> V:
        return self.map(np.divide, a, b)

    def maximum(self, a: V, b: V) -> V:
        return self.map(np.maximum, a, b)

    def sum(self, a: V, axes: Sequence[int], keepdims: bool = True) -> V:
        return self.reduce(np.add, a, axes, keepdims)

    def mean(self, a: V, axes: Sequence[int], keepdims: bool = True) -> V:
        return self.div(self.sum(a, axes, keepdims), self.count(a, axes))

    def count(self, a: V, axes: Sequence[int]) -> V:
        """The number of elements of a fold over `axes`, as a scalar of the dtype of `a`."""
        from taso_mirage.ir.dims import dim_product

        return self.cast(self.extents([dim_product(self.shape(a)[i] for i in axes)], scalar=True), self.dtype(a))


def contraction(equation: str, rank_a: int, rank_b: int) -> tuple[str, str, str]:
    """The letters of both operands and the result, `...` spelled out (numpy's rule: aligned at the
    right)."""
    inputs, result = equation.replace(" ", "").split("->")
    a, b = inputs.split(",")
    spare = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    extra_a, extra_b = rank_a - len(a.replace("...", "")), rank_b - len(b.replace("...", ""))
    widest = max(extra_a if "..." in a else 0, extra_b if "..." in b else 0)
    letters = spare[:widest]
    return (
        a.replace("...", letters[widest - extra_a :] if extra_a else ""),
        b.replace("...", letters[widest - extra_b :] if extra_b else ""),
        result.replace("...", letters),
    )


def scalar_name(fn: Scalar) -> str:
    """The name of a numpy function, a plain function or a record."""
    return str(fn.__name__)


def window_count(n: Dim, size: int, stride: int, dilation: int) -> Dim:
    """How many windows fit into `n` positions."""
    return (n - ((size - 1) * dilation + 1)) // stride + 1
