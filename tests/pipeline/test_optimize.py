"""The optimizer on small models: passes, search, partition, choice and check, and random graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from random_graphs import graphs
from small_models import CONTEXT, F, model, ops, searched, w, x

from taso_mirage.errors import (
    RunFailed,
)
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, topological, variable, weight
from taso_mirage.measure import check, magnitudes
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import NUDGES, difference, first_bad
from taso_mirage.measure.load import Load
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import CPU, CUDA, Target
from taso_mirage.measure.timing import Timing, Verdict
from taso_mirage.onnx_io import from_ir, serialize, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import get, term
from taso_mirage.pipeline import choice, optimize_model, problem, shares
from taso_mirage.pipeline.stage import Job
from taso_mirage.prove.fingerprint import fingerprint
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.text import laws, parse_equation
from taso_mirage.search import passes, search
from taso_mirage.search.available import Available
from taso_mirage.search.config import Config, Stop, measuring, quiet
from taso_mirage.search.cost import Cost, CostCache, Roofline
from taso_mirage.search.finalists import finalists_of
from taso_mirage.search.partition import LEAST, model_parts
from taso_mirage.search.passes import Context, simplify
from taso_mirage.search.rewriter import ModelCandidate, Rewriter
from taso_mirage.search.rulesets import RuleSet
from taso_mirage.search.rulesets import rules as all_rules
from taso_mirage.search.search import (
    BestState,
    Budget,
    SearchState,
    StateRewrite,
    contests,
    directions,
    search_part,
)
from taso_mirage.search.steps import RewriteStep, replay
from taso_mirage.search.weights import dtype_holds, fold_weights
from taso_mirage.system.deadline import Deadline
from taso_mirage.verdicts import FailureKind, failed


def test_parts_that_save_most_in_all_places_are_measured_first_while_there_is_time() -> None:
    """The other parts keep the state that is predicted to be the fastest; a part whose first state
    wins the contest is left as it was."""
    parts_of = {name: x(4, size) for size, name in enumerate("abc", 1)}
    graphs = {name: Graph((leaf,), (term("neg", leaf),)) for name, leaf in parts_of.items()}
    gains, places = {"a": 1.0, "b": 3.0, "c": 2.0}, {"a": 5, "b": 1, "c": 1}
    found = {
        graphs[name]: BestState(path, 9.0, 9.0 - gain, 1, 1, "", finalists=((9.0, ()), (9.0 - gain, path)))
        for name, gain in gains.items()
        for path in [(StateRewrite(("law",), (term("abs", parts_of[name]),)),)]
    }
    asked: list[Node] = []
    budget = Budget(100.0)

    def choose(states: list[SearchState]) -> int:
        asked.append(states[0][0])
        budget.seconds = 0.0 if len(asked) == 2 else budget.seconds
        return 0

    budget.choose = choose
    contests(found, {graphs[n]: count for n, count in places.items()}, budget, 1.0)
    assert asked == [graphs["a"].outputs[0], graphs["b"].outputs[0]]
    assert [len(found[graphs[n]].path) for n in "abc"] == [0, 0, 1]
    assert [found[graphs[n]].after for n in "abc"] == [9.0, 9.0, 7.0]


def test_a_part_is_not_measured_where_what_is_left_is_less_than_another_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of three sizes, on a clock of the test: 4 of 10 seconds each, so that the third would
    go 2 over."""
    graphs = [Graph((x(4, n),), (term("neg", x(4, n)),)) for n in (1, 2, 3)]
    found = {g: BestState((), 9.0, 8.0, 1, 1, "", finalists=((8.0, ()), (8.0, ()))) for g in graphs}
    now = [0.0]
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asked = []

    def choose(states: list[SearchState]) -> int:
        asked.append(states)
        now[0] += 4.0
        return 0

    contests(found, dict.fromkeys(graphs, 1), Budget(10.0, start=0.0, choose=choose), 0.0)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("rounds", "asked", "kept"),
    [
        ([[1.2]], 1, True),
        ([[1.0]], 1, False),
        ([[1.02]], 3, True),  # more than luck, as three pairs of sessions agree
        ([[1.02], [1.0]], 4, False),  # three by the wall, and one by CPU time
        ([[1.02], [0.99]], 4, False),
        ([[1.02], [1.0], [1.0], [1.2]], 4, True),  # by CPU time
    ],
)
def test_a_gain_that_may_be_chance_is_measured_again_in_new_sessions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rounds: list[list[float]], asked: int, kept: bool
) -> None:
    """Nothing is predicted to gain here."""
    monkeypatch.setattr(choice, "PROMISING", 0.0)
    assert measured_again(monkeypatch, tmp_path, rounds) == (asked, kept)


def measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rounds: list[list[float]], stop: Stop | None = None
) -> tuple[int, bool]:
    """The number of measurements, each in sessions of its own, and whether a rewrite was kept: each
    list is how many times as fast the candidates are in the rounds of one measurement; the last one
    stays."""
    seen: list[Session] = []

    def clock(sessions: list[Session], *_: object) -> list[list[float]]:
        gains = rounds[min(len(seen), len(rounds) - 1)] * 12
        seen.append(sessions[0])
        if stop is not None:
            stop()
        return [[1.0] * len(gains), *([1 / g for g in gains] for _ in sessions[1:])]

    a = x(8, 8)
    slow = model((a,), (term("relu", term("relu", term("neg", term("neg", a)))),))
    monkeypatch.setattr(runtime, "interleaved", clock)
    monkeypatch.setattr(choice.Choosing, "_what_pays", lambda self, best, timing, pace, target: (best, timing))
    result = optimize_model(slow, Config(budget=60.0, cache=tmp_path / "costs", seconds=0.1), stop=stop)
    assert len({id(s) for s in seen}) == len(seen)
    assert result.changed or choice.KEPT in result.notes[-1]
    return len(seen), result.changed


