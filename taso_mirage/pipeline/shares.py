"""The seconds reserved for the work that must follow, estimated from this run: a comparison, the
check, a set of kernels in the model. All other time is available to the next stage."""

from __future__ import annotations

from taso_mirage.measure.native import LONG_RUN
from taso_mirage.measure.session import FEW
from taso_mirage.pipeline.fuse.order import LEAST_REGIONS
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.config import OFF, Config

REFERENCE = 0.1
"""The largest share of the budget for the float64 references; the first has twice as much."""
REGIONS = 0.08
"""The share of the budget for the check of regions; its least seconds are LEAST_REGIONS."""
COMPARISON, SHORTEST = 0.15, 1.5
"""The share of the budget for one comparison of whole models, and its least seconds."""
AFTER = 0.5
"""The share of a comparison's time if kernels follow, because there are then more comparisons."""
SHORT = 0.25
"""The share of a comparison's time that one takes which ends where the difference is clear."""
RUNS, LONG_RUNS = 3, 2
"""The number of runs in a round of a slow model, of both sessions, including warm-up; and where a
run is so long that it needs none."""
PARTS = 0.15
"""The largest share of the budget for the ablation of a candidate's parts."""
HALF = 0.5
"""The share of the rest of the time for all that must follow, and for the search where kernels come
after it."""
BEFORE_KERNELS = 0.25
"""The share for the search on a GPU and of a large model, where kernels gain more."""
AGAIN = 0.5
"""The time to load an optimized model relative to the original's."""
LOADS = 2
"""The number of loads of a model for which time is kept before a comparison."""
RUNTIME_LOADS = 3
"""The number of loads of the original as long as which another runtime compiles it, for the
comparison and for the check."""
CHECKED = 2
"""The number of models that are loaded to check kernels: with their library and, if the model also
goes to other machines, without."""
SOME = 0.1
"""The least seconds of a check in which anything was compared."""
MEASURING, MANY = 10.0, 256
"""Seconds below which nothing is measured for a search on a GPU, if kernels follow, and terms of a
model of which so few seconds would measure no part."""
REGION = 4.0
"""Seconds for the first kernel."""
ROUGH = 1.5
"""The factor by which the estimate for the first kernels of a large model may be too high."""
LOOK = 1.0
"""The smallest number of seconds of a search, if available."""
DECIDING = 0.5
"""The share of the searches' time that the passes assume to be available."""
AHEAD = 0.75
"""The largest share of the rest of the time for the short search by predicted costs, which ends by
numbers: it finds most of the gain, and needs no measurement."""
AHEAD_OF_KERNELS = 1 / 6
"""The share of the rest of the time for the searches for kernels that begin before their stage."""
LARGE = 0.02
"""The share of the budget; a model is large if its load and comparison take more."""
WAITING = 0.05
"""The share of the budget; a comparison waits for kernels if it takes more with a load."""
EXPLAINING, MEASURED = 0.1, 30.0
"""The share of the budget for requested explanations of changes, and its largest number of
seconds."""
WRITING = 1 << 29
"""Bytes of weights that are written in a second."""


def finishing_seconds(config: Config, reading: float, bytes: int) -> float:
    """Seconds kept for work after the result: an explanation, and writing, which takes about as
    long as the file took to read (`reading`), or longer where its weights were not yet read."""
    explaining = min(EXPLAINING * config.budget, MEASURED) if config.explain else 0.0
    return reading + bytes / WRITING + explaining


def comparison_seconds(job: Job) -> float:
    """Seconds of one comparison of whole models."""
    share = COMPARISON * (1.0 if job.config.kernels == OFF else AFTER)
    return min(job.config.seconds, max(share * job.config.budget, SHORTEST))


def next_comparison_seconds(job: Job, left: float) -> float:
    """Seconds of one comparison if `left` seconds remain: at most half of them, because comparing
    more candidates in fewer rounds shows more."""
    return min(comparison_seconds(job), max(HALF * left, HALF * SHORTEST, slow_seconds(job)))


def trial_seconds(job: Job, loads: int) -> float:
    """The least seconds that a model with kernels takes to load, so many times, and to compare: a
    large one only until the difference is clear."""
    share = SHORT if large(job) else HALF
    return loads * load_seconds(job) + max(share * comparison_seconds(job), slow_seconds(job))


def slow_seconds(job: Job) -> float:
    """The smallest number of seconds of a comparison; a slow model needs more time for a few
    rounds."""
    return FEW * (LONG_RUNS if job.running > LONG_RUN else RUNS) * job.running


def compared_seconds(job: Job) -> float:
    """Seconds that a comparison takes."""
    return max(comparison_seconds(job), slow_seconds(job))


def load_seconds(job: Job) -> float:
    """Seconds to load an optimized model into the runtime, fewer than for the original, because its
    process has the weights."""
    first = job.seconds.get("load the original", 0.0)
    return AGAIN * first if job.loading is None else job.loading


def large(job: Job) -> bool:
    """Whether a trial of a whole model takes so long that other work, such as kernels, gains more
    in that time. Predicted costs then choose among candidates, and each is loaded once."""
    trial = job.seconds.get("load the original", 0.0) + slow_seconds(job)
    return trial > LARGE * job.config.budget


def measures_last(job: Job) -> bool:
    """Whether the first candidate is compared with the original only together with its kernels, or
    after none stayed: on a CPU, where a load and a comparison of a slow model take as long as
    several kernels."""
    config, trial = job.config, load_seconds(job) + slow_seconds(job)
    return config.measure and config.kernels != OFF and config.target.on_cores and trial > WAITING * config.budget


