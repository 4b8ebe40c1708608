"""The stage: each distinct region's muGraphs are searched, and the fastest is tried in the model;
the work that gains most for each second comes first (`order.py`).

A kernel that is faster than the runtime on the region alone goes into the model, and stays where
the whole model was measured faster; the result passes the check of every other rewrite. A model
with free dims gets kernels of any sizes. A region without such a form gets one of any number of
samples, or, where the target distinguishes sizes, for the most important sizes, and keeps its
operators for all others. Where no rewrite was faster, kernels are tried in the model after the
passes, in which more of it is in a region: batch normalizations in the weights of convolutions,
say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from taso_mirage.devices.cuda.options import ROUNDED
from taso_mirage.errors import CheckFailed, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.lowering.backend import Backend, here
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import Difference, passes_checker
from taso_mirage.measure.check_inputs import feed
from taso_mirage.measure.child import child
from taso_mirage.measure.session import Session
from taso_mirage.measure.timing import GAIN, Timing
from taso_mirage.pipeline.fuse import alone
from taso_mirage.pipeline.fuse.checked import KernelCheck
from taso_mirage.pipeline.fuse.chosen import ChosenKernels, KernelsEnded
from taso_mirage.pipeline.fuse.comparisons import Comparisons, said_elsewhere
from taso_mirage.pipeline.fuse.forms import RegionForm
from taso_mirage.pipeline.fuse.kinds import found_kinds
from taso_mirage.pipeline.fuse.modes import check_mode
from taso_mirage.pipeline.fuse.neighbours import Neighbours, without
from taso_mirage.pipeline.fuse.order import KernelOrder
from taso_mirage.pipeline.fuse.searches import SearchedGoal, Searches
from taso_mirage.pipeline.fuse.trials import Fused, pays, rounding_nothing, shipped, where_they_run
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.contained import contained
from taso_mirage.regions.free_regions import other_kind
from taso_mirage.report.leftover import Leftover, leftover
from taso_mirage.report.result import PlacedKernels, Result
from taso_mirage.runtime.embed import embed
from taso_mirage.search.config import OFF, SEARCH, Config, Progress, Stop, quiet
from taso_mirage.search.search import Budget
from taso_mirage.system.workers import Workers


def fused(
    result: Result,
    config: Config,
    mode: str,
    progress: Progress = quiet,
    stop: Stop | None = None,
    original: Session | None = None,
    trying: float = 0.0,
    backend: Backend | None = None,
    once: bool = False,
    ready: Workers | None = None,
) -> Result:
    """The result with kernels in it, if the model is faster so; else the result, with a note that
    says why.

    `mode`: "search", or "cached" for the regions that were searched on this machine before. Search
    and choice together take the budget of `config`, and no more than the step in progress when it
    ended; `stop` ends them, and kernels that were measured to be faster until then are kept.
    `original`: a session on it, if there is one; `trying`: the seconds that a model takes to load
    and to compare at least, if they are known; `backend`: that of the target, if it is there;
    `once`: all kernels are tried together, against the original, and no model is loaded for another
    look; `ready`: processes that search, if some were started.
    """
    check_mode(mode, config.measure)
    if mode == OFF or not result.cases:  # without cases nothing can be checked, as a note says already
        return result
    try:
        backend = backend or here(result.target.name)
    except TasoMirageError as error:
        return result.noted(f"no kernels: {error}")
    stop = stop or Stop()
    if stop.asked:
        return result.noted("interrupted: no kernels were tried")
    stop.budget = Budget(config.budget)
    try:
        return _Stage(result, config, mode, backend, progress, stop.budget, original, trying, once, ready).run()
    finally:
        stop.budget = None


class _Stage:
    def __init__(
        self,
        result: Result,
        config: Config,
        mode: str,
        backend: Backend,
        progress: Progress,
        budget: Budget,
        original: Session | None,
        trying: float,
        once: bool,
        ready: Workers | None,
    ) -> None:
        self.result, self.config, self.mode, self.progress, self.budget = result, config, mode, progress, budget
        self.base = result if result.changed or result.normal is None else result.of(result.normal)
        self.target = result.target
        self.backend = backend.rounding() if ROUNDED in self.target.options else backend
        self.sizes = result.workloads[0][0]
        self.before = self.base.model
        self.notes: list[str] = []
        self.made: list[PlacedKernels] = []
        self.kept, self.tried = list[Fused](), list[Fused]()
        self.untried, self.tries = set[EqualRegions](), 0
        self.session: Session | None = None
        self.last: tuple[list[Fused], Model] | None = None
        self.timing: Timing | None = None
        found = found_kinds(self.before, self.sizes, self.backend, self._over, self._report)
        self.base, self.layout, self.left_out = replace(self.base, model=found.model), found.layout, found.left_out
        self.kinds, self.prepared, self.forms, self.possible = found.places, found.prepared, found.forms, found.possible
        self.chosen = ChosenKernels(self.target.name, self.backend, self.prepared, mode == SEARCH, budget)
        self.ended = "the time was over" if not found.places and self._over() else ""
        self.original, self.once = original, once
        self.first: Session | None = None
        self.comparisons = Comparisons(
            self.target,
            [feed(self.result.original, config.inputs, sizes) for sizes, _ in result.workloads],
            [share for _, share in result.workloads],
            config.seconds,
        )
        self.trial, self.ready = max(config.seconds / 2, trying), ready

    def run(self) -> Result:
        model = None
        with closing(self.backend), closing(self._searches()) as self.chosen.searches:
            self.order = self._order()
            with contained("the model", self._report):
                self.order.run(lambda: not self.budget.stop)
                model = self._placed()
        if self.left_out:
            names = ", ".join(sorted(self.left_out))
            why = f"regions with the free dims {names} were left out: no kernel runs them at every size"
            self.notes.append(
                f"{why}; fix its sizes where possible: python -m onnxruntime.tools.make_dynamic_shape_fixed"
            )
        self.notes += ["interrupted: kernels were tried for a part of the regions"] if self.budget.stop else []
        spent = time.monotonic() - self.budget.start
        seconds, left = {**self.result.seconds, "kernels": spent}, self._left(spent)
        self.result, self.base = (replace(each, seconds=seconds, left=left) for each in (self.result, self.base))
        if model is None:
            return self.result.noted(*self.notes, self._none())
        self.notes += [self.ended] if self.ended else []
        with contained("the model", self._report):
            return self._checked(model)
        return self.result.noted(*self.notes)

    def _none(self) -> str:
        """Why there is no kernel."""
        if self.ended:
            return f"no kernels: {self.ended}"
        if not self.kinds:
            return "no kernels: no region of the model can be fused"
        tried = f"{len(self.kinds)} different regions" if len(self.kinds) > 1 else "one region"
        return f"no kernels: {tried} of the model can be fused, but none makes the model measurably faster"

    # ------------------------------------------------------------ kernels

    def _report(self, what: str, error: Exception) -> None:
        """Note an error with a region, which has no type at these sizes, or met a bug."""
        bug = f"internal error, please report it: {type(error).__name__}: {error}"
        said = f"no kernel for {what}: {error if isinstance(error, TasoMirageError) else bug}"
        self.notes += [said] if said not in self.notes else []

    def _order(self) -> KernelOrder:
        known = {kind for kind, found in self.forms.items() if self._is_known(found)}
        return KernelOrder(
            self.possible, known, self._fastest_form, self._tries, lambda: self.trial, self._free, self.once
        )

    def _is_known(self, found: Sequence[RegionForm]) -> bool:
        """Whether the kernels of a kind's forms lie on disk."""
        with contained(" ".join(found[0].operators), self._report):
            return all(self.chosen.is_known(form.kind) for form in found)
        return False

    def _left(self, spent: float) -> Leftover | None:
        """The kinds of regions that there was no time for."""
        estimates = [(self.forms[k][0].operators, len(sites), self.possible[k]) for k, sites in self.kinds.items()]
        untried = [i for i, kind in enumerate(self.kinds) if kind in self.untried or kind in self.order.waiting]
        return leftover(estimates, untried, self.base.seconds_before_after[1], spent)

    def _fastest_form(self, kind: EqualRegions, seconds: float) -> list[Fused]:
        """The form of a kind that saves most, with its kernel; none where none is faster."""
        self.progress("kernels", len(self.kinds) - len(self.order.waiting) - 1, len(self.kinds))
        found = list[Fused]()
        for form in self.forms[kind]:
            try:
                fused = self._tried(form, seconds / len(self.forms[kind]))
                found += [fused] if fused is not None else []
            except KernelsEnded:
                self.untried.add(kind)
            except TasoMirageError:
                continue  # it has no kernel: the operators stay
            except Exception as error:
                self._report(" ".join(form.operators), error)
        return [max(found, key=lambda f: f.saved)] if found else []

    def _over(self) -> bool:
        return self.mode == SEARCH and child().deadline.left() <= 0

    def _late(self) -> bool:
        """Whether less time is left than a set of kernels takes, to try and to check."""
        return self._free() < self.trial

    def _free(self) -> float:
        """Seconds for kernels and trials: a check, which takes about as long as a trial, follows.
        Kernels that are known have all the time that there is."""
        left = self.budget.left() if self.mode == SEARCH else math.inf
        if self.once and self.config.elsewhere and self.base.model is not self.before:
            left -= self.trial  # of what runs elsewhere, which nobody has measured
        return min(left, child().deadline.last() - self.trial)

    def _in_time(self) -> None:
        """Raise KernelsEnded where a kernel would be measured that nobody has the time to try."""
        if self._late():
            raise KernelsEnded

    def _tried(self, form: RegionForm, seconds: float) -> Fused | None:
        """A kind of region with its kernel, if that is faster than the operators."""
        kind, sites = form.kind, form.sites
        try:
            chosen = self.chosen.fastest(kind, seconds)
        except TasoMirageError:
            if kind.free is None:
                raise
            chosen = None
        if chosen is None:
            return self._otherwise(form, seconds)
        self._in_time()
        made, opsets = self.prepared.get(kind.goal), self.base.model.opsets
        place = sites[0], chosen[1], opsets, self.comparisons.clock(), form.several or made is not None
        times = alone.region_seconds(kind.whole, *place)
        before, after = times or (1.0, 1.0)
        worth = after < before * (1.0 if made is None else made.slack)
        self._in_time()
        if kind.free is not None and alone.slower_elsewhere(self.sizes, *place):
            return self._otherwise(form, seconds) if worth else None
        self.tried.append(Fused(form.operators, tuple(sites), *chosen, (before - after) * len(sites), made))
        return self.tried[-1] if worth else None

    def _otherwise(self, form: RegionForm, seconds: float) -> Fused | None:
        """The kind with another kernel than one of free sizes, which is none or is slower."""
        kind = form.kind
        other = None if kind.free is None else other_kind(kind, form.sites[0], self.backend.batched)
        return None if other is None else self._tried(replace(form, kind=other), seconds / 2)

    def _searches(self) -> Searches:
        """The searches for kinds whose kernels do not lie on disk."""
        goals: dict[SearchedGoal, None] = {}
        for form in (form for each in self.forms.values() for form in each if self.mode == SEARCH):
            with contained(" ".join(form.operators), self._report):
                goals |= dict.fromkeys(self.chosen.unknown(form.kind))
        seconds, device = self.budget.left() / 3, self.backend.device
        return Searches(list(goals), device, seconds, self.backend.searching, self.prepared, self.ready)

    # ------------------------------------------------------------ the model

    def _placed(self) -> Model | None:
        """The model with the kinds that make it faster as a whole; None where none does."""
        done = len(self.kinds) - len(self.order.waiting) - len(self.untried)
        if done < len(self.kinds) and not self.budget.stop:
            self.ended = f"the time was over after {done} of {len(self.kinds)} kinds of regions"
        if self.order.made and not self.tries and not self.budget.stop:
            self.notes.append("the time was over before a set of kernels was tried in the model")
        kept = self.kept if self.session is None or self.once else self._joined(self.kept, self.session)
        self.kept = kept = kept if self.once else self._shipped(kept)
        return self._with(kept) if kept else None

    def _tries(self, trial: Sequence[Fused]) -> bool:
        """Whether the model is faster with these kinds as well, which stay then."""
        self.progress("kernels in the model", self.tries, self.tries + 1)
        if self.budget.stop or child().deadline.last() < self.trial:
            return False
        start, self.tries = time.monotonic(), self.tries + 1
        trial = self._shipped(trial) if self.once else trial
        if self.session is None or self.session.target != self.comparisons.clock():
            self.session = self._beside()
        if (tried := self._faster(self.session, self.kept, trial)) is not None:
            self.session, self.kept = tried, [*self.kept, *trial]
        self.trial = time.monotonic() - start
        return tried is not None

    def _shipped(self, kinds: Sequence[Fused]) -> list[Fused]:
        """The kinds as they are written."""
        return shipped(kinds, self.backend, self._report) if self.config.elsewhere else list(kinds)

    def _beside(self) -> Session:
        """A session on the model with which the next one is compared: the model so far, or, where
        there is one comparison alone, the original."""
        if self.once and not self.kept:
            self.first = runtime.original(self.result.original, self.comparisons.clock())
            return self.first
        return self.comparisons.opened(self._with(self.kept) if self.kept else self.before)

    @property
    def _gained(self) -> float:
        """How many times as fast as the original the model is without kernels."""
        timing = self.result.timing if self.result.changed else None
        return 1.0 if timing is None else timing.ratio

    def _faster(self, session: Session, kept: Sequence[Fused], trial: Sequence[Fused]) -> Session | None:
        """The model with these kinds as well, if it is faster so."""
        try:
            model = self._with([*kept, *trial])
            tried = runtime.open_in_child(model, session.target)
            last = self.once and not kept
            timing = self.comparisons.short(session, tried)
        except TasoMirageError:
            return None  # a region that cannot be one node
        except Exception as error:
            self._report(" and ".join(" ".join(kind.operators) for kind in trial), error)
            return None
        gained = self._gained if last else 1.0
        if not (pays(timing, trial) and timing.ratio >= gained):
            return None  # and no session: a large model is not to be there more often than it must
        self.last, self.timing = ([*kept, *trial], model), timing if last else None
        stored = {x for kind in trial for x in kind.turned}
        placed = PlacedKernels(tuple((k.operators, len(k.sites)) for k in trial), timing.ratio / gained, len(stored))
        self.made.append(placed)
        return tried

    def _joined(self, kept: list[Fused], session: Session) -> list[Fused]:
        """The kinds that are kept, of which neighbours are one kernel where that makes the model
        faster: all of them, else each."""
        try:
            made = Neighbours(self.base.model, self.tried).together(self.backend)
        except TasoMirageError:
            return kept
        except Exception as error:
            self._report("neighbours together", error)
            return kept
        for trial in [made, *([each] for each in made if len(made) > 1)]:
            if not trial or self.budget.stop or self.budget.left() < self.trial:
                break
            rest = without(kept, [place for _, places in trial for place in places])
            if (tried := self._faster(session, rest, [kind for kind, _ in trial])) is not None:
                session, kept = tried, [*rest, *[kind for kind, _ in trial]]
                if trial is made:
                    break
        return kept

    def _with(self, kinds: Sequence[Fused]) -> Model:
        """The model with these kinds; with those tried last that stay the same object, on which
        there is a session."""
        if self.last is not None and self.last[0] == list(kinds):
            return self.last[1]
        made = embed(self.base.model, [region for kind in kinds for region in kind.regions], self.sizes)
        return made if self.layout is None else self.layout.without_rest(made)

    def _more(self) -> bool:
        """Whether there is time for new sessions on two models."""
        return not (self.once or self.budget.stop or self._late())

    def _checked(self, model: Model) -> Result:
        """The result with the model, if it passes the check and is faster than the original."""
        result = self.result
        differences = self._differences(model)
        if (bad := next((d for d in differences if not d.passed), None)) is not None:
            why = CheckFailed(f"the check failed with kernels ({bad}): they are left out, please report it")
            return replace(result, failure=why) if result.failure is None else result.noted(str(why))
        timing = self.timing or self._compared(model)
        if not (timing.as_fast and timing.ratio >= GAIN):  # each kind was faster already
            return result.noted(f"no kernels: with them the model is {timing.ratio:.3f} times as fast as the original")
        if self.config.elsewhere:
            as_fast, said = self._elsewhere(model)
            if not as_fast:
                return result.noted(said)
            self.notes.append(said)
        self.notes += [] if self.backend.batched else where_they_run(self.kept, self.sizes)
        made = replace(
            self.base,
            model=model,
            changed=True,
            kept=None,
            kernels=tuple(self.made),
            timing=timing,
            differences=tuple(differences),
            records={kind.kernel.entry: kind.record for kind in self.kept},
            unfused=self.before,
        )
        return made.noted(*self.notes)

    def _differences(self, model: Model) -> list[Difference]:
        """The differences of the model with its kernels, and without their library where it is for
        other machines, too."""
        kinds = rounding_nothing(self.kept, self.backend)
        exact, result = self.kept if kinds is None else kinds, self.result
        check = KernelCheck(result.original, result.cases, self.target, self.config.elsewhere)
        session = runtime.open_in_child(model, self.target, check=passes_checker(result.original))
        regions = None
        if check.by_regions and self.layout is None:
            placed = [region for kind in exact for region in kind.regions]
            regions = check.regions(self.base.model, placed, self.sizes, lambda: child().deadline.last() <= 0)
        if any(not each.passed for each in regions or ()):
            return regions or []
        model = model if kinds is None else self._with(kinds)
        session = session if kinds is None else runtime.open_in_child(model, self.target)
        whole = check.whole(model, session)
        return [*regions, *whole] if regions is not None else [*whole, *check.without_library(model)]

    def _compared(self, model: Model) -> Timing:
        """The times of the original and of the model."""
        original = self.original or runtime.original(self.result.original, self.target)
        sessions = original, runtime.open_in_child(model, self.target)
        return self.comparisons.whole(self.result.original, model, sessions, self._more)

    def _elsewhere(self, model: Model) -> tuple[bool, str]:
        """Whether the model is as fast as the original where its kernels' library is not, and the
        line that says so. Its functions are the operators of the model before, which was measured.
        """
        known = self.once and self.base.model is self.before and not any(k.turned for k in self.kept)
        if known and not any(region.free for kind in self.kept for region in kind.regions):
            return True, said_elsewhere(True, self._gained)
        there = model.without_library()
        if self.first is not None:
            timing = self.comparisons.short(self.first, runtime.open_in_child(there, self.first.target))
            return timing.as_fast, said_elsewhere(timing.as_fast, timing.ratio)
        original = self.original or runtime.original(self.result.original, self.target)
        sessions = original, runtime.open_in_child(there, self.target)
        return self.comparisons.elsewhere(self.result.original, there, sessions, self._more)
