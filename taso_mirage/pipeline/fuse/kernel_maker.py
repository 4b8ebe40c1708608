"""The kernels of kinds of regions: first those that are predicted to be the fastest, of all kinds
at once; then, for one kind after the other, those that are measured to be. Both are for regions on
which they are faster alone than the runtime's operators.

The kernel-level graph of a region may also contain the runtime's own products, as the kernel graphs
of Mirage (OSDI'25, section 2) have operators of libraries: kernels are then made for the regions
around these. The better of both is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from taso_mirage.errors import TasoMirageError
from taso_mirage.lowering.backend import Backend, Record
from taso_mirage.measure.cluster import others
from taso_mirage.measure.target import Target
from taso_mirage.pipeline.fuse import region_times
from taso_mirage.pipeline.fuse.choices import KernelChoices, KernelsEnded
from taso_mirage.pipeline.fuse.kinds import Kinds, RegionVariant, around_libraries
from taso_mirage.pipeline.fuse.order import StageTime
from taso_mirage.pipeline.fuse.other_workers import OtherWorkers, SharedGoal
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel, possible_seconds
from taso_mirage.pipeline.fuse.searches import SearchedGoal, Searches
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.regions.contained import ErrorReport, contained
from taso_mirage.regions.free_regions import other_kind
from taso_mirage.runtime.plan import PlannedNode
from taso_mirage.system.workers import Workers

BULK, SEARCHED = 16, 1 / 2
"""The number of kinds whose predicted kernels are compiled at once, and the share of the time in
which those are searched."""
CLEAR = 0.05
"""The share of the predicted kernel's time that another one has to save in addition: two
measurements of one kernel differ by less, as a rule."""


T = TypeVar("T")
Chosen = tuple[Record, PlannedNode]
"""A choice, and its kernel on this machine."""


@dataclass(frozen=True, slots=True)
class _BegunKernel:
    """The kernel of a variant of a kind that is being compiled, and the function that waits for
    it."""

    kind: EqualRegions
    variant: RegionVariant
    wait: Callable[[], Chosen | None]


@dataclass(slots=True)
class KernelMaker:
    """Makes the kernels of kinds of regions by choices among muGraphs, measured alone at the sizes
    of a model; the load of the machine decides the `clock`. With `elsewhere` those that are
    faster are compiled for all machines beside other work. `made` are all kernels, `predicted`
    those of the first round, and `untried` the kinds for which the time ended."""

    kinds: Kinds
    choices: KernelChoices
    backend: Backend
    time: StageTime
    sizes: SymbolSizes
    clock: Callable[[], Target]
    report: ErrorReport
    elsewhere: bool = False
    made: list[RegionKernel] = field(default_factory=list)
    predicted: dict[EqualRegions, RegionKernel] = field(default_factory=dict)
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

    def other_workers(self, target: Target, rounding: bool) -> OtherWorkers | None:
        """The other workers of a scheduler, with the goals of the kinds that may save most first;
        None without any. A kernel gets as much of the time there as here."""
        if (found := others()) is None or not self.time.searching:
            return None
        goals: dict[SearchedGoal, SharedGoal] = {}
        for kind in sorted(self.kinds.variants, key=lambda kind: -self.kinds.possible[kind]):
            for each in self.kinds.variants[kind]:
                with contained(" ".join(each.operators), self.report):
                    for goal in self.choices.unknown(each.kind):
                        if goal[0] not in self.kinds.prepared:
                            goals.setdefault(goal, SharedGoal(goal, each.kind.sizes))
        return OtherWorkers(found, target, rounding, goals.values(), self.time.of_a_kernel)

    def first(self, progress: Callable[[int], None]) -> dict[EqualRegions, RegionKernel]:
        """The kernels that are predicted to be the fastest, of all kinds for which there is time,
        BULK at once. Kinds without one, and those for which the time ended, are left out.
        `progress` is called with the number of kinds that are done."""
        kinds = sorted(self.kinds.places, key=self._by_search)
        for i in range(0, len(kinds), BULK):
            if self.time.late() or self.time.budget.stop:
                break
            progress(i)
            self._predict(kinds[i : i + BULK])
        return self.predicted

    def _predict(self, kinds: Sequence[EqualRegions]) -> None:
        """Search and compile the predicted kernels of some kinds, and measure one after the other,
        those first that may save most, while there is time. Where models run on the cores, the
        compilers end before."""
        end, begun = time.monotonic() + SEARCHED * (self.time.left() - self.time.trial), list[_BegunKernel]()
        for kind in kinds:
            if (seconds := end - time.monotonic()) > 0:
                for variant in self._known_or_first(kind):
                    begun += self._contained(kind, variant, partial(self._begun, kind, variant, seconds))
        begun.sort(key=lambda each: -self.kinds.possible[each.kind])
        compiled = ((each, self._contained(each.kind, each.variant, each.wait)) for each in begun)
        for each, choices in compiled if self.backend.searching else list(compiled):
            for choice in choices:
                found = self._contained(each.kind, each.variant, partial(self._measured, each.variant, choice))
                best = [*([self.predicted[each.kind]] if each.kind in self.predicted else []), *found]
                self.predicted |= {each.kind: max(best, key=lambda kernel: kernel.saved)} if best else {}
            if self.time.late():
                break

    def _by_search(self, kind: EqualRegions) -> float:
        """The order of searches: most possible savings for each second first, of which a search
        takes about the square of the number of terms."""
        return -self.kinds.possible[kind] / len([n for n in kind.goal if n.args]) ** 2

    def _known_or_first(self, kind: EqualRegions) -> list[RegionVariant]:
        """The variants of a kind whose kernels are on disk; else the kind as it is."""
        variants, known = self.kinds.variants[kind], list[RegionVariant]()
        for each in variants:
            with contained(" ".join(each.operators), self.report):
                known += [each] if self.choices.is_known(each.kind) else []
        return known or list(variants[:1])

    def _begun(self, kind: EqualRegions, variant: RegionVariant, seconds: float) -> _BegunKernel:
        return _BegunKernel(kind, variant, self.choices.predicted(variant.kind, seconds))

    def fastest(self, kind: EqualRegions, seconds: float) -> list[RegionKernel]:
        """The variant of a kind that saves most, with its kernel; the kernels of the regions around
        its products, if these save more with the runtime's products. None if all are slower than
        the operators, or not clearly faster than the predicted kernel."""
        end, before = time.monotonic() + seconds, self.predicted.get(kind)
        found = self._kernels(kind, self.kinds.variants[kind], seconds)
        best = [max(found, key=lambda kernel: kernel.saved)] if found else []
        around = self._around(kind, max(_saved(best), before.saved if before is not None else 0.0))
        others = self._kernels(kind, around, end - time.monotonic()) if around else []
        best = max(best, others, key=_saved)
        if before is None or not before.faster or _saved(best) > before.saved + CLEAR * before.seconds:
            return best
        self.choices.keep_predicted(kind)
        self.made.append(before)  # the last kernel of a place counts
        return []

    def _kernels(self, kind: EqualRegions, variants: Sequence[RegionVariant], seconds: float) -> list[RegionKernel]:
        """The kernels of variants that are faster than the operators."""
        share, found = seconds / max(len(variants), 1), list[RegionKernel]()
        for variant in variants:
            found += self._contained(kind, variant, partial(self._kernel, variant, share))
        return [each for each in found if each.faster]

    def _contained(self, kind: EqualRegions, variant: RegionVariant, work: Callable[[], T | None]) -> list[T]:
        """The result of work on a variant of a kind, if there is one; an error concerns it
        alone."""
        try:
            found = work()
        except KernelsEnded:
            self.untried.add(kind)
            return []
        except TasoMirageError:
            found = None  # it has no kernel: the operators stay
        except Exception as error:
            self.report(" ".join(variant.operators), error)
            found = None
        return [] if found is None else [found]

    def _around(self, kind: EqualRegions, saved: float) -> list[RegionVariant]:
        """The regions around the products of a kind, if they may save more than its own kernel."""
        if self.time.budget.stop or self.time.late() or kind.goal in self.kinds.prepared:
            return []
        sites = self.kinds.places[kind]
        found = around_libraries(self.kinds.model, sites, self.sizes, self.backend, self.report)
        device = self.backend.device
        possible = sum(possible_seconds(each.kind, len(each.sites), None, device) for each in found)
        return found if possible > saved else []

    def _kernel(self, variant: RegionVariant, seconds: float) -> RegionKernel | None:
        """The kernel of a variant that is chosen by measurement; None if it has none, or the
        predicted one again."""
        try:
            choice = self.choices.fastest(variant.kind, seconds)
        except TasoMirageError:
            if variant.kind.free is None:
                raise
            choice = None
        if choice is not None and any(
            each.kernel == choice[1] for each in self.made if each.sites == tuple(variant.sites)
        ):
            return None
        made = None if choice is None else self._measured(variant, choice)
        return self._otherwise(variant, seconds) if made is None else made

    def _measured(self, variant: RegionVariant, choice: Chosen) -> RegionKernel | None:
        """A kernel of a variant, measured alone; None if its sizes are free, and it is slower than
        the operators at others."""
        self._check_time()
        kind, sites = variant.kind, variant.sites
        made, opsets = self.kinds.prepared.get(kind.goal), self.kinds.model.opsets
        place = sites[0], choice[1], opsets, self.clock(), variant.several or made is not None
        before, after = region_times.region_seconds(kind.whole, *place) or (1.0, 1.0)
        count = len(sites)
        kernel = RegionKernel(variant.operators, tuple(sites), *choice, (before - after) * count, made, after * count)
        self._check_time()
        told = kernel.faster and (made is None or not made.by_values)
        if kind.free is not None and told and region_times.slower_elsewhere(self.sizes, *place):
            return None
        self.made.append(kernel)
        if kernel.faster:
            self.time.checked.add(kind.goal)
        if self.elsewhere and kernel.faster:
            self.backend.begin_shipping(kernel.record)
        return kernel

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
