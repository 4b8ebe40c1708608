"""Tiles with a masked rest, for a fixed size that no tile divides.

Equal tiles of 257 keys have 1 or 257 of them. A search at the next size that tiles divide (320)
finds muGraphs that cut the label into tiles of 64, and these are typed again with 257 in its
place: the last tile is the remainder, as with the sizes that a run gives (`free.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.mugraph import kernels, parts_in
from taso_mirage.ir.terms import Graph
from taso_mirage.mugraph.field_check import tied
from taso_mirage.mugraph.free import instance
from taso_mirage.mugraph.goal import Labelled
from taso_mirage.mugraph.shrink import resized_goal

DIVIDED, LEAST = 16, 64
"""Sizes that are no multiples of the first have tiles with a masked rest, from the second on:
smaller ones are one tile."""


@dataclass(frozen=True, slots=True)
class MaskedGoal:
    """A goal at sizes that tiles divide; `sizes`: the numbers that some of its labels really
    have."""

    goal: Graph
    sizes: Mapping[str, int]


def masked_goal(labelled: Labelled) -> MaskedGoal | None:
    """The goal with larger sizes of the labels that a loop cuts and no tiles divide; None if there
    are none."""
    groups, products = tied(labelled)
    odd = {groups[x] for x in labelled.reduced if labelled.sizes[x] > LEAST and labelled.sizes[x] % DIVIDED}
    names = {x for x, group in groups.items() if group in odd}
    if not names or not odd.isdisjoint(products) or not names.isdisjoint(labelled.steps):
        return None
    sizes = {x: labelled.sizes[x] for x in sorted(names)}
    try:
        return MaskedGoal(
            resized_goal(labelled, {**labelled.sizes, **{x: instance(n) for x, n in sizes.items()}})[0], sizes
        )
    except (TasoMirageError, LookupError, ValueError):
        return None


def has_rests(graph: Graph) -> bool:
    """Whether each part of a size in a muGraph has another one beside it."""
    parts = [part for kernel in kernels(graph.outputs) for part in parts_in(kernel.attr("body")).values()]
    return all(isinstance(whole, int) and most < whole for whole, most in parts)
