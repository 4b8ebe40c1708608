"""The sum over one label of a product."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taso_mirage.kernels.derivations.base import Body, Costing, Counts, Edge, Kind, Values, Written
from taso_mirage.kernels.derivations.degrees import Degree, total
from taso_mirage.kernels.derivations.overflow import Bare, Signs, product_ill, product_signs
from taso_mirage.meanings.field import Residues


class Dot(Kind):
    """What a matrix unit computes, where both operands have a label that the other lacks."""

    __slots__ = ()
    name, accumulates = "dot", True

    def evaluate(self, edge: Edge, values: Values) -> Residues:
        return values.contracted(edge.args, edge.folds)

    def write(self, made: int, edge: Edge, body: Body) -> Written:
        value = body.contracted(made, edge.args)
        return body.written(made, body.accumulated(made, edge, value, "sum"))

    def operations(self, made: int, edge: Edge, model: Costing) -> Counts:
        a, b = (model.labels(c) for c in edge.args)
        volume, device = model.volume(model.labels(made) | a | b), model.device
        for side in (a - b, b - a):
            volume = volume * np.maximum(device.padded / model.volume(side), 1)
        if a - b and b - a:
            batch = model.volume(a & b & model.labels(made))
            volume = np.where(batch > 1, volume * device.batched, volume)
        return np.asarray(2 * volume)

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return total(below[0], below[1])

    def signs(self, edge: Edge, below: Sequence[Bare]) -> Signs:
        return product_signs(below)

    def ill(self, below: Sequence[Bare]) -> str:
        return product_ill(below)


DOT = Dot()
