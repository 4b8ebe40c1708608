"""How the time of a command is divided: what must come at the end (measuring, checking, kernels)
has its share kept, and the searches have what is left before it."""

from __future__ import annotations

from taso_mirage.measure.session import FEW
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.config import OFF, Config

REFERENCE = 0.1
"""Of the budget, for the float64 references, at most; the first has twice as much."""
COMPARISON, SHORTEST = 0.15, 1.5
"""Of the budget, for one comparison of whole models, and seconds that it has in any case."""
KERNELS, AFTER = 0.4, 0.5
"""Of the budget, for kernels, and the part of a comparison's time that each has then: there are
more of them."""
COMPARISONS = 2
"""For so many comparisons time is kept: a gain that may be chance is measured again."""
RUNS = 3
"""Runs in a round of a slow model: of both sessions, with those to warm up."""
PARTS = 0.15
"""Of the budget, to look for parts of a candidate that do not pay; what the search left is for it
as well."""
HALF = 0.5
"""Of the budget, for all comparisons, at most."""
LOADS = 2
"""For so many loads of a model time is kept before a comparison."""
CHECKED = 2
"""So many models are loaded to check kernels: with their library and, if the model also goes to
other machines, without."""
DECIDING = 0.5
"""Of the searches' time, for what the passes ask of the clock."""
LEAST = 0.2
"""Of the budget, for kernels however late it is, but no more than half of what is left."""
EXPLAINING, MEASURED = 0.1, 30.0
"""Of the budget, to explain changes where that is asked for, and seconds at most."""
WRITING = 1 << 29
"""Bytes of weights that are written in a second."""


def finishing_seconds(config: Config, reading: float, bytes: int) -> float:
    """What is kept for all that follows on the result: an explanation, and to write it, which takes
    about as long as the file took to read (`reading`), or longer where its weights were not yet
    read."""
    explaining = min(EXPLAINING * config.budget, MEASURED) if config.explain else 0.0
    return reading + bytes / WRITING + explaining


def comparison_seconds(job: Job) -> float:
    """Of one comparison of whole models."""
    share = COMPARISON * (1.0 if job.config.kernels == OFF else AFTER)
    return min(job.config.seconds, max(share * job.config.budget, SHORTEST))


def slow_seconds(job: Job) -> float:
    """What a comparison takes at least: a slow model has few rounds in it, in more time."""
    return FEW * RUNS * job.running


def compared_seconds(job: Job) -> float:
    """What a comparison takes."""
    return max(comparison_seconds(job), slow_seconds(job))


def load_seconds(job: Job) -> float:
    """Of the original's way into the runtime; an optimized model's takes as long."""
    return job.seconds.get("load the original", 0.0)


def measuring_seconds(job: Job) -> float:
    """What is kept for the choice among the candidates."""
    if not job.config.measure:
        return 0.0
    wanted = COMPARISONS * compared_seconds(job) + LOADS * load_seconds(job) + PARTS * job.config.budget
    return min(wanted, HALF * job.config.budget)


def after_choice(job: Job) -> float:
    """What is kept for all that follows on the choice: the check, and kernels."""
    return job.checking + (0.0 if job.config.kernels == OFF else KERNELS * job.config.budget)


def search_seconds(job: Job) -> float:
    """What passes, mutants and search may take from now on."""
    return max(job.deadline.left() - measuring_seconds(job) - after_choice(job), 0.0)


def kernel_seconds(job: Job) -> float:
    """What the search of kernels may take: a comparison and a check follow, of the original and of
    the model with its kernels and without."""
    share = 1.0 if job.config.elsewhere else 1 / CHECKED
    after = share * (COMPARISONS * compared_seconds(job) + job.checking + CHECKED * load_seconds(job))
    left = job.deadline.left()
    return max(left - after, min(LEAST * job.config.budget, left / 2))
