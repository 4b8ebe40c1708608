"""An opaque function of the goal: an operator that is elementwise, and no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from taso_mirage.ir.terms import Node
from taso_mirage.kernels.derivations.base import BodyWriter, DerivationEdge, DerivationKind, DerivationValues, Written
from taso_mirage.kernels.functions import applied, with_operands
from taso_mirage.kernels.goal import Labelled
from taso_mirage.meanings.field import Residues


@dataclass(frozen=True, slots=True)
class OpaqueKind(DerivationKind):
    """The function of that name in `Labelled.functions`; it may have several operands."""

    name: str

    def example(self, goal: Labelled) -> Node | None:
        return goal.functions[self.name]

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        return applied(values.goal.functions[self.name], values.xp, values.aligned(edge.args))

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        operands = [body.aligned(x, made) for x in edge.args]
        made_of = with_operands(body.goal.functions[self.name], operands, body.converted)
        return body.written(made, body.converted(made_of))
