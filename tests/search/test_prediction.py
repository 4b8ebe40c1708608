"""Seconds that a correction of the roofline predicts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.operators.ops import get
from taso_mirage.search.fusion_context import FusionContext
from taso_mirage.search.passes import Context
from taso_mirage.search.prediction import (
    LAUNCH,
    Correction,
    OperatorWork,
    PredictedCost,
    Row,
    correction_of,
    fitted,
    fusion_label,
)

CONTEXT = Context({"": 17}, {})


def tanh(*shape: int) -> Node:
    return get("tanh").term(variable("x", Tensor("float32", shape)))


def slow_rows(name: str, factor: float, count: int = 40) -> list[Row]:
    """Rows of a label that takes `factor` times its roofline."""
    sizes = [1000 * (i + 1) for i in range(count)]
    return [Row("m", f"{name}{n}", OperatorWork(name, False, n, n, n * 1e-9), n * 1e-9 * factor) for n in sizes]


def test_a_correction_learns_how_many_times_as_long_an_operator_takes() -> None:
    rows = [*slow_rows("tanh", 8.0), *slow_rows("add", 0.5)]
    correction = fitted(rows, {})
    between = replace(rows[0].work, bytes=12345, flops=12345, roofline=12345e-9)
    assert correction.log(between) == pytest.approx(math.log(8.0), abs=0.1)
    assert correction.log(rows[-1].work) == pytest.approx(math.log(0.5), abs=0.1)


def test_an_operator_seen_once_keeps_less_of_its_offset_than_one_seen_often() -> None:
    often = fitted([*slow_rows("add", 1.0), *slow_rows("tanh", 8.0)], {}).labels["tanh"][0]
    once = fitted([*slow_rows("add", 1.0), *slow_rows("tanh", 8.0, 1)], {}).labels["tanh"][0]
    assert 0 < once < often


def test_a_label_has_what_the_runtime_runs_as_one() -> None:
    first = FusionContext(tanh(8))
    second = FusionContext(get("relu").term(first.node), (first,))
    assert (fusion_label(first), fusion_label(second)) == ("tanh", "relu(tanh)")


def test_a_setting_costs_its_roofline_times_the_correction() -> None:
    predicted = PredictedCost(CONTEXT, Correction((*(0.0,) * 5, math.log(2.0)), {"tanh": (math.log(3.0), 0.0, 0.0)}))
    launch = CONTEXT.target.device.operator.launch
    for node in (tanh(8, 8), tanh(symbol("n"))):  # the work of the second cannot be counted
        seconds = CONTEXT.estimate(node) - launch + LAUNCH
        assert predicted.seconds(FusionContext(node)) == pytest.approx(6 * seconds)


def test_what_was_mostly_run_as_one_is_predicted_to_be() -> None:
    first = FusionContext(tanh(8))
    relu = get("relu").term(first.node)
    for share, surely in ((0.0, False), (0.3, None), (0.7, None), (1.0, True), (None, None)):
        correction = Correction((0.0,) * 6, {}, {} if share is None else {"relu(tanh)": share})
        assert PredictedCost(CONTEXT, correction).joined(first, relu) is ((share or 0.0) > 0.5)
        assert correction.surely_joined("relu(tanh)") is surely


def test_the_package_has_a_correction_for_the_processor() -> None:
    found = correction_of("cpu")
    assert found is not None
    assert {"add", "conv", "matmul", "relu(conv)", "softmax"} <= set(found.labels)
    assert correction_of("a machine that nobody has") is None
