"""The sum over one label of a product."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taso_mirage.kernels.derivations.base import (
    BodyWriter,
    Costing,
    DerivationEdge,
    DerivationKind,
    DerivationValues,
    TileCounts,
    Written,
)
from taso_mirage.kernels.derivations.degrees import Degree, total
from taso_mirage.kernels.derivations.overflow import OverflowEffect, Signs, product_ill, product_signs
from taso_mirage.meanings.field import Residues


class Dot(DerivationKind):
    """What a matrix unit computes, where both operands have a label that the other lacks."""

    __slots__ = ()
    name, accumulates = "dot", True

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        return values.contracted(edge.args, edge.folds)

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        value = body.contracted(made, edge.args)
        return body.written(made, body.accumulated(made, edge, value, "sum"))

    def operations(self, made: int, edge: DerivationEdge, model: Costing) -> TileCounts:
        a, b = (model.labels(c) for c in edge.args)
        volume, device = model.volume(model.labels(made) | a | b), model.device
        for side in (a - b, b - a):
            volume = volume * np.maximum(device.padded / model.volume(side), 1)
        if a - b and b - a:
            batch = model.volume(a & b & model.labels(made))
            volume = np.where(batch > 1, volume * device.batched, volume) * model.pace(edge.args, edge.folds)
        return np.asarray(2 * volume)

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return total(below[0], below[1])

    def signs(self, edge: DerivationEdge, below: Sequence[OverflowEffect]) -> Signs:
        return product_signs(below)

    def ill(self, below: Sequence[OverflowEffect]) -> str:
        return product_ill(below)


DOT = Dot()
