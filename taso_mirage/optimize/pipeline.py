"""The main job: load, passes, search, measure, check, and never a slower or a different model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from taso_mirage import library
from taso_mirage.equation import Equation, work_terms
from taso_mirage.errors import CheckFailed, TasoMirageError
from taso_mirage.model import Model
from taso_mirage.onnx_io.kernels import dropped
from taso_mirage.optimize import remote
from taso_mirage.optimize import session as runtime
from taso_mirage.optimize.cache import CostCache, cache_path, proofs_path
from taso_mirage.optimize.check import Case, Difference, cases, compare, first_bad, repeatable
from taso_mirage.optimize.child import LIMIT, child
from taso_mirage.optimize.cost import Workloads
from taso_mirage.optimize.draws import feed
from taso_mirage.optimize.mutations import NONE, SHARE, Mutations, Store, mutations
from taso_mirage.optimize.native import Arrays
from taso_mirage.optimize.passes import runtime_specific
from taso_mirage.optimize.reference import NoReference
from taso_mirage.optimize.result import Result
from taso_mirage.optimize.rewriter import Candidate, Rewriter, shares
from taso_mirage.optimize.saturate import saturate_part
from taso_mirage.optimize.search import Budget, Statistics, Strategy, search_part
from taso_mirage.optimize.session import Session
from taso_mirage.optimize.shapes import workloads
from taso_mirage.optimize.steps import Step, replay
from taso_mirage.optimize.survival import surviving
from taso_mirage.optimize.target import CPU, LAYOUT, Target
from taso_mirage.optimize.timing import Timing, compared
from taso_mirage.optimize.weights import INITIALIZERS, fold_weights
from taso_mirage.text import laws
from taso_mirage.verify.proofs import Proofs

KEPT = "the original's graph is kept"
"""How a note ends that says why nothing was changed."""
FALLEN_BACK = "the steps before the first bad one"
LOOKS = 3
"""A gain that may be chance is measured so often, at most."""
PROMISING = 0.98
"""Of the cost after the passes: a candidate that is predicted to cost less is not given up for one measurement."""
KEEP_BELOW = 1.01
"""A candidate must be measured this many times faster than the original, or the original is kept."""


@dataclass(frozen=True, slots=True)
class Config:
    """The options of `optimize`. `shapes` are sets of named sizes, each with its weight; `inputs` are the user's own for the check
    and the timing; `scheduler` is the address of a Dask scheduler whose workers measure operators (whole models are measured here);
    `partial`: whether mutants with corrections take part in the search; `run_limit`: seconds that the runtime may take for one load,
    run or measurement."""

    budget: float = 60.0
    alpha: float = 1.05
    measure: bool = True
    seconds: float = 6.0
    shapes: Workloads = (({}, 1.0),)
    inputs: tuple[Arrays, ...] = ()
    default_size: int = 8
    cache: Path | None = None
    target: Target = CPU
    strategy: str = "best-first"
    portable: bool = False
    scheduler: str | None = None
    partial: bool = True
    run_limit: float = LIMIT


STRATEGIES: Mapping[str, Strategy] = {"best-first": search_part, "saturate": saturate_part}


class Stop:
    """Set by an interrupt: the running stage and all later ones end early, and the best found so far goes on to the measurement and the
    check. Before the first search there is nothing to keep (`began`)."""

    def __init__(self) -> None:
        self._budget: Budget | None = None
        self.began = self.asked = False

    @property
    def budget(self) -> Budget | None:
        """Of the stage that runs; None between stages."""
        return self._budget

    @budget.setter
    def budget(self, budget: Budget | None) -> None:
        self._budget = budget
        if budget is not None:
            self.began = True
            budget.stop |= self.asked

    def __call__(self) -> None:
        self.asked = True
        if self._budget is not None:
            self._budget.stop = True


Progress = Callable[[str, int, int], None]


def optimize(
    model: Model, config: Config, progress: Progress = lambda stage, done, total: None, stop: Stop | None = None
) -> Result:
    """A faster model that computes the same, or the original. Every step is an equation; the result is checked."""
    child().limit = config.run_limit
    with measuring(config) as (cache, executor):
        return _Job(model, config, progress, stop or Stop(), cache, executor).run()


@contextmanager
def measuring(config: Config) -> Iterator[tuple[CostCache, Executor | None]]:
    """The cache of measurements, and the executor whose machines measure (None: this one)."""
    there = config.scheduler if config.measure else None
    path = (config.cache or cache_path()) if config.measure else None
    with (
        remote.executor(there, config.target) if there is not None else nullcontext() as executor,
        closing(CostCache(path)) as cache,
    ):
        yield cache, executor


class _Job:
    def __init__(
        self, model: Model, config: Config, progress: Progress, stop: Stop, cache: CostCache, executor: Executor | None
    ) -> None:
        self.config, self.progress, self.stop, self.cache = config, progress, stop, cache
        self.workloads = _workloads(model, config)
        self.sizes = self.workloads[0][0]
        self.model = replace(model, sizes=self.sizes)
        self.target, self.executor = config.target, executor
        self.weights = dict(model.weights)  # with every folded one, so that any prefix of the steps can be replayed
        portable = config.portable or "com.microsoft" not in config.target.domains
        self.equations = tuple(e for e in rules() if not (portable and runtime_specific(e)))
        self.proofs = Proofs(proofs_path(config.cache))
        self.rewriter = self._rewriter(self.target)
        self.cost = self.rewriter.cost
        self.feeds: list[Arrays] = []
        self.seconds: dict[str, float] = {}
        said = dropped(model.header)
        self.notes: list[str] = [] if said is None else [said]
        self.statistics = Statistics()
        self.mutations = NONE
        self.prepared: list[Case] = []
        self.passed: Candidate | None = None
        self.normal: Candidate | None = None

    def _rewriter(self, target: Target) -> Rewriter:
        cache = self.cache if self.config.measure else None
        return Rewriter(
            self.model, target, self.workloads, self.equations, self.weights, cache, self.executor, self.proofs
        )

    def run(self) -> Result:
        """The stages in their order."""
        original = self._stage("load the original", lambda: runtime.original(self.model, self.target))
        self.valid = passes_checker(self.model, self.target)
        try:
            self.prepared = prepared = self._stage("reference", lambda: self._cases(original))
        except NoReference as error:
            self.notes.append(f"{error}; so no change can be checked: the model is kept as it is")
            return self._result(None, None, ())
        if self.config.measure:
            self.feeds = [self._inputs(sizes) for sizes, _ in self.workloads]
        if not repeatable(original, prepared[0]):
            self.notes.append(
                "the model gives other outputs at every run, so no change can be checked: it is kept as it is"
            )
            return self._result(None, None, ())
        candidates = self._stage("search", self._candidates)
        chosen, timing = self._stage("measure", lambda: self._choose(candidates, original))
        chosen, differences = self._stage("check", lambda: self._checked(chosen, prepared))
        if chosen is not None and chosen.name == FALLEN_BACK:
            chosen, timing = self._choose([chosen], original)
        return self._result(chosen, timing if chosen is not None else None, differences)

    def _cases(self, original: Session) -> list[Case]:
        others = [sizes for sizes, _ in self.workloads[1:]]
        fixed = {name for sizes, _ in self.config.shapes for name in sizes}
        return list(cases(self.model, original, self.sizes, self.config.inputs, others, fixed, self.notes))

    def _stage(self, name: str, work: Callable[[], Any]) -> Any:
        self.progress(name, 0, 0)
        start = time.perf_counter()
        result = work()
        self.seconds[name] = time.perf_counter() - start
        return result

    # ------------------------------------------------------------ candidates

    def _candidates(self) -> list[Candidate]:
        """The model after the passes, and after passes, search and passes again; only those that differ from the original.

        Where the provider has options that suit some convolutions, every such set of options is searched, and the original is tried.
        """
        budget = Budget(self.config.budget, alpha=self.config.alpha)
        self.rewriter.term.measure_until(budget.start + budget.seconds)
        normal, steps, passed = self.rewriter.passes()
        self.passed = passed
        others = [self._rewriter(target) for target in self._variants()]
        found = [passed]
        for target in self._variants():
            found += [replace(passed, target=target), Candidate("original", self.model, (), passed.cost, target)]
        for each in others:
            each.passing = self.rewriter.passing
            each.term.measure_until(budget.start + budget.seconds)
        searching = others or [self.rewriter]
        if self.config.partial:
            self.mutations = self._mutations(normal, searching[0], budget)
        made = [m.equation for m in self.mutations.found]
        for share, rewriter in zip(shares(budget, len(searching)), searching, strict=False):
            self.stop.budget = share
            candidate, statistics = rewriter.search(
                normal, steps, STRATEGIES[self.config.strategy], share, partial(self.progress, "search"), made
            )
            self.statistics += statistics
            found += [candidate] if candidate is not None else []
        self.stop.budget = None
        if budget.stop:
            self.notes.append("interrupted: the search ended early, with the best found so far")
        distinct = {(c.model.graph, c.target): c for c in reversed(found)}
        return [c for key, c in distinct.items() if key != (self.model.graph, self.target)]

    def _mutations(self, normal: Model, rewriter: Rewriter, budget: Budget) -> Mutations:
        """The mutants that pay, within a share of the budget."""
        share = self.stop.budget = Budget(SHARE * budget.left())
        folder = (self.config.cache or cache_path()).parent / "mutants" if self.config.measure else None
        store = Store(folder, rewriter.term.device())
        progress = partial(self.progress, "mutants")
        found = mutations(normal.graph.outputs, rewriter.cost, rewriter.term, share, store, progress)
        self.stop.budget = budget  # an interrupt from here on ends the whole search
        budget.stop |= share.stop
        return found

    def _variants(self) -> tuple[Target, ...]:
        """The target with other options, where they can be measured and some operator is run in another way with them."""
        suited = self.config.measure and any(n.op in LAYOUT for n in self.model.nodes())
        return self.target.variants if suited else ()

    # ------------------------------------------------------------ choice

    def _choose(self, candidates: list[Candidate], original: Session) -> tuple[Candidate | None, Timing | None]:
        if not candidates:
            self.notes.append(f"no equation applies: {KEPT}")
            return None, None
        if not self.config.measure:
            best = min(candidates, key=lambda c: c.cost)
            before = self.cost(self.model.graph.outputs)
            if best.cost <= before:
                return self._surviving(best)[0], None
            self.notes.append(f"predicted slower ({best.cost:.3g} s against {before:.3g} s): {KEPT}")
            return None, None
        return self._fastest(candidates, original)

    def _fastest(self, candidates: list[Candidate], original: Session) -> tuple[Candidate | None, Timing | None]:
        sessions: list[Session] = [original]
        alive: list[Candidate] = []
        for candidate in candidates:
            try:
                survivor, session = self._surviving(candidate)
                if survivor is not None and session is not None:
                    sessions.append(session)
                    alive.append(survivor)
            except TasoMirageError as error:
                options = [f" {k}={v}" for k, v in candidate.target.options if (k, v) not in self.target.options]
                self.notes.append(f"candidate {candidate.name!r}{''.join(options)} was dropped: {error}")
        if not alive:
            return None, None
        times = self._times(sessions, self.config.seconds)
        timings = self._compared(times)
        usable = (c for c, t in zip(alive, timings, strict=True) if c is self.passed and not t.slower)
        self.normal = next(usable, None)
        best = max(range(len(timings)), key=lambda i: timings[i].ratio)
        timing = timings[best]
        sessions.clear()
        if timing.ratio >= KEEP_BELOW and not (timing.certain and timing.low >= KEEP_BELOW):
            timing = self._confirmed(alive[best], [[[], []] for _ in times])
        elif timing.ratio < KEEP_BELOW and self.passed and alive[best].cost < PROMISING * self.passed.cost:
            timing = self._confirmed(alive[best], [[each[0], each[1 + best]] for each in times])
        if timing.ratio < KEEP_BELOW or not timing.certain:
            chance = "" if timing.ratio < KEEP_BELOW else ", which may be chance"
            self.notes.append(f"measured {timing.ratio:.3f} times as fast{chance}: {KEPT}")
            return None, timing
        return alive[best], timing

    def _surviving(self, candidate: Candidate) -> tuple[Candidate | None, Session | None]:
        return surviving(
            candidate, self.prepared[0].inputs, self._after, lambda m: self.cost(m.graph.outputs), self.notes.append
        )

    def _confirmed(self, candidate: Candidate, times: list[list[list[float]]]) -> Timing:
        """The original and one candidate anew, each time in other sessions, beside `times` that count as well: the best of several is so by
        luck, too, a promising one looks slower by bad luck, and a session's luck lasts. On a busy machine it takes several looks until
        a gain is told from chance."""
        hopeful = any(map(any, times))
        for _ in range(LOOKS):
            sessions = [
                runtime.opened(self.model, self.target, source=True),
                runtime.opened(candidate.model, candidate.target),
            ]
            for known, more in zip(times, self._times(sessions, self.config.seconds), strict=True):
                for rounds, each in zip(known, more, strict=True):
                    rounds += each
            sessions.clear()
            (timing,) = self._compared(times)
            gain = timing.ratio >= KEEP_BELOW and timing.wins >= 0.5
            if (gain and timing.certain) or timing.slower or not (gain or (hopeful and not self.stop.asked)):
                break
        return timing

    def _times(self, sessions: Sequence[Session], seconds: float) -> list[list[list[float]]]:
        """Of each workload the times of every session."""
        return [runtime.interleaved(sessions, inputs, seconds / len(self.workloads)) for inputs in self.feeds]

    def _compared(self, times: list[list[list[float]]]) -> list[Timing]:
        """The first session against each of the others, over all workloads."""
        first, *others = zip(*times, strict=True)
        return [compared(first, other, [share for _, share in self.workloads]) for other in others]

    def _inputs(self, sizes: dict[str, int]) -> Arrays:
        return feed(self.model, self.config.inputs, sizes)

    # ------------------------------------------------------------ check

    def _checked(
        self, chosen: Candidate | None, prepared: list[Case]
    ) -> tuple[Candidate | None, tuple[Difference, ...]]:
        if chosen is None:
            return None, ()
        differences = self._differences(chosen.model, prepared, chosen.target)
        bad = next((d for d in differences if not d.passed), None)
        if bad is None:
            return chosen, tuple(differences)
        return self._fall_back(chosen, bad, prepared)

    def _fall_back(
        self, chosen: Candidate, bad: Difference, prepared: list[Case]
    ) -> tuple[Candidate | None, tuple[Difference, ...]]:
        """Name the first step that breaks the model, and keep the steps before it."""

        def passes(k: int) -> bool:
            model, _ = self._after(chosen.steps[:k])
            return all(d.passed for d in self._differences(model, prepared, chosen.target))

        self.normal = None
        if not chosen.steps:  # the same graph with other options
            self.notes.append(f"the check failed with {dict(chosen.target.options)} ({bad}): the original is kept")
            return None, ()
        k = first_bad(len(chosen.steps), passes)
        culprit = ", ".join(chosen.steps[k - 1].equations)
        self.notes.append(
            f"the check failed ({bad}); the first rewrite that breaks it is {culprit!r} (step {k}): please report it"
        )
        if k <= 1:
            return None, ()
        good, steps = self._after(chosen.steps[: k - 1])
        self.weights.update(good.weights)
        differences = tuple(self._differences(good, prepared, chosen.target))
        if good.graph == self.model.graph or not all(d.passed for d in differences):
            return None, ()
        return Candidate(FALLEN_BACK, good, steps, self.cost(good.graph.outputs), chosen.target), differences

    def _differences(self, model: Model, prepared: list[Case], target: Target) -> list[Difference]:
        """onnx's checker (where the original passes it), loading, and the criterion on every output of every case."""
        try:
            session = runtime.opened(model, target, check=self.valid)
        except TasoMirageError as error:
            return [Difference(str(error), "any", np.inf, 0.0, 0.0)]
        return compare(self.model, session, prepared)

    def _after(self, steps: Sequence[Step]) -> tuple[Model, tuple[Step, ...]]:
        """The model after steps, with the folded weights that they need, and the steps to it: what the runtime takes as an initializer
        only is folded, though the step that does so may be a later one."""
        outputs = replay(self.model.graph.outputs, steps)
        model, folded = fold_weights(self.model.with_graph(outputs, self.weights), self.weights, INITIALIZERS)
        return model, (*steps, *folded)

    # ------------------------------------------------------------ result

    def _result(self, chosen: Candidate | None, timing: Timing | None, differences: tuple[Difference, ...]) -> Result:
        before, terms = self.cost(self.model.graph.outputs), len(work_terms(self.model.nodes()))
        kept = Result(
            original=self.model,
            model=self.model,
            steps=(),
            weights=self.weights,
            changed=False,
            terms_before=terms,
            terms_after=terms,
            cost_before=before,
            cost_after=before,
            timing=timing,
            equations={},
            differences=differences,
            statistics=self.statistics,
            seconds=self.seconds,
            notes=tuple(self.notes),
            workloads=tuple(self.workloads),
            target=self.target,
            mutations=self.mutations,
            cases=tuple(self.prepared),
            normal=self.normal,
        )
        return kept if chosen is None else kept.of(chosen)


def rules() -> tuple[Equation, ...]:
    """All that the optimizer may apply: the laws of the operators, and the generated library."""
    return (*laws(), *(rule.equation for rule in library.load()))


def representative(model: Model, config: Config) -> dict[str, int]:
    """The sizes that weigh most."""
    return _workloads(model, config)[0][0]


def _workloads(model: Model, config: Config) -> list[tuple[dict[str, int], float]]:
    return workloads(model, config.shapes, config.inputs, config.default_size)


def passes_checker(model: Model, target: Target) -> bool:
    """Whether onnx's checker takes the model as it was read."""
    try:
        runtime.opened(model, target, source=True, check=True)
    except TasoMirageError:
        return False
    return True


def failed(result: Result) -> CheckFailed | None:
    """The error behind a result whose check failed, if it did."""
    bad = [n for n in result.notes if n.startswith("the check failed")]
    return CheckFailed(bad[0]) if bad else None
