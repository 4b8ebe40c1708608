"""Terms whose C++ is a class that is written by hand: they read weights that are prepared once,
before the first run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from taso_mirage.emit.cpu.elementwise import ElementwiseFunction
from taso_mirage.emit.cpu.places import Places
from taso_mirage.emit.cpu.printer import static_cast
from taso_mirage.emit.discovery import discovered
from taso_mirage.emit.statements import (
    Expression,
    Let,
    ProgramFunction,
    Return,
    Scope,
    Statement,
    expression,
    sum_of,
    v,
    when,
)
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.ir.terms import ABSENT, Graph, Node
from taso_mirage.operators.ops import get

OTHERS, RESULT = 7, 4
"""The places of the first operand of the elementwise functions, and of the result, in the list of
tensors that a block is given."""
LANES = 16
"""The number of tiles or columns of a block is a multiple of this: the longest vectors."""


@dataclass(frozen=True, slots=True)
class TemplateInstance:
    """An instance of a C++ class template that computes a term.

    `headers`: names of files beside this one, or paths. `block`: the tiles or columns of a block.
    `sizes`, `switches`: the arguments of the template, besides whether the bias and the summand are
    there. `layout`: the properties besides the weights on which the prepared weights depend.
    """

    headers: tuple[str | Path, ...]
    name: str
    block: int
    sizes: tuple[Any, ...]
    layout: tuple[Any, ...]
    sides: tuple[int, ...] = ()
    """The sides of a tile, which are powers of two."""
    switches: tuple[bool, ...] = ()
    fixed: tuple[Dim, ...] = ()
    """The sizes, besides those of the weights, for which its code is made."""
    times: Dim = 1
    """The number of runs of its blocks, if that is not in its code."""
    rows: Dim = 0
    """A size that a run gives and its blocks read; 0 where there is none."""
    weights: tuple[int, ...] = (1,)
    """The places of the operands that are prepared."""
    first: tuple[Dim, Dim, int] = (0, 0, 0)
    """The number of runs of its function `digits` before the blocks, the bytes that each run
    writes, and the other properties on which they depend."""
    columns: int = 1
    """How many of the last dims of data and results are a row of elementwise functions."""
    results: str = ""
    """The class of `followed.h` that lists the results of a block."""
    function: tuple[Graph, int] | None = None
    """A function of numbers that its blocks call on rows of so many columns: its last argument is a
    class with the member `of`, which reads the first tensors of a list and writes the next."""


@dataclass(frozen=True, slots=True)
class CpuProgram:
    """The program of an operator: each of its terms is an instance of a class template."""

    op: str
    instance: Callable[[Node], TemplateInstance]


@cache
def cpu_programs() -> Mapping[str, CpuProgram]:
    """The programs of the forms, by their operators."""
    programs = [form.program for form in discovered()]
    return {each.op: each for each in programs if isinstance(each, CpuProgram)}


def template_instance(node: Node) -> TemplateInstance:
    """The instance that computes a term of a form."""
    return cpu_programs()[node.op].instance(node)


def body_of(node: Node, name: str = "body") -> Graph | None:
    """An elementwise function of a term; the operator of a plug-in may have none."""
    found = next((value for key, value in node.attrs if key == name), None)
    return found if isinstance(found, Graph) else None


@dataclass(frozen=True, slots=True)
class PreparedTerm:
    """A term with prepared weights and the C++ class `name` that computes it.

    Raises Unsupported if there is no such class.
    """

    node: Node
    name: str
    kind: TemplateInstance

    def __post_init__(self) -> None:
        types = {arg.tensor for arg in self.node.args if arg is not ABSENT} | {self.node.tensor}
        floats = types - {self.node.args[i].tensor for i in self.weights if self.node.args[i].dtype == "uint8"}
        sizes = *self.node.args[1].shape, *self.kind.fixed
        if any(t.dtype != "float32" for t in floats) or not all(isinstance(n, int) for n in sizes):
            shown = ", ".join(map(str, types))
            raise Unsupported(f"a {self.node.op} of {shown}; its C++ is for float32 and fixed sizes")
        if self.kind.block % LANES:
            raise Unsupported(f"blocks of {self.kind.block}; it must be a multiple of {LANES}")
        sides = self.kind.sides
        if any(side < 1 for side in self.node.attr("block")) or any(side & (side - 1) for side in sides):
            raise Unsupported(f"{self.node.op} with sides {sides}; powers of two have C++")

    @property
    def weights(self) -> list[int]:
        """The places of the operands that are prepared."""
        return [i for i in self.kind.weights if i < len(self.node.args) and self.node.args[i] is not ABSENT]

    def prepare(self, given: Mapping[int, int], at: Expression) -> Expression:
        """The call that prepares its weights: the kernel's inputs of these numbers, by their
        places."""
        read = [v.inputs[given[i]] if i in given else v.nullptr for i in self.kind.weights]
        return v[f"{self.name}::prepare"](*read, at)

    @property
    def declaration(self) -> str:
        """The declaration of its class."""
        switches = *(each is not ABSENT for each in self.operands), *self.kind.switches
        said = [*map(str, self.kind.sizes), *(str(each).lower() for each in switches)]
        called = self._called(f"{self.name}_function")
        said += [f"{self.name}_function"] if called else []
        base = f"{self.kind.name}<{', '.join(said)}>"
        base = f"Followed<{base}, {self.kind.results}, {self.name}_epilogue>" if self.epilogue else base
        texts = [*called, *([self.epilogue.text(f"{self.name}_epilogue")] if self.epilogue else [])]
        texts += [self.prologue.text(f"{self.name}_prologue", rows=True)] if self.prologue else []
        return "\n".join([*texts, f"using {self.name} = {base};"])

    def _called(self, name: str) -> list[str]:
        """The function that its blocks call, as a class of this name, if there is one."""
        if self.kind.function is None:
            return []
        body, columns = self.kind.function
        shape, count = (self.kind.block, columns), len(body.inputs)
        return [ElementwiseFunction(body, shape, 1, 2, [(i, shape) for i in range(count)]).text(name)]

    @property
    def others(self) -> tuple[Node, ...]:
        """The operands of the elementwise functions: those of the epilogue, then of the
        prologue."""
        return self.node.args[len(get(self.node.op).operands) :]

    @property
    def epilogue(self) -> ElementwiseFunction | None:
        """The function that changes the results of a block."""
        body = body_of(self.node)
        return None if body is None else self._function(body, self.node, RESULT, RESULT, 0)

    @property
    def prologue(self) -> ElementwiseFunction | None:
        """The function that computes the data; the data of the term is the last tensor of a
        block."""
        body, epilogue = body_of(self.node, "prologue"), body_of(self.node)
        count = 0 if epilogue is None else len(epilogue.inputs) - 1
        return None if body is None else self._function(body, self.node.args[0], 0, OTHERS + len(self.others), count)

    def _function(self, body: Graph, like: Node, place: int, first: int, begin: int) -> ElementwiseFunction:
        """A function whose result has the type of a tensor, from the tensor number `first` of a
        block and from the other operands from number `begin` on."""
        others = list(enumerate(self.others, OTHERS))[begin : begin + len(body.inputs) - 1]
        given = [(first, like.shape), *((i, x.shape) for i, x in others)]
        return ElementwiseFunction(body, like.shape, self.kind.columns, place, given)

    @property
    def blocks(self) -> Expression:
        """The number of blocks."""
        each, times = v[f"{self.name}::BLOCKS"], self.kind.times
        return each if times == 1 else v[str(times)] * each

    @property
    def prepared(self) -> Expression:
        """The bytes of its prepared weights, up to the start of those of the next term."""
        return (v[f"{self.name}::PREPARED"] + 63) / 64 * 64

    @property
    def operands(self) -> tuple[Node, ...]:
        """The operands of a block after the data and the prepared weights: a bias and a summand,
        or ABSENT."""
        return (*self.node.args, ABSENT, ABSENT)[2:4]


def prepares(node: Node) -> bool:
    """Whether a term of a muGraph reads prepared weights."""
    return node.op in cpu_programs()


def layout(graph: Graph) -> tuple[Any, ...]:
    """A key of the layout of a muGraph's prepared weights: equal layouts have equal keys."""
    return tuple([(node.op, *template_instance(node).layout) for node in graph if prepares(node)])


