"""A model that runs as the float64 reference does, without the roundings of its own dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from taso_mirage.ir.model import Model
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.reference import FloatReference


class InFloat64:
    """A model that runs as the reference does, and the cases on which its outputs must be the
    reference's; all floats are in the dtypes of the original's outputs. `step` follows on every
    term."""

    def __init__(self, model: Model, cases: Sequence[CheckCase], step: Callable[[], None]) -> None:
        self.evaluate, self.step = FloatReference(model), step
        self.cases = [replace(case, original=_like(case.reference, case), resolution=None, fine=None) for case in cases]

    def run(self, inputs: Arrays) -> list[Any]:
        """The outputs on the inputs of one of the cases."""
        case = next(each for each in self.cases if each.inputs is inputs)
        return _like(self.evaluate(inputs, self.step), case)


def _like(found: Sequence[Any], case: CheckCase) -> list[Any]:
    """Results in the dtypes of a case's outputs."""
    return [
        new.astype(old.dtype) if isinstance(old, np.ndarray) and isinstance(new, np.ndarray) else new
        for new, old in zip(found, case.original, strict=True)
    ]
