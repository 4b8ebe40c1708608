"""A muGraph as readable C++17: one function for each kernel, one block a call, and an entry point
that runs the grids in order.

    extern "C" void NAME(const void** inputs, void** outputs, void* scratch,
                         void (*parallel_for)(void (*)(void*, size_t), size_t, void*, void*), void* pool);
    extern "C" size_t NAME_scratch();   // bytes that `scratch` must have, aligned to 64

Inputs and outputs are the graph's, dense, row by row; they do not overlap. `parallel_for(fn, count,
data, pool)` calls fn(data, i) for every i below count, in any order, on any threads, and returns
when all have returned; `pool` is handed through (an OrtKernelContext, say). Where it is null the
blocks run in a loop. Kernels keep no state between calls.

A muGraph that prepares its weights has more, for what is computed from them, once, and read in
every run: it lies behind the graph's inputs, at `inputs[count of inputs]`, aligned to 64.

    extern "C" const size_t NAME_prepared[];                           // its bytes, and which input
    the weights are
    extern "C" void NAME_prepare(const void* weights, void* prepared);

Floats are fp32 in registers, tiles and between kernels (Mirage, OSDI'25, section 3, stores what its
graphs declare).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import prod

import numpy as np

from taso_mirage.errors import InvalidOption, Unsupported
from taso_mirage.ir.mugraph import Lowering, overlaps
from taso_mirage.ir.terms import ABSENT, Graph, Literal, Node, Tensor, is_float
from taso_mirage.kernels.codegen.cpu.bodies import LoweredBody
from taso_mirage.kernels.codegen.cpu.nests import INDENT, cpp_number, memory_type, phase_lines
from taso_mirage.kernels.codegen.cpu.prepared import PreparedInstance, headers, prepares
from taso_mirage.kernels.codegen.cpu.schedule import LoopSchedule, Memory
from taso_mirage.kernels.codegen.cpu.values import (
    CppBuffer,
    LazyMeaning,
    LoopValue,
    Strides,
    contiguous,
)
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import traits
from taso_mirage.rewriting.text import show_graph

STACK = 65_536
"""Bytes of tiles up to which a block keeps them on the stack; a thread pool's may be small."""
ALIGNMENT = 64


def generate_cpp(graph: Graph, name: str = "kernel") -> str:
    """The C++ source of a muGraph, complete in one file.

    Raises Unsupported with the operator or dtype that has no C++.
    """
    return generate_all({name: graph})


def generate_all(graphs: Mapping[str, Graph]) -> str:
    """The C++ source of several muGraphs by the names of their entry points, in one file."""
    lazy, made = LazyMeaning(), []
    for name, graph in graphs.items():
        if not name.isidentifier() or not name.isascii():
            raise InvalidOption(f"{name!r} is no name of a C function")
        made.append(CppProgram(graph, name, lazy).source())
    heads = "".join(_comment(graph) for graph in graphs.values())
    return "\n".join([heads + NOTE, vector_header(), *headers(graphs.values()), *_tables(lazy), *made])


