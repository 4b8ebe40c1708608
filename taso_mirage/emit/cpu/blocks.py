"""The C++ function of one block of a kernel: its part of every tensor, its tiles, and its for-loop.

Sizes that only a run knows are variables. The code of a block is then a generic lambda over the
sizes of its tiles: for whole tiles these are numbers that the compiler knows, for the last tile the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from taso_mirage.emit.cpu.chunks import chunk_statements
from taso_mirage.emit.cpu.index_text import integer, row
from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning
from taso_mirage.emit.cpu.lazy_tensors import BufferSizes, CppBuffer, LoopValue, Strides, contiguous
from taso_mirage.emit.cpu.loop_bodies import CarriedValues, LoweredBody
from taso_mirage.emit.cpu.loop_schedule import LoopSchedule, Memory, Root
from taso_mirage.emit.cpu.mapped_tensors import MovedTile, operand_sources, parted, values_at
from taso_mirage.emit.cpu.nests import memory_type, phase_statements, register_type
from taso_mirage.emit.cpu.printer import static_cast, swept
from taso_mirage.emit.cpu.steps import step_statements
from taso_mirage.emit.statements import (
    Expression,
    For,
    Let,
    ProgramFunction,
    Statement,
    every,
    expression,
    select,
    sum_of,
    v,
    when,
)
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, bind, symbol
from taso_mirage.ir.mugraph import Lowering, largest_size, overlaps, part_of, product_factor, tile_stride
from taso_mirage.ir.terms import ABSENT, Graph, Literal, Node, Tensor, is_part
from taso_mirage.meanings.index_maps import position
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.movements import index_map, is_moved
from taso_mirage.operators.ops import traits
from taso_mirage.operators.stores import PartLayout

STACK = 65_536
"""Bytes of tiles up to which a block keeps them on the stack; the stack of a thread pool may be
small."""


@dataclass
class CppKernelFunction:
    """The function of one kernel: the computation of one block of the grid.

    An ordinary operator is a kernel of one block.
    """

    lazy: LazyMeaning
    node: Node
    sizes: Sequence[str] = ()
    """The names of the sizes that a run gives."""
    layouts: Sequence[PartLayout | None] = ()
    """The places of the results whose rows are read first."""
    memory: Memory = field(default_factory=Memory)
    used: set[str] = field(default_factory=set)
    spares: list[CppBuffer] = field(default_factory=list)
    """The memory into which blocks write results that another block gives."""

    @property
    def alone(self) -> bool:
        """Whether the kernel has one block."""
        return traits(self.node).lowering is Lowering.KERNEL and all(n == 1 for n in self.node.attr("grid"))

    def function(
        self, name: str, operands: Sequence[Node], types: Sequence[Tensor], strides: Sequence[Shape | None]
    ) -> ProgramFunction:
        """The function; `operands` without doubles, `types` and `strides` of those and then of the
        results: None for dense tensors."""
        count = len(operands)
        given = [_whole(f"x{i}", t, own) for i, (t, own) in enumerate(zip(types[:count], strides, strict=False))]
        results = [
            _whole(f"y{i}", t, own) for i, (t, own) in enumerate(zip(types[count:], strides[count:], strict=True))
        ]
        pointers = [
            _pointer(x, static_cast(f"{const}{memory_type(x.dtype)}*", v.tensors[i]), const)
            for i, x in enumerate([*given, *results])
            for const in ["const " if i < len(given) else ""]
        ]
        whole = static_cast("const size_t*", v.tensors[len(types)])
        sizes = [Let(n, v.sizes[i], "const size_t") for i, n in enumerate(self.sizes)]
        sizes = [Let("sizes", whole, "const size_t*"), *sizes] if sizes else []
        sizes.append(Let("team", static_cast("Team*", v.tensors[len(types) + bool(self.sizes)]), "const auto"))
        kernel = traits(self.node).lowering is Lowering.KERNEL
        memory = self._sources(dict(zip(operands, given, strict=True)))
        computed = (self._kernel if kernel else self._ordinary)(memory, results)
        shown = f"grid {self.node.attr('grid')}, loop {self.node.attr('loop')}" if kernel else self.node.op
        size, rooms, free = self._rooms()
        doc = f"{shown}; tiles of {size} bytes {'on the stack' if size <= STACK else 'of each thread'}"
        tensors = Let("tensors", static_cast("void**", "data"), "void**")
        body = swept([tensors, *rooms, *sizes, *free, *pointers, *computed], set())
        return ProgramFunction(name, ("void* data", "[[maybe_unused]] size_t block"), body, "static void", doc)

    def _rooms(self) -> tuple[int, list[Statement], list[Statement]]:
        """The bytes of the block's tiles, and their declarations: of tiles of known sizes, and of
        tiles in memory that grows with the sizes of a run."""
        tiles = [b for b in self.memory.allocated if b.name in self.used]
        rooms = [(register_type(b.dtype), b.name, largest_size(b.count)) for b in tiles]
        rooms += [(memory_type(b.dtype), b.name, largest_size(b.count)) for b in self.spares]
        size = sum(4 * n for _, _, n in rooms if isinstance(n, int))
        where = "alignas(64)" if size <= STACK else "alignas(64) static thread_local"
        made: list[Statement] = [Let(name, v.array(n), f"{where} {c}") for c, name, n in rooms if isinstance(n, int)]
        free: list[Statement] = []
        parts = [v.memory]
        for c, name, n in rooms:
            if not isinstance(n, int):
                free.append(Let(name, v[f"reinterpret_cast<{c}*>"](sum_of(parts)), f"{c}* __restrict"))
                parts.append(v.aligned(f"4 * {product_factor(n)}"))
        whole = [Let("memory", v.memory_of_thread(sum_of(parts[1:])), "char*")] if free else []
        return size, made, [*whole, *free]

    def _constant(self, node: Node) -> CppBuffer:
        value = self.lazy.constant(node.attr("value"))
        if isinstance(value, CppBuffer):
            return value
        literal: Literal = node.attr("value")
        name = f"table{len(self.lazy.tables)}"
        self.lazy.tables[name] = literal
        return CppBuffer(literal.dtype, literal.shape, name, contiguous(literal.shape))

    def _sources(self, given: Mapping[Node, CppBuffer]) -> dict[Node, CppBuffer]:
        """The memory of everything that the kernel reads: tensors, and tables of constants."""
        rows = [row.source for layout in self.layouts if layout is not None for _, row in layout.rows]
        constants = [x for x in dict.fromkeys((*operand_sources(self.node), *rows)) if x.op == "constant"]
        return {**given, **{x: self._constant(x) for x in constants}}

    def _numbers(self, nodes: Iterable[Node]) -> dict[Node, LoopValue]:
        """The constants of one element."""
        alone = [x for x in nodes if x.op == "constant" and all(n == 1 for n in x.shape)]
        return {x: self.lazy.constant(x.attr("value")) for x in alone}

    def _ordinary(self, memory: Mapping[Node, CppBuffer], results: Sequence[CppBuffer]) -> list[Statement]:
        args = [None if a is ABSENT else self._operand(a, memory) for a in self.node.args]
        made = interpret_term(self.node, self.lazy, args)
        values = made if isinstance(made, tuple) else (made,)
        return self.stage([(x, r, False) for x, r in zip(values, results, strict=True)])

    def _operand(self, node: Node, memory: Mapping[Node, CppBuffer]) -> LoopValue:
        """An operand of an ordinary operator."""
        if is_moved(node):
            sources = {**memory, **self._numbers(memory)}
            return parted(index_map(node), range(len(node.shape)), lambda part: values_at(part, sources))
        return self.lazy.constant(node.attr("value")) if node.op == "constant" else memory[node]

    def _kernel(self, memory: Mapping[Node, CppBuffer], results: Sequence[CppBuffer]) -> list[Statement]:
        body: Graph = self.node.attr("body")
        grid, loop = self.node.attr("grid"), self.node.attr("loop")
        if self.node.attr("cluster") != 1:
            raise Unsupported("a cluster of blocks; threads of a CPU exchange nothing")
        if any(overlaps([x.shape for x in self.node.args], body, grid, self.node.attr("imap"))):
            raise Unsupported("blocks that overlap; two threads would write to the same places")
        made, moved, cut = list[Statement](), list[Statement](), list[tuple[Dim, str]]()
        tiles: dict[Node, LoopValue] = {}
        types = {
            x.name: (register_type if x.name in self.lazy.tables else memory_type)(x.dtype) for x in memory.values()
        }
        for i, (leaf, arg) in enumerate(zip(body.inputs, self.node.args, strict=True)):
            imap, fmap = self.node.attr("imap")[i], self.node.attr("fmap")[i]
            cut += [(leaf.shape[axis], f"g{g}") for g, axis in enumerate(imap) if axis >= 0]
            if is_moved(arg):
                starts = _starts(arg.shape, leaf.shape, grid, loop, imap, fmap)
                tile = MovedTile(f"t{i}", memory, self._numbers(memory), types, leaf.shape, *starts)
                tiles[leaf] = tile.value(index_map(arg))
                made, moved = [*made, *tile.made], [*moved, *tile.moved]
                continue
            x = memory[arg]
            tiles[leaf], start, steps = _tile(i, leaf, x, grid, loop, imap, fmap)
            (moved if steps else made).append(Let(f"t{i}", start, f"const {types[x.name]}* __restrict"))
        targets = []
        for o, (output, y) in enumerate(zip(body.outputs, results, strict=True)):
            omap, layout = self.node.attr("omap")[o], self.layouts[o] if self.layouts else None
            first, named = (v[y.name], []) if layout is None else self._row_start(o, y, layout, memory)
            made += named
            target, start, spare = _result(o, output.tensor, y, grid, omap, first)
            self.spares += [spare] if spare is not None else []
            made.append(_pointer(target, start))
            targets.append(target)
        made += self._staged(tiles, targets, moved)
        return [*_block_indices(grid), *_tiled(cut, made)]

    def _row_start(
        self, o: int, y: CppBuffer, layout: PartLayout, memory: Mapping[Node, CppBuffer]
    ) -> tuple[Expression, list[Let]]:
        """The start of a block's part of a result by rows that are read first, and their names.

        Raises Unsupported if they differ within a tile.
        """
        tile, grid, omap = self.node.attr("body").outputs[o].shape, self.node.attr("grid"), self.node.attr("omap")[o]
        if wide := [tile[axis] for axis in layout.varying if tile[axis] != 1]:
            raise Unsupported(f"a tile of {wide[0]} rows, which are stored where a run says; a tile has one")
        starts, _ = _starts(y.shape, tile, grid, 1, omap, -1)
        places: dict[str, Dim] = {position(axis): start for axis, start in enumerate(starts)}
        named: list[Let] = []
        for name, each in layout.rows:
            named.append(Let(f"{name}_{o}", row(each, memory[each.source], places), "const size_t"))
            places[name] = symbol(f"{name}_{o}")
        return v[y.name] + integer(bind(layout.start, places)), named

    def _staged(
        self, tiles: Mapping[Node, LoopValue], targets: Sequence[CppBuffer], moved: list[Statement]
    ) -> list[Statement]:
        """The statements before, in and after the for-loop; those `moved` begin an iteration."""
        body, loop = self.node.attr("body"), self.node.attr("loop")
        steps = next((n for n in body if traits(n).lowering is Lowering.STEPS), None)
        if steps is not None:
            stepped = chunk_statements if steps.attr("chunk") else step_statements
            return [*moved, *stepped(self, steps, _parts(body, steps), tiles, targets)]
        carried = CarriedValues(self.lazy, self.memory)
        made = LoweredBody(carried, body, self.node.attr("fmap"), loop)
        outputs = made.values(tiles)
        results = [(x, t, False) for x, t in zip(outputs, targets, strict=True)]
        if loop == 1:
            return moved + self.stage(results)
        before = self.stage([(x, None, False) for x in made.invariants()])
        axes = zip(body.inputs, self.node.attr("fmap"), strict=True)
        cut = [(x.shape[axis], "iteration") for x, axis in axes if axis >= 0]
        inside = _tiled(cut, [*moved, *self.stage([*carried.first, *carried.last])])
        iterations = For("iteration", v.numbers(count_text((loop,))), tuple(inside))
        return [*carried.initial, *before, iterations, *self.stage(results)]

    def stage(self, roots: Sequence[Root], kept: Sequence[tuple[LoopValue, CppBuffer]] = ()) -> list[Statement]:
        """The statements that compute some values (`LoopSchedule.run`)."""
        schedule = LoopSchedule(self.memory)
        schedule.run(roots, kept)
        asked = {self.memory.buffers[x].name for x, t, _ in roots if t is None and x in self.memory.buffers}
        mine = {b.name for b in self.memory.allocated}
        targets = [t for _, t, _ in roots if t is not None]
        outside = {t.name for t in (*targets, *(t for _, t in kept)) if t.name not in mine}
        made, used = phase_statements(schedule, frozenset(asked | outside))
        self.used |= used
        return made


def _parts(body: Graph, steps: Node) -> list[int]:
    """The numbers of the results of a loop over steps that the outputs of a body are. Raises
    Unsupported for a body that computes anything else."""
    if any(o is not steps and (not is_part(o) or o.args[0] is not steps) for o in body.outputs):
        raise Unsupported("a body with a loop over steps that computes more, in C++")
    return [o.attr("index") if is_part(o) else 0 for o in body.outputs]


def _whole(name: str, type: Tensor, strides: Shape | None) -> CppBuffer:
    """A tensor that lies row by row, or with other strides."""
    shape = type.shape or ()
    return CppBuffer(type.dtype, shape, name, contiguous(shape) if strides is None else strides)


def _pointer(x: CppBuffer, value: Expression, const: str = "") -> Let:
    """The pointer by a buffer's name."""
    return Let(x.name, value, f"{const}{memory_type(x.dtype)}* __restrict")


