"""The list of all stages of the pipeline, in the order of their runs (docs/design/pipeline.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from taso_mirage.devices.machine import cores
from taso_mirage.errors import CheckFailed, OutOfTime, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.lowering.backend import Backend, here
from taso_mirage.measure.check import CheckCase, Difference
from taso_mirage.measure.check_inputs import feed
from taso_mirage.measure.child import child
from taso_mirage.measure.load import observed_load
from taso_mirage.measure.rounding import LetThrough
from taso_mirage.measure.session import Session, timed_nodes, weight_bytes
from taso_mirage.measure.target import Target, at_running_level
from taso_mirage.measure.timing import GAIN
from taso_mirage.onnx_io import save
from taso_mirage.onnx_io.inlining import without_functions
from taso_mirage.pipeline.candidates import mutate, passes, search
from taso_mirage.pipeline.checking import check_candidates
from taso_mirage.pipeline.choice import Choice, choose
from taso_mirage.pipeline.fuse import fused
from taso_mirage.pipeline.fuse.ahead import KernelsAhead
from taso_mirage.pipeline.fuse.searches import searchers
from taso_mirage.pipeline.growth import within_growth
from taso_mirage.pipeline.inside import work_inside
from taso_mirage.pipeline.kernels_ahead import compile_ahead, search_kernels
from taso_mirage.pipeline.levels import at_full_level
from taso_mirage.pipeline.loops import with_chains, with_loops
from taso_mirage.pipeline.oddities import warn
from taso_mirage.pipeline.problem import Problem, find_sizes, load_original, pose, refer
from taso_mirage.pipeline.runtimes import choose_runtime, try_runtimes
from taso_mirage.pipeline.shares import (
    comparison_seconds,
    finishing_seconds,
    kernel_seconds,
    large,
    load_seconds,
    trial_seconds,
)
from taso_mirage.pipeline.stage import Job, Stage, Values, run
from taso_mirage.pipeline.trace import Trace
from taso_mirage.pipeline.unmeasured import measure_choice
from taso_mirage.report.attribution import placed_in_model
from taso_mirage.report.changes import by_counted_gain
from taso_mirage.report.explanations import MEASURING, explained
from taso_mirage.report.result import OperatorProfile, Result
from taso_mirage.report.times import operator_times
from taso_mirage.rewriting.equation import work_terms
from taso_mirage.search.config import OFF, Config, Progress, Stop, measuring, quiet, runs_on
from taso_mirage.search.config import SEARCH as KERNEL_SEARCH
from taso_mirage.search.mutations import NO_MUTATIONS, Mutations
from taso_mirage.search.rulesets import RuleSet, rules
from taso_mirage.search.search import SearchStatistics
from taso_mirage.system.deadline import Deadline
from taso_mirage.system.spending import Purpose, accounting, spent, staged
from taso_mirage.system.workers import Workers
from taso_mirage.targets.packaging import stamped
from taso_mirage.targets.profile import TimedNode, without_own_time

PROFILING, PROFILED = 0.5, 4
"""Seconds for which a model is profiled, and its runs at least."""
MOST_BY_PROFILER = 4.0
"""The largest time of all operators by the profiler, relative to a run without it: above, its own
time hides theirs."""
BY_CPU_TIME = 3
"""Loads of a trial by CPU time: the original, which takes about as long as two other models, is
opened for that clock too."""
HEAVY = 1 << 28
"""Bytes of weights from which on the runtime takes longer to load a model than the rules take to be
read."""
EARLY = 20.0
"""Seconds of a budget from which on the kernels' library for a CPU, which is compiled once, is
compiled ahead."""
REGIONS_PER_TERM = 3e-5
"""Seconds for each term of the original, in which regions are found."""
PROFILE_SHARE = 0.5
"""The share of the seconds for explanations that the profiler may take."""


def conclude(
    job: Job,
    problem: Problem,
    cases: Sequence[CheckCase] = (),
    mutations: Mutations = NO_MUTATIONS,
    statistics: SearchStatistics | None = None,
    choice: Choice | None = None,
    differences: tuple[Difference, ...] = (),
    let_through: LetThrough | None = None,
) -> Result:
    """The result of the stages so far; those that did not run gave nothing."""
    choice = choice or Choice()
    seconds = (
        0.0 if statistics is None else job.deadline.left()
    )  # a model that is kept for another reason needs no prices
    problem.rewriter.term.measure_until(time.monotonic() + seconds)
    before, terms = problem.cost(problem.model.graph.outputs), len(work_terms(problem.model.nodes()))
    kept = Result(
        original=problem.model,
        model=problem.model,
        steps=(),
        weights=problem.weights,
        changed=False,
        terms_before=terms,
        terms_after=terms,
        cost_before=before,
        cost_after=before,
        timing=None if choice.candidate is None else choice.timing,
        equations={},
        differences=differences,
        statistics=statistics or SearchStatistics(),
        seconds=job.seconds,
        workloads=tuple(problem.workloads),
        remarks=tuple(job.remarks),
        kept=job.kept,
        failure=None if job.failure is None else CheckFailed(job.failure),
        target=problem.target,
        mutations=mutations,
        rules=job.config.applied,
        cases=tuple(cases),
        normal=choice.normal,
        let_through=let_through,
    )
    return kept if choice.candidate is None else kept.of(choice.candidate)


def fuse(job: Job, result: Result, original: Session, ahead: KernelsAhead | None) -> Result:
    """The result with searched kernels where they make the whole model faster.

    They have the rest of the budget, less a comparison and a check. Half of it is for the kernels
    of loops in the place of operators that loops became, or of steps that are written out.
    """
    config = job.config
    if config.kernels == OFF:
        return result
    asked = replace(config, budget=kernel_seconds(job), seconds=comparison_seconds(job))
    try:
        with child().within(job.deadline.of_extras()):
            child().deadline.demand("no regions were searched", REGIONS_PER_TERM * job.terms)
            known = original if original.target == config.target else None
            with spent(Purpose.WAITING):
                same = job.backend is not None and result.target.name == config.target.name
                backend = job.backend.result() if job.backend is not None and same else None
            once, busy = large(job), config.target.serial is not None and observed_load().busy
            loads = BY_CPU_TIME if once and busy else 1
            ours = job.progress, job.stop, known, trial_seconds(job, loads)
            chains = with_chains(result) if job.chains else None
            loops = with_loops(chains or result) or chains
            if loops is None:
                return fused(result, asked, config.kernels, *ours, backend, once, job.searchers, ahead)
            half = replace(asked, budget=asked.budget / 2)
            made = fused(loops, half, config.kernels, *ours, backend, once, job.searchers)
            gained = made.kernels and _ratio(made) >= GAIN * _ratio(result)
            if gained and not job.chains:
                return made
            other = fused(result, replace(asked, budget=kernel_seconds(job)), config.kernels, *ours, once=once)
            return made if gained and _ratio(made) >= _ratio(other) else other
    except OutOfTime as late:
        return result.noted(f"no kernels: {late}")


def _ratio(result: Result) -> float:
    return 1.0 if result.timing is None else result.timing.ratio


def profile(job: Job, result: Result, seconds: float) -> OperatorProfile | None:
    """The nodes of both models with their measured seconds; None where the runtime does not tell
    them, or where to load and to run both would take more than these seconds."""
    wanted = 4 * (load_seconds(job) + len(result.workloads) * PROFILED * job.running)
    if not (job.config.measure and result.target.profiles) or wanted >= seconds:
        return None
    try:
        with child().within(Deadline(seconds)):
            before = _timed(job, result, result.original)
            after = _timed(job, result, result.model) if result.changed and before else before
            return OperatorProfile(before, after) if before and after else None
    except TasoMirageError:  # the predicted seconds are shown
        return None


def _timed(job: Job, result: Result, model: Model) -> tuple[TimedNode, ...] | None:
    """The nodes of a model with their measured seconds, at all sets of sizes by their shares; None
    where the profiler took far more than the operators."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], float] = {}
    for sizes, share in result.workloads:
        inputs = feed(result.original, job.config.inputs, sizes)
        of_one, whole = timed_nodes(model, inputs, PROFILING, result.target, source=model is result.original)
        if sum(each.seconds for each in of_one) > MOST_BY_PROFILER * whole:
            return None
        for each in without_own_time(of_one, whole):
            key = each.operator, each.inputs, each.outputs
            found[key] = found.get(key, 0.0) + share * each.seconds
    return tuple(TimedNode(*key, spent) for key, spent in found.items())


