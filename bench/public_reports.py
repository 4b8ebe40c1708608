"""Small models of public reports about graph optimizers, rebuilt from their descriptions, by the
number of the report. No code of a report is used; a model shows the kind of graph that a report
describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

Builder = Callable[[], onnx.ModelProto]


def text(graph: str, more: str = "", functions: str = "") -> Builder:
    """A model of opset 17 from ONNX's textual form."""
    return lambda: onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17{more}]> {graph} {functions}')


def shared_normalization() -> onnx.ModelProto:
    """Two convolutions with one weight, each before a batch normalization of its own."""
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), **{f"{name}{i}": (4,) for i in (1, 2) for name in ("scale", "bias", "mean", "var")}}
    arrays = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = []
    for i in (1, 2):
        nodes.append(helper.make_node("Conv", ["x", "w"], [f"c{i}"], pads=[1, 1, 1, 1]))
        given = [f"c{i}", *(f"{name}{i}" for name in ("scale", "bias", "mean", "var"))]
        nodes.append(helper.make_node("BatchNormalization", given, [f"y{i}"], epsilon=1e-3 * i))
    types = {name: helper.make_tensor_type_proto(1, dims) for name, dims in (("x", (2, 3, 8, 8)), ("y", (2, 4, 8, 8)))}
    inputs = [helper.make_value_info("x", types["x"])]
    outputs = [helper.make_value_info(f"y{i}", types["y"]) for i in (1, 2)]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


REPORTS: Mapping[str, Builder] = {
    # A cast to the same type, or a dropout, before a product with one.
    "onnxruntime 32416": text(
        "g (float[2,3] x) => (float[2,3] y) <float one = {1.0}> { c = Cast<to=1>(x) y = Mul(c, one) }"
    ),
    "onnxruntime 32414": text(
        "g (float[2,3] x) => (float[2,3] y) <float one = {1.0}> { d = Dropout(x) y = Mul(d, one) }"
    ),
    # A value inside of a pattern that is fused is an output, too.
    "onnxruntime 4110": text(
        "g (float[2,8] x) => (float[2,8] y, float[2,8] e) <float r = {1.41421356}, float one = {1.0}, float half = {0.5}> "
        "{ d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half) }"
    ),
    # An activation with a number of its own behind a product with one.
    "onnxruntime 2776": text(
        "g (float[4,8] x, float[8,3] w, float[3] b) => (float[4,3] y) "
        "{ z = Gemm<alpha: float = 0.5, beta: float = 2.0>(x, w, b) y = LeakyRelu<alpha: float = 0.3>(z) }"
    ),
    # Slices of a slice: of one axis, from the end, with steps, and of different axes.
    "onnxslim 277": text(
        "g (float[8,9] x) => (float[2,9] y, float[3,9] z, float[4,3] u) "
        "<int64[1] one = {1}, int64[1] three = {3}, int64[1] six = {6}, int64[1] two = {2}, int64[1] zero = {0}, "
        "int64[1] last = {-1}, int64[1] big = {9223372036854775807}> "
        "{ a = Slice(x, one, six, zero) y = Slice(a, one, three, zero) "
        "b = Slice(x, zero, big, zero, two) z = Slice(b, zero, last, zero) "
        "c = Slice(x, two, six, zero) u = Slice(c, three, six, one) }"
    ),
    # A part of a shape, from the end.
    "onnx/optimizer 263": text(
        "g (float[N,3,4] x) => (int64[2] s, float[M] y) "
        "<int64[1] from = {-2}, int64[1] to = {3}, int64[1] zero = {0}, int64[1] all = {-1}> "
        "{ n = Shape(x) s = Slice(n, from, to, zero) p = ReduceProd<keepdims = 0>(s) f = Cast<to = 1>(p) "
        "r = Reshape(x, all) y = Mul(r, f) }"
    ),
    # Two batch normalizations behind convolutions with one weight.
    "onnx/optimizer 133": shared_normalization,
    # Identities of an input, and two outputs of one value.
    "onnx 2230": text(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Identity(x) a = Relu(x) z = Identity(a) }"
    ),
    # A weight that is no input.
    "onnx 2198": text("g (float[1] a) => (float[1] y) <float[1] b = {42.0}> { y = Add(a, b) }"),
    # An output that depends on no input.
    "onnxsim 227": text(
        "g (float[2,3] x) => (float[2,3] y, float[2] priors) <float[2] p = {0.25, 0.75}> "
        "{ y = Relu(x) d = Add(p, p) priors = Sub(d, p) }"
    ),
    # A condition that is known, with a branch that reads a weight of the outer graph.
    "onnxscript 2810": text(
        "g (float[2,1,3] x) => (float[a,b] y) <int64[1] axes = {1}, int64 one = {1}> "
        "{ n = Shape<start = 1, end = 2>(x) s = Squeeze(n) c = Equal(s, one) "
        "y = If (c) <then_branch = t () => (float[a,b] p) { p = Squeeze(x, axes) }, "
        "else_branch = e () => (float[a,b,d] q) { q = Identity(x) }> }"
    ),
    # A constant inside of a function.
    "onnxscript 2673": text(
        "g (float[3] x) => (float[3] y) { y = this.flipped(x) }",
        ', "this": 1',
        '<domain: "this", opset_import: ["": 17]> flipped (x) => (y) '
        "{ t = Constant<value_int = 1>() c = Cast<to = 1>(t) y = Sub(c, x) }",
    ),
    # An output that can be computed ahead, which a branch also reads.
    "onnxscript 2728": text(
        "g (bool c, float[2,3] x) => (float[2] ones, float[2,3] y) <float[2] w = {1.0, 2.0}> "
        "{ z = Sub(w, w) k = Constant<value_float = 1.0>() ones = Add(z, k) "
        "y = If (c) <then_branch = t () => (float[2,3] p) { s = ReduceSum<keepdims = 0>(ones) p = Mul(x, s) }, "
        "else_branch = e () => (float[2,3] q) { q = Neg(x) }> }"
    ),
    # An input with a default that a caller may replace.
    "an unused input": text("g (float[2,3] x, float[4] unused) => (float[2,3] y) { y = Relu(x) }"),
    "a default": text("g (float[2,3] x, float[3] scale = {1.0, 1.0, 1.0}) => (float[2,3] y) { y = Mul(x, scale) }"),
}
