"""Rewrites after which the runtime crashes or refuses the model, such as one that has no kernel for
a dtype: a candidate continues without them, as with slow rewrites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from taso_mirage.errors import RunRefused, RuntimeCrashed, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import first_bad
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import Target
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.steps import RewriteStep

After = Callable[[Sequence[RewriteStep]], tuple[Model, tuple[RewriteStep, ...]]]
"""The original after steps, and these with the folded weights that they need."""
MOST = 4
"""The largest number of such rewrites that are removed from one candidate."""


def surviving(
    candidate: ModelCandidate, inputs: Arrays, after: After, cost: Callable[[Model], float], note: Callable[[str], None]
) -> tuple[ModelCandidate | None, Session | None]:
    """The candidate, and a session on it, if the runtime loads it and runs it once; otherwise
    without the first rewrites that cause it; None if nothing is left. A note names each removed
    rewrite. Raises the runtime's error if it refuses the model without rewrites."""
    for _ in range(MOST):
        try:
            session = runtime.open_in_child(candidate.model, candidate.target)
            session.run(inputs)
            return candidate, session
        except (RuntimeCrashed, RunRefused) as error:
            steps = candidate.steps
            if not steps:
                if isinstance(error, RunRefused):
                    raise
                note(f"{error} with {dict(candidate.target.options)}: they are left out")
                return None, None
            k = first_bad(len(steps), partial(_runs, steps, after, inputs, candidate.target))
            note(f"{error} after {', '.join(steps[k - 1].equations)!r} (step {k}): that rewrite is left out")
            model, kept = _without(steps, k, after)
            if not kept or model.graph == after(())[0].graph:
                return None, None
            candidate = replace(candidate, model=model, steps=kept, cost=cost(model))
    return None, None


def _without(steps: Sequence[RewriteStep], k: int, after: After) -> tuple[Model, tuple[RewriteStep, ...]]:
    """The model after all steps except the k-th, or after only the steps before it if later ones
    depend on it."""
    try:
        return after([*steps[: k - 1], *steps[k:]])
    except (TasoMirageError, LookupError, TypeError, ValueError):
        return after(steps[: k - 1])


def _runs(steps: Sequence[RewriteStep], after: After, inputs: Arrays, target: Target, k: int) -> bool:
    """Whether the runtime runs the model after k steps."""
    try:
        runtime.open_in_child(after(steps[:k])[0], target).run(inputs)
    except (RuntimeCrashed, RunRefused):
        return False
    return True
