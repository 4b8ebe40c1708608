"""How large the result is beside the original: each weight once, and no file that is much larger
unless its user wants it."""

from __future__ import annotations

from dataclasses import replace

from taso_mirage.ir.model import Model
from taso_mirage.measure.session import weight_bytes
from taso_mirage.pipeline.choice import KEPT
from taso_mirage.pipeline.stage import Job
from taso_mirage.report.result import Result
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
    before, after = stored_bytes(result.original), stored_bytes(result.model)
    if after <= max(GROWTH * before, before + LITTLE):
        return result
    said = f"from {before / 1e6:.3g} to {after / 1e6:.3g} MB ({after / before if before else after:.2f} times)"
    allowed = job.config.may_grow
    if allowed(f"the file would grow {said}") if callable(allowed) else allowed:
        return result.noted(f"the file grew {said}")
    return result.unchanged(f"the file would grow {said}: {KEPT}; --may-grow writes the larger one", job.config.target)


def stored_bytes(model: Model) -> int:
    """Of weights, of metadata (the C++ of kernels), and of texts in functions (their plans and
    compiled images)."""
    metadata = sum(map(len, model.header.metadata_props.values()))
    nodes = (node for function in model.header.functions.values() for node in function)
    texts = (a.value for node in nodes for a in node.attributes.values() if isinstance(a.value, str | bytes))
    return weight_bytes(model) + metadata + sum(map(len, texts))
