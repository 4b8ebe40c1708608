"""Best-first search over equal graphs with a relaxation factor (TASO section 6, algorithm 2), one
distinct part at a time."""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Protocol

from taso_mirage.ir.terms import Graph, Node, substitute, topological, users, with_args
from taso_mirage.rewriting.equation import Equation, work_terms
from taso_mirage.rewriting.index import Application, Rules
from taso_mirage.rewriting.library import LIBRARY
from taso_mirage.search.cost import Cost
from taso_mirage.search.finalists import finalists_of
from taso_mirage.search.partition import ModelPart, model_parts
from taso_mirage.search.passes import Context, new_terms, simplify
from taso_mirage.search.steps import RewriteStep
from taso_mirage.system.schedule import Schedule, ScheduledWork

SearchState = tuple[Node, ...]
Choose = Callable[[list[SearchState]], int]
"""The choice of the fastest of several equal graphs; the first is predicted to be the fastest."""
SEARCHING = 0.8
"""The share of the time of a pass over the model for searching its parts; the rest is for measuring
the states found."""
FIRST = 0.7
"""The share of a search's time for the first pass over a model of several parts; the rest is for a
second one, which cuts it elsewhere."""
TERM = 0.02
"""The expected seconds of a search for each term of its part; earlier searches correct this
estimate."""
FULL, LEAST = 1 / 4, 8
"""The cost, relative to the most expensive part in all its places, from which a part has the whole
patience, and the smallest number of states of a cheaper part.

A cheaper part, such as the border of equal layers, has a share of the patience.
"""
DECISIVE = 1 / 8
"""The cost, relative to the most expensive part in all its places, from which a measurement decides
between the cheapest states of a part."""


@dataclass(frozen=True, slots=True)
class StateRewrite:
    """One way from a state to another: by which equations, the outputs afterwards, and, where they
    are known, the single steps of it."""

    equations: tuple[str, ...]
    outputs: SearchState
    details: tuple[RewriteStep, ...] = ()


@dataclass
class Budget:
    """The resources that a search may still use; an interrupt sets `stop`.

    In both cases the best result so far is kept.

    The search of a part ends after `patience` states without a cheaper one, because there are many
    equal graphs of equal cost. `matches`: the number of matches that all parts together may try.
    """

    seconds: float
    states_per_part: int = 400
    patience: int = 32
    alpha: float = 1.05
    stop: bool = False
    start: float = field(default_factory=time.monotonic)
    choose: Choose | None = None
    matches: float = math.inf

    def left(self) -> float:
        return 0.0 if self.stop else self.seconds - (time.monotonic() - self.start)


@dataclass(frozen=True, slots=True)
class BestState:
    """The best state of one part: the path to it (each with the equations taken), costs, the counts
    of the search and the reason for its end, and the gap of the extraction, where there was one:
    the share of the cost that a better one might save.

    `finalists`: the costs of the cheapest states and the paths to them, the best first. They
    include the unchanged part, with an empty path.
    """

    path: tuple[StateRewrite, ...]
    before: float
    after: float
    states: int
    matches: int
    ended: str
    gap: float | None = None
    finalists: tuple[tuple[float, tuple[StateRewrite, ...]], ...] = ()


class Strategy(Protocol):
    """A search of one part."""

    def __call__(
        self,
        graph: Graph,
        rules: Rules,
        eager: Rules,
        cost: Cost,
        context: Context,
        budget: Budget,
        whole: Budget | None = None,
    ) -> BestState: ...


@dataclass
class SearchStatistics:
    """The counts of a search of a model, the number of distinct parts by the reason for their end,
    and the gap of every extraction."""

    parts: int = 0
    distinct: int = 0
    states: int = 0
    matches: int = 0
    ended: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[float, ...] = ()

    def __add__(self, other: SearchStatistics) -> SearchStatistics:
        return SearchStatistics(
            self.parts + other.parts,
            self.distinct + other.distinct,
            self.states + other.states,
            self.matches + other.matches,
            dict(Counter(self.ended) + Counter(other.ended)),
            self.gaps + other.gaps,
        )


def search_model(
    outputs: SearchState,
    rules: Rules,
    eager: Rules,
    cost: Cost,
    context: Context,
    budget: Budget,
    progress: Callable[[int, int], None] = lambda done, total: None,
    strategy: Strategy | None = None,
) -> tuple[SearchState, list[RewriteStep], SearchStatistics]:
    """Search every distinct part, put the best state of each in its places, and repeat this with
    other cuts. Returns the outputs and the steps."""
    found: dict[Graph, BestState] = {}
    steps: list[RewriteStep] = []
    statistics = SearchStatistics()
    cuts: set[Node] = set()
    for last in (False, True):
        pieces = list(model_parts(outputs, cuts))
        if last and (len(pieces) == 1 or all(p.graph in found for p in pieces)):
            break
        kept = 0.0 if last or len(pieces) == 1 else (1 - FIRST) * budget.left()
        measuring = (1 - SEARCHING) * (budget.left() - kept)
        places = Counter(p.graph for p in pieces if p.graph not in found)
        found |= _searched(
            places,
            lambda graph, share: (strategy or search_part)(graph, rules, eager, cost, context, share, budget),
            kept + measuring,
            context,
            budget,
            partial(_counted, progress, last * len(pieces), 2 * len(pieces)),
        )
        contests(found, places, budget, kept)
        current: dict[Node, Node] = {}
        for piece in pieces:
            steps += _place(piece, found[piece.graph], current)
        cuts = {_updated(piece.place(piece.graph.outputs[-1:], piece.leaves)[0], current) for piece in pieces}
        outputs = tuple(_updated(o, current) for o in outputs)
        statistics.parts += len(pieces)
    statistics.distinct = len(found)
    statistics.states = sum(f.states for f in found.values())
    statistics.matches = sum(f.matches for f in found.values())
    statistics.ended = dict(Counter(f.ended for f in found.values()).most_common())
    statistics.gaps = tuple(f.gap for f in found.values() if f.gap is not None)
    return outputs, steps, statistics


