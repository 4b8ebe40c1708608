"""One `kernel` term as a Triton function: loads by imap and fmap, the terms of the body,
accumulators, stores by omap.

The thread level: a kernel in a body that is a chain of elementwise terms is the chain (Mirage,
OSDI'25, section 4.3: fused by rule).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from taso_mirage.emit.gpu.accumulators import Accumulators
from taso_mirage.emit.gpu.axes import TileAxes
from taso_mirage.emit.gpu.block_products import block_product, held, warps
from taso_mirage.emit.gpu.block_term import BlockTerm
from taso_mirage.emit.gpu.clusters import combined
from taso_mirage.emit.gpu.dependent_launch import EARLY, WAITING
from taso_mirage.emit.gpu.forms import LaunchedFunction, reserved_names
from taso_mirage.emit.gpu.lines import Lines
from taso_mirage.emit.gpu.moved_tensors import OperandTensor, buffers_of
from taso_mirage.emit.gpu.names import fixed_ids
from taso_mirage.emit.gpu.order import Order, ordered
from taso_mirage.emit.gpu.products import LAYOUT, elements, signed, tile_product, vector_dot
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
from taso_mirage.emit.gpu.tile_memory import TileMemory
from taso_mirage.emit.gpu.tiles import HALF_FLOATS, Tile, Tiles
from taso_mirage.emit.statements import TRITON, Parameter, ProgramFunction, loop, tl
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import LoopPhase, Lowering, parts_in, usual_size
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, numpy_dtype
from taso_mirage.meanings.typed import Typed
from taso_mirage.operators.interpret import interpret, interpret_term
from taso_mirage.operators.ops import traits
from taso_mirage.operators.work import work

AGAIN = {"eviction_policy": '"evict_last"'}
"""The cache policy of the second load of a tile that a dot and another term read: in shared memory
the tile is swizzled for the dot, and every other read has bank conflicts (19.9-fold, measured on an
H100). Different policies keep the compiler from joining the two loads."""

WHERE = {
    LoopPhase.INVARIANT: "before the loop",
    LoopPhase.LOOP: "in the loop",
    LoopPhase.AFTER: "after the loop",
}


class TritonBlock(LaunchedFunction):
    """The state of one kernel's function during its generation."""

    body: Graph

    def __init__(
        self,
        node: Node,
        name: str,
        reads: Sequence[OperandTensor],
        writes: Sequence[TritonBuffer | None],
        sizes: Sequence[str] = (),
    ) -> None:
        self.term = BlockTerm(node, name, reads, writes, sizes)
        self.body = self.term.body
        axes, names = TileAxes(), reserved_names() | {name} | self.term.sizes.reserved
        for _ in range(2):  # the demands of dots on axes are known after the first reading
            axes.again()
            self.tiles = Tiles(axes, Lines(names, self.term.looped), tile_product)
            self._read()

    # ------------------------------------------------------------ the body

    def _read(self) -> None:
        self.memory = TileMemory(self.term, self.tiles)
        self.values: dict[Node, Tile] = {}
        self.apart: dict[Node, Tile] = {}
        """Second loads of tiles, for the terms beside products that read them."""
        self.accumulators = Accumulators(self.tiles, self.values, self.term.sizes)
        self.orders: dict[LoopPhase, Order] = {}
        for stage in LoopPhase:
            for i, leaf in enumerate(self.body.inputs):
                if self.term.stage[leaf] is stage:
                    self._load(i, leaf)
            order = ordered(self.body, self.term.stage, stage, partial(held, self.term.products))
            self.orders[stage] = order
            for node in order.terms:
                self.values[node] = self.values[node.args[0]] if node in self.term.merged else self._value(node)
        written = iter(self.memory.results)
        for o, (output, buffer) in enumerate(zip(self.body.outputs, self.term.writes, strict=True)):
            if buffer is not None:
                self.memory.store(o, self.values[output], next(written))

    def _load(self, i: int, leaf: Node) -> None:
        self.values[leaf] = self.memory.load(i, leaf)
        inside = self.term.looped and self.term.stage[leaf] is LoopPhase.LOOP
        if inside and self.values[leaf].stored in HALF_FLOATS and self.term.is_shared(leaf):
            self.apart[leaf] = self.memory.load(i, leaf, **AGAIN)

    def _value(self, node: Node) -> Tile:
        term, values, kind = self.term, self.values, traits(node).lowering
        self.tiles.hint, self.tiles.goes_on = node.op, node in term.chained
        if node in term.words:
            return self.memory.words(node)
        if node in term.split:
            leaf = self.body.inputs.index(node.args[0])
            if node.args[0] in self.apart:
                self.apart[node] = self.memory.load(leaf, node, **AGAIN)
            return self.memory.load(leaf, node)
        if kind in LAYOUT and node.args[0] in self.apart:
            found = interpret_term(node, self.tiles, [self.apart[node.args[0]]])
            assert isinstance(found, Tile)
            self.apart[node] = found
        if node in term.products:
            made = term.products[node]
            self.memory.before |= {values[made.scales].code} if made.scales in self.body.inputs else set()
            return block_product(self.tiles, made, *[values[n] for n in (made.numbers, made.x, made.scales)])
        if node in term.vectors:
            return vector_dot(self.tiles, node, *[values[x] for x in term.vectors[node].args])
        if kind is Lowering.WHOLE:
            return signed(self.tiles, values[node.args[0]])
        if kind is Lowering.RUNNING and term.looped:
            return self.accumulators.running(node)
        if kind is Lowering.ACCUMULATE and term.looped:
            return self.accumulators.accumulate(node)
        if kind is Lowering.COMBINE and term.cluster != 1:
            return combined(self.tiles, node, values, term.cluster, 1 if node in term.alone else term.cluster)
        return self._computed(node, kind)

    def _computed(self, node: Node, kind: Lowering | None) -> Tile:
        """The value of a term by the definition of its operator, or of each term of a chain."""
        of: Mapping[Node, Tile] = self.values
        if kind not in (Lowering.CONTRACT, *LAYOUT):
            of = {**self.values, **self.apart}
        args = [None if a is ABSENT else of[a] for a in node.args]
        whole = chain(node) if kind is Lowering.KERNEL else None
        if whole is not None:  # the thread level: elementwise chains stay in registers
            given = [x for x in args if x is not None]
            (output,) = whole.outputs
            found = interpret([output], self.tiles, dict(zip(whole.inputs, given, strict=True)))[output]
        else:
            found = interpret_term(node, self.tiles, args)
        if not isinstance(found, Tile):
            raise Unsupported(f"{node.op} with several results in a kernel")
        readers = self.term.readers.get(node, ())
        if len(readers) != 1 or traits(readers[0]).lowering is not Lowering.ACCUMULATE:
            found = self.tiles.ready(found)
        self.memory.measure(found)
        return found

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        term, memory = self.term, self.memory
        names = tuple([buffer.name for _, buffer in memory.tensors])
        later = any(buffer.role == "scratch" for x in term.reads for buffer in buffers_of(x))
        blocks = math.prod(map(usual_size, term.grid))
        guess = guessed(blocks, term.loop, memory.largest, memory.in_flight, later or self.tiles.narrow)
        guess = replace(guess, warps=warps(term.products) or guess.warps, precision=self.tiles.single or IEEE)
        return TritonLaunch(
            *(term.name, term.grid, term.loop, names, schedule or guess),
            *(self._traffic(), term.sizes.given, term.cluster, self.tiles.rows),
            precisions=PRECISIONS if self.tiles.single else (),
            copies=self._copies(),
        )

    def _copies(self) -> bool:
        """Whether it gives an input as it is, each element at the place that it has in the input's
        memory: if that is the memory of the result, nothing is to do."""
        read, written = self.term.reads[0], self.term.writes[0]
        if self.body.outputs != self.body.inputs or not isinstance(read, TritonBuffer) or written is None:
            return False
        maps = self.term.node.attr("imap") == self.term.node.attr("omap") and self.term.node.attr("fmap") == (-1,)
        alike = (read.dtype, read.shape, read.batched) == (written.dtype, written.shape, written.batched)
        dense = read.part is None and not written.rows and written.start == 0
        strides = zip(read.shape, read.strides, written.strides, strict=True)
        roles = (read.role, written.role) == ("input", "output")
        return maps and alike and dense and roles and all(n == 1 or a == b for n, a, b in strides)

    def _traffic(self) -> Traffic:
        term, loop = self.term, usual_size(self.term.loop)
        times = {n: loop if stage is LoopPhase.LOOP else 1 for n, stage in term.stage.items()}
        own = [n for n in self.body if n.args]
        largest = {name: size for name, (_, size) in parts_in(self.body).items()}
        flops = sum(work(n, largest).flops * times[n] for n in own)
        read = zip(self.body.inputs, term.reads, strict=True)
        tiles = {x: elements(x) * numpy_dtype(b.dtype).itemsize for x, b in read}
        loaded = sum(size * times[x] for x, size in tiles.items())
        blocks = math.prod(map(usual_size, term.grid))
        stored = sum(a.buffer.bytes for a in self.memory.results)
        live = max((order.live for order in self.orders.values()), default=0)
        return Traffic(flops * blocks, loaded * blocks + stored, self.memory.in_flight or sum(tiles.values()), live)

    def source(self) -> str:
        term, sizes, lines = self.term, self.term.sizes, self.tiles.lines
        flags = [Parameter("STAGES") if term.looped else Parameter("EARLY", "False")]
        flags += [Parameter("APART", "False")] if self.tiles.rows else []
        flags += [Parameter("PRECISION", "'ieee'")] if self.tiles.single else []
        flags += [Parameter("OVERLAP", "False"), Parameter("LATE", "False")]
        sections, last = lines.swept()
        sizes.check((*sections[LoopPhase.INVARIANT], *sections[LoopPhase.AFTER]))
        first, rest = lines.needed(sections[LoopPhase.INVARIANT], self.memory.before)
        tensors = self.memory.tensors
        free = [*sizes.blocks(term.cluster), *sizes.rests()] if sizes.given else None
        ids = fixed_ids(tensors, term.grid, term.cluster) if free is None else free
        body = [*ids, *lines.ranges(), *first, *(WAITING if term.looped else EARLY), *rest]
        if inside := (*sections[LoopPhase.LOOP], *last):
            over = tl.range(0, term.loop, num_stages="STAGES")
            body.append(loop("t", over, (*sizes.rests("t"), *inside)))
        body += sections[LoopPhase.AFTER]
        given: list[str | Parameter] = [*(name for name, _ in tensors), *sizes.given, *flags]
        return TRITON.function(ProgramFunction(term.name, given, tuple(body), not_specialized(sizes.given)))

    def explained(self) -> list[str]:
        """The reasons for the form of the function."""
        return [*self._said(), *self.tiles.notes, *self.accumulators.notes]

    def _said(self) -> Iterator[str]:
        """Sentences on the orders of the operators, on the bytes that an iteration loads, on the
        tiles that are loaded before the preceding kernel ends, and on the layouts of the
        results."""
        memory, looped = self.memory, self.term.looped
        for stage, where in WHERE.items():
            order = self.orders[stage]
            if names := [n.op for n in order.terms if n.args]:
                how = "the least of all orders" if order.exact else "as found"
                place = where if looped else "in one pass"
                yield f"{place}: {', '.join(names)}; at most {order.live} elements live ({how})."
        if looped:
            yield f"loads: {memory.in_flight} bytes an iteration, STAGES in flight; all else is in registers."
        if before := ", ".join(sorted(memory.before)):
            yield f"{before}: of weights, loaded before the kernel before ends: it must not write them."
        for each in (result.buffer for result in memory.results):
            if each.order != tuple(range(len(each.shape))):
                yield f"{each.name}: dims {each.order} from the outermost on; of all orders the fewest sectors."


