"""The times of a region alone in the runtime, as operators and as a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.form import in_operators
from taso_mirage.ir.model import Model, StoredWeight, Weight, repeated_array
from taso_mirage.ir.terms import Graph, Node, substitute, weight
from taso_mirage.measure.child import in_child
from taso_mirage.measure.session import open_part
from taso_mirage.measure.target import Target
from taso_mirage.measure.tasks import sessions_in_turn
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.work import size
from taso_mirage.regions.batches import LARGER, resized
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.regions.fragments import RegionSite
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import PlannedNode
from taso_mirage.system.spending import Purpose, spent

SECONDS = 0.2
"""The time for running a region both ways."""
SEED = 1
SLOWER = 1.05
"""The largest time of a kernel of free sizes relative to the operators at other sizes."""
LEAST, COLD, MOST = 1 << 19, 1 << 26, (1 << 31) - (1 << 20)
"""Bytes of weights from which on a whole model's run finds none in a cache; bytes of weights with
their copies, from which on no run here does; and the largest bytes of weights in a file."""


@spent(Purpose.TUNING)
def region_seconds(
    graph: Graph,
    site: RegionSite,
    kernel: PlannedNode,
    opsets: Mapping[str, int],
    target: Target,
    prepares: bool = False,
) -> tuple[float, float] | None:
    """The seconds of a region with its operators, and with the kernel in their place; None if its
    weights are too large for one file.

    If the kernel prepares weights, both sides arrange them in advance, and have so many copies of
    the region that its weights come from memory, as in a whole model.
    """
    known = [leaf for leaf, node in zip(graph.inputs, site.inputs, strict=True) if prepares and is_weight(node)]
    held, made = (sum(size(leaf.type) for leaf in leaves) for leaves in (known, graph.outputs))
    if held > MOST:
        return None
    copies = [_copy(graph, known, i) for i in range(-(-COLD // (held + made)) if held >= LEAST else 1)]
    left = tuple([leaf for leaf in graph.inputs if leaf not in known])
    outputs = tuple([output for copy, _ in copies for output in copy.outputs])
    weights = {k: v for _, arrays in copies for k, v in arrays.items()}
    before, whole = (standalone(Graph(left, each), opsets, weights) for each in (in_operators(outputs), outputs))
    after = embed(whole, [EmbeddedRegion(copy.inputs, copy.outputs, kernel) for copy, _ in copies])
    times = models_in_turn([before, after], target)
    return times[0] / len(copies), times[1] / len(copies)


def models_in_turn(models: Sequence[Model], target: Target) -> list[float]:
    """Seconds of small models with the same random inputs, as `tasks.in_turn` gives them; large
    weights that they share go to the child process once."""
    sessions = [open_part(each, target.resting) for each in models]
    return in_child(sessions_in_turn, [each.number() for each in sessions], target, SECONDS, SEED)


def slower_elsewhere(
    sizes: SymbolSizes,
    site: RegionSite,
    kernel: PlannedNode,
    opsets: Mapping[str, int],
    target: Target,
    prepares: bool,
) -> bool:
    """Whether a kernel of free sizes is slower than the operators at the least sizes, or at sizes
    larger than these."""
    for other in (dict.fromkeys(sizes, 1), {name: LARGER * n for name, n in sizes.items()}):
        try:
            times = region_seconds(resized(site, other), site, kernel, opsets, target, prepares)
        except TasoMirageError:
            continue  # the region has no such sizes
        if times is not None and times[1] > SLOWER * times[0]:
            return True
    return False


def _copy(graph: Graph, known: list[Node], i: int) -> tuple[Graph, dict[str, Weight]]:
    """The region with random weights of its own in place of these inputs."""
    rng = np.random.default_rng(i)
    made = {leaf: weight(f"{leaf.attr('name')}_{i}", leaf.tensor) for leaf in known}
    inputs = tuple([made.get(leaf, leaf) for leaf in graph.inputs])
    arrays: dict[str, Weight] = {made[leaf].attr("name"): StoredWeight(repeated_array(leaf, rng)) for leaf in known}
    return Graph(inputs, substitute(graph.outputs, made)), arrays
