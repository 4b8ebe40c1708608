"""Elementwise functions around a hand-written class, in C++: the epilogue of its results, and the
prologue of its data.

A tensor is seen as rows of `columns`. A function changes some neighbours of a row at a time; it is
written by the code that writes the loops of other kernels (`lazy_meaning`, `nests`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning
from taso_mirage.emit.cpu.lazy_tensors import CppBuffer
from taso_mirage.emit.cpu.loop_schedule import LoopSchedule, Memory
from taso_mirage.emit.cpu.nests import phase_statements, register_type
from taso_mirage.emit.cpu.printer import function_text, static_cast
from taso_mirage.emit.statements import Expression, Let, ProgramFunction, Statement, expression, sum_of, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Shape, dim_product, symbol
from taso_mirage.ir.mugraph import product_factor
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.operators.interpret import interpret, retyped

COUNT = symbol("count")
"""The number of neighbours."""


@dataclass(frozen=True, slots=True)
class ElementwiseFunction:
    """A function `body` of tensors, which are at places of the list `tensors` of a block.

    `shape`: of the result. `columns`: how many of its last dims are one row. `place`: of the
    result. `given`: the place and the shape of each input of the body, whose shape broadcasts to
    that of the result.

    Raises Unsupported for operands that are cut within a row.
    """

    body: Graph
    shape: Shape
    columns: int
    place: int
    given: Sequence[tuple[int, Shape]]

    def text(self, name: str, rows: bool = False) -> str:
        """The function, as a class with the member `of`; with `rows`, `block` runs it on a row."""
        parameters = "void** tensors", "size_t row", "size_t column", "size_t count"
        made = function_text(ProgramFunction("of", parameters, tuple(self._statements()), "static void"))
        whole = [f"struct {name} {{", *("  " + line for line in made.splitlines())]
        if rows:
            call = v.of(static_cast("void**", "data"), v.row, 0, dim_product(self.shape[-self.columns :]))
            block = function_text(ProgramFunction("block", ("void* data", "size_t row"), (call,), "static void"))
            whole += ["  " + line for line in block.splitlines()]
        return "\n".join([*whole, "};"])

    def _statements(self) -> Iterator[Statement]:
        lazy, memory = LazyMeaning(), Memory()
        leaves, values = dict[Node, Node](), dict[Node, CppBuffer]()
        for i, (leaf, (place, shape)) in enumerate(zip(self.body.inputs, self.given, strict=True)):
            whole = tuple(shape[-self.columns :]) == self.shape[-self.columns :] and len(shape) >= self.columns
            if not whole and any(n != 1 for n in shape[-self.columns :]):
                raise Unsupported(f"a tensor of {shape} beside rows of {self.shape[-self.columns :]}, in C++")
            at = self._row(shape)
            yield self._pointer(f"x{i}", place, at + v.column if whole else at, "const ")
            size = (COUNT if whole else 1,)
            leaves[leaf] = variable(f"x{i}", Tensor(leaf.dtype, size))
            values[leaves[leaf]] = CppBuffer(leaf.dtype, size, f"x{i}", (1,))
        yield self._pointer("y", self.place, self._row(self.shape) + v.column, "")
        (made,) = interpret(retyped(self.body.outputs, leaves), lazy, values).values()
        schedule = LoopSchedule(memory)
        schedule.run([(lazy.expand(made, (COUNT,)), CppBuffer("float32", (COUNT,), "y", (1,)), False)])
        loops, used = phase_statements(schedule, frozenset(("y",)))
        rooms = [b for b in memory.allocated if b.name in used]
        if lazy.tables or any(not isinstance(b.count, int) for b in rooms):
            raise Unsupported("an elementwise function with values in memory, in C++")
        yield from (Let(b.name, v.array(b.count), register_type(b.dtype)) for b in rooms)
        yield from loops

    def _pointer(self, name: str, place: int, at: Expression, const: str) -> Let:
        start = static_cast(f"{const}float*", v.tensors[place]) + at
        return Let(name, start, f"[[maybe_unused]] {const}float*")

    def _row(self, shape: Shape) -> Expression:
        """The place of the first element of a tensor for row number `row` of the result."""
        outer = self.shape[: -self.columns]
        own = shape[: max(len(shape) - self.columns, 0)]
        own = (*(1,) * (len(outer) - len(own)), *own)
        step, below, parts = dim_product(shape[-self.columns :]), dim_product(()), list[Expression]()
        if own == outer:
            return v.row * product_factor(step)
        for n, mine in zip(reversed(outer), reversed(own), strict=True):
            if mine != 1:
                at = v.row if below == 1 else v.row / product_factor(below)
                parts.append(at % product_factor(n) * product_factor(step))
                step = step * mine
            below = below * n
        return sum_of(parts or [expression(0)])


@lru_cache(maxsize=1024)
def has_cpp(body: Graph) -> bool:
    """Whether there is C++ for a function of numbers."""
    shape = (2,)
    try:
        ElementwiseFunction(body, shape, 1, 0, [(i, shape) for i, _ in enumerate(body.inputs)]).text("function")
    except Unsupported:
        return False
    return True
