"""The main job: load, passes, search, measure, check, and never a slower or a different model."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from taso_mirage import library
from taso_mirage.dims import learn
from taso_mirage.equation import Equation, Rules, work_terms
from taso_mirage.errors import CheckFailed, InvalidOption, TasoMirageError
from taso_mirage.ir import Node
from taso_mirage.model import Model, Weight, random_inputs
from taso_mirage.optimize import remote
from taso_mirage.optimize import session as runtime
from taso_mirage.optimize.available import Available
from taso_mirage.optimize.cache import CostCache, cache_path
from taso_mirage.optimize.check import Case, Difference, cases, compare, first_bad, repeatable
from taso_mirage.optimize.cost import Cost, Measured, Roofline
from taso_mirage.optimize.passes import Context, for_search, joint, merge, runtime_specific, simplify, stages
from taso_mirage.optimize.saturate import saturate_part
from taso_mirage.optimize.search import Budget, Statistics, Strategy, directions, search_model, search_part
from taso_mirage.optimize.session import Arrays, Session
from taso_mirage.optimize.steps import Step, replay
from taso_mirage.optimize.target import CPU, Target
from taso_mirage.optimize.weights import fold_weights, split_halves
from taso_mirage.text import laws

FALLEN_BACK = "the steps before the first bad one"
LAYOUT = frozenset({"conv", "conv_transpose", "max_pool", "average_pool", "global_average_pool", "batch_norm"})
"""Operators that the runtime may run with channels last."""
MERGES = 2
"""How often equations with several outputs are tried: a bias joins the sum that the first walk made."""
KEEP_BELOW = 1.01
"""A candidate must be measured this many times faster than the original, or the original is kept."""


@dataclass(frozen=True, slots=True)
class Config:
    """The options of `optimize`. `shapes` fixes named sizes, `inputs` are the user's own for the check and the timing; `scheduler`
    is the address of a Dask scheduler whose workers measure operators (whole models are measured here)."""

    budget: float = 60.0
    alpha: float = 1.05
    measure: bool = True
    seconds: float = 6.0
    shapes: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Arrays, ...] = ()
    default_size: int = 8
    cache: Path | None = None
    target: Target = CPU
    strategy: str = "best-first"
    portable: bool = False
    scheduler: str | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Lower quartiles in seconds over interleaved runs (a shared machine only ever adds time), their ratio, and the quartiles of
    the ratio round by round."""

    original: float
    optimized: float
    ratio: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True, slots=True)
