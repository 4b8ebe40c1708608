"""What the search for regions asks about operators with quantized weights."""

from __future__ import annotations

from taso_mirage.ir.terms import ABSENT, Graph, Node, is_constant, is_float
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import traits


def of_integers(node: Node, gpu: bool) -> bool:
    """Whether a quantized operator is in no region: kernels on a GPU take activations that are
    floats, and all else as the model has it, for they load weights before the kernel before ends.
    """
    activations = [a for a in node.args if a is not ABSENT and not is_weight(a)]
    held = all(a is ABSENT or is_constant(a) or (is_weight(a) and not a.args) for a in node.args[1:])
    return traits(node).quantized and not (gpu and held and all(is_float(a.dtype) for a in activations))


def operands_read(graph: Graph) -> int:
    """How many inputs a graph has, quantized weights as one with their scales and zeros."""
    more = [[a for a in n.args[2:] if a is not ABSENT] for n in graph if traits(n).quantized]
    return len(graph.inputs) - sum(map(len, more))
