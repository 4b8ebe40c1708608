"""How classes are derived from others: one object for each kind, in a file beside this one.

A new reduction is a `folds.Fold` in a file of its own, and its name in `REDUCTIONS`.
"""

from __future__ import annotations

from taso_mirage.kernels.derivations.base import DerivationEdge, DerivationKind
from taso_mirage.kernels.derivations.folds import MAX_KIND, MEAN_KIND, SUM_KIND, FoldKind

__all__ = ["REDUCTIONS", "DerivationEdge", "DerivationKind", "FoldKind"]

REDUCTIONS: list[FoldKind] = [SUM_KIND, MEAN_KIND, MAX_KIND]
"""The reductions over one label, in the order in which a closure tries them."""
