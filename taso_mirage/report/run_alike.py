"""The two models of a certificate in the runtime.

Proofs are about real numbers, and exclude runs that divide by zero or leave a function's domain.
Therefore both models also run on random inputs and at the limits of domains: at zeros, at ones, at
integers of both signs, and at large numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import CheckFailed, OutOfTime, TasoMirageError
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import is_computed
from taso_mirage.measure.loop_inputs import with_usual_rows
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import original
from taso_mirage.report.diff import failure, numbers
from taso_mirage.search.config import Config, settled_sizes
from taso_mirage.system.wording import option

SECONDS = 60.0
"""The usual time limit of the float64 references, in seconds."""
LARGE = 30.0
"""The factor of normal numbers for large inputs; their exponentials are still finite in 32 bits."""
EDGES: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = (
    lambda array: np.round(4 * array),
    lambda array: array,
    np.zeros_like,
    lambda array: LARGE * array,
    np.ones_like,
)
"""The ones that tell most come first, in case there is no time for all; plain random numbers are
among those that every check needs."""


def run_alike(first: Model, second: Model, seconds: float = SECONDS) -> str:
    """The comparison of two models in the runtime, in words. The float64 references of the first
    one take about `seconds`; the words name the inputs for which there was no time.

    CheckFailed where the second model differs from the first by more than rounding, or does not
    run.
    """
    try:
        inputs = tuple(_edges(first))
    except TasoMirageError as error:
        return f"not compared in the runtime: {error}"
    remarks: list[str] = []
    try:
        found = numbers(first, second, {}, inputs, seconds=seconds, remarks=remarks)
    except OutOfTime as error:
        return f"not compared in the runtime: {error}; a larger {option('budget')} allows it"
    except TasoMirageError as error:
        return _not_compared(first, inputs, seconds, error)
    wrong = failure(found)
    if wrong is not None:
        raise wrong
    said = f"both models run alike on {len({d.case for d in found})} input sets"
    return "; ".join((said, *dict.fromkeys(remarks)))


def _not_compared(first: Model, inputs: tuple[Arrays, ...], seconds: float, error: TasoMirageError) -> str:
    """The reason, if the first model causes it."""
    try:
        numbers(first, first, {}, inputs, seconds=seconds)
    except TasoMirageError as own:
        return f"not compared in the runtime: {own}"
    raise CheckFailed(f"the optimized model does not run where the original does: {error}")


def _edges(model: Model) -> Iterator[Arrays]:
    """Inputs with floats at the limits of domains, and plain random ones."""
    session = original(model)
    sizes = settled_sizes(model, session, Config()).workloads[0][0]
    kept = {*model.defaults, *model.shares}
    drawn = random_inputs(model, 0, sizes)
    for edge in EDGES:
        changed = {n: a for n, a in drawn.items() if n not in kept and is_computed(a.dtype.name)}
        inputs = {**drawn, **{n: np.asarray(edge(a), a.dtype) for n, a in changed.items()}}
        yield with_usual_rows(model, session, inputs)
