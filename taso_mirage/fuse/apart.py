"""Fused operators of a runtime that hide products with large weights, as those and what is left: each then has kernels of its own."""

from __future__ import annotations

from collections.abc import Mapping

from taso_mirage.expressions import is_weight
from taso_mirage.ir import ABSENT, Node, with_args
from taso_mirage.kernels.linear import is_product
from taso_mirage.model import Model
from taso_mirage.ops import term
from taso_mirage.optimize.weights import fold_weights


def taken_apart(model: Model, sizes: Mapping[str, int]) -> Model:
    """The model with three products and `multi_head_attention` for each `packed_attention`, by its definition, whose products there are
    kernels for at these sizes of its symbols; the same model where there is none."""
    done: dict[Node, Node] = {}
    for node in model.nodes():
        done[node] = new = with_args(node, tuple([done[a] for a in node.args]))
        if node.op == "packed_attention" and is_weight(node.args[1]) and is_weight(node.args[2]):
            apart = _apart(new)
            done[node] = apart if is_product(apart.args[0].args[0], sizes) else new
    outputs = tuple([done[o] for o in model.graph.outputs])
    return model if outputs == model.graph.outputs else fold_weights(model.with_graph(outputs))[0]


def _apart(node: Node) -> Node:
    """softmax(q k) v of the three parts of x w + b."""
    x, w, b, *mask = node.args
    width = int(b.shape[0]) // 3

    def part(of: Node, i: int) -> Node:
        axis = len(of.shape) - 1
        return term("slice", of, starts=(i * width,), ends=((i + 1) * width,), axes=(axis,), steps=(1,))

    parts = [term("add", term("matmul", x, part(w, i)), part(b, i)) for i in range(3)]
    bias = (ABSENT, *mask) if mask else ()
    return term("multi_head_attention", *parts, *bias, **dict(node.attrs))
