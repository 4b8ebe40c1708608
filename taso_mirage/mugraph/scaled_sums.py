"""Scales of blocks of weights after the sums over each block, where a body has them before.

A goal with several products of quantized weights has a scaled weight as one value, because all ways
to take it apart are too many. In a body, s (n - z) x summed over a block is s times the sum of
(n - z) x: that product is one of small integers, for which a GPU has tensor cores
(`emit/gpu/block_products.py`).
"""

from __future__ import annotations

from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, users, with_args
from taso_mirage.operators.ops import term, traits


def scaled_after_sums(body: Graph) -> Graph:
    """The body with each such sum in two steps: over the last axis, along which a scale is
    constant, and over the other ones after the product with the scale."""
    readers, done = users(body), dict[Node, Node]()
    for node in body:
        new = with_args(node, tuple([done.get(x, x) for x in node.args]))
        alone = [x for x in node.args if len(readers[x]) == 1 and x not in body.outputs]
        done[node] = _apart(new) if alone == list(node.args) else new
    return Graph(body.inputs, tuple([done[x] for x in body.outputs]))


def _apart(node: Node) -> Node:
    """A sum in two steps; the term itself where it is none of a scaled value and others."""
    if traits(node).lowering is not Lowering.SUM or traits(node.args[0]).lowering is not Lowering.MULTIPLY:
        return node
    product, last = node.args[0], len(node.args[0].shape) - 1
    axes = node.attr("axes")
    weights = next((x for x in product.args if traits(x).lowering is Lowering.SCALE), None)
    if weights is None or last not in axes or node.attr("keepdims") or weights.shape != product.shape:
        return node
    numbers, zero, scale = weights.args
    if len(scale.shape) != len(product.shape) or scale.shape[-1] != 1 or product.args[0] is product.args[1]:
        return node
    (other,) = (x for x in product.args if x is not weights)
    inner = term("reduce_sum", term("mul", term("sub", numbers, zero), other), axes=(last,), keepdims=0)
    outer = term("mul", inner, _without_last(scale))
    rest = tuple([a for a in axes if a != last])
    return term("reduce_sum", outer, axes=rest, keepdims=0) if rest else outer


def _without_last(scale: Node) -> Node:
    """A scale (..., 1) without its last axis: what was reshaped to it, if that has the shape."""
    shape, reshapes = scale.shape[:-1], traits(scale).lowering is Lowering.RESHAPE
    return scale.args[0] if reshapes and scale.args[0].shape == shape else term("reshape", scale, shape=shape)