def explain(job: Job, result: Result) -> Result:
    """The result with an explanation of every change and where the time goes, where that was asked
    for; after an interrupt no change is measured alone, and no model is profiled."""
    if not job.config.explain:
        return result
    seconds, began = 0.0 if job.stop.asked else min(MEASURING, job.deadline.left()), time.monotonic()
    profiled = profile(job, result, PROFILE_SHARE * seconds)
    left = max(began + seconds - time.monotonic(), 0.0)
    known = job.config if left > 0 else replace(job.config, measure=False)
    listed = explained(result, known, job.progress, left)
    if profiled is not None:
        listed = by_counted_gain(placed_in_model(result, listed, profiled))
    times = operator_times(result, job.config, max(began + seconds - time.monotonic(), 0.0))
    return replace(result, explanations=tuple(listed), times=times, profile=profiled)


@spent(Purpose.FILES)
def write(job: Job, result: Result, output: Path) -> Result:
    """The result with the files that the model was written to."""
    return replace(result, written=tuple(save(stamped(result.model, result.target), output, source=not result.changed)))


SEARCH = (
    Stage("load the original", load_original, ("model",), ("original", "valid")),
    Stage("sizes", find_sizes, ("model", "original"), ("sized", "workloads")),
    Stage("read", pose, ("sized", "workloads"), ("problem",), 2e-5),
    Stage("reference", refer, ("problem", "original"), ("cases", "feeds"), 5e-5),
    Stage("oddities", warn, ("problem", "cases"), (), 2e-5, ()),
    Stage("bodies", work_inside, ("problem", "original", "cases"), ("inside",)),
    Stage("passes", passes, ("problem", "inside"), ("start",), 8e-5),
    Stage("mutants", mutate, ("start",), ("mutations",), 1e-5, (NO_MUTATIONS,)),
    Stage("search", search, ("problem", "start", "mutations"), ("candidates", "statistics"), 4e-5),
    Stage("kernels ahead", search_kernels, ("problem", "candidates"), ("ahead",), 4e-5, (None,)),
    Stage("measure", choose, ("problem", "start", "original", "cases", "feeds", "candidates"), ("fastest",)),
    Stage("compile ahead", compile_ahead, ("ahead",)),
    Stage(
        "check",
        check_candidates,
        ("problem", "start", "original", "valid", "cases", "feeds", "fastest"),
        ("choice", "differences", "cases", "let_through"),
    ),
    Stage(
        "runtimes",
        try_runtimes,
        ("problem", "start", "original", "valid", "cases", "feeds", "choice"),
        ("others",),
        otherwise=((),),
    ),
)
"""From a model to a checked choice: the fastest candidate becomes one by the check alone.

A stage that finds that the original has to be kept ends these. Seconds for each term are those of
a chain of 20,000 nodes once the time is over, on one core.
"""
KERNELS = (
    Stage("kernels", fuse, ("result", "original", "ahead"), ("result",)),
    Stage(
        "measure without kernels",
        measure_choice,
        ("result", "problem", "start", "original", "cases", "feeds", "choice"),
        ("result",),
    ),
    Stage("runtime", choose_runtime, ("result", "others"), ("result",)),
)
"""Stages that improve the result in the time that is left."""
FINISH = (
    Stage("size", within_growth, ("result",), ("result",)),
    Stage("level", at_full_level, ("result",), ("result",)),
    Stage("explain", explain, ("result",), ("result",)),
    Stage("write", write, ("result", "output"), ("result",)),
)
"""Stages that follow the result, whatever the time."""
CONCLUDED = ("problem", "cases", "mutations", "statistics", "choice", "differences", "let_through")


