"""The cost: fusion contexts measured on the runtime, the terms that it runs as one, the cache, the
fallback, and measuring somewhere else."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partialmethod
from itertools import cycle, permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from executors import Elsewhere, Here
from small_models import CONTEXT, F, model, w, x

from taso_mirage.ir.model import DRAWN
from taso_mirage.ir.terms import Node, Tensor, constant, variable, weight
from taso_mirage.measure import tasks as measure
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.load import Load
from taso_mirage.measure.target import CPU, CUDA, Target, target_for
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.search import cost as costs
from taso_mirage.search import fusion_context
from taso_mirage.search.cost import AheadCost, Cost, MeasuredCost, Roofline, Weighted
from taso_mirage.search.fusion_context import FusionContext
from taso_mirage.search.passes import Context
from taso_mirage.search.prediction import Correction, PredictedCost
from taso_mirage.search.rewriter import Rewriter
from taso_mirage.search.rulesets import rules


def measured(where: Executor | None = None, cache: CostCache | None = None) -> MeasuredCost:
    return MeasuredCost(CONTEXT, cache or CostCache(None), where)


def weighted(where: Executor | None = None, cache: CostCache | None = None, context: Context = CONTEXT) -> Weighted:
    return Weighted(context, (({}, 1.0),), cache or CostCache(None), where)


def image(channels: int = 16, size: int = 32) -> Node:
    return x(1, channels, size, size)


def convolved(operand: Node, channels: int = 16) -> Node:
    kernel = w(channels, int(operand.shape[1]), 3, 3)
    return term("conv", operand, kernel, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)


# ---------------------------------------------------------------- fusion contexts


def test_after_its_time_a_cost_asks_nobody() -> None:
    """Not even which machine it is: a process that has to be started again would be waited for."""
    costs = weighted(where := Here())
    costs.measure_until(0.0)
    assert Cost(costs)((term("tanh", x(8, 8)),)) > 0
    assert where.calls == []


def test_the_runtime_says_what_it_runs_as_one() -> None:
    cost = measured()
    conv, product = convolved(image()), term("matmul", x(64, 64), w(64, 64))
    assert cost.joined(FusionContext(conv), term("relu", conv))
    assert not cost.joined(FusionContext(product), term("softmax", product, axis=1))
    assert not cost.joined(FusionContext(conv), term("max", conv, constant(np.full((16, 1, 1), 0.5, np.float32))))


def test_a_setting_costs_what_its_term_adds_to_the_producers() -> None:
    relu = term("relu", conv := convolved(image()))
    where = Elsewhere({"Conv": 8e-6, "Relu": 3e-6, "Conv+Relu": 8.5e-6}, {"Conv": 1, "Relu": 1, "Conv+Relu": 1})
    cost = Cost(measured(where))
    assert cost((conv,)) == pytest.approx(8e-6)
    assert cost.of(relu) == pytest.approx(3e-6)
    assert cost((relu,)) == pytest.approx(8.5e-6)
    assert cost((relu, conv)) == pytest.approx(11e-6)  # the convolution is an output: they are not run as one


def test_terms_that_are_not_joined_add_up() -> None:
    first = term("matmul", x(64, 64), w(64, 64))
    second = term("softmax", first, axis=1)
    third = term("matmul", second, w(64, 64, name="v"))
    cost = Cost(measured())
    assert cost((third,)) == pytest.approx(sum(map(cost.of, (first, second, third))))
    assert cost((first, third)) == pytest.approx(cost((third,)))


def test_what_hangs_on_weights_costs_nothing_and_is_not_measured() -> None:
    cost = measured()
    assert Cost(cost)((term("tanh", w(512, 512)),)) == 0.0
    assert cost.measured == 0


# ---------------------------------------------------------------- questions that are asked once


def test_the_second_run_measures_nothing(tmp_path: Path) -> None:
    outputs = (term("relu", term("matmul", x(8, 8), w(8, 8))),)
    first = measured(cache=CostCache(tmp_path / "costs.sqlite"))
    price = Cost(first)(outputs)
    assert first.measured > 0
    first.cache.close()
    second = measured(cache=CostCache(tmp_path / "costs.sqlite"))
    assert Cost(second)(outputs) == pytest.approx(price)
    assert second.measured == 0


def test_equal_terms_are_measured_once_whatever_their_names() -> None:
    cost = measured()
    a, b = (term("tanh", variable(n, Tensor(F, (4, 4)))) for n in "ab")
    assert Cost(cost)((a,)) == Cost(cost)((b,))
    assert cost.measured == 1


def test_terms_whose_operands_change_places_are_measured_once() -> None:
    """Noise would choose an order; a difference has one alone."""
    here = Here()
    cost, a, bias = Cost(weighted(here)), x(8, 16), w(16)
    assert cost.of(term("add", a, bias)) == cost.of(term("add", bias, a)) > 0
    assert here.calls.count("operator_seconds") == 1
    cost.of(term("sub", a, bias))
    cost.of(term("sub", bias, a))
    assert here.calls.count("operator_seconds") == 3


def test_the_cost_of_a_graph_does_not_depend_on_the_order_of_its_terms() -> None:
    """To the last digit: a state is no better by a rounding."""
    prices = {"relu": 0.1, "tanh": 0.2, "neg": 0.3}
    priced = SimpleNamespace(seconds=lambda fusion: prices[fusion.node.op], joined=lambda *_: False)
    made = [term(op, x(4)) for op in prices]
    for order in permutations(made):
        assert Cost(priced)(order) == math.fsum(prices.values())  # type: ignore[arg-type]


def test_what_cannot_be_measured_is_estimated() -> None:
    gelu = term("gelu", x(4, 4), approximate="tanh")
    lacking = Context({"": 17}, {})  # Gelu came with opset 20
    cost = MeasuredCost(lacking, CostCache(None))
    assert cost.seconds(FusionContext(gelu)) == Roofline(lacking).seconds(FusionContext(gelu)) > 0
    assert not cost.joined(FusionContext(gelu), term("relu", gelu))


@pytest.mark.parametrize("slow", [0.1, 10.0])
def test_the_roofline_of_what_is_late_is_on_the_scale_of_what_was_measured(slow: float) -> None:
    """A term is neither cheap nor dear because no time was left to measure it."""
    early, late = [[term(op, x(64, 64 + i)) for i in range(10)] for op in ("tanh", "sqrt")]
    each = Roofline(CONTEXT).seconds(FusionContext(early[0]))
    cost = measured(Elsewhere({"Tanh": slow * each}, {}))
    for node in early:
        cost.seconds(FusionContext(node))
    cost.deadline = 0.0
    for node in late:
        predicted = Roofline(CONTEXT).seconds(FusionContext(node))
        assert cost.seconds(FusionContext(node)) == pytest.approx(slow * predicted, rel=0.2)


def test_costs_ahead_ask_the_runtime_what_it_runs_as_one_and_measure_nothing() -> None:
    """Nobody is asked about constant facts."""
    sure = PredictedCost(CONTEXT, Correction((0.0,) * 6, {}, {"relu(conv)": 1.0, "tanh(relu(conv))": 0.0}))
    unsure = replace(sure.correction, joined={"relu(conv)": 0.9, "tanh(relu(conv))": 0.1})
    conv = convolved(image())
    outputs = (term("tanh", term("relu", conv)),)
    where = Elsewhere({}, {"Conv": 1, "Relu": 1, "Conv+Relu": 1, "Tanh": 1, "Conv+Relu+Tanh": 2, "Relu+Tanh": 2})
    Cost(AheadCost(sure, measured(where)))(outputs)
    assert where.calls == []
    Cost(AheadCost(PredictedCost(CONTEXT, unsure), measured(where)))(outputs)
    assert set(where.calls) == {"device_key", "counted_nodes"}
    late = AheadCost(PredictedCost(CONTEXT, unsure), measured(where := Elsewhere({}, {})))
    late.measured.deadline = 0.0
    assert late.joined(FusionContext(conv), term("relu", conv))  # as in most cases
    assert where.calls == []


def test_passes_and_search_measure_no_term_on_a_known_machine() -> None:
    where = Elsewhere({}, {})
    where.tables["counted_nodes"] = defaultdict(lambda: 1)
    made = model((x(64, 64),), (term("add", term("matmul", x(64, 64), w(64, 64)), w(64, name="b")),))
    rewriter = Rewriter(made, CPU, (({}, 1.0),), tuple(rules()), {}, CostCache(None), where)
    rewriter.passes()
    assert rewriter.cost(made.graph.outputs) > 0
    assert "operator_seconds" not in where.calls


# ---------------------------------------------------------------- states


def _chain(count: int, side: int = 256) -> Node:
    """Terms over an image (of 16 MB at side 256) that the runtime runs one by one."""
    node = x(1, 64, side, side)
    for _ in range(count):
        node = term("tanh", node)
    return node


@pytest.mark.parametrize(("seconds", "fastest"), [([1.0, 1.0, 0.999], 0), ([1.0, 0.9, 0.8], 2), ([1.0, 1.2], 0)])
def test_the_first_state_is_kept_unless_another_is_clearly_faster(seconds: list[float], fastest: int) -> None:
    nodes = [_chain(i + 1) for i in range(len(seconds))]
    assert weighted(Elsewhere({}, {}, seconds)).fastest([(n,) for n in nodes]) == fastest


def test_a_clearly_faster_state_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other work, runs go on until the difference is clear."""
    monkeypatch.setattr(Weighted, "in_turn", partialmethod(Weighted.in_turn, seconds=600.0))
    one, six = _chain(1, 64), _chain(6, 64)
    assert weighted().fastest([(six,), (one,)]) == 1
    assert weighted().fastest([(one,), (six,)]) == 0


