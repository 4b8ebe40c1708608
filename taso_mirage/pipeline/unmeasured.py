"""The stage that compares a choice with the original whose comparison waited for kernels
(`shares.measures_last`), where none stayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taso_mirage.errors import OutOfTime
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session
from taso_mirage.pipeline.candidates import Start
from taso_mirage.pipeline.choice import UNMEASURED, Choice, Choosing
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.shares import load_seconds, slow_seconds
from taso_mirage.pipeline.stage import Job
from taso_mirage.report.result import Result


def measure_choice(
    job: Job,
    result: Result,
    problem: Problem,
    start: Start,
    original: Session,
    cases: Sequence[CheckCase],
    feeds: Sequence[Arrays],
    choice: Choice,
) -> Result:
    """The result with kernels, or of a choice that did not wait, as it is.

    Other results get their times, or the original's graph where they are not faster. Without time
    for a comparison the predicted cost decides.
    """
    if result.kernels or choice.candidate is None or not choice.waits:
        return result
    own = replace(job, remarks=[], kept=None)
    try:
        job.deadline.demand("it was not compared", load_seconds(job) + slow_seconds(job))
        found = Choosing(own, problem, start.passed, cases[0].inputs, feeds).fastest([choice.candidate], original, True)
    except OutOfTime:
        return result.noted(UNMEASURED)
    if found.candidate is None:
        kept = result.unchanged(own.kept or "", result.target).noted(*own.remarks)
        return replace(kept, timing=found.timing, normal=found.normal)
    return replace(result, timing=found.timing, normal=found.normal).noted(*own.remarks)
