"""The size of the result relative to the original: each weight is stored once, and a much larger
file requires the user's consent."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, topological
from taso_mirage.measure.session import open_in_child, weight_bytes
from taso_mirage.measure.target import Target, full_level
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.work import size
from taso_mirage.pipeline.fuse.kernel_check import KernelCheck
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.stage import Job
from taso_mirage.report.result import Result
from taso_mirage.rewriting.equation import Equation
from taso_mirage.search.duplicate_weights import shared_weights
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.selection import ChangeKind, change_kinds, single_steps, steps_without
from taso_mirage.search.steps import RewriteStep, replay
from taso_mirage.search.weights_at_load import made_at_load
from taso_mirage.system.wording import option

GROWTH = 1.2
"""The largest growth of a result relative to the original without consent."""
NOTICED = 1.05
"""The growth from which on weights are made at load instead of stored."""
LITTLE = 1 << 20
"""The number of bytes by which a result may always be larger."""
NOT_TRIED = "not tried, as the file would grow"


def within_growth(job: Job, result: Result) -> Result:
    """The result with every weight once; the original, if that is too large and `may_grow` does not
    allow it."""
    if not result.changed:
        return result
    once = shared_weights(result.model)
    model, steps = _smaller(result.original, once, result.target, result.rules.equations)
    if model is not once and not _passes(result, model):
        model, steps = once, ()
    result = replace(result, model=model, steps=(*result.steps, *steps))
    said = grown(result.original, result.model)
    if said is None:
        return result
    allowed = job.config.may_grow
    if allowed(f"the file would grow {said}") if callable(allowed) else allowed:
        return result.noted(f"the file grew {said}")
    kept = f"the file would grow {said}: the original's graph is kept; {option('may_grow', True)} writes the larger one"
    return result.unchanged(kept, job.config.target)


def _passes(result: Result, model: Model) -> bool:
    """Whether another model passes the check of a result."""
    check = KernelCheck(result.original, result.cases, result.target, False)
    try:
        found = check.whole(model, open_in_child(model, result.target), library=False)
    except TasoMirageError:
        return False
    return bool(found) and all(each.passed for each in found)


def _smaller(
    original: Model, model: Model, target: Target, equations: Iterable[Equation]
) -> tuple[Model, Sequence[RewriteStep]]:
    """The model; where it is noticeably larger than the original, without weights that the target's
    runtime makes when a session is opened, with the steps by these equations."""
    little = stored_bytes(model) <= NOTICED * stored_bytes(original)
    return (model, ()) if little or target != full_level(target) else made_at_load(model, equations)


def grown(original: Model, model: Model) -> str | None:
    """How much larger a model's file would be, where that is more than may go without a
    question."""
    before, after = stored_bytes(original), stored_bytes(model)
    if after <= max(GROWTH * before, before + LITTLE):
        return None
    return f"from {before / 1e6:.3g} to {after / 1e6:.3g} MB ({after / before if before else after:.2f} times)"


def stored_bytes(model: Model) -> int:
    """The stored bytes of weights, of metadata (the C++ of kernels), and of texts in functions
    (their plans and compiled images)."""
    metadata = sum(map(len, model.header.metadata_props.values()))
    nodes = (node for function in model.header.functions.values() for node in function)
    texts = (a.value for node in nodes for a in node.attributes.values() if isinstance(a.value, str | bytes))
    return weight_bytes(model) + metadata + sum(map(len, texts))


def small(job: Job, problem: Problem, candidate: ModelCandidate) -> ModelCandidate:
    """The candidate; if its file would grow without consent, without the kinds of rewrites that
    enlarge weights. Otherwise the fastest candidate might not be written."""
    said = None if job.config.may_grow or job.stop.asked else grown(problem.model, candidate.model)
    if said is not None:
        once = shared_weights(candidate.model)  # which reads all weights
        said = grown(problem.model, _smaller(problem.model, once, candidate.target, job.config.applied.equations)[0])
    if said is None:
        return candidate
    outputs = problem.model.graph.outputs
    steps = single_steps(outputs, candidate.steps)
    made = {kind: sum(_bytes(_new_weights(steps[i])) for i in kind.steps) for kind in change_kinds(outputs, steps)}
    kinds = sorted((kind for kind in made if made[kind]), key=lambda kind: -made[kind])

    def read(left_out: Sequence[ChangeKind]) -> int:
        gone = {i for kind in left_out for i in kind.steps}
        return _weight_bytes(replay(outputs, steps_without(outputs, steps, gone)))

    most = max(GROWTH * _weight_bytes(outputs), _weight_bytes(outputs) + LITTLE)
    enough = bisect_left(range(len(kinds) + 1), True, key=lambda n: read(kinds[:n]) <= most)
    if not 0 < enough <= len(kinds):  # something other than weights makes it large
        return candidate
    left_out = kinds[:enough]
    remark = f"{NOT_TRIED} {said}: with {'; '.join(map(str, left_out))}; {option('may_grow', True)} permits this"
    job.remarks += [] if any(each.startswith(NOT_TRIED) for each in job.remarks) else [remark]
    return problem.without(candidate, steps, {i for kind in left_out for i in kind.steps}, candidate.name)


def _new_weights(step: RewriteStep) -> set[Node]:
    """The weights that a step computed in advance."""
    return {n for n in topological(step.new) if n.args and is_weight(n)}


def _weight_bytes(outputs: Sequence[Node]) -> int:
    """The bytes of the weights that a graph reads, after they are computed in advance."""
    order = topological(outputs)
    return _bytes({a for n in order if not is_weight(n) for a in n.args if is_weight(a)})


def _bytes(nodes: Iterable[Node]) -> int:
    return sum(size(n.tensor) for n in nodes if isinstance(n.type, Tensor))
