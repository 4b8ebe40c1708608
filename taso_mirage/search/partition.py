"""Cutting a model into parts small enough to search, each distinct part once (TASO section 6;
repeated layers are one part)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from taso_mirage.ir.terms import Graph, Node, Tensor, topological, users, variable, weight, with_args
from taso_mirage.operators.expressions import is_weight

LEAST, MOST, REST, APART = 24, 60, 8, 8
"""A part ends at the narrowest cut (fewest live values, then the first) between LEAST and MOST
terms; no cut leaves fewer than REST terms. A value from more than MOST terms before the part, such
as a mask, does not count. Otherwise the cuts after its last use, in the last layer, would be
narrower than those of equal layers. The rule looks only ahead, so that equal layers are cut alike.
A second search of a model cuts it at least APART terms away from where it was cut before: a region
that one cut hid is then within a part."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A piece of a model: `graph` has canonical leaf names, `leaves` gives the model's term of
    each."""

    graph: Graph
    leaves: Mapping[Node, Node]

    def place(self, outputs: Sequence[Node], leaves: Mapping[Node, Node]) -> tuple[Node, ...]:
        """Rewrite `outputs`, which are terms over the canonical leaves, over other leaves."""
        done: dict[Node, Node] = dict(leaves)
        for node in topological(outputs, stop=done.keys()):
            done[node] = with_args(node, tuple(done[a] for a in node.args))
        return tuple(done[o] for o in outputs)


def model_parts(outputs: Sequence[Node], cuts: Collection[Node] = ()) -> Iterator[ModelPart]:
    """The parts of a model, in topological order.

    Opaque terms, and terms that depend on weights only, are in none. No part ends near one of
    `cuts`, the last outputs of the parts of an earlier look.
    """
    order = topological(outputs)
    used_by = users(order)
    wanted = set(outputs)
    for segment in _segments(order, used_by, wanted, cuts):
        yield _part(segment, used_by, wanted)


def _segments(
    order: list[Node], used_by: Mapping[Node, list[Node]], wanted: set[Node], cuts: Collection[Node]
) -> Iterator[list[Node]]:
    run: list[Node] = []
    for node in order:
        if not node.args or is_weight(node):
            continue
        if node.op == "opaque":
            yield from _cut(run, used_by, wanted, cuts)
            run = []
        elif node.op != "item":
            run.append(node)
            if isinstance(node.type, tuple):  # its parts stay with it
                run += [u for u in used_by.get(node, ()) if u.op == "item"]
    yield from _cut(run, used_by, wanted, cuts)


def _cut(
    run: list[Node], used_by: Mapping[Node, list[Node]], wanted: set[Node], cuts: Collection[Node]
) -> Iterator[list[Node]]:
    position = {node: i for i, node in enumerate(run)}
    beyond = len(run)
    last = [
        beyond if n in wanted else max((position.get(u, beyond) for u in used_by.get(n, ())), default=i)
        for i, n in enumerate(run)
    ]
    live = _live_counts(last)
    ends = _may_end(run, cuts)
    start = far = 0
    old: list[int] = []
    while start < len(run):
        old = sorted(final for final in (*old, *last[far : max(start - MOST, far)]) if final > start)
        far = max(start - MOST, far)
        end = _end(start, len(run), lambda i: live[i] - len(old) + bisect_right(old, i), ends)  # noqa: B023
        yield run[start:end]
        start = end


def _live_counts(last: list[int]) -> list[int]:
    """For each position i, the number of values computed up to i that are used after i."""
    change = [0] * (len(last) + 2)
    for i, final in enumerate(last):
        change[i] += 1
        change[min(final, len(last))] -= 1
    counts, running = [], 0
    for i in range(len(last)):
        running += change[i]
        counts.append(running)
    return counts


def _end(start: int, stop: int, live: Callable[[int], int], ends: list[bool]) -> int:
    """The end of the part that begins at `start`; `live`: the number of live values at the cut
    after each term."""
    window = [i for i in range(start + LEAST - 1, min(start + MOST, stop - REST)) if ends[i]]
    narrowest = min(window, key=lambda i: (live(i), i), default=None)
    if narrowest is None or (stop - start <= MOST and live(narrowest) > min(live(start), 2)):
        return stop if stop - start <= MOST + REST else start + LEAST
    return narrowest + 1


def _may_end(run: list[Node], cuts: Collection[Node]) -> list[bool]:
    """The positions at which a part may end: not between a term and its items, and not near an
    earlier cut."""
    found = [not isinstance(n.type, tuple) for n in run]
    for i, node in enumerate(run):
        if node.op == "item" and i:
            found[i - 1] = False
        if node in cuts:
            near = range(max(i - APART, 0), min(i + APART + 1, len(run)))
            found[near.start : near.stop] = [False] * len(near)
    return found


def _part(segment: list[Node], used_by: Mapping[Node, list[Node]], wanted: set[Node]) -> ModelPart:
    inside = set(segment)
    outputs = [
        n
        for n in segment
        if not isinstance(n.type, tuple) and (n in wanted or any(u not in inside for u in used_by.get(n, ())))
    ]
    done: dict[Node, Node] = {}
    inputs: list[Node] = []
    for node in topological(outputs, stop=_Boundary(inside, done, inputs)):
        done[node] = with_args(node, tuple(done[a] for a in node.args))
    graph = Graph(tuple(inputs), tuple(done[o] for o in outputs))
    return ModelPart(graph, {new: old for old, new in done.items() if old not in inside})


class _Boundary:
    """The boundary of a part: a term outside becomes a canonical leaf, in the order of the first
    visit."""

    def __init__(self, inside: set[Node], done: dict[Node, Node], inputs: list[Node]) -> None:
        self.inside, self.done, self.inputs = inside, done, inputs
        self.weights = 0

    def __contains__(self, node: object) -> bool:
        if not isinstance(node, Node) or node in self.inside:
            return False
        if node not in self.done:
            self.done[node] = self._leaf(node)
        return True

    def _leaf(self, node: Node) -> Node:
        if node.op in ("constant", "extents", "absent") or not isinstance(node.type, Tensor):
            return node
        if is_weight(node):
            self.weights += 1
            return weight(f"w{self.weights}", node.type)
        leaf = variable(f"i{len(self.inputs)}", node.type)
        self.inputs.append(leaf)
        return leaf