class Result:
    """What `optimize` did. `changed` is false when the original's graph was kept; `notes` says why, and what failed.

    `steps` lead from the original's terms to the model's; `weights` has every one that a state in between needs.
    """

    original: Model
    model: Model
    steps: tuple[Step, ...]
    weights: Mapping[str, Weight]
    changed: bool
    terms_before: int
    terms_after: int
    cost_before: float
    cost_after: float
    timing: Timing | None
    equations: Mapping[str, int]
    differences: tuple[Difference, ...]
    statistics: Statistics
    seconds: Mapping[str, float]
    notes: tuple[str, ...]
    target: Target = CPU


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that could be the result, the steps from the original to it, its predicted seconds, and where it is to run."""

    name: str
    model: Model
    steps: tuple[Step, ...]
    cost: float
    target: Target


STRATEGIES: Mapping[str, Strategy] = {"best-first": search_part, "saturate": saturate_part}


class Stop:
    """Set by an interrupt: the running stage ends early and the best found so far goes on to the check."""

    def __init__(self) -> None:
        self.budget: Budget | None = None

    def searching(self) -> bool:
        """Whether there is a search that could end early."""
        return self.budget is not None

    def __call__(self) -> None:
        if self.budget is not None:
            self.budget.stop = True


Progress = Callable[[str, int, int], None]


def optimize(
    model: Model, config: Config, progress: Progress = lambda stage, done, total: None, stop: Stop | None = None
) -> Result:
    """A faster model that computes the same, or the original. Every step is an equation; the result is checked."""
    there = config.scheduler if config.measure else None
    with remote.executor(there, config.target) if there is not None else nullcontext() as executor:
        job = _Job(model, config, progress, stop or Stop(), executor)
        with closing(job.cache):
            return job.run()


class _Job:
    def __init__(
        self, model: Model, config: Config, progress: Progress, stop: Stop, executor: Executor | None = None
    ) -> None:
        self.config, self.progress, self.stop = config, progress, stop
        self.sizes = representative(model, config)
        self.model = replace(model, sizes=self.sizes)
        opsets = {"com.microsoft": 1, **model.opsets}
        self.target = config.target
        self.cache = CostCache(config.cache or cache_path()) if config.measure else CostCache(None)
        asked = Context(opsets, self.sizes, target=self.target)
        self.context = replace(asked, available=Available(model.nodes(), asked, self.cache))
        self.measured = Measured(self.context, self.cache, executor) if config.measure else None
        self.cost = Cost(self.measured or Roofline(self.context))
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []
        self.statistics = Statistics()
        self.weights = dict(model.weights)  # with every folded one, so that any prefix of the steps can be replayed

    def run(self) -> Result:
        """The stages in their order."""
        original = self._stage("load the original", lambda: runtime.opened(self.model, self.target, source=True))
        self.valid = _passes_checker(self.model)
        prepared = self._stage("reference", lambda: list(cases(self.model, original, self.sizes, self.config.inputs)))
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

    def _stage(self, name: str, work: Callable[[], Any]) -> Any:
        self.progress(name, 0, 0)
        start = time.perf_counter()
        result = work()
        self.seconds[name] = time.perf_counter() - start
        return result

    # ------------------------------------------------------------ candidates

    def _candidates(self) -> list[Candidate]:
        """The model after the passes, and after passes, search and passes again; only those that differ from the original.

        The search has no small fusions into the runtime's own operators: they are made last, and would only hide large ones.
        """
        budget = Budget(self.config.budget, alpha=self.config.alpha)
        equations = tuple(e for e in rules() if not (self.config.portable and runtime_specific(e)))
        standard, large, every = stages(equations)
        normal, steps = self._simplified(self.model, [standard, large])
        passed, lowered = self._simplified(normal, [every])
        found = [self._candidate("passes", passed, [*steps, *lowered])]
        if self.measured is not None:
            self.measured.deadline = budget.start + budget.seconds
            budget.choose = partial(self._fastest_state, finish=[large, every])
        self.stop.budget = budget
        outputs, taken, self.statistics = search_model(
            normal.graph.outputs,
            Rules(directions(for_search(equations))),
            large,
            self.cost,
            self.context,
            budget,
            lambda done, total: self.progress("search", done, total),
            STRATEGIES[self.config.strategy],
        )
        self.stop.budget = None
        if budget.stop:
            self.notes.append("interrupted: the search ended early, with the best found so far")
        if taken:
            folded, rest = self._fold(normal, outputs)
            searched, last = self._simplified(folded, [standard, large, every])
            found.append(self._candidate("search", searched, [*steps, *taken, *rest, *last]))
        distinct = {c.model.graph: c for c in reversed(found)}
        return [c for graph, c in distinct.items() if graph != self.model.graph]

    def _fastest_state(self, states: list[tuple[Node, ...]], finish: list[Rules]) -> int:
        """Which state of a part is the fastest as it will be written."""
        assert self.measured is not None
        for rules in finish:
            states = [simplify(state, rules, self.context)[0] for state in states]
        return self.measured.fastest(states)

    def _simplified(self, model: Model, rules: list[Rules]) -> tuple[Model, list[Step]]:
        """The model after the laws that only help, stage by stage, with weights folded in between."""
        taken: list[Step] = []
        for stage in rules:
            model, halved = split_halves(model, self.weights)
            self.weights.update(model.weights)
            outputs, steps = simplify(model.graph.outputs, stage, self.context)
            taken += [*halved, *steps]
            for _ in range(MERGES):
                outputs, merged = merge(outputs, joint(stage), self.context)
                taken += merged
            model, folded = self._fold(model, outputs)
            taken += folded
        return model, taken

    def _fold(self, model: Model, outputs: tuple[Node, ...]) -> tuple[Model, list[Step]]:
        folded, steps = fold_weights(model.with_graph(outputs), self.weights)
        self.weights.update(folded.weights)
        return folded, steps

    def _candidate(self, name: str, model: Model, steps: Sequence[Step]) -> Candidate:
        return Candidate(name, model, tuple(steps), self.cost(model.graph.outputs), self.target)

    # ------------------------------------------------------------ choice

    def _choose(self, candidates: list[Candidate], original: Session) -> tuple[Candidate | None, Timing | None]:
        if not candidates and self.target.channels_last is None:
            self.notes.append("no equation applies: the original's graph is kept")
            return None, None
        if not self.config.measure:
            best = min(candidates, key=lambda c: c.cost)
            before = self.cost(self.model.graph.outputs)
            if best.cost <= before:
                return best, None
            self.notes.append(
                f"predicted slower ({best.cost:.3g} s against {before:.3g} s): the original's graph is kept"
            )
            return None, None
        return self._fastest(candidates, original)

    def _fastest(self, candidates: list[Candidate], original: Session) -> tuple[Candidate | None, Timing | None]:
        sessions: list[Session] = [original]
        alive: list[Candidate] = []
        for candidate in (*candidates, *self._other_layouts(candidates)):
            try:
                sessions.append(runtime.opened(candidate.model, candidate.target))
                alive.append(candidate)
            except TasoMirageError as error:
                self.notes.append(f"candidate {candidate.name!r} was dropped: {error}")
        inputs = self.config.inputs[0] if self.config.inputs else random_inputs(self.model, 0, self.sizes)
        times = runtime.interleaved(sessions, inputs, self.config.seconds)
        timings = [_timing(times[0], t) for t in times[1:]]
        if not timings:
            return None, None
        best = max(range(len(timings)), key=lambda i: timings[i].ratio)
        if timings[best].ratio < KEEP_BELOW:
            self.notes.append(f"measured {timings[best].ratio:.3f} times as fast: the original's graph is kept")
            return None, timings[best]
        return alive[best], timings[best]

    def _other_layouts(self, candidates: list[Candidate]) -> list[Candidate]:
        """The original and the candidates with channels last, where the target can and some operator has a layout."""
        if self.target.channels_last is None or not any(n.op in LAYOUT for n in self.model.nodes()):
            return []
        original = Candidate("original", self.model, (), self.cost(self.model.graph.outputs), self.target)
        target = self.target.channels_last
        return [replace(c, name=f"{c.name}, channels last", target=target) for c in (original, *candidates)]

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
            return all(d.passed for d in self._differences(self._after(chosen, k), prepared, chosen.target))

        if not chosen.steps:  # the same graph in another layout
            self.notes.append(f"the check failed with channels last ({bad}): the original is kept")
            return None, ()
        k = first_bad(len(chosen.steps), passes)
        culprit = ", ".join(chosen.steps[k - 1].equations)
        self.notes.append(
            f"the check failed ({bad}); the first rewrite that breaks it is {culprit!r} (step {k}): please report it"
        )
        if k <= 1:
            return None, ()
        good = self._after(chosen, k - 1)
        differences = tuple(self._differences(good, prepared, chosen.target))
        if good.graph == self.model.graph or not all(d.passed for d in differences):
            return None, ()
        return Candidate(
            FALLEN_BACK, good, chosen.steps[: k - 1], self.cost(good.graph.outputs), chosen.target
        ), differences

    def _differences(self, model: Model, prepared: list[Case], target: Target) -> list[Difference]:
        """onnx's checker (where the original passes it), loading, and the criterion on every output of every case."""
        try:
            session = runtime.opened(model, target, check=self.valid)
        except TasoMirageError as error:
            return [Difference(str(error), "any", np.inf, 0.0, 0.0)]
        return compare(self.model, session, prepared)

    def _after(self, chosen: Candidate, k: int) -> Model:
        """The model after the first k steps, with the folded weights that they need."""
        outputs = replay(self.model.graph.outputs, chosen.steps[:k])
        return self.model.with_graph(outputs, self.weights)

    # ------------------------------------------------------------ result

    def _result(self, chosen: Candidate | None, timing: Timing | None, differences: tuple[Difference, ...]) -> Result:
        model = self.model if chosen is None else chosen.model
        steps = () if chosen is None else chosen.steps
        return Result(
            original=self.model,
            model=model,
            steps=steps,
            weights=self.weights,
            changed=chosen is not None,
            terms_before=len(work_terms(self.model.nodes())),
            terms_after=len(work_terms(model.nodes())),
            cost_before=self.cost(self.model.graph.outputs),
            cost_after=self.cost(model.graph.outputs),
            timing=timing,
            equations=dict(Counter(e for s in steps for e in s.equations).most_common()),
            differences=differences,
            statistics=self.statistics,
            seconds=self.seconds,
            notes=tuple(self.notes),
            target=self.target if chosen is None else chosen.target,
        )


