"""Work that must follow a stage has its time by its cost in the run; all other time is for the next
stage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from set_clock import Clock

from taso_mirage.ir.terms import Graph, Tensor, topological, variable
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.target import CUDA
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.shares import (
    after_choice,
    ahead_seconds,
    kernel_seconds,
    measures_last,
    measures_passes,
    measures_search,
    parts_seconds,
    search_seconds,
    trial_seconds,
)
from taso_mirage.pipeline.stage import Job
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.config import OFF, SEARCH, Config, Stop, quiet
from taso_mirage.search.cost import Cost, Roofline
from taso_mirage.search.passes import Context
from taso_mirage.search.search import BestState, Budget, search_model
from taso_mirage.system.deadline import Deadline


def job(budget: float, at: float, load: float = 0.3, kernels: str = SEARCH) -> Job:
    """One that has come to `at`, of a model that takes `load` seconds to open."""
    clock = Clock()
    made = Job(Config(budget=budget, kernels=kernels), quiet, Stop(), CostCache(None), deadline=Deadline(budget, clock))
    made.seconds["load the original"], made.loading = load, load
    made.checking, made.running = 0.5, 1e-3
    clock.now = at
    return made


@pytest.mark.parametrize("kernels", [OFF, SEARCH])
@pytest.mark.parametrize(("budget", "at"), [(3.0, 1.0), (15.0, 4.0), (30.0, 10.0), (60.0, 12.0), (60.0, 40.0)])
def test_a_search_has_time_whatever_the_budget(kernels: str, budget: float, at: float) -> None:
    assert search_seconds(job(budget, at, kernels=kernels)) >= (budget - at) / 8


@pytest.mark.parametrize("load", [0.1, 2.0, 8.0])
def test_what_must_follow_fits_behind_the_search(load: float) -> None:
    made = job(60.0, 20.0, load)
    left = made.deadline.left() - search_seconds(made)
    assert left >= made.checking + 2 * load + 1.5 or left >= made.deadline.left() / 2


def test_where_the_first_kernel_has_no_time_nothing_is_kept_for_it() -> None:
    short, long = job(15.0, 9.0), job(60.0, 9.0)
    assert after_choice(short) == short.checking
    assert after_choice(long) > long.checking + 4.0
    assert search_seconds(short) >= 3.0


def test_a_short_search_of_a_large_model_on_a_gpu_measures_nothing() -> None:
    """The model's operators take longer than the search has: kernels have the time."""
    made = job(60.0, 25.0)
    made.terms = 1000
    assert measures_search(made)
    made.config = replace(made.config, target=CUDA)
    assert search_seconds(made) < 10.0
    assert not measures_search(made)
    made.terms = 20
    assert measures_search(made)
    longer = job(600.0, 25.0)
    longer.terms, longer.config = 1000, replace(longer.config, target=CUDA)
    assert measures_search(longer)


def test_kernels_that_may_not_fit_do_not_give_their_time_to_measurements() -> None:
    made = job(60.0, 22.0, load=6.0)
    made.terms, made.config, made.regions = 1000, replace(made.config, target=CUDA), 3.0
    assert search_seconds(made) > 10.0  # the first kernels are estimated not to fit
    assert not measures_search(made)


def test_passes_of_a_large_model_on_a_gpu_run_again_where_there_is_time_to_measure() -> None:
    """Where there is not, passes and the short search together have a share of the time."""
    for seconds, terms, target, measures in ((60.0, 1000, CUDA, False), (600.0, 1000, CUDA, True)):
        made = job(seconds, 20.0, 5.0)
        made.terms, made.config = terms, replace(made.config, target=target)
        assert measures_passes(made, 5.0) == measures
        there = made.deadline.left()
        assert ahead_seconds(made, 5.0) <= 0.25 * (there + 5.0) - 5.0
        assert ahead_seconds(made, 1.0) - ahead_seconds(made, 5.0) == pytest.approx(3.0)
        made.terms = 20
        assert measures_passes(made, 5.0)
        assert ahead_seconds(made, 5.0) > 0.5 * (there - made.checking - 10.0)


def test_what_others_leave_is_for_the_kernels() -> None:
    assert kernel_seconds(job(60.0, 10.0)) - kernel_seconds(job(60.0, 25.0)) == pytest.approx(15.0)


