"""Seconds that a table and a correction of the roofline predict."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.operators.ops import get
from taso_mirage.search.passes import Context
from taso_mirage.search.prediction import CostOrigin, CostTable, Prediction, Predictor, Row, digest, fitted, read_table

CONTEXT = Context({"": 17}, {})
FACTORS = {CostOrigin.TABLE: 1.3, CostOrigin.LEARNED: 2.0, CostOrigin.ROOFLINE: 8.0}


def tanh(*shape: int) -> Node:
    return get("tanh").term(variable("x", Tensor("float32", shape)))


def slow_rows(op: str, factor: float, count: int = 40) -> list[Row]:
    """Rows of an operator that takes `factor` times its roofline."""
    sizes = [1000 * (i + 1) for i in range(count)]
    return [Row("m", f"{op}{n}", op, False, n, n, n * 1e-9, n * 1e-9 * factor) for n in sizes]


def table(*rows: Row) -> CostTable:
    return CostTable("2026-01-01", "a machine", FACTORS, rows)


def test_a_correction_learns_how_many_times_as_long_an_operator_takes() -> None:
    rows = [*slow_rows("tanh", 8.0), *slow_rows("add", 0.5)]
    correction = fitted(rows)
    assert correction.log(replace(rows[0], bytes=12345, flops=12345)) == pytest.approx(math.log(8.0), abs=0.1)
    assert correction.log(rows[-1]) == pytest.approx(math.log(0.5), abs=0.1)


def test_an_operator_seen_once_keeps_less_of_its_offset_than_one_seen_often() -> None:
    often = fitted([*slow_rows("add", 1.0), *slow_rows("tanh", 8.0)]).offsets["tanh"]
    once = fitted([*slow_rows("add", 1.0), *slow_rows("tanh", 8.0, 1)]).offsets["tanh"]
    assert 0 < once < math.log(8.0)
    assert fitted([*slow_rows("add", 1.0), *slow_rows("tanh", 8.0)]).offsets["tanh"] == often


def test_a_term_that_the_table_has_costs_its_seconds_and_another_one_is_corrected() -> None:
    known, other = tanh(8, 8), tanh(500, 500)
    rows = [*slow_rows("tanh", 8.0), Row("m", digest(known, CONTEXT), "tanh", False, 512, 64, 3e-6, 5e-6)]
    predictor = Predictor(CONTEXT, table(*rows))
    assert predictor.predict(known) == Prediction(5e-6, 1.3, CostOrigin.TABLE)
    found = predictor.predict(other)
    assert (found.origin, found.factor) == (CostOrigin.LEARNED, 2.0)
    assert found.seconds > 3 * CONTEXT.estimate(other)


def test_work_that_cannot_be_counted_costs_its_roofline() -> None:
    unsized = get("tanh").term(variable("x", Tensor("float32", (symbol("n"),))))
    found = Predictor(CONTEXT, table(*slow_rows("tanh", 8.0))).predict(unsized)
    assert found == Prediction(CONTEXT.estimate(unsized), 8.0, CostOrigin.ROOFLINE)


def test_predictions_within_their_errors_are_not_told_apart() -> None:
    known = Prediction(1e-5, 1.3, CostOrigin.TABLE)
    assert not known.differs(Prediction(1.2e-5, 1.3, CostOrigin.TABLE))
    assert known.differs(Prediction(2e-5, 1.3, CostOrigin.TABLE))
    assert not known.differs(Prediction(2e-5, 4.0, CostOrigin.LEARNED))


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = table(*slow_rows("tanh", 8.0, 3))
    (file := tmp_path / "table.jsonl").write_text(made.text())
    assert read_table(file) == made
