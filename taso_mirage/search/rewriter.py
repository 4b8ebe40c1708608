"""The candidates that passes and search make from a model for one target, each with the steps that
lead to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import Node, topological
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.shapes import Workloads
from taso_mirage.measure.target import Target
from taso_mirage.rewriting.equation import Equation, work_terms
from taso_mirage.rewriting.index import Keep, Rules
from taso_mirage.search.available import Available
from taso_mirage.search.cost import Cost, Weighted, ahead
from taso_mirage.search.passes import LARGE, Context, for_search, joint, merge, pass_order, simplify
from taso_mirage.search.search import Budget, SearchStatistics, Strategy, directions, search_model
from taso_mirage.search.simultaneous import all_at_once, at_every_place, laws_together
from taso_mirage.search.steps import RewriteStep
from taso_mirage.search.weights import fold_weights, split_halves

EACH, CLEAR = 0.1, 1.05
"""Seconds of the measurement in turn of a fusion into the runtime's own operators and its original
terms, and the factor by which it must be slower to be left out."""
LAST = 0.2
"""The largest share of a search's time that is reserved for the passes after it."""
MERGES = 2
"""The number of traversals with equations with several outputs; in the second one, a bias joins the
sum that the first one made."""


@dataclass(frozen=True, slots=True)
class ModelCandidate:
    """A possible result: a model, the steps from the original to it, its predicted seconds, and its
    target."""

    name: str
    model: Model
    steps: tuple[RewriteStep, ...]
    cost: float
    target: Target


