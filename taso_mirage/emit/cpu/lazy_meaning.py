"""The meaning that makes lazy tensors: each element of a result, before any loop is chosen
(Halide's algorithm, PLDI'13).

Where an operator only moves elements, nothing is computed: a `LoopView` changes indices. Loops are
chosen in `loop_schedule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from math import prod
from typing import Any

import numpy as np

from taso_mirage.emit.cpu.lazy_tensors import (
    LOWEST_FLOAT32,
    Axis,
    BufferSizes,
    Concat,
    Contract,
    CppBuffer,
    Flat,
    LoopConstant,
    LoopIota,
    LoopValue,
    LoopView,
    Map,
    Mapped,
    Reduce,
    Strides,
    base_value,
    contiguous,
    own_axes,
    view_of,
)
from taso_mirage.emit.cpu.mapped_tensors import parted, values_at
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, Symbolic, dim_product, gathered
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import Literal, Tensor, is_float, numpy_dtype, variable
from taso_mirage.meanings.base import Meaning, Scalar, contraction
from taso_mirage.meanings.functions import (
    ADD,
    DIVIDE,
    MAXIMUM,
    MULTIPLY,
    RECIPROCAL,
    SUBTRACT,
    WHERE,
    Function,
    function_of,
)
from taso_mirage.meanings.index_maps import IndexMap, IndexMapMeaning
from taso_mirage.meanings.shapes import SHAPES

_CONVERSIONS = {
    "float": "static_cast<float>({})",
    "bool": "{} != 0",
    "int64": "static_cast<int64_t>({})",
    "int32": "static_cast<int32_t>({})",
}
"""Conversions between the types of registers, by the result."""


@dataclass
class LazyMeaning(Meaning[LoopValue]):
    """Values are lazy tensors, all floats in fp32.

    `tables` collects constants that are no scalars, by their C++ name.
    """

    tables: dict[str, Literal] = field(default_factory=dict)

    def shape(self, a: LoopValue) -> Shape:
        return a.shape

    def dtype(self, a: LoopValue) -> str:
        return a.dtype

    def constant(self, value: Literal) -> LoopValue:
        if prod(value.shape) == 1:
            number = LoopConstant(value.dtype, (), float(value.numpy().reshape(())))
            return number if not value.shape else self.reshape(number, value.shape)
        name = next((n for n, v in self.tables.items() if v == value), f"table{len(self.tables)}")
        self.tables[name] = value
        return CppBuffer(value.dtype, value.shape, name, contiguous(value.shape))

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> LoopValue:
        if any(isinstance(n, Symbolic) for n in values):
            raise Unsupported(f"the sizes {tuple(values)}, which only a run knows, as numbers in a kernel")
        return self.constant(Literal.of(np.array(values[0] if scalar else list(values), np.int64)))

    def iota(self, n: Dim, dtype: str = "int64") -> LoopValue:
        return LoopIota(dtype, (n,))

    def map(self, fn: Scalar, *xs: LoopValue) -> LoopValue:
        function = function_of(fn)
        type = SHAPES.map(fn, *[Tensor(x.dtype, x.shape) for x in xs])
        if function is SUBTRACT and _is_maximum(xs[1]):
            # -inf - (-inf), if all elements so far are masked, must be -inf, which adds nothing to
            # a softmax
            xs = (xs[0], self.map(np.maximum, xs[1], LoopConstant(xs[1].dtype, (), LOWEST_FLOAT32)))
        fewer = usual_size(xs[-1].count) < usual_size(dim_product(type.shape or ()))
        if function is DIVIDE and is_float(type.dtype) and fewer:
            # one quotient, and a product for each element: one rounding more, but several times as
            # fast
            function, xs = MULTIPLY, (xs[0], Map(xs[1].dtype, xs[1].shape, RECIPROCAL, args=(xs[1],)))
        elif function is MULTIPLY and is_float(type.dtype):
            function, xs = _quotient(xs, type.shape or ())
        return self._mapped(function, type.dtype, type.shape or (), list(xs))

    def _mapped(self, fn: Function, dtype: str, shape: BufferSizes, xs: list[LoopValue]) -> LoopValue:
        whole = next((x for x in xs if isinstance(x, Concat)), None)
        if whole is None and fn is WHERE and isinstance(condition := base_value(xs[0]), LoopConstant):
            return _retyped(self.expand(xs[1] if condition.value else xs[2], shape), dtype)
        if whole is None:
            args = tuple([x if isinstance(x, LoopConstant) else self.expand(x, shape) for x in xs])
            return Map(dtype, shape, fn, args=args)
        axis = whole.axis - len(whole.shape) + len(shape)
        parts = []
        for part, start in zip(whole.args, whole.starts(), strict=True):
            size = part.shape[whole.axis]
            cut = [self._cut(x, axis - len(shape), start, start + size) for x in xs]
            parts.append(self._mapped(fn, dtype, (*shape[:axis], size, *shape[axis + 1 :]), cut))
        return Concat(dtype, shape, axis, args=tuple(parts))

    def _cut(self, x: LoopValue, back: int, start: Dim, stop: Dim) -> LoopValue:
        axis = len(x.shape) + back
        return x if axis < 0 or x.shape[axis] == 1 else self.slice(x, axis, start, stop)

    def cast(self, a: LoopValue, dtype: str) -> LoopValue:
        if isinstance(a, LoopConstant) and is_float(dtype):
            return LoopConstant(dtype, (), a.value)
        if a.dtype == dtype or (is_float(a.dtype) and is_float(dtype)):
            return _retyped(a, dtype)
        return Map(dtype, a.shape, _conversion(dtype), args=(a,))

    def contract(self, equation: str, a: LoopValue, b: LoopValue) -> LoopValue:
        letters = contraction(equation, len(a.shape), len(b.shape))
        type = SHAPES.contract(equation, Tensor(a.dtype, a.shape), Tensor(b.dtype, b.shape))
        for side, x in enumerate((a, b)):
            if isinstance(x, Concat) and all(isinstance(part, CppBuffer) for part in x.args):
                return self._contracted_parts(equation, letters, (a, b), side)
        return Contract(type.dtype, type.shape or (), letters, args=(a, b))

    def _contracted_parts(
        self, equation: str, letters: tuple[str, str, str], pair: tuple[LoopValue, LoopValue], side: int
    ) -> LoopValue:
        """The contraction of each part of an operand whose parts lie in memory, which is not
        copied: their sum, or side by side."""
        whole, other = pair[side], pair[1 - side]
        assert isinstance(whole, Concat)
        letter, at = letters[side][whole.axis], letters[1 - side].find(letters[side][whole.axis])
        parts: list[LoopValue] = []
        for part, start in zip(whole.args, whole.starts(), strict=True):
            own = other if at < 0 else self.slice(other, at, start, start + part.shape[whole.axis])
            parts.append(self.contract(equation, *((part, own) if side == 0 else (own, part))))
        if letter in letters[2]:
            return self.concat(parts, letters[2].index(letter))
        return reduce(partial(self.map, np.add), parts)

    def reduce(self, fn: np.ufunc, a: LoopValue, axes: Sequence[int], keepdims: bool = True) -> LoopValue:
        kept: BufferSizes = tuple(1 if i in axes else n for i, n in enumerate(a.shape))
        found = a
        if axes:
            product = self._product(a, tuple(axes), kept) if function_of(fn) is ADD else None
            found = product or Reduce(a.dtype, kept, function_of(fn), tuple(axes), args=(a,))
        return found if keepdims else self.reshape(found, [n for i, n in enumerate(a.shape) if i not in axes])

    def _product(self, a: LoopValue, axes: Strides, kept: BufferSizes) -> LoopValue | None:
        """A sum of products of a tensor in memory with one that lacks one of its axes, as a
        contraction: a matrix times a vector."""
        if not is_float(a.dtype):
            return None
        if isinstance(a, Concat):
            return self._products(a, axes)
        factors = list(factors_of(a))
        wide = {i for i, n in enumerate(a.shape) if n != 1}
        large = [x for x in factors if wide <= varying_axes(x, a.shape)]
        others = [x for x in factors if x not in large]
        seen = set[int]().union(*[varying_axes(x, a.shape) for x in others])
        known = len(large) == 1 and isinstance(base_value(large[0]), (CppBuffer, Mapped))
        if not known or not wide & set(axes) <= seen or wide <= seen or not wide & set(axes):
            return None
        small = others[0]
        for x in others[1:]:
            small = self.map(np.multiply, small, x)
        few = self.reshape(_along(self.expand(small, a.shape), seen), [a.shape[i] for i in sorted(seen)])
        names = "".join(chr(ord("a") + i) for i in range(len(kept)))
        letters = (
            "".join(names[i] for i in sorted(seen)),
            names,
            "".join(n for i, n in enumerate(names) if i not in axes),
        )
        shape = tuple(n for i, n in enumerate(a.shape) if i not in axes)
        pair = Contract(a.dtype, shape, letters, args=(few, large[0]))
        return self.reshape(pair, kept)

    def _products(self, a: Concat, axes: Strides) -> LoopValue | None:
        """The contraction of each part, side by side or their sum, if one of them is one."""
        kept = [tuple([1 if i in axes else n for i, n in enumerate(part.shape)]) for part in a.args]
        found = [self._product(part, axes, shape) for part, shape in zip(a.args, kept, strict=True)]
        if not any(found):
            return None
        sums = [
            product or Reduce(a.dtype, shape, ADD, axes, args=(part,))
            for product, part, shape in zip(found, a.args, kept, strict=True)
        ]
        return reduce(partial(self.map, np.add), sums) if a.axis in axes else self.concat(sums, a.axis)

    def reshape(self, a: LoopValue, shape: Sequence[Dim]) -> LoopValue:
        want = tuple(shape)
        if want == a.shape:
            return a
        if isinstance(a, Concat) and (at := _same_axis(a.shape, want, a.axis)) is not None:
            sizes = [(*want[:at], part.shape[a.axis], *want[at + 1 :]) for part in a.args]
            return Concat(a.dtype, want, at, args=tuple(map(self.reshape, a.args, sizes)))
        axes = _split(a.shape, want)
        return Flat(a.dtype, want, args=(a,)) if axes is None else view_of(a, want, axes)

    def transpose(self, a: LoopValue, perm: Sequence[int]) -> LoopValue:
        shape = tuple(a.shape[i] for i in perm)
        if isinstance(a, Concat):
            parts = tuple(self.transpose(part, perm) for part in a.args)
            return Concat(a.dtype, shape, list(perm).index(a.axis), args=parts)
        return view_of(a, shape, [(0, ((list(perm).index(i), 1),)) for i in range(len(shape))])

    def expand(self, a: LoopValue, shape: Sequence[Dim]) -> LoopValue:
        want = tuple(shape)
        if want == a.shape:
            return a
        lead = len(want) - len(a.shape)
        if isinstance(a, Concat) and a.shape[a.axis] == want[a.axis + lead]:
            sizes = [(*want[: a.axis + lead], p.shape[a.axis], *want[a.axis + lead + 1 :]) for p in a.args]
            parts = tuple(self.expand(p, s) for p, s in zip(a.args, sizes, strict=True))
            return Concat(a.dtype, want, a.axis + lead, args=parts)
        return view_of(a, want, [(0, () if n == 1 else ((i + lead, 1),)) for i, n in enumerate(a.shape)])

    def concat(self, xs: Sequence[LoopValue], axis: int) -> LoopValue:
        type = SHAPES.concat([Tensor(x.dtype, x.shape) for x in xs], axis)
        return xs[0] if len(xs) == 1 else Concat(type.dtype, type.shape or (), axis, args=tuple(xs))

    def slice(self, a: LoopValue, axis: int, start: Dim, stop: Dim, step: int = 1) -> LoopValue:
        type = SHAPES.slice(Tensor(a.dtype, a.shape), axis, start, stop, step)
        shape = type.shape or ()
        if shape == a.shape and step == 1:
            return a
        if isinstance(a, Concat) and a.axis != axis:
            return Concat(a.dtype, shape, a.axis, args=tuple([self.slice(p, axis, start, stop, step) for p in a.args]))
        if isinstance(a, Concat) and step == 1 and (parts := self._parts_between(a, start, stop)):
            return self.concat(parts, axis)
        axes = list(own_axes(shape))
        axes[axis] = start, ((axis, step),)
        return view_of(a, shape, axes)

    def _parts_between(self, a: Concat, start: Dim, stop: Dim) -> list[LoopValue]:
        """The parts of a tensor between two places along its axis; none where they depend on the
        values of sizes."""
        starts, axis = [*a.starts(), a.shape[a.axis]], a.axis
        if start in starts and stop in starts:
            return list(a.args[starts.index(start) : starts.index(stop)])
        parts: list[LoopValue] = []
        for part, at in zip(a.args, starts, strict=False):
            low, high, size = start - at, stop - at, part.shape[axis]
            if not (isinstance(low, int) and isinstance(high, int) and isinstance(size, int)):
                return []
            low, high = max(low, 0), min(high, size)
            parts += [self.slice(part, axis, low, high)] if low < high else []
        return parts

    def pad(
        self,
        a: LoopValue,
        low: Sequence[Dim],
        high: Sequence[Dim],
        value: float = 0,
        interior: Sequence[int] | None = None,
    ) -> LoopValue:
        return self._moved(lambda m, x: m.pad(x, low, high, value, interior), a)

    def window(
        self, a: LoopValue, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> LoopValue:
        return self._moved(lambda m, x: m.window(x, axes, sizes, strides, dilations), a)

    def take(self, a: LoopValue, indices: LoopValue, axis: int) -> LoopValue:
        return self._moved(lambda m, x, rows: m.take(x, rows, axis), a, indices)

    def take_along(self, a: LoopValue, indices: LoopValue, axis: int) -> LoopValue:
        return self._moved(lambda m, x, rows: m.take_along(x, rows, axis), a, indices)

    def _moved(self, move: Callable[..., IndexMap], *args: LoopValue) -> LoopValue:
        """The elements of a primitive that moves those of its operands, by its index map."""
        nodes = [variable(f"x{i}", Tensor(x.dtype, x.shape)) for i, x in enumerate(args)]
        meaning = IndexMapMeaning()
        found, sources = move(meaning, *map(meaning.leaf, nodes)), dict(zip(nodes, args, strict=True))
        if found.rows:  # no variable of the kernel has them
            return Mapped(found.dtype, found.shape, found, args=tuple([sources[node] for node in found.sources]))
        return parted(found, range(len(found.shape)), lambda part: values_at(part, sources))

    def __getattribute__(self, name: str) -> Any:
        if name in ("cumulate", "put"):
            raise Unsupported(f"the primitive {name} has no C++ in a kernel; keep its operator outside of kernels")
        return super().__getattribute__(name)


@cache
def _conversion(dtype: str) -> Function:
    """The conversion of an element to a dtype, as a function."""
    kind = "float" if is_float(dtype) else dtype
    return Function(f"cast:{kind}", numpy_dtype(dtype).type, cpp=_CONVERSIONS.get(kind, ""))


def _retyped(a: LoopValue, dtype: str) -> LoopValue:
    return a if a.dtype == dtype else LoopView(dtype, a.shape, own_axes(a.shape), args=(a,))


def _split(have: BufferSizes, want: BufferSizes) -> list[Axis] | None:
    """The view that a reshape is, where each of its axes is a part of one axis; None where it
    merges axes."""
    groups = gathered(want, have)
    if groups is None:
        return None
    return [(0, tuple((i, dim_product(want[i + 1 : own.stop])) for i in own if want[i] != 1)) for own in groups]


def _same_axis(have: BufferSizes, want: BufferSizes, axis: int) -> int | None:
    """The axis of a reshape's result that is an axis of its operand, with the same elements before
    and after it."""
    before, n = dim_product(have[:axis]), have[axis]
    return next((i for i, m in enumerate(want) if m == n and dim_product(want[:i]) == before), None)


def _quotient(xs: Sequence[LoopValue], shape: BufferSizes) -> tuple[Function, tuple[LoopValue, ...]]:
    """x * (1 / y) as x / y, which has one rounding less, where both have all elements."""
    for x, over in (xs, xs[::-1]):
        if isinstance(over, Map) and over.fn is DIVIDE and over.shape == x.shape == shape:
            one, below = over.args
            if isinstance(one, LoopConstant) and one.value == 1:
                return DIVIDE, (x, below)
    return MULTIPLY, tuple(xs)


def factors_of(value: LoopValue) -> Iterator[LoopValue]:
    """The factors of a value, element by element."""
    if isinstance(value, Map) and value.fn is MULTIPLY:
        for operand in value.args:
            yield from factors_of(operand)
    else:
        yield value


def varying_axes(value: LoopValue, shape: BufferSizes) -> set[int]:
    """The axes of `shape` along which a factor may vary."""
    if isinstance(value, LoopConstant):
        return set()
    if isinstance(value, LoopView):
        return {axis for _, terms in value.axes for axis, _ in terms}
    if isinstance(value, Map):
        return set[int]().union(*[varying_axes(x, shape) for x in value.args])
    return {i for i, n in enumerate(shape) if n != 1}


def _along(value: LoopValue, axes: set[int]) -> LoopValue:
    """The first element along all other axes."""
    shape = tuple(n if i in axes else 1 for i, n in enumerate(value.shape))
    return view_of(value, shape, own_axes(shape))


def _is_maximum(value: LoopValue) -> bool:
    value = base_value(value)
    return (isinstance(value, Reduce) and value.fn is MAXIMUM) or (
        isinstance(value, CppBuffer) and value.name.startswith("largest")
    )