def count_text(counts: Iterable[Dim]) -> str:
    """The number of blocks or iterations, in C++."""
    known = prod(n for n in counts if isinstance(n, int))
    found = [product_factor(n).replace("//", "/") for n in counts if not isinstance(n, int)]
    return " * ".join([*([str(known)] if known != 1 or not found else []), *found])


def _block_indices(grid: BufferSizes) -> Iterator[Statement]:
    for g in reversed(range(len(grid))):
        if grid[g] != 1:
            after, own = count_text(grid[g + 1 :]), count_text(grid[g : g + 1])
            at = v.block if after == "1" else v.block / (after if after.isdigit() else f"({after})")
            yield Let(f"g{g}", at % own if g or len(grid) > 1 else at, "const size_t")


def _tiled(cut: Iterable[tuple[Dim, str]], made: Sequence[Statement]) -> list[Statement]:
    """The statements for tiles of every size: once for whole tiles, whose sizes the compiler knows,
    and once for the last ones. `cut`: the dims that are cut, each with the number of the tile."""
    parts: dict[str, tuple[int, Expression]] = {}
    for dim, number in cut:
        if (part := part_of(dim)) is not None:
            whole, size = part
            parts[str(dim)] = size, expression(whole) - v[number] * size
    if not parts:
        return list(made)
    given = [f"[[maybe_unused]] const auto {name}" for name in parts]
    known = v.tile_of(*(v[f"constant<{size}>"]() for size, _ in parts.values()))
    left = v.tile_of(*(v.smaller(size, rest) for size, rest in parts.values()))
    fits = every(rest >= size for size, rest in parts.values())
    return [ProgramFunction("tile_of", given, tuple(made)), when(fits, known, otherwise=[left])]


