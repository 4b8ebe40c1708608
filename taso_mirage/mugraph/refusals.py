"""The text of a goal's refusal: the operator, its shapes, and what is missing."""

from __future__ import annotations

from collections.abc import Callable

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import ABSENT, LEAVES, Graph, Node, Tensor, topological


def signature(node: Node) -> str:
    """An operator with the types of its operands and of its results."""
    shown = ", ".join("-" if arg is ABSENT else str(arg.type) for arg in node.args)
    types = (node.type,) if isinstance(node.type, Tensor) else node.type or ()
    return f"{node.op}({shown}) -> {', '.join(map(str, types))}"


def results(goal: Graph) -> str:
    """The operators of a goal's results."""
    return " and ".join(dict.fromkeys(map(signature, goal.outputs)))


def named_refusal(goal: Graph, error: Unsupported, attempt: Callable[[Graph], object]) -> Unsupported:
    """The refusal of a goal by the first of its operators up to which `attempt` refuses it as well,
    or else by its results together."""
    for node in topological(goal.outputs):
        if node.args and isinstance(node.type, Tensor):
            inputs = tuple([n for n in topological([node]) if n.op in LEAVES])
            try:
                attempt(Graph(inputs, (node,)))
            except Unsupported as own:
                return Unsupported(f"{signature(node)}: {own}")
    return Unsupported(f"{results(goal)}: {error}")
