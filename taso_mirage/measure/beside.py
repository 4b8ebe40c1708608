"""Check cases of the original's run at full size, with which an optimized side is compared, in
addition to the float64 evaluation on few rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from taso_mirage.measure.check import FACTOR, CheckCase
from taso_mirage.measure.cuts import Sides
from taso_mirage.measure.magnitudes import most_of, rounds

BESIDE = "the original's run"


def beside_case(name: str, whole: Sides, allowed: Sequence[float], resolution: Callable[[], list[float]]) -> CheckCase:
    """The case of the original's run at full size, where so large errors are no fault."""
    still = [0.0] * len(whole.found)
    found = list(whole.found)
    return CheckCase(name, whole.inputs, found, found, lambda ways: still, resolution, None, allowed, BESIDE)


def scaled_case(exact: CheckCase, whole: Sides) -> CheckCase:
    """The case of a cut patch, scaled to the whole patch: both models may be as far from float64 as
    the criterion allows on few rows, times the ratio of the magnitudes."""
    scales = [_scale(*each) for each in zip(whole.found, exact.reference, strict=True)]
    allowed = [(FACTOR + 1) * own * scale for own, scale in zip(exact.own(), scales, strict=True)]

    def resolution() -> list[float]:
        found = [0.0] * len(scales) if exact.resolution is None else exact.resolution()
        return [2 * each * scale for each, scale in zip(found, scales, strict=True)]

    return beside_case(exact.name, whole, allowed, resolution)


def _scale(whole: Any, cut: Any) -> float:
    """How much larger the numbers are at full size."""
    if not rounds(whole):
        return 1.0
    few = most_of(np.asarray(cut, np.float64)[np.isfinite(cut)])
    many = most_of(np.asarray(whole, np.float64)[np.isfinite(whole)])
    return max(many / few, 1.0) if few else 1.0
