"""The order in which a block computes its terms: the one with the fewest live elements at a time
(Mirage, OSDI'25, section 6)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from taso_mirage.ir.mugraph import LoopPhase
from taso_mirage.ir.terms import Graph, Node, users

STATES = 2_000, 20_000
"""The largest number of sets of computed terms that are visited; a body of 11 operators has a few
hundred. If the first number is not enough, the search begins anew at a lower bound, and terms that
only free elements are computed at once."""


@dataclass(frozen=True, slots=True)
class Order:
    """The terms of one stage in order, the largest number of live elements, and whether no order
    has fewer."""

    terms: tuple[Node, ...]
    live: int
    exact: bool


def ordered(body: Graph, stage: Mapping[Node, LoopPhase], which: LoopPhase, size: Callable[[Node], int]) -> Order:
    """The order of a stage's terms with the fewest live elements, by best-first search over the
    sets of computed terms.

    A term is live until its last user in this stage is computed; a term that a later stage or the
    result needs stays live.
    """
    terms = tuple(n for n in body if stage[n] is which and n not in body.inputs)
    if not terms:
        return Order((), 0, True)
    uses, place = users(body), {n: i for i, n in enumerate(terms)}
    sizes = [size(n) for n in terms]
    lasting = [n in body.outputs or any(stage[u] is not which for u in uses.get(n, ())) for n in terms]
    # Sets of terms are bits of a number: bit i is terms[i].
    needs = [_bits(place[a] for a in n.args if a in place) for n in terms]
    readers = [_bits(place[u] for u in uses.get(n, ()) if u in place) for n in terms]

    @cache
    def live(done: int) -> int:
        return sum(n for i, n in enumerate(sizes) if done >> i & 1 and (lasting[i] or readers[i] & ~done))

    def freeing(done: int, peak: int) -> list[int]:
        """The first term, if there is one, that raises neither the live elements nor their largest
        number: computed later it frees no fewer, so an order with the fewest begins with it."""
        for i, n in enumerate(sizes):
            ready = not done >> i & 1 and not needs[i] & ~done
            if ready and live(done) + n <= peak and live(done | 1 << i) <= live(done):
                return [i]
        return []

    needed = [
        n + sum(size for k, size in enumerate(sizes) if own >> k & 1) for n, own in zip(sizes, needs, strict=True)
    ]
    for limit, least in zip(STATES, (0, max(needed)), strict=True):
        heap: list[tuple[int, int, tuple[int, ...], int]] = [(least, len(terms), (), 0)]
        seen: set[int] = set()
        while heap and len(seen) < limit:
            peak, left, path, done = heapq.heappop(heap)
            if not left:
                return Order(tuple(terms[i] for i in path), peak, True)
            if done in seen:
                continue
            seen.add(done)
            for i in (freeing(done, peak) if least else ()) or range(len(terms)):
                after = done | 1 << i
                if after == done or needs[i] & ~done or after in seen:
                    continue
                heapq.heappush(heap, (max(peak, live(done) + sizes[i], live(after)), left - 1, (*path, i), after))
    return Order(terms, max(live((1 << i) - 1) + n for i, n in enumerate(sizes)), False)


def _bits(places: Iterable[int]) -> int:
    return sum({1 << i for i in places})
