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

from taso_mirage.ir.terms import Graph, Node, substitute, topological
from taso_mirage.mugraph.free import lane_of
from taso_mirage.mugraph.labels import Labelled
from taso_mirage.mugraph.moved_goal import core_labels
from taso_mirage.mugraph.stored_goal import StoredGoal, stored_goal


@dataclass(frozen=True, slots=True)
class FusedGoal:
    """`graph` has inputs of its own; `inputs` and `results` are their places among those of the
    goal. If the goal's results consist of parts (`stored`), `results` are places among the
    parts."""

    graph: Graph
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    stored: StoredGoal | None = None


def groups(labelled: Labelled) -> list[tuple[int, ...]]:
    """The places of the results that have the same labels, in the order of their first ones."""
    found: dict[frozenset[str], list[int]] = {}
    for i, axes in enumerate(labelled.outputs):
        found.setdefault(frozenset(x for axis in axes for x in axis), []).append(i)
    return [tuple(places) for places in found.values()]


def fused_goals(goal: Graph, stores: bool = True) -> list[FusedGoal]:
    """The lanes of a goal; equal ones are the same graph. With `stores` the parts of a result are
    results of lanes, where they are proved to be a partition of it."""
    stored = stored_goal(goal)
    if stores and stored.stores and stored.is_equal():
        return [_lane(stored.parts, places, stored) for places in groups(core_labels(stored.parts))]
    return [_lane(goal, places) for places in groups(core_labels(goal))]


def together(
    goal: Graph, parts: Sequence[FusedGoal], found: Sequence[Graph]
) -> tuple[Graph, Mapping[Node, tuple[int, Node]]]:
    """The muGraphs of a goal's lanes as one, and for each of its terms, except copies, the number
    of a lane and the term there that it was."""
    outputs: dict[int, Node] = {}
    origin: dict[Node, tuple[int, Node]] = {}
    for i, (lane, graph) in enumerate(zip(parts, found, strict=True)):
        mapping = dict(zip(graph.inputs, (goal.inputs[k] for k in lane.inputs), strict=True))
        old = list(graph)
        for before, after in zip(old, substitute(old, mapping), strict=True):
            origin.setdefault(after, (i, before))
        outputs |= zip(lane.results, substitute(graph.outputs, mapping), strict=True)
    results = tuple([outputs[i] for i in sorted(outputs)])
    stored = parts[0].stored
    return Graph(goal.inputs, results if stored is None else stored.restored(results)), origin


def _lane(goal: Graph, places: tuple[int, ...], stored: StoredGoal | None = None) -> FusedGoal:
    needed = set(topological([goal.outputs[i] for i in places]))
    read = tuple([i for i, node in enumerate(goal.inputs) if node in needed])
    return FusedGoal(lane_of(goal, read, places), read, places, stored)
