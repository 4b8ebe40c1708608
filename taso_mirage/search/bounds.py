"""A lower bound on the cost of a graph that is taken from an e-graph, and the removal of dominated
options.

Each class has a price: its cheapest option, with a part of the price of each class that this needs,
where the parts of all that might need it sum to one; a class that every graph needs is paid in
full, once. That is a solution of the dual of the linear program of Tensat (MLSys'21, section 4.3);
parts are moved to raise it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a class: its own cost in seconds, and the distinct classes that it needs."""

    cost: float
    needs: tuple[int, ...] = ()


ROUNDS, SWEEPS = 40, 3
"""The number of steps that move parts of prices to raise the bound, and the number of rounds over
which the prices of a cycle are summed."""
ClassOptions = Mapping[int, Sequence[Option]]


def tree_costs(options: ClassOptions) -> dict[int, float]:
    """For every class with a finite term, the cost of the cheapest term, counted as a tree (Knuth's
    generalisation of Dijkstra's algorithm)."""
    users: dict[int, list[tuple[int, int]]] = {}
    missing: dict[tuple[int, int], int] = {}
    queue: list[tuple[float, int]] = []
    for each, ways in options.items():
        for i, option in enumerate(ways):
            missing[each, i] = len(option.needs)
            for needed in option.needs:
                users.setdefault(needed, []).append((each, i))
            if not option.needs:
                queue.append((option.cost, each))
    heapq.heapify(queue)
    costs: dict[int, float] = {}
    while queue:
        cost, each = heapq.heappop(queue)
        if each in costs:
            continue
        costs[each] = cost
        for user, i in users.get(each, ()):
            missing[user, i] -= 1
            option = options[user][i]
            if missing[user, i] == 0 and user not in costs:
                heapq.heappush(queue, (option.cost + sum(costs[n] for n in option.needs), user))
    return costs