def optimize_model(
    model: Model,
    config: Config,
    progress: Progress = quiet,
    stop: Stop | None = None,
    output: Path | None = None,
    deadline: Deadline | None = None,
    reading: float = 0.0,
) -> Result:
    """A faster model that computes the same, or the original, by a deadline (that of the budget
    from now on, if left out). `reading`: the seconds that its file took.

    Every step is an equation; the result is checked.
    """
    deadline = deadline or Deadline(config.budget, within=child().deadline)
    with accounting() as account, child().within(limit=config.run_limit):
        plain, asked = without_functions(model), stop or Stop()

        def stages(target: Target) -> Result:
            return _run_stages(plain, replace(config, target=target), progress, asked, output, deadline, reading)

        found = at_running_level(stages, config.target, partial(runs_on, plain, config))
        return replace(found, spending=account.spending())


@contextmanager
def _backend(config: Config) -> Iterator[Future[Backend | None] | None]:
    """The back end for which kernels are searched: its slow preparations begin beside the first
    stages. None where there is none, or less time than that takes; why is said where kernels would
    be made."""
    if config.kernels != KERNEL_SEARCH or (config.target.on_cores and config.budget < EARLY):
        yield None
        return

    def started() -> Backend | None:
        try:
            made = here(config.target)
        except TasoMirageError:
            return None
        made.start()
        return made

    def ended(found: Future[Backend | None]) -> None:
        if found.exception() is None and (made := found.result()) is not None:
            made.close()
            made.end_shipping()

    thread, finished = ThreadPoolExecutor(1), False
    found = thread.submit(started)
    try:
        yield found
        finished = True
    finally:  # also where an interrupt ends the wait for processes that still start
        found.add_done_callback(ended)
        thread.shutdown(wait=finished)  # a signal ends the command although a compiler still runs


