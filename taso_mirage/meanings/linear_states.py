"""A meaning in which a matrix that is linear in a state stays a factor times the state and a sum of
products of a column with a row, so that several steps of a loop need the state only in products.

A recurrence that multiplies its state by decays and adds products of a column and a row to it
(linear attention, the delta rule, state space models) has after t steps the state

    S_t = d_t ... d_1 S_0 + sum over j <= t of (d_t ... d_(j+1) u_j) w_j,

and reads it as p S_t = (p d_t ... d_1) S_0 + sum over j of (p . d_t ... d_(j+1) u_j) w_j. Both hold
in every ring: each operation here is one of its laws. Yang et al., Parallelizing linear
transformers with the delta rule over sequence length (NeurIPS'24), compute this form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Literal
from taso_mirage.meanings.base import Meaning, Scalar, contraction

OuterPair = tuple[Any, Any]
"""A column, of size 1 along the axis of values, and a row, of size 1 along that of keys."""


@dataclass(frozen=True, slots=True)
class LinearValue:
    """`scale` times the state, if `state`, and the sum of the products of `pairs`; a scale of None
    is 1. The scale, like columns, has size 1 along the axis of values."""

    state: bool
    scale: Any
    pairs: tuple[OuterPair, ...]


@dataclass
class LinearStates(Meaning[Any]):
    """The primitives over another meaning, `base`, and over linear values of the state `start`.

    `keys`, `values`: the axes of the state over which a step sums, and along which it does not.
    Raises Unsupported where a step uses the state in another way.
    """

    base: Meaning[Any]
    start: Any
    keys: int
    values: int
    whole: Shape = field(init=False)

    def __post_init__(self) -> None:
        self.whole = self.base.shape(self.start)
        if any(self.whole[axis] == 1 for axis in (self.keys, self.values)):
            raise Unsupported("a state that is no matrix")

    @property
    def first(self) -> LinearValue:
        """The state itself."""
        return LinearValue(True, None, ())

    def plain(self, x: Any) -> Any:
        """The elements of a value that has no state in it."""
        if not isinstance(x, LinearValue):
            return x
        if x.state:
            raise Unsupported("a state that a step reads otherwise than by products over one axis")
        return reduce(self.base.add, [self.base.mul(*pair) for pair in x.pairs])

    def total(self, x: Any) -> Any:
        """The elements of any value."""
        if not isinstance(x, LinearValue) or not x.state:
            return self.plain(x)
        scaled = self.start if x.scale is None else self.base.mul(self.start, x.scale)
        return reduce(self.base.add, [self.base.mul(*pair) for pair in x.pairs], scaled)

    def reading(self, row: Any) -> Any:
        """The sum over the keys of a column times the state `start`."""
        return self.base.reduce(np.add, self.base.mul(row, self.start), [self.keys])

    def joined(self, pairs: tuple[OuterPair, ...]) -> tuple[OuterPair, ...]:
        """The pairs that are added to a multiple of the state."""
        return pairs

    # ---------------------------------------------------------------- linear operations

    def map(self, fn: Scalar, *xs: Any) -> Any:
        found = None
        if fn is np.multiply:
            found = self._product(*xs)
        elif any(isinstance(x, LinearValue) for x in xs) and fn in (np.add, np.subtract):
            found = self._sum(xs[0], self._negative(xs[1]) if fn is np.subtract else xs[1])
        elif fn is np.negative and isinstance(xs[0], LinearValue):
            found = self._negative(xs[0])
        return self.base.map(fn, *map(self.plain, xs)) if found is None else found

    def contract(self, equation: str, a: Any, b: Any) -> Any:
        letters = contraction(equation, self.rank(a), self.rank(b))
        for side, x in enumerate((a, b)):
            if isinstance(x, LinearValue) and x.state:
                other, (own, theirs) = (b, a)[side], (letters[side], letters[1 - side])
                return self._contracted(x, self.plain(other), own, theirs, letters[2])
        a, b = self.plain(a), self.plain(b)
        sizes = [*zip(letters[0], self.base.shape(a), strict=True), *zip(letters[1], self.base.shape(b), strict=True)]
        if all(n == 1 for c, n in sizes if c not in letters[2]):
            xs = [self._laid_out(x, own, letters[2]) for x, own in zip((a, b), letters, strict=False)]
            if (found := self._outer(*xs)) is not None:
                return found
        return self.base.contract(equation, a, b)

    def reduce(self, fn: np.ufunc, a: Any, axes: Sequence[int], keepdims: bool = True) -> Any:
        if not isinstance(a, LinearValue) or not a.state or fn is not np.add or tuple(axes) != (self.keys,):
            return self.base.reduce(fn, self.plain(a), axes, keepdims)
        found = self._read(a, None)
        return found if keepdims else self.base.reshape(found, [n for i, n in enumerate(self.whole) if i != self.keys])

    def _product(self, a: Any, b: Any) -> LinearValue | None:
        """The product of a linear value with a column or a row, or of a column with a row."""
        if isinstance(a, LinearValue) == isinstance(b, LinearValue):
            return None if isinstance(a, LinearValue) else self._outer(a, b)
        value, x = (a, b) if isinstance(a, LinearValue) else (b, a)
        x = self._aligned(x)
        if x is None:
            return None
        shape = self.base.shape(x)
        if shape[self.values] == 1:
            scale = x if value.scale is None else self.base.mul(value.scale, x)
            return LinearValue(value.state, scale, tuple([(self.base.mul(u, x), w) for u, w in value.pairs]))
        if shape[self.keys] == 1 and not value.state:
            return replace(value, pairs=tuple([(u, self.base.mul(w, x)) for u, w in value.pairs]))
        return None

    def _outer(self, a: Any, b: Any) -> LinearValue | None:
        xs = [self._aligned(x) for x in (a, b)]
        for column, row in (xs, xs[::-1]):
            if column is None or row is None:
                return None
            left, right = self.base.shape(column), self.base.shape(row)
            if (left[self.keys], left[self.values]) == (self.whole[self.keys], 1) and (
                right[self.keys],
                right[self.values],
            ) == (1, self.whole[self.values]):
                return LinearValue(False, None, ((column, row),))
        return None

    def _sum(self, a: Any, b: Any) -> LinearValue | None:
        if not isinstance(a, LinearValue) or not isinstance(b, LinearValue) or (a.state and b.state):
            return None
        if a.state or b.state:
            whole, other = (a, b) if a.state else (b, a)
            return replace(whole, pairs=(*whole.pairs, *self.joined(other.pairs)))
        return LinearValue(False, None, (*a.pairs, *b.pairs))

    def _negative(self, x: Any) -> Any:
        if not isinstance(x, LinearValue):
            return self.base.map(np.negative, x)
        scale = self.base.literal(-1, self.start) if x.scale is None else self.base.map(np.negative, x.scale)
        pairs = tuple([(self.base.map(np.negative, u), w) for u, w in x.pairs])
        return LinearValue(x.state, scale if x.state else None, pairs)

    def _read(self, value: LinearValue, column: Any) -> Any:
        """The sum over the keys of a column, or of ones, times a linear value with the state in
        it."""
        factors = [x for x in (column, value.scale) if x is not None]
        row = reduce(self.base.mul, factors) if factors else self.base.literal(1, self.start)
        shape = [1 if i == self.values else n for i, n in enumerate(self.whole)]
        found = self.reading(self.base.expand(row, shape))
        for u, w in value.pairs:
            score = u if column is None else self.base.mul(column, u)
            score = self.base.reduce(np.add, self.base.expand(score, shape), [self.keys])
            found = self.base.add(found, self.base.mul(score, w))
        return found

    def _contracted(self, value: LinearValue, x: Any, own: str, other: str, result: str) -> Any:
        """A product over the keys: of the letters `own` of the state and `other` of a tensor."""
        sizes, shape = dict(zip(own, self.whole, strict=True)), dict(zip(other, self.base.shape(x), strict=True))
        key, row = own[self.keys], own[self.values]
        beside = [c for c in own if c not in (key, row) and c not in result]
        wrong = any(sizes[c] != 1 for c in beside) or any(shape[c] not in (1, sizes.get(c, 1)) for c in other)
        if wrong or key in result or key not in other or row in other or row not in result:
            raise Unsupported("a product of a state over other axes")
        found = self._read(value, self._laid_out(x, other, own))
        return self._laid_out(found, own, result)

    def _laid_out(self, x: Any, letters: str, wanted: str) -> Any:
        """A tensor with its axes in another order; those that are not wanted have size 1."""
        kept = [(c, n) for c, n in zip(letters, self.base.shape(x), strict=True) if c in wanted]
        names = [c for c, _ in kept]
        flat = self.base.reshape(x, [n for _, n in kept])
        flat = self.base.transpose(flat, [names.index(c) for c in wanted if c in names])
        sizes = dict(kept)
        return self.base.reshape(flat, [sizes.get(c, 1) for c in wanted])

    def _aligned(self, x: Any) -> Any:
        """A tensor with as many axes as the state; None where it has elements beside these."""
        shape = self.base.shape(x)
        more = len(self.whole) - len(shape)
        full = (*(1,) * more, *shape)
        if more < 0 or any(n not in (1, whole) for n, whole in zip(full, self.whole, strict=True)):
            return None
        return x if more == 0 else self.base.reshape(x, full)

    # ---------------------------------------------------------------- other operations

    def operator(self, name: str | None, definition: Callable[..., Any], /, *operands: Any, **attrs: Any) -> Any:
        own = self.base.own.get(name or "")
        if own is not None and not any(isinstance(x, LinearValue) for x in operands):
            found = own(self.base, *operands, **attrs)
            if found is not NotImplemented:
                return found
        return definition(self, *operands, **attrs)

    def shape(self, a: Any) -> Shape:
        return self.whole if isinstance(a, LinearValue) else self.base.shape(a)

    def dtype(self, a: Any) -> str:
        return self.base.dtype(self.start if isinstance(a, LinearValue) else a)

    def constant(self, value: Literal) -> Any:
        return self.base.constant(value)

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Any:
        return self.base.extents(values, scalar)

    def iota(self, n: Dim, dtype: str = "int64") -> Any:
        return self.base.iota(n, dtype)

    def cast(self, a: Any, dtype: str) -> Any:
        return a if isinstance(a, LinearValue) and dtype == self.dtype(a) else self.base.cast(self.plain(a), dtype)

    def cumulate(self, fn: np.ufunc, a: Any, axis: int) -> Any:
        return self.base.cumulate(fn, self.plain(a), axis)

    def reshape(self, a: Any, shape: Sequence[Dim]) -> Any:
        same = isinstance(a, LinearValue) and tuple(shape) == self.whole
        return a if same else self.base.reshape(self.plain(a), shape)

    def transpose(self, a: Any, perm: Sequence[int]) -> Any:
        return self.base.transpose(self.plain(a), perm)

    def expand(self, a: Any, shape: Sequence[Dim]) -> Any:
        same = isinstance(a, LinearValue) and tuple(shape) == self.whole
        return a if same else self.base.expand(self.plain(a), shape)

    def concat(self, xs: Sequence[Any], axis: int) -> Any:
        return self.base.concat([self.plain(x) for x in xs], axis)

    def slice(self, a: Any, axis: int, start: Dim, stop: Dim, step: int = 1) -> Any:
        return self.base.slice(self.plain(a), axis, start, stop, step)

    def pad(
        self, a: Any, low: Sequence[Dim], high: Sequence[Dim], value: float = 0, interior: Sequence[int] | None = None
    ) -> Any:
        return self.base.pad(self.plain(a), low, high, value, interior)

    def window(
        self, a: Any, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Any:
        return self.base.window(self.plain(a), axes, sizes, strides, dilations)

    def take(self, a: Any, indices: Any, axis: int) -> Any:
        return self.base.take(self.plain(a), self.plain(indices), axis)

    def take_along(self, a: Any, indices: Any, axis: int) -> Any:
        return self.base.take_along(self.plain(a), self.plain(indices), axis)

    def put(self, a: Any, places: Sequence[Any], updates: Any, fn: np.ufunc | None = None) -> Any:
        return self.base.put(self.plain(a), [self.plain(x) for x in places], self.plain(updates), fn)

    def each(self, n: int, fn: Callable[[int], Any]) -> list[Any]:
        return self.base.each(n, fn)

    def decided(self, fn: Callable[..., Any], operands: Sequence[Any], dtypes: Sequence[str]) -> Any:
        return self.base.decided(fn, [self.plain(x) for x in operands], dtypes)