@pytest.mark.parametrize(
    ("rounds", "asked", "kept"),
    [
        ([[0.98], [1.3]], 4, True),
        ([[0.98]], 3, False),
        ([[0.9]], 1, False),  # no luck is so bad
        ([[1.0, 1.02]], 4, True),  # undecided: as predicted
        ([[1.0]], 4, False),  # there is no gain to predict
    ],
)
def test_bad_luck_does_not_end_what_is_predicted_to_gain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rounds: list[list[float]], asked: int, kept: bool
) -> None:
    monkeypatch.setattr(choice, "PROMISING", 2.0)
    assert measured_again(monkeypatch, tmp_path, rounds) == (asked, kept)


def test_without_time_for_another_look_the_first_one_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice, "PROMISING", 2.0)
    monkeypatch.setattr(choice.Choosing, "_left", lambda self: 0.0)
    assert measured_again(monkeypatch, tmp_path, [[0.98], [1.3]]) == (1, False)


def test_an_interrupt_ends_the_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one that had begun is the last; an open comparison is as predicted."""
    monkeypatch.setattr(choice, "PROMISING", 2.0)
    assert measured_again(monkeypatch, tmp_path, [[0.98], [1.005]], Stop()) == (1, True)
    monkeypatch.setattr(choice, "PROMISING", 0.0)
    assert measured_again(monkeypatch, tmp_path, [[1.02], [1.3]], Stop()) == (1, False)


def test_beside_other_processes_cpu_time_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the wall all would be slower. The written model is for the threads that users have."""
    seen: list[Target] = []

    def clock(sessions: list[Session], *_: object) -> list[list[float]]:
        seen.extend(each.target for each in sessions)
        gain = 1.2 if sessions[0].target == CPU.serial else 0.9
        return [[gain if each is sessions[0] else 1.0] * 9 for each in sessions]

    a = x(8, 8)
    slow = model((a,), (term("relu", term("relu", term("neg", term("neg", a)))),))
    config = Config(budget=60.0, cache=tmp_path / "costs", seconds=0.1)
    monkeypatch.setattr(runtime, "interleaved", clock)
    assert not optimize_model(slow, config).changed
    assert set(seen) == {CPU}
    seen.clear()
    monkeypatch.setattr(choice, "observed_load", lambda: Load(0.5, 2))
    result = optimize_model(slow, config)
    assert result.changed
    assert set(seen) == {CPU.serial}
    assert result.target == CPU
    assert result.timing is not None
    assert result.timing.works
    assert "2 other processes used the cores: CPU time decided" in result.notes


def test_who_comes_while_models_run_changes_the_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Target] = []

    def clock(sessions: list[Session], *_: object) -> list[list[float]]:
        seen.append(sessions[0].target)
        return [[1.2 if each is sessions[0] else 1.0] * 9 for each in sessions]

    loads = iter([Load()])
    monkeypatch.setattr(runtime, "interleaved", clock)
    monkeypatch.setattr(choice, "observed_load", lambda: next(loads, Load(0.5, 2)))
    monkeypatch.setattr(choice.Choosing, "_what_pays", lambda self, best, timing, pace, target: (best, timing))
    a = x(8, 8)
    slow = model((a,), (term("relu", term("relu", term("neg", term("neg", a)))),))
    result = optimize_model(slow, Config(budget=60.0, cache=tmp_path / "costs", seconds=0.1))
    assert seen == [CPU, CPU.serial]
    assert result.changed


def test_of_states_that_cost_the_same_noise_chooses_none() -> None:
    """Operands of a sum change places, which costs nothing; one state has a term less, one costs
    less."""
    a, b = x(4, 4), x(4, 4, name="b")
    first = (term("neg", term("neg", term("add", a, b))),)
    turned, short = (term("neg", term("neg", term("add", b, a))),), (term("add", a, b),)
    mirror, cheap = (term("add", b, a),), (term("relu", term("add", a, b)),)
    orders = set()
    for seed in range(20):
        noise = np.random.default_rng(seed).uniform(1.0, 1.008, 5)
        known = dict(zip((first, turned, short, mirror), noise, strict=False))
        orders.add(tuple(finalists_of(first, known, 1.05)))
        assert finalists_of(first, {**known, cheap: 0.9 * noise[4]}, 1.05)[0] == cheap
    assert len(orders) == 1
    (order,) = orders
    assert order[0] in (short, mirror)
    assert len({short, mirror, first, turned} & set(order)) == 2  # to change places makes no other state
    assert first in order


@pytest.mark.parametrize("order", [(1.0, 1.1), (1.1, 1.0)])
def test_of_candidates_that_take_as_long_the_one_is_taken_that_is_predicted_to_be_faster(
    order: tuple[float, float],
) -> None:
    """Whichever was measured to be faster, possibly by luck."""
    a = x(8, 8)
    first, second = (ModelCandidate(str(cost), model((a,), (term("relu", a),)), (), cost, CPU) for cost in order)
    choosing = object.__new__(choice.Choosing)
    choosing.problem, choosing.load = SimpleNamespace(workloads=[({}, 1.0)], target=CPU), Load()  # type: ignore[assignment]
    for times in ([1.0, 0.9, 0.91], [1.0, 0.91, 0.9]):
        found = choosing._champion([first, second], [[[t] * 16 for t in times]])
        assert (first, second)[found].cost == 1.0
    slower = order.index(1.0)
    times = [1.0, 0.7, 0.7]
    times[1 + slower] = 0.9
    assert choosing._champion([first, second], [[[t] * 16 for t in times]]) == 1 - slower


