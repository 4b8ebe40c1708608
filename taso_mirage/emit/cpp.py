"""A muGraph as readable C++17: one function for each kernel, one block a call, and an entry point
that runs the grids in order.

    extern "C" void NAME(const void** inputs, void** outputs, void* scratch,
                         void (*parallel_for)(void (*)(void*, size_t), size_t, void*, void*), void* pool);
    extern "C" size_t NAME_scratch();   // the bytes of `scratch`, which is aligned to 64

Named sizes that only a run knows (n0, ...) follow the inputs and the prepared arrays, at
`inputs[count of inputs + 1]`, a `const size_t*`; NAME_scratch takes them, too.

Inputs and outputs are the graph's, dense, row by row. They do not overlap, but an input that is a
part of an output may be that part's own memory: it is then not copied. `parallel_for(fn, count,
data, pool)` calls fn(data, i) for every i below count, in any order, on any threads, and returns
when all have returned; `pool` is passed through (for example an OrtKernelContext). If
`parallel_for` is null, the blocks run in a loop. Kernels keep no state between calls.

A muGraph that prepares its weights has one more input for the arrays that are computed from them,
once, and read in every run. It follows the graph's inputs, at `inputs[count of inputs]`, aligned to
64.

    extern "C" const size_t NAME_prepared[];  // its bytes, how many inputs are weights, and which
    extern "C" void NAME_prepare(const void** inputs, void* prepared);  // reads only those

Floats are fp32 in registers, tiles and between kernels (Mirage, OSDI'25, section 3, stores the
declared dtypes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import mul

from taso_mirage.emit.cpu.blocks import CppKernelFunction, count_text
from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning
from taso_mirage.emit.cpu.mapped_tensors import operand_sources
from taso_mirage.emit.cpu.nests import cpp_number, register_type
from taso_mirage.emit.cpu.places import Places, tensor_bytes
from taso_mirage.emit.cpu.prepared import PreparedCalls, header, headers, layout, prepares
from taso_mirage.emit.cpu.printer import function_text, lines, static_cast
from taso_mirage.emit.statements import (
    Expression,
    Let,
    ProgramFunction,
    Return,
    Scope,
    Statement,
    expression,
    select,
    sum_of,
    v,
    when,
)
from taso_mirage.errors import InvalidOption, Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import Lowering, has_free_sizes, size_names
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, users
from taso_mirage.operators.movements import is_moved
from taso_mirage.operators.ops import traits
from taso_mirage.operators.stores import launch_order
from taso_mirage.rewriting.text import show_graph

TEAM = ".begin(team, "
"""The text in the function of a block in whose steps two threads take part (`team.h`)."""
ALONE = 1 << 16
"""Bytes up to which a kernel without products runs on its caller's thread: starting the other
threads takes longer."""


def generate_cpp(graph: Graph, name: str = "kernel") -> str:
    """The C++ source of a muGraph, complete in one file.

    Raises Unsupported with the operator or dtype that has no form in C++.
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
    maps = [header("index_maps.h")] if any(f"{name}_of(" in each for each in made for name in ("row", "floor")) else []
    team = [header("team.h")] if any("of_thread<" in each for each in made) else []
    team += [header("best_column.h")] if any("BestColumn<" in each for each in made) else []
    maps += [header("chunk.h")] if any("chunk_read<" in each for each in made) else []
    free = [header("free.h")] if any(has_free_sizes(graph) for graph in graphs.values()) else []
    return "\n".join(
        [heads + NOTE, header("vector.h"), *maps, *team, *free, *headers(graphs.values()), *_tables(lazy), *made]
    )


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The muGraph for runs whose named sizes have a product of at most `most`."""

    graph: Graph
    most: int


def generate_ranges(graph: Graph, before: Sequence[SizeRange], name: str = "kernel") -> str:
    """One entry point for muGraphs of one goal: it runs the first of those `before` whose range
    contains the sizes of a run, else `graph`. All have the same inputs, and prepare the same
    weights.

    Raises Unsupported if they do not."""
    if not before:
        return generate_cpp(graph, name)
    graphs, limits = [*[each.graph for each in before], graph], [each.most for each in before]
    if any(layout(each) != layout(graph) for each in graphs):
        raise Unsupported("muGraphs for several sizes whose prepared weights lie otherwise")
    source = generate_all({f"{name}_range{i}": each for i, each in enumerate(graphs)})
    place, operands = len(graph.inputs) + 1, "inputs, outputs, scratch, parallel_for, pool"
    given = [v.sizes[i] for i in range(len(size_names([x.shape for x in graph.inputs])))]
    count = reduce(mul, given or [v["1"]])
    for head, first, end, arguments in (
        (_scratch_function(name, True), [], "_scratch", "sizes"),
        (_entry_function(name), [Let("sizes", _given_sizes(place), "const size_t*")], "", operands),
    ):
        calls = [Return(v[f"{name}_range{i}{end}"](arguments)) for i in range(len(graphs))]
        chosen = [when(count <= most, call) for call, most in zip(calls, limits, strict=False)]
        source += f"\n{function_text(replace(head, body=(*first, *chosen, calls[-1])))}\n"
    last = f"{name}_range{len(before)}"
    if any(map(prepares, graph)):
        source = source.replace(f"{last}_prepare", f"{name}_prepare")
    return source


def _scratch_function(name: str, sized: bool, body: tuple[Statement, ...] = ()) -> ProgramFunction:
    """The function that returns the bytes of scratch memory for a run."""
    return ProgramFunction(f"{name}_scratch", ("const size_t* sizes",) if sized else (), body, 'extern "C" size_t')


def _entry_function(name: str, body: tuple[Statement, ...] = ()) -> ProgramFunction:
    """The entry point of a program."""
    parameters = "const void** inputs", "void** outputs", "void* scratch", "parallel_for_t parallel_for", "void* pool"
    return ProgramFunction(name, parameters, body, 'extern "C" void')


def _given_sizes(place: int) -> Expression:
    return static_cast("const size_t*", v.inputs[place])


@dataclass
class CppProgram:
    """The functions of a muGraph's kernels, and the calls of the entry point."""

    graph: Graph
    name: str
    lazy: LazyMeaning
    functions: list[str] = field(default_factory=list)
    calls: list[Statement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = size_names([x.shape for x in self.graph.inputs])
        self.places = Places(self.graph)
        self.readers = users(self.graph)
        self.prepared = PreparedCalls(self.places)
        if any(self.places.strides_of(arg) for node in self.graph if prepares(node) for arg in node.args):
            raise Unsupported("a product with prepared weights of a part of a result")

    def source(self) -> str:
        """The program's functions; the code that all programs share precedes them."""
        for node in launch_order(self.graph):
            if self.prepared.reads(node):
                self._run_prepared()
            if prepares(node):
                self.functions.append(self.prepared.add(node, self._fresh()).declaration)
            elif node.op not in ("input", "item", "constant") and node is not ABSENT and not self._unread(node):
                self._kernel(node)
        self._run_prepared()
        for i, output in enumerate(self.graph.outputs):
            self._delivered(i, output)
        return "\n".join(["\n\n".join(self.functions), "", *self._entry()]) + "\n"

    def _unread(self, node: Node) -> bool:
        """Whether a term only moves elements, and nothing reads the moved ones in memory; or puts
        parts together that are stored at their places."""
        if node in self.places.joined:
            return True
        return is_moved(node) and node not in self.graph.outputs and not any(map(prepares, self.readers.get(node, ())))

    def _fresh(self) -> str:
        return f"{self.name}_{len(self.functions)}"

    def _kernel(self, node: Node) -> None:
        if node.op == "weight":
            raise Unsupported(f"the weight {node.attr('name')} of a muGraph; make it an input")
        results = self.places.results(node)
        rows = [row for i, _ in enumerate(results) for row in self.places.rows(node, i)]
        operands = [arg for arg in dict.fromkeys((*operand_sources(node), *rows)) if arg.op != "constant"]
        types = [*(self.places.of(arg)[1] for arg in operands), *(type for _, type in results)]
        name, tensors = self._fresh(), f"tensors_{len(self.functions)}"
        strides = [
            *map(self.places.strides_of, operands),
            *(self.places.strides.get((node, i)) for i, _ in enumerate(results)),
        ]
        layouts = [self.places.layouts.get((node, i)) for i, _ in enumerate(results)]
        made = CppKernelFunction(self.lazy, node, self.names, layouts)
        text = function_text(made.function(name, operands, types, strides))
        self.functions.append(text)
        pointers = [*map(self.places.pointer, operands), *(place for place, _ in results)]
        pointers += [v["const_cast<size_t*>"](v.sizes)] if self.names else []
        blocks = count_text(node.attr("grid")) if traits(node).lowering is Lowering.KERNEL else 1
        call, elsewhere = v.run(name, blocks, tensors, self._threads(node, types), v.pool), self.places.elsewhere(node)
        if TEAM in text:
            team = f"team_{len(self.functions) - 1}"
            self.calls.append(Let(team, v["{}"], "Team"))
            pointers.append(v[f"&{team}"])
            call = v.run_team(v[team], name, tensors, v.parallel_for, v.pool)
        self.calls.append(Let(tensors, expression(pointers), "void*"))
        self.calls.append(call if elsewhere is None else when(elsewhere, call, why="else it is there"))

    def _threads(self, node: Node, types: Sequence[Tensor]) -> Expression:
        """The threads that run the blocks of a kernel."""
        body = node.attr("body") if traits(node).lowering is Lowering.KERNEL else ()
        moved: Dim = sum(map(tensor_bytes, types))
        if any(traits(each).lowering is Lowering.CONTRACT for each in body):
            return v.parallel_for
        if isinstance(moved, int):
            return v.parallel_for if moved > ALONE else v.nullptr
        return select(v.nullptr, expression(moved) <= ALONE, v.parallel_for)

    def _run_prepared(self) -> None:
        for made in self.prepared.calls():
            if isinstance(made, ProgramFunction):
                self.functions.append(function_text(made))
            else:
                self.calls.append(made)

    def _delivered(self, i: int, output: Node) -> None:
        """Copy an output that is an input, or equals an earlier output."""
        if output.op == "constant":
            raise Unsupported("an output of the muGraph that is a constant")
        (place, type), wanted = self.places.of(output), v.outputs[i]
        if place != wanted:
            self.calls.append(v["std::memcpy"](wanted, place, tensor_bytes(type)))

    def _entry(self) -> Iterator[str]:
        known = tuple([Let(n, v.sizes[i], "[[maybe_unused]] const size_t") for i, n in enumerate(self.names)])
        used = Return(sum_of(self.places.used()) if self.places.scratch else v["1"])
        yield function_text(_scratch_function(self.name, bool(self.names), (Scope((*known, used), True),)))
        yield ""
        place = len(self.graph.inputs) + 1
        given = Let("sizes", _given_sizes(place), "const size_t*"), Scope(known, True)
        ignored = v["(void)inputs, (void)scratch, (void)parallel_for"]
        yield function_text(_entry_function(self.name, (*(given if self.names else ()), ignored, *self.calls)))
        if self.prepared.terms:
            weights, prepare = self.prepared.preparation(self.name)
            yield from lines([weights])
            yield function_text(prepare)


def _tables(lazy: LazyMeaning) -> Iterator[str]:
    for name, value in lazy.tables.items():
        numbers = [cpp_number(float(x), value.dtype) for x in value.numpy().ravel()]
        yield from lines([Let(name, expression(numbers), f"static const {register_type(value.dtype)}")])


def _comment(graph: Graph) -> str:
    shown = "".join(f"//   {line}\n" for line in show_graph(graph).splitlines())
    return "// Generated by taso_mirage from this muGraph:\n//\n" + shown + "//\n"


NOTE = """\
// A kernel is a function of one block, its for-loop a loop in it. Tiles that products and folds read lie on the stack; what one
// loop nest makes and only it reads stays in a register. All floats are fp32 between load and store.
"""
