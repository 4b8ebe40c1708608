"""A program restricted to a box of its output (PET, OSDI'21, section 6.1): every operator over the
box of its operands that it needs.

An operator states its restriction beside its definition (`Traits.restriction`), unless it follows
from the definition.
"""

from __future__ import annotations

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import ABSENT, LEAVES, Node
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import definition
from taso_mirage.operators.ops import get, traits
from taso_mirage.operators.slicing import cut, under, whole
from taso_mirage.operators.traits import Box
from taso_mirage.rewriting.derived_traits import elementwise


class Restriction:
    """Restricted terms; equal ones are made once."""

    def __init__(self) -> None:
        self._done: dict[tuple[Node, Box], Node] = {}

    def __call__(self, node: Node, box: Box) -> Node:
        """The term of the elements of `node` within `box`.

        Raises Unsupported where an operator has no restriction.
        """
        if box == whole(node):
            return node
        if node.op in (*LEAVES, "constant"):
            return cut(node, box)
        key = (node, box)
        if key not in self._done:
            try:
                self._done[key] = self._restricted(node, box)
            except Unsupported:
                if not is_weight(node):
                    raise
                self._done[key] = cut(node, box)  # computed before the run, so it need not be restricted
        return self._done[key]

    def _restricted(self, node: Node, box: Box) -> Node:
        maker = node.args[0] if node.op == "item" else node
        if (rule := traits(maker).restrict) is not None:
            return rule(self, node, box)
        if maker is not node:
            raise Unsupported(f"a part of {maker.op} has no restriction")
        if (defined := definition(node)) is not None:
            return self(defined, box)
        if not elementwise(node.op):
            raise Unsupported(f"{node.op} has no restriction to a part of its output; state one beside its definition")
        return self._each(node, box)

    def _each(self, node: Node, box: Box) -> Node:
        """An elementwise operator; a dim of 1 that is broadcast stays."""
        args = [a if a is ABSENT else self(a, under(a, box)) for a in node.args]
        return get(node.op).term(*args, **dict(node.attrs))