def test_with_time_for_one_load_the_candidate_by_prediction_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that are measured in part would choose another one on a busy machine."""
    a = x(8, 8)
    ahead, other = model((a,), (term("neg", a),)), model((a,), (term("relu", a),))
    candidates = [ModelCandidate("search", other, (), 1.0, CPU), ModelCandidate("passes", ahead, (), 2.0, CPU)]
    job = Job(Config(), quiet, Stop(), CostCache(None))
    posed: Any = SimpleNamespace(target=CPU)
    for left, kept in ((1.0, ["passes"]), (9.0, ["search", "passes"])):
        monkeypatch.setattr(choice.Choosing, "_left", lambda self, left=left: left)
        monkeypatch.setattr(choice, "comparison_seconds", lambda job: 0.0)
        monkeypatch.setattr(choice, "load_seconds", lambda job: 0.7)
        choosing = choice.Choosing(job, posed, candidates[1], {}, [], [ahead.graph])
        assert [each.name for each in choosing._in_time(candidates)] == kept


def test_of_little_time_a_comparison_takes_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other half loads the candidates: a single candidate with all the time would be no
    choice."""
    a = x(8, 8)
    candidates = [ModelCandidate(op, model((a,), (term(op, a),)), (), 1.0, CPU) for op in ("neg", "relu", "tanh")]
    posed: Any = SimpleNamespace(target=CPU)
    choosing = choice.Choosing(
        Job(Config(budget=60.0), quiet, Stop(), CostCache(None)), posed, candidates[0], {}, [], []
    )
    monkeypatch.setattr(choice, "load_seconds", lambda job: 0.4)
    for left, compared, kept in ((100.0, 9.0, 3), (4.0, 2.0, 3), (2.0, 1.0, 2), (-5.0, 0.75, 1)):
        monkeypatch.setattr(shares, "comparison_seconds", lambda job: 9.0)
        monkeypatch.setattr(choice.Choosing, "_left", lambda self, left=left: left)
        assert choosing._comparing() == compared
        assert len(choosing._in_time(candidates)) == kept


def test_where_a_first_run_takes_long_fewer_candidates_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that tries all algorithms of convolutions does so in each session's first run: the
    others that are predicted to be slower are not loaded then."""
    a, now = x(8, 8), [0.0]
    slow = model((a,), (term("relu", term("relu", term("neg", term("neg", a)))),))
    job = Job(Config(budget=60.0), quiet, Stop(), CostCache(None), deadline=Deadline(60.0, lambda: now[0]))
    job.seconds["load the original"] = 1.0
    posed = problem.pose(job, slow, (({}, 1.0),))
    costs = [1.0, 4.0, 2.0, 3.0]
    candidates = [ModelCandidate(str(cost), slow, (), cost, CPU) for cost in costs]
    opened = runtime.open_in_child(slow)
    choosing = choice.Choosing(job, posed, candidates[0], {}, [{}])
    for takes, names in ((0.5, ["1.0", "4.0", "2.0", "3.0"]), (20.0, ["1.0", "2.0"])):
        now[0], job.remarks, job.loading = 0.0, [], None

        def surviving(candidate: ModelCandidate, takes: float = takes) -> tuple[ModelCandidate, Session]:
            now[0] += takes
            return candidate, opened

        monkeypatch.setattr(choice.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(choosing, "_surviving", surviving)
        assert [each.name for each in choosing._alive(candidates)[1]] == names
        assert job.remarks == ([] if takes < 1 else ["2 candidates were not measured: no time was left"])


def test_what_the_runtime_does_not_load_is_dropped_with_its_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The candidates of several sets of options have the same name."""
    opened = runtime.open_in_child

    def refusing(model: Model, target: Target, **options: bool) -> Session:
        if not options.get("source"):
            raise RunFailed("there is no kernel")
        return opened(model, **options)

    a = x(8, 8)
    slow = model((a,), (term("relu", term("relu", term("neg", term("neg", a)))),))
    config = Config(budget=0.0, cache=tmp_path / "c.sqlite")
    with measuring(config) as cache:
        job = Job(config, quiet, Stop(), cache)
        posed = problem.pose(job, slow)
        other = replace(CPU, options=(("prefer_nhwc", "1"),))
        candidates = [ModelCandidate("search", slow, (), 1.0, where) for where in (CPU, other)]
        cases, feeds = problem.refer(job, posed, opened(slow))
        monkeypatch.setattr(runtime, "open_in_child", refusing)
        choosing = choice.Choosing(job, posed, candidates[0], cases[0].inputs, feeds)
        assert choosing.fastest(candidates, opened(slow)) == choice.Choice()
    assert job.remarks == [
        "candidate 'search' was dropped: there is no kernel",
        "candidate 'search' prefer_nhwc=1 was dropped: there is no kernel",
    ]


# ---------------------------------------------------------------- passes


def test_simplify_removes_what_does_nothing() -> None:
    a = x(2, 3)
    doubled = term("transpose", term("transpose", a, perm=(1, 0)), perm=(1, 0))
    outputs, steps = simplify((term("relu", term("relu", doubled)),), Rules(laws()), CONTEXT)
    assert outputs == (term("relu", a),)
    assert replay((term("relu", term("relu", doubled)),), steps) == outputs


def test_simplify_keeps_what_others_use() -> None:
    a, b, c = x(2, 3), w(3, 4), constant(2.0, F)
    product = term("matmul", a, b)
    outputs = (term("mul", product, c), product)
    found, _ = simplify(outputs, Rules(laws()), CONTEXT)
    assert ops(found) == ops(outputs)  # scaling the weight would need a second product


def test_constants_fold_in_float64_and_keep_their_dtype() -> None:
    a, b, c = x(2, 3), w(3, 4, name="b"), w(3, 4, name="c")
    original = model((a,), (term("matmul", a, term("add", b, c)),))
    folded, steps = fold_weights(original)
    assert ops(folded.graph.outputs) == ["matmul"]
    assert len(folded.weights) == 1
    ((_, array),) = folded.weights.items()
    expected = original.weights["b"].numpy().astype(np.float64) + original.weights["c"].numpy()
    np.testing.assert_array_equal(array.numpy(), expected.astype(np.float32))
    assert replay(original.graph.outputs, steps) == folded.graph.outputs


