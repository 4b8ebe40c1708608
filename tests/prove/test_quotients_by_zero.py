"""Quotients by the number 0: a proof over the reals says nothing about them, so no rule applies
there. The runtime gives infinities or NaN, and they would differ after a rewrite."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import taso_mirage
from taso_mirage.rewriting.derived_traits import divisors

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,N] y) <float k = {%s}>'
BODIES = {
    "a product below a reciprocal": "a = Mul(x, k)  y = Reciprocal(a)",
    "a product of a quotient": "a = Div(x, k)  y = MatMul(a, w)",
}


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("number", ["0.0", "-0.0", "2.0"])
@pytest.mark.parametrize("body", BODIES)
def test_no_rule_applies_to_a_quotient_by_zero(body: str, number: str) -> None:
    model = onnx.parser.parse_model(f"{HEAD % number} {{ {BODIES[body]} }}")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    options = {"measure": False, "kernels": "off", "budget": 60.0, "return_result": True}
    optimized, result = taso_mirage.optimize(model, **options)
    assert (kinds(optimized) == kinds(model)) == (float(number) == 0)
    assert not [note for note in result.notes if "the check failed" in note]


def test_divisors_are_read_from_definitions() -> None:
    assert {name: divisors(name) for name in ("div", "reciprocal", "mul", "sigmoid")} == {
        "div": {1},
        "reciprocal": {0},
        "mul": frozenset(),
        "sigmoid": frozenset(),
    }
