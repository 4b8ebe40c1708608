"""The stages that try a model in other runtimes than that of the target, and that choose one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from taso_mirage.errors import OutOfTime, TasoMirageError
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import Target
from taso_mirage.measure.timing import GAIN
from taso_mirage.pipeline.candidates import Start
from taso_mirage.pipeline.checking import Differences, check_candidates
from taso_mirage.pipeline.choice import DROPPED, Choice, Choosing
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.shares import HALF, runtime_seconds
from taso_mirage.pipeline.stage import Job
from taso_mirage.report.result import Result
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.system.wording import option

SHARE = 0.25
"""The largest share of the remaining time for more than one model in another runtime."""
NOTHING = Choice()
NOT_MEASURED = "other runtimes were not tried: that takes measurements"


@dataclass(frozen=True, slots=True)
class InRuntime:
    """A checked model in another runtime, with its times against the original in the target's, or
    the reason why there is none."""

    target: Target
    choice: Choice = NOTHING
    differences: Differences = ()
    why: str = ""

    @property
    def ratio(self) -> float:
        """How many times as fast as the original in the target's runtime; 0 if nothing ran."""
        return 0.0 if self.choice.timing is None else self.choice.timing.ratio


def try_runtimes(
    job: Job,
    problem: Problem,
    start: Start,
    original: Session,
    valid: bool,
    cases: Sequence[CheckCase],
    feeds: Sequence[Arrays],
    choice: Choice,
) -> tuple[InRuntime, ...]:
    """The original and the choice in every other runtime that the options name, compared with the
    original in the target's."""
    if job.config.runtimes and not job.config.measure:
        job.remarks.append(NOT_MEASURED)
        return ()
    found: list[InRuntime] = []
    for target in job.config.runtimes:
        own = replace(job, remarks=[], kept=None, failure=None)
        models = _models(problem, choice, target)
        if len(models) * runtime_seconds(job) > SHARE * job.deadline.left():
            models = models[:1]
        try:
            job.deadline.demand("it was not tried", HALF * runtime_seconds(job))
            choosing = Choosing(own, problem, start.passed, cases[0].inputs, feeds)
            fastest = choosing.fastest(models, original, once=True)
            checked, differences, *_ = check_candidates(
                own, problem, start, original, valid, cases, feeds, replace(fastest, session=None)
            )
        except (OutOfTime, TasoMirageError) as error:
            found.append(InRuntime(target, why=str(error)))
            continue
        found.append(InRuntime(target, checked, differences, own.failure or _reason(own.remarks)))
    return tuple(found)


def _models(problem: Problem, choice: Choice, target: Target) -> list[ModelCandidate]:
    """The original and the choice, on a target."""
    before = problem.cost(problem.model.graph.outputs)
    models = [ModelCandidate("the original", problem.model, (), before, target)]
    if (best := choice.candidate) is not None and best.steps:
        models.append(replace(best, name="the rewritten model", target=target))
    return models


def choose_runtime(job: Job, result: Result, others: Sequence[InRuntime]) -> Result:
    """The result in the runtime that was measured to be the fastest; a note has all of them.

    A model with kernels and one in another runtime were both compared with the original in the
    target's, so the ratios of the two decide.
    """
    if not others:
        return result
    ours = 1.0 if result.timing is None or not result.changed else result.timing.ratio
    best = max(others, key=lambda each: each.ratio if each.choice.candidate else -math.inf)
    own = job.config.target.name
    said = [f"{own} {ours:.2f}", *(_said(each) for each in others)]
    note = f"runtimes, each against the original on {own}: {', '.join(said)}"
    if best.choice.candidate is None or best.ratio < GAIN * ours:
        return result.noted(note)
    plain = replace(result.unchanged("", best.target), kept=None, timing=best.choice.timing, left=None)
    moved = replace(plain.of(best.choice.candidate), differences=best.differences)
    alone = f"the file is for {best.target.name}; {option('target', own)} makes one that is faster on {own}"
    alone = alone if ours > 1 else f"the file is for {best.target.name}; on {own} it is as fast as the original"
    return moved.noted(note, *([] if moved.steps else [alone]))


def _reason(remarks: Sequence[str]) -> str:
    """The reason why a runtime did not run a candidate, without the candidate's name."""
    return next((reason for each in remarks if (reason := each.partition(DROPPED)[2])), "; ".join(remarks))


def _said(each: InRuntime) -> str:
    """A runtime with its ratio, or the reason why it has none."""
    candidate, name = each.choice.candidate, each.target.name
    if each.choice.timing is None:
        return f"{name} without a result" + (f" ({each.why})" if each.why else "")
    return f"{name} {each.ratio:.2f}" + (f" with {candidate.name}" if candidate is not None else "")
