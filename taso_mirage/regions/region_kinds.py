"""The kinds of operators, as regions of kernels distinguish them; those of quantized weights."""

from __future__ import annotations

import math
from enum import Enum

from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node, is_constant, is_float, topological
from taso_mirage.mugraph.goal import LOADED, stored_leaf
from taso_mirage.mugraph.labels import Labelled
from taso_mirage.mugraph.roles import defined
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import traits


class RegionKind(Enum):
    """The effect of an operator on its operands, as regions distinguish it."""

    CHAIN = "elementwise, or layout"
    FOLD = "a norm, a softmax"
    PRODUCT = "a product of two values of the run"
    LINEAR = "a product with a weight"


def kind_by_labels(found: Labelled, weights: set[Node], rows: float) -> RegionKind | None:
    """The kind of an operator by its labels; None for a linear layer of more rows than those."""
    results = {x for axes in found.outputs for axis in axes for x in axis}
    axes = {n: {x for axis in own for x in axis} for n, own in found.inputs.items()}
    kind = RegionKind.FOLD if found.reduced else RegionKind.CHAIN
    summed = found.reduced - results
    known = [n for n in axes if stored_leaf(found.leaves[n]) in weights]
    varying = {x for n, own in axes.items() if n not in known and own & summed for x in own}
    for reduced in summed:
        factors = [n for n, own in axes.items() if reduced in own]
        if len(factors) < 2:
            continue
        kind = RegionKind.PRODUCT
        for name in factors:
            if name in known and not axes[name] <= varying:  # else it is a mask, or a scale
                return None if math.prod(found.sizes[x] for x in results - axes[name]) > rows else RegionKind.LINEAR
    return kind


def of_integers(node: Node, gpu: bool) -> bool:
    """Whether a quantized operator is in no region: on a CPU all, on a GPU those that round to
    integers. Products of integers are, and else kernels take activations that are floats, and all
    else as the model has it, for they load weights before the kernel before ends.
    """
    if not traits(node).quantized or (gpu and sums_integers(node)):
        return False
    activations = [a for a in node.args if a is not ABSENT and not is_weight(a)]
    held = all(a is ABSENT or is_constant(a) or (is_weight(a) and not a.args) for a in node.args[1:])
    loaded = all(a is ABSENT or a.dtype in LOADED for a in node.args)
    return not (gpu and held and loaded and all(is_float(a.dtype) for a in activations))


def sums_integers(node: Node) -> bool:
    """Whether a quantized operator is defined by a product of integers, and rounds to none."""
    inner = defined(node) if traits(node).quantized and not traits(node).decides else None
    parts = [] if inner is None else [n for n in topological([inner], stop=node.args) if n not in node.args]
    contracted = any(traits(n).lowering is Lowering.CONTRACT and n.dtype == "int32" for n in parts)
    return contracted or any(map(sums_integers, parts))


def operands_read(graph: Graph) -> int:
    """The number of inputs of a graph; a quantized weight with its scales and zero points counts as
    one."""
    more = [[a for a in n.args[2:] if a is not ABSENT] for n in graph if traits(n).quantized]
    return len(graph.inputs) - sum(map(len, more))