def headers(graphs: Iterable[Graph]) -> list[str]:
    """The classes that some muGraphs have, each once."""
    nodes = (node for graph in graphs for node in graph if prepares(node))
    found = dict.fromkeys(header for node in nodes for header in _headers(node))
    names: list[str | Path] = ["lanes.h", *found] if found else []
    return [name.read_text() if isinstance(name, Path) else header(name) for name in names]


@cache
def header(name: str) -> str:
    """The text of a file beside this one: `vector.h` is in every generated source, `free.h` in
    those with sizes of a run, `index_maps.h` in those that read elements by index maps."""
    return files("taso_mirage.emit.cpu").joinpath(name).read_text()


def _headers(node: Node) -> tuple[str | Path, ...]:
    """The headers of a term."""
    return *template_instance(node).headers, *(("followed.h",) if body_of(node) is not None else ())


# ---------------------------------------------------------------- calls


@dataclass
class PreparedCalls:
    """The terms of a program that read prepared weights, which are stored one after the other.

    Terms whose results nothing has read yet run together.
    """

    places: Places
    terms: list[PreparedTerm] = field(default_factory=list)
    run: int = 0
    """The number of terms that have run."""

    def add(self, node: Node, name: str) -> PreparedTerm:
        """A node as an instance of a header's class, whose blocks run before their result is
        read."""
        made = PreparedTerm(node, name, template_instance(node))
        if any(node.args[i] not in self.places.graph.inputs for i in made.weights):
            raise Unsupported("a muGraph that prepares weights that are no inputs")
        if any(arg.op == "constant" for arg in node.args):
            raise Unsupported(f"a {node.op} of a constant; make it an input")
        self.places.results(node)
        self.terms.append(made)
        return made

    def reads(self, node: Node) -> bool:
        """Whether a node reads the result of a term that has not run yet."""
        return any(made.node in node.args for made in self.terms[self.run :])

    def calls(self) -> Iterator[Statement | ProgramFunction]:
        """The calls of the terms that have not run: first the digits that several terms may read,
        then all blocks; and the function that runs the blocks of several terms."""
        group = self.terms[self.run :]
        digits: dict[object, Expression] = {}
        for made in group:
            yield from self._arguments(made, digits)
            self.run += 1
        if len(group) > 1:
            yield from _together(group)
        for made in group if len(group) == 1 else ():
            yield v.run(f"{made.name}::block", made.blocks, f"tensors_{made.name}", "parallel_for", "pool")

    def _arguments(self, made: PreparedTerm, digits: dict[object, Expression]) -> Iterator[Statement]:
        """The pointers of a term's blocks, and the call that makes its digits."""
        tensors, rows, free = f"tensors_{made.name}", f"rows_{made.name}", made.kind.rows != 0
        if free:
            yield Let(rows, expression(made.kind.rows), "size_t")
        x, given = made.node.args[0], static_cast("const char*", v.inputs[len(self.places.graph.inputs)])
        read = [self.places.of(x)[0], sum_of([given, *self._before(self.run)])]
        read += [v.nullptr if arg is ABSENT else self.places.of(arg)[0] for arg in made.operands]
        read = [
            each if each == v.nullptr else v["const_cast<void*>"](static_cast("const void*", each)) for each in read
        ]
        count, bytes, _ = made.kind.first
        alone = None if made.kind.function is None else made.node
        key = x, made.kind.first, body_of(made.node, "prologue"), alone, *made.others
        fresh = bool(bytes) and key not in digits
        if fresh:
            digits[key] = self.places.room(dim_product((count, bytes)))
        read += [self.places.of(made.node)[0], v[f"&{rows}"] if free else v.nullptr, digits.get(key, v.nullptr)]
        read += [v["const_cast<void*>"](static_cast("const void*", self.places.of(a)[0])) for a in made.others]
        if made.prologue is not None:
            read = [self.places.room(4 * dim_product(x.shape)), *read[1:], read[0]]
        yield Let(tensors, expression(read), "void*")
        if made.prologue is not None:
            count = dim_product(x.shape[: -made.kind.columns])
            yield v.run(f"{made.name}_prologue::block", count, tensors, "parallel_for", "pool")
        if fresh:
            yield v.run(f"{made.name}::digits", count, tensors, "parallel_for", "pool")

    def _before(self, count: int) -> list[Expression]:
        """The bytes of the prepared arrays of the first terms, as terms of a sum."""
        return [expression(0), *(made.prepared for made in self.terms[:count])]

    def preparation(self, name: str) -> tuple[Let, ProgramFunction]:
        """The bytes of the prepared weights and the list of the inputs that are weights, and the
        function that prepares them."""
        places, calls = dict[int, None](), list[Statement]()
        for i, made in enumerate(self.terms):
            given = {k: self.places.graph.inputs.index(made.node.args[k]) for k in made.weights}
            places |= dict.fromkeys(given.values())
            calls.append(made.prepare(given, sum_of([static_cast("char*", "prepared"), *self._before(i)])))
        said = expression([sum_of(self._before(len(self.terms))), len(places), *places])
        parameters = "const void** inputs", "void* prepared"
        prepare = ProgramFunction(f"{name}_prepare", parameters, (Scope(tuple(calls), True),), 'extern "C" void')
        return Let(f"{name}_prepared", said, 'extern "C" const size_t'), prepare


def _together(group: Sequence[PreparedTerm]) -> Iterator[Statement | ProgramFunction]:
    """A function that runs the blocks of one term after those of the other."""
    names = [made.name for made in group]
    if any(made.kind.times != 1 for made in group):
        raise Unsupported("a muGraph of several terms with prepared weights whose blocks a run counts")
    body: list[Statement] = []
    for i, made in enumerate(group):
        block = v[f"{made.name}::block"](static_cast("void**", "data")[i], "number")
        body += [when(v.number < made.blocks, Return(block)), Let("number", made.blocks, op="-=")]
    yield ProgramFunction(f"{names[0]}_blocks", ("void* data", "size_t number"), tuple(body), "static void")
    yield Let(f"all_{names[0]}", expression([f"tensors_{name}" for name in names]), "void*")
    blocks = sum_of(made.blocks for made in group)
    yield v.run(f"{names[0]}_blocks", blocks, f"all_{names[0]}", "parallel_for", "pool")
