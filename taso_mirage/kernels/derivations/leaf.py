"""What has no operands: a view of an input, or a constant of the goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from taso_mirage.kernels.derivations.base import Body, Costing, Counts, Edge, Kind, Written
from taso_mirage.kernels.derivations.overflow import Bare


@dataclass(frozen=True, slots=True)
class Input(Kind):
    """A view or a constant, by its name. Its value is given, so there is nothing to check."""

    name: str
    operators: ClassVar[int] = 0

    @property
    def reads(self) -> str:
        return self.name

    def write(self, made: int, edge: Edge, body: Body) -> Written:
        if self.name in body.goal.constants:
            return body.constant(body.goal.constants[self.name]), []
        return body.read(self.name)

    def operations(self, made: int, edge: Edge, model: Costing) -> Counts:
        return np.asarray(0.0)

    def bare(self, edge: Edge, below: Sequence[Bare], number: float | None, bounded: bool) -> Bare:
        above = number is not None and number > 0
        return Bare(positive=above, floor=above)
