"""A muGraph as readable C++17: one function for each kernel, one block a call, and an entry point
that runs the grids in order.

    extern "C" void NAME(const void** inputs, void** outputs, void* scratch,
                         void (*parallel_for)(void (*)(void*, size_t), size_t, void*, void*), void* pool);
    extern "C" size_t NAME_scratch();   // bytes that `scratch` must have, aligned to 64

Where sizes are named that only a run knows (n0, ...), they come behind the inputs and the prepared
arrays, at `inputs[count of inputs + 1]`, a `const size_t*`; then NAME_scratch takes it too.

Inputs and outputs are the graph's, dense, row by row; they do not overlap. `parallel_for(fn, count,
data, pool)` calls fn(data, i) for every i below count, in any order, on any threads, and returns
when all have returned; `pool` is handed through (an OrtKernelContext, say). Where it is null the
blocks run in a loop. Kernels keep no state between calls.

A muGraph that prepares its weights has one more for the arrays that are computed from them, once,
and read in every run: it lies behind the graph's inputs, at `inputs[count of inputs]`, aligned to
64.

    extern "C" const size_t NAME_prepared[];  // its bytes, how many inputs are weights, and which
    extern "C" void NAME_prepare(const void** inputs, void* prepared);  // reads only those

Floats are fp32 in registers, tiles and between kernels (Mirage, OSDI'25, section 3, stores what its
graphs declare).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import numpy as np

from taso_mirage.errors import InvalidOption, Unsupported
from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.ir.mugraph import Lowering, has_free_sizes, size_names
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_float
from taso_mirage.kernels.codegen.cpu.blocks import CppKernelFunction, count_text, function_text
from taso_mirage.kernels.codegen.cpu.nests import INDENT, cpp_number, memory_type
from taso_mirage.kernels.codegen.cpu.prepared import PreparedTerm, headers, layout, prepares, template_instance
from taso_mirage.kernels.codegen.cpu.values import LazyMeaning
from taso_mirage.operators.ops import traits
from taso_mirage.rewriting.text import show_graph

ALIGNMENT = 64
ALONE = 1 << 16
"""Bytes up to which a kernel without products runs on its caller's thread: to start the others
takes longer."""


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
    free = [free_header()] if any(has_free_sizes(graph) for graph in graphs.values()) else []
    return "\n".join([heads + NOTE, vector_header(), *free, *headers(graphs.values()), *_tables(lazy), *made])


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The muGraph for runs whose named sizes have a product of at most `most`."""

    graph: Graph
    most: int


def generate_ranges(graph: Graph, before: Sequence[SizeRange], name: str = "kernel") -> str:
    """One entry point for muGraphs of one goal: the first of those `before` whose range has the
    sizes of a run, else `graph`. All have the same inputs, and prepare the same of them.

    Raises Unsupported where they do not."""
    if not before:
        return generate_cpp(graph, name)
    graphs, limits = [*[each.graph for each in before], graph], [each.most for each in before]
    if any(layout(each) != layout(graph) for each in graphs):
        raise Unsupported("muGraphs for several sizes whose prepared weights lie otherwise")
    source = generate_all({f"{name}_range{i}": each for i, each in enumerate(graphs)})
    given = size_names([x.shape for x in graph.inputs])
    place, count = len(graph.inputs) + 1, " * ".join(f"sizes[{i}]" for i in range(len(given)))
    operands = "inputs, outputs, scratch, parallel_for, pool"
    heads = (
        (f"size_t {name}_scratch(const size_t* sizes)", "", "_scratch(sizes)"),
        (
            f"void {name}(const void** inputs, void** outputs, void* scratch, parallel_for_t parallel_for, void* pool)",
            f"{INDENT}const size_t* sizes = static_cast<const size_t*>(inputs[{place}]);\n",
            f"({operands})",
        ),
    )
    for head, first, call in heads:
        source += f'\nextern "C" {head} {{\n{first}'
        for i in range(len(graphs)):
            limit = f"if ({count} <= {limits[i]}) " if i < len(limits) else ""
            source += f"{INDENT}{limit}return {name}_range{i}{call};\n"
        source += "}\n"
    last = f"{name}_range{len(before)}"
    if any(map(prepares, graph)):
        source = source.replace(f"{last}_prepare", f"{name}_prepare")
    return source


