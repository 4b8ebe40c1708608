"""What has no operands: a view of an input, or a constant of the goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from taso_mirage.ir.terms import Node
from taso_mirage.kernels.derivations.base import (
    BodyWriter,
    Costing,
    DerivationEdge,
    DerivationKind,
    TileCounts,
    Written,
)
from taso_mirage.kernels.derivations.overflow import OverflowEffect
from taso_mirage.kernels.goal import Labelled


@dataclass(frozen=True, slots=True)
class Input(DerivationKind):
    """A view or a constant, by its name. Its value is given, so there is nothing to check."""

    name: str
    operators: ClassVar[int] = 0

    @property
    def reads(self) -> str:
        return self.name

    def example(self, goal: Labelled) -> Node | None:
        leaves = goal.leaves
        return leaves.get(self.name)

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        if self.name in body.goal.constants:
            number = body.goal.constants[self.name]
            return body.integer(number) if isinstance(number, int) else body.constant(number), []
        return body.read(self.name)

    def operations(self, made: int, edge: DerivationEdge, model: Costing) -> TileCounts:
        return np.asarray(0.0)

    def bare(
        self, edge: DerivationEdge, below: Sequence[OverflowEffect], number: float | None, bounded: bool
    ) -> OverflowEffect:
        above = number is not None and number > 0
        return OverflowEffect(positive=above, floor=above)
