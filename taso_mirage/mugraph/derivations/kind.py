"""A derivation kind is one object: everything that the search needs to know about one way to derive
a class from others.

The object defines how the kind evaluates in the field, how it is written into a kernel's body, its
needs of loops, its cost, and the effect of an exponential that overflows on it (Mirage, OSDI'25,
section 4). No module outside of this folder distinguishes kinds by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taso_mirage.devices.device import Device
from taso_mirage.ir.terms import Node
from taso_mirage.meanings.field import Field, Residues
from taso_mirage.mugraph.derivations.overflow import NO_DEGREE, Degree, OverflowEffect, Signs, joined, product_ill
from taso_mirage.mugraph.goal import Labelled

TileCounts: TypeAlias = NDArray[np.float64]
"""A number for each of many tilings."""
Written: TypeAlias = tuple[Node, list[str]]
"""A value of a body, and the label of each of its axes."""


@dataclass(frozen=True, slots=True)
class DerivationEdge:
    """One derivation of a class from the classes `args`; `label` is the one that it folds away."""

    kind: DerivationKind
    args: tuple[int, ...] = ()
    label: str | None = None

    @property
    def folds(self) -> str:
        """The label of a derivation that has one."""
        assert self.label is not None
        return self.label


class DerivationValues(Protocol):
    """The value of every class in the field, with an axis for each of its labels."""

    goal: Labelled
    xp: Field

    def value(self, i: int) -> Residues: ...

    def axis(self, i: int, label: str) -> int:
        """The axis of a label in the value of a class."""

    def aligned(self, args: Sequence[int]) -> list[Residues]:
        """Operands with an axis for every label of any of them."""

    def divided(self, above: int, below: int) -> Residues: ...

    def inverted(self, i: int) -> Residues:
        """1 over the value of a class."""

    def contracted(self, args: Sequence[int], label: str) -> Residues:
        """The sum over a label of the product of two classes."""

    def count(self, label: str) -> Residues:
        """How many elements a label has; of the grid part of a split one the whole."""


class BodyWriter(Protocol):
    """The body of a kernel while it is written.

    Axes are in one order for all classes; a label that has one element in a block has no axis.
    """

    goal: Labelled

    def read(self, view: str) -> Written:
        """A tile of an input with its axes in storage order."""

    def constant(self, value: float) -> Node:
        """A number among floats."""

    def integer(self, value: int) -> Node:
        """A number among integers."""

    def converted(self, value: Node) -> Node:
        """A float in the type that all floats of the body have."""

    def count(self, label: str) -> Node:
        """How many elements a label has; of the grid part of a split one the whole."""

    def taken(self, c: int) -> Written:
        """The value of a class with its axes in storage order."""

    def ordered(self, c: int) -> Node:
        """The value of a class, its axes in the order of all."""

    def aligned(self, c: int, made: int) -> Node:
        """The value of a class with an axis for each that the class `made` has."""

    def written(self, made: int, value: Node) -> Written:
        """A value of a class whose axes are in the order of all."""

    def axis(self, c: int, label: str) -> int:
        """The axis of a label in `ordered`."""

    def contracted(self, made: int, args: Sequence[int]) -> Node:
        """The product of two classes, summed over the labels that the class `made` lacks."""

    def summed(self, made: int, c: int) -> Node:
        """A class, summed over the labels that the class `made` lacks: at once with the sums that
        it is itself, where these wait for no loop, no cluster combines them, and nothing else reads
        them."""

    def folded(self, c: int, label: str, operator: str) -> Node:
        """A class reduced by an operator over a block's part of a label: of a cluster's one
        element."""

    def combining(self, label: str) -> int | None:
        """The number of blocks of a cluster that combine over a label; None if they do not."""

    def looped(self, made: int, edge: DerivationEdge) -> bool:
        """Whether the for-loop cuts the label that a derivation folds."""

    def accumulated(self, made: int, edge: DerivationEdge, value: Node, over: str) -> Node:
        """The total of a fold over all iterations, given its value in one, or over all blocks of a
        cluster, given its value in one; `over` is that of `accumulate`."""

    def lowered(self, made: int, c: int) -> Node | None:
        """The exponent `c` less the maximum that it is relative to; None where it is computed as it
        is."""


class Costing(Protocol):
    """The analytic model of a kernel, over many tilings at once."""

    device: Device

    def labels(self, c: int) -> frozenset[str]: ...

    def volume(self, labels: Iterable[str]) -> TileCounts:
        """The number of elements of a block along some labels."""

    def pace(self, args: Sequence[int], label: str) -> float | TileCounts:
        """The time of a product of two matrices, summed over a label, relative to one of half
        precision."""


class DerivationKind:
    """The interface of a derivation to the search.

    A kind without parameters is compared as an object.
    """

    __slots__ = ()
    name: str
    operators: ClassVar[int] = 1
    """How many operators of a body it counts for."""
    accumulates: ClassVar[bool] = False
    """Whether a for-loop may cut the label that it folds."""
    combines: ClassVar[bool] = False
    """Whether blocks of a cluster may fold its label together."""
    one_pass: ClassVar[bool] = False
    """Whether the derivation exists for a loop over its label; if there is another derivation, only
    that loop uses it."""
    singly: ClassVar[bool] = False
    """Whether a loop over its label has one element of it at a time: parts that count the same."""
    maximum: ClassVar[bool] = False
    """Whether it is the largest of its operand's elements over its label."""
    exponential: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    """Whether it takes several instructions for an element, as functions do."""
    multiplies: ClassVar[bool] = False
    """Whether it is a product, a quotient, or a sum of products."""
    keeps_signs: ClassVar[bool] = False
    """Whether it is positive, and far from 0, where its operand is."""
    harm: ClassVar[str | None] = None
    """The reason why the derivation is rejected if an operand overflows; empty if it is not; None
    if it must be relative to its maximum."""

    def __repr__(self) -> str:
        return self.name

    @property
    def reads(self) -> str | None:
        """The view or the constant that a derivation without operands reads."""
        return None

    def example(self, goal: Labelled) -> Node | None:
        """The term of the goal that has the dtype of its results; None where they are floats."""
        return None

    # ------------------------------------------------------------ values

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        """The value in the field."""
        raise NotImplementedError

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        """The terms of a kernel's body; `made` is the class that is derived."""
        raise NotImplementedError

    def operations(self, made: int, edge: DerivationEdge, model: Costing) -> TileCounts:
        """The operations of one iteration of one block, in operations of a product."""
        labels = model.labels(made).union(*[model.labels(a) for a in edge.args])
        return np.asarray(model.device.elementwise * model.volume(labels))

    # ------------------------------------------------------------ exponentials

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        """The degree of the value; None where it has none.

        `of`: the class that an exponential is relative to.
        """
        return None if any(below) else NO_DEGREE

    def bare(
        self, edge: DerivationEdge, below: Sequence[OverflowEffect], number: float | None, bounded: bool
    ) -> OverflowEffect:
        """The value as the model writes it.

        `number`: of a constant; `bounded`: an exponent is never above 0.
        """
        ill = self.ill(below) if any(v.grows for v in below) else ""
        return joined(below, self.grows(below), self.signs(edge, below), ill)

    def grows(self, below: Sequence[OverflowEffect]) -> bool:
        """Whether it may overflow."""
        return any(v.grows for v in below)

    def signs(self, edge: DerivationEdge, below: Sequence[OverflowEffect]) -> Signs:
        """Whether it is positive, and whether it is far from 0; no, unless the kind knows."""
        return (below[0].positive, below[0].floor) if self.keeps_signs else (False, False)

    def ill(self, below: Sequence[OverflowEffect]) -> str:
        """The reason why the derivation is rejected if an operand overflows; empty if it is not."""
        if self.multiplies:
            return product_ill(below)
        said = f"{self.name} of an exponential that may overflow: write it relative to its maximum"
        return said if self.harm is None else self.harm

    def bounded(self, edge: DerivationEdge, chosen: Mapping[int, DerivationEdge]) -> bool:
        """Whether it is never above 0."""
        return False

    def denominator(self, edge: DerivationEdge) -> int | None:
        """The class that it divides by, which must not vanish."""
        return None


def largest_operand(c: int, chosen: Mapping[int, DerivationEdge]) -> tuple[int, frozenset[str]]:
    """The class whose maximum a class is, and the labels that the maximum is over; itself and none
    where it is no maximum."""
    labels = frozenset[str]()
    while c in chosen and chosen[c].kind.maximum:
        labels |= {chosen[c].folds}
        c = chosen[c].args[0]
    return c, labels


def halved(degree: Degree) -> Degree:
    """The degree of a root."""
    return {k: d / Fraction(2) for k, d in degree.items()}
