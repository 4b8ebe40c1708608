"""Values in half precision that become integers: ONNX Runtime computes them in single precision on
a CPU, and rounds them to halves for some of their readers only."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnxruntime import InferenceSession

import taso_mirage
from taso_mirage.measure.check_inputs import truncates_halves
from taso_mirage.onnx_io.files import from_memory


def twice(dtype: str, to: int = 7) -> onnx.ModelProto:
    """A sigmoid that is there twice; one of them is cut to integers."""
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g ({dtype}[64] x) => ({dtype}[64] p, int64[64] q) '
        f"{{ p = Sigmoid(x) s = Sigmoid(x) i = Cast<to = {to}>(s) q = Cast<to = 7>(i) }}"
    )


@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_integers_are_the_same_on_large_inputs(dtype: str) -> None:
    """If equal nodes were computed once, some ones would be zeros."""
    model = twice(dtype)
    made = taso_mirage.optimize(model, effort="quick")
    x = np.linspace(-20, 20, 64).astype(np.float16 if dtype == "float16" else np.float32)
    wanted, found = (InferenceSession(m.SerializeToString()).run(None, {"x": x}) for m in (model, made))
    np.testing.assert_array_equal(found[1], wanted[1])
    sigmoids = [node.op_type for node in made.graph.node].count("Sigmoid")
    assert sigmoids == (2 if dtype == "float16" else 1)


@pytest.mark.parametrize(("dtype", "to", "cut"), [("float16", 7, True), ("float", 7, False), ("float16", 9, False)])
def test_the_check_has_large_inputs_where_halves_are_cut(dtype: str, to: int, cut: bool) -> None:
    assert truncates_halves(from_memory(twice(dtype, to))) == cut
