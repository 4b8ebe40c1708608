"""The two models of a certificate in the runtime.

Proofs speak of real numbers, and of no run that divides by zero or leaves a function's domain. So
both models run as well, on random inputs and where functions end: at zeros, at ones, at whole
numbers of both signs, and at large numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import CheckFailed, TasoMirageError
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import is_computed
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import original
from taso_mirage.report.diff import failure, numbers
from taso_mirage.search.config import Config, settled_sizes

LARGE = 30.0
"""Times a normal number; the exponential of that is a number of 32 bits still."""
EDGES: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = (
    np.zeros_like,
    np.ones_like,
    lambda array: np.round(4 * array),
    lambda array: LARGE * array,
)


def run_alike(first: Model, second: Model) -> str:
    """The comparison of two models in the runtime, in words.

    CheckFailed where the second model differs from the first by more than rounding, or does not
    run.
    """
    try:
        inputs = tuple(_edges(first))
    except TasoMirageError as error:
        return f"not compared in the runtime: {error}"
    try:
        found = numbers(first, second, {}, inputs)
    except TasoMirageError as error:
        return _not_compared(first, inputs, error)
    wrong = failure(found)
    if wrong is not None:
        raise wrong
    return f"both models run alike on {len({d.case for d in found})} input sets"


def _not_compared(first: Model, inputs: tuple[Arrays, ...], error: TasoMirageError) -> str:
    """Why, if that is the first model's fault."""
    try:
        numbers(first, first, {}, inputs)
    except TasoMirageError as own:
        return f"not compared in the runtime: {own}"
    raise CheckFailed(f"the optimized model does not run where the original does: {error}")


def _edges(model: Model) -> Iterator[Arrays]:
    """Inputs at which floats are where functions end."""
    sizes = settled_sizes(model, original(model), Config()).workloads[0][0]
    kept = {*model.defaults, *model.shares}
    drawn = random_inputs(model, 0, sizes)
    for edge in EDGES:
        changed = {n: a for n, a in drawn.items() if n not in kept and is_computed(a.dtype.name)}
        yield {**drawn, **{n: np.asarray(edge(a), a.dtype) for n, a in changed.items()}}
