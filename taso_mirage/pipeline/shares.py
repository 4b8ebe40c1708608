"""The seconds of what must still follow on a result, by what it took in this run: a comparison,
the check, a set of kernels in the model. All other time is for what is next."""

from __future__ import annotations

from taso_mirage.measure.session import FEW
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.config import OFF, Config

REFERENCE = 0.1
"""Of the budget, for the float64 references, at most; the first has twice as much."""
REGIONS, LEAST_REGIONS = 0.08, 2.0
"""Of the budget, for the check of regions, and seconds that it has in any case."""
COMPARISON, SHORTEST = 0.15, 1.5
"""Of the budget, for one comparison of whole models, and seconds that it has in any case."""
AFTER = 0.5
"""The part of a comparison's time that each has where kernels follow: there are more of them."""
RUNS = 3
"""Runs in a round of a slow model: of both sessions, with those to warm up."""
PARTS = 0.15
"""Of the budget, at most, to look for parts of a candidate that do not pay."""
HALF = 0.5
"""Of what is left, for all that must follow, and for the search where kernels come after it."""
BEFORE_KERNELS = 0.25
"""The same of the search on a GPU and of a large model, where kernels gain more."""
AGAIN = 0.5
"""Of the seconds that the original took to load, what an optimized model takes."""
LOADS = 2
"""For so many loads of a model time is kept before a comparison."""
CHECKED = 2
"""So many models are loaded to check kernels: with their library and, if the model also goes to
other machines, without."""
MEASURING, MANY = 10.0, 256
"""Seconds below which nothing is measured for a search on a GPU, if kernels follow, and terms of a
model of which so few seconds would measure no part."""
REGION = 4.0
"""Seconds for the first kernel."""
LOOK = 1.0
"""Seconds that a search has at least, if there are so many."""
DECIDING = 0.5
"""Of the searches' time, for what the passes ask of the clock."""
AHEAD = 0.75
"""Of what is left, at most, for the short search by predicted costs, which ends by numbers: it
finds most of what there is, and needs no measurement."""
LARGE = 0.02
"""The share of the budget from which on a model is large: to load and compare it takes more."""
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


def next_comparison_seconds(job: Job, left: float) -> float:
    """Seconds of one comparison where so many are `left`: at most half, since more candidates in
    fewer rounds say more than one alone."""
    return min(comparison_seconds(job), max(HALF * left, HALF * SHORTEST, slow_seconds(job)))


def slow_seconds(job: Job) -> float:
    """What a comparison takes at least: a slow model has few rounds in it, in more time."""
    return FEW * RUNS * job.running


def compared_seconds(job: Job) -> float:
    """What a comparison takes."""
    return max(comparison_seconds(job), slow_seconds(job))


def load_seconds(job: Job) -> float:
    """Of an optimized model's way into the runtime, which takes less than the original's: the
    weights are there."""
    first = job.seconds.get("load the original", 0.0)
    return AGAIN * first if job.loading is None else job.loading


def large(job: Job) -> bool:
    """Whether a trial of a whole model takes so long that kernels, say, gain more in that time: the
    prices of its parts choose among candidates then, and a candidate is loaded once."""
    trial = job.seconds.get("load the original", 0.0) + slow_seconds(job)
    return trial > LARGE * job.config.budget


def measuring_seconds(job: Job) -> float:
    """What is kept for the choice among the candidates."""
    return compared_seconds(job) + LOADS * load_seconds(job) if job.config.measure else 0.0


def parts_seconds(job: Job, left: float) -> float:
    """What the look for parts that do not pay may take where so many seconds are `left`: a
    comparison follows."""
    return max(min(left - comparison_seconds(job), PARTS * job.config.budget), 0.0)


def _checked_kernels(job: Job) -> float:
    """What follows on kernels in a model: a check. Those of a large model are checked on what their
    regions read; others in whole models, the original and the model with its kernels and without,
    which are compared, too."""
    if large(job) and job.regions > 0:
        return load_seconds(job) + min(job.regions, LEAST_REGIONS) + job.checking
    share = 1.0 if job.config.elsewhere else 1 / CHECKED
    return share * (compared_seconds(job) + job.checking + CHECKED * load_seconds(job))


def _first_kernels(job: Job) -> float:
    """What one kernel takes until it is in a result: it is made, and tried in the model."""
    return REGION + compared_seconds(job) + LOADS * load_seconds(job) + _checked_kernels(job)


def _kept_for_kernels(job: Job, left: float) -> float:
    """Of the seconds that are `left` after all else that must follow, those that are kept for the
    first kernels: none where they would not be enough."""
    if job.config.kernels == OFF:
        return 0.0
    wanted = _first_kernels(job)
    return wanted if wanted + LOOK <= left else 0.0


def after_choice(job: Job) -> float:
    """What is kept for all that follows on the choice: the check, and the first kernels."""
    must = job.checking + job.regions
    return must + _kept_for_kernels(job, job.deadline.left() - must)


def search_seconds(job: Job) -> float:
    """What passes, mutants and search may take from now on: all but what must follow on them, and
    where kernels come after them half of it. What they leave is for the kernels."""
    left = job.deadline.left()
    free = max(left - measuring_seconds(job) - job.checking - job.regions, min(LOOK, HALF * left))
    kernels = _kept_for_kernels(job, free)
    share = BEFORE_KERNELS if job.config.target.gpu or large(job) else HALF
    return free if not kernels else max(share * (free - kernels), LOOK)


def measures_search(job: Job) -> bool:
    """Whether mutants and search have the time to measure operators; where they have not, the
    search by predicted costs is all, and kernels have the time."""
    short = job.config.target.gpu and job.config.kernels != OFF and job.terms > MANY
    return not short or search_seconds(job) >= MEASURING


def ahead_seconds(job: Job) -> float:
    """What the short search by predicted costs may take: only the check and the shortest comparison
    must follow on it."""
    must = job.checking + job.regions + load_seconds(job) + slow_seconds(job)
    return AHEAD * max(job.deadline.left() - must, 0.0)


def kernel_seconds(job: Job) -> float:
    """What the search of kernels may take: all but what follows on them."""
    left = job.deadline.left()
    return left - min(_checked_kernels(job), HALF * left)