def test_batch_norm_folds_into_the_convolution_before() -> None:
    image, kernel = x(1, 4, 8, 8), w(6, 4, 3, 3)
    parameters = [w(6, name=n) for n in ("scale", "bias", "mean")]
    variance = term("mul", parameters[0], parameters[0])
    conv = term("conv", image, kernel, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)
    outputs = (term("batch_norm", conv, *parameters, variance),)
    result = optimize_model(model((image,), outputs), Config(measure=False))
    assert ops(result.model.graph.outputs) == ["conv"]
    assert all(d.passed for d in result.differences)


def test_an_expanded_constant_does_not_blow_the_model_up() -> None:
    a = x(512, 512)
    big = term("expand", w(1, name="one"), shape=(512, 512))
    folded, _ = fold_weights(model((a,), (term("add", a, big),)))
    assert sum(v.numpy().nbytes for v in folded.weights.values()) < 1000


# ---------------------------------------------------------------- search


def test_parallel_products_merge_into_one_and_a_split() -> None:
    a = x(8, 64)
    outputs = tuple(term("relu", term("matmul", a, w(64, 64, name=n))) for n in "qkv")
    found = searched(outputs)
    assert ops(found).count("matmul") == 1
    assert "split" in ops(found)


def test_parallel_convolutions_merge_but_grouped_ones_do_not() -> None:
    image = x(1, 9, 8, 8)
    for group, expected in ((1, 1), (9, 3)):
        kernels = [w(9, 9 // group, 1, 1, name=n) for n in "abc"]
        convs = [
            term("conv", image, k, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=group) for k in kernels
        ]
        found = searched(tuple(term("tanh", c) for c in convs))
        assert ops(found).count("conv") == expected


def test_a_step_that_costs_may_lead_to_one_that_pays() -> None:
    """(a*b + a*c) needs two products; alpha lets the search pass through states as dear as the
    first."""
    a, b, c = x(32, 32, name="a"), x(32, 32, name="b"), x(32, 32, name="c")
    outputs = (term("add", term("matmul", a, b), term("matmul", a, c)),)
    assert ops(searched(outputs)) == ["add", "matmul"]


def test_search_stops_in_time_and_keeps_the_best() -> None:
    outputs = tuple(term("relu", term("matmul", x(8, 64), w(64, 64, name=n))) for n in "qkv")
    cost, rules = Cost(Roofline(CONTEXT)), laws()
    found = search_part(Graph((x(8, 64),), outputs), Rules(directions(rules)), Rules(rules), cost, CONTEXT, Budget(0.0))
    assert found.states == 0
    assert found.after == found.before


@pytest.mark.parametrize(("passing", "left"), [(1.0, 9.0), (30.0, 8.0)])
def test_the_passes_after_the_search_are_in_its_budget(passing: float, left: float) -> None:
    given: list[float] = []

    def strategy(graph: Graph, *args: Any) -> BestState:
        given.append(args[-1].seconds)
        return BestState((), 0.0, 0.0, 0, 0, "")

    a = x(8, 64)
    rewriter = Rewriter(model((a,), (term("relu", a),)), CPU, [({}, 1.0)], (), {}, None)
    normal, steps, _ = rewriter.passes()
    assert rewriter.passing > 0
    rewriter.passing = passing
    rewriter.search(normal, steps, strategy, Budget(10.0), lambda *_: None)
    assert given == [left]


def test_search_is_deterministic() -> None:
    outputs = tuple(term("relu", term("matmul", x(8, 64), w(64, 64, name=n))) for n in "qkv")
    assert searched(outputs) == searched(outputs)


def test_repeated_layers_are_one_part() -> None:
    state = x(4, 16)
    for i in range(40):
        branch = state
        for _ in range(13):
            branch = term("tanh", term("neg", branch))
        state = term("add", term("mul", state, w(16, name=f"w{i}")), branch)
    found = list(model_parts((state,)))
    assert len(found) == 40
    assert len({p.graph for p in found}) <= 3


def test_a_second_look_finds_what_a_cut_hid() -> None:
    def chain(state: Node, length: int) -> Node:
        for _ in range(length):
            state = term("tanh", state)
        return state

    first = term("neg", chain(x(8, 64), LEAST - 1))
    plain = chain(chain(x(8, 64), LEAST - 1), 50)
    hidden = chain(term("neg", first), 50)
    cut, *_ = model_parts((hidden,))
    assert cut.place(cut.graph.outputs, cut.leaves) == (first,)
    assert all(first not in p.place(p.graph.outputs, p.leaves) for p in model_parts((hidden,), [first]))
    assert searched((hidden,)) == (plain,)


def test_parts_rebuild_the_model() -> None:
    a = x(4, 16)
    state = a
    for i in range(100):
        state = term("add", term("tanh", state), w(16, name=f"w{i % 7}"))
    terms = set(topological((state, term("relu", a))))
    placed = [
        n for piece in model_parts((state, term("relu", a))) for n in piece.place(piece.graph.outputs, piece.leaves)
    ]
    assert state in placed
    assert term("relu", a) in placed
    assert set(placed) <= terms


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_chain_of_20000_nodes_is_optimized(count: int) -> None:
    """By default of as many as no recursion takes."""
    state = x(4, name="chain")
    for _ in range(count // 2):
        state = term("neg", term("abs", state))
    original = model((x(4, name="chain"),), (state,))
    result = optimize_model(original, Config(measure=False, budget=20))
    assert all(d.passed for d in result.differences)
    assert result.terms_after <= count


# ---------------------------------------------------------------- the whole job


def test_other_options_of_the_provider_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(CPU, options=(("cudnn_conv_algo_search", "HEURISTIC"),))
    monkeypatch.setattr(type(CPU), "variants", property(lambda self: (other,)))
    monkeypatch.setattr(
        runtime, "interleaved", lambda sessions, *_: [[1e-3 if s.target == other else 2e-3] * 9 for s in sessions]
    )
    image = x(1, 4, 8, 8)
    conv = term("conv", image, w(4, 4, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    result = optimize_model(model((image,), (conv,)), Config(budget=60, seconds=0.1))
    assert result.target == other
    assert result.timing is not None
    assert result.timing.ratio == pytest.approx(2)
    plain = optimize_model(model((image,), (term("relu", image),)), Config(budget=60, seconds=0.1))
    assert plain.target == CPU  # nothing there is run in another way


def test_the_original_is_kept_when_nothing_is_faster() -> None:
    a = x(4, 4)
    original = model((a,), (term("tanh", a),))
    result = optimize_model(original, Config(measure=False))
    assert not result.changed
    assert result.model.graph == original.graph
    assert "the original's graph is kept" in result.notes[0]


def test_measured_run_is_never_slower_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    a = x(8, 8)
    original = model((a,), (term("relu", term("relu", a)),))
    monkeypatch.setattr(Timing, "verdict", Verdict.SLOWER)
    result = optimize_model(original, Config(seconds=0.1, budget=60))
    assert not result.changed
    assert result.model.graph == original.graph
    assert "times as fast" in result.notes[0]


def test_a_wrong_rule_is_caught_named_and_left_out() -> None:
    """The check fails, bisection finds the first rewrite that breaks the model, and the good ones
    before it stay."""
    wrong = parse_equation("tanh(neg(x)) == tanh(x)", name="wrong.0", evidence="taken on trust")
    good = parse_equation("relu(relu(x)) == relu(x)", name="good.0")
    a = x(4, 4)
    original = model((a,), (term("tanh", term("neg", term("relu", term("relu", a)))),))
    result = optimize_model(original, Config(measure=False, budget=2, rules=RuleSet((good, wrong))))
    assert any("'wrong.0'" in note for note in result.notes)
    assert result.changed
    assert ops(result.model.graph.outputs) == ["neg", "relu", "tanh"]
    assert all(d.passed for d in result.differences)
    assert result.failure is not None


def test_a_wrong_rule_alone_leaves_the_original() -> None:
    wrong = parse_equation("tanh(neg(x)) == tanh(x)", name="wrong.0", evidence="taken on trust")
    original = model((x(4, 4),), (term("tanh", term("neg", x(4, 4))),))
    result = optimize_model(original, Config(measure=False, budget=2, rules=RuleSet((wrong,))))
    assert not result.changed
    assert result.model.graph == original.graph


def test_a_wrong_law_does_not_apply() -> None:
    """The law has no proof, so the check has nothing to find."""
    original = model((x(4, 4),), (term("tanh", term("neg", x(4, 4))),))
    wrong = RuleSet((parse_equation("tanh(neg(x)) == tanh(x)", name="wrong.0"),))
    result = optimize_model(original, Config(measure=False, budget=2, rules=wrong))
    assert not result.changed
    assert result.failure is None


def test_an_interrupt_keeps_the_best_found() -> None:
    stop = Stop()
    a = x(8, 64)
    outputs = tuple(term("relu", term("relu", term("matmul", a, w(64, 64, name=n)))) for n in "qkv")

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "search" and total:
            stop()

    result = optimize_model(model((a,), outputs), Config(measure=False), progress, stop)
    assert "interrupted" in result.notes[0]
    assert result.terms_after == 6  # the findings of the passes stay
    assert all(d.passed for d in result.differences)


def test_a_model_with_random_operators_is_kept() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) '
        "{ r = RandomNormalLike(x) a = Relu(r) y = Relu(a) }"
    )
    result = optimize_model(from_ir(ir.from_proto(proto)), Config(measure=False))
    assert not result.changed
    assert "other outputs at every run" in result.notes[0]


def test_a_model_whose_inputs_are_no_tensors_is_kept() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (seq(float[2,3]) x, int64 i) => (float[2,3] y) '
        "{ a = SequenceAt(x, i) b = Relu(a) y = Relu(b) }"
    )
    result = optimize_model(from_ir(ir.from_proto(proto)), Config(measure=False))
    assert not result.changed
    assert "the input 'x' is no tensor" in result.notes[0]


def test_what_the_runtime_lacks_is_not_made() -> None:
    a = x(4, 4)
    product = term("mul", a, term("sigmoid", a))
    with_it = Context({"": 24}, {}, available=lambda node: node.op != "quick_gelu")
    without = Context({"": 24}, {}, available=lambda node: node.op not in ("swish", "quick_gelu"))
    assert ops(simplify((product,), Rules(all_rules()), with_it)[0]) == ["swish"]
    assert ops(simplify((product,), Rules(all_rules()), without)[0]) == ["mul", "sigmoid"]
    asked = Available([product], Context({"": 24}, {}))
    assert asked(product)
    assert not asked(term("add", variable("a", Tensor("bfloat16", (2,))), variable("b", Tensor("bfloat16", (2,)))))


def test_laws_of_the_reals_are_not_applied_to_integer_quotients() -> None:
    """x * 3 / 2 over integers once became x * (3 / 2) = x."""
    a = variable("x", Tensor("int64", (10,)))
    three, two = constant(np.array([3])), constant(np.array([2]))
    original = model((a,), (term("div", term("mul", a, three), two),))
    result = optimize_model(original, Config(measure=False))
    values = np.arange(-3, 7)
    (found,) = Session(serialize(result.model)).run({"x": values})
    np.testing.assert_array_equal(found, np.trunc(values * 3 / 2).astype(np.int64))
    assert any(d.case == "random inputs with wide integers" for d in result.differences) or not result.changed


def test_weights_are_not_combined_in_half_precision() -> None:
    """2e-4 * 2e-4 is no normal float16: the product of the scales must stay two products."""
    a = variable("x", Tensor("float16", (4,)))
    scale = constant(2e-4, "float16")
    found, _ = simplify(
        (term("mul", term("mul", a, scale), weight("s", Tensor("float16", (4,)))),), Rules(laws()), CONTEXT
    )
    assert ops(found) == ["mul", "mul"]


def scaled_twice(factor: float) -> list[str]:
    """The operators left of two products with scales in half precision, of which the values are
    known."""
    a = variable("x", Tensor("float16", (4,)))
    context = replace(CONTEXT, weights={"s": StoredWeight(np.full(4, factor, np.float16))}, _legal={})
    scaled = term("mul", term("mul", a, constant(factor, "float16")), weight("s", Tensor("float16", (4,))))
    return ops(simplify((scaled,), Rules(laws()), context)[0])


@pytest.mark.parametrize(("factor", "left"), [(0.5, ["mul"]), (2e-4, ["mul", "mul"]), (4e4, ["mul", "mul"])])
def test_few_weights_in_half_precision_are_combined_where_the_products_are_normal(
    factor: float, left: list[str]
) -> None:
    assert scaled_twice(factor) == left


def test_many_weights_in_half_precision_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "FEW", 3)
    assert scaled_twice(0.5) == ["mul", "mul"]


def test_more_numbers_of_a_kernel_are_looked_at_than_of_a_matrix() -> None:
    scale = constant(0.5, "float16")
    for shape, allowed in (((512, 512), False), ((512, 512, 1, 1), True)):
        values = {"w": StoredWeight(np.ones(shape, np.float16))}
        context = replace(CONTEXT, weights=values, _legal={})
        assert context.legal(term("mul", weight("w", Tensor("float16", shape)), scale)) is allowed


@pytest.mark.parametrize(("scale", "left"), [(1.0, ["conv"]), (1e-4, ["batch_norm", "conv"])])
def test_a_norm_folds_into_a_large_kernel_in_half_precision(scale: float, left: list[str]) -> None:
    """The norm's numbers are known; with a small scale they would be subnormal."""
    rng = np.random.default_rng(0)
    values = {
        "w": StoredWeight((0.05 * rng.normal(size=(256, 128, 3, 3))).astype(np.float16)),
        "scale": StoredWeight(np.full(256, scale, np.float16)),
        **{name: StoredWeight(rng.normal(size=256).astype(np.float16)) for name in ("shift", "mean")},
        "variance": StoredWeight(np.ones(256, np.float16)),
    }
    leaves = [weight(name, Tensor("float16", each.numpy().shape)) for name, each in values.items()]
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    image = variable("x", Tensor("float16", (1, 128, 7, 7)))
    normed = term("batch_norm", term("conv", image, leaves[0], **attrs), *leaves[1:], epsilon=1e-5)
    context = replace(CONTEXT, weights=values, _legal={})
    found = topological(simplify((normed,), Rules(laws()), context)[0])
    assert sorted(n.op for n in found if n.args and not is_weight(n)) == left


def test_only_the_passes_look_at_weights() -> None:
    """A part has names of its own for its weights, which may be the model's for others."""
    s = weight("s", Tensor("float16", (4,)))
    a, values = variable("x", Tensor("float16", (4,))), {"s": StoredWeight(np.full(4, 0.5, np.float16))}
    asked = from_ir(to_ir(standalone(Graph((a,), (term("mul", a, s),)), {"": 20}, values)))
    rewriter = Rewriter(asked, CPU, [({}, 1.0)], (), {**values}, None)
    assert rewriter.known.legal(term("mul", s, s))
    assert not rewriter.context.legal(term("mul", s, s))


def test_a_kernel_holds_where_every_channel_does() -> None:
    """A normal kernel has some subnormal numbers; a channel that is subnormal as a whole is another
    matter."""
    rng = np.random.default_rng(0)
    kernel = (1e-3 * rng.normal(size=(8, 4, 3, 3))).astype(np.float16)
    w, two = weight("w", Tensor("float16", kernel.shape)), constant(0.5, "float16")
    assert dtype_holds(term("mul", w, two), {"w": StoredWeight(kernel)})
    kernel[3] *= np.float16(1e-3)
    assert not dtype_holds(term("mul", w, two), {"w": StoredWeight(kernel)})
    assert not dtype_holds(term("mul", w, two), {})


def test_a_scale_of_zero_is_not_written_as_the_runtimes_default() -> None:
    q = x(2, 3, 8)
    for op in ("multi_head_attention", "packed_attention"):
        operands = (q, q, q) if op == "multi_head_attention" else (q, w(8, 24), w(24, name="b"))
        assert CONTEXT.legal(get(op).term(*operands, num_heads=2, scale=0.5))
        assert not CONTEXT.legal(get(op).term(*operands, num_heads=2, scale=0.0))


def test_shared_weight_terms_fold_in_linear_time() -> None:
    big = term("expand", w(1, name="one"), shape=(300, 300))
    for _ in range(60):
        big = term("add", big, term("relu", big))
    assert fold_weights(model((x(300, 300),), (term("add", x(300, 300), big),)))


@pytest.mark.parametrize("seed", range(6))
def test_differences_are_those_of_the_whole_arrays(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The block size, infinities and unknown references do not matter."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(magnitudes, "BLOCK", int(rng.integers(1, 40)))
    exact = rng.normal(size=(5, 13)) * 10.0 ** rng.integers(-3, 4)
    old = (exact * (1 + 1e-3 * rng.normal(size=exact.shape))).astype(np.float16)
    new = (exact * (1 + 2e-3 * rng.normal(size=exact.shape))).astype(np.float16)
    old[1, 3] = new[1, 3] = np.inf
    exact[2, 4] = np.nan
    finite = np.isfinite(old)
    target = np.where(np.isfinite(exact), exact, old.astype(np.float64))[finite]
    found = difference("c", "y", new, old, exact)
    assert found.error == np.abs(new[finite] - target).max()
    assert found.own == np.abs(old[finite] - target).max()
    assert found.bound == 4 * found.own + 4 * float(np.finfo(np.float16).eps) * np.abs(target).max()
    new[1, 3] = -np.inf
    assert not difference("c", "y", new, old, exact).passed


@pytest.mark.parametrize(
    ("dtype", "scale", "against"),
    [
        ("float32", 3e-40, "float64"),
        ("float32", 3.0, "the original"),
        ("float16", 5e-7, "float64"),
        ("float16", 3.0, "the original"),
        ("float64", 1e-40, "the original"),  # no underflow there: the definition is wrong
        ("float64", 1e-310, "float64"),
    ],
)
def test_results_that_underflow_are_compared_with_float64(dtype: str, scale: float, against: str) -> None:
    """MobileViT with random weights ends there: the original was 25 % off, and a kernel that was
    less off was refused. A result that is further off than the original, or of another sign, is not
    right.
    """
    exact = np.linspace(0.5, 1, 20) * scale
    old, near, far, turned = ((exact * factor).astype(dtype) for factor in (1.5, 1.1, 2.6, -1.5))
    found = difference("c", "y", near, old, exact)
    assert str(found).split("against ")[1].startswith(against)
    assert found.passed == (against == "float64")
    assert not difference("c", "y", far, old, exact).passed
    assert not difference("c", "y", turned, old, exact).passed


def test_roundings_move_a_reference_where_they_turn_a_decision() -> None:
    asked = model((x(4),), (term("round", x(4)),))
    for first, moved in ((0.5, 1.0), (0.4, 0.0), (3.0, 0.0)):  # whole numbers are exact
        inputs = {"x": np.array([first, 1.2, 2.9, 6.4], np.float32)}
        case = next(check.check_cases(asked, Session(serialize(asked)), {}, [inputs]))
        assert case.moved(len(NUDGES)) == [moved]


@pytest.mark.parametrize(
    ("old", "moved", "right"),
    [
        pytest.param(1.0, 1.0, [0.0, 1.0, 2.0, 3.0], id="the original was turned"),
        pytest.param(1.0, 0.5, [0.0, 1.0, 2.0], id="roundings move less"),
        pytest.param(1.0, 0.0, [1.0], id="no rounding explains it"),
        pytest.param(0.0, 1.0, [0.0], id="the original was not turned"),
    ],
)
def test_where_rounding_turned_the_original_either_way_is_right(old: float, moved: float, right: list[float]) -> None:
    """A quantized model: a value between two steps may become either, but a rewrite does not turn
    values that the original did not."""
    asked = model((x(4),), (term("round", x(4)),))
    original, exact = np.array([old, 1, 3, 6], np.float32), np.array([0.0, 1, 3, 6])
    case = check.CheckCase("c", {}, [original], [exact], lambda ways: [moved])
    found = []
    for value in (0.0, 1.0, 2.0, 3.0, 5.0, 5.5, -4.0, np.nan):
        (one,) = check.compare(asked, cast(Session, _Fixed([value, 1, 3, 6])), [case])
        found += [value] if one.passed else []
    assert found == right


@pytest.mark.parametrize(
    ("moves", "asked_for"), [([1.0], [1]), ([0.0, 0.0, 1.0], [1, 2, 3]), ([0.0] * 4, [1, 2, 3, 4])]
)
def test_no_more_roundings_are_evaluated_than_explain_a_decision(moves: list[float], asked_for: list[int]) -> None:
    """Each is a float64 evaluation of the whole model; the resolution takes two of each."""
    asked, ways = model((x(4),), (term("round", x(4)),)), []
    resolved: list[int] = []

    def moved(count: int) -> list[float]:
        ways.append(count)
        return [max(moves[:count])]

    def resolution() -> list[float]:
        resolved.append(1)
        return [0.0]

    original, exact = np.array([1.0, 1, 3, 6], np.float32), np.array([0.0, 1, 3, 6])
    case = check.CheckCase("c", {}, [original], [exact], moved, resolution)
    (one,) = check.compare(asked, cast(Session, _Fixed([0.0, 1, 3, 6])), [case])
    assert (one.passed, ways) == (moves[-1] > 0, asked_for)
    assert bool(resolved) == (not one.passed)


class _Fixed:
    """A session that gives one output."""

    def __init__(self, values: list[float]) -> None:
        self.values = np.array(values, np.float32)

    def run(self, inputs: Any) -> list[Any]:
        return [self.values]


class _Provider:
    """A session of a GPU that is off by so much."""

    def __init__(self, model: Model, off: float) -> None:
        self.target, self.off, self.session = CUDA, off, Session(serialize(model))

    def run(self, inputs: Any) -> list[Any]:
        return [y + np.asarray(self.off, y.dtype) for y in self.session.run(inputs)]


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_where_a_gpu_is_off_the_original_of_the_check_is_the_cpus(off: float) -> None:
    asked = model((x(3, 4),), (term("tanh", x(3, 4)),))
    found = list(check.check_cases(asked, cast(Session, _Provider(asked, off)), {}))
    for case in found:
        assert ("by the CPU provider" in case.name) == (off > 0)
        assert np.array_equal(case.original[0], Session(serialize(asked)).run(case.inputs)[0])
    right, wrong = (check.compare(asked, cast(Session, _Provider(asked, each)), found) for each in (0.0, 1.0))
    assert all(d.passed for d in right)
    assert not any(d.passed for d in wrong)


def test_where_a_definition_is_wrong_the_original_stays_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is as far from it as the GPU, so it says nothing about who is right."""
    asked = model((x(3, 4),), (term("tanh", x(3, 4)),))
    definition = check.FloatReference.__call__
    monkeypatch.setattr(
        check.FloatReference, "__call__", lambda self, inputs, *_: [r + 5 for r in definition(self, inputs)]
    )
    found = list(check.check_cases(asked, cast(Session, _Provider(asked, 1.0)), {}))
    assert found
    for case in found:
        assert "CPU" not in case.name
        assert np.array_equal(case.original[0], Session(serialize(asked)).run(case.inputs)[0] + 1)


def test_check_criterion() -> None:
    exact = np.array([1.0, 2.0])
    old = np.array([1.0, 2.0], np.float32)
    assert difference("c", "y", old + np.float32(1e-6), old, exact).passed
    assert not difference("c", "y", old + np.float32(1e-3), old, exact).passed
    assert not difference("c", "y", np.array([1.0, np.nan], np.float32), old, exact).passed
    assert not difference("c", "y", old[:1], old, exact).passed
    assert not difference("c", "y", old.astype(np.float64), old, exact).passed
    infinite = np.array([1.0, np.inf], np.float32)
    assert difference("c", "y", infinite, infinite, infinite.astype(np.float64)).passed
    half = np.array([0.9, 0.1], np.float16)
    assert not difference("c", "y", np.array([0.88, 0.12], np.float16), half, half.astype(np.float64)).passed
    assert not difference("c", "y", np.array([5.0], np.float32), np.array([1.0], np.float32), np.array([1e9])).passed
    integers = np.array([1, 2])
    assert difference("c", "y", integers, integers, integers).passed
    assert not difference("c", "y", integers + 1, integers, integers).passed
    assert not difference("c", "y", integers.astype(np.int32), integers, integers).passed


@pytest.mark.sampled(3)
def test_nothing_is_sent_from_a_process_that_optimizes() -> None:
    """The runtime's thread for usage data is not started; who wants it says so."""
    script = "import os; import taso_mirage.measure.session; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    for own, wanted in (({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")):
        env = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"} | own
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == wanted


