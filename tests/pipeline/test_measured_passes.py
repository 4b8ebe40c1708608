"""Passes into the runtime's own operators, which are left out where they were measured to be slower
than the operators that they replace. Clocks are made up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import onnx
import pytest
from equal_layers import FUSED, layers
from executors import Here
from small_models import F, model, ops, w

from taso_mirage.devices.cpu.device import SLOW
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, constant, variable
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.target import CPU
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import candidates, problem
from taso_mirage.pipeline.candidates import BY_PREDICTION, passes, search
from taso_mirage.pipeline.problem import pose
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.available import Available
from taso_mirage.search.config import Config, Stop, quiet
from taso_mirage.search.mutations import NO_MUTATIONS
from taso_mirage.search.passes import Context
from taso_mirage.search.rewriter import Rewriter
from taso_mirage.search.rulesets import rules
from taso_mirage.system.deadline import Deadline


class Clock(Here):
    """A machine on which every operator takes a microsecond, but for one. The runtime itself makes
    one node of an addition and a norm where it is `joining`."""

    def __init__(self, fused: float, joining: bool = False) -> None:
        super().__init__()
        self.fused, self.joining = fused, joining

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append(fn.__name__)
        done: Future[Any] = Future()
        if fn.__name__ == "device_key":
            done.set_result("a clock")
        elif fn.__name__ == "in_turn":
            done.set_result([self.seconds(content) for content in args[0]])
        elif fn.__name__ == "counted_nodes":
            done.set_result(len(onnx.load_from_string(args[0]).graph.node))
        else:
            done.set_result(self.seconds(args[0]))
        return done

    def seconds(self, content: bytes) -> float:
        names = [n.op_type for n in onnx.load_from_string(content).graph.node]
        if self.joining and "Add" in names and "LayerNormalization" in names:
            return self.fused
        return sum(self.fused if name == FUSED else 1e-6 for name in names)


@pytest.fixture(autouse=True)
def _as_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator is known to be slow."""
    for name in list(SLOW):
        monkeypatch.delitem(SLOW, name)


