"""The stages that make candidates: passes, mutants, and the search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from taso_mirage.ir.model import Model
from taso_mirage.measure.cost_cache import cache_path
from taso_mirage.measure.target import Target
from taso_mirage.onnx_io.write import reads_smaller
from taso_mirage.operators.ops import traits
from taso_mirage.pipeline.growth import small
from taso_mirage.pipeline.layouts import convolutions_decide, saved_seconds
from taso_mirage.pipeline.problem import Problem, rewriter_for
from taso_mirage.pipeline.shares import (
    DECIDING,
    ahead_seconds,
    large,
    measures_passes,
    measures_search,
    search_seconds,
)
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.config import STRATEGIES
from taso_mirage.search.effort import QUICK
from taso_mirage.search.mutations import NO_MUTATIONS, SHARE, Mutations, MutationStore, mutations
from taso_mirage.search.rewriter import ModelCandidate, Rewriter, shares
from taso_mirage.search.search import Budget, SearchStatistics
from taso_mirage.search.steps import RewriteStep

BY_PREDICTION = "predicted"
"""The name of the candidate that was made by predicted costs alone."""


@dataclass(slots=True)
class Start:
    """The start of the search: the model without the small fusions into the runtime's operators
    (`normal`), the steps to it, and the model after all passes. `rewriters`: one for each set of
    the target's options that is searched. The `budget` is that of passes and mutants, and anew that
    of the search. `inside`: the model after changes inside of nodes alone, if there were any.
    `looked`: whether the search saw any graph before its time was over."""

    normal: Model
    steps: list[RewriteStep]
    passed: ModelCandidate
    rewriters: list[Rewriter]
    budget: Budget
    first: tuple[ModelCandidate, ...] = ()
    looked: bool = True


def passes(job: Job, problem: Problem, inside: Sequence[RewriteStep] = ()) -> Start:
    """The model after the passes, from which the search starts, with the changes inside of
    nodes."""
    effort = job.config.effort
    budget = Budget(search_seconds(job), effort.states, effort.patience, job.config.alpha, matches=effort.matches)
    problem.rewriter.measure_until(budget.start + budget.seconds, budget.start + DECIDING * budget.seconds)
    problem.rewriter.known.over = lambda: job.deadline.last() <= job.deadline.closing
    changed, taken = problem.after(inside)
    problem.weights.update(changed.weights)
    first = [problem.rewriter.candidate("bodies", changed, taken)] if inside else []
    ahead = predicted(job, problem, budget, changed, taken) if job.config.measure else None
    first += [] if ahead is None else [ahead.best]
    if ahead is not None and not measures_passes(job, ahead.passing):
        normal, steps, passed = ahead.normal, ahead.steps, ahead.passed
        problem.rewriter.passing = ahead.passing
    else:
        normal, steps, passed = problem.rewriter.passes(changed, taken) if inside else problem.rewriter.passes()
    others = [rewriter_for(job, problem, target) for target in variants(job, problem)]
    for each in others:
        each.passing = problem.rewriter.passing
        each.measure_until(budget.start + budget.seconds)
    return Start(normal, steps, passed, others or [problem.rewriter], budget, tuple(first))


@dataclass(frozen=True, slots=True)
class Ahead:
    """The results by predicted costs alone: the results of the passes as in `Start`, the seconds
    that they took, and the best candidate of these and a short search."""

    normal: Model
    steps: list[RewriteStep]
    passed: ModelCandidate
    passing: float
    best: ModelCandidate


def predicted(job: Job, problem: Problem, whole: Budget, model: Model, taken: Sequence[RewriteStep]) -> Ahead:
    """The candidate of passes and a short search by predicted costs, as `--effort quick` has them.
    They measure nothing, so it does not depend on the machine's load."""
    rewriter = rewriter_for(job, problem, problem.target, measured=False)
    rewriter.known.over = problem.rewriter.known.over
    normal, steps, passed = rewriter.passes(model, taken)
    passed = replace(passed, cost=rewriter.cost(passed.model.graph.outputs))
    share = Budget(
        ahead_seconds(job, rewriter.passing), QUICK.states, QUICK.patience, whole.alpha, matches=QUICK.matches
    )
    job.stop.budget = share
    progress = partial(job.progress, "passes")
    searched, _ = rewriter.search(normal, steps, STRATEGIES["best-first"][0], share, progress)
    job.stop.budget = None
    whole.stop |= share.stop
    best = passed if searched is None or passed.cost <= searched.cost else searched
    return Ahead(normal, steps, passed, rewriter.passing, replace(best, name=BY_PREDICTION))


