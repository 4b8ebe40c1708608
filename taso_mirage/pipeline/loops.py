"""Loops over sequences as operators, or with less inside: what is faster in runs of the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node, substitute, topological
from taso_mirage.onnx_io.bodies import label_of
from taso_mirage.onnx_io.loops import ReadLoop, as_scan
from taso_mirage.operators.ops import get, traits
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.stage import Job
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.result import Result
from taso_mirage.rewriting.derived_traits import moves
from taso_mirage.rewriting.equation import work_terms
from taso_mirage.search.duplicate_weights import duplicate_weights
from taso_mirage.search.loops.behind import LighterLoop, results_of, without_outputs
from taso_mirage.search.loops.chain_loops import rerolled_chains
from taso_mirage.search.loops.gates import JOINING
from taso_mirage.search.loops.hoisting import hoisted_loop
from taso_mirage.search.loops.inductions import INDUCTION, is_equal, loop_in, over_definition
from taso_mirage.search.loops.layers import layer_of
from taso_mirage.search.loops.rerolling import rerolled_sums
from taso_mirage.search.loops.states import without_states
from taso_mirage.search.loops.taps import with_convolutions
from taso_mirage.search.steps import BODIES, RewriteStep

HOISTED = "terms that its states do not change are computed for all steps at once"
JOINED = "the products of its gates are one product"
BEHIND = "terms that its states do not read are computed for all steps at once, behind it"
CLOSED = "the values of its states in all steps are terms of its sequences"
REROLLED = "the terms of a sum that differ in their weights alone are computed together"
MOST_OF_A_COPY = 1 << 20
"""The most elements of weights that are compared with each other."""
TimeOf = Callable[[Model], float]
"""The time of a model."""


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """A loop in another form, whose term, if there is one, has the loop as its origin, and a line
    about it."""

    form: LighterLoop
    said: str


def rewrite_loops(
    job: Job, problem: Problem, model: Model, seconds: TimeOf | None = None, made: Collection[Node] = ()
) -> tuple[Model, list[RewriteStep]]:
    """The model after its loops became operators, or terms that no state changes have moved out of
    them, and the steps; the problem gets the weights of the bodies. `seconds` decides where a loop
    has several forms; without it the operator is taken. `made`: the results of loops that were made
    of their steps, which a certificate knows as those of the original."""
    steps: list[RewriteStep] = []
    outputs, origins, given = model.graph.outputs, dict(model.origins), {*problem.model.nodes(), *made}
    for node in reversed(model.nodes()) if job.config.measure else ():  # so the operands are as they were
        found = _loop_of(replace(model, weights=problem.weights), node)
        if found is None:
            continue
        olds = results_of(node)
        used = {i for i, old in enumerate(olds) if old in given}
        forms = [*_forms(found, problem, job.config.portable, used)]
        weights = {**problem.weights, **found.weights} if forms else problem.weights
        models = [
            model.with_graph(substitute(outputs, dict(zip(olds, f.form.results, strict=True))), weights) for f in forms
        ]
        chosen = _fastest(forms, models, seconds)
        if chosen is None:
            continue
        form = chosen.form
        problem.weights.update(found.weights)
        outputs = substitute(outputs, dict(zip(olds, form.results, strict=True)))
        origins |= {form.term: origins[node]} if form.term is not None and node in origins else {}
        parts = {"obligations": form.obligations, "behind": form.behind, "closed": form.closed}
        shown = results_of(found.term)
        steps.append(RewriteStep((BODIES,), olds, form.results, shown=shown, **parts))  # type: ignore[arg-type]
        job.remarks.append(f"{_said_of(model, node)}: {chosen.said}")
    if not steps:
        return model, steps
    return replace(model.with_graph(outputs, problem.weights), origins=origins), steps


def _loop_of(model: Model, node: Node) -> ReadLoop | None:
    """The term of a loop, which may be one."""
    return ReadLoop(node, {}) if traits(node).lowering is Lowering.STEPS else as_scan(model, node)


def _said_of(model: Model, node: Node) -> str:
    return label_of(model, node) if node.op == "opaque" else "the loop"


def reroll_chains(
    job: Job, problem: Problem, model: Model, seconds: TimeOf | None = None
) -> tuple[Model, list[RewriteStep]]:
    """The model with a loop, in its fastest form, in the place of each recurrence whose steps are
    written out, and the steps, if that model takes fewer `seconds`. Steps that read copies of a
    weight, as PyTorch writes some, read one of these."""
    steps, outputs = list[RewriteStep](), substitute(model.graph.outputs, duplicate_weights(model, MOST_OF_A_COPY))
    with suppress(TasoMirageError):  # a loop without a type
        for step in rerolled_chains(outputs, problem.proofs) if job.config.measure else ():
            outputs = substitute(outputs, step.table)
            steps.append(step)
    if not steps:
        return model, []
    loops = [loop for step in steps for loop in step.unrolled]
    own = replace(job, remarks=[])
    known = [result for loop in loops for result in results_of(loop)]
    made, more = rewrite_loops(own, problem, model.with_graph(outputs), seconds, known)
    if seconds is not None and not _is_faster(made, model, seconds):
        job.chains = True
        return model, []
    job.remarks += [_said_of_chains(steps), *own.remarks]
    return made, [*steps, *more]


def _said_of_chains(steps: Sequence[RewriteStep]) -> str:
    loops = [loop for step in steps for loop in step.unrolled]
    counts = " and ".join(str(loop.args[loop.attr("states")].shape[0]) for loop in loops)
    return f"{counts} steps of a recurrence that are written out became a loop"


def reroll_sums(
    job: Job, problem: Problem, model: Model, seconds: TimeOf | None = None
) -> tuple[Model, list[RewriteStep]]:
    """The model with one term in the place of each sum of many terms that differ in their weights
    alone, and the steps, if that model takes fewer `seconds`: its kernels are tried later."""
    steps, outputs = list[RewriteStep](), model.graph.outputs
    for step in rerolled_sums(outputs, problem.proofs) if job.config.measure else ():
        outputs = substitute(outputs, step.table)
        steps.append(step)
    made = model.with_graph(outputs)
    if not steps or (seconds is not None and not _is_faster(made, model, seconds)):
        return model, []
    job.remarks.append(REROLLED)
    return made, steps


def _is_faster(made: Model, model: Model, seconds: TimeOf) -> bool:
    try:
        return seconds(made) < seconds(model)
    except (TasoMirageError, ValueError):  # a model of more than 2 GB is no message
        return False


def with_chains(result: Result) -> Result | None:
    """The result with loops, which may have kernels, in the place of recurrences that are written
    out; None where there are none. Nothing is known about the time of its model."""
    copies = duplicate_weights(result.model, MOST_OF_A_COPY)
    steps, outputs = list[RewriteStep](), substitute(result.model.graph.outputs, copies)
    with suppress(TasoMirageError):  # a loop without a type
        for step in rerolled_chains(outputs, Proofs(None)):
            outputs = substitute(outputs, step.table)
            steps.append(step)
    if not steps:
        return None
    model, done = result.model.with_graph(outputs), (*result.steps, *steps)
    terms = len(work_terms(model.nodes()))
    made = replace(result, model=model, steps=done, terms_after=terms, timing=None, normal=None)
    return made.noted(_said_of_chains(steps))


def with_loops(result: Result) -> Result | None:
    """The result with loops, which may have kernels, in the place of operators over sequences, and
    with less in the steps of others; None where it has no such operator, or no such loop. Nothing
    is known about the time of its model."""
    steps, proofs = list[RewriteStep](), Proofs(None)
    outputs, table = result.model.graph.outputs, dict[Node, Node]()
    for node in result.model.nodes():
        operator = traits(node).stays
        if not operator and not (result.target.on_cores and traits(node).lowering is Lowering.STEPS):
            continue
        (current,) = substitute((node,), table)
        loop = loop_in(current) if operator else current
        lighter = hoisted_loop(loop, proofs)
        if lighter is None and not operator:
            continue
        inner = loop if lighter is None else lighter.term
        olds = results_of(current)
        news = tuple(over_definition(current, each) for each in olds) if operator else olds
        news = substitute(news, dict(zip(results_of(loop), results_of(inner), strict=True)))
        table |= zip(results_of(node), news, strict=True)
        outputs = substitute(outputs, dict(zip(olds, news, strict=True)))
        obligations = () if lighter is None else lighter.obligations
        steps.append(RewriteStep((BODIES,), olds, news, obligations=obligations, shown=olds))
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


def _forms(found: ReadLoop, problem: Problem, portable: bool, used: Collection[int]) -> Iterator[_Rewritten]:
    """The forms of a loop: without states whose values are known, as an operator, and with less
    inside. `used`: the results that the model reads, of a loop of the original; results are
    computed behind these only, because a certificate knows them by their results."""
    start = LighterLoop(found.term, results_of(found.term), (), ())
    closed = without_states(found.term, problem.proofs, used) if used else None
    if closed is not None:
        rest = () if closed.term is None else (*_with_less(closed, closed.term, problem, portable, True),)
        for made in rest or (_Rewritten(closed, CLOSED),):
            convolved = with_convolutions(made.form, problem.proofs)
            yield from () if convolved is None else (_Rewritten(convolved, made.said),)
            yield made
    yield from _with_less(start, found.term, problem, portable, bool(used))


def _with_less(start: LighterLoop, loop: Node, problem: Problem, portable: bool, known: bool) -> Iterator[_Rewritten]:
    """The operator of a loop, or of the loop with less inside, and that loop. `known`: a
    certificate knows it by its results."""
    later = without_outputs(loop, problem.proofs) if known else None
    start = start if later is None else start.then(later)
    loop = loop if later is None or later.term is None else later.term
    lighter, layer = hoisted_loop(loop, problem.proofs), layer_of(loop, problem.proofs)
    before: tuple[RewriteStep, ...] = ()
    if layer is None and lighter is not None:
        layer, before = layer_of(lighter.term, problem.proofs), lighter.obligations
    if layer is not None and _is_there(layer.operator, problem, portable):
        said = f"its step is that of the operator {get(layer.operator.op).onnx}, which takes its place"
        made = LighterLoop(layer.operator, layer.results, (*before, *layer.obligations), ())
        yield _Rewritten(start.then(made), said)
    if lighter is not None:
        kinds = {name for each in lighter.obligations for name in each.equations}
        lines = [*([CLOSED] if start.closed else []), *([JOINED] if JOINING in kinds else [])]
        said = "; ".join(lines if kinds == {JOINING} else [*lines, HOISTED])
        made = LighterLoop(lighter.term, results_of(lighter.term), lighter.obligations, ())
        yield _Rewritten(start.then(made), said)
    elif start.behind:
        yield _Rewritten(start, BEHIND)


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
