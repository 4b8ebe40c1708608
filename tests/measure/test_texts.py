"""Models whose inputs are texts: the check draws those that the model knows, or numbers."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import taso_mirage
from taso_mirage.ir.model import random_inputs
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.targets.onnx_runtime import ort_value

CODED = """<ir_version: 9, opset_import: ["": 20, "ai.onnx.ml": 3]>
g (string[N,3] x, string[2] kind, string[2] count, float[2] z) => (int64[M] y, bool[2] yes, float[2] sum)
<string[1] known = {"yes"}, int64[1] all = {-1}> {
  flat = Reshape(x, all)
  y = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_int64s = [1, 2], default_int64 = -1>(flat)
  yes = Equal(kind, known) number = Cast<to = 1>(count) n = Neg(z) m = Neg(n) sum = Add(m, number)
}"""


def test_texts_are_those_that_the_model_knows() -> None:
    model = from_memory(onnx.parser.parse_model(CODED))
    assert model.words == {"x": ("a", "b"), "kind": ("yes",)}
    drawn = [random_inputs(model, seed, {"N": 8}) for seed in range(8)]
    seen = {name: {text for each in drawn for text in each[name].flat} for name in ("x", "kind", "count")}
    assert seen["x"] == {"a", "b", "0"}
    assert seen["kind"] == {"yes", "0"}
    assert len(seen["count"]) > 3
    assert all(text.isdecimal() for text in seen["count"])


def test_a_model_of_texts_is_optimized_and_checked() -> None:
    original = onnx.parser.parse_model(CODED)
    result, said = taso_mirage.optimize(original, effort="quick", measure=False, return_result=True)
    assert "Neg" not in [each.op_type for each in result.graph.node]
    assert said.differences
    assert all(each.passed for each in said.differences)
    feed = {
        "x": np.array([["a", "b", "c"]], object),
        "kind": np.array(["yes", "no"], object),
        "count": np.array(["3", "4"], object),
        "z": np.array([0.5, -1], np.float32),
    }
    y, yes, total = taso_mirage.session(result.SerializeToString()).run(None, feed)
    assert (y.tolist(), yes.tolist(), total.tolist()) == ([1, 2, -1], [True, False], [3.5, 3.0])


@pytest.mark.parametrize("texts", [np.array([["a", "ü" * 40], ["", "b"]]), np.empty((0, 3), object), np.array("a")])
def test_texts_are_values_of_the_runtime(texts: np.ndarray) -> None:
    value = ort_value(texts)
    assert value.shape() == list(texts.shape)
    assert value.numpy().tolist() == texts.tolist()
