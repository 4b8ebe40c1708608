"""Savings of reading alone: sizes, constants and initial states of zeros."""

from __future__ import annotations

import textwrap

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import taso_mirage
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.write import reads_smaller

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
RNG = np.random.default_rng(0)


def recurrent(kind: str, gates: int, value: float) -> onnx.ModelProto:
    """A recurrent layer as torch writes it: initial states that are filled, and cut from one
    tensor."""
    states = "h, c" if kind.endswith("LSTM") else "h"
    quantized = kind.startswith("com.microsoft")
    rest = ", , scale, zero, scale, zero" if quantized else ""
    proto = onnx.parser.parse_model(
        HEADER.replace("]", ', "com.microsoft" : 1]')
        + textwrap.dedent(f"""
        layer (float[steps, b, 4] x) => (float[] y) <int64 at = {{1}}, int64[1] first = {{0}}, int64[1] two = {{2}},
            int64[1] one = {{1}}, int64[1] hidden = {{5}}> {{
          sizes = Shape (x)
          size = Gather (sizes, at)
          batch = Unsqueeze (size, first)
          shape = Concat <axis = 0> (two, batch, hidden)
          filled = ConstantOfShape <value = float[1] {{{value}}}> (shape)
          h = Slice (filled, first, one, first)
          c = Slice (filled, one, two, first)
          y = {kind} <hidden_size = 5> (x, w, r, bias, , {states}{rest})
        }}""")
    )
    sizes = {"w": (1, gates * 5, 4), "r": (1, gates * 5, 5), "bias": (1, gates * 10)}
    arrays = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in sizes.items()}
    if quantized:
        bits = {k: RNG.integers(0, 255, sizes[k], np.uint8).swapaxes(1, 2).copy() for k in "wr"}
        arrays |= {**bits, "scale": np.array([0.02], np.float32), "zero": np.array([128], np.uint8)}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return proto


@pytest.mark.parametrize(
    ("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1), ("com.microsoft.DynamicQuantizeLSTM", 4)]
)
def test_initial_states_of_zeros_are_left_out(kind: str, gates: int) -> None:
    proto = recurrent(kind, gates, 0.0)
    assert reads_smaller(from_memory(proto))
    found, result = taso_mirage.optimize(proto, measure=False, budget=5, return_result=True)
    assert result.changed
    assert not result.equations
    assert [node.op_type for node in found.graph.node] == [kind.split(".")[-1]]
    for batch, steps in ((1, 3), (4, 2)):
        given = {"x": RNG.normal(size=(steps, batch, 4)).astype(np.float32)}
        before, after = (
            onnxruntime.InferenceSession(m.SerializeToString()).run(None, given)[0] for m in (proto, found)
        )
        np.testing.assert_array_equal(before, after)


def test_other_initial_states_stay() -> None:
    written = taso_mirage.optimize(recurrent("GRU", 3, 0.5), measure=False, budget=5)
    (node,) = [node for node in written.graph.node if node.op_type == "GRU"]
    assert node.input[5]


def test_what_reading_leaves_alone_is_kept() -> None:
    proto = onnx.parser.parse_model(HEADER + "plain (float[b, 4] x) => (float[b, 4] y) { y = Tanh (x) }")
    assert not reads_smaller(from_memory(proto))
    _, result = taso_mirage.optimize(proto, measure=False, budget=5, return_result=True)
    assert not result.changed
