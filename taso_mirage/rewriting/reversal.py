"""The sides of an equation as texts over names, for its reversal."""

from __future__ import annotations

from collections.abc import Callable

from taso_mirage.ir.terms import Graph, Node, topological
from taso_mirage.operators import expressions
from taso_mirage.operators.expressions import Expr

REST_KEY = "**"
"""The key under which a pattern term keeps the name that captures all attributes it does not
mention."""


def shifted_names(side: Graph) -> dict[str, str]:
    """Attribute names that a side has as `plus(name, numbers)`, always with the same numbers, and
    never alone."""
    found: dict[str, set[str]] = {}
    for node in side:
        for _, value in node.attrs:
            if isinstance(value, Expr):
                of_name = expressions.shifted_attribute(value.source) or (value.source, "")
                found.setdefault(of_name[0], set()).add(of_name[1])
    return {name: min(numbers) for name, numbers in found.items() if len(numbers) == 1 and "" not in numbers}


def unshifted(name: str, source: str) -> str:
    """An expression that moves a name, without the move."""
    found = expressions.shifted_attribute(source)
    return name if found is not None and found[0] == name else source


def mapped(side: Graph, change: Callable[[str], str]) -> Graph:
    """A side with other texts for the expressions in its attributes."""
    done: dict[Node, Node] = {}
    for node in topological(side.outputs):
        attrs = tuple(
            (k, Expr(change(v.source)) if isinstance(v, Expr) and k != REST_KEY else v) for k, v in node.attrs
        )
        done[node] = Node(node.op, tuple(done[a] for a in node.args), attrs, node.type)
    return Graph(side.inputs, tuple(done[o] for o in side.outputs))


def free_names(graph: Graph) -> set[str]:
    """The names that a side needs: its variables, and those in its expressions."""
    found = set()
    for node in graph:
        if node.op == "input":
            found.add(node.attr("name"))
        found |= {n for _, v in node.attrs if isinstance(v, Expr) for n in expressions.names_in_expression(v.source)}
    return found


def bound_names(graph: Graph) -> set[str]:
    """The names that a match of a side binds: its variables, and attributes that are a bare
    name."""
    found = {n.attr("name") for n in graph if n.op == "input"}
    return found | {v.name for n in graph for _, v in n.attrs if isinstance(v, Expr) and v.name}
