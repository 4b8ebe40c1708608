"""The C++ function of one block of a kernel: which part of every tensor it has, its tiles, and its
for-loop.

Where a run alone knows sizes, they are variables. The code of a block is then a generic lambda over
the sizes of its tiles: those of a whole tile are numbers that the compiler knows, those of the last
one the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from taso_mirage.emit.cpu.bodies import LoweredBody
from taso_mirage.emit.cpu.nests import INDENT, memory_type, phase_lines
from taso_mirage.emit.cpu.schedule import LoopSchedule, Memory
from taso_mirage.emit.cpu.values import BufferSizes, CppBuffer, LazyMeaning, LoopValue, Strides, contiguous
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import Lowering, largest_size, overlaps, part_of, product_factor, tile_stride
from taso_mirage.ir.terms import ABSENT, Graph, Literal, Node, Tensor, is_float
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import traits

STACK = 65_536
"""Bytes of tiles up to which a block keeps them on the stack; a thread pool's may be small."""


@dataclass
class CppKernelFunction:
    """The function of one kernel: the computation of one block of the grid.

    An ordinary operator is a kernel of one block.
    """

    lazy: LazyMeaning
    node: Node
    sizes: Sequence[str] = ()
    """The names of the sizes that a run gives."""
    memory: Memory = field(default_factory=Memory)
    used: set[str] = field(default_factory=set)
    spares: list[CppBuffer] = field(default_factory=list)
    """Where blocks write the results of another one."""

    def function(self, operands: Sequence[Node], types: Sequence[Tensor]) -> list[str]:
        """The lines of the body; `operands` without doubles, `types` of those and then of the
        results."""
        names = {arg: f"x{i}" for i, arg in enumerate(operands)}
        lines = [f"const size_t* sizes = static_cast<const size_t*>(tensors[{len(types)}]);"] if self.sizes else []
        lines += [f"const size_t {name} = sizes[{i}];" for i, name in enumerate(self.sizes)]
        for i, type in enumerate(types):
            constness, pointer = ("const ", f"x{i}") if i < len(operands) else ("", f"y{i - len(operands)}")
            c = memory_type(type.dtype)
            lines.append(f"{constness}{c}* __restrict {pointer} = static_cast<{constness}{c}*>(tensors[{i}]);")
        memory = {
            arg: CppBuffer(t.dtype, t.shape or (), names[arg], contiguous(t.shape or ()))
            for arg, t in zip(operands, types, strict=False)
        }
        results = [
            CppBuffer(t.dtype, t.shape or (), f"y{i}", contiguous(t.shape or ()))
            for i, t in enumerate(types[len(operands) :])
        ]
        if traits(self.node).lowering is not Lowering.KERNEL:
            return lines + self._ordinary(memory, results)
        given = [memory[arg] if arg in memory else self._constant(arg) for arg in self.node.args]
        return lines + self._kernel(given, results)

    def _constant(self, node: Node) -> CppBuffer:
        value = self.lazy.constant(node.attr("value"))
        if isinstance(value, CppBuffer):
            return value
        literal: Literal = node.attr("value")
        name = f"table{len(self.lazy.tables)}"
        self.lazy.tables[name] = literal
        return CppBuffer(literal.dtype, literal.shape, name, contiguous(literal.shape))

    def _ordinary(self, memory: Mapping[Node, CppBuffer], results: Sequence[CppBuffer]) -> list[str]:
        args = [
            None if a is ABSENT else memory[a] if a in memory else self.lazy.constant(a.attr("value"))
            for a in self.node.args
        ]
        made = interpret_term(self.node, self.lazy, args)
        values = made if isinstance(made, tuple) else (made,)
        return self._stage([(v, r, False) for v, r in zip(values, results, strict=True)], [])

    def _kernel(self, given: Sequence[CppBuffer], results: Sequence[CppBuffer]) -> list[str]:
        body: Graph = self.node.attr("body")
        grid, loop = self.node.attr("grid"), self.node.attr("loop")
        if self.node.attr("cluster") != 1:
            raise Unsupported("a cluster of blocks; threads of a CPU exchange nothing")
        if any(overlaps([x.shape for x in given], body, grid, self.node.attr("imap"))):
            raise Unsupported("blocks that overlap; two threads would write to the same places")
        before, lines = [*_block_indices(grid)], list[str]()
        tiles: dict[Node, CppBuffer] = {}
        moved: list[str] = []
        for i, (leaf, x) in enumerate(zip(body.inputs, given, strict=True)):
            imap, fmap = self.node.attr("imap")[i], self.node.attr("fmap")[i]
            tiles[leaf], start, step = _tile(i, leaf, x, grid, loop, imap, fmap)
            c = f"const {'float' if x.name in self.lazy.tables and is_float(x.dtype) else memory_type(x.dtype)}* __restrict"
            (moved if step else lines).append(f"{c} {tiles[leaf].name} = {start}{step};")
        targets = []
        for o, (output, y) in enumerate(zip(body.outputs, results, strict=True)):
            target, start, spare = _result(o, output.tensor, y, grid, self.node.attr("omap")[o])
            self.spares += [spare] if spare is not None else []
            lines.append(f"{memory_type(y.dtype)}* __restrict {target.name} = {start};")
            targets.append(target)
        lines += self._staged(body, tiles, targets, loop, moved)
        return before + _of_parts(_grid_parts(body, self.node.attr("imap")), lines)

    def _staged(
        self, body: Graph, tiles: Mapping[Node, CppBuffer], targets: Sequence[CppBuffer], loop: Dim, moved: list[str]
    ) -> list[str]:
        """The lines before, in and after the for-loop."""
        made = LoweredBody(self.lazy, self.memory, body, self.node.attr("fmap"), loop)
        outputs = made.values(tiles)
        results = [(v, t, False) for v, t in zip(outputs, targets, strict=True)]
        if loop == 1:
            return moved + self._stage(results, [])
        before = self._stage([(v, None, False) for v in made.invariants()], made.initial)
        inside = self._stage(made.roots, [])
        after = self._stage(results, [])
        parts = _loop_parts(body, self.node.attr("fmap"))
        iteration = [
            f"for (size_t iteration = 0; iteration < {count_text((loop,))}; ++iteration) {{",
            *(INDENT + line for line in _of_parts(parts, [*moved, *inside])),
            "}",
        ]
        return [*before, *iteration, *after]

    def _stage(self, roots: Sequence[tuple[LoopValue, CppBuffer | None, bool]], first: Sequence[str]) -> list[str]:
        schedule = LoopSchedule(self.memory)
        schedule.run(roots)
        asked = {self.memory.buffers[v].name for v, t, _ in roots if t is None and v in self.memory.buffers}
        mine = {b.name for b in self.memory.allocated}
        outside = {t.name for _, t, _ in roots if t is not None and t.name not in mine}
        lines, used = phase_lines(schedule, frozenset(asked | outside))
        self.used |= used
        return [*first, *lines]


