"""The kinds of regions of a model, with all that is known of them before any is searched; an error
with one costs that one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from taso_mirage.forms.base.form import PreparedGoal
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph
from taso_mirage.lowering.backend import Backend
from taso_mirage.pipeline.fuse.convolved import ConvolvedModel, with_terms
from taso_mirage.pipeline.fuse.decomposed import decomposed
from taso_mirage.pipeline.fuse.forms import RegionForm, forms
from taso_mirage.pipeline.fuse.trials import possible_seconds
from taso_mirage.regions.batches import EqualRegions, equal_regions
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.regions.contained import ErrorReport, contained, operators_of
from taso_mirage.regions.fragments import RegionSite
from taso_mirage.regions.free_regions import free_regions


@dataclass(slots=True)
class Kinds:
    """The `model` that the regions are of, those that may save most first, each with its `places`,
    its `forms` and the seconds that it may save, and the free dims of regions that are left out."""

    model: Model
    layout: ConvolvedModel | None = None
    places: dict[EqualRegions, list[RegionSite]] = field(default_factory=dict)
    prepared: dict[Graph, PreparedGoal] = field(default_factory=dict)
    forms: dict[EqualRegions, list[RegionForm]] = field(default_factory=dict)
    possible: dict[EqualRegions, float] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)


def found_kinds(
    model: Model, sizes: SymbolSizes, backend: Backend, late: Callable[[], bool], report: ErrorReport
) -> Kinds:
    """The kinds of regions of a model at some sizes for a back end; once it is `late`, the search
    for them ends."""
    made, prepared = Kinds(model), backend.prepared
    if late():
        return made
    if prepared is not None:
        with contained("any region", report):
            made.layout = with_terms(model, prepared.terms) if prepared.terms else None
            made.model = made.layout.model if made.layout else decomposed(model, sizes, prepared)
    found: dict[EqualRegions, list[RegionSite]] = {}
    with contained("any region", report):
        regions = free_regions if backend.free else equal_regions
        found, made.left_out = regions(made.model, sizes, backend.lanes, backend.batched, prepared, late, report)
    for kind, sites in found.items():
        with contained(operators_of(kind.goal), report):
            goal = None if prepared is None or late() else prepared.prepared(kind.goal, sites[0].inputs)
            made.forms[kind] = forms(kind, sites, backend.arranged, goal is not None)
            made.possible[kind] = possible_seconds(kind, len(sites), goal, backend.device)
            made.places[kind] = sites
            made.prepared |= {} if goal is None else {kind.goal: goal}
    made.places = dict(sorted(made.places.items(), key=lambda each: -made.possible[each[0]]))
    return made
