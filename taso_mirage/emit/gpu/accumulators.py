"""The accumulators of a kernel's loop: sums over iterations, and running maxima, means and
variances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from taso_mirage.emit.gpu.names import FreeNames
from taso_mirage.emit.gpu.products import DEFERRED
from taso_mirage.emit.gpu.tiles import MAXIMUM_START, Tile, Tiles, folded, marked
from taso_mirage.emit.statements import Expression, add, expression, let, tl, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import LoopPhase, Lowering
from taso_mirage.ir.terms import Node, is_float
from taso_mirage.meanings.functions import ADD, MAXIMUM
from taso_mirage.meanings.variance import merged_variance
from taso_mirage.operators.ops import traits

FOLD_OF = {"sum": ADD, "rescaled": ADD, "max": MAXIMUM}


class Accumulators:
    """`values`: the values of the terms so far. `notes` gives the reasons for the form of
    accumulators."""

    def __init__(self, tiles: Tiles, values: Mapping[Node, Tile], sizes: FreeNames) -> None:
        self.tiles, self.lines, self.values, self.sizes = tiles, tiles.lines, values, sizes
        self.states: dict[Node, tuple[str, str]] = {}
        self.maxima: dict[str, tuple[str, str]] = {}
        """The running maxima by the values of which they are: names of the last one and of this
        one."""
        self.notes: list[str] = []

    def running(self, node: Node) -> Tile:
        """The maximum of this iteration and of earlier ones."""
        x = self.tiles.computed(self.values[node.args[0]])
        if x.code not in self.maxima:  # values that differ in dims of size 1 share a maximum
            name = self._state("m", x, repr(MAXIMUM_START))
            new = self.lines.let(LoopPhase.LOOP, f"{name}_new", tl.maximum(name, x.code))
            self.lines.last.append(let(name, new))
            self.maxima[x.code] = (name, new)
        name, new = self.states[node] = self.maxima[x.code]
        return replace(x, code=new, zero=False)

    def accumulate(self, node: Node) -> Tile:
        """The value of an accumulator after the loop."""
        over, x = node.attr("over"), self.values[node.args[0]]
        if over == "variance":
            return self._variance(x, self.values[node.args[1]])
        by_rows = over == "rescaled" and self.values[node.args[1]].present  # else one product more for each element
        late = not by_rows and x.fold and x.fold[0] is FOLD_OF[over] and self.tiles.lane_count(x.fold[1]) <= DEFERRED
        put_off = x.fold if late else None
        y = self.tiles.computed(put_off[1] if put_off else x)
        if put_off:
            y, axes = self._whole(y, put_off[2], folded(put_off[0]).neutral)
            put_off = put_off[0], y, axes
        if over == "max" and y.code in self.maxima and self._is_bounded(node.args[0]):
            return replace(y, code=self.maxima[y.code][0], stage=LoopPhase.AFTER, zero=False)
        name = self._state("acc", y, "-inf" if over == "max" else "0.0")
        if over == "max":
            self.lines.write(LoopPhase.LOOP, let(name, tl.maximum(name, y.code)))
        elif over == "sum" or not node.attr("degree"):
            self.lines.write(LoopPhase.LOOP, add(name, y.code))
        else:
            self.lines.write(LoopPhase.LOOP, let(name, expression(name) * self._rescale(node, x, y) + y.code))
        found = replace(y, code=name, stage=LoopPhase.AFTER, zero=y.zero and over == "sum")
        if put_off is None:
            return found
        call = folded(put_off[0]).triton
        self.notes.append(
            f"{name}: {call} once after the loop, not in it: {self.tiles.lane_count(y)} lanes, no barrier."
        )
        return replace(x, stage=LoopPhase.AFTER, fold=(put_off[0], found, put_off[2]))

    def _whole(self, x: Tile, over: Sequence[int], neutral: float) -> tuple[Tile, tuple[int, ...]]:
        """x with `neutral` beyond the rest of the last iteration, along axes that are those of a
        whole tile from now on: after the loop the rest of the last iteration does not hold for
        earlier ones."""
        fresh: dict[int | None, int] = {}
        for axis in over:
            if self.sizes.is_iterations(self.tiles.axes_of.size(axis)):
                fresh[axis] = self.tiles.axes_of.fresh(self.tiles.axes_of.largest(axis))
                self.tiles.axes_of.demand(fresh[axis], self.tiles.axes_of.lanes(axis))
        if not fresh:
            return x, tuple(over)
        x = self.tiles.masked(x, [a for a in over if a in fresh], neutral)
        axes = tuple(fresh.get(a, a) for a in x.axes)
        shape = tuple(n if a is None else self.tiles.axes_of.size(a) for n, a in zip(x.shape, axes, strict=True))
        return replace(x, shape=shape, axes=axes), tuple(fresh.get(a, a) for a in over)

    def _is_bounded(self, node: Node) -> bool:
        """Whether a term is a maximum with a number of at least LOWEST: no element is -inf, so a
        running maximum ends as the maximum of all."""
        bounds = [self.values[a].number for a in node.args] if traits(node).lowering is Lowering.MAXIMUM else []
        return any(n is not None and n >= MAXIMUM_START for n in bounds)

    def _variance(self, part: Tile, part_mean: Tile) -> Tile:
        """The variance in one pass: `variance` and `mean` have those of the iterations before this
        one, of number t."""
        part, part_mean = self.tiles.computed(part), self.tiles.computed(part_mean)
        variance, mean = (
            replace(x, code=self._state(hint, x, "0.0"), stage=LoopPhase.LOOP, zero=False)
            for hint, x in (("variance", part), ("mean", part_mean))
        )
        count = Tile("(t + 1)", (), (), part.dtype, "float32", LoopPhase.LOOP)
        new = [self.tiles.ready(x) for x in merged_variance(self.tiles, variance, mean, part, part_mean, count)]
        self.lines.last += [let(old.code, x.code) for old, x in zip((variance, mean), new, strict=True)]
        return replace(variance, stage=LoopPhase.AFTER)

    def _rescale(self, node: Node, x: Tile, y: Tile) -> Expression:
        """The factor e^(degree (m_old - m_new)), broadcast over the accumulator's tile."""
        old, new = self.states[node.args[1]]
        m, degree = self.values[node.args[1]], node.attr("degree")
        if degree < 0:
            raise Unsupported(f"an accumulator rescaled to the power of {degree}; a degree of 0 or more is known")
        self.tiles.common(x.shape, (x, m))
        lag = v[old] - new
        code = self.lines.let(LoopPhase.LOOP, "rescale", tl.exp(lag if degree == 1 else float(degree) * lag))
        own = self.tiles.roots(m)
        return marked(code, [axis in own for axis in self.tiles.roots(y) if own])

    def _state(self, hint: str, x: Tile, start: str) -> str:
        """A variable of the loop, in the shape of a tile."""
        name = self.lines.name(hint)
        lanes = self.tiles.axes_of.all_lanes(x.present)
        value = 'float("-inf")' if start == "-inf" else start if is_float(x.stored) else "0"
        dtype = "float32" if is_float(x.stored) else x.stored
        self.lines.write(LoopPhase.INVARIANT, let(name, tl.full(lanes, value, tl[dtype])))
        return name
