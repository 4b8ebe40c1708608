"""The order of a model's terms in which each region is one term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taso_mirage.ir.terms import Node


class RegionRanks:
    """The ranks of terms: those of one region have the same, operands lower ones. `order` is the
    model's order, and `region` has the terms of the region of each term that is in one; its owner
    adds regions after `merge`."""

    def __init__(
        self, order: Sequence[Node], users: Mapping[Node, Sequence[Node]], region: Mapping[Node, Sequence[Node]]
    ) -> None:
        self.users, self.region = users, region
        self.rank = {node: i for i, node in enumerate(order)}
        self.ranked: list[Node | None] = list(order)
        """A term of each rank that is in use."""

    def convex(self, inside: set[Node]) -> bool:
        """Whether no path leaves the terms and comes back, also where it passes through other
        regions as one term."""
        last = max(self.rank[n] for n in inside)
        stack = [u for n in inside for u in self.users.get(n, ()) if u not in inside]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen or self.rank[node] > last:
                continue
            beyond = [u for n in self.region.get(node, [node]) for u in self.users.get(n, ())]
            if not inside.isdisjoint(beyond):
                return False
            seen.update(self.region.get(node, [node]))
            stack += beyond
        return True

    def merge(self, members: Sequence[Node]) -> None:
        """Give the terms of a new region one rank: between its first and its last, terms that
        depend on it come after it, all others before."""
        ranks = [self.rank[n] for n in members]
        first, last = min(ranks), max(ranks)
        inside, behind = set(members), set(members)
        before, after = list[Node](), list[Node]()
        for node in self.ranked[first : last + 1]:
            if node is None or node in inside:
                continue
            group = self.region.get(node, [node])
            hangs = any(a in behind for n in group for a in n.args)
            behind.update(group if hangs else ())
            (after if hangs else before).append(node)
        found: list[Node | None] = [*before, members[0], *after]
        self.ranked[first : last + 1] = found + [None] * (last + 1 - first - len(found))
        for rank, node in enumerate([*before, members[0], *after], first):
            self.rank.update(dict.fromkeys(members if node is members[0] else self.region.get(node, [node]), rank))