@pytest.mark.parametrize(("takes", "patience", "rounds"), [(1.0, 4.0, 7), (1.0, np.inf, 15), (0.04, 4.0, 12)])
def test_slow_models_run_a_few_times(takes: float, patience: float, rounds: int) -> None:
    class Slow:
        def prepared(self, inputs: object) -> Callable[[], float]:
            return lambda: takes

    seconds = 0.25 if takes < 1 else 0.0
    clock = iter([0.0] + [1.0] * 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.time, "perf_counter", lambda: next(clock))
        times = runtime.interleaved([Slow()], {}, seconds, patience=patience)  # type: ignore[list-item]
    assert [len(t) for t in times] == [rounds]


def test_bisection_finds_the_first_bad_step() -> None:
    asked: list[int] = []

    def passes(k: int) -> bool:
        asked.append(k)
        return k < 700

    assert first_bad(1000, passes) == 700
    assert len(asked) <= 11


def test_replay_follows_chains_of_steps() -> None:
    a = x(2, 2)
    first, second, third = term("relu", a), term("tanh", a), term("neg", a)
    steps = [RewriteStep(("one",), (first,), (second,)), RewriteStep(("two",), (term("abs", second),), (third,))]
    assert replay((term("abs", first),), steps[:1]) == (term("abs", second),)
    assert replay((term("abs", first),), steps) == (third,)


