"""The bytes of weights that decide how far a file may grow, and which weights are made at load."""

from __future__ import annotations

from onnx.parser import parse_model

from taso_mirage.ir.terms import Tensor, variable, weight
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import growth
from taso_mirage.search import weights_at_load

TEXTS = """<ir_version: 10, opset_import: ["" : 20]> g (string[2] x, float[2] z) => (string[2] y, float[2] r)
<string[2] end = {"a", "b"}> { y = StringConcat(x, end) r = Relu(z) }"""


def test_weights_count_their_bytes_once() -> None:
    rows = variable("x", Tensor("float32", (8, 4)))
    assert growth._weight_bytes([term("add", rows, weight("w", Tensor("float32", (8, 4))))]) == 8 * 4 * 4


def test_weights_of_texts_have_a_size() -> None:
    model = from_memory(parse_model(TEXTS))
    assert growth._weight_bytes(model.graph.outputs) == 16
    assert weights_at_load.made_at_load(model, ()) == (model, [])
