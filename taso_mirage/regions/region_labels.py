"""The labels of a region's graph, also where parts of its results are written over others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.ir.terms import Graph, Node, topological
from taso_mirage.mugraph.free import FreeSizes, named_dims
from taso_mirage.mugraph.free_moves import free_moves
from taso_mirage.mugraph.goal import LOADED
from taso_mirage.mugraph.labels import Labelled
from taso_mirage.mugraph.moved_goal import core_labels, moved_goal
from taso_mirage.mugraph.stored_goal import stored_goal
from taso_mirage.operators.stores import writes_over
from taso_mirage.regions.canonical import SymbolSizes, canonical_region


def region_labels(graph: Graph) -> Labelled | None:
    """The labels of a graph, or else of the parts of its results, one for each; None if it has
    none."""
    return next((found for each in _parts(graph) if (found := _labels(each)) is not None), None)


def is_loaded(graph: Graph) -> bool:
    """Whether kernels load all inputs, or read rows of others by them."""
    if all(x.dtype in LOADED for x in graph.inputs):
        return True
    *_, parts = _parts(graph)
    try:
        core = moved_goal(parts).core
    except Unsupported:
        return False
    read = {*topological(core.outputs)}
    return all(x.dtype in LOADED for x in core.inputs if parts is graph or x in read)


def has_every_size(members: Sequence[Node], results: Sequence[Node], sizes: SymbolSizes) -> bool:
    """Whether the movements of terms along axes whose sizes a run gives are known for every size,
    and give each label one size."""
    graph, leaves = canonical_region(members, results, sizes)
    terms = {leaf: node for node, leaf in leaves.items()}
    shapes = [terms[x].shape for x in graph.inputs]
    moved = moved_goal(graph)
    if not moved.moves or all(isinstance(n, int) for shape in (*shapes, *(r.shape for r in results)) for n in shape):
        return True
    try:
        whole, _ = canonical_region(members, results, named_dims(shapes).symbols)
    except LookupError:
        return False
    moves = free_moves(moved, FreeSizes.of_goal(whole))
    return moves is not None and (len(members) == 1 or moves.sizes.labels(core_labels(graph)) is not None)


def _parts(graph: Graph) -> Iterator[Graph]:
    """A graph, and where parts of its results are written over others, the graph of one part for
    each result."""
    yield graph
    if any(map(writes_over, graph.outputs)):
        parts = stored_goal(graph).parts
        if len(parts.outputs) == len(graph.outputs):
            yield parts


def _labels(graph: Graph) -> Labelled | None:
    try:
        return core_labels(graph)
    except (TasoMirageError, LookupError, TypeError, ValueError):
        return None
