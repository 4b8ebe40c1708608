"""Horizontal fusion: a goal whose results do not share their labels, as several goals that run in
parallel.

One grid cannot cut results that have other labels: the queries, keys and values of one norm, or a
block's result and the sum that it leaves for the next. Each such set of results is a *lane*, with
all that it is computed from: terms that lanes share are cheap, and computed in each of them. The
parts of a result (`stored_goal.py`) are results of lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, topological, variable
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.free import FreeSizes, lane_of
from taso_mirage.mugraph.labels import Labelled
from taso_mirage.mugraph.moved_goal import core_labels
from taso_mirage.mugraph.stored_goal import StoredGoal, stored_goal
from taso_mirage.operators.stores import writes_over
from taso_mirage.verdicts import Evidence


@dataclass(frozen=True, slots=True)
class FusedGoal:
    """`graph` has inputs of its own; `inputs` and `results` are their places among those of the
    goal. If the goal's results consist of parts (`stored`), `results` are places among the
    parts. `free`: the names of its sizes that a run gives."""

    graph: Graph
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    stored: StoredGoal | None = None
    free: FreeSizes | None = None


def groups(labelled: Labelled) -> list[tuple[int, ...]]:
    """The places of the results that have the same labels, in the order of their first ones."""
    found: dict[frozenset[str], list[int]] = {}
    for i, axes in enumerate(labelled.outputs):
        found.setdefault(frozenset(x for axis in axes for x in axis), []).append(i)
    return [tuple(places) for places in found.values()]


def fused_goals(goal: Graph, stores: bool = True, free: FreeSizes | None = None) -> list[FusedGoal]:
    """The lanes of a goal; equal ones are the same graph. With `stores` the parts of a result are
    results of lanes, where they are proved to be a partition of it: with `free`, the names of the
    sizes that a run gives, for all sizes."""
    stored = stored_goal(goal, None if free is None else free.goal)
    known = free is None or (stored.named is not None and not any(map(writes_over, stored.outputs)))
    if stores and stored.stores and known and stored.is_equal():
        named = None if stored.named is None else FreeSizes.of_goal(stored.named.parts)
        return [_lane(stored.parts, places, named, stored) for places in groups(core_labels(stored.parts))]
    return [_lane(goal, places, free) for places in groups(core_labels(goal))]


def together(
    goal: Graph, parts: Sequence[FusedGoal], found: Sequence[Graph]
) -> tuple[Graph, Mapping[Node, tuple[int, Node]]]:
    """The muGraphs of a goal's lanes as one, over inputs of the sizes that the lanes' have (names,
    where a run gives them), and for each of its terms, except copies, the number of a lane and the
    term there that it was."""
    goal = _named(goal, parts, found)
    outputs: dict[int, Node] = {}
    origin: dict[Node, tuple[int, Node]] = {}
    for i, (lane, graph) in enumerate(zip(parts, found, strict=True)):
        mapping = dict(zip(graph.inputs, (goal.inputs[k] for k in lane.inputs), strict=True))
        old = list(graph)
        for before, after in zip(old, substitute(old, mapping), strict=True):
            origin.setdefault(after, (i, before))
        outputs |= zip(lane.results, substitute(graph.outputs, mapping), strict=True)
    results, stored = tuple([outputs[i] for i in sorted(outputs)]), parts[0].stored
    if stored is None:
        return Graph(goal.inputs, results), origin
    over = stored if stored.named is None else stored.named
    restored = over.restored(results)
    inputs = dict(zip(over.goal.inputs, goal.inputs, strict=True))
    return Graph(goal.inputs, substitute(restored, inputs)), origin


def _named(goal: Graph, parts: Sequence[FusedGoal], graphs: Sequence[Graph]) -> Graph:
    """The goal with inputs of the sizes that its lanes' have."""
    stored = parts[0].stored
    over = goal if stored is None or stored.named is None else stored.named.goal
    shapes = {i: x.shape for i, x in enumerate(over.inputs)}
    for lane, graph in zip(parts, graphs, strict=True):
        shapes |= zip(lane.inputs, [x.shape for x in graph.inputs], strict=True)
    inputs = tuple([variable(x.attr("name"), Tensor(x.dtype, shapes[i])) for i, x in enumerate(goal.inputs)])
    return Graph(inputs, goal.outputs)


def _lane(
    goal: Graph, places: tuple[int, ...], free: FreeSizes | None = None, stored: StoredGoal | None = None
) -> FusedGoal:
    needed = set(topological([goal.outputs[i] for i in places]))
    read = tuple([i for i, node in enumerate(goal.inputs) if node in needed])
    return FusedGoal(
        lane_of(goal, read, places), read, places, stored, None if free is None else free.of_lane(read, places)
    )


def ranked_found(found: Sequence[Sequence[FoundMuGraph]]) -> list[tuple[FoundMuGraph, ...]]:
    """The muGraphs of each lane together, the fastest first: from one to the next, each lane goes
    on to its next muGraph."""
    if not all(found):
        return []
    return [tuple([each[min(i, len(each) - 1)] for each in found]) for i in range(max(map(len, found)))]


def joined_found(goal: Graph, lanes: Sequence[FusedGoal], found: Sequence[FoundMuGraph]) -> FoundMuGraph:
    """The muGraphs of a goal's lanes as one of the goal, with the evidence for all of them."""
    graph, _ = together(goal, lanes, [each.graph for each in found])
    evidence = Evidence(
        tests=min(each.evidence.tests for each in found),
        undecided=sum(each.evidence.undecided for each in found),
        bound=sum(each.evidence.bound for each in found),
        measured=tuple([error for each in found for error in each.evidence.measured]),
    )
    seconds = sum(each.seconds for each in found)
    return FoundMuGraph(graph, goal, seconds, found[0].device, evidence, found[0].warps)
