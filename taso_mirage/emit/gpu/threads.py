"""The thread level: a kernel in a body that is a chain of elementwise terms is the chain (Mirage,
OSDI'25, section 4.3: fused by rule)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taso_mirage.ir.terms import Graph, Node, Tensor
from taso_mirage.meanings.typed import Typed
from taso_mirage.operators.interpret import interpret


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