def _tile(
    i: int, leaf: Node, x: CppBuffer, grid: BufferSizes, loop: Dim, imap: Strides, fmap: int
) -> tuple[CppBuffer, Expression, bool]:
    """The tile of an operand: its buffer, its start, and whether it moves in the loop."""
    extent = list(x.shape)
    start = v[x.name]
    for g, axis in enumerate(imap):
        if axis >= 0:
            extent[axis] = tile_stride(extent[axis], leaf.shape[axis], grid[g])
            if grid[g] != 1:
                start += v[f"g{g}"] * product_factor(extent[axis] * x.strides[axis])
    moves = fmap >= 0 and loop != 1
    if moves:
        extent[fmap] = tile_stride(extent[fmap], leaf.shape[fmap], loop)
        start += v.iteration * product_factor(extent[fmap] * x.strides[fmap])
    return CppBuffer(x.dtype, leaf.shape, f"t{i}", x.strides), start, moves


def _starts(
    shape: Shape, tile: Shape, grid: BufferSizes, loop: Dim, imap: Strides, fmap: int
) -> tuple[list[Dim], dict[str, Dim]]:
    """The position at which a tile begins, and the variables in it with their numbers of values."""
    extent, starts, counts = list(shape), list[Dim]([0] * len(shape)), dict[str, Dim]()
    cuts = [(axis, grid[g], f"g{g}") for g, axis in enumerate(imap)]
    for axis, count, name in [*cuts, (fmap, loop, "iteration")]:
        if axis >= 0 and count != 1:
            extent[axis] = tile_stride(extent[axis], tile[axis], count)
            starts[axis] = starts[axis] + symbol(name) * extent[axis]
            counts[name] = count
    return starts, counts


def _result(
    o: int, tile: Tensor, y: CppBuffer, grid: BufferSizes, omap: Strides, start: Expression
) -> tuple[CppBuffer, Expression, CppBuffer | None]:
    """The place of a block's part of an output that begins at `start`: the blocks of the first grid
    dim are the furthest apart. If only the first block along a grid dim gives it, the others write
    into memory of their own."""
    shape = tile.shape or ()
    extent = [n if (found := part_of(n)) is None else found[1] for n in shape]
    alone = list[Expression]()
    for g in reversed(range(len(grid))):
        if omap[g] < 0:
            alone += [v[f"g{g}"].equals(0)] if grid[g] != 1 else []
            continue
        if grid[g] != 1:
            start += v[f"g{g}"] * product_factor(extent[omap[g]] * y.strides[omap[g]])
        extent[omap[g]] = extent[omap[g]] * grid[g]
    made = CppBuffer(y.dtype, shape, f"r{o}", y.strides)
    if not alone:
        return made, start, None
    last: Dim = sum([(n - 1) * stride for n, stride in zip(y.shape, y.strides, strict=True)], start=0)
    spare = CppBuffer(y.dtype, (last + 1,), f"spare{o}", (1,))
    return made, select(start, every(alone), spare.name), spare