def measuring_seconds(job: Job) -> float:
    """Seconds kept for the choice among the candidates, or for a later comparison of it."""
    return compared_seconds(job) + LOADS * load_seconds(job) if job.config.measure else 0.0


def parts_seconds(job: Job, left: float) -> float:
    """Seconds for the ablation of rewrites where `left` seconds are left: a comparison follows."""
    return max(min(left - comparison_seconds(job), PARTS * job.config.budget), 0.0)


def _kernel_check_seconds(job: Job) -> float:
    """Seconds of the check of kernels that were made. Those of a large model were compared when
    they were tried. Without a float64 reference they are checked on the inputs of their regions:
    that takes a load and LEAST_REGIONS seconds where rewrites were checked so before, and is
    estimated as `Job.regions` otherwise."""
    if large(job) and job.regions > 0:
        checked = job.seconds.get("check", 0.0) > SOME
        regions = load_seconds(job) + LEAST_REGIONS
        return job.checking + (min(regions, job.regions) if checked else load_seconds(job) + job.regions)
    if large(job):
        return job.checking + (load_seconds(job) if job.config.elsewhere else 0.0)
    return _whole_check_seconds(job)


def _whole_check_seconds(job: Job) -> float:
    """Seconds of a check of kernels in whole models with the kernels and without, which are
    compared with the original."""
    share = 1.0 if job.config.elsewhere else 1 / CHECKED
    return share * (compared_seconds(job) + job.checking + CHECKED * load_seconds(job))


def _first_kernels(job: Job) -> float:
    """Seconds until one kernel is in a result: it is made, tried in the model and checked. Whether
    it will be compared when it is tried is not known before, so the longer check is assumed. Where
    the choice waits for that comparison, there is another one of the model without kernels."""
    check = _kernel_check_seconds(job) if job.regions > 0 else _whole_check_seconds(job)
    loads = LOADS - 1 if measures_last(job) else LOADS
    return REGION + compared_seconds(job) + loads * load_seconds(job) + check


def runtime_seconds(job: Job) -> float:
    """Seconds to load, to compare and to check one model in another runtime, which compiles it."""
    return RUNTIME_LOADS * load_seconds(job) + compared_seconds(job) + job.checking


def _reserve_for_runtimes(job: Job) -> float:
    """Seconds kept for a model in each of the other runtimes."""
    return len(job.config.runtimes) * runtime_seconds(job) if job.config.measure else 0.0


def _reserve_for_kernels(job: Job, left: float) -> float:
    """The part of the `left` seconds that is kept for the first kernels: none where they would not
    be enough."""
    if job.config.kernels == OFF:
        return 0.0
    wanted = _first_kernels(job)
    return wanted if wanted + LOOK <= left else 0.0


def after_choice(job: Job) -> float:
    """Seconds kept for the work after the choice: the check, and the first kernels."""
    must = job.checking + job.regions + _reserve_for_runtimes(job)
    return must + _reserve_for_kernels(job, job.deadline.left() - must)


def _free_seconds(job: Job) -> float:
    """Seconds for the searches of substitutions and of kernels."""
    left = job.deadline.left()
    must = measuring_seconds(job) + job.checking + job.regions + _reserve_for_runtimes(job)
    return max(left - must, min(LOOK, HALF * left))


def search_seconds(job: Job) -> float:
    """Seconds that passes, mutants and search may take from now on: all except those of the work
    after them, and a share of these where kernels follow. Those of a large model gain more than a
    search, also if they are estimated not to fit by a little. Unused seconds are for the
    kernels."""
    free = _free_seconds(job)
    kernels, fitting = _reserve_for_kernels(job, free), ROUGH if measures_last(job) else 0.0
    if not kernels and (job.config.kernels == OFF or _first_kernels(job) > fitting * free):
        return free
    share = HALF if job.config.target.on_cores and not large(job) else BEFORE_KERNELS
    return max(share * (free - kernels), LOOK)


def measures_search(job: Job) -> bool:
    """Whether mutants and search have enough time to measure operators. Otherwise only the search
    by predicted costs runs, and kernels get the time: also if they are estimated not to fit,
    because the estimate is rough."""
    return not kernels_first(job) or BEFORE_KERNELS * _free_seconds(job) >= MEASURING


def measures_passes(job: Job, passing: float) -> bool:
    """Whether passes run again with measurements, after those by predicted costs that took
    `passing` seconds. Without measurements they would find the same again."""
    return not kernels_first(job) or BEFORE_KERNELS * job.deadline.left() >= MEASURING + passing


def kernels_first(job: Job) -> bool:
    """Whether kernels gain more than a search: those of a large model on a GPU, where operators'
    costs are predicted."""
    return not job.config.target.on_cores and job.config.kernels != OFF and job.terms > MANY


def ahead_of_kernels(job: Job) -> float:
    """Seconds of the searches for kernels that begin before the stage of kernels: a share of the
    rest, because they all must end before any is compiled."""
    return AHEAD_OF_KERNELS * job.deadline.left()


def ahead_seconds(job: Job, passing: float) -> float:
    """Seconds that the short search by predicted costs may take after passes of `passing` seconds:
    only the check and the shortest comparison must follow it. Where kernels come first, the passes
    and this search together have the share of a search before kernels."""
    must = job.checking + job.regions + load_seconds(job) + slow_seconds(job)
    left = max(job.deadline.left() - must, 0.0)
    if not kernels_first(job):
        return AHEAD * left
    return max(BEFORE_KERNELS * (left + passing) - passing, min(LOOK, HALF * left))


def kernel_seconds(job: Job) -> float:
    """Seconds that the search of kernels may take: all except those of the work after it."""
    left = job.deadline.left()
    return left - min(_kernel_check_seconds(job), HALF * left)