class ExtractionProblem:
    """The classes and options that the roots can reach, without options that another one of the
    class replaces, in an order with users first."""

    def __init__(
        self, options: ClassOptions, roots: Sequence[int], prices: Mapping[int, float], stop: Callable[[], bool]
    ) -> None:
        self.stop = stop
        self.roots = tuple(dict.fromkeys(roots))
        self.options: dict[int, dict[int, Option]] = {
            c: undominated([(i, o) for i, o in enumerate(options[c]) if all(n in prices and n != c for n in o.needs)])
            for c in prices
        }
        self.tree = prices
        self._settle()

    def _settle(self) -> None:
        while True:
            self._reach()
            self.place = self._order()
            must = self._must()
            if not self._drop_cycles(must):
                break
        found = 0
        for root in self.roots:
            found |= must[root]
        self.forced = {c: None for c, i in self.place.items() if found >> i & 1}
        self.weights = self._even()
        self._set_prices()
        best, bound = self.weights, self.bound
        for i in range(ROUNDS):
            if self.stop():
                break
            self.weights = self._moved(1 / (2 + i / 4))
            self._set_prices()
            if self.bound > bound:
                best, bound = self.weights, self.bound
        self.weights = best
        self._set_prices()

    def _even(self) -> dict[int, dict[int, float]]:
        """For every class that is not forced, the classes that may need it, with equal parts of its
        price."""
        users: dict[int, dict[int, float]] = {c: {} for c in self.place if c not in self.forced}
        for each, ways in self.options.items():
            for option in ways.values():
                for needed in option.needs:
                    if needed in users:
                        users[needed][each] = 1.0
        return {c: {u: 1 / len(of) for u in of} for c, of in users.items()}

    def _set_prices(self) -> None:
        """Lower bounds of prices. The prices after any sweep are a bound; for a graph without
        cycles this follows by induction over its terms."""
        self.price = dict.fromkeys(self.place, 0.0)
        for _ in range(SWEEPS):
            for each in reversed(self.place):  # the needs of a class come after it, except in cycles
                self.price[each] = min(self.value(each, o) for o in self.options[each].values())
        self.bound = sum(self.price[c] for c in self.forced)

    def _moved(self, step: float) -> dict[int, dict[int, float]]:
        """Move the parts of the prices by one step towards the classes that pay them if all classes
        take their cheapest option."""
        paying: dict[int, list[int]] = {}
        waiting = list(self.forced)
        for each in waiting:
            ways = self.options[each]
            taken = ways[min(ways, key=lambda i: (self.value(each, ways[i]), i))]
            for needed in taken.needs:
                if needed in self.weights:
                    if needed not in paying:
                        waiting.append(needed)
                    paying.setdefault(needed, []).append(each)
        moved = dict(self.weights)
        for each, users in paying.items():
            kept = {u: (1 - step) * w for u, w in self.weights[each].items()}
            for user in users:
                kept[user] += step / len(users)
            moved[each] = kept
        return moved

    def value(self, of: int, option: Option) -> float:
        """A lower bound of the cost that an option adds to a graph."""
        weights, price = self.weights, self.price
        return option.cost + sum([price[n] * weights[n][of] for n in option.needs if n in weights])

    def drop_above(self, threshold: float) -> bool:
        """Remove options with which every graph would cost more than a threshold. Returns whether
        there were any."""
        dropped = False
        for each in self.forced:
            rest = self.bound - self.price[each]
            ways = self.options[each]
            over = [i for i, o in ways.items() if rest + self.value(each, o) > threshold * (1 + 1e-9)]
            if over and len(over) < len(ways):
                self.options[each] = {i: o for i, o in ways.items() if i not in over}
                dropped = True
        if dropped:
            self._settle()
        return dropped

    def _reach(self) -> None:
        found = dict.fromkeys(self.roots)
        waiting = list(found)
        while waiting:
            for option in self.options[waiting.pop()].values():
                new = [n for n in option.needs if n not in found]
                found.update(dict.fromkeys(new))
                waiting += new
        self.options = {c: self.options[c] for c in found}

    def _order(self) -> dict[int, int]:
        """Return the classes with users before their operands. A cycle is entered from outside, at
        its most expensive tree."""
        needs = {c: {n for o in ways.values() for n in o.needs} for c, ways in self.options.items()}
        users = Counter(chain.from_iterable(needs.values()))
        free = [c for c in needs if not users[c]]
        entries = [(-self.tree[c], c) for c in self.roots]
        heapq.heapify(entries)
        place: dict[int, int] = {}
        while free or entries:
            each = free.pop() if free else heapq.heappop(entries)[1]
            if each in place:
                continue
            place[each] = len(place)
            for below in sorted(needs[each]):
                users[below] -= 1
                if not users[below]:
                    free.append(below)
                elif below not in place:
                    heapq.heappush(entries, (-self.tree[below], below))
        return place

    def _must(self) -> dict[int, int]:
        """For each class, as bits of places, the classes that every term of it has: itself, and
        those that all its options need."""
        everything = (1 << len(self.place)) - 1
        must = dict.fromkeys(self.place, everything)
        changed = True
        while changed:
            changed = False
            for each, place in reversed(self.place.items()):
                common = everything
                for option in self.options[each].values():
                    below = 0
                    for needed in option.needs:
                        below |= must[needed]
                    common &= below
                common |= 1 << place
                if common != must[each]:
                    must[each], changed = common, True
        return must

    def _drop_cycles(self, must: Mapping[int, int]) -> bool:
        """Remove options that need a class which itself always needs the option's class. Returns
        whether there were any."""
        dropped = False
        for each, ways in self.options.items():
            sound = {i: o for i, o in ways.items() if not any(must[n] >> self.place[each] & 1 for n in o.needs)}
            dropped = dropped or len(sound) < len(ways)
            self.options[each] = sound
        return dropped


def undominated(ways: list[tuple[int, Option]]) -> dict[int, Option]:
    """Remove options that cost at least as much as another option of the class and need everything
    that it needs."""
    kept: dict[int, Option] = {}
    for i, option in sorted(ways, key=lambda way: (way[1].cost, len(way[1].needs), way[0])):
        needs = set(option.needs)
        if not any(needs.issuperset(other.needs) for other in kept.values()):
            kept[i] = option
    return kept