class Rewriter:
    """Passes and search of one model for one target.

    Nothing is measured if `cache` is None. `weights` receives every folded weight; `proved` decides
    which applications of equations are proved, and `available` which operators the runtime has (by
    default, the runtime is asked).
    """

    def __init__(
        self,
        model: Model,
        target: Target,
        workloads: Workloads,
        equations: tuple[Equation, ...],
        weights: dict[str, Weight],
        cache: CostCache | None,
        executor: Executor | None = None,
        proved: Keep | None = None,
        available: Callable[[Node], bool] | None = None,
    ) -> None:
        self.model, self.target, self.equations, self.weights = model, target, equations, weights
        opsets = {"com.microsoft": 1, **model.opsets}
        (sizes, share), *rest = workloads
        asked = Context(opsets, sizes, target=target)
        others = [(Context(opsets, each, target=target), part / share) for each, part in rest]
        slower = self._predicted_slower if cache is None else self._slower
        there = available or Available(model.nodes(), asked, cache)
        self.context = replace(asked, available=there, others=others, slower=slower)
        # parts are searched with names of their own for weights; the passes see the model's, whose
        # values are known
        self.known = replace(self.context, weights=self.weights, _legal={})
        self.term = Weighted(self.context, workloads, cache, executor, ahead)
        self.cost = Cost(self.term)
        self._roofline = self.cost if cache is None else Cost(Weighted(self.context, workloads, None, None))
        self._compared: dict[tuple[tuple[Node, ...], tuple[Node, ...]], bool] = {}
        self._predicted: dict[tuple[tuple[Node, ...], tuple[Node, ...]], bool] = {}
        self.proved = proved
        self.stages = pass_order(equations, proved)
        self._joint = {stage: joint(stage) for stage in self.stages}
        self.decided = math.inf
        self.passing = 0.0
        """Seconds that the passes took: the limit of those after the search."""

    def measure_until(self, end: float, decided: float | None = None) -> None:
        """Set monotonic times: from `end` on nothing is measured, and from `decided` on no single
        fusion is measured against its original terms."""
        self.term.measure_until(end)
        self.decided = end if decided is None else decided

    def passes(
        self, model: Model | None = None, before: Sequence[RewriteStep] = ()
    ) -> tuple[Model, list[RewriteStep], ModelCandidate]:
        """The model from which the search starts, with the steps to it, and the model after all
        passes. If steps to another model are given, both start from that model.

        The search has no small fusions into the runtime's operators: they come last, because they
        would hide larger ones. The cost of the model after all passes is computed later, because
        the search does not need its measurement.
        """
        standard, large, every = self.stages
        start = time.monotonic()
        normal, steps = self._moved(*self._simplified(model or self.model, [standard, large]))
        steps = [*before, *steps]
        passed, lowered = self._simplified(normal, [every])
        self.passing = time.monotonic() - start
        return normal, steps, ModelCandidate("passes", passed, (*steps, *lowered), math.inf, self.target)

    def search(
        self,
        normal: Model,
        steps: Sequence[RewriteStep],
        strategy: Strategy,
        budget: Budget,
        progress: Callable[[int, int], None],
        more: Sequence[Equation] = (),
    ) -> tuple[ModelCandidate | None, SearchStatistics]:
        """The model after search and passes, if the search took a step, and its statistics.

        `more` are equations for the search only.
        """
        standard, large, every = self.stages
        if self.term.measured:
            self.measure_until(budget.start + budget.seconds)
            budget.choose = partial(self._fastest_state, finish=[large, every])
        budget.seconds -= min(self.passing, LAST * budget.seconds)
        rules = Rules([*directions(for_search(self.equations, self.target)), *more], self.proved)
        outputs, taken, statistics = search_model(
            normal.graph.outputs, rules, large, self.cost, self.context, budget, progress, strategy
        )
        if budget.stop:
            self.measure_until(0.0)
        if not taken or self._spoils(normal.graph.outputs, outputs):
            return None, statistics
        folded, rest = self._fold(normal, outputs)
        searched, last = self._simplified(folded, [standard, large, every])
        return self.candidate("search", searched, [*steps, *taken, *rest, *last]), statistics

    def _spoils(self, before: Sequence[Node], after: Sequence[Node]) -> bool:
        """Whether a new term over weights has values that its dtype does not hold: the search does
        not know values."""
        made = [n for n in topological(after, stop={*topological(before)}) if n.args]
        return any(self.known.spoils_a_weight(n) for n in made)

    def together(self, candidate: ModelCandidate) -> ModelCandidate | None:
        """A candidate to which the laws that may pay only at all places at once were applied; None
        if there are none, or if the runtime keeps no layout. It has the cost of the given
        candidate, because costs of single terms do not include layouts."""
        if not (self.target.blocked and self.term.measured):
            return None
        rules = Rules(laws_together(self.equations), self.proved)
        outputs, steps = all_at_once(candidate.model.graph.outputs, rules, self.known)
        if not steps:
            return None
        model, folded = self._fold(candidate.model, outputs)
        return replace(
            candidate, name=f"{candidate.name}, together", model=model, steps=(*candidate.steps, *steps, *folded)
        )

    def _predicted_slower(self, before: Sequence[Node], after: Sequence[Node]) -> bool:
        """Whether terms are predicted to be slower than the terms that they would replace."""
        key = tuple(before), tuple(after)
        if key not in self._predicted:
            self._predicted[key] = self._roofline(after) > self._roofline(before)
        return self._predicted[key]

    def _slower(self, before: Sequence[Node], after: Sequence[Node]) -> bool:
        """Whether terms were measured to be slower than the terms that they would replace: first by
        the cost of each in its fusion context, and then, because these sums vary, as separate
        models that run in turn. The answer is computed once for each pair. Once the time for
        measurements is over, new ones are predicted.
        """
        key = tuple(before), tuple(after)
        if key not in self._compared:
            if self.term.late or time.monotonic() > self.decided:
                return self._predicted_slower(before, after)
            self._compared[key] = self.cost(after) > self.cost(before) and self._slower_in_turn(key)
        return self._compared[key]

    def _slower_in_turn(self, both: tuple[Sequence[Node], Sequence[Node]]) -> bool:
        times = self.term.in_turn(both, EACH)
        return times is not None and times[1] > CLEAR * times[0]

    def candidate(self, name: str, model: Model, steps: Sequence[RewriteStep] = ()) -> ModelCandidate:
        """A candidate with its predicted cost on this target."""
        return ModelCandidate(name, model, tuple(steps), self.cost(model.graph.outputs), self.target)

    def _fastest_state(self, states: list[tuple[Node, ...]], finish: list[Rules]) -> int:
        """The index of the state of a part that runs fastest in the form in which it will be
        written."""
        for rules in finish:
            states = [simplify(state, rules, self.context)[0] for state in states]
        return self.term.fastest(states)

    def _simplified(self, model: Model, rules: Sequence[Rules]) -> tuple[Model, list[RewriteStep]]:
        """The model after the laws that only help, stage by stage, with weights folded in
        between."""
        taken: list[RewriteStep] = []
        for stage in rules:
            model, halved = split_halves(model, self.weights)
            self.weights.update(model.weights)
            outputs, steps = simplify(model.graph.outputs, stage, self.known)
            taken += [*halved, *steps]
            for _ in range(MERGES):
                outputs, merged = merge(outputs, self._joint[stage], self.known)
                taken += merged
            model, folded = self._fold(model, outputs)
            taken += folded
        return model, taken

    def _moved(self, model: Model, steps: list[RewriteStep]) -> tuple[Model, list[RewriteStep]]:
        """The model with its changes of layout moved towards the outputs, if so many of them cancel
        that the rest is faster on a roofline; a single move saves nothing. Large patterns come
        first, because a move of a part would hide them."""
        moving = [e for e in self.equations if e.moving]
        outputs, moved = model.graph.outputs, list[RewriteStep]()
        for some in ([e for e in moving if len(e.lhs_terms) >= LARGE], moving):
            outputs, more = at_every_place(outputs, Rules(some, self.proved), self.known)
            moved += more
        if not moved:
            return model, steps
        folded, rest = self._fold(model, outputs)
        made, more = self._simplified(folded, self.stages[:2])
        if self._estimate(made) >= self._estimate(model):
            return model, steps
        return made, [*steps, *moved, *rest, *more]

    def _estimate(self, model: Model) -> float:
        """Seconds of the running terms, on a roofline."""
        return sum(self.context.estimate(n) for n in work_terms(model.nodes()))

    def _fold(self, model: Model, outputs: tuple[Node, ...]) -> tuple[Model, list[RewriteStep]]:
        folded, steps = fold_weights(model.with_graph(outputs), self.weights)
        self.weights.update(folded.weights)
        return folded, steps


def shares(budget: Budget, count: int) -> Iterator[Budget]:
    """Equal shares of the rest of a budget for one search after the other; an interrupt of one ends
    them all."""
    for left in range(count, 0, -1):
        share = replace(budget, seconds=budget.left() / left, start=time.monotonic())
        yield share
        if share.stop:
            budget.stop = True
            return
