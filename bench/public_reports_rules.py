"""Reports about single rewrite rules: what they look at too little, by project."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from public_text import Builder, number, positive, text, whole


def normalized(x: str, more: str, types: str, **weights: tuple[int, ...] | np.ndarray) -> Builder:
    """A normalization whose means lose their axis."""
    return text(
        f"g ({x} x) => ({types}) {{ m = ReduceMean<axes = [-1], keepdims = 0>(x) d = Sub(x, m) s = Pow(d, two) "
        f"v = ReduceMean<axes = [-1], keepdims = 0>(s) e = Add(v, eps) r = Sqrt(e) n = Div(d, r) {more} }}",
        two=number(2),
        eps=number(1e-5),
        **weights,
    )


REPORTS: Mapping[str, Builder] = {
    # A normalization of one axis, which it does not keep: of a vector, and of a square.
    "onnxruntime 30513": normalized("float[4]", "y = Mul(n, k)", "float[1,4] y", k=(1, 4)),
    "onnxruntime 31144": normalized("float[4,4]", "p = Mul(n, k) y = Add(p, b)", "float[4,4] y", k=(4,), b=(4,)),
    # A product whose third operand is transposed.
    "onnxruntime 12071": text(
        "g (float[2,3] x, float[4,2] c) => (float[2,4] y) { t = Transpose<perm = [1, 0]>(c) y = Gemm(x, w, t) }",
        w=(3, 4),
    ),
    # Floats that become integers, and floats again.
    "onnxruntime 4039": text(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) "
        "{ s = Mul(x, ten) i = Cast<to = 7>(s) y = Cast<to = 1>(i) j = Cast<to = 3>(s) z = Cast<to = 1>(j) }",
        ten=number(10),
    ),
    # Reshapes to shapes that are put together, in two branches.
    "onnxruntime 10477": text(
        "g (float[N,3,4] x, bool c) => (float[N,12] y) { y = If (c) "
        "<then_branch = t () => (float[N,12] p) { s = Shape(x) n = Gather(s, zero) u = Unsqueeze(n, front) "
        "a = Concat<axis = 0>(u, rest) p = Reshape(x, a) }, "
        "else_branch = e () => (float[N,12] q) { g = Neg(x) h = Shape(g) k = Gather(h, zero) v = Unsqueeze(k, front) "
        "b = Concat<axis = 0>(v, rest) q = Reshape(g, b) }> }",
        zero=np.asarray(0),
        front=whole(0),
        rest=whole(-1),
    ),
    # Equal constants that are texts.
    "onnxruntime 28413": text(
        'g (float[2] x) => (float[2] y) { a = Constant<value = string[2] {"1", "2"}>() '
        'b = Constant<value = string[2] {"1", "2"}>() c = Cast<to = 1>(a) d = Cast<to = 1>(b) e = Add(x, c) y = Mul(e, d) }'
    ),
    # A mask that is summed over an axis, which is an operand, beside an attention.
    "onnxruntime 15047": text(
        "g (float[1,4,6] x, int64[1,4] mask) => (float[1,4,6] y, int64[1] n) { n = ReduceSum<keepdims = 0>(mask, last) "
        "f = Cast<to = 1>(mask) u = Unsqueeze(f, one) d = Sub(unit, u) b = Mul(d, low) q = MatMul(x, w) k = MatMul(x, v) "
        "t = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, t) a = Add(s, b) p = Softmax<axis = -1>(a) y = MatMul(p, x) }",
        last=whole(-1),
        one=whole(1),
        unit=number(1),
        low=number(-1e4),
        w=(6, 6),
        v=(6, 6),
    ),
    # A quotient of one before a product, in the other order, behind a value that goes away.
    "onnxruntime 32703": text(
        "g (float[2,3] x) => (float[2,3] y) { a = Abs(x) s = Add(a, one) f = Div(one, s) mid = Dropout(x) y = Mul(f, mid) }",
        one=number(1),
    ),
    # A factor of each channel behind a convolution that others read, too.
    "onnxruntime 28540": text(
        "g (float[1,3,6,6] x) => (float[1,4,6,6] y, float[1,4,6,6] z) "
        "{ c = Conv<pads = [1, 1, 1, 1]>(x, w, b) m = Mul(c, k) y = Relu(m) d = Conv<pads = [1, 1, 1, 1]>(m, v) z = Mul(d, c) }",
        w=(4, 3, 3, 3),
        b=(4,),
        k=(4, 1, 1),
        v=(4, 4, 3, 3),
    ),
    # Reshapes to the same shape, by numbers, by a zero, and to another one of the same size.
    "onnx/optimizer 282": text(
        "g (float[2,3] x, float[N,4] z) => (float[2,3] y, float[3,2] u, float[N,4] v) "
        "{ a = Reshape(x, same) b = Reshape(a, kept) y = Neg(b) u = Reshape(b, other) c = Reshape(z, free) v = Relu(c) }",
        same=whole(2, 3),
        kept=whole(0, -1),
        other=whole(3, 2),
        free=whole(-1, 4),
    ),
    # Nodes that differ in an attribute alone, and equal ones that are outputs.
    "onnx/optimizer 254": text(
        "g (float[2,4] x) => (float[2,4] a, float[2,4] b, float[2,4] c, float[2,2] s, float[1,4] t) "
        "{ a = LeakyRelu<alpha = 0.1>(x) b = LeakyRelu<alpha = 0.2>(x) c = LeakyRelu<alpha = 0.1>(x) "
        "s, d = Split<axis = 1>(x) t, e = Split<axis = 0>(x) }"
    ),
    # A constant made from a shape, times zero.
    "onnxsim 319": text(
        "g (float[N,3] x) => (float[N,3] y) { s = Shape(x) c = ConstantOfShape<value = float[1] {2.0}>(s) z = Mul(c, none) y = Add(x, z) }",
        none=number(0),
    ),
    # The first size of a tensor of free sizes, which flattens the pixels of another one.
    "onnxsim 140": text(
        "g (float[N,4,5,5] x) => (float[N,3] y) { p = GlobalAveragePool(x) s = Shape(p) n = Gather(s, zero) u = Unsqueeze(n, front) "
        "t = Concat<axis = 0>(u, rest) r = Reshape(p, t) y = Gemm<transB = 1>(r, w, b) }",
        zero=np.asarray(0),
        front=whole(0),
        rest=whole(-1),
        w=(3, 4),
        b=(3,),
    ),
    # A mean over wide windows that overlap.
    "onnxsim 322": text(
        "g (float[1,2,9,40] x) => (float[1,2,4,3] y) { y = AveragePool<kernel_shape = [2, 12], strides = [2, 11]>(x) }"
    ),
    # Concatenations in each other along the same axis and along another one.
    "onnx 2364": text(
        "g (float[2,3] x, float[2,3] z) => (float[2,9] y, float[4,6] u) { a = Concat<axis = 1>(x, z) y = Concat<axis = 1>(a, x) "
        "b = Concat<axis = 1>(z, x) u = Concat<axis = 0>(a, b) }"
    ),
    # Rows of attention that are shifted against each other by a reshape and slices.
    "tsingmicro/onnxslim 13": text(
        "g (float[1,2,4,4] x) => (float[1,2,4,2] y) { p = Concat<axis = 3>(none, x) r = Reshape(p, turned) "
        "c = Slice(r, one, big, two) b = Reshape(c, back) y = Slice(b, zero, half, three) }",
        none=np.zeros((1, 2, 4, 1), np.float32),
        turned=whole(1, 2, 5, 4),
        back=whole(1, 2, 4, 4),
        zero=whole(0),
        one=whole(1),
        two=whole(2),
        three=whole(3),
        half=whole(2),
        big=whole(2**63 - 1),
    ),
    # An activation with a clip whose operands have other axes.
    "openvino 37989": text(
        "g (float[2,3,4] x, float[4] z) => (float[2,3,4] y, float[2,3,4] u) { a = Add(x, three) c = Clip(a, none, six) m = Mul(x, c) "
        "h = Div(m, six) y = Add(h, z) d = Add(h, three) e = Clip(d, none, six) f = Mul(h, e) u = Div(f, six) }",
        three=number(3),
        none=number(0),
        six=number(6),
    ),
    # Boxes from whole numbers, of which those that overlap are dropped and the others counted.
    "openvino 16261": text(
        "g (uint8[1,4,4] x) => (int64[K,3] chosen, int64 n) { f = Cast<to = 1>(x) c = Div(f, all) b = Add(c, apart) "
        "m = ReduceMean<axes = [2], keepdims = 0>(c) p = Add(m, ranks) s = Unsqueeze(p, one) "
        "chosen = NonMaxSuppression(b, s, most, overlap, least) t = Shape(chosen) n = Gather(t, zero) }",
        all=number(2550),
        apart=np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [3, 3, 4, 4], [3, 3.1, 4, 4.1]]], np.float32),
        ranks=np.array([[0.9, 0.5, 0.7, 0.3]], np.float32),
        one=whole(1),
        most=whole(4),
        overlap=np.array([0.5], np.float32),
        least=np.array([0.05], np.float32),
        zero=np.asarray(0),
    ),
    # The reciprocal of a reciprocal.
    "tensorflow 119429": text("g (float[8] x) => (float[8] y) { r = Reciprocal(x) y = Reciprocal(r) }"),
    # A small number that keeps a logarithm finite, beside a one that is folded.
    "tensorflow 52045": text(
        "g (float[8] x) => (float[8] y, double[8] z) { p = Sigmoid(x) d = Sub(one, p) a = Add(d, eps) y = Log(a) "
        "w = Cast<to = 11>(p) e = Sub(wide, w) f = Add(e, tiny) z = Log(f) }",
        one=number(1),
        eps=number(1e-7),
        wide=number(1, np.float64),
        tiny=number(1e-9, np.float64),
    ),
    # The logarithm of a power with an even exponent, and of one that is undefined.
    "tensorflow 57744": text(
        "g (float[8] x) => (float[8] y, float[8] z) { s = Pow(x, two) y = Log(s) p = Pow(x, x) z = Log(p) }",
        two=number(2),
    ),
    # Equal comparisons, of which one is different from the other nowhere.
    "xla 44705": text(
        "g (float[8] x) => (float[8] y) { a = Greater(x, none) b = Greater(x, none) d = Xor(a, b) f = Cast<to = 1>(d) y = Add(f, x) }",
        none=number(0),
    ),
    # A quotient by a root in double precision.
    "xla 40844": text(
        "g (double[8] x, double[8] z) => (double[8] y) { a = Abs(z) e = Add(a, least) r = Sqrt(e) y = Div(x, r) }",
        least=number(0.125, np.float64),
    ),
    # A difference of integers that cancel.
    "futhark 1194": text("g (int64[4] x, int64[4] z) => (int64[4] y) { s = Add(x, z) y = Sub(x, s) }"),
    # Equal reshapes that several nodes continue alike.
    "mxnet 19316": text(
        "g (float[2,6] x) => (float[1,3,4] y) { a = Reshape(x, to) b = Reshape(x, to) c = Reshape(x, to) d = Unsqueeze(a, front) "
        "e = Unsqueeze(b, front) f = Unsqueeze(c, front) g = Unsqueeze(a, front) h = Add(d, e) i = Mul(f, g) j = Mul(i, k) y = Add(h, j) }",
        to=whole(3, 4),
        front=whole(0),
        k=positive(4),
    ),
}