def measured_by(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a clock measure what the stages of a job measure."""
    monkeypatch.setattr(problem, "Rewriter", lambda *given: Rewriter(*given[:6], clock, *given[7:]))


def passed(made: Model, clock: Clock | None, deadline: float | None = None) -> tuple[list[str], list[str]]:
    """The operators after the passes, and the names of the steps."""
    cache = None if clock is None else CostCache(None)
    rewriter = Rewriter(made, CPU, (({}, 1.0),), tuple(rules()), {}, cache, clock)
    if deadline is not None:
        rewriter.term.measure_until(deadline)
    candidate = rewriter.passes()[2]
    return ops(candidate.model.graph.outputs), [name for s in candidate.steps for name in s.equations]


def fusions(found: tuple[list[str], list[str]]) -> int:
    return sum(op.startswith("skip_layer_norm") for op in found[0])


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize(("fused", "expected"), [(50e-6, 0), (1e-6, 3)])
def test_a_fusion_that_is_measured_slower_is_not_made(fused: float, expected: int, seen: bool) -> None:
    assert fusions(passed(layers(seen=seen), Clock(fused))) == expected


def test_a_pair_is_compared_once_for_all_its_places() -> None:
    clocks = [Clock(50e-6) for _ in range(2)]
    for clock, count in zip(clocks, (2, 8), strict=True):
        assert fusions(passed(layers(count), clock)) == 0
    assert clocks[0].calls.count("in_turn") == clocks[1].calls.count("in_turn") > 0


def test_what_the_sums_of_costs_say_is_confirmed() -> None:
    """The runtime makes the fusion itself: both take the same time as models of their own, so the
    smaller graph is taken."""
    assert fusions(passed(layers(seen=False), Clock(50e-6, joining=True))) == 3


def test_without_measurements_and_after_the_time_for_them_a_roofline_decides() -> None:
    assert fusions(passed(layers(), None)) == 3
    clock = Clock(50e-6)
    assert fusions(passed(layers(), clock, deadline=0.0)) == 3
    assert "in_turn" not in clock.calls


def test_laws_of_standard_operators_are_not_compared() -> None:
    x = variable("x", Tensor(F, (2, 3)))
    y: Node = term("mul", term("relu", term("relu", x)), constant(1.0, F))
    clock = Clock(50e-6)
    assert passed(model((x,), (y,)), clock)[0] == ["relu"]
    assert "in_turn" not in clock.calls


def test_after_the_time_for_measurements_an_operator_that_is_known_to_be_slow_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("skip_layer_norm", "skip_layer_norm_sum"):
        monkeypatch.setitem(SLOW, name, 8.0)
    assert fusions(passed(layers(), Clock(1e-6), deadline=0.0)) == 0


def test_what_costs_predict_is_a_candidate_whatever_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which fusions seem slow makes no run worse than one that measures nothing."""
    measured_by(Clock(50e-6), monkeypatch)
    made = layers()
    job = Job(Config(budget=60.0), quiet, Stop(), CostCache(None), deadline=Deadline(60.0))
    posed = pose(job, made, (({}, 1.0),))
    found, _ = search(job, posed, passes(job, posed), NO_MUTATIONS)
    assert {each.name: fusions((ops(each.model.graph.outputs), [])) for each in found} == {BY_PREDICTION: 3}


def test_passes_by_predicted_costs_end_with_the_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the model is, nothing is made of it once the time is over."""
    measured_by(Clock(50e-6), monkeypatch)
    now = [0.0]
    made, deadline = layers(), Deadline(60.0, lambda: now[0])
    job = Job(Config(budget=60.0), quiet, Stop(), CostCache(None), deadline=deadline)
    posed = pose(job, made, (({}, 1.0),))
    now[0] = 1000.0
    (found,) = passes(job, posed).first
    assert found.name == BY_PREDICTION
    assert fusions((ops(found.model.graph.outputs), [])) == 0


@pytest.mark.parametrize(("measures", "runs"), [(True, 2), (False, 1)])
def test_passes_that_would_measure_nothing_do_not_run_again(
    monkeypatch: pytest.MonkeyPatch, measures: bool, runs: int
) -> None:
    """The search starts from the model that predicted costs found."""
    ran, real = list[Rewriter](), Rewriter.passes
    monkeypatch.setattr(Rewriter, "passes", lambda self, *given: (ran.append(self), real(self, *given))[1])
    monkeypatch.setattr(candidates, "measures_passes", lambda job, passing: measures)
    measured_by(Clock(1e-6), monkeypatch)
    job = Job(Config(budget=60.0), quiet, Stop(), CostCache(None), deadline=Deadline(60.0))
    posed = pose(job, layers(), (({}, 1.0),))
    start = passes(job, posed)
    assert len(ran) == runs
    assert fusions((ops(start.passed.model.graph.outputs), [])) == 3
    assert start.rewriters == [posed.rewriter]
    found, _ = search(job, posed, start, NO_MUTATIONS)
    assert [fusions((ops(each.model.graph.outputs), [])) for each in found] == [3]


def test_an_operator_is_asked_for_once_whatever_the_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predicted and measured passes, and those for other options, share the answers."""
    tried = list[Node]()
    monkeypatch.setattr(Available, "_tried", lambda self, node: tried.append(node) or True)
    measured_by(Clock(1e-6), monkeypatch)
    job = Job(Config(budget=60.0), quiet, Stop(), CostCache(None), deadline=Deadline(60.0))
    posed = pose(job, layers(), (({}, 1.0),))
    passes(job, posed)
    assert tried
    asked = [Available((), posed.rewriter.context)._keys(node)[0] for node in tried]
    assert len(set(asked)) == len(asked)


def test_a_function_of_single_elements_is_asked_for_at_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[Node]()
    monkeypatch.setattr(Available, "_tried", lambda self, node: tried.append(node) or True)
    there = Available((), Context({"": 20, "com.microsoft": 1}, {}), CostCache(None))
    many = [term("quick_gelu", variable("x", Tensor(F, (2, size))), alpha=1.0) for size in (3, 4, 5)]
    assert all(map(there, many))
    assert len(tried) == 1
    norms = [term("skip_layer_norm", *[variable(n, Tensor(F, (2, 3, s))) for n in "xy"], w(s), w(s)) for s in (4, 8)]
    assert all(map(there, norms))  # its kernel may refuse a width
    assert len(tried) == 1 + 2
