"""Loops over sequences as operators, or with less inside: what is faster in runs of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, substitute
from taso_mirage.onnx_io.bodies import label_of
from taso_mirage.onnx_io.loops import ReadLoop, as_scan
from taso_mirage.operators.ops import get, term
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.hoisting import hoisted_loop
from taso_mirage.search.layers import layer_of
from taso_mirage.search.steps import BODIES, RewriteStep

HOISTED = "terms that its states do not change are computed for all steps at once"
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


def rewrite_loops(
    job: Job, problem: Problem, model: Model, seconds: TimeOf | None = None
) -> tuple[Model, list[RewriteStep]]:
    """The model after its loops became operators, or terms that no state changes have moved out of
    them, and the steps; the problem gets the weights of the bodies. `seconds` decides where a loop
    has several forms; without it the operator is taken."""
    steps: list[RewriteStep] = []
    table: dict[Node, Node] = {}
    outputs, origins = model.graph.outputs, dict(model.origins)
    for node in model.nodes() if job.config.measure else ():
        (current,) = substitute((node,), table)
        found = as_scan(replace(model, weights=problem.weights), current)
        if found is None:
            continue
        olds = _results(current)
        forms = [*_forms(found, problem)]
        weights = {**problem.weights, **found.weights} if forms else problem.weights
        models = [
            model.with_graph(substitute(outputs, dict(zip(olds, f.results, strict=True))), weights) for f in forms
        ]
        made = _fastest(forms, models, seconds)
        if made is None:
            continue
        problem.weights.update(found.weights)
        table |= zip(_results(node), made.results, strict=True)
        outputs = substitute(outputs, dict(zip(olds, made.results, strict=True)))
        origins |= {made.term: origins[node]} if node in origins else {}
        steps.append(RewriteStep((BODIES,), olds, made.results, obligations=made.obligations))
        job.remarks.append(f"{label_of(model, node)}: {made.said}")
    if not steps:
        return model, steps
    return replace(model.with_graph(outputs, problem.weights), origins=origins), steps


def _results(loop: Node) -> tuple[Node, ...]:
    if not isinstance(loop.type, tuple):
        return (loop,)
    return tuple(term("item", loop, index=i) for i in range(len(loop.type)))


def _forms(found: ReadLoop, problem: Problem) -> Iterator[_Rewritten]:
    layer = layer_of(found.term, problem.proofs)
    if layer is not None:
        said = f"its step is that of the operator {get(layer.operator.op).onnx}, which takes its place"
        yield _Rewritten(layer.operator, layer.results, layer.obligations, said)
    lighter = hoisted_loop(found.term, problem.proofs)
    if lighter is not None:
        yield _Rewritten(lighter.term, _results(lighter.term), lighter.obligations, HOISTED)


def _fastest(forms: Sequence[_Rewritten], models: Sequence[Model], seconds: TimeOf | None) -> _Rewritten | None:
    """The form of the model that takes the least time; the first one where it cannot be run."""
    if len(forms) < 2 or seconds is None:
        return forms[0] if forms else None
    try:
        times = [seconds(each) for each in models]
    except TasoMirageError:
        return forms[0]
    return forms[times.index(min(times))]
