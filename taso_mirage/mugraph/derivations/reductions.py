"""Reductions over one label: sums, means, maxima, and sums of products.

A new one is a `FoldKind`, in `REDUCTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import ClassVar, Protocol

import numpy as np

from taso_mirage.ir.terms import Node
from taso_mirage.meanings.field import Residues
from taso_mirage.mugraph.abstract import Algebra
from taso_mirage.mugraph.atoms import AbstractExpression
from taso_mirage.mugraph.derivations.kind import (
    BodyWriter,
    Costing,
    DerivationEdge,
    DerivationKind,
    DerivationValues,
    TileCounts,
    Written,
)
from taso_mirage.mugraph.derivations.overflow import Degree, OverflowEffect, Signs, product_signs, total
from taso_mirage.operators.ops import term


class Wanted(Protocol):
    """The parts of a goal that a closure may derive."""

    algebra: Algebra

    @property
    def folds(self) -> Set[str]:
        """The names of the reductions that are opaque in the algebra."""

    @property
    def means(self) -> Mapping[str, AbstractExpression]:
        """For each label, the factor of a sum over it that makes it a mean of the goal."""


class FoldKind(DerivationKind):
    """A reduction of which the algebra knows only the name; the order of elements does not matter.

    `fold` is its name in definitions of operators, None where no definition has it; `operator` is
    the one that a body has for it, `over` the accumulator that a for-loop has, or None.
    """

    __slots__ = ()
    fold: ClassVar[np.ufunc | None]
    operator: ClassVar[str]
    over: ClassVar[str | None] = None

    def sketch(self, algebra: Algebra, p: AbstractExpression, label: str) -> AbstractExpression:
        """The normal form of the reduction over one label."""
        return algebra.fold(self.name, p, label)

    def scaled(self, algebra: Algebra, p: AbstractExpression, label: str) -> AbstractExpression:
        """The sketch once all labels of a reduction are folded."""
        return p

    def derived(self, wanted: Wanted, p: AbstractExpression, label: str) -> AbstractExpression | None:
        """The sketch of a fold of a class; None where the goal has no such reduction."""
        return self.sketch(wanted.algebra, p, label) if self.name in wanted.folds else None

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        assert self.fold is not None
        (of,) = edge.args
        return values.xp.reduce(self.fold, values.value(of), [values.axis(of, edge.folds)], keepdims=False)

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        (of,) = edge.args
        value = body.folded(of, edge.folds, self.operator)
        return body.written(made, value if self.over is None else body.accumulated(made, edge, value, self.over))


class Sum(FoldKind):
    __slots__ = ()
    name, operator, over, accumulates, combines = "sum", "reduce_sum", "sum", True, True
    keeps_signs, harm = True, ""
    fold: ClassVar[np.ufunc | None] = np.add

    def sketch(self, algebra: Algebra, p: AbstractExpression, label: str) -> AbstractExpression:
        return algebra.sum(p, label)

    def derived(self, wanted: Wanted, p: AbstractExpression, label: str) -> AbstractExpression | None:
        return wanted.algebra.sum(p, label)

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return below[0]

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        (of,) = edge.args
        combined = body.combining(edge.folds) is not None
        value = body.folded(of, edge.folds, "reduce_sum") if combined else body.summed(made, of)
        return body.written(made, body.accumulated(made, edge, value, "sum"))


class Mean(Sum):
    """A sum divided by the number of elements; for a split label, by that of the whole label."""

    __slots__ = ()
    name, fold = "mean", None

    def scaled(self, algebra: Algebra, p: AbstractExpression, label: str) -> AbstractExpression:
        return algebra.mul(p, algebra.share(label))

    def derived(self, wanted: Wanted, p: AbstractExpression, label: str) -> AbstractExpression | None:
        share = wanted.means.get(label)
        return None if share is None else wanted.algebra.mul(wanted.algebra.sum(p, label), share)

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        return values.xp.div(SUM_KIND.evaluate(edge, values), values.count(edge.folds))

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        value, axes = Sum.write(self, made, edge, body)
        return term("div", value, body.count(edge.folds)), axes


class Max(FoldKind):
    __slots__ = ()
    name, fold, operator, over, maximum = "max", np.maximum, "reduce_max", "max", True
    accumulates, combines, keeps_signs, harm = True, True, True, ""


class Dot(DerivationKind):
    """The sum of a product: a matrix unit computes it, where both operands have a label that the
    other lacks."""

    __slots__ = ()
    name, accumulates, multiplies = "dot", True, True

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


def mean_of(x: Node, axis: int, body: BodyWriter, keepdims: int = 0) -> Node:
    """The mean over all elements of a tile along one axis."""
    return term("div", term("reduce_sum", x, axes=(axis,), keepdims=keepdims), body.constant(int(x.shape[axis])))


SUM_KIND, MEAN_KIND, MAX_KIND, DOT = Sum(), Mean(), Max(), Dot()
REDUCTIONS: list[FoldKind] = [SUM_KIND, MEAN_KIND, MAX_KIND]
"""The reductions over one label, in the order in which a closure tries them."""
