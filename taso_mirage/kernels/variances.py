"""The variances of a goal, as derivations of their own: one pass over their elements instead of two.

mean((x - mean(x))^2) waits for the mean, so no loop over the elements has both. An accumulator of the variance does (Chan, Golub and
LeVeque 1979), and of a reduction that is split over the grid the last kernel merges the variances and means of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taso_mirage.kernels.sketch import Algebra, Sketch

if TYPE_CHECKING:
    from taso_mirage.kernels.labels import Labelled
    from taso_mirage.kernels.pruning import Targets

Parts = tuple[Sketch, Sketch]
"""A variance and a mean."""


@dataclass(frozen=True, slots=True)
class Variance:
    """The variance and the mean of the term `of` over `label`; where that is the inner part of a split one these are of each part, and
    `whole` are those over all, merged over the label `outer`."""

    of: Sketch
    label: str
    parts: Parts
    outer: str | None = None
    whole: Parts | None = None

    @property
    def mean(self) -> Sketch:
        """That of all elements."""
        return (self.whole or self.parts)[1]

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of all elements, outermost first."""
        return (self.label,) if self.outer is None else (self.outer, self.label)


def variances(goal: Labelled, targets: Targets) -> Iterator[Variance]:
    """Those that are part of the goal, of its own terms."""
    algebra, split = goal.algebra, dict(goal.split)
    for of in dict.fromkeys(known.sketch for known in goal.known):
        for label in sorted(goal.reduced):
            labels: tuple[str, ...] = split.get(label, (label,))
            if not algebra.free(of).issuperset(labels):
                continue
            whole = variance_and_mean(algebra, of, labels)
            if whole[0] not in targets:
                continue
            if label in split:
                yield Variance(of, labels[-1], variance_and_mean(algebra, of, labels[1:]), labels[0], whole)
            else:
                yield Variance(of, label, whole)


def variance_and_mean(algebra: Algebra, of: Sketch, labels: Sequence[str]) -> Parts:
    """Those of a term over labels, the variance as the mean of the squares of the differences."""
    mean = _mean(algebra, of, labels)
    apart = algebra.sub(of, mean)
    return _mean(algebra, algebra.mul(apart, apart), labels), mean


def cancelling(algebra: Algebra, of: Sketch, labels: Sequence[str]) -> Sketch:
    """The same variance as the mean of the squares less the square of the mean, which in floats may have no correct digit."""
    mean = _mean(algebra, of, labels)
    return algebra.sub(_mean(algebra, algebra.mul(of, of), labels), algebra.mul(mean, mean))


def _mean(algebra: Algebra, p: Sketch, labels: Sequence[str]) -> Sketch:
    p = algebra.folded(p, labels)
    for label in labels:
        p = algebra.mul(p, algebra.share(label))
    return p
