"""The resolutions of results that bodies compute."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import onnx_texts

from taso_mirage.measure.resolutions import resolutions
from taso_mirage.onnx_io import from_ir
from taso_mirage.onnx_io.bodies import has_bodies

BRANCHES = """
    g (float[4, 4] x, bool c) => (float[4] y, float[4, 4] z) {
        y, z = If(c) <
            then_branch = t () => (float[4] p, float[4, 4] q) {
                a = Sigmoid(x) \n b = Transpose<perm = [1, 0]>(a) \n p = ReduceMean<axes = [1], keepdims = 0>(b)
                q = Mul(a, x) },
            else_branch = e () => (float[4] r, float[4, 4] s) {
                d = Relu(x) \n r = ReduceMax<axes = [0], keepdims = 0>(d) \n s = Neg(x) }
        >
    }
"""
LOOP = """
    g (float[4] x, int64 k, bool c) => (float[4] y, float[l, 4] z) {
        y, z = Loop(k, c, x) <
            body = b (int64 i, bool go, float[4] s) => (bool on, float[4] o, float[4] q) {
                on = Identity(go) \n o = Tanh(s)
                q = If(go) < then_branch = t () => (float[4] p) { p = Sigmoid(o) },
                             else_branch = e () => (float[4] r) { r = Neg(o) } >
            }
        >
    }
"""


def found(text: str) -> list[tuple[float, ...]]:
    proto = onnx_texts.parse(text, '<ir_version: 8, opset_import: ["" : 17]>', None)
    model = from_ir(ir.from_proto(onnx.load_from_string(proto.SerializeToString())))
    return [resolutions(model, node) for node in model.nodes() if has_bodies(node)]


def test_a_result_of_a_body_is_as_near_as_the_operator_that_made_it() -> None:
    """A sigmoid near 0 is off by a rounding of 1 also inside of a branch; a product with it is
    not."""
    assert found(BRANCHES) == [(1.0, 0.0)]
    assert found(LOOP) == [(0.0, 1.0)]
