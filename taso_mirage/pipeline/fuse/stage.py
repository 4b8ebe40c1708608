"""The stage of kernels: the muGraphs of each distinct region are searched, and the fastest is tried
in the model; the work with the largest gain per second comes first (`order.py`).

A kernel that is faster than the runtime on the region alone goes into the model, and stays if the
whole model was measured faster; the result passes the same check as every other rewrite. A model
with free dims gets kernels of any sizes. A region without such a form gets a kernel for any number
of samples, or, if the target distinguishes sizes, for the most important sizes, and keeps its
operators for all others. If no rewrite was faster, kernels are tried in the model after the passes,
of which regions cover more: batch normalizations are in the weights of convolutions there, for
example.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from taso_mirage.devices.cuda.options import ROUNDED
from taso_mirage.errors import CheckFailed, OutOfTime, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.lowering.backend import Backend, here
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import Difference, passes_checker
from taso_mirage.measure.check_inputs import feed
from taso_mirage.measure.child import child
from taso_mirage.measure.joint import opens_slowly
from taso_mirage.measure.session import Session
from taso_mirage.measure.timing import GAIN, Timing, as_fast, pooled
from taso_mirage.measure.whole import BY_RUNS
from taso_mirage.pipeline.fuse.ahead import KernelsAhead
from taso_mirage.pipeline.fuse.choices import KernelChoices
from taso_mirage.pipeline.fuse.comparisons import Comparisons, elsewhere_note
from taso_mirage.pipeline.fuse.kernel_check import KernelCheck
from taso_mirage.pipeline.fuse.kernel_maker import KernelMaker
from taso_mirage.pipeline.fuse.kinds import find_kinds
from taso_mirage.pipeline.fuse.model_trials import ModelTrials
from taso_mirage.pipeline.fuse.modes import check_mode
from taso_mirage.pipeline.fuse.order import KernelOrder, StageTime
from taso_mirage.pipeline.fuse.region_kernels import (
    RegionKernel,
    kernel_savings,
    pays,
    rounding_nothing,
    where_they_run,
)
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.contained import contained
from taso_mirage.report.leftover import Leftover, leftover
from taso_mirage.report.result import Result
from taso_mirage.runtime.embed import EmbeddedRegion
from taso_mirage.search.config import OFF, SEARCH, Config, Progress, Stop, quiet
from taso_mirage.search.search import Budget
from taso_mirage.system.terminal import plural
from taso_mirage.system.workers import Workers

NOT_FASTER = "no kernels: the model is {:.3f} times as fast as the original with them, and {:.3f} times without them"
HERE_ALONE = "kernels run on GPUs as this one alone: there was no time to compile them for others"
CHECKED_KIND, CHECKED_SLOWLY = 0.4, 0.8
"""Seconds in which a kernel is compared on the inputs of its regions, and where sessions open
slowly."""


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
    ahead: KernelsAhead | None = None,
) -> Result:
    """The result with kernels in it, if the model is faster with them; else the result, with a note
    of the reason.

    `mode`: "search", or "cached" for the regions that were searched on this machine before. Search
    and choice together take the budget of `config`, and end with the step in progress after it;
    `stop` ends them, and kernels that were measured to be faster until then are kept. `original`:
    an open session on the original, if any; `trying`: the least seconds that a model takes to load
    and to compare, if known; `backend`: that of the target, if any; `once`: all kernels are tried
    together, against the original, and no model is loaded for another comparison; `ready`: started
    processes for searches, if any; `ahead`: kernels of this model, if it is the expected one.
    """
    check_mode(mode, config.measure)
    if mode == OFF or not result.cases:  # without cases nothing can be checked; a note says so already
        return result
    try:
        backend = backend or here(result.target)
    except TasoMirageError as error:
        return result.noted(f"no kernels: {error}")
    stop = stop or Stop()
    if stop.asked:
        return result.noted("interrupted: no kernels were tried")
    stop.budget = Budget(config.budget)
    spent = StageTime(stop.budget, mode == SEARCH, trying or config.seconds / 2)
    try:
        return _Stage(result, config, backend, progress, spent, original, once, ahead).run(ready)
    finally:
        stop.budget = None


class _Stage:
    def __init__(
        self,
        result: Result,
        config: Config,
        backend: Backend,
        progress: Progress,
        spent: StageTime,
        original: Session | None,
        once: bool,
        ahead: KernelsAhead | None,
    ) -> None:
        self.result, self.config, self.progress, self.time, self.original = result, config, progress, spent, original
        self.notes: list[str] = []
        base = result if result.changed or result.normal is None else result.of(result.normal)
        sizes = result.workloads[0][0]
        self.rounding = ROUNDED in result.target.options
        backend = backend.rounding() if self.rounding else backend
        self.ahead = ahead if ahead is not None and ahead.fits(base.model, sizes, backend) else None
        if self.ahead is None:
            kinds = find_kinds(base.model, sizes, backend, spent.over, self._report)
            choices = KernelChoices(result.target.name, backend, kinds.prepared, spent.searching, spent.budget)
        else:
            kinds, choices = self.ahead.taken(spent.budget, self._report)
        if once and result.cases[0].against == BY_RUNS:
            spent.of_a_kind = CHECKED_SLOWLY if opens_slowly(result.target) else CHECKED_KIND
        self.unmeasured = once and result.changed and result.timing is None
        compared = self.unmeasured or (config.elsewhere and not kinds.has_operators_of(base.model))
        spent.reserve = once and compared
        self.base, self.kinds = replace(base, model=kinds.model), kinds
        self.ended = "the time was over" if not kinds.places and spent.over() else ""
        feeds = [feed(result.original, config.inputs, sizes) for sizes, _ in result.workloads]
        comparisons = Comparisons(base.target, feeds, [share for _, share in result.workloads], config.seconds)
        self.maker = KernelMaker(
            kinds, choices, backend, spent, sizes, comparisons.clock, self._report, config.elsewhere
        )
        self.trials = ModelTrials(
            result,
            base.model,
            kinds,
            sizes,
            backend,
            comparisons,
            spent,
            self._report,
            config.elsewhere,
            once,
            original,
        )

    def run(self, ready: Workers | None) -> Result:
        try:
            return self._run(ready)
        finally:
            self.maker.backend.end_shipping()

    def _run(self, ready: Workers | None) -> Result:
        model, maker, budget = None, self.maker, self.time.budget
        searches = maker.choices.searches or maker.searches(ready)
        with closing(maker.backend), closing(searches) as maker.choices.searches, self._other_workers():
            self.order = KernelOrder(
                self.kinds.possible,
                maker.known(),
                self._first,
                self._makes,
                self._tries,
                lambda: self.time.trial,
                self.time.left,
                self.trials.once,
            )
            with contained("the model", self._report):
                self.order.run(lambda: not budget.stop)
                self._note_end()
                model = self.trials.model(maker.made)
        if self.kinds.left_out:
            names = ", ".join(sorted(self.kinds.left_out))
            why = f"regions with the free dims {names} were left out: no kernel runs them at every size"
            self.notes.append(
                f"{why}; fix its sizes where possible: python -m onnxruntime.tools.make_dynamic_shape_fixed"
            )
        self.notes += ["interrupted: kernels were tried for a part of the regions"] if budget.stop else []
        spent = time.monotonic() - budget.start
        seconds, left = {**self.result.seconds, "kernels": spent}, self._left(spent)
        self.result, self.base = (replace(each, seconds=seconds, left=left) for each in (self.result, self.base))
        if model is None:
            return self.result.noted(*self.notes, self._none())
        self.notes += [self.ended] if self.ended else []
        with contained("the model", self._report):
            return self._check(model)
        return self.result.noted(*self.notes)

    @contextmanager
    def _other_workers(self) -> Iterator[None]:
        """Other workers tune kernels while the block runs."""
        asked = self.maker.other_workers(self.result.target, self.rounding)
        self.maker.choices.others = asked
        try:
            yield
        finally:
            if asked is not None:
                asked.close()
                if asked.taken:
                    self.notes.append(f"other workers tuned {plural(asked.taken, 'kernel')}")

    def _first(self) -> Mapping[EqualRegions, RegionKernel]:
        return self.maker.first(lambda done: self.progress("kernels", done, len(self.kinds.places)))

    def _makes(self, kind: EqualRegions, seconds: float) -> list[RegionKernel]:
        self.progress("kernels", self._done(), len(self.kinds.places))
        return self.maker.fastest(kind, seconds)

    def _tries(self, trial: Sequence[RegionKernel]) -> bool:
        self.progress("kernels in the model", self.trials.count, self.trials.count + 1)
        return self.trials.tries(trial)

    def _done(self) -> int:
        """The number of kinds that do not wait for a kernel any more."""
        return len(self.kinds.places) - len(self._waiting())

    def _waiting(self) -> set[EqualRegions]:
        """The kinds for which there was no time."""
        return {*self.maker.untried, *self.order.waiting} - self.maker.predicted.keys()

    def _note_end(self) -> None:
        """Note that the time ended before all kernels were made and tried."""
        done, count = self._done(), len(self.kinds.places)
        if done < count and not self.time.budget.stop:
            self.ended = f"the time was over after {done} of {count} kinds of regions"
        if self.order.made and not self.trials.count and not self.time.budget.stop:
            self.notes.append("the time was over before a set of kernels was tried in the model")

    def _left(self, spent: float) -> Leftover | None:
        """The kinds of regions for which there was no time."""
        kinds, waiting = self.kinds, self._waiting()
        estimates = [
            (kinds.variants[k][0].operators, len(sites), kinds.possible[k]) for k, sites in kinds.places.items()
        ]
        untried = [i for i, kind in enumerate(kinds.places) if kind in waiting]
        return leftover(estimates, untried, self.base.seconds_before_after[1], spent)

    def _none(self) -> str:
        """The reason for which there is no kernel."""
        if self.ended:
            return f"no kernels: {self.ended}"
        if not self.kinds.places:
            return "no kernels: no region of the model can be fused"
        tried = f"{len(self.kinds.places)} different regions" if len(self.kinds.places) > 1 else "one region"
        return f"no kernels: {tried} of the model can be fused, but none makes the model measurably faster"

    def _report(self, what: str, error: Exception) -> None:
        """Note an error with a region, which has no type at these sizes, or found a bug."""
        bug = f"internal error, please report it: {type(error).__name__}: {error}"
        said = f"no kernel for {what}: {error if isinstance(error, TasoMirageError) else bug}"
        self.notes += [said] if said not in self.notes else []

    def _check(self, model: Model) -> Result:
        """The result with the model, if it passes the check and is faster than the original."""
        result = self.result
        there = model.without_library()
        differences = self._differences(model, there)
        if (bad := next((d for d in differences if not d.passed), None)) is not None:
            why = CheckFailed(f"the check failed with kernels ({bad}): they are left out, please report it")
            return replace(result, failure=why) if result.failure is None else result.noted(str(why))
        timing = self.trials.timing or self._compare(model)
        if not (timing.as_fast and timing.ratio >= GAIN):  # each kind alone was already faster
            return result.noted(f"no kernels: with them the model is {timing.ratio:.3f} times as fast as the original")
        if self.config.elsewhere or self.unmeasured:
            without, ratio = self._without_library(there)
            if self.config.elsewhere and not without:
                return result.noted(elsewhere_note(False, ratio))
            if self.unmeasured:
                gain = timing.ratio / ratio if timing.ratio >= ratio else self._gain_over(there, model)
                if gain < 1:
                    return result.noted(NOT_FASTER.format(timing.ratio, ratio))
                self.trials.set_gain(gain)
            self.notes += [elsewhere_note(True, ratio)] if self.config.elsewhere else []
        self.notes += [] if self.trials.backend.batched else where_they_run(self.trials.kept, self.trials.sizes)
        try:
            model = self.trials.written(model)
        except OutOfTime:
            self.notes.append(HERE_ALONE)
        made = replace(
            self.base,
            model=model,
            changed=True,
            kept=None,
            kernels=tuple(self.trials.placed),
            timing=timing,
            differences=tuple(differences),
            records={kind.kernel.entry: kind.record for kind in self.trials.kept},
            unfused=self.trials.before,
        )
        return made.noted(*self.notes)

    def _differences(self, model: Model, there: Model) -> list[Difference]:
        """The differences of the model with its kernels, and those of the model `there` is without
        their library, where it is for other machines, too: of its regions, or of the whole model
        where that is loaded for its times."""
        trials, result, loads = self.trials, self.result, self.config.elsewhere and not self._known_without_library()
        kernels = rounding_nothing(trials.kept, trials.backend)
        target = self.base.target
        check = KernelCheck(result.original, result.cases, target, self.config.elsewhere and not loads)
        session = runtime.open_in_child(model, target, check=passes_checker(result.original))
        placed = [region for each in kernels or trials.kept for region in each.regions]
        regions, every = self._regional(check, placed) if check.by_regions else ([], False)
        if any(not each.passed for each in regions):
            return regions
        model = model if kernels is None else trials.with_kernels(kernels)
        session = session if kernels is None else runtime.open_in_child(model, target)
        found = [*regions, *check.whole(model, session)]
        if not loads and (every or not self.config.elsewhere):
            return found
        trials.comparisons.held.append(runtime.open_in_child(there, target))  # which may be compared next
        return [*found, *check.whole(there, trials.comparisons.held[-1], library=False)]

    def _regional(self, check: KernelCheck, placed: Sequence[EmbeddedRegion]) -> tuple[list[Difference], bool]:
        """The differences of the regions with kernels, and whether every region was compared:
        convolutions in the terms of forms are compared in the whole model only."""
        kinds = self.trials.kinds
        model, own = kinds.model, list(placed)
        if kinds.layout is not None:
            model = self.trials.before
            own = [r for each in placed if (r := kinds.layout.in_original(each)) is not None]
        found = check.regions(model, own, self.trials.sizes, child().deadline.last) if own else None
        every = found is not None and len(own) == len(placed)
        if not every:
            self.notes.append("some kernels were compared only in the whole model, not in float64")
        return found or [], every

    def _compare(self, model: Model) -> Timing:
        """The times of the original and of the model."""
        return self.trials.comparisons.whole(self.result.original, model, self._both(model), self._more)

    def _known_without_library(self) -> bool:
        """Whether the model without its kernels' library has the operators of a measured one."""
        trials = self.trials
        same = trials.once and not self.unmeasured and trials.kinds.has_operators_of(trials.before)
        known = same and not any(k.turned for k in trials.kept)
        return known and not any(region.free for kind in trials.kept for region in kind.regions)

    def _without_library(self, there: Model) -> tuple[bool, float]:
        """Whether the model is as fast as the original without its kernels' library, as it is
        `there`, and how many times as fast. Where one look leaves that open, there is another one
        if there is time."""
        trials = self.trials
        if self._known_without_library():
            return True, trials.gained
        if trials.first is not None:
            without = trials.comparisons.beside(there, trials.first)
            timing = trials.comparisons.short(trials.first, without, as_fast)
            if not (timing.as_fast or timing.slower) and child().deadline.last() > self.time.trial:
                timing = pooled([timing, trials.comparisons.short(trials.first, without, as_fast)])
        else:
            timing = trials.comparisons.whole(self.result.original, there, self._both(there), self._more)
        return timing.as_fast, timing.ratio

    def _gain_over(self, there: Model, model: Model) -> float:
        """How many times as fast the model is as the one without its library, if both run in turn:
        each ran in turn with the original, and the machine varies between two comparisons. 0 where
        the kernels do not pay, or without time."""
        trials = self.trials
        if trials.first is None or child().deadline.last() < self.time.trial:
            return 0.0
        without, with_kernels = (trials.comparisons.beside(each, trials.first) for each in (there, model))
        timing = trials.comparisons.short(without, with_kernels)
        return timing.ratio if pays(timing, kernel_savings(trials.kept)) else 0.0

    def _both(self, model: Model) -> tuple[Session, Session]:
        """Sessions on the original and on a model."""
        original = self.original or runtime.original(self.result.original, self.base.target.plain)
        return original, runtime.open_in_child(model, self.base.target)

    def _more(self) -> bool:
        """Whether there is time to open sessions on two models."""
        return not (self.trials.once or self.time.budget.stop or self.time.late())
