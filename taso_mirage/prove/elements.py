"""The meaning `elements`: one element of a tensor at a symbolic index, as a normal form
(TensorRight's denotation).

A value is a shape and a function from an index to cases: conditions on the index, and the scalar
there. So equality of one element at an index of symbols is equality of the tensors, at every size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product as combinations
from math import inf, isfinite
from typing import Any

import numpy as np

from taso_mirage.ir.dims import Dim, Shape, dim_product
from taso_mirage.ir.terms import Literal, Tensor, is_float
from taso_mirage.meanings.base import Meaning, Scalar, contraction
from taso_mirage.meanings.conditions import Conditions, Unprovable, index_names
from taso_mirage.meanings.functions import Function, function_of
from taso_mirage.meanings.indices import Indices
from taso_mirage.meanings.polynomials import LEAST, MOST, ONE, ZERO, Poly, infinite
from taso_mirage.meanings.shapes import SHAPES
from taso_mirage.prove import folds, machine, maxima
from taso_mirage.prove.cases import (
    Cases,
    Element,
    broadcast_index,
    cases_where,
    decided,
    finite,
    merged_cases,
    numeral,
    smallest_ranges,
)
from taso_mirage.prove.cases import under_conditions as under
from taso_mirage.prove.elementwise import converted, normal_form, reshaped
from taso_mirage.prove.scalars import Scalars
from taso_mirage.prove.updates import UpdatedElement

_Index = tuple[Dim, ...]
CASES = 300
_EMPTY = {"sum": ZERO, "prod": ONE, "max": LEAST, "min": MOST}


class Elements(Meaning[Element]):
    """The meaning `elements`, one instance per proof.

    `unroll`: the largest number of points over which a fold is expanded. `fewest`: the smallest
    fixed range of a fold with cases.
    """

    def __init__(self, budget: int = 200_000, unroll: int = 0) -> None:
        self.indices = Indices(budget)
        self.algebra = Scalars(self.indices)
        self._where = partial(cases_where, self.indices)
        self.unroll = unroll
        self.fewest = inf
        self.partial = False
        """Whether something was mapped that has no value at some operands."""

    def leaf(self, name: str, type: Tensor) -> Element:
        """An input or weight: arbitrary finite elements."""
        key = (type.dtype, name)
        return Element(type, lambda index: (((), self.algebra.poly("read", key, index)),))

    def shape(self, a: Element) -> Shape:
        return a.shape

    def dtype(self, a: Element) -> str:
        return a.type.dtype

    # ------------------------------------------------------------ constants

    def constant(self, value: Literal) -> Element:
        array = value.numpy()
        type = Tensor(value.dtype, value.shape)
        if array.size and bool((array == array.flat[0]).all()):
            scalar = machine.reduced(self.algebra, numeral(array.flat[0]), value.dtype)
            return Element(type, lambda index: (((), scalar),))
        key = (value.dtype, value)

        def read(index: _Index) -> Cases:
            if all(isinstance(i, int) for i in index):
                return (((), numeral(array[tuple(int(i) for i in index)])),)
            if not all(isfinite(float(v)) for v in array.flat):
                raise Unprovable("a constant with elements that are not finite")
            return (((), self.algebra.poly("read", key, index)),)

        return Element(type, read)

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Element:
        dims = list(values)

        def read(index: _Index) -> Cases:
            if index and not isinstance(index[0], int):
                raise Unprovable("a size at an index that is not fixed")
            return (((), self.algebra.of_dim(dims[int(index[0])] if index else dims[0])),)

        return Element(Tensor("int64", () if scalar else (len(dims),)), read)

    def iota(self, n: Dim, dtype: str = "int64") -> Element:
        def read(index: _Index) -> Cases:
            at = self.algebra.of_dim(index[0])
            if is_float(dtype) and not machine.representable(self.algebra, at, dtype):
                raise Unprovable(f"{dtype} counts to less than {n}")
            return (((), at),)

        return Element(Tensor(dtype, (n,)), read)

    def count(self, a: Element, axes: Sequence[int]) -> Element:
        """The count of a mean. As a float it is the divisor of a sum, which is not rounded by a
        conversion."""
        if not is_float(a.type.dtype):
            return super().count(a, axes)
        found = self.algebra.of_dim(dim_product(a.shape[i] for i in axes))
        return Element(Tensor(a.type.dtype, ()), lambda index: (((), found),))

    # ------------------------------------------------------------ elementwise

    def map(self, fn: Scalar, *xs: Element) -> Element:
        type = SHAPES.map(fn, *[x.type for x in xs])
        function, whole = function_of(fn), type.shape or ()
        self.partial = self.partial or self.outside(function, whole, xs) is not None

        def read(index: _Index) -> Cases:
            operands = [x.at(broadcast_index(index, whole, x.shape)) for x in xs]
            return self.combined(operands, lambda ps: normal_form(self.algebra, function, x_types, ps, type.dtype))

        x_types = [machine.modelled_dtype(x.type.dtype) for x in xs]
        return Element(type, read)

    def outside(self, function: Function, whole: Shape, xs: Sequence[Element]) -> Element | None:
        """A flag that is 1 where a function is applied outside of its domain. None if it is 0
        everywhere, which is frequent: most divisors are sizes, and most roots are of sums of
        squares."""
        undefined = function.undefined
        if undefined is None or 0 in whole:
            return None
        decisive = [xs[i] for i in function.decisive or range(len(xs))]
        dtypes = [x.type.dtype for x in decisive]

        def flag(ps: list[Poly]) -> Cases:
            if any(infinite(p) for p in ps):
                return (((), ZERO),)
            return (((), undefined(self.algebra, *machine.values(self.algebra, ps, dtypes))),)

        def read(index: _Index) -> Cases:
            return self.combined([x.at(broadcast_index(index, whole, x.shape)) for x in decisive], flag)

        try:
            everywhere = read(tuple(map(self.indices.fresh, whole)))
        except Unprovable:  # at fixed sizes a fold over cases has no form for a symbolic index
            everywhere = (((), ONE),)
        clear = all(not p.terms for _, p in everywhere)
        return None if clear else Element(Tensor("float32", whole), read)

    def combined(self, operands: Sequence[Cases], fn: Callable[[list[Poly]], Cases]) -> Cases:
        """`fn` on every combination of cases that can hold together."""
        found: list[tuple[Conditions, Poly]] = []
        for pieces in combinations(*operands):
            given: Conditions | None = ()
            for conditions, _ in pieces:
                given = self.indices.joined(given, conditions) if given is not None else None
            if given is None:
                continue
            for more, value in fn([p for _, p in pieces]):
                joined = self.indices.joined(given, more)
                if joined is not None:
                    found.append((joined, value))
            if len(found) > CASES:  # simplified early, because the number of cases is a product
                raise Unprovable(f"more than {CASES} cases")
        return merged_cases(found)

    def cast(self, a: Element, dtype: str) -> Element:
        type = Tensor(dtype, a.shape)
        return Element(
            type,
            lambda index: self.combined([a.at(index)], lambda ps: converted(self.algebra, ps[0], a.type.dtype, dtype)),
        )

    # ------------------------------------------------------------ folds

    def contract(self, equation: str, a: Element, b: Element) -> Element:
        type = SHAPES.contract(equation, a.type, b.type)
        letters_a, letters_b, result = contraction(equation, len(a.shape), len(b.shape))
        extents: dict[str, Dim] = {}
        for letter, n in [*zip(letters_a, a.shape, strict=True), *zip(letters_b, b.shape, strict=True)]:
            extents[letter] = n if extents.get(letter, 1) == 1 else extents[letter]
            if n not in (1, extents[letter]):
                raise Unprovable(f"dims {n} and {extents[letter]} broadcast only at some sizes")
        if type.dtype == "bool":
            raise Unprovable("a sum of booleans")
        bound = [c for c in extents if c not in result]

        def read(index: _Index) -> Cases:
            def inner(place: dict[str, Dim]) -> Cases:
                at = [
                    tuple(0 if n == 1 else place[c] for c, n in zip(letters, x.shape, strict=True))
                    for letters, x in ((letters_a, a), (letters_b, b))
                ]
                return self.combined([a.at(at[0]), b.at(at[1])], lambda ps: (((), self.algebra.mul(*finite(ps))),))

            found = self._folded("sum", bound, extents, dict(zip(result, index, strict=True)), inner)
            return self._modular(found, type.dtype)

        return Element(type, read)

    def reduce(self, fn: np.ufunc, a: Element, axes: Sequence[int], keepdims: bool = True) -> Element:
        type = SHAPES.reduce(fn, a.type, axes, keepdims)
        axes = list(axes)
        extents = {f"r{i}": a.shape[i] for i in axes}
        fold = function_of(fn).fold
        if fold is None or (fn is np.add and machine.modelled_dtype(a.type.dtype) == "bool"):
            raise Unprovable(f"a fold with {function_of(fn).name}")
        kind = fold.kind
        ordered = fn in (np.maximum, np.minimum)

        def read(index: _Index) -> Cases:
            rest = [v for i, v in enumerate(index) if i not in axes] if keepdims else list(index)

            def inner(place: dict[str, Dim]) -> Cases:
                others = iter(rest)
                found = a.at(tuple(place[f"r{i}"] if i in axes else next(others) for i in range(len(a.shape))))
                return self._seen(found, a.type.dtype) if ordered else found

            return self._modular(self._folded(kind, list(extents), extents, {}, inner), a.type.dtype)

        return Element(type, read)

    def cumulate(self, fn: np.ufunc, a: Element, axis: int) -> Element:
        if fn is not np.add or a.type.dtype == "bool":
            raise Unprovable(f"a running fold with {function_of(fn).name}")

        def read(index: _Index) -> Cases:
            def inner(place: dict[str, Dim]) -> Cases:
                inside = index[axis] - place["r"]
                found = a.at((*index[:axis], place["r"], *index[axis + 1 :]))
                return self.combined(
                    [found, self._case(inside, ONE, ZERO)], lambda ps: (((), self.algebra.mul(*finite(ps))),)
                )

            return self._modular(self._folded("sum", ["r"], {"r": a.shape[axis]}, {}, inner), a.type.dtype)

        return Element(a.type, read)

    def _seen(self, cases: Cases, dtype: str) -> Cases:
        return tuple((c, machine.wrapped_value(self.algebra, p, dtype)) for c, p in cases)

    def _modular(self, cases: Cases, dtype: str) -> Cases:
        found = ((c, machine.reduced(self.algebra, p, dtype)) for c, p in cases)
        return tuple((c, machine.counted_float(self.algebra, p, dtype)) for c, p in found)

    def _folded(
        self,
        kind: str,
        bound: list[str],
        extents: dict[str, Dim],
        place: dict[str, Dim],
        inner: Callable[[dict[str, Dim]], Cases],
    ) -> Cases:
        few = smallest_ranges(bound, extents, self.unroll)
        if few:
            points = combinations(*[range(int(extents[b])) for b in few])
            places = [{**place, **dict(zip(few, p, strict=True))} for p in points]
            self.indices.step(len(places))
            rest = [b for b in bound if b not in few]
            every = [self._folded(kind, rest, extents, p, inner) if rest else inner(p) for p in places]
            if any(len(each) != 1 or each[0][0] for each in every):
                raise Unprovable("a distinction of cases at fixed sizes")
            return (((), self._unrolled(kind, [each[0][1] for each in every])),)
        if any(extents[b] == 0 for b in bound):
            return (((), _EMPTY[kind]),)
        fresh = {b: self.indices.fresh(extents[b]) for b in bound}
        cases = inner({**place, **fresh})
        mine = [str(v) for v in fresh.values() if not isinstance(v, int)]
        ranges = [n for b in bound if isinstance(n := extents[b], int)]
        self.fewest = min(self.fewest, *ranges, inf) if any(c for c, _ in cases) else self.fewest
        return self._hoisted(cases, mine, lambda pieces: self._fold(kind, mine, pieces))

    def _unrolled(self, kind: str, ps: list[Poly]) -> Poly:
        if kind in ("max", "min"):
            return self._extreme(kind, [((), (), p) for p in ps])
        if kind == "sum":
            return self.algebra.added(finite(ps))
        total = ONE
        for p in finite(ps):
            total = self.algebra.mul(total, p)
        return total

    def _fold(self, kind: str, bound: list[str], pieces: Cases) -> Poly:
        if kind in ("max", "min"):
            return self._extreme(kind, [(tuple(bound), c, p) for c, p in pieces])
        if kind == "prod" and any(c for c, _ in pieces):
            raise Unprovable("a product with cases")
        total = ZERO
        for conditions, p in pieces:
            total = total + folds.fold(self.algebra, kind, bound, conditions, finite([p])[0])
        return total

    def _extreme(self, kind: str, branches: list[Any]) -> Poly:
        ignored, sign = (LEAST, 1) if kind == "max" else (MOST, -1)
        if any(infinite(p) and p is not ignored for _, _, p in branches):
            raise Unprovable("an infinite element wins")
        finite = [(b, c, p.scaled(sign)) for b, c, p in branches if p is not ignored]
        found = maxima.largest(self.algebra, finite)
        return ignored if found is LEAST else found.scaled(sign)

    def _hoisted(self, cases: Cases, bound: list[str], fn: Callable[[Cases], Poly]) -> Cases:
        """Conditions without bound integers become cases of the result."""
        free = list(dict.fromkeys(e for c, _ in cases for e in c if index_names(e).isdisjoint(bound)))
        found: list[tuple[Conditions, Poly]] = []

        def split(given: Conditions, left: list[Dim], pieces: Cases) -> None:
            if not left:
                found.extend(decided(self.indices, given, fn(pieces)))
                if len(found) > CASES:
                    raise Unprovable(f"more than {CASES} cases")
                return
            e, *others = left
            for condition in (e, -e - 1):
                joined = self.indices.joined(given, [condition])
                if joined is not None:
                    split(joined, others, under(self.indices, joined, pieces, free))

        split((), free, cases)
        return merged_cases(found)

    # ------------------------------------------------------------ structure

    def reshape(self, a: Element, shape: Sequence[Dim]) -> Element:
        place = reshaped(self.indices, a.shape, tuple(shape))
        return Element(Tensor(a.type.dtype, tuple(shape)), lambda index: a.at(place(index)))

    def transpose(self, a: Element, perm: Sequence[int]) -> Element:
        order = [list(perm).index(i) for i in range(len(perm))]
        return Element(SHAPES.transpose(a.type, perm), lambda index: a.at(tuple(index[i] for i in order)))

    def expand(self, a: Element, shape: Sequence[Dim]) -> Element:
        whole = tuple(shape)
        return Element(Tensor(a.type.dtype, whole), lambda index: a.at(broadcast_index(index, whole, a.shape)))

    def concat(self, xs: Sequence[Element], axis: int) -> Element:
        def read(index: _Index) -> Cases:
            found: list[tuple[Conditions, Poly]] = []
            start: Dim = 0
            for i, x in enumerate(xs):
                at, n = index[axis] - start, x.shape[axis]
                inside = [at] * (i > 0) + [n - 1 - at] * (i < len(xs) - 1)
                found += self._where(inside, partial(x.at, (*index[:axis], at, *index[axis + 1 :])))
                start = start + n
            return tuple(found)

        return Element(SHAPES.concat([x.type for x in xs], axis), read)

    def _case(self, condition: Dim, yes: Poly, no: Poly) -> Cases:
        return *self._where([condition], lambda: (((), yes),)), *self._where([-condition - 1], lambda: (((), no),))

    def slice(self, a: Element, axis: int, start: Dim, stop: Dim, step: int = 1) -> Element:
        def read(index: _Index) -> Cases:
            return a.at((*index[:axis], index[axis] * step + start, *index[axis + 1 :]))

        return Element(SHAPES.slice(a.type, axis, start, stop, step), read)

    def pad(
        self,
        a: Element,
        low: Sequence[Dim],
        high: Sequence[Dim],
        value: float = 0,
        interior: Sequence[int] | None = None,
    ) -> Element:
        type = SHAPES.pad(a.type, low, high, value, interior)
        inner = list(interior or [0] * len(a.shape))
        fill = ((), machine.filling(self.algebra, value, a.type.dtype))

        def read(index: _Index) -> Cases:
            found: list[tuple[Conditions, Poly]] = []
            place = list(index)
            given: list[Dim] = []
            for axis, (p, q, between, n) in enumerate(zip(low, high, inner, a.shape, strict=True)):
                if p == 0 and q == 0 and between == 0:
                    continue
                at = index[axis] - p
                place[axis] = self.indices.divide(at, between + 1)
                tests = [at, (n - 1) * (between + 1) - at]
                tests += [place[axis] * (between + 1) - at] if between else []
                for i, test in enumerate(tests):
                    found += self._where([*given, *tests[:i], -test - 1], lambda: (fill,))
                given += tests
            return (*found, *self._where(given, lambda: a.at(tuple(place))))

        return Element(type, read)

    def window(
        self, a: Element, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Element:
        rank = len(a.shape)
        rows = list(zip(axes, strides, dilations, strict=True))

        def read(index: _Index) -> Cases:
            place = list(index[:rank])
            for k, (axis, stride, dilation) in enumerate(rows):
                place[axis] = place[axis] * stride + index[rank + k] * dilation
            return a.at(tuple(place))

        return Element(SHAPES.window(a.type, axes, sizes, strides, dilations), read)

    def take(self, a: Element, indices: Element, axis: int) -> Element:
        width = len(indices.shape)

        def read(index: _Index) -> Cases:
            before, chosen, after = index[:axis], index[axis : axis + width], index[axis + width :]
            return self._looked(
                self._seen(indices.at(chosen), indices.type.dtype),
                a.shape[axis],
                lambda at: a.at((*before, at, *after)),
            )

        return Element(SHAPES.take(a.type, indices.type, axis), read)

    def take_along(self, a: Element, indices: Element, axis: int) -> Element:
        def read(index: _Index) -> Cases:
            clean = tuple(0 if n == 1 and i != axis else v for i, (v, n) in enumerate(zip(index, a.shape, strict=True)))
            chosen = self._seen(indices.at(index), indices.type.dtype)
            return self._looked(chosen, a.shape[axis], lambda at: a.at((*clean[:axis], at, *clean[axis + 1 :])))

        return Element(SHAPES.take_along(a.type, indices.type, axis), read)

    def put(self, a: Element, places: Sequence[Element], updates: Element, fn: np.ufunc | None = None) -> Element:
        dtype = a.type.dtype
        types, function = [machine.modelled_dtype(dtype)] * 2, function_of(fn or np.add)

        def folded(old: Cases, new: Cases) -> Cases:
            return self.combined([old, new], lambda ps: normal_form(self.algebra, function, types, ps, dtype))

        return Element(a.type, UpdatedElement(self.algebra, a, places, updates, folded if fn else None).read)

    def _looked(self, chosen: Cases, extent: Dim, read: Callable[[Dim], Cases]) -> Cases:
        found: list[tuple[Conditions, Poly]] = []
        for conditions, p in chosen:
            found += self._where(conditions, partial(read, self.algebra.position(p, extent)))
        return tuple(found)
