"""Loops over sequences as operators, or with less inside: what is faster in runs of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, substitute, topological
from taso_mirage.onnx_io.bodies import label_of
from taso_mirage.onnx_io.loops import ReadLoop, as_scan
from taso_mirage.operators.ops import get, traits
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.stage import Job
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.result import Result
from taso_mirage.rewriting.derived_traits import moves
from taso_mirage.search.loops.behind import LighterLoop, results_of, without_outputs
from taso_mirage.search.loops.hoisting import hoisted_loop
from taso_mirage.search.loops.inductions import INDUCTION, is_equal, loop_in, over_definition
from taso_mirage.search.loops.layers import layer_of
from taso_mirage.search.steps import BODIES, BehindLoop, RewriteStep

HOISTED = "terms that its states do not change are computed for all steps at once"
BEHIND = "terms that its states do not read are computed for all steps at once, behind it"
TimeOf = Callable[[Model], float]
"""The time of a model."""


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """A loop in another form: the term whose origin the loop is, the terms of its results, the
    equalities behind them, and a line about it."""

    term: Node
    results: tuple[Node, ...]
    obligations: tuple[RewriteStep, ...]
    said: str
    behind: tuple[BehindLoop, ...] = ()


def rewrite_loops(
    job: Job, problem: Problem, model: Model, seconds: TimeOf | None = None
) -> tuple[Model, list[RewriteStep]]:
    """The model after its loops became operators, or terms that no state changes have moved out of
    them, and the steps; the problem gets the weights of the bodies. `seconds` decides where a loop
    has several forms; without it the operator is taken."""
    steps: list[RewriteStep] = []
    outputs, origins, given = model.graph.outputs, dict(model.origins), set(problem.model.nodes())
    for node in reversed(model.nodes()) if job.config.measure else ():  # so the operands are as they were
        found = as_scan(replace(model, weights=problem.weights), node)
        if found is None:
            continue
        olds = results_of(node)
        forms = [*_forms(found, problem, job.config.portable, node in given)]
        weights = {**problem.weights, **found.weights} if forms else problem.weights
        models = [
            model.with_graph(substitute(outputs, dict(zip(olds, f.results, strict=True))), weights) for f in forms
        ]
        made = _fastest(forms, models, seconds)
        if made is None:
            continue
        problem.weights.update(found.weights)
        outputs = substitute(outputs, dict(zip(olds, made.results, strict=True)))
        origins |= {made.term: origins[node]} if node in origins else {}
        steps.append(RewriteStep((BODIES,), olds, made.results, obligations=made.obligations, behind=made.behind))
        job.remarks.append(f"{label_of(model, node)}: {made.said}")
    if not steps:
        return model, steps
    return replace(model.with_graph(outputs, problem.weights), origins=origins), steps


def with_loops(result: Result) -> Result | None:
    """The result with loops, which may have kernels, in the place of operators over sequences; None
    where it has no such operator. Nothing is known about the time of its model."""
    steps, proofs = list[RewriteStep](), Proofs(None)
    outputs, table = result.model.graph.outputs, dict[Node, Node]()
    for node in result.model.nodes():
        if not traits(node).stays:
            continue
        (current,) = substitute((node,), table)
        loop = loop_in(current)
        lighter = hoisted_loop(loop, proofs)
        inner = loop if lighter is None else lighter.term
        olds = results_of(current)
        news = tuple(over_definition(current, each) for each in olds)
        news = substitute(news, dict(zip(results_of(loop), results_of(inner), strict=True)))
        table |= zip(results_of(node), news, strict=True)
        outputs = substitute(outputs, dict(zip(olds, news, strict=True)))
        obligations = () if lighter is None else lighter.obligations
        steps.append(RewriteStep((BODIES,), olds, news, obligations=obligations))
    if not steps:
        return None
    while moved := _moves_that_cancel(outputs, proofs):
        outputs = substitute(outputs, moved)
        steps += [RewriteStep((INDUCTION,), (old,), (new,), over=frozenset((new,))) for old, new in moved.items()]
    model = result.model.with_graph(outputs)
    return replace(result, model=model, steps=(*result.steps, *steps), timing=None)


def _moves_that_cancel(outputs: Sequence[Node], proofs: Proofs) -> dict[Node, Node]:
    """The lowest terms that move elements of a term to where they were, each with that term."""
    found: dict[Node, Node] = {}
    for node in topological(outputs):
        below = [node]
        while len(below[-1].args) == 1 and moves(below[-1].op):
            below += below[-1].args
        for base in reversed(below[2:]):
            if (
                found.keys().isdisjoint(topological([base]))
                and base.type == node.type
                and is_equal(node, base, [base], proofs)
            ):
                found[node] = base
                break
    return found


def _forms(found: ReadLoop, problem: Problem, portable: bool, original: bool) -> Iterator[_Rewritten]:
    """The operator of a loop, or of the loop with less inside, and that loop. Results are computed
    behind loops of the original only, because a certificate knows these by their results."""
    later = without_outputs(found.term, problem.proofs) if original else None
    later = later or LighterLoop(found.term, results_of(found.term), (), ())
    loop = later.term
    lighter, layer = hoisted_loop(loop, problem.proofs), layer_of(loop, problem.proofs)
    before = later.obligations
    if layer is None and lighter is not None:
        layer, before = layer_of(lighter.term, problem.proofs), (*before, *lighter.obligations)
    if layer is not None and _is_there(layer.operator, problem, portable):
        said = f"its step is that of the operator {get(layer.operator.op).onnx}, which takes its place"
        yield _over(later, layer.operator, layer.results, (*before, *layer.obligations), said)
    if lighter is not None:
        steps = (*later.obligations, *lighter.obligations)
        yield _over(later, lighter.term, results_of(lighter.term), steps, HOISTED)
    elif later.behind:
        yield _over(later, loop, results_of(loop), later.obligations, BEHIND)


def _over(
    later: LighterLoop, new: Node, results: Sequence[Node], steps: tuple[RewriteStep, ...], said: str
) -> _Rewritten:
    """The form of a loop whose results are over those of another one."""
    made = substitute(later.results, dict(zip(results_of(later.term), results, strict=True)))
    return _Rewritten(new, made, steps, said, later.behind)


def _is_there(operator: Node, problem: Problem, portable: bool) -> bool:
    """Whether the target has an operator, and the options allow it."""
    return not (portable and get(operator.op).domain) and problem.rewriter.context.available(operator)


def _fastest(forms: Sequence[_Rewritten], models: Sequence[Model], seconds: TimeOf | None) -> _Rewritten | None:
    """The form of the model that takes the least time; the first one where it cannot be run."""
    if len(forms) < 2 or seconds is None:
        return forms[0] if forms else None
    try:
        times = [seconds(each) for each in models]
    except TasoMirageError:
        return forms[0]
    return forms[times.index(min(times))]
