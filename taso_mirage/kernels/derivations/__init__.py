"""How classes are derived from others: one object for each kind, in a file beside this one.

A new reduction is a `folds.Fold` in a file of its own, and its name in `REDUCTIONS`.
"""

from __future__ import annotations

from taso_mirage.kernels.derivations.base import Edge, Kind
from taso_mirage.kernels.derivations.compound import Compounds
from taso_mirage.kernels.derivations.folds import MAX, MEAN, SUM, Fold
from taso_mirage.kernels.derivations.variance import Variances

__all__ = ["COMPOUNDS", "REDUCTIONS", "Edge", "Fold", "Kind"]

REDUCTIONS: list[Fold] = [SUM, MEAN, MAX]
"""The reductions over one label, in the order in which a closure tries them."""
COMPOUNDS: list[Compounds] = [Variances]
"""What derives more than one operator does."""