def count_text(counts: Iterable[Dim]) -> str:
    """How many blocks or iterations there are, in C++."""
    known = prod(n for n in counts if isinstance(n, int))
    found = [product_factor(n).replace("//", "/") for n in counts if not isinstance(n, int)]
    return " * ".join([*([str(known)] if known != 1 or not found else []), *found])


def _block_indices(grid: BufferSizes) -> Iterator[str]:
    for g in reversed(range(len(grid))):
        if grid[g] != 1:
            after, own = count_text(grid[g + 1 :]), count_text(grid[g : g + 1])
            shown = "block" if after == "1" else f"block / {after if after.isdigit() else f'({after})'}"
            yield f"const size_t g{g} = {shown} % {own};" if g or len(grid) > 1 else f"const size_t g{g} = {shown};"


TilePart = tuple[str, int, str]
"""The name of a tile's size, its largest, and how much there is from where it begins, in C++."""


def _grid_parts(body: Graph, imap: Sequence[Strides]) -> list[TilePart]:
    """The tiled dims of a block, of which the last blocks of a grid dim have fewer elements."""
    found: dict[str, TilePart] = {}
    for leaf, axes in zip(body.inputs, imap, strict=True):
        for g, axis in enumerate(axes):
            each = part_of(leaf.shape[axis]) if axis >= 0 else None
            if each is not None:
                name = str(leaf.shape[axis])
                found[name] = name, each[1], f"{each[0]} - g{g} * {each[1]}"
    return list(found.values())


def _loop_parts(body: Graph, fmap: Strides) -> list[TilePart]:
    """The tiled dim of an iteration, of which the last iteration has fewer elements."""
    cut = [leaf.shape[axis] for leaf, axis in zip(body.inputs, fmap, strict=True) if axis >= 0]
    found = {str(dim): each for dim in cut if (each := part_of(dim)) is not None}
    return [(name, size, f"{whole} - iteration * {size}") for name, (whole, size) in found.items()]


def _of_parts(parts: Sequence[TilePart], lines: Sequence[str]) -> list[str]:
    """The lines for tiles of every size: once for whole ones, whose sizes the compiler knows, and
    once for others."""
    if not parts:
        return list(lines)
    operands = ", ".join(f"[[maybe_unused]] const auto {name}" for name, _, _ in parts)
    left = ", ".join(f"smaller({size}, {rest})" for _, size, rest in parts)
    whole = " && ".join(f"{rest} >= {size}" for _, size, rest in parts)
    known = ", ".join(f"constant<{size}>()" for _, size, _ in parts)
    return [
        f"const auto tile_of = [&]({operands}) {{",
        *(INDENT + line if not line.startswith("#") else line for line in lines),
        "};",
        f"if ({whole}) tile_of({known});",
        f"else tile_of({left});",
    ]