def test_states_measured_once_are_not_measured_again() -> None:
    where = Here()
    cost = weighted(where)
    for _ in range(2):
        cost.fastest([(term("tanh", x(4)),), (term("relu", x(4)),)])
    assert where.calls.count("in_turn") == 1


def test_beside_other_processes_operators_are_measured_by_the_other_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of two clocks do not add up, so they have keys of their own; an executor that measures
    elsewhere is not concerned."""
    node = term("tanh", x(64, 64))
    quiet = measured()
    monkeypatch.setattr(costs, "observed_load", lambda fresh: Load(0.4, 2))
    busy = measured()
    assert (quiet.target, busy.target) == (CPU, CPU.serial)
    assert "clock=processor" in busy.device()
    assert busy.device() != quiet.device()
    assert busy.seconds(FusionContext(node)) > 0
    assert measured(Elsewhere({}, {}, [1.0])).target == CPU


class Scripted:
    """A target on which models take the times that are given, run by run, again and again."""

    on_cores = False  # nothing spins
    resting: Any

    def __init__(self, *times: list[float]) -> None:
        self.resting, self.left = self, [cycle(each) for each in times]

    def open(self, content: bytes, alone: bool, apart: Mapping[str, Any]) -> Any:
        session = self.left[int(content)]
        return SimpleNamespace(inputs=lambda: {}, bound=lambda feed: lambda: next(session))


def test_what_may_be_chance_is_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models run in turn: the end of the interval next to 1 counts."""
    monkeypatch.setattr(measure, "SETTLED", 0.0)
    monkeypatch.setattr(measure, "LONG", math.inf)
    turn = measure.BLOCK + 1  # the first run of a turn warms up
    target = Scripted([1.0], [0.5], [1.0] * turn + [0.8] * turn, [2.0] * turn + [3.0] * turn)
    asked: Any = target
    times = measure.in_turn([b"0", b"1", b"2", b"3"], asked, 0.0)
    assert times == [1.0, 0.5, 1.0, 2.0]


