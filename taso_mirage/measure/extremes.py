"""Which inputs of a model may be the least and the greatest integers of their type, so that running
it is safe."""

from __future__ import annotations

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Node, topological
from taso_mirage.operators.exactness import truncates


def may_be_extreme(model: Model) -> list[str]:
    """The names of integer inputs that only reach operators whose time and memory hang on sizes
    alone. An opaque node may loop so often, or make a tensor so large. None where integers are
    divided: the least one by -1 ends the process (SIGFPE)."""
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
