"""Integers that index a table are drawn from all of its rows."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.onnx_io import from_ir, from_proto


def read(body: str) -> Model:
    return from_ir(
        from_proto(
            parse_model(f"""
            <ir_version: 9, opset_import: ["" : 18]>
            g (int64[b, s] ids, int64[b, s] mask, float[50, 4] table, float[8, 4] few) => (float[b, s, 4] y)
            <int64[1] two = {{2}}, int64[3] shape = {{1, 1, 4}}, int64[1] zero = {{0}}, int64 eighth = {{7}}, int64 nought = {{0}}>
            {{ {body} }}""")
        )
    )


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        ("y = Gather(table, ids)", {"ids": 50}),
        ("i = Cast<to = 6>(ids) j = Unsqueeze(i, zero) k = Squeeze(j, zero) y = Gather(table, k)", {"ids": 50}),
        ("a = Gather(table, ids) c = Gather(few, ids) y = Add(a, c)", {"ids": 8}),
        ("pad = Equal(ids, mask) i = Where(pad, eighth, ids) y = Gather(table, i)", {"ids": 50}),
        ("i = Add(ids, mask) y = Gather(table, i)", {}),
        (
            "b = Cast<to = 9>(mask) i = Cast<to = 7>(b) a = Gather(table, ids) c = Gather(few, i) y = Add(a, c)",
            {"ids": 50},
        ),
        (
            "kept = NonZero(mask) row = Gather(kept, nought) some = Gather(ids, row) first = Gather(some, nought) "
            "f = Gather(table, first) y = Expand(f, shape)",
            {"ids": 50},
        ),
        ("i = GatherElements<axis = 1>(ids, mask) y = Gather(table, i)", {"ids": 50}),
        ("f = Cast<to = 1>(ids) g = Unsqueeze(f, two) y = Expand(g, shape)", {}),
    ],
)
def test_the_rows_of_the_smallest_table(body: str, rows: dict[str, int]) -> None:
    assert read(body).rows == rows


def test_all_rows_are_drawn() -> None:
    model = read("a = Gather(table, ids) f = Cast<to = 1>(mask) g = Unsqueeze(f, two) y = Mul(a, g)")
    inputs = random_inputs(model, 0, {"b": 20, "s": 40})
    assert {*np.unique(inputs["ids"])} == {*range(50)}
    assert {*np.unique(inputs["mask"])} == {0, 1}
