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
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.regional import NO_TIME, ClaimedModel, RegionalCheck
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import Target
from taso_mirage.measure.whole import BY_RUNS
from taso_mirage.runtime.embed import EmbeddedRegion, embedded

SHARE = 1 / 32
"""The share of the original's rounding of operands that kernels may round."""


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
        self, before: Model, regions: Sequence[EmbeddedRegion], sizes: Mapping[str, int], late: Callable[[], bool]
    ) -> list[Difference] | None:
        """The differences of each kind of region of the model `before`; None where regions are no
        models of their own.

        Raises OutOfTime where it is `late` before all were compared.
        """
        made, claims = embedded(before, regions, sizes, alike=True)
        found = list[Difference]()
        sides = [(made, SHARE)] + ([(made.without_library(), 0.0)] if self.elsewhere else [])
        values: dict[Node, list[Any]] = {}
        for each, share in sides:
            check = RegionalCheck(before, self.cases, late, share, values)
            given = check.differences(ClaimedModel(each, self.target, claims, {}))
            if NO_TIME in check.alone:
                raise OutOfTime("there was no time to check them on the inputs of their regions")
            if check.alone or not given:
                return None
            found += given
        return found
