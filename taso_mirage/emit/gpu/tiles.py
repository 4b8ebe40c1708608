"""The meaning `tiles`: the primitives in Triton, as lines of source over tiles in registers.

Every operator of a body is compiled by its own definition, so none is listed here. A tile has one
axis in registers for each of its dims that are not 1 and along which elements differ; computed
values are fp32, loaded ones stay as stored until they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from taso_mirage.emit.gpu.axes import TileAxes
from taso_mirage.emit.gpu.lines import Lines
from taso_mirage.emit.statements import Expression, ExpressionLike, every, expression, tl, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, broadcast_shapes, dim_product
from taso_mirage.ir.mugraph import LoopPhase, product_factor
from taso_mirage.ir.terms import Literal, is_float, is_stored
from taso_mirage.meanings.base import Meaning, Scalar, contraction
from taso_mirage.meanings.functions import ADD, DIVIDE, EXP, POWER, SUBTRACT, WHERE, Fold, Function, function_of

HALF_FLOATS = frozenset({"float16", "bfloat16"})
LOG2_E = 1.4426950408889634
MAXIMUM_START = -3.4028234663852886e38
"""The start of a running maximum: finite, so that a row that is masked so far has no NaN, and not
larger than any finite element."""


@dataclass(frozen=True, slots=True)
class Tile:
    """`code` is a name or a number; `axes` has None where the size is 1 or all elements along it
    are equal."""

    code: str
    shape: Shape
    axes: tuple[int | None, ...]
    dtype: str
    """The model's dtype; `stored` is that of the registers."""
    stored: str
    stage: LoopPhase = LoopPhase.INVARIANT
    zero: bool = False  # whether the lanes beyond the sizes hold 0
    number: float | None = None
    fold: tuple[Function, Tile, tuple[int, ...]] | None = None
    """The function, operand and axes of a fold that is not written yet: an accumulator may delay it
    until after the loop."""
    together: tuple[int, int] | None = None  # an axis of a loaded tile, and its least neighbours in a thread
    innermost: int | None = None  # the axis of a loaded tile that is contiguous in memory

    @property
    def present(self) -> list[int]:
        return [a for a in self.axes if a is not None]


def known_count(counts: Sequence[Dim]) -> int:
    """The number of elements in some dims together."""
    found = dim_product(counts)
    if not isinstance(found, int):
        raise Unsupported(f"{found} elements, which a run alone knows, as a number in a kernel")
    return found


Product: TypeAlias = "Callable[[Tiles, Tile, Tile, str, str, str], Tile]"


def folded(function: Function) -> Fold:
    """Triton's fold with a function."""
    if function.fold is None or not function.fold.triton:
        raise Unsupported(f"a fold of {function.name} in a kernel")
    return function.fold


