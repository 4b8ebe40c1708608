"""Reports about the optimizer and the rewrite rules of onnxscript."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from public_text import Builder, number, positive, text, whole

REPORTS: Mapping[str, Builder] = {
    # A condition that is known, with a branch that reads a weight of the outer graph.
    "onnxscript 2810": text(
        "g (float[2,1,3] x) => (float[a,b] y) { n = Shape<start = 1, end = 2>(x) s = Squeeze(n) c = Equal(s, one) "
        "y = If (c) <then_branch = t () => (float[a,b] p) { p = Squeeze(x, axes) }, "
        "else_branch = e () => (float[a,b,d] q) { q = Identity(x) }> }",
        axes=whole(1),
        one=np.asarray(1),
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
    # A sum with a factor before a batch normalization.
    "onnxscript 3027": text(
        "g (float[5,4] x) => (float[5,3] y) "
        "{ p = Gemm<beta = 2.0, alpha = 0.5>(x, w, b) y = BatchNormalization(p, s, o, m, v) }",
        w=(4, 3),
        b=(3,),
        s=positive(3),
        o=(3,),
        m=(3,),
        v=positive(3, 1),
    ),
    # A batch normalization behind a transposed product and behind a transposed convolution.
    "onnxscript 2312": text(
        "g (float[4,5] x, float[1,2,4,4] z) => (float[5,3] y, float[1,3,5,5] u) "
        "{ p = Gemm<transA = 1, transB = 1>(x, w) y = BatchNormalization(p, s, o, m, v) "
        "c = ConvTranspose(z, k) u = BatchNormalization<epsilon = 0.01>(c, s, o, m, v) }",
        w=(3, 4),
        k=(2, 3, 2, 2),
        s=positive(3),
        o=(3,),
        m=(3,),
        v=positive(3, 1),
    ),
    # A layer normalization with an axis and an epsilon of its own, and one with those by default.
    "onnxscript 2396": text(
        "g (float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z) "
        "{ y = LayerNormalization<axis = 1, epsilon = 0.01>(x, s, o) z = LayerNormalization(x, t, p) }",
        s=(3, 4),
        o=(3, 4),
        t=(4,),
        p=(4,),
    ),
    # A resize of a constant by scales.
    "onnxscript 2859": text(
        'g (float[1,1,4,6] x) => (float[1,1,4,6] y) { r = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">'
        "(k, , scales) y = Add(x, r) }",
        k=(1, 1, 2, 3),
        scales=np.array([1, 1, 2, 2], np.float32),
    ),
    # A convolution of constants.
    "onnxscript 3003": text(
        "g (float[1,2,6,6] x) => (float[1,2,6,6] y) { c = Conv<pads = [1, 1, 1, 1]>(k, w) y = Add(c, x) }",
        k=(1, 2, 6, 6),
        w=(2, 2, 3, 3),
    ),
    # Casts in a row, through a smaller type.
    "onnxscript 2121": text(
        "g (float[2,3] x) => (float[2,3] y, double[2,3] z, bool[2,3] c) "
        "{ h = Cast<to = 10>(x) y = Cast<to = 1>(h) i = Cast<to = 3>(x) z = Cast<to = 11>(i) j = Cast<to = 7>(x) c = Cast<to = 9>(j) }"
    ),
    # A product with a transposed operand, which is made by two reshapes of more axes.
    "onnxscript 1359": text(
        "g (float[1,4,6,3] x, float[1,4,3,6] z) => (float[1,4,6,6] y) "
        "{ a = Reshape(x, one) b = Reshape(z, two) p = MatMul(a, b) y = Reshape(p, three) }",
        one=whole(4, 6, 3),
        two=whole(4, 3, 6),
        three=whole(1, 4, 6, 6),
    ),
    # A rule that changes the node of an output.
    "onnxscript 1455": text(
        "g (float[2,3] x) => (float[3,2] y) { t = Transpose<perm = [1, 0]>(x) a = Add(t, none) y = Identity(a) }",
        none=number(0),
    ),
    # Matches that depend on the order of the operands.
    "onnxscript 2878": text(
        "g (float[2,4] x, float[4,3] z) => (float[2,3] y, float[2,3] u) "
        "{ p = MatMul(x, z) y = Add(b, p) q = MatMul(x, z) u = Add(q, b) }",
        b=(3,),
    ),
    # A batch normalization with weights of the graph's inputs.
    "onnxscript 1443": text(
        "g (float[2,3,4] x, float[1,3,4] k, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3,4] a, float[2,3,4] y) "
        "{ a = Add(x, k) w = Abs(v) y = BatchNormalization(a, s, b, m, w) }"
    ),
}