def _tile(
    i: int, leaf: Node, x: CppBuffer, grid: BufferSizes, loop: Dim, imap: Strides, fmap: int
) -> tuple[CppBuffer, str, str]:
    """The tile of an operand: its buffer, the start of the block's share, and the step of the
    loop."""
    extent = list(x.shape)
    start = x.name
    for g, axis in enumerate(imap):
        if axis >= 0:
            extent[axis] = tile_stride(extent[axis], leaf.shape[axis], grid[g])
            if grid[g] != 1:
                start += f" + g{g} * {product_factor(extent[axis] * x.strides[axis])}"
    step = ""
    if fmap >= 0 and loop != 1:
        extent[fmap] = tile_stride(extent[fmap], leaf.shape[fmap], loop)
        step = f" + iteration * {product_factor(extent[fmap] * x.strides[fmap])}"
    return CppBuffer(x.dtype, leaf.shape, f"t{i}", x.strides), start, step


def _result(
    o: int, tile: Tensor, y: CppBuffer, grid: BufferSizes, omap: Strides
) -> tuple[CppBuffer, str, CppBuffer | None]:
    """Where a block's part of an output lies: the blocks of the first grid dim are the furthest
    apart. Where only the first block along a grid dim gives it, the others write into room of their
    own."""
    shape = tile.shape or ()
    extent = [n if (found := part_of(n)) is None else found[1] for n in shape]
    start, alone = y.name, []
    for g in reversed(range(len(grid))):
        if omap[g] < 0:
            alone += [f"g{g} == 0"] if grid[g] != 1 else []
            continue
        if grid[g] != 1:
            start += f" + g{g} * {product_factor(extent[omap[g]] * y.strides[omap[g]])}"
        extent[omap[g]] = extent[omap[g]] * grid[g]
    made = CppBuffer(y.dtype, shape, f"r{o}", y.strides)
    if not alone:
        return made, start, None
    spare = CppBuffer(y.dtype, y.shape, f"spare{o}", y.strides)
    return made, f"{' && '.join(alone)} ? {start} : {spare.name}", spare


def function_text(name: str, node: Node, block: CppKernelFunction, lines: Sequence[str]) -> str:
    """The text of a kernel's function: its tiles, then the computation."""
    tiles = [b for b in block.memory.allocated if b.name in block.used]
    rooms = [("float" if is_float(b.dtype) else memory_type(b.dtype), b.name, largest_size(b.count)) for b in tiles]
    rooms += [(memory_type(b.dtype), b.name, largest_size(b.count)) for b in block.spares]
    size = sum(4 * n for _, _, n in rooms if isinstance(n, int))
    where = "alignas(64) " if size <= STACK else "alignas(64) static thread_local "
    made = [f"{where}{c} {name}[{n}];" for c, name, n in rooms if isinstance(n, int)]
    free = [(c, name, f"aligned(4 * {product_factor(n)})") for c, name, n in rooms if not isinstance(n, int)]
    first = [f"char* memory = memory_of_thread({' + '.join(n for _, _, n in free)});"] if free else []
    for i, (c, room, _) in enumerate(free):
        before = " + ".join(["memory", *(n for _, _, n in free[:i])])
        first.append(f"{c}* __restrict {room} = reinterpret_cast<{c}*>({before});")
    shown = (
        f"grid {node.attr('grid')}, loop {node.attr('loop')}" if traits(node).lowering is Lowering.KERNEL else node.op
    )
    head = f"// {shown}; tiles of {size} bytes {'on the stack' if size <= STACK else 'of each thread'}"
    known = len(block.sizes) + 1 if block.sizes else 0
    lines = [*lines[:known], *first, *lines[known:]]
    body = "\n".join(INDENT + line if not line.startswith("#") else line for line in (*made, *_read(lines)))
    tensors = f"{INDENT}void** tensors = static_cast<void**>(data);"
    return f"{head}\nstatic void {name}(void* data, [[maybe_unused]] size_t block) {{\n{tensors}\n{body}\n}}"


DEFINED = re.compile(r"\s*(?:const \w+\* __restrict|const size_t) (\w+) = ")


def _read(lines: Sequence[str]) -> list[str]:
    """The lines without pointers and block indices that none of those below reads."""
    found: list[str] = []
    words: set[str] = set()
    for line in reversed(lines):
        made = DEFINED.match(line)
        if made is None or made[1] in words:
            found.append(line)
            words.update(re.findall(r"\w+", line[made.end() :] if made else line))
    return found[::-1]
