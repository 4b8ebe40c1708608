"""The statements of a program that prepare weights and run the terms that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.terms import Node
from taso_mirage.kernels.codegen.cpu.places import Places
from taso_mirage.kernels.codegen.cpu.prepared import PreparedTerm, template_instance
from taso_mirage.kernels.codegen.cpu.printer import converted
from taso_mirage.kernels.codegen.statements import (
    Do,
    Expression,
    Function,
    Let,
    Return,
    Scope,
    Statement,
    lifted,
    total,
    v,
    when,
)


@dataclass
class PreparedCalls:
    """The terms of a program that read prepared weights, which lie one behind the other.

    Terms whose results nothing has read yet run together.
    """

    places: Places
    terms: list[PreparedTerm] = field(default_factory=list)
    run: int = 0
    """How many of the terms have run."""

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

    def calls(self) -> Iterator[Statement | Function]:
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
            yield Do(v.run(f"{made.name}::block", made.blocks, f"tensors_{made.name}", "parallel_for", "pool"))

    def _arguments(self, made: PreparedTerm, digits: dict[object, Expression]) -> Iterator[Statement]:
        """The pointers of a term's blocks, and the call that makes its digits."""
        x, *_ = made.node.args
        tensors, rows = f"tensors_{made.name}", f"rows_{made.name}"
        if made.rows != 0:
            yield Let(rows, lifted(made.rows), "size_t")
        at = converted("const char*", v.inputs[len(self.places.graph.inputs)])
        read = [self.places.of(x)[0], total([at, *self._before(self.run)])]
        read = [_pointer(each) for each in read]
        read += [v.nullptr if arg is None else _pointer(self.places.of(arg)[0]) for arg in made.operands]
        count, bytes, _ = made.kind.first
        key = x, made.kind.first
        known = key in digits
        if bytes and not known:
            digits[key] = self.places.room(dim_product((count, bytes)))
        read += [self.places.of(made.node)[0], v[f"&{rows}"] if made.rows != 0 else v.nullptr]
        yield Let(tensors, lifted([*read, digits.get(key, v.nullptr)]), "void*")
        if bytes and not known:
            yield Do(v.run(f"{made.name}::digits", count, tensors, "parallel_for", "pool"))

    def _before(self, count: int) -> list[Expression]:
        """The bytes of the prepared arrays of the first terms, as terms of a sum."""
        return [lifted(0), *(made.prepared for made in self.terms[:count])]

    def preparation(self, name: str) -> tuple[Let, Function]:
        """The bytes of the prepared weights and the list of the inputs that are weights, and the
        function that prepares them."""
        places, calls = dict[int, None](), list[Statement]()
        for i, made in enumerate(self.terms):
            given = [self.places.graph.inputs.index(made.node.args[k]) for k in made.weights]
            places |= dict.fromkeys(given)
            calls.append(made.prepare(given, total([converted("char*", "prepared"), *self._before(i)])))
        said = lifted([total(self._before(len(self.terms))), len(places), *places])
        parameters = "const void** inputs", "void* prepared"
        prepare = Function(f"{name}_prepare", parameters, (Scope(tuple(calls), True),), 'extern "C" void')
        return Let(f"{name}_prepared", said, 'extern "C" const size_t'), prepare


def _pointer(place: Expression) -> Expression:
    return v["const_cast<void*>"](converted("const void*", place))


def _together(group: Sequence[PreparedTerm]) -> Iterator[Statement | Function]:
    """The blocks of one term after those of the other."""
    names = [made.name for made in group]
    if any(made.kind.times != 1 for made in group):
        raise Unsupported("a muGraph of several terms with prepared weights whose blocks a run counts")
    body: list[Statement] = []
    for i, made in enumerate(group):
        block = v[f"{made.name}::block"](converted("void**", "data")[i], "number")
        body += [when(v.number < made.blocks, Return(block)), Let("number", made.blocks, op="-=")]
    yield Function(f"{names[0]}_blocks", ("void* data", "size_t number"), tuple(body), "static void")
    yield Let(f"all_{names[0]}", lifted([f"tensors_{name}" for name in names]), "void*")
    blocks = total(made.blocks for made in group)
    yield Do(v.run(f"{names[0]}_blocks", blocks, f"all_{names[0]}", "parallel_for", "pool"))