def test_states_that_cannot_be_run_leave_the_first() -> None:
    gelu = term("gelu", x(4, 4), approximate="tanh")  # came with opset 20
    states = [(gelu,), (x(4, 4),)]
    lacking = weighted(context=Context({"": 17}, {}))
    assert lacking.in_turn(states) is None
    assert lacking.fastest(states) == 0


# ---------------------------------------------------------------- somewhere else


@pytest.mark.parametrize(("rows", "distinct"), [(8, 8 * 64), (2048, DRAWN)])
def test_of_a_large_weight_few_numbers_are_drawn(rows: int, distinct: int) -> None:
    built = fusion_context.context_model(FusionContext(term("matmul", x(4, rows), w(rows, 64))), CONTEXT)
    (weight,) = built.weights.values()
    values = weight.numpy()
    assert (values.shape, values.dtype) == ((rows, 64), np.float32)
    assert distinct * 0.9 < len(np.unique(values)) <= distinct
    assert np.abs(values).max() < 10


class Recording(Here):
    """Keeps the arguments of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[Any, ...]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(args)
        return super().submit(fn, *args, **kwargs)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nodes_are_counted_without_the_numbers_of_large_weights(dtype: str) -> None:
    """The runtime gets their types alone, and makes the same nodes of them."""
    kernel, small = weight("w", Tensor(dtype, (2048, 1030))), weight("b", Tensor(dtype, (1030,)))
    product = term("matmul", variable("x", Tensor(dtype, (4, 2048))), kernel)
    shifted = FusionContext(term("add", product, small), (FusionContext(product),))
    fusions = [shifted, FusionContext(term("relu", shifted.node), (shifted,)), FusionContext(product)]
    cost = measured(where := Recording())
    found = [cost._count(each) for each in fusions]
    contents = [serialize(fusion_context.context_model(each, CONTEXT)) for each in fusions]
    assert found == [measure.counted_nodes(each, CPU) for each in contents]
    counted = [args for args in where.given if isinstance(args[0], bytes)]
    assert len(counted) == len(fusions)
    assert max(len(content) for content, *_ in counted) < 10_000
    assert {zeros for *_, zeros in counted} == {2048 * 1030 * np.dtype(dtype).itemsize}


def test_every_measurement_goes_through_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {"Relu": 1, "Tanh": 1, "Relu+Tanh": 2}
    where = Elsewhere({"Relu": 2e-6, "Tanh": 3e-6}, kernels, [2.0, 1.0])
    for name in ("operator_seconds", "counted_nodes", "in_turn", "device_key"):
        monkeypatch.setattr(measure, name, _named(name))
    cost = weighted(where)
    outputs = (term("relu", term("tanh", x(4, 4))),)
    assert Cost(cost)(outputs) == pytest.approx(5e-6)
    assert cost.fastest([outputs, (term("tanh", x(4, 4)),)]) == 1
    assert where.calls.count("device_key") == 1
    assert (
        len(where.calls) - where.calls.count("device_key") - where.calls.count("in_turn") == cost.measured[0].measured
    )


def _named(name: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise AssertionError(f"{name} ran here")

    refuse.__name__ = name
    return refuse


def test_measurements_elsewhere_are_kept_apart(tmp_path: Path) -> None:
    cache = CostCache(tmp_path / "costs.sqlite")
    here, there = measured(cache=cache), measured(Elsewhere({"Tanh": 1.0}, {}), cache)
    tanh = FusionContext(term("tanh", x(4)))
    assert here.seconds(tanh) != 1.0
    assert there.seconds(tanh) == 1.0


def test_what_a_variant_runs_alike_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options for convolutions change nothing for other operators: a model is searched with each
    set of them."""
    asked: list[tuple[str, Target]] = []

    def seconds(content: bytes, target: Target) -> float:
        asked.append(("+".join(n.op_type for n in onnx.load_from_string(content).graph.node), target))
        return 1.0

    monkeypatch.setattr("taso_mirage.search.cost.in_child", lambda function, *args: function(*args))
    monkeypatch.setattr(measure, "operator_seconds", seconds)
    monkeypatch.setattr(measure, "device_key", lambda target: str(target.options))
    cache = CostCache(None)
    conv = term("conv", x(1, 4, 512, 512), w(4, 4, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    for target in (CUDA, *CUDA.variants):
        cost = MeasuredCost(replace(CONTEXT, target=target), cache)
        assert [cost.seconds(FusionContext(each)) for each in (term("softmax", x(512, 512), axis=1), conv)] == [
            1.0,
            1.0,
        ]
    assert [each for each in asked if "Softmax" in each[0]] == [("Softmax", CUDA)]
    assert [target for name, target in asked if "Conv" in name] == [CUDA, *CUDA.variants]
    assert target_for(CPU, ["tanh"]) == CPU


@pytest.mark.parametrize(
    ("opset", "target", "shape"),
    [
        (17, CPU, (4096, 512)),
        (9, CPU, (4096, 512)),
        (5, CPU, (4096, 512)),
        (17, CUDA, (4096, 512)),
        (17, CPU, (4095, 512)),
        (17, CPU, (64, 64)),
    ],
)
def test_a_large_weight_is_measured_as_a_block_that_repeats(opset: int, target: Target, shape: tuple[int, int]) -> None:
    """Writing and reading 400 MB took most of VGG's search; the runtime makes an initializer of it.

    On a GPU some kernels ask for one.
    """
    rows, kernel = variable("x", Tensor(F, (1, shape[0]))), weight("w", Tensor(F, shape))
    made = fusion_context.context_model(
        FusionContext(term("matmul", rows, kernel)), Context({"": opset}, {}, target=target)
    )
    (product,) = made.graph.outputs
    content = serialize(made)
    if not target.on_cores or opset == 5 or shape != (4096, 512):
        assert product.args[1].op == "weight"
    else:
        assert product.args[1].op == "tile"
        assert len(content) < shape[0] * shape[1]
    assert product.args[1].shape == shape
    assert measure.counted_nodes(content, CPU) == 1
