"""Kernels of the model that is predicted to be chosen, begun before it is compared and checked.

On a GPU these stages leave most cores idle. Meanwhile other processes search the muGraphs of its
regions, and compile those that are predicted to be the fastest. The stage of kernels takes all of
this over if it gets that model.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.lowering.backend import Backend
from taso_mirage.measure.child import child
from taso_mirage.pipeline.fuse.choices import KernelChoices
from taso_mirage.pipeline.fuse.kinds import Kinds, find_kinds
from taso_mirage.pipeline.fuse.searches import SearchedGoal, Searches
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.regions.contained import ErrorReport, contained
from taso_mirage.search.search import Budget
from taso_mirage.system.workers import Workers


@dataclass(slots=True)
class KernelsAhead:
    """The kinds of regions of a model, with the searches for their muGraphs. `errors` are those
    with single regions, which the stage of kernels reports."""

    model: Model
    sizes: SymbolSizes
    kinds: Kinds
    choices: KernelChoices
    errors: list[tuple[str, Exception]] = field(default_factory=list)

    def fits(self, model: Model, sizes: SymbolSizes, backend: Backend) -> bool:
        """Whether these are the kinds of a model at some sizes for a back end."""
        return self.model is model and self.sizes == sizes and self.choices.backend == backend

    def taken(self, budget: Budget, report: ErrorReport) -> tuple[Kinds, KernelChoices]:
        """The kinds and their choices for a stage of kernels, whose budget these have from now
        on."""
        for what, error in self.errors:
            report(what, error)
        self.choices.budget = budget
        return self.kinds, self.choices

    def compile(self, seconds: float) -> None:
        """Begin to compile the predicted kernels of the kinds whose searches have ended, those that
        may save most first, for so many seconds: programs are written here."""
        end = time.monotonic() + seconds
        for kind in self.kinds.places:
            if time.monotonic() > end:
                break
            first = self.kinds.variants[kind][0]
            with suppress(TasoMirageError), contained(" ".join(first.operators), lambda what, error: None):
                self.choices.begin(first.kind)


def begin_kernels(
    model: Model, target: str, sizes: SymbolSizes, backend: Backend, ready: Workers, seconds: float
) -> KernelsAhead:
    """The kinds of regions of a model, whose searches of so many seconds begin in `ready`
    processes."""
    errors: list[tuple[str, Exception]] = []

    def report(what: str, error: Exception) -> None:
        errors.append((what, error))

    kinds = find_kinds(model, sizes, backend, lambda: child().deadline.left() <= 0, report)
    choices = KernelChoices(target, backend, kinds.prepared, True, Budget(seconds))
    goals: dict[SearchedGoal, None] = {}
    for kind in kinds.places:
        goals |= dict.fromkeys(_goals(kinds, kind, choices))
    choices.searches = Searches(list(goals), backend.device, seconds, backend.searching, kinds.prepared, ready)
    return KernelsAhead(model, sizes, kinds, choices, errors)


def _goals(kinds: Kinds, kind: EqualRegions, choices: KernelChoices) -> list[SearchedGoal]:
    found: list[SearchedGoal] = []
    for each in kinds.variants[kind]:
        with contained(" ".join(each.operators), lambda what, error: None):
            found += choices.unknown(each.kind)
    return found
