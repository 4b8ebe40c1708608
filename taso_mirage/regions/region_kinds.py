"""The kinds of operators, as regions of kernels distinguish them."""

from __future__ import annotations

import math
from enum import Enum

from taso_mirage.ir.terms import Node
from taso_mirage.mugraph.goal import stored_leaf
from taso_mirage.mugraph.labels import Labelled


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