@contextmanager
def _searchers(config: Config) -> Iterator[Workers | None]:
    """Processes that will search kernels for a GPU, which start beside the first stages, on half of
    the cores: these load the model."""
    wanted = config.kernels == KERNEL_SEARCH and not config.target.on_cores
    ready = searchers(cores() // 2, config.budget) if wanted else None
    if ready is None:
        yield None
        return
    starting = Thread(target=ready.start, args=({},))
    starting.start()
    try:
        yield ready
    finally:
        starting.join()
        ready.close()


def _read_rules() -> None:
    """Read the rules, which takes a second, while the runtime loads the model."""
    with suppress(TasoMirageError):  # reported when they are applied
        rules()


def _run_stages(
    model: Model,
    config: Config,
    progress: Progress,
    stop: Stop,
    output: Path | None,
    whole: Deadline,
    reading: float,
) -> Result:
    asked, held = stop.deadline, weight_bytes(model)
    if held > HEAVY and config.rules is None:
        Thread(target=_read_rules, daemon=True).start()
    stop.deadline = deadline = whole.earlier(finishing_seconds(config, reading, 0 if output is None else held))
    config = replace(config, budget=deadline.left())
    try:
        with child().within(deadline):
            with _backend(config) as backend, _searchers(config) as ready:
                with measuring(config) as cache:
                    job = Job(config, progress, stop, cache, deadline=deadline, reading=reading)
                    job.terms = len(model.nodes())
                    job.nested, job.backend, job.searchers = optimize_model, backend, ready
                    if config.trace is not None:
                        job.traced = Trace(config.trace, [stage.name for stage in (*SEARCH, *KERNELS, *FINISH)])
                    values = run(SEARCH, job, {"model": model})
                    result = _conclude(job, values, model)
                begun: dict[str, Any] = {"others": (), "ahead": None}  # where the time ended before these stages
                result = run(KERNELS, job, {**begun, **values, "result": result})["result"]
            job.deadline = child().deadline = whole
            given = {"result": result} | ({} if output is None else {"output": output})
            for stage in FINISH:  # the model is written, however late it is
                given = run((stage,), job, given)
            found: Result = given["result"]
            return found
    finally:
        if asked is not None:
            stop.deadline = asked


def _conclude(job: Job, values: Values, model: Model) -> Result:
    """The result of the stages that ran; without a problem no rule is read any more."""
    with staged("conclude"):
        if "problem" not in values:
            job.config = replace(job.config, rules=RuleSet(()), allow_rounding=None)
            values = {"problem": pose(job, model)}
        return conclude(job, **{name: values[name] for name in CONCLUDED if name in values})
