"""The operands of a loop over steps in a block of a kernel: the elements that a step reads, and the
places of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning
from taso_mirage.emit.cpu.lazy_tensors import CppBuffer, LoopValue
from taso_mirage.emit.cpu.loop_schedule import Memory, Root
from taso_mirage.emit.cpu.nests import memory_type
from taso_mirage.emit.statements import Expression, Let, Statement, v, when
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import product_factor
from taso_mirage.ir.terms import ABSENT, Graph, Literal, Node
from taso_mirage.meanings.base import Meaning
from taso_mirage.operators.interpret import interpret_term


class KernelStages(Protocol):
    """The function of a kernel that the steps are a part of."""

    lazy: LazyMeaning
    memory: Memory
    used: set[str]

    @property
    def alone(self) -> bool:
        """Whether the kernel has one block."""

    def stage(self, roots: Sequence[Root], kept: Sequence[tuple[LoopValue, CppBuffer]] = ()) -> list[Statement]:
        """The statements that compute some values."""


class StepOperands:
    """The operands of a loop, `buffers`.

    Raises Unsupported for operands that do not lie in memory.
    """

    def __init__(self, node: Node, tiles: Mapping[Node, LoopValue]) -> None:
        given = [tiles.get(a) for a in node.args]
        self.buffers = [x for x in given if isinstance(x, CppBuffer)]
        if len(self.buffers) < len(given):
            raise Unsupported("a loop over steps of tensors that do not lie in memory")
        self.states = int(node.attr("states"))
        end = self.states + int(node.attr("sequences"))
        self.sequences, self.others = self.buffers[self.states : end], self.buffers[end:]
        self.backward = bool(node.attr("backward"))

    @property
    def count(self) -> Dim:
        """The number of steps."""
        return self.sequences[0].shape[0]

    def elements(self, step: Expression) -> tuple[list[Statement], list[CppBuffer]]:
        """The pointers to the elements of a step, and these."""
        made, found = list[Statement](), list[CppBuffer]()
        for i, x in enumerate(self.sequences):
            found.append(CppBuffer(x.dtype, x.shape[1:], f"element{i}", x.strides[1:]))
            made.append(named_pointer(f"element{i}", self._start(x, step), x, "const ", " __restrict"))
        return made, found

    def output(self, part: int, y: CppBuffer, step: Expression) -> tuple[Let, CppBuffer]:
        """The pointer to the place of an output of a step in `y`, and this place."""
        place = CppBuffer(y.dtype, y.shape[1:], f"output{part}", y.strides[1:])
        return named_pointer(place.name, self._start(y, step), y, "", " __restrict"), place

    def ahead(self, step: Expression, steps: int) -> list[Statement]:
        """The statements that ask for the elements of a later step, if they lie side by side."""
        asked: list[Statement] = []
        for x in self.sequences:
            element = CppBuffer(x.dtype, x.shape[1:], "", x.strides[1:])
            if element.dense and isinstance(element.count, int) and x.dtype == "float32":
                asked.append(v[f"ahead<{element.count}>"](self._start(x, step + steps)))
        return [when(step + steps < v[product_factor(self.count)], *asked)] if asked else []

    def _start(self, x: CppBuffer, step: Expression) -> Expression:
        at = v[f"({product_factor(self.count)} - 1)"] - step if self.backward else step
        return v[x.name] + x.start + at * product_factor(x.strides[0])


def named_pointer(name: str, value: Expression, x: CppBuffer, const: str, restrict: str = "") -> Let:
    """The statement that names a pointer to elements like those of a buffer."""
    return Let(name, value, f"{const}{memory_type(x.dtype)}*{restrict}")


def values_of(
    xp: Meaning[Any],
    constant: Callable[[Literal], LoopValue | None],
    body: Graph,
    given: Sequence[Any],
    special: Callable[[Node, Mapping[Node, Any]], Any] = lambda node, found: None,
) -> list[Any]:
    """The values of a body's outputs. `special`: the value of a term that is not that of its
    definition, by those of the terms before; None for others."""
    found: dict[Node, Any] = {ABSENT: None, **dict(zip(body.inputs, given, strict=True))}
    for node in body:
        if node not in found:
            made = constant(node.attr("value")) if node.op == "constant" else special(node, found)
            found[node] = made or interpret_term(node, xp, [found[a] for a in node.args])
    return [x for o in body.outputs if (x := found[o]) is not None]
