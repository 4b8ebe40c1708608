"""One `kernel` term as a Triton function: loads by imap and fmap, the body as lines, accumulators,
stores by omap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from taso_mirage.emit.gpu.axes import TileAxes, grouped
from taso_mirage.emit.gpu.block_products import (
    block_product,
    block_products,
    digits_of_words,
    held,
    loaded_x,
    warps,
)
from taso_mirage.emit.gpu.clusters import combined, stored_by_first
from taso_mirage.emit.gpu.dependent_launch import EARLY, WAITING
from taso_mirage.emit.gpu.explained import said_of
from taso_mirage.emit.gpu.forms import reserved_names
from taso_mirage.emit.gpu.lines import Lines
from taso_mirage.emit.gpu.names import FreeNames, fixed_ids
from taso_mirage.emit.gpu.offsets import Groups, TileCut, inner, place
from taso_mirage.emit.gpu.order import Order, ordered
from taso_mirage.emit.gpu.packed_weights import apart, in_words, loaded_words
from taso_mirage.emit.gpu.products import (
    DEFERRED,
    LAYOUT,
    chained,
    elements,
    signed,
    tile_product,
    vector_dot,
    vector_products,
)
from taso_mirage.emit.gpu.program import (
    IEEE,
    PRECISIONS,
    LaunchSchedule,
    Traffic,
    TritonBuffer,
    TritonLaunch,
    guessed,
    not_specialized,
)
from taso_mirage.emit.gpu.small_floats import SMALL_FLOATS, loaded
from taso_mirage.emit.gpu.threads import chain
from taso_mirage.emit.gpu.tiles import HALF, MAXIMUM_START, Tile, Tiles, folded
from taso_mirage.emit.statements import (
    TRITON,
    Parameter,
    ProgramFunction,
    Statement,
    add,
    expression,
    let,
    loop,
    tl,
    when,
)
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import LoopPhase, Lowering, is_free_kernel, loop_phases, overlaps, parts_in, usual_size
from taso_mirage.ir.terms import ABSENT, Node, is_float, numpy_dtype, users
from taso_mirage.meanings.functions import ADD, MAXIMUM
from taso_mirage.meanings.variance import merged_variance
from taso_mirage.operators.interpret import interpret, interpret_term
from taso_mirage.operators.ops import traits
from taso_mirage.operators.work import work

AGAIN = ', eviction_policy="evict_last"'
"""The policy of the second load of a tile that a dot and another term read: in shared memory the
tile is swizzled for the dot, and every other read has bank conflicts (19.9-fold, measured on an
H100). Another policy keeps the compiler from making the two loads one."""
FOLD_OF = {"sum": ADD, "rescaled": ADD, "max": MAXIMUM}


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the function, and the buffer behind it."""

    name: str
    buffer: TritonBuffer


