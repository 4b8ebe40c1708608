"""The kinds of operators, as regions of kernels distinguish them; those of quantized weights."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node, is_constant, is_float, topological
from taso_mirage.mugraph.goal import LOADED, stored_leaf
from taso_mirage.mugraph.labels import Labelled
from taso_mirage.mugraph.roles import defined, inlined
from taso_mirage.mugraph.stored_goal import is_append
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import traits
from taso_mirage.operators.stores import is_scatter
from taso_mirage.operators.work import size, sized
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.rewriting.derived_traits import multiplies

PLACES = ("int32", "int64")
"""The types of operands that say where elements are."""


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


def has_weights(node: Node, moving: Collection[Node]) -> bool:
    """Whether all elements of a term are those of weights, moved by terms of `moving` only: the
    weights of the experts that a run chooses. Integers behind the first operand are places."""
    if node not in moving:
        return is_weight(node)
    first, *others = [a for a in node.args if a is not ABSENT]
    moved = [first, *(a for a in others if a.dtype not in PLACES)]
    return all(has_weights(a, moving) for a in moved)


def unpacks(node: Node, kind: RegionKind) -> bool:
    """Whether a linear layer has weights of few bits, or gathers them."""
    return kind is RegionKind.LINEAR and (traits(node).quantized or not any(map(is_weight, node.args)))


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


# ---------------------------------------------------------------- caches


def caches(kinds: Mapping[Node, RegionKind], users: Mapping[Node, Sequence[Node]], sizes: SymbolSizes) -> set[Node]:
    """Rows behind more rows that other terms read: a cache, which is in the region of its
    attention."""
    found = set()
    for node in kinds:
        if traits(node).lowering is Lowering.CONCAT and users.get(node):
            counts = [size(sized(x.type, sizes)) for x in node.args]
            found |= {node} if 2 * max(counts) > sum(counts) else set()
    return found


def turned(kinds: Mapping[Node, RegionKind], caches: Collection[Node]) -> set[Node]:
    """Terms that put other parts together, in the model's order, and the chains above them: rotary
    embeddings, up to where they are written over other data."""
    found = set[Node]()
    for node, kind in kinds.items():
        joins = traits(node).lowering is Lowering.CONCAT
        above = kind is RegionKind.CHAIN and not found.isdisjoint(node.args) and not is_scatter(node)
        found |= {node} if (joins or above) and node not in caches else set()
    return found


def is_copied(lane: Graph) -> bool:
    """Whether all results of a lane are mostly inputs, which kernels copy."""
    return all(map(is_append, lane.outputs))


def successive_products(goal: Labelled) -> int:
    """The number of products of which each reads the one before: three in an operator that also
    projects the operands of its attention, which a library computes best."""
    found: dict[Node, int] = {}
    for node in topological(inlined(goal.graph.outputs)):
        found[node] = max((found[a] for a in node.args if a in found), default=0) + multiplies(node.op)
    return max(found.values())
