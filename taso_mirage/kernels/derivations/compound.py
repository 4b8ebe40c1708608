"""What makes classes of its own in a closure: derivations of several operators or classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from taso_mirage.kernels.abstract import Algebra
from taso_mirage.kernels.atoms import AbstractExpression
from taso_mirage.kernels.derivations.base import DerivationEdge
from taso_mirage.kernels.goal import Labelled
from taso_mirage.kernels.pruning import Targets


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


class Compound(Protocol):
    """Derivations that are looked for in one closure."""

    def meet(self, i: int) -> None:
        """Derive what there is from a class, and those before it."""

    def end(self) -> None:
        """Derive what waits until all classes are there."""


Compounds: TypeAlias = Callable[[Closing], Compound]
