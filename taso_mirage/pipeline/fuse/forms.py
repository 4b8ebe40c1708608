"""The forms of a kind of regions: as the model has it, and with weights that are stored otherwise
(`kernels.turned`). Which one is faster is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taso_mirage.ir.terms import Node
from taso_mirage.kernels.batches import EqualRegions
from taso_mirage.kernels.free import FreeSizes
from taso_mirage.kernels.labels import label
from taso_mirage.kernels.regions import RegionSite
from taso_mirage.kernels.turned import Perm, inverse, ordered, turned, turned_goal, turns
from taso_mirage.prove.symbolic import Proved, prove_symbolic


@dataclass(frozen=True, slots=True)
class Form:
    """What is searched for, with its places in the model, and the operators that are there.

    `several`: It is one of several, so that its weights are a model's where it is measured.
    """

    kind: EqualRegions
    spots: Sequence[RegionSite]
    operators: tuple[str, ...]
    several: bool = False


def forms(kind: EqualRegions, spots: Sequence[RegionSite], turning: bool) -> list[Form]:
    """The kind as it is, and if its kernels may read weights of 8 bits along their sums and do not
    do so already, with those turned; every place of it has to have such a weight."""
    first = Form(kind, spots, tuple(n.op for n in kind.goal if n.args and n.op != "item"))
    perms = turns(label(kind.goal), spots[0].inputs) if turning else {}
    if not perms or any(turns(label(kind.goal), spot.inputs) != perms for spot in spots):
        return [first]
    if not all(_proved(kind.goal.inputs[i], perm) for i, perm in perms.items()):
        return [first]
    made = replace(kind, goal=turned_goal(kind.goal, perms), whole=turned_goal(kind.whole, perms))
    if kind.free is not None:
        shapes = [ordered(x, perms[i]) if i in perms else x for i, x in enumerate(kind.free.inputs)]
        made = replace(made, free=FreeSizes(tuple(shapes), kind.free.outputs))
    places = [
        replace(spot, inputs=tuple([turned(x, perms[i]) if i in perms else x for i, x in enumerate(spot.inputs)]))
        for spot in spots
    ]
    return [replace(first, several=True), Form(made, places, first.operators, several=True)]


def _proved(leaf: Node, perm: Perm) -> bool:
    """Whether a weight that is turned, and turned back, is itself."""
    return isinstance(prove_symbolic((leaf,), (turned(turned(leaf, perm), inverse(perm)),)), Proved)
