"""In which order a block computes its terms: the one that holds the least at a time (Mirage,
OSDI'25, section 6)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from taso_mirage.ir.mugraph import LoopPhase
from taso_mirage.ir.terms import Graph, Node, users

STATES = 20_000
"""So many sets of computed terms are looked at, at most; a body of 11 operators has a few
hundred."""


@dataclass(frozen=True, slots=True)
class Order:
    """The terms of one stage in order, the most elements that are live at a time, and whether there
    is none with fewer."""

    terms: tuple[Node, ...]
    live: int
    exact: bool


def ordered(body: Graph, stage: Mapping[Node, LoopPhase], which: LoopPhase, size: Callable[[Node], int]) -> Order:
    """The order of a stage's terms with the least live elements: best-first over the sets of terms
    that may be done.

    A term is live until its last user in this stage is done; what a later stage or the result needs
    stays live.
    """
    terms = tuple(n for n in body if stage[n] is which and n not in body.inputs)
    if not terms:
        return Order((), 0, True)
    uses = users(body)
    lasting = {n for n in terms if n in body.outputs or any(stage[u] is not which for u in uses.get(n, ()))}
    known = set(terms)
    needs = {n: frozenset(a for a in n.args if a in known) for n in terms}
    readers = {n: frozenset(u for u in uses.get(n, ()) if u in known) for n in terms}

    def live(done: frozenset[Node]) -> int:
        return sum(size(n) for n in done if n in lasting or not readers[n] <= done)

    place = {n: i for i, n in enumerate(terms)}
    heap: list[tuple[int, int, tuple[int, ...]]] = [(0, len(terms), ())]
    seen: set[frozenset[Node]] = set()
    while heap and len(seen) < STATES:
        peak, left, path = heapq.heappop(heap)
        if not left:
            return Order(tuple(terms[i] for i in path), peak, True)
        done = frozenset(terms[i] for i in path)
        if done in seen:
            continue
        seen.add(done)
        for n in terms:
            after = done | {n}
            if n in done or not needs[n] <= done or after in seen:
                continue
            heapq.heappush(heap, (max(peak, live(done) + size(n), live(after)), left - 1, (*path, place[n])))
    return Order(terms, max(live(frozenset(terms[:i])) + size(n) for i, n in enumerate(terms)), False)