class _Elementwise(Typed[bool]):
    """Whether an element of a result depends only on the same element of each operand, according to
    the definitions."""

    def note(self, primitive: str, fn: Any, notes: Sequence[bool], operands: Sequence[Tensor], result: Tensor) -> bool:
        if primitive == "constant":
            return result.shape in ((), (1,))  # each thread would have a part of a larger constant
        return primitive in ("map", "cast") and all(notes)


def chain(node: Node) -> Graph | None:
    """The body of a kernel if it may run on whole tiles: it is elementwise, without a loop, has one
    result, and operands that are cut like the result."""
    body, grid = node.attr("body"), node.attr("grid")
    cuts = {_from_the_right(axes, x) for axes, x in zip(node.attr("imap"), body.inputs, strict=True)}
    cuts |= {_from_the_right(axes, x) for axes, x in zip(node.attr("omap"), body.outputs, strict=True)}
    if node.attr("loop") != 1 or len(body.outputs) != 1 or (len(cuts) > 1 and any(n > 1 for n in grid)):
        return None
    values = interpret(body.outputs, _Elementwise(), {x: (x.tensor, True) for x in body.inputs})
    return body if all(noted for _, noted in values.values()) else None


def _from_the_right(axes: tuple[int, ...], x: Node) -> tuple[int, ...]:
    """The dims that a grid cuts, numbered from the last one as in broadcasting."""
    return tuple(axis - x.tensor.rank if axis >= 0 else 0 for axis in axes)