def test_costs_survive_in_the_cache_and_damage_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "costs.sqlite"
    cache = CostCache(file)
    cache.put("cpu", "relu", 1e-6)
    cache.close()
    again = CostCache(file)
    assert again.get("cpu", "relu") == 1e-6
    assert again.get("other", "relu") is None
    again.close()
    file.write_bytes(b"this is no database" * 100)
    broken = CostCache(file)
    assert broken.get("cpu", "relu") is None
    broken.put("cpu", "relu", 2e-6)
    assert broken.get("cpu", "relu") == 2e-6
    broken.close()


# ---------------------------------------------------------------- random graphs


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_random_graphs_keep_type_and_fingerprint(drawn: tuple[tuple[Node, ...], tuple[Node, ...]]) -> None:
    _, outputs = drawn
    found = searched(outputs, seconds=1.0)
    assert [n.type for n in found] == [n.type for n in outputs]
    verdict = fingerprint(outputs, found, trials=4)
    assert not failed(verdict, FailureKind.REFUTED), verdict


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_random_models_pass_the_check(drawn: tuple[tuple[Node, ...], tuple[Node, ...]]) -> None:
    inputs, outputs = drawn
    result = optimize_model(model(inputs, outputs), Config(measure=False, budget=1))
    assert result.failure is None, result.notes
    Session(serialize(result.model))


def test_what_cannot_go_apart_goes_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights go to a GPU from where they are; weights that stay inside may be more than
    protobuf holds, and that is no end."""
    opened: list[list[str]] = []

    class Opened:
        pass

    def session(source: runtime._Source, target: Target, **options: Any) -> object:
        with source() as (_, apart):
            opened.append(list(apart))
        return Opened()

    made = model((x(8, 1024),), (term("matmul", x(8, 1024), w(1024, 1024)),))
    monkeypatch.setattr(runtime, "Session", session)
    runtime.open_in_child(made, CUDA)
    assert list(map(len, opened)) == [1]

    def refused(*_: object, **__: object) -> Any:
        raise ValueError("more than 2 GB")

    monkeypatch.setattr(runtime, "serialize_apart", refused)
    runtime.open_in_child(made, CUDA)
    assert list(map(len, opened)) == [1, 0]
