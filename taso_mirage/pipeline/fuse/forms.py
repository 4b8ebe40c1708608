"""The forms of a kind of regions: as the model has it, and with its weights arranged
(`mugraph.arranged`). Which one is faster is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taso_mirage.forms.base.form import in_operators
from taso_mirage.ir.terms import Graph, is_named_weight, substitute, topological
from taso_mirage.mugraph.arranged import ArrangedGoal, arranged
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.fragments import RegionSite
from taso_mirage.rewriting.derived_traits import selects


@dataclass(frozen=True, slots=True)
class RegionForm:
    """The goal of a search for kernels, with its places in the model, and the operators there.

    `several`: It is one of several, so that its weights are a model's where it is measured.
    """

    kind: EqualRegions
    sites: Sequence[RegionSite]
    operators: tuple[str, ...]
    several: bool = False


def forms(kind: EqualRegions, sites: Sequence[RegionSite], arranging: bool, prepared: bool = False) -> list[RegionForm]:
    """The kind as it is, and if its kernels may read arranged weights and gain by that, with those:
    every place of it has to have them, and the goal over them has to be proved equal. Of one whose
    kernel is by hand (`prepared`) only the operators that compute are named."""
    shown = [n.op for n in topological(in_operators(kind.goal.outputs)) if n.args and n.op != "item"]
    first = RegionForm(kind, sites, tuple(op for op in shown if not (prepared and selects(op))))
    given = {tuple(map(is_named_weight, site.inputs)): site.inputs for site in sites}  # all that is asked of inputs
    found = [arranged(kind.goal, inputs) for inputs in given.values()] if arranging and not prepared else [None]
    goal = found[0]
    if goal is None or any(each != goal for each in found) or not _proved(kind.goal, goal):
        return [first]
    made = replace(kind, goal=goal.graph, whole=goal.operators(kind.whole))
    sums = goal.graph.inputs[len(kind.goal.inputs) :]
    if kind.free is not None:
        names = [tuple([x[d] for d in goal.perms.get(i, range(len(x)))]) for i, x in enumerate(kind.free.inputs)]
        made = replace(made, free=FreeSizes((*names, *(x.shape for x in sums)), kind.free.outputs))
    if kind.batch is not None:
        made = replace(made, batch=replace(kind.batch, inputs=(*kind.batch.inputs, *(False for _ in sums))))
    places = [replace(site, inputs=goal.inputs(kind.goal, site.inputs)) for site in sites]
    return [replace(first, several=True), RegionForm(made, places, first.operators, several=True)]


def _proved(goal: Graph, other: ArrangedGoal) -> bool:
    over = substitute(other.graph.outputs, dict(zip(other.graph.inputs, other.terms, strict=True)))
    return isinstance(prove_symbolic(goal.outputs, over), Proved)