@dataclass
class CppProgram:
    """Where every tensor of a muGraph lies, and the functions of its kernels."""

    graph: Graph
    name: str
    lazy: LazyMeaning
    places: dict[tuple[Node, int], tuple[str, Tensor]] = field(default_factory=dict)
    scratch: int = 0
    functions: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    prepared: tuple[str, int] | None = None
    """The class of the term that reads prepared weights, and the input that they are made from."""

    def source(self) -> str:
        """Its functions; what they have in common stands above those of all programs."""
        for i, node in enumerate(self.graph.inputs):
            self.places[node, 0] = (f"inputs[{i}]", node.tensor)
        for node in self.graph:
            if prepares(node):
                self._by_class(node)
            elif node.op not in ("input", "item", "constant") and node is not ABSENT:
                self._kernel(node)
        for i, output in enumerate(self.graph.outputs):
            self._delivered(i, output)
        return "\n".join(["\n\n".join(self.functions), "", *self._entry()]) + "\n"

    def _kernel(self, node: Node) -> None:
        if node.op == "weight":
            raise Unsupported(f"the weight {node.attr('name')} of a muGraph; make it an input")
        types = node.type if isinstance(node.type, tuple) else (node.tensor,)
        for i, type in enumerate(types):
            self.places[node, i] = self._place(node, i, type)
        operands = [arg for arg in dict.fromkeys(node.args) if arg is not ABSENT and arg.op != "constant"]
        where = [self.places[_source(arg)] for arg in operands] + [self.places[node, i] for i in range(len(types))]
        function = f"{self.name}_{len(self.functions)}"
        block = CppKernelFunction(self.lazy, node)
        lines = block.function(operands, [t for _, t in where])
        self.functions.append(_function(function, node, block, lines))
        pointers = ", ".join(f"const_cast<void*>({p})" if p.startswith("inputs") else p for p, _ in where)
        blocks = prod(node.attr("grid")) if traits(node).lowering is Lowering.KERNEL else 1
        tensors = f"tensors_{len(self.functions) - 1}"
        self.calls += [
            f"void* {tensors}[] = {{{pointers}}};",
            f"run({function}, {blocks}, {tensors}, parallel_for, pool);",
        ]

    def _by_class(self, node: Node) -> None:
        """Its blocks are those of the class that a header has for it."""
        if node.args[1] not in self.graph.inputs or self.prepared is not None:
            raise Unsupported("a muGraph that prepares two weights, or one that is no input")
        made = PreparedInstance(node, f"{self.name}_{len(self.functions)}")
        self.functions.append(made.instance)
        self.prepared = made.name, self.graph.inputs.index(node.args[1])
        self.places[node, 0] = self._place(node, 0, node.tensor)
        read = [None if arg is None else self.places[_source(arg)][0] for arg in (node.args[0], *made.operands)]
        read.insert(1, f"inputs[{len(self.graph.inputs)}]")
        pointers = ", ".join("nullptr" if each is None else f"const_cast<void*>({each})" for each in read)
        tensors = f"tensors_{len(self.functions) - 1}"
        self.calls += [
            f"void* {tensors}[] = {{{pointers}, {self.places[node, 0][0]}}};",
            f"run({made.name}::block, {made.name}::BLOCKS, {tensors}, parallel_for, pool);",
        ]

    def _place(self, node: Node, index: int, type: Tensor) -> tuple[str, Tensor]:
        """An output of the graph, else room in the scratch memory, where floats are fp32."""
        for i, output in enumerate(self.graph.outputs):
            if _source(output) == (node, index):
                return f"outputs[{i}]", type
        stored = Tensor("float32", type.shape) if is_float(type.dtype) else type
        at = self.scratch
        self.scratch += -(-_bytes(stored) // ALIGNMENT) * ALIGNMENT
        return f"static_cast<char*>(scratch) + {at}", stored

    def _delivered(self, i: int, output: Node) -> None:
        """An output that is an input, or that an earlier output is too, is copied."""
        if output.op == "constant":
            raise Unsupported("an output of the muGraph that is a constant")
        place, type = self.places[_source(output)]
        if place != f"outputs[{i}]":
            self.calls.append(f"std::memcpy(outputs[{i}], {place}, {_bytes(type)});")

    def _entry(self) -> Iterator[str]:
        yield f'extern "C" size_t {self.name}_scratch() {{ return {max(self.scratch, 1)}; }}\n'
        yield f'extern "C" void {self.name}(const void** inputs, void** outputs, void* scratch, parallel_for_t parallel_for, void* pool) {{'
        yield from (INDENT + call for call in ("(void)inputs;", "(void)scratch;", *self.calls))
        yield "}"
        if self.prepared is not None:
            yield from self._preparing(*self.prepared)

    def _preparing(self, made: str, place: int) -> Iterator[str]:
        yield f'extern "C" const size_t {self.name}_prepared[] = {{{made}::PREPARED, {place}}};'
        yield f'extern "C" void {self.name}_prepare(const void* weights, void* prepared) {{ {made}::prepare(weights, prepared); }}'


def _source(node: Node) -> tuple[Node, int]:
    return (node.args[0], node.attr("index")) if node.op == "item" else (node, 0)


def _bytes(type: Tensor) -> int:
    memory_type(type.dtype)
    return prod(int(n) for n in type.shape or ()) * np.dtype(type.dtype).itemsize


@cache
def vector_header() -> str:
    """Elementary functions and dot products, which every source contains; and how a grid is run."""
    return files("taso_mirage.kernels.codegen.cpu").joinpath("vector.h").read_text()


def _tables(lazy: LazyMeaning) -> Iterator[str]:
    for name, value in lazy.tables.items():
        numbers = ", ".join(cpp_number(float(v), value.dtype) for v in value.numpy().ravel())
        type = "float" if is_float(value.dtype) else memory_type(value.dtype)
        yield f"static const {type} {name}[] = {{{numbers}}};"


def _comment(graph: Graph) -> str:
    shown = "".join(f"//   {line}\n" for line in show_graph(graph).splitlines())
    return "// Generated by taso_mirage from this muGraph:\n//\n" + shown + "//\n"


NOTE = """\
// A kernel is a function of one block, its for-loop a loop in it. Tiles that products and folds read lie on the stack; what one
// loop nest makes and only it reads stays in a register. All floats are fp32 between load and store.
"""


# ---------------------------------------------------------------- one block


@dataclass
class CppKernelFunction:
    """The function of one kernel: what it computes for one block of the grid.

    An ordinary operator is a kernel of one block.
    """

    lazy: LazyMeaning
    node: Node
    memory: Memory = field(default_factory=Memory)
    used: set[str] = field(default_factory=set)
    spares: list[CppBuffer] = field(default_factory=list)
    """Where blocks write what another one gives."""

    def function(self, operands: Sequence[Node], types: Sequence[Tensor]) -> list[str]:
        """The lines of the body; `operands` without doubles, `types` of those and then of the
        results."""
        names = {arg: f"x{i}" for i, arg in enumerate(operands)}
        lines = []
        for i, type in enumerate(types):
            constness, pointer = ("const ", f"x{i}") if i < len(operands) else ("", f"y{i - len(operands)}")
            c = memory_type(type.dtype)
            lines.append(f"{constness}{c}* __restrict {pointer} = static_cast<{constness}{c}*>(tensors[{i}]);")
        memory = {
            arg: CppBuffer(t.dtype, _fixed(t), names[arg], contiguous(_fixed(t)))
            for arg, t in zip(operands, types, strict=False)
        }
        results = [
            CppBuffer(t.dtype, _fixed(t), f"y{i}", contiguous(_fixed(t))) for i, t in enumerate(types[len(operands) :])
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
        if any(overlaps([x.shape for x in given], body, grid, self.node.attr("imap"))):
            raise Unsupported("blocks that overlap; two threads would write to the same places")
        lines = [*_block_indices(grid)]
        tiles: dict[Node, CppBuffer] = {}
        moved: list[str] = []
        for i, (leaf, x) in enumerate(zip(body.inputs, given, strict=True)):
            tiles[leaf], start, step = _tile(
                i, leaf, x, grid, loop, self.node.attr("imap")[i], self.node.attr("fmap")[i]
            )
            c = f"const {'float' if x.name in self.lazy.tables and is_float(x.dtype) else memory_type(x.dtype)}* __restrict"
            (moved if step else lines).append(f"{c} {tiles[leaf].name} = {start}{step};")
        targets = []
        for o, (output, y) in enumerate(zip(body.outputs, results, strict=True)):
            target, start, spare = _result(o, output.tensor, y, grid, self.node.attr("omap")[o])
            self.spares += [spare] if spare is not None else []
            lines.append(f"{memory_type(y.dtype)}* __restrict {target.name} = {start};")
            targets.append(target)
        return lines + self._staged(body, tiles, targets, loop, moved)

    def _staged(
        self, body: Graph, tiles: Mapping[Node, CppBuffer], targets: Sequence[CppBuffer], loop: int, moved: list[str]
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
        iteration = [
            f"for (size_t iteration = 0; iteration < {loop}; ++iteration) {{",
            *(INDENT + line for line in (*moved, *inside)),
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


def _fixed(type: Tensor) -> Strides:
    if type.shape is None or not all(isinstance(n, int) for n in type.shape):
        raise Unsupported(f"a kernel over {type}; code is made for fixed sizes")
    return tuple(int(n) for n in type.shape)


def _block_indices(grid: Strides) -> Iterator[str]:
    after = 1
    for g in reversed(range(len(grid))):
        if grid[g] > 1:
            shown = "block" if after == 1 else f"block / {after}"
            yield f"const size_t g{g} = {shown} % {grid[g]};" if g or len(grid) > 1 else f"const size_t g{g} = {shown};"
        after *= grid[g]


def _tile(
    i: int, leaf: Node, x: CppBuffer, grid: Strides, loop: int, imap: Strides, fmap: int
) -> tuple[CppBuffer, str, str]:
    """The tile of an operand: its buffer, where the block's share starts, and what the loop
    adds."""
    extent = list(x.shape)
    start = x.name
    for g, axis in enumerate(imap):
        if axis >= 0:
            extent[axis] //= grid[g]
            if grid[g] > 1:
                start += f" + g{g} * {extent[axis] * x.strides[axis]}"
    step = ""
    if fmap >= 0 and loop > 1:
        extent[fmap] //= loop
        step = f" + iteration * {extent[fmap] * x.strides[fmap]}"
    return CppBuffer(x.dtype, tuple(extent), f"t{i}", x.strides), start, step


def _result(
    o: int, tile: Tensor, y: CppBuffer, grid: Strides, omap: Strides
) -> tuple[CppBuffer, str, CppBuffer | None]:
    """Where a block's part of an output lies: the blocks of the first grid dim are the furthest
    apart. Where only the first block along a grid dim gives it, the others write into room of their
    own."""
    extent = list(_fixed(tile))
    start, alone = y.name, []
    for g in reversed(range(len(grid))):
        if omap[g] < 0:
            alone += [f"g{g} == 0"] if grid[g] > 1 else []
            continue
        if grid[g] > 1:
            start += f" + g{g} * {extent[omap[g]] * y.strides[omap[g]]}"
        extent[omap[g]] *= grid[g]
    found = CppBuffer(y.dtype, _fixed(tile), f"r{o}", y.strides)
    if not alone:
        return found, start, None
    spare = CppBuffer(y.dtype, y.shape, f"spare{o}", y.strides)
    return found, f"{' && '.join(alone)} ? {start} : {spare.name}", spare


def _function(name: str, node: Node, block: CppKernelFunction, lines: Sequence[str]) -> str:
    """The text of a kernel's function: its tiles, then what is computed."""
    tiles = [b for b in block.memory.allocated if b.name in block.used]
    size = sum(b.count * 4 for b in (*tiles, *block.spares))
    where = "alignas(64) " if size <= STACK else "alignas(64) static thread_local "
    made = [f"{where}{'float' if is_float(b.dtype) else memory_type(b.dtype)} {b.name}[{b.count}];" for b in tiles]
    made += [f"{where}{memory_type(b.dtype)} {b.name}[{b.count}];" for b in block.spares]
    shown = (
        f"grid {node.attr('grid')}, loop {node.attr('loop')}" if traits(node).lowering is Lowering.KERNEL else node.op
    )
    head = f"// {shown}; tiles of {size} bytes {'on the stack' if size <= STACK else 'of each thread'}"
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
