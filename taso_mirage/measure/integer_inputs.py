"""Inputs of integers and booleans, by what the check may draw for them."""

from __future__ import annotations

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Node, topological
from taso_mirage.operators.exactness import truncates


def may_be_extreme(model: Model) -> list[str]:
    """The names of integer inputs that only reach operators whose time and memory depend on sizes
    alone. An opaque node could loop that many times, or make a tensor of that size. None if
    integers are divided, because the smallest integer divided by -1 ends the process (SIGFPE)."""
    nodes = model.nodes()
    if any(truncates(n) for n in nodes):
        return []
    asked = [a for n in nodes if n.op == "opaque" for a in n.args if a is not ABSENT]
    inside: set[Node] = set(topological(asked))
    return [
        n.attr("name")
        for n in model.graph.inputs
        if n.dtype.startswith(("int", "uint")) and n not in inside and n.dtype not in ("int4", "uint4")
    ]


def masks_of(model: Model) -> list[str]:
    """The names of inputs of booleans, and of arrays of integers that index no table."""
    known = {*model.rows, *model.integers, *model.defaults}
    whole = [n for n in model.graph.inputs if n.dtype.startswith(("int", "uint")) and n.tensor.rank]
    masks = [*whole, *(n for n in model.graph.inputs if n.dtype == "bool")]
    return [str(n.attr("name")) for n in masks if n.attr("name") not in known]