class TritonBlock:
    """The function of one kernel while it is written."""

    specialized = False
    helpers = ()

    def __init__(
        self,
        node: Node,
        name: str,
        reads: Sequence[TritonBuffer],
        writes: Sequence[TritonBuffer | None],
        sizes: Sequence[str] = (),
    ) -> None:
        self.node, self.name = node, name
        self.body, self.grid, self.loop = node.attr("body"), node.attr("grid"), node.attr("loop")
        self.looped, self.cluster = self.loop != 1, node.attr("cluster")
        free = is_free_kernel(self.body, self.grid, self.loop)
        self.sizes = FreeNames(tuple(sizes) if free else (), self.body, self.grid, node.attr("imap"), node.attr("fmap"))
        self.alone = stored_by_first(node) if self.cluster != 1 else set()
        self.stage = loop_phases(self.body, node.attr("fmap"), self.loop)
        self.overlaps = overlaps([b.shape for b in reads], self.body, self.grid, node.attr("imap"))
        self.reads, self.writes = reads, writes
        self.readers = users(self.body)
        halves = [x for x, b in zip(self.body.inputs, reads, strict=True) if b.dtype in HALF]
        self.vectors = vector_products(self.body, self.stage, halves) if self.looped else {}
        self.chained = chained(self.body, self.looped)
        self.split, self.merged = self._views()
        self.words = in_words(self.body, reads, self.readers)
        self.products = {} if self.looped else block_products(self.body, reads, self.words)
        self.ahead = {each.packed: each for each in self.products.values()}
        self.axes = TileAxes()
        self.orders: dict[LoopPhase, Order] = {}
        for _ in range(2):  # the demands of dots on axes are known after the first reading
            self.axes.again()
            self._read()

    # ------------------------------------------------------------ the body

    def _views(self) -> tuple[dict[Node, Groups], dict[Node, Groups]]:
        """The terms that cut dims of loaded values, and those that join dims of values that are
        only stored, with the dims that one in memory has: offsets say so, and no tile is reshaped,
        which only one without lanes beyond its sizes can be."""
        split, merged = dict[Node, Groups](), dict[Node, Groups]()
        for node in (n for n in self.body if traits(n).lowering is Lowering.RESHAPE):
            x = node.args[0]
            before, after = x.shape, node.shape
            if x in self.body.inputs:
                found, groups = split, grouped(after, before)
            else:
                last = node in self.body.outputs and not self.readers.get(node)
                found, groups = merged, grouped(before, after) if last else None
            if groups and max(map(len, groups)) > 1:
                found[node] = groups
        return split, merged

    def _read(self) -> None:
        self.lines = Lines(reserved_names() | {self.name} | self.sizes.reserved, self.looped)
        self.tiles = Tiles(self.axes, self.lines, tile_product)
        self.arguments = [
            Argument(self.lines.name(x.attr("name")), b) for x, b in zip(self.body.inputs, self.reads, strict=True)
        ]
        self.results = [Argument(self.lines.name("out"), b) for b in self.writes if b is not None]
        self.values: dict[Node, Tile] = {}
        self.apart: dict[Node, Tile] = {}
        self.states: dict[Node, tuple[str, str]] = {}
        self.running: dict[str, tuple[str, str]] = {}
        self.notes: list[str] = []
        self.before: set[str] = set()
        """The tiles that are loaded before the wait for the kernel before: weights in blocks."""
        self.largest, self.in_flight = 1, 0
        for stage in LoopPhase:
            for i, leaf in enumerate(self.body.inputs):
                if self.stage[leaf] is stage:
                    self.values[leaf] = self._load(i, leaf)
                    if (
                        self.looped
                        and stage is LoopPhase.LOOP
                        and self.values[leaf].stored in HALF
                        and self._is_shared(leaf)
                    ):
                        self.apart[leaf] = self._load(i, leaf, AGAIN)
            order = ordered(self.body, self.stage, stage, partial(held, self.products))
            self.orders[stage] = order
            for node in order.terms:
                self.values[node] = self.values[node.args[0]] if node in self.merged else self._value(node)
        written = iter(self.results)
        for o, (output, buffer) in enumerate(zip(self.body.outputs, self.writes, strict=True)):
            if buffer is not None:
                self._store(o, self.values[output], next(written))

    def _value(self, node: Node) -> Tile:
        self.tiles.hint, self.tiles.goes_on = node.op, node in self.chained
        if node in self.words:
            return self._words(node)
        if node in self.split:
            leaf = self.body.inputs.index(node.args[0])
            if node.args[0] in self.apart:
                self.apart[node] = self._load(leaf, node, AGAIN)
            return self._load(leaf, node)
        kind = traits(node).lowering
        if kind in LAYOUT and node.args[0] in self.apart:
            found = interpret_term(node, self.tiles, [self.apart[node.args[0]]])
            assert isinstance(found, Tile)
            self.apart[node] = found
        of = self.values if kind in (Lowering.CONTRACT, *LAYOUT) else {**self.values, **self.apart}
        args = [None if a is ABSENT else of[a] for a in node.args]
        if node in self.products:
            made = self.products[node]
            scales = self.values[made.scales]
            self.before |= {scales.code} if made.scales in self.body.inputs else set()
            return block_product(self.tiles, made, *[self.values[n] for n in (made.numbers, made.x, made.scales)])
        if node in self.vectors:
            return vector_dot(self.tiles, node, *[self.values[x] for x in self.vectors[node].args])
        if kind is Lowering.WHOLE:
            return signed(self.tiles, self.values[node.args[0]])
        if kind is Lowering.RUNNING and self.looped:
            return self._running(node)
        if kind is Lowering.ACCUMULATE and self.looped:
            return self._accumulate(node)
        if kind is Lowering.COMBINE and self.cluster != 1:
            return combined(self.tiles, node, self.values, self.cluster, 1 if node in self.alone else self.cluster)
        whole = chain(node) if kind is Lowering.KERNEL else None
        if whole is not None:  # the thread level: elementwise chains stay in registers
            given = [x for x in args if x is not None]
            (output,) = whole.outputs
            found = interpret([output], self.tiles, dict(zip(whole.inputs, given, strict=True)))[output]
        else:
            found = interpret_term(node, self.tiles, args)
        if not isinstance(found, Tile):
            raise Unsupported(f"{node.op} with several results in a kernel")
        readers = self.readers.get(node, ())
        if len(readers) != 1 or traits(readers[0]).lowering is not Lowering.ACCUMULATE:
            found = self.tiles.ready(found)
        self.largest = max(self.largest, self._lanes(found))
        return found

    def _running(self, node: Node) -> Tile:
        x = self.tiles.computed(self.values[node.args[0]])
        if x.code not in self.running:  # of one value with other dims of size 1 there is one maximum
            name = self._state("m", x, repr(MAXIMUM_START))
            new = self.lines.let(LoopPhase.LOOP, f"{name}_new", f"tl.maximum({name}, {x.code})")
            self.lines.last.append(let(name, new))
            self.running[x.code] = (name, new)
        name, new = self.states[node] = self.running[x.code]
        return replace(x, code=new, zero=False)

    def _accumulate(self, node: Node) -> Tile:
        over, x = node.attr("over"), self.values[node.args[0]]
        if over == "variance":
            return self._variance(x, self.values[node.args[1]])
        by_rows = over == "rescaled" and self.values[node.args[1]].present  # of each element it would be a product more
        late = not by_rows and x.fold and x.fold[0] is FOLD_OF[over] and self._lanes(x.fold[1]) <= DEFERRED
        put_off = x.fold if late else None
        y = self.tiles.computed(put_off[1] if put_off else x)
        if put_off:
            y, axes = self._whole(y, put_off[2], folded(put_off[0]).neutral)
            put_off = put_off[0], y, axes
        if over == "max" and y.code in self.running and self._is_bounded(node.args[0]):
            return replace(y, code=self.running[y.code][0], stage=LoopPhase.AFTER, zero=False)
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
        self.notes.append(f"{name}: {call} once after the loop, not in it: {self._lanes(y)} lanes, no barrier.")
        return replace(x, stage=LoopPhase.AFTER, fold=(put_off[0], found, put_off[2]))

    def _whole(self, x: Tile, over: Sequence[int], neutral: float) -> tuple[Tile, tuple[int, ...]]:
        """x with `neutral` beyond the rest of the last iteration, along axes that from now on are
        those of a whole tile: after the loop that rest is not that of the iterations before."""
        fresh: dict[int | None, int] = {}
        for axis in over:
            if self.sizes.is_iterations(self.axes.size(axis)):
                fresh[axis] = self.axes.fresh(self.axes.largest(axis))
                self.axes.demand(fresh[axis], self.axes.lanes(axis))
        if not fresh:
            return x, tuple(over)
        x = self.tiles.masked(x, [a for a in over if a in fresh], neutral)
        axes = tuple(fresh.get(a, a) for a in x.axes)
        shape = tuple(n if a is None else self.axes.size(a) for n, a in zip(x.shape, axes, strict=True))
        return replace(x, shape=shape, axes=axes), tuple(fresh.get(a, a) for a in over)

    def _is_bounded(self, node: Node) -> bool:
        """Whether a term is a maximum with a number from LOWEST on: no element is -inf, so a
        running maximum is that of all at its end."""
        bounds = [self.values[a].number for a in node.args] if traits(node).lowering is Lowering.MAXIMUM else []
        return any(n is not None and n >= MAXIMUM_START for n in bounds)

    def _variance(self, part: Tile, part_mean: Tile) -> Tile:
        """In one pass: `variance` and `mean` have those of the iterations before this one, of
        number t."""
        part, part_mean = self.tiles.computed(part), self.tiles.computed(part_mean)
        variance, mean = (
            replace(x, code=self._state(hint, x, "0.0"), stage=LoopPhase.LOOP, zero=False)
            for hint, x in (("variance", part), ("mean", part_mean))
        )
        count = Tile("(t + 1)", (), (), part.dtype, "float32", LoopPhase.LOOP)
        new = [self.tiles.ready(x) for x in merged_variance(self.tiles, variance, mean, part, part_mean, count)]
        self.lines.last += [let(old.code, x.code) for old, x in zip((variance, mean), new, strict=True)]
        return replace(variance, stage=LoopPhase.AFTER)

    def _rescale(self, node: Node, x: Tile, y: Tile) -> str:
        """e^(degree (m_old - m_new)), spread over the accumulator's tile."""
        old, new = self.states[node.args[1]]
        m, degree = self.values[node.args[1]], node.attr("degree")
        if degree < 0:
            raise Unsupported(f"an accumulator rescaled to the power of {degree}; a degree of 0 or more is known")
        self.tiles.common(x.shape, (x, m))
        power = f"{old} - {new}" if degree == 1 else f"{float(degree)} * ({old} - {new})"
        code = self.lines.let(LoopPhase.LOOP, "rescale", f"tl.exp({power})")
        own = self.tiles.roots(m)
        marks = [":" if axis in own else "None" for axis in self.tiles.roots(y)]
        return code if not own or "None" not in marks else f"{code}[{', '.join(marks)}]"

    def _state(self, hint: str, x: Tile, start: str) -> str:
        """A variable of the loop, in the shape of a tile."""
        name = self.lines.name(hint)
        lanes = [self.axes.lanes(a) for a in x.present]
        value = 'float("-inf")' if start == "-inf" else start if is_float(x.stored) else "0"
        dtype = "float32" if is_float(x.stored) else x.stored
        self.lines.write(LoopPhase.INVARIANT, let(name, tl.full(lanes, value, tl[dtype])))
        return name

    def _lanes(self, x: Tile) -> int:
        return math.prod(self.axes.lanes(a) for a in x.present)

    # ------------------------------------------------------------ memory

    def _is_shared(self, node: Node) -> bool:
        """Whether a product and something else read a tile."""
        return len(set(self._kinds(node))) > 1

    def _kinds(self, node: Node) -> Iterator[bool]:
        for user in self.readers.get(node, ()):
            if traits(user).lowering in LAYOUT:
                yield from self._kinds(user)
            else:
                yield traits(user).lowering is Lowering.CONTRACT or user in self.vectors.values()

    def _load(self, i: int, leaf: Node, hint: str = "") -> Tile:
        """The tile of operand i as `leaf` has it: the operand itself, or with dims of it cut."""
        argument, shape = self.arguments[i], leaf.shape
        groups = self.split.get(leaf) or [[d] for d in range(len(shape))]
        axes = tuple(None if n == 1 else self.axes.fresh(n) for n in shape)
        present = [a for a in axes if a is not None]
        tile = self.body.inputs[i].shape
        at = place(self.tiles, argument.buffer, tile, inner(groups, shape, axes), present, self.cuts(i))
        padded = [a for a in present if self.axes.padded(a)]
        stored, stage = argument.buffer.dtype, self.stage[leaf]
        if is_float(stored) and stored not in (*HALF, *SMALL_FLOATS, "float32"):
            raise Unsupported(f"{argument.name} of {stored}; float16, bfloat16 and float32 are computed with")
        mask = self.tiles.mask(present, padded) if padded else ""
        products = self.products if leaf in self.split else {}
        x = loaded_x(products, self.tiles, leaf, argument.name, argument.buffer, tile, self.cuts(i))
        if x is not None:
            name = self.lines.let(stage, f"{argument.name}_tile", x)
        else:
            name = loaded(self.lines, stage, argument.name, stored, at, mask, hint)
        found = Tile(name, shape, axes, leaf.dtype, stored, stage, True, innermost=axes[-1] if axes else None)
        if stage is LoopPhase.LOOP and leaf not in self.split:
            self.in_flight += self._lanes(found) * numpy_dtype(stored).itemsize
        self.largest = max(self.largest, self._lanes(found))
        return found

    def _words(self, node: Node) -> Tile:
        """The numbers of an operand of bytes, loaded as words."""
        i = self.body.inputs.index(node.args[0])
        (name, buffer), leaf = (self.arguments[i].name, self.arguments[i].buffer), self.body.inputs[i]
        digits = digits_of_words(self.ahead[node]) if node in self.ahead else None
        bits, stage = self.words[node], self.stage[node]
        words = loaded_words(self.tiles, name, buffer, leaf, stage, self.cuts(i), digits)
        self.before |= {words.code} if digits is not None else set()
        return apart(self.tiles, words, node.dtype, bits, node.op)

    def cuts(self, i: int) -> list[TileCut]:
        """How the grid and the loop cut an operand."""
        return [
            *zip(self.node.attr("imap")[i], self.grid, self.overlaps, ("g0", "g1", "g2"), strict=False),
            (self.node.attr("fmap")[i], self.loop, None, "t"),
        ]

    def _store(self, o: int, x: Tile, argument: Argument) -> None:
        x = self.tiles.ready(x)
        groups = self.merged.get(self.body.outputs[o]) or [[d] for d in range(len(x.shape))]
        axes = tuple(
            None if n == 1 else a if a is not None else self.axes.fresh(n) for a, n in zip(x.axes, x.shape, strict=True)
        )
        present = [a for a in axes if a is not None]
        cuts = list(zip(self.node.attr("omap")[o], self.grid, self.overlaps, ("g0", "g1", "g2"), strict=False))
        at = place(self.tiles, argument.buffer, self.body.outputs[o].shape, inner(groups, x.shape, axes), present, cuts)
        padded = [a for a in present if self.axes.padded(a)]
        mask = [self.tiles.mask(present, padded)] if padded else []
        code = self.tiles.spread(x, axes)
        alone = [g for axis, n, _, g in cuts if axis < 0 and n != 1]
        stored: Statement = tl.store(f"{argument.name}{at}", code, *mask)
        if alone:
            stored = when(" and ".join(f"{g} == 0" for g in alone), stored, why="all blocks along it have the same")
        self.lines.write(LoopPhase.AFTER, stored)

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        names = tuple(a.buffer.name for a in (*self.arguments, *self.results))
        later = any(buffer.role == "scratch" for buffer in self.reads)
        blocks = math.prod(map(usual_size, self.grid))
        guess = guessed(blocks, self.loop, self.largest, self.in_flight, later)
        guess = replace(guess, warps=warps(self.products) or guess.warps, precision=self.tiles.single or IEEE)
        return TritonLaunch(
            *(self.name, self.grid, self.loop, names, schedule or guess),
            *(self._traffic(), self.sizes.given, self.cluster, self.tiles.rows),
            precisions=PRECISIONS if self.tiles.single else (),
        )

    def _traffic(self) -> Traffic:
        loop = usual_size(self.loop)
        times = {n: loop if stage is LoopPhase.LOOP else 1 for n, stage in self.stage.items()}
        own = [n for n in self.body if n.args]
        largest = {name: size for name, (_, size) in parts_in(self.body).items()}
        flops = sum(work(n, largest).flops * times[n] for n in own)
        tiles = {
            x: elements(x) * numpy_dtype(b.dtype).itemsize for x, b in zip(self.body.inputs, self.reads, strict=True)
        }
        loaded = sum(size * times[x] for x, size in tiles.items())
        blocks = math.prod(map(usual_size, self.grid))
        stored = sum(a.buffer.bytes for a in self.results)
        live = max((order.live for order in self.orders.values()), default=0)
        return Traffic(flops * blocks, loaded * blocks + stored, self.in_flight or sum(tiles.values()), live)

    def source(self) -> str:
        flags = [Parameter("STAGES") if self.looped else Parameter("EARLY", "False")]
        flags += [Parameter("APART", "False")] if self.tiles.rows else []
        flags += [Parameter("PRECISION", "'ieee'")] if self.tiles.single else []
        flags += [Parameter("OVERLAP", "False"), Parameter("LATE", "False")]
        pointers = [a.name for a in (*self.arguments, *self.results)]
        sections, last = self.lines.swept()
        self.sizes.check((*sections[LoopPhase.INVARIANT], *sections[LoopPhase.AFTER]))
        first, rest = self.lines.needed(sections[LoopPhase.INVARIANT], self.before)
        tensors = [(a.name, a.buffer) for a in (*self.arguments, *self.results)]
        free = [*self.sizes.blocks(self.cluster), *self.sizes.rests()] if self.sizes.given else None
        ids = fixed_ids(tensors, self.grid, self.cluster) if free is None else free
        body = [*ids, *self.lines.ranges(), *first, *(WAITING if self.looped else EARLY), *rest]
        if looped := (*sections[LoopPhase.LOOP], *last):
            over = tl.range(0, self.loop, num_stages="STAGES")
            body.append(loop("t", over, (*self.sizes.rests("t"), *looped)))
        given: list[str | Parameter] = [*pointers, *self.sizes.given, *flags]
        body += sections[LoopPhase.AFTER]
        return TRITON.function(ProgramFunction(self.name, given, tuple(body), not_specialized(self.sizes.given)))

    def explained(self) -> list[str]:
        """Why the function is as it is."""
        results = [each.buffer for each in self.results]
        loads = self.in_flight if self.looped else None
        return [*said_of(self.orders, loads, self.before, results), *self.tiles.notes, *self.notes]
