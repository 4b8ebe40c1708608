"""The variances of a goal, as derivations of their own: one pass over their elements instead of
two.

mean((x - mean(x))^2) waits for the mean, so no loop over the elements can compute both. An
accumulator of the variance can (Chan, Golub and LeVeque 1979), and for a reduction that is split
over the grid, the last kernel merges the variances and means of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from taso_mirage.ir.terms import Node
from taso_mirage.meanings.field import Field, Residues
from taso_mirage.mugraph.abstract import Algebra
from taso_mirage.mugraph.atoms import AbstractExpression
from taso_mirage.mugraph.derivations.arithmetic import MUL, SQUARE, SUB
from taso_mirage.mugraph.derivations.kind import BodyWriter, DerivationEdge, DerivationKind, DerivationValues, Written
from taso_mirage.mugraph.derivations.overflow import OverflowEffect, Signs
from taso_mirage.mugraph.derivations.reductions import DOT, MEAN_KIND, SUM_KIND, mean_of
from taso_mirage.mugraph.derivations.scalar_terms import ScalarTerm, seen
from taso_mirage.mugraph.goal import Labelled
from taso_mirage.mugraph.pruning import Targets
from taso_mirage.operators.ops import term

Parts = tuple[AbstractExpression, AbstractExpression]
"""A variance and a mean."""
OVERFLOWS = "a variance of exponentials that may overflow"


# ---------------------------------------------------------------- the kinds


class OnePass(DerivationKind):
    """The variance of the elements along a label."""

    __slots__ = ()
    name, operators, accumulates, one_pass, harm = "variance", 2, True, True, OVERFLOWS

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        (of,) = edge.args
        return _variance(values.xp, values.value(of), values.axis(of, edge.folds))

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        (of,) = edge.args
        x, axis = body.ordered(of), body.axis(of, edge.folds)
        mean, found = mean_of(x, axis, body), _spread(x, axis, body)
        if body.looped(made, edge):
            found = term("accumulate", found, mean, over="variance")
        return body.written(made, found)

    def signs(self, edge: DerivationEdge, below: Sequence[OverflowEffect]) -> Signs:
        return True, False


class Merged(DerivationKind):
    """The mean of equal parts from their means, or the variance from their variances and means.

    The label tells the parts apart. A loop over it has one part at a time.
    """

    __slots__ = ()
    name, combines, accumulates, singly, harm = "merged", True, True, True, OVERFLOWS

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        xp, axis = values.xp, values.axis(edge.args[-1], edge.folds)
        means = [_mean(xp, values.value(part), axis) for part in edge.args]
        if len(means) == 1:
            return means[0]
        return xp.map(np.add, means[0], _variance(xp, values.value(edge.args[1]), axis))

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        *variances, means = [body.ordered(c) for c in edge.args]
        blocks = body.combining(edge.folds)
        if blocks is not None:
            total = term("div", term("combine", means), body.constant(blocks))
            merged = [term("combine", v, means, over="variance") for v in variances]
            return body.written(made, (merged or [total])[0])
        axis = body.axis(edge.args[-1], edge.folds)
        if not variances:
            return self._mean(made, edge, body)
        mean, spread = mean_of(means, axis, body), _spread(means, axis, body)
        found = term("add", mean_of(variances[0], axis, body), spread)
        if body.looped(made, edge):
            found = term("accumulate", found, mean, over="variance")
        return body.written(made, found)

    @staticmethod
    def _mean(made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        """The mean of means."""
        (means,) = edge.args
        value, axis = body.ordered(means), body.axis(means, edge.folds)
        if not body.looped(made, edge):
            return body.written(made, mean_of(value, axis, body))
        total = body.accumulated(made, edge, term("reduce_sum", value, axes=(axis,), keepdims=0), "sum")
        return body.written(made, term("div", total, body.count(edge.folds)))


ONE_PASS, MERGED = OnePass(), Merged()


def _mean(xp: Field, x: Residues, axis: int, keepdims: bool = False) -> Residues:
    total = xp.reduce(np.add, x, [axis], keepdims=keepdims)
    return xp.div(total, xp.load(np.asarray(x.shape[axis], np.float64)))


def _variance(xp: Field, x: Residues, axis: int) -> Residues:
    apart = xp.map(np.subtract, x, _mean(xp, x, axis, keepdims=True))
    return _mean(xp, xp.map(np.multiply, apart, apart), axis)


def _spread(x: Node, axis: int, body: BodyWriter) -> Node:
    """The variance of a tile along one axis."""
    apart = term("sub", x, mean_of(x, axis, body, keepdims=1))
    return mean_of(term("mul", apart, apart), axis, body)


# ---------------------------------------------------------------- the algebra


def variance_and_mean(algebra: Algebra, of: AbstractExpression, labels: Sequence[str]) -> Parts:
    """The variance and the mean of a term over labels; the variance is the mean of the squared
    differences."""
    mean = _mean_sketch(algebra, of, labels)
    apart = algebra.sub(of, mean)
    return _mean_sketch(algebra, algebra.mul(apart, apart), labels), mean


def cancelling(algebra: Algebra, of: AbstractExpression, labels: Sequence[str]) -> AbstractExpression:
    """The variance as the mean of the squares less the square of the mean, which in floats may have
    no correct digit."""
    mean = _mean_sketch(algebra, of, labels)
    return algebra.sub(_mean_sketch(algebra, algebra.mul(of, of), labels), algebra.mul(mean, mean))


def _mean_sketch(algebra: Algebra, p: AbstractExpression, labels: Sequence[str]) -> AbstractExpression:
    p = algebra.folded(p, labels)
    for label in labels:
        p = algebra.mul(p, algebra.share(label))
    return p


def squared_mean(whole: ScalarTerm) -> ScalarTerm | None:
    """The mean whose square is subtracted in a term of a goal, if one is."""
    square = seen(whole.args[1]) if whole.kind is SUB else None
    if square is None or square.kind not in (MUL, SQUARE) or len({id(seen(arg)) for arg in square.args}) > 1:
        return None
    mean = seen(square.args[0])
    return mean if mean.kind is MEAN_KIND else None


# ---------------------------------------------------------------- those of a goal


@dataclass(frozen=True, slots=True)
class Variance:
    """The variance and the mean of the term `of` over `labels`, outermost first. The first of
    `levels` are those over the last label alone, and each of the others merges those before it over
    one label more: parts that a split makes, or those of other dims."""

    of: AbstractExpression
    labels: tuple[str, ...]
    levels: tuple[Parts, ...]

    @property
    def mean(self) -> AbstractExpression:
        """The mean of all elements."""
        return self.levels[-1][1]


def variances(goal: Labelled, targets: Targets) -> Iterator[Variance]:
    """The variances of the goal's own terms that are part of the goal: over one label, and over all
    folded labels."""
    algebra, split = goal.algebra, dict(goal.split)
    for of in dict.fromkeys(known.sketch for known in goal.known):
        free = algebra.free(of)
        folded = [x for x in _in_order(goal) if free.issuperset(split.get(x, (x,)))]
        for names in dict.fromkeys([*((x,) for x in sorted(folded)), tuple(folded)]):
            labels = tuple([part for x in names for part in split.get(x, (x,))])
            if labels and variance_and_mean(algebra, of, labels)[0] in targets:
                levels = [variance_and_mean(algebra, of, labels[-n:]) for n in range(1, len(labels) + 1)]
                yield Variance(of, labels, tuple(levels))


def _in_order(goal: Labelled) -> list[str]:
    """The labels that are folded, as the inputs have them; of a split one the whole."""
    wholes = {part: whole for whole, parts in goal.split.items() for part in parts}
    return [x for x in dict.fromkeys(wholes.get(x, x) for x in goal.labels) if x in goal.reduced]


class Closing(Protocol):
    """A closure while it grows.

    It has the sketch, the labels and the derivations of each class, and the class of each sketch.
    """

    goal: Labelled
    algebra: Algebra
    targets: Targets
    classes: list[AbstractExpression]
    free: list[frozenset[str]]
    edges: list[dict[DerivationEdge, None]]
    index: dict[AbstractExpression, int]

    def put(self, sketch: AbstractExpression, edge: DerivationEdge, free: frozenset[str], needed: bool = False) -> None:
        """Keep a derivation; one that is `needed` for another stays although it is no part of the
        goal."""


class Variances:
    """The variances in a closure, and the terms made of a difference from a mean without it."""

    def __init__(self, closing: Closing) -> None:
        self.closing, self.algebra = closing, closing.algebra
        self.found = list(variances(closing.goal, closing.targets))

    def meet(self, i: int) -> None:
        """Derive variances from a class, and those before it; those of parts are classes, too, and
        are merged once both are there."""
        for each in self.found:
            if self.closing.classes[i] == each.of:
                (variance, mean), label = each.levels[0], each.labels[-1]
                free = self.closing.free[i] - {label}
                self.closing.put(variance, DerivationEdge(ONE_PASS, (i,), label), free, needed=True)
                if len(each.levels) > 1:
                    self.closing.put(mean, DerivationEdge(MEAN_KIND, (i,), label), free, needed=True)
            for below, made, label in zip(each.levels, each.levels[1:], each.labels[-2::-1], strict=False):
                self._merged(i, below, made, label)

    def _merged(self, i: int, below: Parts, made: Parts, label: str) -> None:
        """Merge a variance and a mean over a label that tells their parts apart."""
        closing = self.closing
        if closing.classes[i] not in below or label not in closing.free[i]:
            return
        args = [closing.index[part] for part in below if part in closing.index]
        if i == max(args) and len(args) == 2:
            free = closing.free[i] - {label}
            closing.put(made[0], DerivationEdge(MERGED, tuple(args), label), free, needed=True)
            closing.put(made[1], DerivationEdge(MERGED, (args[1],), label), free, needed=True)

    def end(self) -> None:
        """Derive sum((x - mean) w) as sum(x w) - mean sum(w), which does not wait for the mean; the
        worklist does not create these outer products.

        A product in half precision rounds operands that are no inputs themselves, and a large mean
        would show it: then x and w are inputs.
        """
        closing, goal = self.closing, self.closing.goal
        half = any(leaf.dtype in ("float16", "bfloat16") for leaf in goal.leaves.values())
        exact = set(goal.views.values()) if half else set(closing.classes)
        for each in self.found:
            apart = closing.index.get(self.algebra.sub(each.of, each.mean))
            uses = [e for made in closing.edges for e in made if e.kind in (MUL, DOT) and apart in e.args]
            for weight in dict.fromkeys(a for e in uses for a in e.args if a != apart):
                if {each.of, closing.classes[weight]} <= exact and closing.free[weight].issuperset(each.labels):
                    self._shifted(each, weight)

    def _shifted(self, each: Variance, weight: int) -> None:
        """The derivation of one sum((x - mean) w), if it is part of the goal."""
        algebra, index, free = self.algebra, self.closing.index, self.closing.free
        x, mean = index.get(each.of), index.get(each.mean)
        apart = algebra.sub(each.of, each.mean)
        whole = algebra.folded(algebra.mul(apart, self.closing.classes[weight]), each.labels)
        if whole not in index or x is None or mean is None:
            return
        products, weights = self._product(x, weight, each.labels[-1]), self._total(weight, each.labels[-1])
        for label in each.labels[-2::-1]:
            products, weights = self._total(products, label), self._total(weights, label)
        if products is None or weights is None:
            return
        product = algebra.mul(each.mean, self.closing.classes[weights])
        shift = self._class(product, DerivationEdge(MUL, (mean, weights)), free[mean] | free[weights])
        if shift is not None:
            self.closing.put(whole, DerivationEdge(SUB, (products, shift)), free[index[whole]])

    def _class(self, sketch: AbstractExpression, edge: DerivationEdge, free: frozenset[str]) -> int | None:
        """The class of a term that is needed, unless a cancellation lost a label."""
        self.closing.put(sketch, edge, free, needed=True)
        return self.closing.index.get(sketch)

    def _total(self, i: int | None, label: str) -> int | None:
        """The class of the sum of a class."""
        if i is None or label not in self.closing.free[i]:
            return None
        sketch = self.algebra.sum(self.closing.classes[i], label)
        return self._class(sketch, DerivationEdge(SUM_KIND, (i,), label), self.closing.free[i] - {label})

    def _product(self, i: int, j: int, label: str) -> int | None:
        """The class of the sum of the product of two classes."""
        left, right = self.closing.free[i], self.closing.free[j]
        free = left | right
        product = self.algebra.mul(self.closing.classes[i], self.closing.classes[j])
        if free in (left, right):
            return self._total(self._class(product, DerivationEdge(MUL, (i, j)), free), label)
        return self._class(self.algebra.sum(product, label), DerivationEdge(DOT, (i, j), label), free - {label})