class Tiles(Meaning[Tile]):
    """The meaning that writes into `lines`; `hint` names the written value.

    `product` makes contractions: an einsum of two tiles, by their letters.
    """

    def __init__(self, axes: TileAxes, lines: Lines, product: Product) -> None:
        self.axes_of, self.lines, self.hint, self._product = axes, lines, "v", product
        self.differences: dict[tuple[str, tuple[int | None, ...]], tuple[Tile, Tile]] = {}
        """The operands of the differences: e to the power of one takes one multiplication, one
        difference and one power of 2."""
        self.raised: dict[str, Callable[[int], Expression]] = {}
        """Integers in half precision that were made with a number that is still to be taken away,
        and the code of them less another one, which is taken away with it."""
        self.goes_on, self.narrow, self.rows, self.single = False, False, 0, ""
        """Whether it goes on to another product, whether a product has the fewest rows or columns,
        the least rows of one that goes on, the first of PRECISIONS."""
        self.notes: list[str] = []  # why products are computed as they are

    def shape(self, a: Tile) -> Shape:
        return a.shape

    def dtype(self, a: Tile) -> str:
        return "float32" if is_float(a.dtype) else a.dtype  # so that constants are not rounded to the model's dtype

    # ------------------------------------------------------------ numbers

    def constant(self, value: Literal) -> Tile:
        array = value.numpy()
        if array.size == 0 or np.any(array != array.reshape(-1)[0]):
            raise Unsupported(f"a constant of different elements, {value.dtype}{list(value.shape)}; make it an operand")
        return self._number(float(array.reshape(-1)[0]), value.dtype, value.shape)

    def _number(self, number: float, dtype: str, shape: Shape) -> Tile:
        shown = repr(number if is_float(dtype) else int(number))
        code = f'float("{shown}")' if shown in ("inf", "-inf", "nan") else f"({shown})" if number < 0 else shown
        return Tile(code, shape, (None,) * len(shape), dtype, dtype, zero=number == 0, number=number)

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Tile:
        if scalar and not isinstance(values[0], int):  # an argument of the kernel
            return Tile(product_factor(values[0]), (), (), "int64", "int32")
        if len({*values}) != 1 or not isinstance(values[0], int):
            raise Unsupported(f"the vector of sizes {tuple(values)} in a kernel")
        return self._number(float(values[0]), "int64", () if scalar else (len(values),))

    def iota(self, n: Dim, dtype: str = "int64") -> Tile:
        if not isinstance(n, int):
            raise Unsupported(f"the numbers below {n}, which a run alone knows, in a kernel")
        axis = self.axes_of.fresh(n)
        return Tile(self.lines.lanes(self.axes_of.lanes(axis)), (n,), (axis,), dtype, "int32")

    # ------------------------------------------------------------ elements

    def map(self, fn: Scalar, *xs: Tile) -> Tile:
        function = function_of(fn)
        shape = broadcast_shapes(*[x.shape for x in xs])
        values = xs[1:] if function is WHERE else xs
        dtype = "bool" if function.tests else next((x.dtype for x in values if x.number is None), values[0].dtype)
        numbers = [x.number for x in xs]
        if None not in numbers:
            with np.errstate(all="ignore"):
                return self._number(float(fn(*_numbers(xs))), dtype, shape)
        if function is POWER:
            return self._power(xs[0], xs[1])
        if not function.triton:
            raise Unsupported(f"Triton has no {function.name} here; add it to the function's record")
        if function is SUBTRACT and (less := self._less(*xs)) is not None:
            return less
        xs = tuple(self.computed(x) for x in xs)
        axes = self.common(shape, xs)
        if function is EXP and (power := self._power_of_two(xs[0], axes)) is not None:
            code = power
        elif function is DIVIDE and (inverse := self._inverse(xs[1], axes)) is not None:
            code = self.spread(xs[0], axes) * self.spread(inverse, axes)
        else:
            code = expression(function.triton.format(*[self.spread(x, axes) for x in xs]))
        chosen = next((x.stored for x in values if x.number is None), "") if function is WHERE else ""
        stored = "bool" if dtype == "bool" else chosen or self._computed_as(dtype)
        stage = max(x.stage for x in xs)
        name = self.lines.let(stage, self.hint, code)
        zero, together = self._keeps_zero(fn, xs, axes), next((x.together for x in xs if x.together), None)
        found = Tile(name, shape, axes, dtype, stored, stage, zero, together=together)
        if function is SUBTRACT:
            self.differences[found.code, found.axes] = xs[0], xs[1]
        return found

    def _less(self, x: Tile, y: Tile) -> Tile | None:
        """The difference of raised integers and a number: the raise and the number are subtracted
        at once."""
        if x.code not in self.raised or y.number is None or not 0 <= y.number <= 255 or y.number % 1:
            return None
        return replace(x, code=self.lines.let(x.stage, self.hint, self.raised[x.code](int(y.number))), zero=False)

    def _inverse(self, y: Tile, axes: Sequence[int | None]) -> Tile | None:
        """The reciprocal 1 / y, if y has fewer elements than a quotient: for float16, whose numbers
        all have a reciprocal in float32 (1e-39 has none)."""
        if y.number is not None or y.dtype != "float16" or len(y.present) >= len([a for a in axes if a is not None]):
            return None
        return replace(y, code=self.lines.let(y.stage, f"{y.code}_inverse", 1.0 / v[y.code]))

    def _power_of_two(self, x: Tile, axes: Sequence[int | None]) -> Expression | None:
        """The power e^(a - b) as 2^(a log2 e - b log2 e), if b has fewer elements. Its error is
        that of float16, so it is used only there. (In bfloat16 the lowest element, for example of a
        mask, is infinite in units of log 2.)"""
        a, b = self.differences.get((x.code, x.axes), (x, x))
        if {x.dtype, a.dtype} != {"float16"} or len(b.present) >= len(a.present) or math.isinf(b.number or 0.0):
            return None
        scaled = repr((b.number or 0.0) * LOG2_E)
        if b.number is None:
            scaled = self.lines.let(b.stage, f"{b.code}_2", tl.maximum(v[b.code] * LOG2_E, MAXIMUM_START))
        b = replace(b, code=scaled)
        return tl.exp2(self.spread(a, axes) * LOG2_E - self.spread(b, axes))

    def _power(self, x: Tile, exponent: Tile) -> Tile:
        whole = {2.0: 1, 3.0: 2, 4.0: 3}.get(exponent.number or 0)
        if exponent.number == 0.5:
            return self.map(np.sqrt, x)
        if whole is None:
            raise Unsupported(f"a power of {exponent.number}; 0.5, 2, 3 and 4 are known")
        result = x
        for _ in range(whole):
            result = self.map(np.multiply, result, x)
        return result

    def common(self, shape: Shape, xs: Sequence[Tile]) -> tuple[int | None, ...]:
        """The axes of a result over broadcast operands; axes of several operands are joined."""
        found: list[int | None] = [None] * len(shape)
        for x in xs:
            for i, axis in enumerate(x.axes, len(shape) - len(x.axes)):
                mine = found[i]
                if axis is not None:
                    found[i] = self.axes_of.find(axis) if mine is None else self.axes_of.join(mine, axis)
        return tuple(found)

    def spread(self, x: Tile, axes: Sequence[int | None]) -> Expression:
        """The value of x with `None` for the axes that it lacks."""
        if not x.present:
            return v[x.code]
        mine = (None,) * (len(axes) - len(x.axes)) + x.axes
        return marked(x.code, [own is not None for own, axis in zip(mine, axes, strict=True) if axis is not None])

    def _keeps_zero(self, fn: Scalar, xs: Sequence[Tile], axes: tuple[int | None, ...]) -> bool:
        """Whether lanes beyond the sizes hold 0 in the result: each operand has all its axes, and 0
        there."""
        whole = [a for a in axes if a is not None]
        if any(x.number is None and (not x.zero or self.roots(x) != whole) for x in xs):
            return False
        with np.errstate(all="ignore"):
            return bool(fn(*_numbers(xs)) == 0)

    def lane_count(self, x: Tile) -> int:
        """The elements of a tile in registers."""
        return math.prod(self.axes_of.all_lanes(x.present))

    def roots(self, x: Tile) -> list[int]:
        return [self.axes_of.find(a) for a in x.present]

    @staticmethod
    def _computed_as(dtype: str) -> str:
        return "float32" if is_float(dtype) else "int32" if dtype == "int64" else dtype

    def ready(self, x: Tile) -> Tile:
        """x with its delayed fold written."""
        if x.fold is None:
            return x
        function, inner, over = x.fold
        known = folded(function)
        inner = self.masked(self.computed(inner), over, known.neutral)
        code, left = v[inner.code], inner.present
        together = self._together(inner, left[-1]) if left and left[-1] in over else 1
        if function is ADD and together > 1:
            lanes = self.axes_of.all_lanes(left)
            apart = [*lanes[:-1], lanes[-1] // together, together]
            code = tl.sum(tl.reshape(code, apart), len(left))
        elif function is ADD and is_float(inner.stored) and self.lines.is_product(inner.code):
            # A product that is contracted with the sum is rounded in all lanes but its own. The
            # sums of lanes would differ, and several lanes may write the result.
            code = code + 0.0
        for axis in sorted(over, key=left.index, reverse=True):
            code = v[known.triton](code, left.index(axis))
            left.remove(axis)
        return replace(x, code=self.lines.let(inner.stage, self.hint, code), fold=None, stage=inner.stage)

    def _together(self, x: Tile, axis: int) -> int:
        """The number of neighbouring elements along an axis that a thread has: lanes need not
        exchange their sum."""
        known, n = x.together or (axis, 1)
        return n if self.axes_of.find(known) == self.axes_of.find(axis) else 1

    def computed(self, x: Tile) -> Tile:
        """x in the form for arithmetic: half precisions and bytes of integers are widened."""
        x = self.ready(x)
        narrow = x.stored in HALF_FLOATS or is_stored(x.stored) or (x.stored, x.dtype) == ("int8", "int32")
        if x.number is not None or not narrow:
            return x
        wide = self._computed_as(x.dtype)
        return replace(x, code=self.lines.let(x.stage, f"{x.code}_f", v[x.code].to(tl[wide])), stored=wide)

    def masked(self, x: Tile, over: Sequence[int], neutral: float) -> Tile:
        """x with `neutral` in the lanes beyond the sizes of some axes."""
        wanted = [a for a in over if self.axes_of.padded(a)]
        if not wanted or (neutral == 0 and x.zero):
            return x
        shown = "0" if not is_float(x.stored) else repr(neutral) if math.isfinite(neutral) else f'float("{neutral}")'
        within = tl.where(every(self.masks(x.present, wanted)), x.code, shown)
        return replace(x, code=self.lines.let(x.stage, f"{x.code}_m", within))

    def masks(self, present: Sequence[int], axes: Sequence[int] | None = None) -> list[Expression]:
        """Conditions for a lane of a tile to be within the sizes of some of its axes, or of all
        padded ones."""
        padded = [a for a in present if self.axes_of.padded(a)]
        return [self.index(present, a) < self.axes_of.size(a) for a in (padded if axes is None else axes)]

    def index(self, present: Sequence[int], axis: int) -> Expression:
        """The lanes of one axis in a tile with the axes `present`."""
        return marked(self.lines.lanes(self.axes_of.lanes(axis)), [a == axis for a in present])

    def cast(self, a: Tile, dtype: str) -> Tile:
        """The cast of a tile. Between floats nothing is written: values are rounded when a tensor
        is stored, and for dots."""
        if a.number is not None:
            return self._number(a.number if is_float(dtype) else float(int(a.number)), dtype, a.shape)
        a = self.ready(a)
        if is_float(a.stored) and is_float(dtype) and (not is_float(a.dtype) or is_stored(a.stored)):
            return replace(a, dtype=dtype)
        if is_float(a.dtype) and is_float(dtype):
            return replace(a if a.stored in ("float32", dtype) else self.computed(a), dtype=dtype)
        stored = self._computed_as(dtype)
        code = v[a.code].differs(0) if stored == "bool" else v[a.code].to(tl[stored])
        return replace(a, code=self.lines.let(a.stage, self.hint, code), dtype=dtype, stored=stored)

    # ------------------------------------------------------------ folds

    def reduce(self, fn: np.ufunc, a: Tile, axes: Sequence[int], keepdims: bool = True) -> Tile:
        function = function_of(fn)
        folded(function)
        a = self.ready(a)
        over = tuple(x for i in axes if (x := a.axes[i]) is not None)
        equal = known_count([a.shape[i] for i in axes if a.axes[i] is None])
        kept = [i for i in range(len(a.shape)) if keepdims or i not in axes]
        shape = tuple(1 if i in axes else a.shape[i] for i in kept)
        left = tuple(None if i in axes else a.axes[i] for i in kept)
        result = replace(a, shape=shape, axes=left)
        if over:
            result = replace(result, code="", stored=self._computed_as(a.dtype), fold=(function, a, over), number=None)
        return self.map(np.multiply, result, self.literal(equal, result)) if function is ADD and equal > 1 else result

    def contract(self, equation: str, a: Tile, b: Tile) -> Tile:
        letters = contraction(equation, len(a.shape), len(b.shape))
        return self._product(self, self.ready(a), self.ready(b), *letters)

    # ------------------------------------------------------------ layout

    def transpose(self, a: Tile, perm: Sequence[int]) -> Tile:
        a = self.ready(a)
        if len(set(self.roots(a))) < len(a.present):
            raise Unsupported(f"a tile of {a.shape} beside its transpose")
        axes = tuple(a.axes[i] for i in perm)
        code = self.permuted(a, [x for x in axes if x is not None])
        return replace(a, code=code, shape=tuple(a.shape[i] for i in perm), axes=axes)

    def permuted(self, a: Tile, wanted: Sequence[int]) -> str:
        """The code of a tile with its axes in another order."""
        perm = tuple(a.present.index(x) for x in wanted)
        if perm == tuple(range(len(perm))):
            return a.code
        return self.lines.let(a.stage, f"{a.code}_t", tl.trans(a.code) if perm == (1, 0) else tl.permute(a.code, perm))

    def expand(self, a: Tile, shape: Sequence[Dim]) -> Tile:
        """The expanded tile, for which nothing is written: the new elements are equal."""
        return replace(self.ready(a), shape=tuple(shape), axes=(None,) * (len(shape) - len(a.axes)) + a.axes)

    def reshape(self, a: Tile, shape: Sequence[Dim]) -> Tile:
        wanted = tuple(shape)
        if a.number is not None:
            return replace(a, shape=wanted, axes=(None,) * len(wanted))
        a = self.ready(a)
        if [n for n in a.shape if n != 1] == [n for n in wanted if n != 1]:  # dims of 1 are no axes
            left = iter([x for x, n in zip(a.axes, a.shape, strict=True) if n != 1])
            return replace(a, shape=wanted, axes=tuple(None if n == 1 else next(left) for n in wanted))
        same = next((i for i, (n, m) in enumerate(zip(a.shape, wanted, strict=False)) if n != m), 0)
        kept, cut = a.axes[:same], wanted[same:]
        axes = (*kept, *(None if n == 1 else self.axes_of.fresh(n) for n in cut))
        new = [x for x in axes if x is not None]
        whole = [x for x, n in zip(a.axes, a.shape, strict=True) if n != 1]
        changed = [x for x in (*a.axes[same:], *axes[same:]) if x is not None]
        if None in whole or any(self.axes_of.padded(x) for x in changed):
            raise Unsupported(f"a reshape of a tile of {a.shape} to {wanted} whose sizes are not powers of two")
        code = self.lines.let(a.stage, self.hint, tl.reshape(a.code, self.axes_of.all_lanes(new)))
        return replace(a, code=code, shape=wanted, axes=axes)

    def concat(self, xs: Sequence[Tile], axis: int) -> Tile:
        """Two tiles of equal size side by side."""
        if len(xs) == 1:
            return xs[0]
        if len(xs) == 2 and all(x.shape[axis] == 1 for x in xs):
            return self._beside(self.ready(xs[0]), self.ready(xs[1]), axis)
        if len(xs) != 2 or xs[0].shape != xs[1].shape or None in (xs[0].axes[axis], xs[1].axes[axis]):
            raise Unsupported(f"a concatenation of tiles of {[x.shape for x in xs]}")
        a, b = (self.computed(x) for x in xs)
        both, n, rank = self.common(a.shape, [a, b]), a.shape[axis], len(a.present)
        axes = tuple(self.axes_of.fresh(2 * n) if i == axis else x for i, x in enumerate(both))
        new = [x for x in axes if x is not None]
        changed = [x for x in (both[axis], axes[axis]) if x is not None]
        if self.roots(a) != self.roots(b) or any(map(self.axes_of.padded, changed)):
            raise Unsupported(f"a concatenation of tiles of {a.shape}: {n} is no power of two")
        place = self._place(both, axis)
        joined = tl.permute(tl.join(a.code, b.code), (*range(place), rank, *range(place, rank)))
        code = tl.reshape(joined, self.axes_of.all_lanes(new))
        stage = max(a.stage, b.stage)
        shape = (*a.shape[:axis], 2 * n, *a.shape[axis + 1 :])
        return Tile(self.lines.let(stage, self.hint, code), shape, axes, a.dtype, a.stored, stage)

    def _beside(self, a: Tile, b: Tile, axis: int) -> Tile:
        """Two tiles that lack an axis, along it."""
        both, rank = self.common(a.shape, [a, b]), len(a.present)
        if self.roots(a) != self.roots(b) or a.stored != b.stored:
            raise Unsupported(f"a concatenation of tiles of {a.shape} that differ in kind")
        axes = (*both[:axis], self.axes_of.fresh(2), *both[axis + 1 :])
        place = self._place(axes, axis)
        joined = tl.join(a.code, b.code)
        code = joined if place == rank else tl.permute(joined, (*range(place), rank, *range(place, rank)))
        stage, shape = max(a.stage, b.stage), (*a.shape[:axis], 2, *a.shape[axis + 1 :])
        return replace(a, code=self.lines.let(stage, self.hint, code), shape=shape, axes=axes, stage=stage)

    @staticmethod
    def _place(axes: Sequence[int | None], axis: int) -> int:
        """The axis of a tile in registers for a dim."""
        return sum(x is not None for x in axes[:axis])

    def slice(self, a: Tile, axis: int, start: Dim, stop: Dim, step: int = 1) -> Tile:
        """One half of an axis."""
        a = self.ready(a)
        own = a.axes[axis]
        if (start, stop, step) == (0, a.shape[axis], 1):
            return a
        n, low, high = known_count([a.shape[axis]]), known_count([start]), known_count([stop])
        half = n // 2
        shape = (*a.shape[:axis], high - low, *a.shape[axis + 1 :])
        if own is None and step == 1:
            return replace(a, shape=shape)
        known = step == 1 and n % 2 == 0 and half > 1 and (low, high) in ((0, half), (half, n))
        if own is None or not known or self.axes_of.padded(own):
            wanted = f"the slice {low}:{high}:{step} of {n} elements"
            raise Unsupported(f"{wanted} of a tile; halves of powers of two are known")
        place, rank = self._place(a.axes, axis), len(a.present)
        axes = tuple(self.axes_of.fresh(half) if i == axis else x for i, x in enumerate(a.axes))
        sizes = self.axes_of.all_lanes(a.present)
        perm = (*range(place), *range(place + 1, rank + 1), place)
        both = tl.split(tl.permute(tl.reshape(a.code, [*sizes[:place], 2, half, *sizes[place + 1 :]]), perm))
        halves = self.lines.let(a.stage, f"{a.code}_halves", both)
        code = self.lines.let(a.stage, self.hint, v[halves][0 if low == 0 else 1])
        return replace(a, code=code, shape=shape, axes=axes, zero=False)

    def __getattribute__(self, name: str) -> object:
        if name in ABSENT_HERE:
            raise Unsupported(f"the primitive {name} has no form in a Triton kernel")
        return super().__getattribute__(name)


def marked(code: ExpressionLike, own: Sequence[bool]) -> Expression:
    """A value with `None` for each axis that is not its own."""
    whole = expression(code)
    return whole if all(own) else whole[tuple(":" if each else "None" for each in own)]


def _numbers(xs: Sequence[Tile]) -> list[np.float64 | np.int64]:
    """Operands as numbers: 0 for any other."""
    return [np.float64(x.number or 0) if is_float(x.dtype) else np.int64(x.number or 0) for x in xs]


ABSENT_HERE = frozenset({"cumulate", "pad", "window", "take", "take_along", "put"})
