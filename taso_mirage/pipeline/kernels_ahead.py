"""The stages that begin kernels before the model is compared and checked (`fuse/ahead.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from taso_mirage.devices.cuda.options import ROUNDED
from taso_mirage.pipeline.fuse.ahead import KernelsAhead, begin_kernels
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.shares import ahead_of_kernels, kernels_first
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.config import SEARCH
from taso_mirage.search.rewriter import ModelCandidate

WRITING = 2.0
"""Seconds in which programs are written before the check: processes compile them meanwhile."""


def search_kernels(job: Job, problem: Problem, candidates: Sequence[ModelCandidate]) -> KernelsAhead | None:
    """The searches for kernels of the model that is predicted to be the fastest, where kernels of a
    GPU gain more than other searches, and its processes have started."""
    config, backend = job.config, job.backend
    mine = [each for each in candidates if each.target == config.target and each.steps]
    if not (mine and kernels_first(job) and config.kernels == SEARCH and job.searchers is not None):
        return None
    made = backend.result() if backend is not None and backend.done() else None
    if made is None:
        return None
    best = min(mine, key=lambda each: each.cost)
    sizes, made = problem.workloads[0][0], made.rounding() if ROUNDED in config.target.options else made
    return begin_kernels(best.model, config.target.name, sizes, made, job.searchers, ahead_of_kernels(job))


def compile_ahead(job: Job, ahead: KernelsAhead | None) -> tuple[()]:
    """Begin to compile the kernels whose searches have ended."""
    if ahead is not None:
        ahead.compile(WRITING)
    return ()
