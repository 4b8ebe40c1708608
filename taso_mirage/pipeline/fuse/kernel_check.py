"""The check of a model with kernels.

Where the whole original has a float64 reference, the whole model is compared with it, with the
kernels' library and without. A large model has none: its kernels are compared with the float64
evaluation of their own regions, on the values that one run of the model without kernels gives these
(`measure.regional`), one of equal regions and the others beside it; then the whole model with its
kernels is compared with the original's runs. No other model is loaded for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taso_mirage.errors import OutOfTime
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node
from taso_mirage.measure.check import CheckCase, Difference, compare
from taso_mirage.measure.compared import ClaimedModel
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.regional import NO_TIME, RegionalCheck
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import Target
from taso_mirage.measure.whole import BY_RUNS
from taso_mirage.runtime.embed import EmbeddedRegion, embedded

SHARE = 1 / 32
"""The share of the original's rounding of operands that kernels may round."""
FEW = 3
"""Seconds are few if less is left than so many times the seconds in which kernels were compared."""


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """The check of an original's kernels on its cases, with `elsewhere` also of the functions that
    run without the kernels' library."""

    original: Model
    cases: Sequence[CheckCase]
    target: Target
    elsewhere: bool

    def whole(self, model: Model, session: Session, library: bool = True) -> list[Difference]:
        """The differences of a whole model's outputs; `session` is open on the model."""
        fine = Fine.of(self.original)
        finely = None if fine is None else fine.opened(model, self.target)
        return compare(self.original, session, self.cases, finely, SHARE if library else 0.0)

    @property
    def by_regions(self) -> bool:
        """Whether there is no float64 reference of the whole."""
        return bool(self.cases) and self.cases[0].against == BY_RUNS

    def regions(
        self, before: Model, regions: Sequence[EmbeddedRegion], sizes: Mapping[str, int], left: Callable[[], float]
    ) -> list[Difference] | None:
        """The differences of each kind of region of the model `before`; None where regions are no
        models of their own. Functions that run without the kernels' library are compared, too,
        unless the seconds `left` are few and they are read from ONNX as the regions' own terms.

        Raises OutOfTime where no seconds are left before all were compared.
        """
        made, claims = embedded(before, regions, sizes, alike=True)
        values: dict[Node, list[Any]] = {}

        def compared(model: Model, share: float) -> list[Difference] | None:
            check = RegionalCheck(before, self.cases, lambda: left() <= 0, share, values)
            given = check.differences(ClaimedModel(model, self.target, claims, {}))
            if NO_TIME in check.alone:
                raise OutOfTime("there was no time to check them on the inputs of their regions")
            return None if check.alone else given or None

        begun = left()
        found = compared(made, SHARE)
        if found is None or not self.elsewhere or (left() < FEW * (begun - left()) and _read_back(before, regions)):
            return found
        others = compared(made.without_library(), 0.0)
        return None if others is None else found + others


def _read_back(before: Model, regions: Sequence[EmbeddedRegion]) -> bool:
    """Whether the function of each different region is read as its own terms."""
    different = {(each.original, each.free): each for each in regions}
    return all(each.reads_back(before.opsets) for each in different.values())
