"""The named parts of a goal: a view of an input, a constant, or an opaque function (an elementwise
operator that is no arithmetic)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from taso_mirage.ir.terms import Node
from taso_mirage.meanings.field import Residues
from taso_mirage.mugraph.derivations.kind import (
    BodyWriter,
    Costing,
    DerivationEdge,
    DerivationKind,
    DerivationValues,
    TileCounts,
    Written,
)
from taso_mirage.mugraph.derivations.overflow import OverflowEffect
from taso_mirage.mugraph.goal import Labelled
from taso_mirage.mugraph.opaque_functions import applied, with_operands


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


@dataclass(frozen=True, slots=True)
class OpaqueKind(DerivationKind):
    """The function of that name in `Labelled.functions`; it may have several operands."""

    name: str
    slow = True

    def example(self, goal: Labelled) -> Node | None:
        return goal.functions[self.name]

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        return applied(values.goal.functions[self.name], values.xp, values.aligned(edge.args))

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        operands = [body.aligned(x, made) for x in edge.args]
        made_of = with_operands(body.goal.functions[self.name], operands, body.converted)
        return body.written(made, body.converted(made_of))
