"""Equality saturation over one part (Tate et al., POPL'09; Tensat, MLSys'21), with extraction that
counts the cost of a shared term once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from taso_mirage.ir.terms import Graph, Node, topological, users
from taso_mirage.operators.expressions import is_weight
from taso_mirage.rewriting.equation import Equation, apply_equation, matches
from taso_mirage.rewriting.index import Application, Keep, Rules
from taso_mirage.rewriting.patterns import found_at
from taso_mirage.search.bounds import Option
from taso_mirage.search.cost import Cost
from taso_mirage.search.egraph import EGraph, ENode
from taso_mirage.search.extract import ChosenOptions, Extraction, extract
from taso_mirage.search.finalists import finalists_of
from taso_mirage.search.passes import Context, new_terms, simplify
from taso_mirage.search.search import BestState, Budget, SearchState, StateRewrite, search_part
from taso_mirage.verdicts import Failure

SATURATED = "saturated"
NODES = 5_000
MATCHES, BAN = 200, 2
"""An equation with more new matches than this in an iteration rests for BAN iterations; both double
each time (egg's BackoffScheduler)."""
CANDIDATES, STEPS = 8, 200_000
SEARCHING, GROWING = 0.2, 0.7
"""The shares of a budget's seconds at which a best-first search, whose path is added first, and
then the growth end. Costing and extraction have the rest."""
PHASES = ((2, 0.5), (12, 1.0))
"""The numbers of iterations after which graphs are extracted, and the share of the seconds until
which this happens.

The second extraction starts from the graphs of the first, because good graphs are found sooner in a
small e-graph.
"""


@dataclass(frozen=True, slots=True)
class Saturation:
    """The outcome of saturation: the reason for its end (nothing was left to add, or a limit);
    iterations, e-nodes, matches; whether the extraction was exact, and its gap."""

    ended: str
    iterations: int
    nodes: int
    matches: int
    exact: bool
    gap: float
    steps: int

    @property
    def saturated(self) -> bool:
        """Whether nothing was left to add."""
        return self.ended == SATURATED


def saturate_part(
    graph: Graph, rules: Rules, eager: Rules, cost: Cost, context: Context, budget: Budget, whole: Budget | None = None
) -> BestState:
    """The cheapest graph found that equals `graph`, never more expensive than `graph`.

    The interface is that of `search.search_part`, with e-nodes as states.
    """
    return saturated(graph, rules, eager, cost, context, budget, whole)[0]


def saturated(
    graph: Graph, rules: Rules, eager: Rules, cost: Cost, context: Context, budget: Budget, whole: Budget | None = None
) -> tuple[BestState, Saturation]:
    """`saturate_part`, and its statistics."""
    start = cost(graph.outputs)
    left = budget.left()
    brief = replace(budget, seconds=left * SEARCHING, start=time.monotonic())
    seed = search_part(graph, rules, eager, cost, context, brief, whole)
    both = (*rules.equations, *eager.equations)
    growth = _Growth(graph.outputs, both, cost, context, start * (budget.alpha - 1), rules.keep)
    growth.learn(seed.path)

    def over(share: float) -> bool:
        return budget.left() <= left * (1 - share) or bool(whole and whole.stop)

    extracted, extraction = _extracted(growth, graph.outputs, cost, budget.alpha, over)
    ended = "interrupt" if whole and whole.stop and not growth.saturated else growth.ended()
    prices = {graph.outputs: start}
    names: dict[SearchState, tuple[str, ...]] = {graph.outputs: ()}
    if seed.path:
        prices[seed.path[-1].outputs] = seed.after
        names[seed.path[-1].outputs] = tuple(name for r in seed.path for name in r.equations)
    for outputs in extracted:
        if not all(context.legal(n) for n in topological(outputs) if n not in growth.legal):
            continue
        smaller, steps = simplify(outputs, eager, context)
        if smaller not in prices:
            prices[smaller] = cost(smaller)
            why = growth.graph.explain(zip(graph.outputs, outputs, strict=True))
            names[smaller] = (*why, *(e for s in steps for e in s.equations))
    states = finalists_of(graph.outputs, prices, budget.alpha)
    finalists = tuple([(prices[s], () if s == graph.outputs else (StateRewrite(names[s], s),)) for s in states])
    after, path = finalists[0]
    done = Saturation(
        ended,
        growth.iterations,
        len(growth.graph),
        growth.matches,
        extraction.exact,
        extraction.gap,
        extraction.steps,
    )
    return BestState(path, start, after, done.nodes, done.matches, ended, done.gap, finalists), done


def _extracted(
    growth: _Growth, start: SearchState, cost: Cost, slack: float, over: Callable[[float], bool]
) -> tuple[list[SearchState], Extraction]:
    """The cheapest graphs, extracted as the e-graph grows, and the last extraction."""
    found: list[SearchState] = []
    for iterations, share in PHASES:
        growth.run(iterations, lambda: over(GROWING))
        ended = growth.saturated or len(growth.graph) >= NODES or over(GROWING)
        problem = _Problem(growth.graph, start, cost)
        extraction = problem.extract([*growth.given, *found], slack, partial(over, 1.0 if ended else share))
        found += (g for g in problem.graphs(extraction) if g not in found)
        if ended:
            break
    return found, extraction


@dataclass(slots=True)
class _Rule:
    """An equation, the terms that it was applied to, and when it may be tried again."""

    equation: Equation
    exchangeable: bool
    seen: set[tuple[Node, ...]] = field(default_factory=set)
    banned: int = 0
    rests: int = 0


@dataclass(frozen=True, slots=True)
class _Addition:
    """An application, the terms that it would add, and their additional cost over the terms that it
    may replace, in seconds."""

    application: Application
    new: tuple[Node, ...]
    dearer: float


class _Growth:
    """An e-graph that grows by equations. All matches of an iteration are added at once, so no
    equation has priority."""

    def __init__(
        self,
        outputs: SearchState,
        equations: tuple[Equation, ...],
        cost: Cost,
        context: Context,
        allowance: float,
        keep: Keep | None = None,
    ) -> None:
        self.graph = EGraph()
        for output in outputs:
            self.graph.add(output)
        self.graph.rebuild()
        self.outputs, self.given, self.legal = outputs, [outputs], set(topological(outputs))
        self.cost, self.context, self.allowance, self.keep = cost, context, allowance, keep
        self.rules: dict[str, list[_Rule]] = {}
        for equation in dict.fromkeys(equations):
            self.rules.setdefault(equation.roots[0], []).append(_Rule(equation, _exchangeable(equation)))
        self.joined: dict[int, frozenset[int]] = {}  # the classes that went into one term, by that term's class
        self.iterations = self.matches = 0
        self.saturated = False

    def learn(self, path: Sequence[StateRewrite]) -> None:
        """Add the states of a path that another search found."""
        before = self.outputs
        for rewrite in path:
            for old, new in zip(before, rewrite.outputs, strict=True):
                self.graph.add(new)
                self.graph.union(old, new, *rewrite.equations)
            before = rewrite.outputs
            self.legal.update(topological(before))
            self.given.append(before)
        self.graph.rebuild()

    def run(self, iterations: int, stop: Callable[[], bool]) -> None:
        """Grow until nothing is added, or a limit is reached."""
        while self.iterations < iterations and len(self.graph) < NODES and not stop():
            self.iterations += 1
            self._settle_joined()
            additions, resting = self._additions(stop)
            additions.sort(key=lambda a: a.dearer)
            grown = [a for a in additions if len(self.graph) < NODES and self._made(a)]
            self.graph.rebuild()
            if not grown and not resting and not stop():
                self.saturated = True
                return

    def ended(self) -> str:
        """The reason for the end of the growth: saturation, or a limit."""
        if self.saturated:
            return SATURATED
        if len(self.graph) >= NODES:
            return "number of e-nodes"
        return "number of iterations" if self.iterations >= PHASES[-1][0] else "time"

    # ------------------------------------------------------------ matching

    def _additions(self, stop: Callable[[], bool]) -> tuple[list[_Addition], bool]:
        """The additions of the equations to the graph as it is, and whether one of them rests."""
        by_op: dict[str, list[int]] = {}
        for of in self.graph.classes():
            for op in self.graph.operators(of):
                by_op.setdefault(op, []).append(of)
        found: list[_Addition] = []
        resting = False
        for op, rules in self.rules.items():
            for rule in rules if op in by_op else ():
                if stop():
                    return found, True
                if rule.banned > self.iterations:
                    resting = True
                    continue
                limit = MATCHES << rule.rests
                new = list(islice(self._places(rule, by_op[op], stop), limit + 1))
                if len(new) > limit:
                    rule.banned, rule.rests, resting = self.iterations + (BAN << rule.rests), rule.rests + 1, True
                    continue
                rule.seen.update(new)
                found += self._tried(rule.equation, new, stop)
        return found, resting

    def _tried(self, equation: Equation, new: list[tuple[Node, ...]], stop: Callable[[], bool]) -> Iterator[_Addition]:
        for outputs in new:
            if stop():  # the cost may require a measurement
                return
            for application in self._applications(equation, outputs):
                self.matches += 1
                addition = self._addition(application)
                if addition is not None:
                    yield addition

    def _places(self, rule: _Rule, classes: list[int], stop: Callable[[], bool]) -> Iterator[tuple[Node, ...]]:
        """Terms to which an equation was not applied yet.

        A match depends only on these terms, so one trial is enough.
        """
        met = set[tuple[Node, ...]]()
        for of in classes:
            if stop():
                return
            for place in found_at(rule.equation.lhs.outputs, of, self.graph, partial(self._apart, rule)):
                if place.outputs not in rule.seen and place.outputs not in met:
                    met.add(place.outputs)
                    yield place.outputs

    def _applications(self, equation: Equation, outputs: tuple[Node, ...]) -> Iterator[Application]:
        around = users(topological(outputs)) if len(outputs) > 1 else None
        for found in matches(equation, outputs[0], around):
            results = apply_equation(equation, found)
            if found.outputs == outputs and not isinstance(results, Failure) and results != outputs:
                application = Application(equation, found, results)
                if self.keep is None or self.keep(application):
                    yield application

    def _addition(self, application: Application) -> _Addition | None:
        found, results = application.found, application.results
        new = new_terms(results, found.operands)
        if not all(self.context.legal(n) for n in new):
            return None
        matched = new_terms(found.outputs, found.operands)
        if is_weight(results[0]) and len(new) >= len(matched):
            return None  # a term that depends on weights only is free, however it is written
        dearer = sum(self.cost.of(n) for n in new if n not in self.graph) - sum(map(self.cost.of, matched))
        return _Addition(application, tuple(new), dearer) if dearer <= self.allowance else None

    def _made(self, addition: _Addition) -> bool:
        """Add the results of an application. Returns whether they were new."""
        application, graph = addition.application, self.graph
        outputs, results = application.found.outputs, application.results
        before = len(graph)
        for each in outputs:
            graph.add(each)
        if len(outputs) == 1 and self._repeats(graph.find(outputs[0]), results[0]):
            return False
        for each in results:
            graph.add(each)
        pairs = zip(outputs, results, strict=True)
        merged = [graph.union(old, new, application.equation.name) for old, new in pairs]
        if len(outputs) > 1:
            parts = frozenset().union(*(self._parts(graph.find(o)) for o in outputs))
            self.joined.update((graph.find(n), parts) for n in addition.new if n.op != "item" and not is_weight(n))
        return any(merged) or len(graph) > before

    def _repeats(self, of: int, node: Node) -> bool:
        """Whether a class has a term that differs only in operands over weights: a product with
        those weights sliced and joined again."""
        graph = self.graph

        def alike(arg: Node, below: int) -> bool:
            best = graph.best(graph.find(below))
            both_free = is_weight(arg) and is_weight(best) and arg.type == best.type
            return both_free or (arg in graph and graph.find(arg) == graph.find(below))

        return any(
            key[1] == node.attrs and len(key[2]) == len(node.args) and all(map(alike, node.args, key[2]))
            for key in graph.members(of, node.op)
            if node.args
        )

    # ------------------------------------------------------------ joins

    def _parts(self, of: int) -> frozenset[int]:
        return self.joined.get(of, frozenset({of}))

    def _settle_joined(self) -> None:
        find, settled = self.graph.find, dict[int, frozenset[int]]()
        for of, parts in self.joined.items():
            settled[find(of)] = settled.get(find(of), frozenset()).union(map(find, parts))
        self.joined = settled

    def _apart(self, rule: _Rule, classes: tuple[int, ...]) -> bool:
        """Whether no part occurs twice in one term, and exchangeable outputs are in the order of
        their classes.

        Otherwise n products of one operand would be joined with repetitions, without end.
        """
        *others, last = map(self._parts, classes)
        if any(last & other for other in others):
            return False
        return not rule.exchangeable or max(others[-1]) < min(last)


def _exchangeable(equation: Equation) -> bool:
    """Whether the outputs are equal up to the names of variables."""

    def outline(pattern: Node) -> tuple[Any, ...]:
        return ("input",) if pattern.op == "input" else (pattern.op, pattern.attrs, *map(outline, pattern.args))

    return len({outline(o) for o in equation.lhs.outputs}) == 1


class _Problem:
    """The problem of extraction: an option for every e-node that the outputs reach.

    A class over weights is free.
    """

    def __init__(self, graph: EGraph, outputs: SearchState, cost: Cost) -> None:
        self.graph = graph
        self.roots = tuple(graph.find(o) for o in outputs)
        self.keys: dict[int, list[ENode]] = {}
        self.options: dict[int, list[Option]] = {}
        waiting = list(self.roots)
        while waiting:
            of = waiting.pop()
            if of in self.keys:
                continue
            self.keys[of] = [] if self._free(of) else list(graph.members(of))
            self.options[of] = [Option(cost.of(graph.term(k)), self._needs(k)) for k in self.keys[of]] or [Option(0.0)]
            waiting += [n for option in self.options[of] for n in option.needs]

    def _needs(self, key: ENode) -> tuple[int, ...]:
        return tuple(dict.fromkeys(of for of in map(self.graph.find, key[2]) if not self._free(of)))

    def _free(self, of: int) -> bool:
        best = self.graph.best(of)
        return not best.args or is_weight(best)

    def extract(self, given: Sequence[SearchState], slack: float, stop: Callable[[], bool]) -> Extraction:
        """The cheapest graphs, given some."""
        return extract(self.options, self.roots, list(map(self._choice, given)), CANDIDATES, slack, STEPS, stop)

    def _choice(self, given: SearchState) -> ChosenOptions:
        """A given graph as a choice. Of equal terms the first is taken, which needs none of the
        others."""
        choice: dict[int, int] = {}
        for node in topological(given):
            of = self.graph.find(node)
            if of in self.keys and of not in choice:
                choice[of] = self.keys[of].index(self.graph.key(node)) if self.keys[of] else 0
        return choice

    def graphs(self, extraction: Extraction) -> Iterator[SearchState]:
        """The graphs that were extracted, cheapest first."""
        for _, choice in extraction.found:
            built: dict[int, Node] = {}
            waiting = list(self.roots)
            while waiting:
                of = waiting[-1]
                needs = [n for n in self.options[of][choice[of]].needs if n not in built]
                if of in built or not needs:
                    built.setdefault(of, self._built(of, choice[of], built))
                    waiting.pop()
                waiting += [] if of in built else needs
            yield tuple(built[root] for root in self.roots)

    def _built(self, of: int, way: int, built: Mapping[int, Node]) -> Node:
        if not self.keys[of]:
            return self.graph.best(of)
        op, attrs, args, _ = self.keys[of][way]
        below = map(self.graph.find, args)
        node = Node(op, tuple(built.get(a) or self.graph.best(a) for a in below), attrs, self.graph.best(of).type)
        self.graph.add(node)
        return node
