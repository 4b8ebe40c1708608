"""Trials of kernels in the model: a kernel stays if the whole model was measured faster with it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.lowering.backend import Backend
from taso_mirage.measure import session as runtime
from taso_mirage.measure.child import child
from taso_mirage.measure.session import Session
from taso_mirage.measure.timing import Timing
from taso_mirage.pipeline.fuse.comparisons import Comparisons
from taso_mirage.pipeline.fuse.kinds import Kinds
from taso_mirage.pipeline.fuse.neighbours import Neighbours, without
from taso_mirage.pipeline.fuse.order import StageTime
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel, kernel_savings, pays, ship, without_places
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.regions.contained import ErrorReport
from taso_mirage.report.result import PlacedKernels, Result
from taso_mirage.runtime.embed import embed


@dataclass(slots=True)
class ModelTrials:
    """Trials of kernels in the model `before` them. `kept` are the kernels that stay, `placed` each
    set of them with its gain. With `once` all are tried together against the original, whose
    session is `first`: the `open` one, if there is one. `timing` are its times against the model.
    With `elsewhere` the kernels are those for all machines."""

    result: Result
    before: Model
    kinds: Kinds
    sizes: SymbolSizes
    backend: Backend
    comparisons: Comparisons
    time: StageTime
    report: ErrorReport
    elsewhere: bool
    once: bool
    open: Session | None = None
    kept: list[RegionKernel] = field(default_factory=list)
    placed: list[PlacedKernels] = field(default_factory=list)
    count: int = 0
    first: Session | None = None
    timing: Timing | None = None
    _session: Session | None = None
    _last: tuple[list[RegionKernel], Model] | None = None

    def tries(self, trial: Sequence[RegionKernel]) -> bool:
        """Whether the model is faster with these kernels as well, in place of others of the same
        regions; if so, they stay."""
        if self.time.budget.stop or child().deadline.last() < self.time.trial:
            return False
        start, self.count = time.monotonic(), self.count + 1
        if self._session is None or self._session.target.plain != self.comparisons.clock().plain:
            self._session = self._beside()
        rest = without_places(self.kept, trial)
        if (tried := self._faster(self._session, rest, trial)) is not None:
            self._session, self.kept = tried, [*rest, *trial]
        self.time.trial = time.monotonic() - start
        return tried is not None

    def model(self, made: Sequence[RegionKernel]) -> Model | None:
        """The model with the kernels that make it faster as a whole, with neighbours among all
        `made` kernels together; None if no kernel does."""
        if not self.once:
            kept = self.kept if self._session is None else self._join(self.kept, self._session, made)
            self.kept = self._ship(kept)
        return self.with_kernels(self.kept) if self.kept else None

    def with_kernels(self, kernels: Sequence[RegionKernel]) -> Model:
        """The model with these kernels; for the kernels tried last it is the same object, on which
        there is a session."""
        if self._last is not None and self._last[0] == list(kernels):
            return self._last[1]
        made = embed(self.kinds.model, [region for kernel in kernels for region in kernel.regions], self.sizes)
        return made if self.kinds.layout is None else self.kinds.layout.without_rest(made)

    def written(self, model: Model) -> Model:
        """The checked model with its kernels in the form in which they are written: with code for
        other machines beside that for this one. All kernels of a model that is tried `once` are
        compiled for others until now, beside its trial and its check. A kernel that cannot be
        stays as it is.

        Raises OutOfTime.
        """
        if not (self.once and self.elsewhere):
            return model
        shipped = {each.sites: each for each in self._ship(self.kept)}
        kept = [shipped.get(each.sites, each) for each in self.kept]
        if [each.kernel for each in kept] == [each.kernel for each in self.kept]:
            return model
        self.kept = kept
        return self.with_kernels(kept)

    def set_gain(self, gain: float) -> None:
        """Set the gain of all sets together over the model without kernels, which was not measured
        before: the first set ran in turn with the original."""
        others = prod(each.gain for each in self.placed[1:])
        self.placed[0] = replace(self.placed[0], gain=gain / others)

    @property
    def gained(self) -> float:
        """The gain of the model without kernels over the original; 1 where it was not measured."""
        timing = self.result.timing if self.result.changed else None
        return 1.0 if timing is None else timing.ratio

    def _ship(self, kernels: Sequence[RegionKernel]) -> list[RegionKernel]:
        """The kernels in the form in which they are written."""
        return ship(kernels, self.backend, self.report) if self.elsewhere else list(kernels)

    def _beside(self) -> Session:
        """A session on the model with which the next one is compared: the model so far, or the
        original if there is a single comparison."""
        if self.once and not self.kept:
            clock = self.comparisons.clock().plain
            known = self.open if self.open is not None and self.open.target == clock else None
            self.first = known or runtime.original(self.result.original, clock)
            return self.first
        return self.comparisons.opened(self.with_kernels(self.kept) if self.kept else self.before)

    def _faster(self, session: Session, kept: Sequence[RegionKernel], trial: Sequence[RegionKernel]) -> Session | None:
        """The model with these kernels as well, if that is faster."""
        try:
            model = self.with_kernels([*kept, *trial])
            tried = self.comparisons.beside(model, session)
            last = self.once and not kept
            timing = self.comparisons.short(session, tried)
        except TasoMirageError:
            return None  # a region that cannot be one node
        except Exception as error:
            self.report(" and ".join(" ".join(kernel.operators) for kernel in trial), error)
            return None
        gained = self.gained if last else 1.0
        saved = kernel_savings([*kept, *trial]) - (0.0 if last else kernel_savings(self.kept))
        if not (pays(timing, saved) and timing.ratio >= gained):
            return None  # the session ends here, so that a large model is not in memory longer than necessary
        self._last, self.timing = ([*kept, *trial], model), timing if last else None
        stored = {x for kernel in trial for x in kernel.turned}.difference(self.kinds.model.nodes())
        places = tuple((kernel.operators, len(kernel.sites)) for kernel in trial)
        self.placed.append(PlacedKernels(places, timing.ratio / gained, len(stored)))
        return tried

    def _join(self, kept: list[RegionKernel], session: Session, tried: Sequence[RegionKernel]) -> list[RegionKernel]:
        """The kept kernels, with neighbours as one kernel where that makes the model faster: all of
        them together, else each alone."""
        try:
            made = Neighbours(self.kinds.model, tried).together(self.backend)
        except TasoMirageError:
            return kept
        except Exception as error:
            self.report("neighbours together", error)
            return kept
        for trial in [made, *([each] for each in made if len(made) > 1)]:
            if not trial or self.time.budget.stop or self.time.budget.left() < self.time.trial:
                break
            rest = without(kept, [place for _, places in trial for place in places])
            if (faster := self._faster(session, rest, [kernel for kernel, _ in trial])) is not None:
                session, kept = faster, [*rest, *[kernel for kernel, _ in trial]]
                if trial is made:
                    break
        return kept
