"""Inputs of the check whose masks hide everything or nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable, weight
from taso_mirage.measure.check import check_cases, compare
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term

ROWS, COLUMNS = 3, 16


def masked(dtype: str, hidden: float) -> Model:
    """The softmax of scores, of which a mask hides some by adding a number."""
    x, mask = variable("x", Tensor("float32", (ROWS, COLUMNS))), variable("mask", Tensor(dtype, (ROWS, COLUMNS)))
    seen: Node = mask if dtype == "bool" else term("equal", mask, constant(1, dtype))
    added = term("where", seen, constant(0.0, "float32"), constant(hidden, "float32"))
    return standalone(Graph((x, mask), (term("softmax", term("add", x, added), axis=1),)), {"": 17})


def cases(model: Model) -> list[str]:
    return [case.name for case in check_cases(model, Session(serialize(model)), {})]


@pytest.mark.parametrize("dtype", ["bool", "int64"])
def test_a_row_that_is_hidden_as_a_whole_is_compared(dtype: str) -> None:
    """A number that overflows hides as well, but leaves no number in such a row."""
    model, wrong = masked(dtype, -1e9), masked(dtype, -np.inf)
    prepared = list(check_cases(model, Session(serialize(model)), {}))
    differences = compare(model, Session(serialize(wrong)), prepared)
    failed = {each.case for each in differences if not each.passed}
    assert failed - {"random inputs with wide integers"} == {"random inputs with mask=0"}
    assert all(each.passed for each in compare(model, Session(serialize(model)), prepared))


def test_results_that_are_no_numbers_are_left_open() -> None:
    names = cases(masked("bool", -np.inf))
    assert "random inputs with mask=1" in names
    assert "random inputs with mask=0" not in names


def test_rows_of_a_table_are_no_masks() -> None:
    ids, table = variable("ids", Tensor("int64", (4,))), weight("table", Tensor("float32", (5, 3)))
    weights = {"table": StoredWeight(np.ones((5, 3), np.float32))}
    model = standalone(Graph((ids,), (term("gather", table, ids, axis=0),)), {"": 17}, weights)
    assert not [name for name in cases(replace(model, rows={"ids": 5})) if "ids=" in name]
