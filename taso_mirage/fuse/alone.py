"""A region alone in the runtime, as operators and as a kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from taso_mirage.expressions import is_weight
from taso_mirage.ir import Graph, substitute, weight
from taso_mirage.kernels.convolutions import convolution
from taso_mirage.kernels.regions import Spot
from taso_mirage.model import Array, Weight, random_array
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.optimize.measure import in_turn
from taso_mirage.optimize.target import Target
from taso_mirage.runtime.embed import Region, embed
from taso_mirage.runtime.plan import Kernel

SECONDS = 0.2
"""For running it both ways."""


def saved(graph: Graph, spot: Spot, kernel: Kernel, opsets: Mapping[str, int], target: Target) -> float:
    """Seconds less that a region takes with the kernel in place of its operators. Both sides arrange the weights of convolutions ahead."""
    given, weights = _given(graph, spot)
    before = standalone(given, opsets, weights)
    leaves = {n.attr("name"): n for n in given if n.op in ("input", "weight")}
    inputs = tuple([leaves[leaf.attr("name")] for leaf in graph.inputs])
    after = embed(before, [Region(inputs, given.outputs, kernel)])
    times = in_turn([serialize(before), serialize(after)], target, SECONDS)
    return times[0] - times[1]


def _given(graph: Graph, spot: Spot) -> tuple[Graph, dict[str, Weight]]:
    """The graph of a region, of a convolution with random weights in place of the inputs that are weights in the model."""
    if convolution(graph) is None:
        return graph, {}
    rng = np.random.default_rng(0)
    known = [leaf for leaf, node in zip(graph.inputs, spot.inputs, strict=True) if is_weight(node)]
    mapping = {leaf: weight(leaf.attr("name"), leaf.tensor) for leaf in known}
    arrays: dict[str, Weight] = {leaf.attr("name"): Array(random_array(leaf, rng, {})) for leaf in known}
    left = tuple([leaf for leaf in graph.inputs if leaf not in mapping])
    return Graph(left, substitute(graph.outputs, mapping)), arrays
