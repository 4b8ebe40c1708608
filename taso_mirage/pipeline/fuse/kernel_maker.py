"""The kernels of kinds of regions: for each kind, of the variant whose kernel is the fastest, if
that is faster alone than the runtime's operators.

The kernel-level graph of a region may also contain the runtime's own products, as the kernel graphs
of Mirage (OSDI'25, section 2) have operators of libraries: kernels are then made for the regions
around these. The better of both is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from taso_mirage.errors import TasoMirageError
from taso_mirage.lowering.backend import Backend
from taso_mirage.measure.target import Target
from taso_mirage.pipeline.fuse import region_times
from taso_mirage.pipeline.fuse.choices import KernelChoices, KernelsEnded
from taso_mirage.pipeline.fuse.kinds import Kinds, RegionVariant, around_libraries
from taso_mirage.pipeline.fuse.order import StageTime
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel, possible_seconds
from taso_mirage.pipeline.fuse.searches import SearchedGoal, Searches
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.regions.contained import ErrorReport, contained
from taso_mirage.regions.free_regions import other_kind
from taso_mirage.system.workers import Workers


@dataclass(slots=True)
class KernelMaker:
    """Makes the kernels of kinds of regions by choices among muGraphs, measured alone at the sizes
    of a model; the load of the machine decides the `clock`. `made` are all kernels, `untried` the
    kinds for which the time ended."""

    kinds: Kinds
    choices: KernelChoices
    backend: Backend
    time: StageTime
    sizes: SymbolSizes
    clock: Callable[[], Target]
    report: ErrorReport
    made: list[RegionKernel] = field(default_factory=list)
    untried: set[EqualRegions] = field(default_factory=set)

    def known(self) -> set[EqualRegions]:
        """The kinds whose kernels of all variants are on disk."""
        found: set[EqualRegions] = set()
        for kind, variants in self.kinds.variants.items():
            with contained(" ".join(variants[0].operators), self.report):
                found |= {kind} if all(self.choices.is_known(each.kind) for each in variants) else set()
        return found

    def searches(self, ready: Workers | None) -> Searches:
        """The searches for kinds whose kernels are not on disk, by `ready` processes."""
        goals: dict[SearchedGoal, None] = {}
        for each in (each for variants in self.kinds.variants.values() for each in variants if self.time.searching):
            with contained(" ".join(each.operators), self.report):
                goals |= dict.fromkeys(self.choices.unknown(each.kind))
        seconds, device = self.time.budget.left() / 3, self.backend.device
        return Searches(list(goals), device, seconds, self.backend.searching, self.kinds.prepared, ready)

    def fastest(self, kind: EqualRegions, seconds: float) -> list[RegionKernel]:
        """The variant of a kind that saves most, with its kernel; the kernels of the regions around
        its products, if these save more with the runtime's products. None if all are slower."""
        end = time.monotonic() + seconds
        found = self._kernels(kind, self.kinds.variants[kind], seconds)
        best = [max(found, key=lambda kernel: kernel.saved)] if found else []
        around = self._around(kind, _saved(best))
        others = self._kernels(kind, around, end - time.monotonic()) if around else []
        return max(best, others, key=_saved)

    def _kernels(self, kind: EqualRegions, variants: Sequence[RegionVariant], seconds: float) -> list[RegionKernel]:
        """The kernels of variants that are faster than the operators."""
        found = list[RegionKernel]()
        for variant in variants:
            try:
                kernel = self._kernel(variant, seconds / len(variants))
                found += [kernel] if kernel is not None else []
            except KernelsEnded:
                self.untried.add(kind)
            except TasoMirageError:
                continue  # it has no kernel: the operators stay
            except Exception as error:
                self.report(" ".join(variant.operators), error)
        return found

    def _around(self, kind: EqualRegions, saved: float) -> list[RegionVariant]:
        """The regions around the products of a kind, if they may save more than its own kernel."""
        if kind in self.untried or self.time.late() or kind.goal in self.kinds.prepared:
            return []
        sites = self.kinds.places[kind]
        found = around_libraries(self.kinds.model, sites, self.sizes, self.backend, self.report)
        device = self.backend.device
        possible = sum(possible_seconds(each.kind, len(each.sites), None, device) for each in found)
        return found if possible > saved else []

    def _kernel(self, variant: RegionVariant, seconds: float) -> RegionKernel | None:
        """The kernel of a variant, if it is faster than the operators."""
        kind, sites = variant.kind, variant.sites
        try:
            choice = self.choices.fastest(kind, seconds)
        except TasoMirageError:
            if kind.free is None:
                raise
            choice = None
        if choice is None:
            return self._otherwise(variant, seconds)
        self._check_time()
        made, opsets = self.kinds.prepared.get(kind.goal), self.kinds.model.opsets
        place = sites[0], choice[1], opsets, self.clock(), variant.several or made is not None
        times = region_times.region_seconds(kind.whole, *place)
        before, after = times or (1.0, 1.0)
        worth = after < before * (1.0 if made is None else made.slack)
        self._check_time()
        told = made is None or not made.by_values
        if kind.free is not None and told and region_times.slower_elsewhere(self.sizes, *place):
            return self._otherwise(variant, seconds) if worth else None
        saved = (before - after) * len(sites)
        self.made.append(RegionKernel(variant.operators, tuple(sites), *choice, saved, made))
        return self.made[-1] if worth else None

    def _otherwise(self, variant: RegionVariant, seconds: float) -> RegionKernel | None:
        """A kernel of fixed sizes instead of one of free sizes, which is missing or slower."""
        kind = variant.kind
        other = None if kind.free is None else other_kind(kind, variant.sites[0], self.backend.batched)
        return None if other is None else self._kernel(replace(variant, kind=other), seconds / 2)

    def _check_time(self) -> None:
        """Raise KernelsEnded if there is no time left to try a kernel that would be measured
        next."""
        if self.time.late():
            raise KernelsEnded


def _saved(kernels: Sequence[RegionKernel]) -> float:
    return sum(each.saved for each in kernels)
