"""The resolutions of operators: the numbers to whose rounding the runtime computes results, however
small they are."""

from __future__ import annotations

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node
from taso_mirage.onnx_io.bodies import bodies_of, has_bodies, kind_of
from taso_mirage.operators.ops import traits
from taso_mirage.rewriting.derived_traits import primitives, selects

AVERAGES = frozenset({"reduce", "cast", "map", "extents"})
"""The primitives of operators over one operand whose results are as far off as its elements."""


def resolutions(model: Model, node: Node) -> tuple[float, ...]:
    """The resolution of each result of a term; of an If, a Loop or a Scan those of the operators
    that compute the results in its bodies."""
    results = len(node.type) if isinstance(node.type, tuple) else 1
    if not has_bodies(node):
        return (traits(node).resolution,) * results
    found = [0.0] * results
    for body in bodies_of(model, node):
        outputs = body.model.graph.outputs[1 if kind_of(node) == "Loop" else 0 :]
        for i, output in enumerate(outputs[:results]):
            found[i] = max(found[i], _made(body.model, output))
    return tuple(found)


def _made(model: Model, node: Node) -> float:
    """The largest resolution of the operators whose results are moved into a term, or averaged."""
    found, waiting, seen = 0.0, [node], {node}
    while waiting:
        each = waiting.pop()
        below = each.args if _passes(each) else ()
        if each.op == "item":
            found = max(found, resolutions(model, each.args[0])[each.attr("index")])
        elif not below:
            found = max(found, *resolutions(model, each))
        waiting += [a for a in below if a not in seen]
        seen.update(below)
    return found


def _passes(node: Node) -> bool:
    if node.op == "opaque" or not node.args:
        return False
    used = primitives(node.op)
    return selects(node.op) or (used is not None and "reduce" in used and used <= AVERAGES and len(node.args) == 1)