def mutate(job: Job, start: Start) -> Mutations:
    """The mutants that make the model faster, within a share of the budget."""
    config, rewriter = job.config, start.rewriters[0]
    if not config.partial or not measures_search(job):
        return NO_MUTATIONS
    share = job.stop.budget = Budget(SHARE * min(start.budget.left(), search_seconds(job)))
    folder = (config.cache or cache_path()).parent / "mutants" if config.measure else None
    store = MutationStore(folder, rewriter.term.device())
    found = mutations(
        start.normal.graph.outputs, rewriter.cost, rewriter.term, share, store, partial(job.progress, "mutants")
    )
    job.stop.budget = start.budget  # an interrupt from here on ends the whole search
    start.budget.stop |= share.stop
    return found


def search(job: Job, problem: Problem, start: Start, found: Mutations) -> tuple[list[ModelCandidate], SearchStatistics]:
    """The model after the passes, and after passes, search and passes again; only those that differ
    from the original. A model that is written again with fewer nodes counts, too.

    If the provider has options that suit some convolutions, the model is searched with every such
    set of options, and the original is tried with it.
    """
    start.budget.seconds, start.budget.start = search_seconds(job), time.monotonic()
    candidates, statistics = list[ModelCandidate](), SearchStatistics()
    made = [m.equation for m in found.found]
    progress = partial(job.progress, "search")
    ways = list(product(start.rewriters, STRATEGIES[job.config.strategy]))
    if not measures_search(job):  # so that all costs are on one scale
        problem.rewriter.measure_until(0.0)
        ways = []
    for share, (rewriter, strategy) in zip(shares(start.budget, len(ways)), ways, strict=False):
        job.stop.budget = share
        candidate, looked = rewriter.search(start.normal, start.steps, strategy, share, progress, made)
        statistics += looked
        candidates += [candidate] if candidate is not None else []
    job.stop.budget = None
    start.looked = statistics.states > 0 or "time" not in statistics.ended
    fit = partial(small, job, problem)
    candidates = [*map(fit, candidates)]
    unpriced = [*map(fit, (start.passed, *start.first))]
    passed, *first = (replace(each, cost=problem.cost(each.model.graph.outputs)) for each in unpriced)
    start.passed, start.first = passed, tuple(first)
    best = min((passed, *first), key=lambda each: each.cost)
    others = [each for target in variants(job, problem) for each in _with_options(problem, best, target)]
    together = [problem.rewriter.together(each) for each in (passed, *candidates)]
    read = problem.rewriter.candidate("read", problem.model)
    candidates = [read, passed, *first, *others, *candidates, *(fit(each) for each in together if each is not None)]
    if start.budget.stop:
        job.remarks.append("interrupted: the search ended early, with the best result so far")
    distinct = {(c.model.graph, c.target): c for c in reversed(candidates)}
    if not reads_smaller(problem.model):
        distinct.pop((problem.model.graph, problem.target))
    return list(distinct.values()), statistics


def _with_options(problem: Problem, best: ModelCandidate, target: Target) -> tuple[ModelCandidate, ModelCandidate]:
    """A candidate of the passes, and the original, with other options of the target."""
    cost = best.cost - saved_seconds(best.model, target, problem.rewriter.context)
    return replace(best, cost=cost, target=target), ModelCandidate("original", problem.model, (), cost, target)


def variants(job: Job, problem: Problem) -> tuple[Target, ...]:
    """The target with other options, where they can be measured and some operator is run in another
    way with them; for a large model, whose trials take long, only where such operators decide its
    time."""
    suited = job.config.measure and any(traits(n).layout for n in problem.model.nodes())
    if suited and large(job):
        suited = convolutions_decide(problem.model, problem.rewriter.context)
    return problem.target.variants if suited else ()
