"""The values that one kernel of a muGraph stores for the next, and the order of the axes of all
that it computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taso_mirage.ir.terms import Node, is_float
from taso_mirage.mugraph.closure import Closure
from taso_mirage.operators.ops import term

LOWEST = float(np.finfo(np.float32).min)
"""The maximum of a tile that is masked whole: the number that exporters mask with, so that a row of
it is uniform."""
Labels = tuple[tuple[str, ...], ...]
"""The labels of every axis, outermost first: none where its size is 1, several where it is a
product."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that a kernel reads: the model's, or an earlier kernel's, with the label of every
    axis. `weight`: the class that it was divided by."""

    node: Node
    labels: Labels
    weight: int | None = None


def axes_order(closure: Closure) -> list[str]:
    """All labels in one order: as the results have them, then as the inputs do; the parts of a
    split one after the other."""
    goal = closure.goal
    found: dict[str, None] = {}
    for labels in (*goal.outputs, *goal.inputs.values()):
        for axis in labels:
            found |= dict.fromkeys(axis)
    return list(found)


def converted_float(value: Node, dtype: str) -> Node:
    """A float in another float type."""
    return value if value.dtype == dtype or not is_float(value.dtype) else term("cast", value, to=dtype)