def test_kernels_of_a_large_model_keep_no_time_for_comparisons() -> None:
    """A trial compared it; without a float64 reference kernels are checked on their inputs."""
    whole = job(60.0, 30.0, load=3.0)
    whole.running = 0.1
    regions = job(60.0, 30.0, load=3.0)
    regions.running, regions.regions = 0.1, 6.0
    assert kernel_seconds(whole) == 30.0 - whole.checking - 3.0
    assert kernel_seconds(regions) <= 30.0 - regions.regions - regions.checking
    small = job(60.0, 30.0, load=1.0)
    assert kernel_seconds(small) <= 30.0 - small.checking - 2 * 1.0 - 4.0


def test_kernels_of_checked_rewrites_keep_little_time_for_their_own_check() -> None:
    made = job(60.0, 33.0, load=2.3)
    made.running, made.checking, made.regions = 0.1, 4.5, 7.2
    estimated = kernel_seconds(made)
    made.seconds["check"] = 1e-5  # nothing was changed, so nothing was checked
    assert kernel_seconds(made) == estimated
    made.seconds["check"] = 8.7
    assert kernel_seconds(made) == pytest.approx(27.0 - 4.5 - 2.3 - 2.0)
    assert kernel_seconds(made) > estimated + 4.0


def test_a_trial_of_a_large_model_ends_where_the_difference_is_clear() -> None:
    small, slow = job(60.0, 30.0, load=1.0), job(60.0, 30.0, load=3.0)
    assert trial_seconds(small, 1) == pytest.approx(1.0 + 4.5 / 2)
    assert trial_seconds(slow, 1) == pytest.approx(3.0 + 4.5 / 4)
    assert trial_seconds(slow, 2) == trial_seconds(slow, 1) + 3.0


def test_the_look_for_parts_that_do_not_pay_takes_no_kernels_their_time() -> None:
    made = job(60.0, 10.0)
    assert parts_seconds(made, made.deadline.left()) == 9.0
    assert parts_seconds(made, 1.0) == 0.0


def test_a_search_looks_first_at_what_costs_most_in_all_its_places() -> None:
    """One part of large matrices after small ones, and time for one look."""
    x = variable("x", Tensor("float32", (64, 64)))
    y = x
    for i in range(90):
        y = term(("tanh", "exp", "relu")[i % 3] if i < 30 else "sigmoid", y)
    y = term("concat", y, y, axis=0)
    for _ in range(6):
        y = term("concat", y, y, axis=1)
    for i in range(40):
        y = term(("neg", "abs")[i % 2], y)
    looked = list[int]()

    def strategy(graph: Graph, rules: Rules, eager: Rules, cost: Cost, *rest: object) -> BestState:
        looked.append(max(size for node in topological(graph.outputs) for size in map(int, node.shape)))
        price = cost(graph.outputs)
        return BestState((), price, price, 1, 1, "")

    context = Context({"": 20, "com.microsoft": 1}, {})
    search_model((y,), Rules(()), Rules(()), Cost(Roofline(context)), context, Budget(20.0), strategy=strategy)
    assert len(looked) > 2
    assert looked[0] == max(looked) > looked[-1]


def test_a_search_leaves_what_a_model_that_is_slow_to_load_needs() -> None:
    """Loads of 8 s: without time for a first kernel the search has the time that the rest does not
    need."""
    made = job(60.0, 22.0, 8.0)
    made.checking, made.regions = 9.0, 5.0
    left = made.deadline.left() - search_seconds(made)
    assert left >= made.checking + made.regions + 2 * 8.0 + 1.5 or search_seconds(made) <= 1.0


def test_only_the_comparison_of_a_slow_model_on_a_cpu_waits_for_kernels() -> None:
    made = job(60.0, 20.0, load=0.5)
    for running, waits in ((0.03, False), (0.2, True)):
        made.running = running
        assert measures_last(made) == waits
        assert not measures_last(replace(made, config=replace(made.config, kernels=OFF)))
        assert not measures_last(replace(made, config=replace(made.config, budget=600.0)))
        assert not measures_last(replace(made, config=replace(made.config, target=CUDA)))