@dataclass
class CppProgram:
    """Where every tensor of a muGraph lies, and the functions of its kernels."""

    graph: Graph
    name: str
    lazy: LazyMeaning
    names: list[str] = field(default_factory=list)
    """The sizes that a run gives."""
    places: dict[tuple[Node, int], tuple[str, Tensor]] = field(default_factory=dict)
    scratch: list[Dim] = field(default_factory=list)
    """The bytes of each tensor in the scratch memory."""
    functions: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    prepared: list[PreparedTerm] = field(default_factory=list)
    """The terms that read prepared weights, which lie one behind the other."""
    waiting: list[PreparedTerm] = field(default_factory=list)
    """The prepared instances whose results nothing has read yet: they run together."""

    def source(self) -> str:
        """The program's functions; code that all programs share stands above them."""
        self.names = size_names([x.shape for x in self.graph.inputs])
        for i, node in enumerate(self.graph.inputs):
            self.places[node, 0] = (f"inputs[{i}]", node.tensor)
        for node in self.graph:
            if any(each.node in node.args for each in self.waiting):
                self._run_prepared()
            if prepares(node):
                self._by_class(node)
            elif node.op not in ("input", "item", "constant") and node is not ABSENT:
                self._kernel(node)
        self._run_prepared()
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
        block = CppKernelFunction(self.lazy, node, self.names)
        lines = block.function(operands, [t for _, t in where])
        self.functions.append(function_text(function, node, block, lines))
        pointers = ", ".join(f"const_cast<void*>({p})" if p.startswith("inputs") else p for p, _ in where)
        blocks = count_text(node.attr("grid")) if traits(node).lowering is Lowering.KERNEL else "1"
        tensors = f"tensors_{len(self.functions) - 1}"
        self.calls += [
            f"void* {tensors}[] = {{{pointers}{', const_cast<size_t*>(sizes)' if self.names else ''}}};",
            f"run({function}, {blocks}, {tensors}, {self._threads(node, [t for _, t in where])}, pool);",
        ]

    def _threads(self, node: Node, types: Sequence[Tensor]) -> str:
        """The C++ expression for the threads that run the blocks of a kernel."""
        body = node.attr("body") if traits(node).lowering is Lowering.KERNEL else ()
        moved: Dim = sum(map(_bytes, types))
        if any(traits(each).lowering is Lowering.CONTRACT for each in body) or (
            isinstance(moved, int) and moved > ALONE
        ):
            return "parallel_for"
        return "nullptr" if isinstance(moved, int) else f"{moved} <= {ALONE} ? nullptr : parallel_for"

    def _by_class(self, node: Node) -> None:
        """Compile a node to an instance of a header's class, whose blocks run before their result
        is read."""
        made = PreparedTerm(node, f"{self.name}_{len(self.functions)}", template_instance(node))
        if any(node.args[i] not in self.graph.inputs for i in made.weights):
            raise Unsupported("a muGraph that prepares weights that are no inputs")
        if any(arg.op == "constant" for arg in node.args):
            raise Unsupported(f"a {node.op} of a constant; make it an input")
        self.functions.append(made.declaration)
        self.places[node, 0] = self._place(node, 0, node.tensor)
        self.prepared.append(made)
        self.waiting.append(made)

    def _run_prepared(self) -> None:
        """First the digits that several terms may read, then all blocks."""
        digits: dict[object, str] = {}
        group, self.waiting = self.waiting, []
        for i, made in enumerate(group, len(self.prepared) - len(group)):
            tensors, rows = f"tensors_{made.name}", f"rows_{made.name}"
            self.calls += [f"size_t {rows} = {made.rows};"] if made.rows != 0 else []
            read = [
                None if arg is None else self.places[_source(arg)][0] for arg in (made.node.args[0], *made.operands)
            ]
            read.insert(1, f"static_cast<const char*>(inputs[{len(self.graph.inputs)}]) + {self._before(i)}")
            pointers = [
                "nullptr" if each is None else f"const_cast<void*>(static_cast<const void*>({each}))" for each in read
            ]
            pointers += [self.places[made.node, 0][0], f"&{rows}" if made.rows != 0 else "nullptr"]
            count, bytes, _ = made.kind.first
            key = made.node.args[0], made.kind.first
            known = digits.get(key)
            if bytes and known is None:
                digits[key] = f"static_cast<char*>(scratch) + {self._used()}"
                self.scratch.append(dim_product((count, bytes)))
            pointers.append(digits.get(key, "nullptr"))
            self.calls.append(f"void* {tensors}[] = {{{', '.join(pointers)}}};")
            if bytes and known is None:
                self.calls.append(f"run({made.name}::digits, {count}, {tensors}, parallel_for, pool);")
        if len(group) > 1:
            self._run_together(group)
        for made in group if len(group) == 1 else ():
            self.calls.append(f"run({made.name}::block, {made.blocks}, tensors_{made.name}, parallel_for, pool);")

    def _run_together(self, group: Sequence[PreparedTerm]) -> None:
        """The blocks of one term after those of the other."""
        names = [made.name for made in group]
        if any(made.blocks != f"{made.name}::BLOCKS" for made in group):
            raise Unsupported("a muGraph of several terms with prepared weights whose blocks a run counts")
        lines = [f"static void {names[0]}_blocks(void* data, size_t number) {{"]
        for i, name in enumerate(names):
            lines.append(
                f"{INDENT}if (number < {name}::BLOCKS) return {name}::block(static_cast<void**>(data)[{i}], number);"
            )
            lines.append(f"{INDENT}number -= {name}::BLOCKS;")
        self.functions.append("\n".join([*lines, "}"]))
        self.calls.append(f"void* all_{names[0]}[] = {{{', '.join(f'tensors_{name}' for name in names)}}};")
        count = " + ".join(f"{name}::BLOCKS" for name in names)
        self.calls.append(f"run({names[0]}_blocks, {count}, all_{names[0]}, parallel_for, pool);")

    def _before(self, count: int) -> str:
        """The bytes of the prepared arrays of the first terms."""
        return " + ".join(["0", *(f"({made.name}::PREPARED + 63) / 64 * 64" for made in self.prepared[:count])])

    def _place(self, node: Node, index: int, type: Tensor) -> tuple[str, Tensor]:
        """An output of the graph, else room in the scratch memory, where floats are fp32."""
        for i, output in enumerate(self.graph.outputs):
            if _source(output) == (node, index):
                return f"outputs[{i}]", type
        stored = Tensor("float32", type.shape) if is_float(type.dtype) else type
        at = self._used()
        self.scratch.append(_bytes(stored))
        return f"static_cast<char*>(scratch) + {at}", stored

    def _used(self) -> str:
        """The bytes of the scratch memory so far."""
        aligned = sum(-(-n // ALIGNMENT) * ALIGNMENT for n in self.scratch if isinstance(n, int))
        return " + ".join([str(aligned), *(f"aligned({n})" for n in self.scratch if not isinstance(n, int))])

    def _delivered(self, i: int, output: Node) -> None:
        """An output that is an input, or that an earlier output is too, is copied."""
        if output.op == "constant":
            raise Unsupported("an output of the muGraph that is a constant")
        place, type = self.places[_source(output)]
        if place != f"outputs[{i}]":
            self.calls.append(f"std::memcpy(outputs[{i}], {place}, {_bytes(type)});")

    def _entry(self) -> Iterator[str]:
        taken = "const size_t* sizes" if self.names else ""
        known = " ".join(f"[[maybe_unused]] const size_t {n} = sizes[{i}];" for i, n in enumerate(self.names))
        used = self._used() if self.scratch else "1"
        yield f'extern "C" size_t {self.name}_scratch({taken}) {{ {known and known + " "}return {used}; }}\n'
        yield f'extern "C" void {self.name}(const void** inputs, void** outputs, void* scratch, parallel_for_t parallel_for, void* pool) {{'
        if self.names:
            place = len(self.graph.inputs) + 1
            yield f"{INDENT}const size_t* sizes = static_cast<const size_t*>(inputs[{place}]);"
            yield INDENT + known
        yield from (INDENT + call for call in ("(void)inputs, (void)scratch, (void)parallel_for;", *self.calls))
        yield "}"
        if self.prepared:
            yield from self._preparing()

    def _preparing(self) -> Iterator[str]:
        """The function that prepares the weights, and the list of the inputs that are weights."""
        places, calls = dict[int, None](), list[str]()
        for i, made in enumerate(self.prepared):
            own = [self.graph.inputs.index(made.node.args[k]) for k in made.weights]
            places |= dict.fromkeys(own)
            calls.append(made.prepare.format(*own, at=f"static_cast<char*>(prepared) + {self._before(i)}"))
        said = ", ".join(map(str, (len(places), *places)))
        yield f'extern "C" const size_t {self.name}_prepared[] = {{{self._before(len(self.prepared))}, {said}}};'
        yield f'extern "C" void {self.name}_prepare(const void** inputs, void* prepared) {{ {" ".join(calls)} }}'


def _source(node: Node) -> tuple[Node, int]:
    return (node.args[0], node.attr("index")) if node.op == "item" else (node, 0)


def _bytes(type: Tensor) -> Dim:
    memory_type(type.dtype)
    return dim_product(type.shape or ()) * np.dtype(type.dtype).itemsize


@cache
def vector_header() -> str:
    """Elementary functions and dot products, which every source contains; and how a grid is run."""
    return files("taso_mirage.kernels.codegen.cpu").joinpath("vector.h").read_text()


@cache
def free_header() -> str:
    """The header of sources whose sizes are known only in a run."""
    return files("taso_mirage.kernels.codegen.cpu").joinpath("free.h").read_text()


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
