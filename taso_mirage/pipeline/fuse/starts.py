"""What kernels are put into: a form of the model with its regions, as kernels take them.

What is the fastest form by itself need not be so with kernels: a rewrite may leave an operator that
is faster than what it replaces, and has no kernel. So a model with convolutions that the search
changed is looked at as it was before, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph
from taso_mirage.kernels.batches import EqualRegions, equal_regions
from taso_mirage.kernels.free_regions import free_regions
from taso_mirage.kernels.prepared import PreparedGoal
from taso_mirage.kernels.regions import RegionSite
from taso_mirage.operators.ops import traits
from taso_mirage.pipeline.fuse.convolved import ConvolvedModel, with_convolutions
from taso_mirage.pipeline.fuse.decomposed import decomposed
from taso_mirage.pipeline.fuse.forms import RegionForm, forms
from taso_mirage.pipeline.fuse.trials import possible_seconds
from taso_mirage.report.result import Result
from taso_mirage.targets.lowering import Backend


@dataclass(frozen=True)
class FusionStart:
    """A form of a model.

    `base` has it as kernels take it, `model` is it without that; `layout` is how convolutions are
    turned back. `kinds` are its regions, those that may save most first, `prepared` what those are
    whose kernels prepare weights, `left_out` the free dims at which no kernel runs.
    """

    base: Result
    model: Model
    layout: ConvolvedModel | None = None
    kinds: Mapping[EqualRegions, list[RegionSite]] = field(default_factory=dict)
    prepared: Mapping[Graph, PreparedGoal] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    forms: Mapping[EqualRegions, list[RegionForm]] = field(default_factory=dict)
    possible: Mapping[EqualRegions, float] = field(default_factory=dict)
    """Seconds that kernels of each kind may save."""

    def prepared_besides(self, other: FusionStart) -> set[EqualRegions]:
        """The kinds with prepared weights that another form has not."""
        return {kind for kind in self.kinds if kind.goal in self.prepared and kind not in other.kinds}

    def notes(self) -> list[str]:
        """Which regions were left out, and what to do."""
        if not self.left_out:
            return []
        names = ", ".join(sorted(self.left_out))
        why = f"regions with the free dims {names} were left out: no kernel runs them at every size"
        return [f"{why}; fix what can be fixed: python -m onnxruntime.tools.make_dynamic_shape_fixed"]

    def without_kernels(self, ended: str) -> str:
        """Why there is no kernel; `ended` says why the search did, where it was not done."""
        if not self.kinds:
            return "no kernels: no part of the model can be one"
        if ended:
            return f"no kernels: {ended}"
        tried = f"{len(self.kinds)} different parts" if len(self.kinds) > 1 else "one part"
        return f"no kernels: {tried} of the model could be one, and none makes the model measurably faster"


def start_of(base: Result, backend: Backend, sizes: Mapping[str, int]) -> FusionStart:
    """A form of a model with its regions; raises what looking for them raises."""
    kinds, layout, whole = backend.prepared, None, base
    if kinds is not None:
        layout = with_convolutions(base.model) if kinds.convolutions else None
        whole = replace(base, model=layout.model if layout else decomposed(base.model, sizes))
    regions = free_regions if backend.free else equal_regions
    found, left_out = regions(whole.model, sizes, backend.lanes, backend.batched, kinds)
    made = {} if kinds is None else {k.goal: kinds.prepared(k.goal, spots[0].inputs) for k, spots in found.items()}
    prepared = {goal: each for goal, each in made.items() if each is not None}
    possible = {k: possible_seconds(k, len(s), prepared.get(k.goal), backend.device) for k, s in found.items()}
    ordered = dict(sorted(found.items(), key=lambda each: -possible[each[0]]))
    formed = {k: forms(k, s, backend.arranged, k.goal in prepared) for k, s in ordered.items()}
    return FusionStart(whole, base.model, layout, ordered, prepared, frozenset(left_out), formed, possible)


def starts_of(result: Result, backend: Backend, sizes: Mapping[str, int], several: bool = True) -> list[FusionStart]:
    """The forms of a result that kernels may be put into: one or, where there is time for
    `several`, two, of which the second has convolutions with kernels that the first has not."""
    first, other = start_of(first_form(result), backend, sizes), _other_form(result)
    if other is None or not several:
        return [first]
    second = start_of(other, backend, sizes)
    return [first, second] if second.prepared_besides(first) else [first]


def first_form(result: Result) -> Result:
    """The result; where no rewrite was faster the model after the passes, in which more of it is in
    a region: batch normalizations in the weights of convolutions, say."""
    return result if result.changed or result.normal is None else result.of(result.normal)


def _other_form(result: Result) -> Result | None:
    """A model with convolutions after the passes, where the search changed it; for the same
    target."""
    normal = result.normal
    if not result.changed or normal is None or normal.target != result.target:
        return None
    if normal.model.graph == result.model.graph or not any(traits(n).layout for n in normal.model.nodes()):
        return None
    return result.of(normal)


def share_besides(first: FusionStart, second: FusionStart) -> float:
    """Of the time for kernels of both forms, what the second needs that the first has not."""
    more = sum(second.possible[kind] for kind in second.kinds if kind not in first.kinds)
    return more / (sum(first.possible.values()) + more) if more else 0.0