def _counted(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _searched(
    places: Mapping[Graph, int],
    search: Callable[[Graph, Budget], BestState],
    kept: float,
    context: Context,
    budget: Budget,
    progress: Callable[[int], None],
) -> dict[Graph, BestState]:
    """The best states of some parts, until `kept` seconds are left. The parts with the highest
    roofline cost in all their places per expected second of search come first. A part for which
    there was no time is unchanged."""
    orders = {graph: topological(graph.outputs) for graph in places}
    prices = {graph: sum(context.estimate(n) for n in work_terms(order)) for graph, order in orders.items()}
    found = {graph: BestState((), price, price, 0, 0, "time") for graph, price in prices.items()}
    weights = _weights(prices, places)
    done = Counter[str]()

    def looked(graph: Graph, seconds: float) -> float:
        progress(done.total())
        done["parts"] += places[graph]
        patience = min(max(math.ceil(budget.patience * weights[graph] / FULL), LEAST), budget.patience)
        share = replace(budget, seconds=seconds, start=time.monotonic(), patience=patience)
        each = found[graph] = search(graph, share)
        budget.matches -= each.matches
        return (each.before - each.after) * places[graph]

    schedule = Schedule(lambda: budget.left() - kept)
    schedule.add(
        ScheduledWork("part", prices[graph] * count, TERM * len(orders[graph]), partial(looked, graph), "part")
        for graph, count in places.items()
    )
    schedule.run()
    return found


def _weights(prices: Mapping[Graph, float], places: Mapping[Graph, int]) -> dict[Graph, float]:
    """The cost of each part in all its places, relative to the largest such cost."""
    costs = {graph: prices[graph] * count for graph, count in places.items()}
    most = max(costs.values(), default=0.0)
    return {graph: cost / most if most > 0 else 1.0 for graph, cost in costs.items()}


def contests(found: dict[Graph, BestState], places: Mapping[Graph, int], budget: Budget, kept: float) -> None:
    """Measure the cheapest states of the parts that are DECISIVE, largest possible savings in all
    places first, until `kept` seconds are left, or less time than the longest measurement took. A
    part without a measurement has the state that is predicted to be the fastest."""
    if budget.choose is None:
        return
    longest, weights = 0.0, _weights({graph: found[graph].before for graph in places}, places)
    decisive = [graph for graph in places if weights[graph] >= DECISIVE]
    for graph in sorted(decisive, key=lambda g: (found[g].after - found[g].before) * places[g]):
        each = found[graph]
        left = budget.left()
        if len(each.finalists) > 1 and left - kept > longest:
            states = [path[-1].outputs if path else graph.outputs for _, path in each.finalists]
            after, path = each.finalists[budget.choose(states)]
            found[graph] = replace(each, path=path, after=after)
            longest = max(longest, left - budget.left())


def _place(piece: ModelPart, found: BestState, current: dict[Node, Node]) -> Iterator[RewriteStep]:
    """The steps of one part's path, in terms of the model as it is after the parts before."""
    leaves = {leaf: _updated(old, current) for leaf, old in piece.leaves.items()}
    before = piece.place(piece.graph.outputs, leaves)
    originals = piece.place(piece.graph.outputs, piece.leaves)
    for rewrite in found.path:
        after = piece.place(rewrite.outputs, leaves)
        changed = [(a, b) for a, b in zip(before, after, strict=True) if a is not b]
        if changed:
            details = tuple(
                RewriteStep(d.equations, piece.place(d.old, leaves), piece.place(d.new, leaves), d.sweep)
                for d in rewrite.details
            )
            old, new = (tuple(pair[i] for pair in changed) for i in (0, 1))
            yield RewriteStep(rewrite.equations, old, new, details=details)
        before = after
    current.update(zip(originals, before, strict=True))


def _updated(node: Node, current: dict[Node, Node]) -> Node:
    for each in topological([node], stop=current):
        current[each] = with_args(each, tuple(current[a] for a in each.args))
    return current[node]


def search_part(
    graph: Graph, rules: Rules, eager: Rules, cost: Cost, context: Context, budget: Budget, whole: Budget | None = None
) -> BestState:
    """The cheapest graph equal to `graph` within the budget.

    States that cost more than alpha times the best are dropped.
    """
    start = best = cost(graph.outputs)
    paths: dict[SearchState, tuple[SearchState, StateRewrite]] = {}
    prices = {graph.outputs: start}
    queue: list[tuple[float, int, SearchState]] = [(start, 0, graph.outputs)]
    popped = tried = improved = 0
    raw: set[SearchState] = set()
    while queue and not _limit(budget, whole, popped, popped - improved, tried):
        price, _, state = heapq.heappop(queue)
        if price > budget.alpha * best:
            break
        popped += 1
        for rewrite in rewrites(state, rules, eager, context, raw):
            if tried >= budget.matches:
                break
            tried += 1
            if rewrite.outputs in prices:
                continue
            paths[rewrite.outputs] = (state, rewrite)
            price = prices[rewrite.outputs] = cost(rewrite.outputs)
            if price < best:
                best, improved = price, popped
            if price <= budget.alpha * best:
                heapq.heappush(queue, (price, len(paths), rewrite.outputs))
            if budget.left() <= 0 or (whole and whole.stop):
                break
    ended = _limit(budget, whole, popped, popped - improved, tried) or "nothing left to try"
    finalists = tuple([(prices[s], _path(s, paths)) for s in finalists_of(graph.outputs, prices, budget.alpha)])
    after, path = finalists[0]
    return BestState(path, start, after, popped, tried, ended, finalists=finalists)


def _limit(budget: Budget, whole: Budget | None, popped: int, idle: int, tried: int = 0) -> str:
    """The limit that a search has reached; empty if none."""
    if whole and whole.stop:
        return "interrupt"
    if budget.left() <= 0:
        return "time"
    if popped >= budget.states_per_part:
        return "number of states"
    if tried >= budget.matches:
        return "number of matches"
    return "no recent improvement" if idle > budget.patience else ""


def _path(state: SearchState, paths: dict[SearchState, tuple[SearchState, StateRewrite]]) -> tuple[StateRewrite, ...]:
    path: list[StateRewrite] = []
    while state in paths:
        state, rewrite = paths[state]
        path.append(rewrite)
    return tuple(reversed(path))


def rewrites(
    state: SearchState, rules: Rules, eager: Rules, context: Context, raw: set[SearchState] | None = None
) -> Iterator[StateRewrite]:
    """Every state one equation away, simplified.

    The order is deterministic: terms in topological order, rules in the order of their set.

    `raw` contains the states before simplification, so a known one is not simplified again; most
    rules of a large library lead to known states.
    """
    raw = set() if raw is None else raw
    order = topological(state)
    used_by = users(order)
    position = {node: i for i, node in enumerate(order)}
    for node in order:
        for application in rules.applications(node):
            yield from _applied(state, order, application, eager, context, raw)
        for application in rules.joint_applications(node, used_by):
            if _in_order(application, position):
                yield from _applied(state, order, application, eager, context, raw)


def _in_order(application: Application, position: dict[Node, int]) -> bool:
    """Whether the outputs of an application are in the order of the graph. Only this one of the
    permutations of several outputs under one operator is used."""
    if len(set(application.equation.roots)) > 1:
        return True
    places = [position[o] for o in application.found.outputs]
    return places == sorted(places)


def _applied(
    state: SearchState,
    order: list[Node],
    application: Application,
    eager: Rules,
    context: Context,
    raw: set[SearchState],
) -> Iterator[StateRewrite]:
    found, results = application.found, application.results
    if _only_grows(application) or not all(context.legal(n) for n in new_terms(results, found.operands)):
        return
    outputs = substitute(state, dict(zip(found.outputs, results, strict=True)), order)
    if outputs in raw:
        return
    raw.add(outputs)
    smaller, steps = simplify(outputs, eager, context)
    names = (application.equation.name, *(e for s in steps for e in s.equations))
    yield StateRewrite(names, smaller, (RewriteStep((application.equation.name,), found.outputs, results), *steps))


def _only_grows(application: Application) -> bool:
    """Whether an equation of the library, applied backwards, increases the number of running terms;
    a large library gives too many such states.

    Terms over weights do not count, so enlarging a kernel does not increase the number.
    """
    equation, operands = application.equation, application.found.operands
    if equation.evidence != LIBRARY or not equation.backward:
        return False
    before, after = (work_terms(new_terms(side, operands)) for side in (application.found.outputs, application.results))
    return len(after) > len(before)


@lru_cache(maxsize=8)
def directions(equations: tuple[Equation, ...]) -> list[Equation]:
    """Every equation, and its reverse if that is a useful rule.

    A reverse that would expand one term into several (add(x, y) into sub(x, neg(y))) is left out,
    because it matches everywhere and saves nothing.
    """
    found: list[Equation] = []
    for equation in equations:
        found.append(equation)
        backwards = equation.reverse()
        if backwards is not None and (len(backwards.lhs_terms) > 1 or len(backwards.rhs_terms) == 1):
            found.append(backwards)
    return found
