"""Regions for which a search of kernels had no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taso_mirage.system.terminal import plural
from taso_mirage.system.wording import option

SHOWN, NAMED = 3, 5
"""The largest number of regions that the line names, and of operators of each."""
ATTENTION, PRODUCTS = "attention", ("matmul", "gemm")
LEAST = 1.01
"""The smallest speed-up of the model by a region that is named."""
REST = 0.25
"""The share of a model's time that no kernel saves. All regions together save less than the whole
time, even if the sum of their estimates is larger."""
EACH = 5.0
"""The assumed seconds of a region, if none was tried yet."""

RegionEstimate = tuple[tuple[str, ...], int, float]
"""A kind of regions: the operators, the places, and the seconds that it may save in all of them."""


@dataclass(frozen=True, slots=True)
class LeftRegion:
    """A kind of regions that was not tried: its operators, the number of its places, and the
    largest possible speed-up of the whole model by a kernel, by the estimate that orders the
    kinds."""

    operators: tuple[str, ...]
    places: int
    gain: float

    def __str__(self) -> str:
        named = region_name(self.operators)
        return f"{named} ({plural(self.places, 'place')}, up to {self.gain:.2f} times)"


def region_name(operators: Sequence[str]) -> str:
    """The name of a region's computation in the terms of the field; its operators where there is
    none."""
    products = sum(any(word in op for word in PRODUCTS) for op in operators)
    attends = any(ATTENTION in op for op in operators) or ("softmax" in operators and products >= 2)
    products -= 2 if attends and "softmax" in operators else 0
    norms = any("norm" in op for op in operators) or {"reduce_mean", "sqrt"} <= {*operators}
    convolutions = sum("conv" in op for op in operators)
    counted = [(convolutions, "convolution"), (products, "product")]
    words = [word for there, word in ((attends, ATTENTION), (norms, "norm")) if there]
    words += [word if n == 1 else f"{n} {word}s" for n, word in counted if n > 0]
    if words:
        return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    return " ".join(operators[:NAMED]) + (" ..." if len(operators) > NAMED else "")


@dataclass(frozen=True, slots=True)
class Leftover:
    """The number of kinds of regions that were tried, the approximate seconds for the others, and a
    list of these, the largest gain first."""

    tuned: int
    kinds: int
    seconds: float
    regions: tuple[LeftRegion, ...]

    def __str__(self) -> str:
        done = f"{self.tuned} of {self.kinds} kinds of regions tried"
        named = [each for each in self.regions if each.gain >= LEAST][:SHOWN]
        if not named:
            return f"{done}; by estimate the others gain less than {LEAST - 1:.0%}"
        more = len(self.regions) - len(named)
        others = f", and {more} more" if more else ""
        said = ", ".join(map(str, named))
        return f"{done}; {option('effort', 'thorough')} or {max(self.seconds, 1):.0f} s more would try: {said}{others}"


def leftover(estimates: Sequence[RegionEstimate], untried: Sequence[int], now: float, spent: float) -> Leftover | None:
    """The kinds of regions, by their numbers `untried`, that were not tried; None where all were.
    `now`: seconds of a run of the model; `spent`: seconds that the others took."""
    if not untried:
        return None
    total = sum(saved for *_, saved in estimates)
    now = now or total / (1 - REST)  # a loop alone has no predicted seconds
    scale = min(1.0, (1 - REST) * now / total) if total > 0 else 0.0
    left = [estimates[i] for i in untried]
    found = [LeftRegion(operators, places, now / (now - scale * saved)) for operators, places, saved in left]
    tuned = len(estimates) - len(left)
    each = spent / tuned if tuned else EACH
    return Leftover(tuned, len(estimates), each * len(left), tuple(sorted(found, key=lambda region: -region.gain)))
