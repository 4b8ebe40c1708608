"""Changes of decisions of quantizers that the user permits (`--allow-rounding`), and the resulting
errors in quantization steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.terms import is_float
from taso_mirage.measure.check import Difference
from taso_mirage.system.wording import option

LEVELS = 255
"""The number of steps in the range of a float output, as for a quantizer to 8 bits."""
QUANTIZED = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16))
"""The integer types for which 1 is a step. Other integers are counts and positions and must be
equal."""


@dataclass(frozen=True, slots=True)
class AllowedRounding:
    """No output is further from float64 than `steps`, by rules whose names match one of the
    patterns `rules`, or by any where there is none."""

    steps: float
    rules: tuple[str, ...] = ()

    def permits(self, rule: str) -> bool:
        return not self.rules or any(fnmatchcase(rule, pattern) for pattern in self.rules)

    def __str__(self) -> str:
        return f"{self.steps:g}" + (f":{','.join(self.rules)}" if self.rules else "")


def parse_rounding(text: str | float) -> AllowedRounding:
    """STEPS, or STEPS:RULE,RULE... as on the command line.

    Raises InvalidOption.
    """
    number, colon, names = str(text).partition(":")
    rules = tuple(name.strip() for name in names.split(",") if name.strip())
    try:
        steps = float(number)
    except ValueError:
        steps = math.nan
    if not (0 < steps < math.inf) or (colon and not rules):
        raise InvalidOption(
            f"{option('allow_rounding', text)} is no number of quantization steps above 0, with or without rules behind a colon; "
            "for example 1, or 0.5:add.3,conv.*"
        )
    return AllowedRounding(steps, rules)


@dataclass(frozen=True, slots=True)
class OutputRounding:
    """The error of an output on a case: the largest error in `steps` of the size `step`, and the
    number of `size` elements whose error exceeds the criterion.
    """

    case: str
    output: str
    against: str
    step: float
    steps: float
    elements: int
    size: int

    def within(self, found: Difference, allowed: AllowedRounding) -> Difference:
        """The difference with its error and the bound that is allowed."""
        return replace(found, error=self.steps * self.step, bound=allowed.steps * self.step)

    def __str__(self) -> str:
        return (
            f"output {self.output!r} is up to {self.steps:.3g} quantization steps of {self.step:.3g} from {self.against}, "
            f"{self.elements} of {self.size} elements by more than a rounding ({self.case})"
        )


@dataclass(frozen=True, slots=True)
class LetThrough:
    """The rules that changed decisions of quantizers, the allowed number of steps, and the largest
    error of each output."""

    rules: tuple[str, ...]
    allowed: AllowedRounding
    outputs: tuple[OutputRounding, ...]

    def __str__(self) -> str:
        names, errors = ", ".join(map(repr, self.rules)), "; ".join(map(str, self.outputs))
        return (
            f"accepted by {option('allow_rounding', str(self.allowed))}: {names}; right in float64, but rounded differently from "
            f"the original before a quantized operator: {errors}"
        )


def output_rounding(found: Difference, case: str, new: Any, target: Any) -> OutputRounding:
    """The size of a failed difference in rounding steps; infinite where steps do not measure it."""
    alike = isinstance(new, np.ndarray) and isinstance(target, np.ndarray) and new.shape == target.shape
    floats = alike and is_float(new.dtype.name)
    counted = alike and new.dtype == target.dtype and new.dtype.name in QUANTIZED
    size = int(np.size(target))
    if not counted and not (floats and found.error < math.inf):
        return OutputRounding(case, found.output, found.against, math.nan, math.inf, size, size)
    exact = target.astype(np.float64)
    error = np.abs(new.astype(np.float64) - exact)
    finite = np.isfinite(error)
    step = _range(exact) / LEVELS if floats else 1.0
    most = float(error.max(initial=0.0, where=finite))
    beyond = int((error[finite] > found.bound).sum())
    return OutputRounding(case, found.output, found.against, step, most / step if step else math.inf, beyond, size)


def _range(exact: NDArray[Any]) -> float:
    """The distance between the largest and the smallest of the finite elements and 0."""
    finite = np.isfinite(exact)
    return float(exact.max(initial=0.0, where=finite) - exact.min(initial=0.0, where=finite))


def furthest(found: Iterable[OutputRounding]) -> tuple[OutputRounding, ...]:
    """For each output, the case on which it is furthest from its target."""
    worst: dict[str, OutputRounding] = {}
    for each in found:
        if each.output not in worst or each.steps > worst[each.output].steps:
            worst[each.output] = each
    return tuple(worst.values())