def rules() -> tuple[Equation, ...]:
    """All that the optimizer may apply: the laws of the operators, and the generated library."""
    return (*laws(), *(rule.equation for rule in library.load()))


def representative(model: Model, config: Config) -> dict[str, int]:
    """A size for every symbol: the user's, else what the user's inputs have, else the default."""
    names = model.symbols()
    if unknown := set(config.shapes) - set(names):
        known = ", ".join(names) or "none"
        raise InvalidOption(
            f"--shape names {sorted(unknown)[0]!r}, which is no dynamic dim of the model; they are: {known}"
        )
    sizes: dict[str, int] = dict(config.shapes)
    for arrays in config.inputs:
        for node in model.graph.inputs:
            learn(node.tensor.shape, arrays[node.attr("name")].shape, sizes)
    return {name: sizes.get(name, config.default_size) for name in names}


def _passes_checker(model: Model) -> bool:
    try:
        runtime.opened(model, source=True, check=True)
    except TasoMirageError:
        return False
    return True


def _timing(original: Sequence[float], other: Sequence[float]) -> Timing:
    ratios = np.asarray(original) / np.asarray(other)
    low, high = (float(v) for v in np.percentile(ratios, (25, 75)))
    quiet, other_quiet = (float(np.percentile(t, 25)) for t in (original, other))
    return Timing(quiet, other_quiet, quiet / other_quiet, low, high, len(ratios))


def failed(result: Result) -> CheckFailed | None:
    """The error behind a result whose check failed, if it did."""
    bad = [n for n in result.notes if n.startswith("the check failed")]
    return CheckFailed(bad[0]) if bad else None
