"""The cheapest graphs of an e-graph, with the cost of a shared term counted once: exact branch and
bound, depth first (see `bounds`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from taso_mirage.search.bounds import ClassOptions, ExtractionProblem, Option, tree_costs

ChosenOptions = Mapping[int, int]
"""For every class of a graph, the index of the option taken."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """The cheapest graphs found, cheapest first, with their costs. `exact`: whether the first is
    known to be the cheapest of all. `bound`: a lower bound of the cost of every graph."""

    found: tuple[tuple[float, ChosenOptions], ...]
    exact: bool
    steps: int
    bound: float

    @property
    def gap(self) -> float:
        """The share of the cost that a better graph might still save; 0 where there is none."""
        best = self.found[0][0] if self.found else 0.0
        return 1 - self.bound / best if best > 0 and not self.exact else 0.0


def extract(
    options: ClassOptions,
    roots: Sequence[int],
    known: Sequence[ChosenOptions] = (),
    keep: int = 1,
    slack: float = 1.0,
    limit: int = 20_000,
    stop: Callable[[], bool] = lambda: False,
) -> Extraction:
    """Return the cheapest acyclic graphs that contain the roots: up to `keep`, none more expensive
    than `slack` times the cheapest.

    `known` are graphs to start from. After `limit` steps, or when `stop` is true, the result is the
    best graphs so far.
    """
    kept = _Kept(keep, slack)
    prices = tree_costs(options)
    if any(root not in prices for root in roots):
        return Extraction((), True, 0, math.inf)
    for choice in (*known, _cheapest_trees(options, prices)):
        kept.offer(_restricted(options, roots, choice), options)
    problem = ExtractionProblem(options, roots, prices, stop)
    while not stop() and problem.drop_above(kept.threshold()):
        pass
    search = _Search(problem, kept, options)
    search.run(limit, stop)
    found = kept.result()
    bound = min(problem.bound, found[0][0]) if search.cut_short else found[0][0]
    return Extraction(found, not search.cut_short, search.steps, bound)


def _cheapest_trees(options: ClassOptions, prices: Mapping[int, float]) -> ChosenOptions:
    """Every class by its cheapest tree.

    It is acyclic: among equal trees, one that was settled first needs only earlier ones.
    """
    place = {each: i for i, each in enumerate(prices)}

    def total(each: int, option: Option) -> float:
        before = all(place.get(n, len(place)) < place[each] for n in option.needs)
        return option.cost + sum(prices[n] for n in option.needs) if before else math.inf

    return {c: min(range(len(options[c])), key=lambda i: total(c, options[c][i])) for c in prices}


def _restricted(options: ClassOptions, roots: Sequence[int], choice: ChosenOptions) -> ChosenOptions:
    """The part of a choice that the roots need."""
    found: dict[int, int] = {}
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = choice[each]
            waiting += options[each][choice[each]].needs
    return found


@dataclass
class _Kept:
    """The cheapest choices so far."""

    keep: int
    slack: float
    choices: dict[tuple[tuple[int, int], ...], float] = field(default_factory=dict)

    def offer(self, choice: ChosenOptions, options: ClassOptions) -> None:
        self.choices[tuple(sorted(choice.items()))] = sum(options[c][i].cost for c, i in choice.items())
        if len(self.choices) > self.keep:
            del self.choices[max(self.choices, key=lambda k: (self.choices[k], k))]

    def threshold(self) -> float:
        """The cost below which a graph is kept."""
        if not self.choices:
            return math.inf
        limit = self.slack * min(self.choices.values())
        return min(limit, max(self.choices.values())) if len(self.choices) == self.keep else limit

    def result(self) -> tuple[tuple[float, ChosenOptions], ...]:
        limit = self.slack * min(self.choices.values(), default=0.0)
        ranked = sorted((cost, key) for key, cost in self.choices.items() if cost <= limit)
        return tuple((cost, dict(key)) for cost, key in ranked)


@dataclass(frozen=True, slots=True)
class _State:
    """Sets of classes as bits: needed, decided, and those that were first needed in their turn, so
    that none of their needs was paid before. `owed` is the price of the forced classes that are not
    decided, minus the amount that other classes still pay for decided ones."""

    needed: int
    decided: int
    in_turn: int
    cost: float
    owed: float
    back: bool  # whether a decided option needs a class that comes before its own: only then there can be a cycle


class _Search:
    """Depth first over the needed classes, users first, cheapest option first."""

    def __init__(self, problem: ExtractionProblem, kept: _Kept, options: ClassOptions) -> None:
        self.problem, self.kept, self.options = problem, kept, options
        self.steps, self.cut_short = 0, False
        self.at = list(problem.place)
        self.choice: dict[int, int] = {}
        self.met: dict[tuple[int, tuple[tuple[int, int], ...]], float] = {}
        self.below = self._below()
        place = problem.place
        self.users = {c: [(place[u], w) for u, w in of.items()] for c, of in problem.weights.items()}
        self.later = {c: problem.price[c] * sum(w for u, w in of if u > place[c]) for c, of in self.users.items()}

    def run(self, limit: int, stop: Callable[[], bool]) -> None:
        problem = self.problem
        forced = sum(1 << problem.place[c] for c in problem.forced)
        frames = [self._frame(_State(forced, 0, 0, 0.0, problem.bound, False))]
        while frames:
            of, state, ways = frames[-1]
            way = next(ways, None)
            if way is None:
                frames.pop()
                self.choice.pop(of, None)
                continue
            if self.steps >= limit or (self.steps % 256 == 255 and stop()):
                self.cut_short = True
                return
            self.steps += 1
            self.choice[of] = way
            after = self._decided(state, of, problem.options[of][way])
            if after is None or self._bound(after) >= self.kept.threshold() * (1 - 1e-12) or self._met(after):
                continue
            if after.needed == after.decided:
                self.kept.offer(self.choice, self.options)
            else:
                frames.append(self._frame(after))

    def _frame(self, state: _State) -> tuple[int, _State, Iterator[int]]:
        """The first undecided class, and its options in increasing order of their estimated
        additional cost."""
        waiting = state.needed & ~state.decided
        of = self.at[(waiting & -waiting).bit_length() - 1]
        problem = self.problem

        def adds(option: Option) -> float:
            new = tuple(n for n in option.needs if not state.needed >> problem.place[n] & 1)
            return problem.value(of, Option(option.cost, new))

        ways = problem.options[of]
        return of, state, iter(sorted(ways, key=lambda i: (adds(ways[i]), i)))

    def _decided(self, state: _State, of: int, option: Option) -> _State | None:
        """The state after an option is taken; None where that closes a cycle."""
        problem, place = self.problem, self.problem.place
        own = place[of]
        back = state.back or any(place[n] <= own for n in option.needs)
        if back and self._reaches(option.needs, of):
            return None
        decided, needed, in_turn = state.decided | 1 << own, state.needed, state.in_turn
        furthest = decided.bit_length()
        for each in option.needs:
            bit = 1 << place[each]
            if not needed & bit:
                needed |= bit
                in_turn |= bit if place[each] >= furthest else 0
        owed = state.owed - (problem.price[of] if of in problem.forced else self.later[of])
        return _State(needed, decided, in_turn, state.cost + option.cost, owed, back)

    def _met(self, state: _State) -> bool:
        """Whether an earlier state with the same open decisions had no higher cost."""
        waiting, future = state.needed & ~state.decided, 0
        rest = waiting
        while rest:
            low = rest & -rest
            rest ^= low
            future |= self.below[low.bit_length() - 1]
        paid = state.decided & future  # in cycles only: then the option taken there matters
        key = waiting, tuple((c, i) for c, i in self.choice.items() if paid >> self.problem.place[c] & 1)
        known = self.met.get(key)
        if known is not None and known <= state.cost and waiting:
            return True
        self.met[key] = state.cost
        return False

    def _below(self) -> list[int]:
        """For each class, the set (as bits) of all classes that it may need, directly or
        indirectly."""
        place = self.problem.place
        below = dict.fromkeys(place, 0)
        changed = True
        while changed:
            changed = False
            for each in reversed(place):
                found = below[each]
                for option in self.problem.options[each].values():
                    for needed in option.needs:
                        found |= below[needed] | 1 << place[needed]
                if found != below[each]:
                    below[each], changed = found, True
        return [below[c] for c in self.at]

    def _bound(self, state: _State) -> float:
        """A lower bound on the cost of every graph below a state: a waiting class owes its price,
        less the parts of later users."""
        waiting = state.needed & ~state.decided & state.in_turn
        total, furthest = state.cost + state.owed, state.decided.bit_length()
        while waiting:
            low = waiting & -waiting
            waiting ^= low
            each = self.at[low.bit_length() - 1]
            later = sum(w for place, w in self.users[each] if place >= furthest)
            total += self.problem.price[each] * (1.0 - later)
        return total

    def _reaches(self, start: Sequence[int], goal: int) -> bool:
        """Whether the decided options lead from some class to another."""
        waiting, seen = list(start), set(start)
        while waiting:
            each = waiting.pop()
            if each == goal:
                return True
            way = self.choice.get(each)
            if way is not None:
                new = [n for n in self.problem.options[each][way].needs if n not in seen]
                seen.update(new)
                waiting += new
        return False
