"""Reports about ONNX Runtime's own optimizations and the fusions of `onnxruntime.transformers`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from public_text import Builder, number, positive, text, whole


def quotient_of_one(first: str) -> Builder:
    """A node without effect before a product with a quotient that is one."""
    return text(
        f"g (float[2,3] x) => (float[2,3] y) {{ mid = {first} f = Div(one, one) y = Mul(mid, f) }}", one=number(1)
    )


def two_of(first: str, more: str, types: str) -> Builder:
    """Two equal nodes behind an operator; one of them is an output, and the other goes on."""
    return text(f"g (float[2,1,3] x) => ({types}) {{ t = {first}(x) {more} }}", one=whole(1), flat=whole(-1))


FUSED_LAYER_NORM = (
    "m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) s = Pow(d, two) v = ReduceMean<axes = [-1]>(s) "
    "e = Add(v, eps) r = Sqrt(e) n = Div(d, r)"
)

REPORTS: Mapping[str, Builder] = {
    # A cast to the same type, a dropout, an identity before a product with a folded one.
    "onnxruntime 32416": quotient_of_one("Cast<to = 1>(x)"),
    "onnxruntime 32414": quotient_of_one("Dropout(x)"),
    "onnxruntime 32413": text(
        "g (float[2,3] x) => (float[2,3] y) { mid = Identity(x) f = Div(one, one) w = Mul(mid, f) y = Add(w, none) }",
        one=number(1),
        none=number(0),
    ),
    # A transposition that changes nothing before a product: first operand, second, square.
    "onnxruntime 32417": text(
        "g (float[3,4] x) => (float[3,5] y) { t = Transpose<perm = [0, 1]>(x) y = Gemm(t, w, b) }", w=(4, 5), b=(5,)
    ),
    "onnxruntime 32418": text(
        "g (float[3,4] x, float[4,5] w) => (float[3,5] y) { t = Transpose<perm = [0, 1]>(w) y = Gemm(x, t, b) }", b=(5,)
    ),
    "onnxruntime 32228": text(
        "g (float[4,4] x) => (float[4,5] y) { t = Transpose<perm = [0, 1]>(x) p = MatMul(t, w) y = Add(p, b) }",
        w=(4, 5),
        b=(5,),
    ),
    # A value inside of a pattern that is fused is an output, too.
    "onnxruntime 4110": text(
        "g (float[2,8] x) => (float[2,8] y, float[2,8] e) "
        "{ d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half) }",
        r=number(2**0.5),
        one=number(1),
        half=number(0.5),
    ),
    # An activation with a number of its own behind a product with one.
    "onnxruntime 2776": text(
        "g (float[4,8] x, float[8,3] w, float[3] b) => (float[4,3] y) "
        "{ z = Gemm<alpha: float = 0.5, beta: float = 2.0>(x, w, b) y = LeakyRelu<alpha: float = 0.3>(z) }"
    ),
    # A convolution in groups, and a constant for every pixel.
    "onnxruntime 12498": text(
        "g (float[1,8,5,5] x) => (float[1,8,5,5] y) { c = Conv<group = 4>(x, w, b) y = Add(c, k) }",
        w=(8, 2, 1, 1),
        b=(8,),
        k=(1, 8, 5, 5),
    ),
    # A product of three axes, reshaped to two, before a batch normalization.
    "onnxruntime 22512": text(
        "g (float[2,5,4] x) => (float[10,6] y) "
        "{ p = MatMul(x, w) r = Reshape(p, to) y = BatchNormalization(r, scale, bias, mean, var) }",
        w=(4, 6),
        to=whole(10, 6),
        scale=positive(6),
        bias=(6,),
        mean=(6,),
        var=positive(6, 1),
    ),
    # A relu before a clip of another floating type.
    "onnxruntime 24158": text(
        "g (double[2,3] x) => (double[2,3] y) { r = Relu(x) y = Clip(r, low, high) }",
        low=number(-0.5, np.float64),
        high=number(0.75, np.float64),
    ),
    # A number plus a vector of one zero, which has one axis more.
    "onnxruntime 24160": text(
        "g (float x) => (float[1] y, float[1,1] z) { y = Add(x, none) a = Mul(y, ones) z = Sub(a, none) }",
        none=np.zeros(1, np.float32),
        ones=np.ones((1, 1), np.float32),
    ),
    # A sum with zeros of more axes behind a concatenation.
    "onnxruntime 11870": text(
        "g (float[1,5,1] a, float[1,5,1] b) => (float[1,2,5,1] y) { c = Concat<axis = 0>(a, b) y = Add(c, none) }",
        none=np.zeros((1, 1, 1, 1), np.float32),
    ),
    # A reshape whose result is the shape of another one.
    "onnxruntime 32105": text(
        "g (float[2,2] x) => (float[4] y) { a = Reshape(n, two) s = Reshape(a, flat) y = Reshape(x, s) }",
        opset=21,
        n=whole(4),
        two=whole(1, 1),
        flat=whole(-1),
    ),
    # Two equal casts, of which one goes on to booleans.
    "onnxruntime 18211": two_of(
        "Tan", "a = Cast<to = 7>(t) b = Cast<to = 7>(t) c = Cast<to = 9>(b)", "int64[2,1,3] a, bool[2,1,3] c"
    ),
    "onnxruntime 18212": text(
        "g (float[3] x) => (bool[5] y, int32[5] z) "
        "{ p = Pad(x, pads, half) i = Cast<to = 6>(p) y = Cast<to = 9>(i) z = Cast<to = 6>(i) }",
        pads=whole(1, 1),
        half=number(0.5),
    ),
    "onnxruntime 18213": two_of(
        "Cos", "a = Squeeze(t, one) b = Squeeze(t, one) c = Floor(b)", "float[2,3] a, float[2,3] c"
    ),
    "onnxruntime 18214": text(
        "g (float16[2,3] x, float16[2,3] z) => (float16[2,3] p, int64[2,3] q) "
        "{ a = Add(x, z) p = Sigmoid(a) s = Sigmoid(a) i = Cast<to = 7>(s) q = Clip(i, low, high) }",
        low=np.asarray(-1),
        high=np.asarray(1),
    ),
    "onnxruntime 18215": two_of(
        "Cos", "a = Reshape(t, flat) b = Reshape(t, flat) c = ArgMax<axis = 0>(b)", "float[6] a, int64[1] c"
    ),
    # A value, and a transposition of an earlier one as an output more.
    "onnxruntime 18227": text(
        "g (float16[1,2,6] x) => (int64[1,1,6] y, float16[6,2,1] z) "
        "{ a = Add(x, k) c = Cast<to = 11>(a) y = ArgMax<axis = 1>(c) z = Transpose<perm = [2, 1, 0]>(a) }",
        k=np.full((1, 1), 500, np.float16),
    ),
    "onnxruntime 18228": text(
        "g (float16[2,3] x) => (double[2,3] y, double[3,2] z) "
        "{ m = Mul(x, x) c = Cast<to = 11>(m) y = Sin(c) z = Transpose<perm = [1, 0]>(c) }"
    ),
    "onnxruntime 18229": text(
        "g (float[2,3,4] x) => (float[2,3,8] y, float[8,2,1] z) { a = Concat<axis = 2>(x, x) "
        "m = ReduceMean<axes = [1]>(a) y = Sub(m, a) z = Transpose<perm = [2, 0, 1]>(m) }"
    ),
    "onnxruntime 18231": text(
        "g (float16[2,3] x) => (double[4,2,3] y, float16[3,2,4] z) "
        "{ m = Mul(x, k) y = Cast<to = 11>(m) z = Transpose<perm = [2, 1, 0]>(m) }",
        k=np.linspace(-2, 2, 4, dtype=np.float16).reshape(4, 1, 1),
    ),
    # A mean of all pixels behind a convolution.
    "onnxruntime 20540": text(
        "g (float[1,3,9,9] x) => (float[1,16,1,1] y) { c = Conv<strides = [2, 2]>(x, w, b) y = GlobalAveragePool(c) }",
        w=(16, 3, 3, 3),
        b=(16,),
    ),
    # A product with a constant of another length behind a normalization by root mean square.
    "onnx 8203": text(
        "g (float[1,1] x) => (float[1,2] y) { s = Pow(x, two) m = ReduceMean<axes = [-1]>(s) e = Add(m, eps) "
        "r = Sqrt(e) n = Div(x, r) y = Mul(n, scale) }",
        two=number(2),
        eps=number(1e-5),
        scale=(2,),
    ),
    # A layer normalization in single operators, with weights.
    "onnxruntime 4293": text(
        f"g (float[2,3,8] x) => (float[2,3,8] y) {{ {FUSED_LAYER_NORM} p = Mul(n, scale) y = Add(p, b) }}",
        two=number(2),
        eps=number(1e-12),
        scale=(8,),
        b=(8,),
    ),
    # A layer normalization of a sum in half precision, and the sum itself goes on.
    "onnxruntime 17689": text(
        "g (float16[1,4,8] x, float16[1,4,8] z) => (float16[1,4,8] y) "
        "{ s = Add(x, z) n = LayerNormalization(s, scale, b) p = MatMul(n, w) y = Add(p, s) }",
        scale=positive(8).astype(np.float16),
        b=np.linspace(-1, 1, 8, dtype=np.float16),
        w=np.linspace(-0.5, 0.5, 64, dtype=np.float16).reshape(8, 8),
    ),
    # Quantized sums and means, whose results are quantized again, and read twice.
    "onnxruntime 32132": text(
        "g (float[1,2,4,4] x, float[1,2,4,4] z) => (float[1,2,4,4] y, float[1,2,2,2] p) "
        "{ qx = QuantizeLinear(x, s, zero) dx = DequantizeLinear(qx, s, zero) "
        "qz = QuantizeLinear(z, s, zero) dz = DequantizeLinear(qz, s, zero) a = Add(dx, dz) "
        "qa = QuantizeLinear(a, t, zero) y = DequantizeLinear(qa, t, zero) "
        "m = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(y) "
        "qm = QuantizeLinear(m, t, zero) p = DequantizeLinear(qm, t, zero) }",
        s=number(0.03125),
        t=number(0.0625),
        zero=number(128, np.uint8),
    ),
    # Two pairs of quantization, with different scales, after each other.
    "onnxruntime 25259": text(
        "g (float[2,8] x) => (float[2,8] y) { q = QuantizeLinear(x, s, zero) d = DequantizeLinear(q, s, zero) "
        "r = QuantizeLinear(d, t, zero) e = DequantizeLinear(r, t, zero) y = Relu(e) }",
        s=number(0.015625),
        t=number(0.125),
        zero=number(0, np.int8),
    ),
    # Operands of a shape of which a part is known only when it runs.
    "onnxruntime 4898": text(
        "g (float[2] x, float[N] z) => (float[M] y) { a = Shape(x) zeros = ConstantOfShape(a) b = Shape(z) "
        "more = ConstantOfShape(b) s = ScatterElements(zeros, at, x) t = Add(more, z) y = Concat<axis = 0>(s, t) }",
        at=whole(1, 0),
    ),
    # A comparison of constants by an operator that is a function in older sets of operators.
    "onnxruntime 32130": text(
        "g (float[3] x) => (float[3] y) { c = GreaterOrEqual(a, b) y = Where(c, x, a) }",
        opset=12,
        a=np.array([1, 2, 3], np.float32),
        b=np.array([2, 2, 2], np.float32),
    ),
    # Reshapes and squeezes of constants.
    "onnxruntime 29788": text(
        "g (float[2,6] x) => (float[2,6] y, float[3,4] z) { a = Reshape(k, flat) b = Unsqueeze(a, front) "
        "c = Expand(b, size) y = Add(x, c) d = Squeeze(c) e = Reshape(d, other) z = Identity(e) }",
        k=(2, 3),
        flat=whole(6),
        front=whole(0),
        size=whole(2, 6),
        other=whole(3, 4),
    ),
    # Two outputs of one value, behind nodes of an attention's mask.
    "onnxruntime 23118": text(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z, float[2,3] u) "
        "{ a = Sigmoid(x) y = Identity(a) z = Identity(a) u = Mul(a, one) }",
        one=number(1),
    ),
    # A transposition of few axes that can move through operators with operands of other ranks.
    "onnxruntime 23258": text(
        "g (float[2,3,4] x, float[3] k) => (float[4,3,2] y, float[3,4,2] z) "
        "{ t = Transpose<perm = [2, 0, 1]>(x) a = Add(t, k) y = Transpose<perm = [0, 2, 1]>(a) "
        "s = Unsqueeze(a, last) q = Squeeze(s, last) z = Transpose<perm = [2, 0, 1]>(q) }",
        last=whole(3),
    ),
    # A sigmoid one node before the end, of a value that a product and a sum made.
    "onnxruntime 14885": text("g (float[1] x) => (float[1] y) { a = Mul(x, x) s = Sigmoid(a) y = Mul(s, x) }"),
    # A function with a condition whose branches name their values alike.
    "onnxruntime 23022": text(
        "g (bool c, float[2] x) => (float[2] y, float[2] z) { y = this.f(c, x) z = this.f(c, y) }",
        ', "this": 1',
        '<domain: "this", opset_import: ["": 17]> f (c, x) => (y) '
        "{ y = If (c) <then_branch = t () => (p) { p = Neg(x) }, else_branch = e () => (p) { p = Exp(x) }> }",
    ),
    # A wrong result of the first run only: a pad, whose result is cast, and read twice.
    "onnxruntime 26160": text(
        "g (double[3,2] x) => (float[5,2] y, double[5,2] z) "
        "{ p = Pad(x, pads, value) c = Cast<to = 1>(p) t = Tan(c) y = Floor(t) z = Cos(p) }",
        pads=whole(1, 0, 1, 0),
        value=number(0.25, np.float64),
    ),
    # A loop in half precision.
    "onnxruntime 7981": text(
        "g (float16[3] x) => (float16[3] y) { y = Loop(n, on, x) <body = b (int64 i, bool c, float16[3] s) => "
        "(bool d, float16[3] t) { d = Identity(c) a = Mul(s, half) t = Add(a, x) }> }",
        n=np.asarray(3),
        on=np.asarray(True),
        half=number(0.5, np.float16),
    ),
    # Embeddings of words and positions, and their normalization.
    "onnxruntime 10003": text(
        "g (int64[1,4] ids) => (float[1,4,8] y) { w = Gather(words, ids) z = Equal(ids, one) n = Not(z) "
        "m = Cast<to = 7>(n) c = CumSum(m, at) k = Mul(c, m) p = Add(k, one) q = Gather(places, p) a = Add(w, q) "
        "y = LayerNormalization(a, scale, b) }",
        words=(10, 8),
        places=(10, 8),
        one=np.asarray(1),
        at=np.asarray(1),
        scale=positive(8),
        b=(8,),
    ),
    # An approximation of the gelu by tanh.
    "onnxruntime 3977": text(
        "g (float[2,8] x) => (float[2,8] y) { p = Pow(x, three) a = Mul(p, k) s = Add(x, a) m = Mul(s, c) "
        "t = Tanh(m) u = Add(t, one) h = Mul(u, half) y = Mul(x, h) }",
        three=number(3),
        k=number(0.044715),
        c=number(0.7978846),
        one=number(1),
        half=number(0.5),
    ),
    # A product with a transposed operand, of which two axes are batches.
    "onnxruntime 7135": text(
        "g (float[2,4,3,5] x, float[2,3,4,5] z) => (float[2,4,3,3] y, float[2,4,5,3] t) "
        "{ t = Transpose<perm = [0, 2, 3, 1]>(z) p = MatMul(x, t) y = Mul(p, half) }",
        half=number(0.5),
    ),
    # A product of matrices of integers and of an operand in another type, with a scale.
    "onnxruntime 5230": text(
        "g (int32[2,3] x, double[3,4] z) => (int32[2,2] y, double[3,3] u) { p = MatMul(x, k) y = Mul(p, s) "
        "q = MatMul(z, w) u = Div(q, t) }",
        k=np.arange(6, dtype=np.int32).reshape(3, 2),
        s=np.asarray(3, np.int32),
        w=np.arange(12).reshape(4, 3) / 7.0,
        t=number(3, np.float64),
    ),
    # A product of a number with a vector of one, which a concatenation reads.
    "onnxruntime 24340": text(
        "g (float x, float[1] z) => (float[2] y, float[1] u) { m = Mul(x, ones) s = Sqrt(one) d = Div(m, s) "
        "y = Concat<axis = 0>(d, z) u = Mul(x, z) }",
        ones=np.ones(1, np.float32),
        one=number(1),
    ),
    # A concatenation that is read, and concatenated again with what was computed from it.
    "onnxruntime 20606": text(
        "g (float[1,4,3] x, float[1,2] z) => (float[1,4,8] y) { s = Unsqueeze(z, one) e = Expand(s, size) "
        "a = Concat<axis = 2>(x, e) b = MatMul(a, v) c = Tanh(b) d = MatMul(a, w) y = Concat<axis = 2>(a, c, d) }",
        one=whole(1),
        size=whole(1, 4, 2),
        v=(5, 2),
        w=(5, 1),
    ),
    # A count that is gathered from a size, of the largest elements.
    "onnxruntime 29072": text(
        "g (float[3,6] x) => (float[3,K] y, int64[3,K] i) { s = Shape(x) k = Gather(s, zero) y, i = TopK<axis = 1>(x, k) }",
        zero=whole(0),
    ),
}
