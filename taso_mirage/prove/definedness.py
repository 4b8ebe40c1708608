"""The elements that have a value: for each one a flag that is 1 if a partial function was applied
outside of its domain, otherwise 0.

An equation holds only where both sides have a value at the same operands (docs/soundness.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Literal, Tensor
from taso_mirage.meanings.base import Meaning, Scalar, contraction
from taso_mirage.meanings.functions import DIVIDE, MULTIPLY, RECIPROCAL, SCALAR_FUNCTIONS, WHERE, function_of
from taso_mirage.meanings.polynomials import ZERO, Poly, infinite
from taso_mirage.prove.cases import Cases, Element, broadcast_index
from taso_mirage.prove.elements import Elements

FLAGS = "float32"
"""The dtype of the tensors of 0 and 1."""
_QUOTIENTS = (DIVIDE, RECIPROCAL)
_PRODUCTS = (MULTIPLY, SCALAR_FUNCTIONS["negative"])
"""Functions that are infinite where an operand is, or NaN."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A tensor with two flags of its shape: 1 where it has no value, and 1 where it is infinite
    because of a division by zero. None for a flag that is 0 everywhere."""

    value: Element
    undefined: Element | None = None
    pole: Element | None = None


class Definedness(Meaning[Partial]):
    """The meaning over the algebra of a proof; it computes the elements a second time."""

    def __init__(self, xp: Elements) -> None:
        self.xp = xp

    def nowhere(self, shape: Shape) -> Element:
        """0 everywhere."""
        return Element(Tensor(FLAGS, shape), lambda index: (((), ZERO),))

    def unsettled(self, a: Partial) -> Element | None:
        """The flag of elements that are not numbers."""
        return self._either(a.value.shape, [a.undefined, a.pole])

    def _or_nowhere(self, a: Partial) -> Element:
        return self.unsettled(a) or self.nowhere(a.value.shape)

    def _either(self, whole: Shape, flags: Sequence[Element | None]) -> Element | None:
        """The union of some flags, which broadcast."""
        some = [f for f in flags if f is not None]
        if not some:
            return None

        def read(index: tuple[Dim, ...]) -> Cases:
            found = [f.at(broadcast_index(index, whole, f.shape)) for f in some]
            return self.xp.combined(found, lambda ps: (((), self._largest(ps)),))

        return Element(Tensor(FLAGS, whole), read)

    def _without(self, value: Element, flags: Sequence[Element | None]) -> Partial:
        """The value, except where one of the flags is 1."""
        return Partial(value, self._either(value.shape, flags))

    def _largest(self, ps: Sequence[Poly]) -> Poly:
        """The largest of some flags, among them folds over nothing."""
        branches = [((), (), p) for p in ps if not infinite(p) and p.terms]
        return self.xp.algebra.largest([*branches, ((), (), ZERO)]) if len(branches) != 1 else branches[0][2]

    def leaf(self, name: str, type: Tensor) -> Partial:
        return Partial(self.xp.leaf(name, type))

    def shape(self, a: Partial) -> Shape:
        return a.value.shape

    def dtype(self, a: Partial) -> str:
        return a.value.type.dtype

    def constant(self, value: Literal) -> Partial:
        return Partial(self.xp.constant(value))

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Partial:
        return Partial(self.xp.extents(values, scalar))

    def iota(self, n: Dim, dtype: str = "int64") -> Partial:
        return Partial(self.xp.iota(n, dtype))

    def count(self, a: Partial, axes: Sequence[int]) -> Partial:
        """The exact number by which the algebra divides."""
        return Partial(self.xp.count(a.value, axes))

    # ------------------------------------------------------------ elementwise

    def map(self, fn: Scalar, *xs: Partial) -> Partial:
        function = function_of(fn)
        value = self.xp.map(fn, *[x.value for x in xs])
        outside = self.xp.outside(function, value.shape, [x.value for x in xs])
        if function in (*_QUOTIENTS, *_PRODUCTS):  # a quotient by an infinite number is 0
            above = xs[:-1] if function in _QUOTIENTS else xs
            undefined, poles = [x.undefined for x in xs], [outside, *[x.pole for x in above]]
            return Partial(value, self._either(value.shape, undefined), self._either(value.shape, poles))
        flags = [self.unsettled(x) for x in xs]
        if function is WHERE and (flags[1] or flags[2]):  # the other branch does not matter
            chosen = self.xp.map(WHERE, xs[0].value, *map(self._or_nowhere, xs[1:]))
            return self._without(value, [flags[0], chosen])
        return self._without(value, [*flags, outside])

    def cast(self, a: Partial, dtype: str) -> Partial:
        return Partial(self.xp.cast(a.value, dtype), self.unsettled(a))

    # ------------------------------------------------------------ folds

    def contract(self, equation: str, a: Partial, b: Partial) -> Partial:
        value = self.xp.contract(equation, a.value, b.value)
        letters_a, letters_b, result = contraction(equation, len(a.value.shape), len(b.value.shape))
        flags = [self._spread(self.unsettled(x), own, result) for x, own in ((a, letters_a), (b, letters_b))]
        return self._without(value, flags)

    def _spread(self, flag: Element | None, own: str, result: str) -> Element | None:
        """A flag over an operand's letters, over those of the result."""
        if flag is None:
            return None
        folded = self.xp.reduce(np.maximum, flag, [i for i, letter in enumerate(own) if letter not in result])
        shape = tuple(folded.shape[own.index(letter)] if letter in own else 1 for letter in result)

        def read(index: tuple[Dim, ...]) -> Cases:
            return folded.at(tuple(index[result.index(letter)] if letter in result else 0 for letter in own))

        return Element(Tensor(FLAGS, shape), read)

    def reduce(self, fn: np.ufunc, a: Partial, axes: Sequence[int], keepdims: bool = True) -> Partial:
        value = self.xp.reduce(fn, a.value, axes, keepdims)
        flag = self.unsettled(a)
        return self._without(value, [flag and self.xp.reduce(np.maximum, flag, axes, keepdims)])

    def cumulate(self, fn: np.ufunc, a: Partial, axis: int) -> Partial:
        value = self.xp.cumulate(fn, a.value, axis)
        flag = self.unsettled(a)
        return self._without(
            value, [flag and self.xp.cumulate(np.add, flag, axis)]
        )  # the number of occurrences, which is positive if there is one

    # ------------------------------------------------------------ structure

    def _moved(self, move: Callable[[Element], Element], a: Partial) -> Partial:
        return Partial(move(a.value), a.undefined and move(a.undefined), a.pole and move(a.pole))

    def reshape(self, a: Partial, shape: Sequence[Dim]) -> Partial:
        return self._moved(lambda x: self.xp.reshape(x, shape), a)

    def transpose(self, a: Partial, perm: Sequence[int]) -> Partial:
        return self._moved(lambda x: self.xp.transpose(x, perm), a)

    def expand(self, a: Partial, shape: Sequence[Dim]) -> Partial:
        return self._moved(lambda x: self.xp.expand(x, shape), a)

    def slice(self, a: Partial, axis: int, start: Dim, stop: Dim, step: int = 1) -> Partial:
        return self._moved(lambda x: self.xp.slice(x, axis, start, stop, step), a)

    def window(
        self, a: Partial, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Partial:
        return self._moved(lambda x: self.xp.window(x, axes, sizes, strides, dilations), a)

    def concat(self, xs: Sequence[Partial], axis: int) -> Partial:
        value = self.xp.concat([x.value for x in xs], axis)
        flagged = any(x.undefined or x.pole for x in xs)
        return Partial(value, self.xp.concat([self._or_nowhere(x) for x in xs], axis) if flagged else None)

    def pad(
        self,
        a: Partial,
        low: Sequence[Dim],
        high: Sequence[Dim],
        value: float = 0,
        interior: Sequence[int] | None = None,
    ) -> Partial:
        flag = self.unsettled(a)
        padded = self.xp.pad(a.value, low, high, value, interior)
        return Partial(padded, flag and self.xp.pad(flag, low, high, 0, interior))

    def take(self, a: Partial, indices: Partial, axis: int) -> Partial:
        value = self.xp.take(a.value, indices.value, axis)
        flag, own = self.unsettled(a), self.unsettled(indices)
        behind = (1,) * (len(a.value.shape) - 1 - axis)
        flags = [flag and self.xp.take(flag, indices.value, axis), own and self.xp.reshape(own, (*own.shape, *behind))]
        return self._without(value, flags)

    def put(self, a: Partial, places: Sequence[Partial], updates: Partial, fn: np.ufunc | None = None) -> Partial:
        at = [place.value for place in places]
        value = self.xp.put(a.value, at, updates.value, fn)
        flagged = any(x.undefined or x.pole for x in (a, updates))
        fold = None if fn is None else np.maximum
        own = self.xp.put(self._or_nowhere(a), at, self._or_nowhere(updates), fold) if flagged else None
        flags = [self.unsettled(place) for place in places]
        unknown = [f and self.xp.reduce(np.maximum, f, range(len(f.shape)), keepdims=False) for f in flags]
        return self._without(value, [own, *unknown])

    def take_along(self, a: Partial, indices: Partial, axis: int) -> Partial:
        value = self.xp.take_along(a.value, indices.value, axis)
        flag = self.unsettled(a)
        taken = flag and self.xp.take_along(flag, indices.value, axis)
        return self._without(value, [taken, self.unsettled(indices)])
