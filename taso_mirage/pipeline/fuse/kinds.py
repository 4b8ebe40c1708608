"""The kinds of regions of a model, with all facts that are known before any is searched; an error
in one kind affects that kind only. A kind has variants: the model's own, and one with
pre-transposed weights (`mugraph.arranged`). Which one is faster is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from taso_mirage.forms.base.form import PreparedGoal, in_operators
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, is_named_weight, substitute, topological
from taso_mirage.lowering.backend import Backend
from taso_mirage.mugraph.arranged import ArrangedGoal, arranged
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.onnx_io.loops import with_scans
from taso_mirage.pipeline.fuse.form_terms import ModelInTerms, decompose, with_terms
from taso_mirage.pipeline.fuse.region_kernels import possible_seconds
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.regions.batches import EqualRegions, region_members
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.regions.contained import ErrorReport, contained, operators_of
from taso_mirage.regions.fragments import RegionSite
from taso_mirage.regions.free_regions import free_regions
from taso_mirage.rewriting.derived_traits import multiplies, selects


@dataclass(frozen=True, slots=True)
class RegionVariant:
    """The goal of a search for kernels, with its places in the model, and the operators there.

    `several`: the kind is one of several, so its weights are in memory like those of a model when
    it is measured.
    """

    kind: EqualRegions
    sites: Sequence[RegionSite]
    operators: tuple[str, ...]
    several: bool = False


def variants(
    kind: EqualRegions, sites: Sequence[RegionSite], arranging: bool, prepared: bool = False
) -> list[RegionVariant]:
    """The kind as it is; and with arranged weights, if its kernels may read these and gain by it:
    every place has to have them, and the goal over them has to be proved equal. Of a kind whose
    kernel is written by hand (`prepared`) only the operators that compute are named."""
    shown = [n.op for n in topological(in_operators(kind.goal.outputs)) if n.args and n.op != "item"]
    first = RegionVariant(kind, sites, tuple(op for op in shown if not (prepared and selects(op))))
    given = {tuple(map(is_named_weight, site.inputs)): site.inputs for site in sites}  # only weights matter
    found = [arranged(kind.goal, inputs) for inputs in given.values()] if arranging and not prepared else [None]
    goal = found[0]
    if goal is None or any(each != goal for each in found) or not _is_proved(kind.goal, goal):
        return [first]
    made = replace(kind, goal=goal.graph, whole=goal.operators(kind.whole))
    sums = goal.graph.inputs[len(kind.goal.inputs) :]
    if kind.free is not None:
        names = [tuple([x[d] for d in goal.perms.get(i, range(len(x)))]) for i, x in enumerate(kind.free.inputs)]
        made = replace(made, free=FreeSizes((*names, *(x.shape for x in sums)), kind.free.outputs))
    if kind.batch is not None:
        made = replace(made, batch=replace(kind.batch, inputs=(*kind.batch.inputs, *(False for _ in sums))))
    places = [replace(site, inputs=goal.inputs(kind.goal, site.inputs)) for site in sites]
    return [replace(first, several=True), RegionVariant(made, places, first.operators, several=True)]


def _is_proved(goal: Graph, other: ArrangedGoal) -> bool:
    over = substitute(other.graph.outputs, dict(zip(other.graph.inputs, other.terms, strict=True)))
    return isinstance(prove_symbolic(goal.outputs, over), Proved)


def around_libraries(
    model: Model, sites: Sequence[RegionSite], sizes: SymbolSizes, backend: Backend, report: ErrorReport
) -> list[RegionVariant]:
    """The regions in the places of a region around its products, which stay the runtime's operators
    there; none if it has no product."""
    members = [n for site in sites for n in region_members(site)]
    among = {n for n in members if not multiplies(n.op)}
    if len(among) == len(set(members)):
        return []
    found, _ = free_regions(model, sizes, backend.lanes, backend.batched, report=report, among=among)
    return [variants(kind, own, arranging=False)[0] for kind, own in found.items()]


@dataclass(slots=True)
class Kinds:
    """The `model` and the kinds of its regions, those that may save most first, each with its
    `places`, its `variants` and the seconds that it may save, and the free dims of regions that are
    left out."""

    model: Model
    layout: ModelInTerms | None = None
    places: dict[EqualRegions, list[RegionSite]] = field(default_factory=dict)
    prepared: dict[Graph, PreparedGoal] = field(default_factory=dict)
    variants: dict[EqualRegions, list[RegionVariant]] = field(default_factory=dict)
    possible: dict[EqualRegions, float] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    def has_operators_of(self, other: Model) -> bool:
        """Whether the model has the operators of another one; loops may be terms in it."""
        return self.model is other or self.model.graph == with_scans(other).graph


def find_kinds(
    model: Model, sizes: SymbolSizes, backend: Backend, late: Callable[[], bool], report: ErrorReport
) -> Kinds:
    """The kinds of regions of a model at some sizes for a back end; the search for them ends once
    it is `late`."""
    made, prepared = Kinds(model), backend.prepared
    if late():
        return made
    if prepared is not None:
        with contained("loops", report):
            made.model = model = with_scans(model)
        with contained("any region", report):
            if not prepared.terms:
                made.model = decompose(model, sizes, prepared)
            elif (converted := with_terms(model, prepared.terms)).model.graph != model.graph:
                made.layout, made.model = converted, converted.model
    found: dict[EqualRegions, list[RegionSite]] = {}
    with contained("any region", report):
        found, made.left_out = free_regions(made.model, sizes, backend.lanes, backend.batched, prepared, late, report)
    for kind, sites in found.items():
        with contained(operators_of(kind.goal), report):
            goal = None if prepared is None or late() else prepared.prepared(kind.goal, sites[0].inputs)
            made.variants[kind] = variants(kind, sites, backend.arranged, goal is not None)
            made.possible[kind] = possible_seconds(kind, len(sites), goal, backend.device)
            made.places[kind] = sites
            made.prepared |= {} if goal is None else {kind.goal: goal}
    made.places = dict(sorted(made.places.items(), key=lambda each: -made.possible[each[0]]))
    return made
