"""Numbers that half precision does not hold: the runtime computes half precision in single, where a
mask of -1e9 stays finite, so no rewrite makes it infinite."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import taso_mirage

HEAD = '<ir_version: 9, opset_import: ["": 17]> g (float16[N,4] x, bool[N,4] hidden) => (float16[N,4] y)'
LOW = "<float low = {-1000000000.0}, float none = {0.0}>"
MASKS = {
    "where": "mask = Where(hidden, low, none)  half = Cast<to = 10>(mask)",
    "expand": "sizes = Shape(x)  full = Expand(low, sizes)  wide = Cast<to = 10>(full)  zero = Cast<to = 10>(none)"
    "  half = Where(hidden, wide, zero)",
}


PRODUCT = """<ir_version: 9, opset_import: ["": 17]>
g (float16[N,2] x) => (float16[N,2] y) <float16[2] c = {60000, 1}, float16[2] d = {4, 1}> { p = Mul(c, d)  y = Mul(x, p) }"""


def outputs(model: onnx.ModelProto, inputs: dict[str, Any]) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


@pytest.mark.parametrize("mask", MASKS)
def test_a_row_that_is_hidden_stays_finite(mask: str) -> None:
    model = onnx.parser.parse_model(f"{HEAD} {LOW} {{ {MASKS[mask]}  s = Add(x, half)  y = Softmax(s) }}")
    x = np.float16(np.random.default_rng(0).standard_normal((2, 4)))
    inputs = {"x": x, "hidden": np.array([[True] * 4, [True, False] * 2])}
    optimized = taso_mirage.optimize(model, effort="quick")
    np.testing.assert_allclose(outputs(optimized, inputs), outputs(model, inputs), atol=1e-3)


def test_a_product_of_weights_that_overflows_is_not_computed() -> None:
    model = onnx.parser.parse_model(PRODUCT)
    inputs = {"x": np.float16([[1e-3, 1.0]])}
    optimized = taso_mirage.optimize(model, effort="quick")
    np.testing.assert_allclose(outputs(optimized, inputs), outputs(model, inputs))
    assert np.isfinite(outputs(model, inputs)).all()
