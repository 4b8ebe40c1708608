"""How large the result is beside the original: each weight once, and no file that is much larger
unless its user wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taso_mirage.ir.model import Model
from taso_mirage.measure.session import weight_bytes
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.stage import Job
from taso_mirage.report.result import Result
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.selection import ChangeKind, change_kinds, single_steps
from taso_mirage.search.twins import shared_weights

GROWTH = 1.2
"""So many times as large as the original a result may be without a question."""
LITTLE = 1 << 20
"""Bytes that it may be larger in any case."""


def within_growth(job: Job, result: Result) -> Result:
    """The result with every weight once; the original, if that is too large and `may_grow` does not
    allow it."""
    if not result.changed:
        return result
    result = replace(result, model=shared_weights(result.model))
    said = grown(result.original, result.model)
    if said is None:
        return result
    allowed = job.config.may_grow
    if allowed(f"the file would grow {said}") if callable(allowed) else allowed:
        return result.noted(f"the file grew {said}")
    kept = f"the file would grow {said}: the original's graph is kept; --may-grow writes the larger one"
    return result.unchanged(kept, job.config.target)


def grown(original: Model, model: Model) -> str | None:
    """How much larger a model's file would be, where that is more than may go without a
    question."""
    before, after = stored_bytes(original), stored_bytes(model)
    if after <= max(GROWTH * before, before + LITTLE):
        return None
    return f"from {before / 1e6:.3g} to {after / 1e6:.3g} MB ({after / before if before else after:.2f} times)"


def stored_bytes(model: Model) -> int:
    """Of weights, of metadata (the C++ of kernels), and of texts in functions (their plans and
    compiled images)."""
    metadata = sum(map(len, model.header.metadata_props.values()))
    nodes = (node for function in model.header.functions.values() for node in function)
    texts = (a.value for node in nodes for a in node.attributes.values() if isinstance(a.value, str | bytes))
    return weight_bytes(model) + metadata + sum(map(len, texts))


def small_candidates(job: Job, problem: Problem, candidates: Sequence[ModelCandidate]) -> list[ModelCandidate]:
    """The candidates; where the file may not grow, those that would make it do so without the kinds
    of rewrites that enlarge weights: else the fastest may be one that is not written."""
    if job.config.may_grow:
        return list(candidates)
    kept, left_out = list[ModelCandidate](), dict[str, str]()
    for candidate in candidates:
        said = grown(problem.model, candidate.model)
        said = said and grown(problem.model, shared_weights(candidate.model))  # which reads all weights
        smaller = None if said is None else _smaller(problem, candidate)
        if said is None or smaller is None:
            kept.append(candidate)
            continue
        found, kinds = smaller
        left_out |= dict.fromkeys(map(str, kinds), said)
        if found.model.graph != problem.model.graph:
            kept.append(found)
    if left_out:
        most, said = "; ".join(left_out), [*left_out.values()][-1]
        job.remarks.append(f"left out, as the file would grow {said}: {most}; --may-grow lets it do so")
    return kept


def _smaller(problem: Problem, candidate: ModelCandidate) -> tuple[ModelCandidate, list[ChangeKind]] | None:
    """A candidate that may be written without a question, and what it does without: the kinds that
    cost the most bytes. None where others make it large."""
    outputs = problem.model.graph.outputs
    steps = single_steps(outputs, candidate.steps)

    def without(kinds: Sequence[ChangeKind]) -> ModelCandidate:
        gone = {i for kind in kinds for i in kind.steps}
        return problem.without(candidate, steps, gone, f"{candidate.name}, smaller")

    def size(kinds: Sequence[ChangeKind]) -> int:
        return stored_bytes(shared_weights(without(kinds).model))

    whole, found = size(()), {kind: size([kind]) for kind in change_kinds(outputs, steps)}
    costly = sorted((kind for kind in found if found[kind] < whole), key=lambda kind: found[kind])
    for n in range(1, len(costly) + 1):
        made = without(costly[:n])
        if grown(problem.model, shared_weights(made.model)) is None:
            return made, costly[:n]
    return None
