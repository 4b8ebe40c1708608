"""The explanation of one change: the equation that made it, its gain, and its proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taso_mirage.ir.terms import Node
from taso_mirage.report.changes import ReportedChange


@dataclass(frozen=True, slots=True)
class StatedEquation:
    """An equation in the direction of its application, its guard, and its evidence.

    `region`: for a corrected mutant, a picture of the part that is right without corrections.
    """

    name: str
    text: str
    where: str
    evidence: str
    region: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A change with the seconds of one place before and after: predicted, and measured as separate
    models (None: not measured).

    `ground` is the evidence of the change at these sizes: a proof, or the check of the whole model.
    """

    change: ReportedChange
    predicted: tuple[float, float]
    measured: tuple[float, float] | None
    ground: str = ""

    @property
    def gain(self) -> float:
        """The saved seconds at all places: as measured separately, otherwise predicted."""
        before, after = self.measured or self.predicted
        return self.change.count * (before - after)


@dataclass(frozen=True, slots=True)
class MeasuredPeaks:
    """The peaks of the runtime on this machine: operations a second in one large product, bytes a
    second in one large sum, both of this dtype."""

    flops: float
    bandwidth: float
    dtype: str


@dataclass(frozen=True, slots=True)
class OperatorProfile:
    """Measured seconds of a run by operator of the runtime, of the original and of the result, by
    the runtime's profiler."""

    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Predicted seconds of every term that runs, in the original and in the result.

    `peaks`: None where nothing was measured; the seconds are then a roofline of described numbers.
    """

    before: Mapping[Node, float]
    after: Mapping[Node, float]
    peaks: MeasuredPeaks | None = None
