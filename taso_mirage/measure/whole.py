"""The cases of a large model as a whole: its own runs are the reference, and how far roundings move
them is measured in the runtime, where that is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial

from taso_mirage.ir.model import Model
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.check_inputs import CheckInput, CheckInputs, all_finite
from taso_mirage.measure.evaluation import in_time
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.perturbation import Perturbed
from taso_mirage.measure.session import Session

BY_RUNS = "the original"
"""The name of the other side of a comparison if the whole model has no float64 evaluation."""


def cases_by_runs(
    model: Model,
    session: Session,
    base: Mapping[str, int],
    given: Sequence[Arrays] = (),
    others: Sequence[Mapping[str, int]] = (),
    fixed: Collection[str] = (),
    skipped: list[str] | None = None,
    seconds: float = math.inf,
) -> Iterator[CheckCase]:
    """Cases as `check.check_cases` gives them, but with the original's own run as the reference.
    Where the original rounds operands to few digits, the reference is its run without that."""
    made_inputs = CheckInputs(model, session, base, given, others, fixed)
    perturbed, fine = Perturbed(model, session.target), Fine.of(model)
    finely = None if fine is None else fine.opened(model, session.target, source=True)
    for each in in_time(made_inputs, seconds):
        if each.extreme and not all_finite(each.outputs):
            continue
        there = None if finely is None else finely.run(each.inputs)
        resolution = cache(partial(perturbed, each.inputs, each.outputs))
        reference = each.outputs if there is None else there
        yield CheckCase(each.name, each.inputs, each.outputs, reference, _unmoved(each), resolution, there, (), BY_RUNS)
    if skipped is not None:
        skipped += made_inputs.notes()


def _unmoved(drawn: CheckInput) -> Callable[[int], list[float]]:
    """The effect of roundings on the references; none, because each reference is a run."""
    return lambda ways: [0.0] * len(drawn.outputs)
