"""Reports about onnxsim and onnxslim."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from public_text import Builder, number, positive, text, whole


def pad_for_two() -> Builder:
    """A pad that two convolutions of different kernels read."""
    return text(
        "g (float[1,2,5,5] x) => (float[1,3,7,7] y, float[1,3,5,5] z) "
        "{ p = Pad(x, pads) y = Conv(p, v, b) z = Conv(p, w, b) }",
        pads=whole(0, 0, 2, 2, 0, 0, 2, 2),
        v=(3, 2, 3, 3),
        w=(3, 2, 5, 5),
        b=(3,),
    )


REPORTS: Mapping[str, Builder] = {
    # An output that depends on no input.
    "onnxsim 227": text(
        "g (float[2,3] x) => (float[2,3] y, float[2] priors) { y = Relu(x) d = Add(p, p) priors = Sub(d, p) }",
        p=np.array([0.25, 0.75], np.float32),
    ),
    # Columns that are replaced by their remainder and quotient of a size.
    "onnxsim 118": text(
        "g (float[17,1] x) => (float[17,2] y) { c = Concat<axis = 1>(x, x) s = Shape<start = 0, end = 1>(x) "
        "w = Cast<to = 1>(s) l = Slice(c, zero, one, one) r = Slice(c, one, two, one) m = Mod<fmod = 1>(l, w) "
        "d = Div(r, w) f = Floor(d) y = Concat<axis = 1>(m, f) }",
        zero=whole(0),
        one=whole(1),
        two=whole(2),
    ),
    # A batch normalization whose input is read by others too.
    "onnxsim 79": text(
        "g (float[1,2,4,4] x) => (float[1,4,4,4] y, float[1,4,4,4] z) "
        "{ c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) z = Sigmoid(c) }",
        w=(4, 2, 1, 1),
        s=positive(4),
        b=(4,),
        m=(4,),
        v=positive(4, 1),
    ),
    # A batch normalization that divides by a very small variance.
    "onnxsim 50": text(
        "g (float[1,2,4,4] x) => (float[1,4,4,4] y) "
        "{ c = Conv(x, w) y = BatchNormalization<epsilon = 0.00001>(c, s, b, m, v) }",
        w=(4, 2, 1, 1),
        s=positive(4),
        b=(4,),
        m=(4,),
        v=np.array([1e-6, 1e-3, 1, 50], np.float32),
    ),
    # Offsets of boxes, which are sliced, changed and concatenated again.
    "onnxsim 41": text(
        "g (float[1,3,6] x) => (float[1,3,6] y) { a, b, c = Split<axis = 2>(x, parts) s = Sigmoid(a) t = Add(s, grid) "
        "u = Mul(t, stride) e = Exp(b) f = Mul(e, anchors) y = Concat<axis = 2>(u, f, c) }",
        parts=whole(2, 2, 2),
        grid=(1, 3, 2),
        stride=number(32),
        anchors=(3, 2),
    ),
    # Constants with the same name in different nodes' descriptions, of which one divides.
    "onnxsim 265": text(
        "g (float[2,3] x, float[2,3] z) => (float[2,3] y) { a = Constant<value_float = 2.0>() b = Constant<value_float = 4.0>() "
        "p = Div(x, a) q = Mul(z, b) y = Add(p, q) }"
    ),
    # A large constant that is made when the model runs.
    "onnxsim 206": text(
        "g (float[1,8] x) => (float[64,8] y) { z = ConstantOfShape<value = float[1] {1.5}>(size) y = Add(z, x) }",
        size=whole(64, 8),
    ),
    # Sizes that are named in the input, and reshapes of them.
    "onnxsim 212": text(
        "g (float[N,C,4] x) => (float[N,D] y) { s = Shape(x) n = Gather(s, zero) u = Unsqueeze(n, front) "
        "t = Concat<axis = 0>(u, rest) y = Reshape(x, t) }",
        zero=np.asarray(0),
        front=whole(0),
        rest=whole(-1),
    ),
    # Attention with a mask of sizes, whose heads are reshaped.
    "onnxsim 187": text(
        "g (float[3,2,4] x) => (float[2,2,3,3] y) { s = Shape(x) t = Gather(s, zero) l = Unsqueeze(t, front) "
        "h = Concat<axis = 0>(l, heads) r = Reshape(x, h) q = Transpose<perm = [1, 0, 2]>(r) "
        "k = Transpose<perm = [1, 2, 0]>(r) p = MatMul(q, k) e = Reshape(p, four) y = Softmax<axis = -1>(e) }",
        zero=np.asarray(0),
        front=whole(0),
        heads=whole(4, 2),
        four=whole(2, 2, 3, 3),
    ),
    # Operators of weights alone, which are much larger than the model afterwards.
    "onnxsim 174": text(
        "g (float[1,4] x) => (float[1,4] y) { t = Transpose<perm = [1, 0]>(w) e = Expand(t, large) "
        "m = ReduceMean<axes = [0], keepdims = 0>(e) y = MatMul(x, m) }",
        w=(4, 4),
        large=whole(600, 4, 4),
    ),
    # A weight that is a graph's input and has a duplicate.
    "onnxsim 341": text(
        "g (float[2,3] x, float[3] k = {1.0, 2.0, 3.0}) => (float[2,3] y) { a = Mul(x, k) b = Mul(a, l) y = Add(b, k) }",
        l=np.array([1, 2, 3], np.float32),
    ),
    # Slices of a slice: of one axis, from the end, with steps, and of different axes.
    "onnxslim 277": text(
        "g (float[8,9] x) => (float[2,9] y, float[3,9] z, float[4,3] u) "
        "{ a = Slice(x, one, six, zero) y = Slice(a, one, three, zero) b = Slice(x, zero, big, zero, two) "
        "z = Slice(b, zero, last, zero) c = Slice(x, two, six, zero) u = Slice(c, three, six, one) }",
        one=whole(1),
        three=whole(3),
        six=whole(6),
        two=whole(2),
        zero=whole(0),
        last=whole(-1),
        big=whole(2**63 - 1),
    ),
    # Slices with negative steps and of the last elements.
    "onnxslim 251": text(
        "g (float[6,4] x) => (float[2,4] y, float[6,2] z) { a = Slice(x, last, low, zero, back) y = Slice(a, one, three, zero) "
        "z = Slice(a, less, big, one) }",
        last=whole(-1),
        low=whole(-(2**63)),
        zero=whole(0),
        back=whole(-1),
        one=whole(1),
        three=whole(3),
        less=whole(-2),
        big=whole(2**31 - 1),
    ),
    # A constant that is repeated, much larger than its parts.
    "onnxslim 190": text(
        "g (float[1,64] x) => (float[500,64] y) { t = Tile(k, times) a = Add(t, x) e = Expand(k, size) y = Mul(a, e) }",
        k=(1, 64),
        times=whole(500, 1),
        size=whole(500, 64),
    ),
    # A part of a shape by attributes, which later gives the ends of a slice.
    "tsingmicro/onnxslim 38": text(
        "g (float[1,2,5,6] x, float[1,2,9,9] z) => (float[1,2,5,6] y) "
        "{ s = Shape<start = 2>(x) c = Slice(z, zeros, s, axes) y = Add(x, c) }",
        zeros=whole(0, 0),
        axes=whole(2, 3),
    ),
    # Concatenations of one operand at an input and at an output.
    "onnxslim 329": text(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { a = Concat<axis = 0>(x) y = Relu(a) z = Concat<axis = 1>(y) }"
    ),
    # A folded concatenation whose result gives the shape of several reshapes.
    "onnxslim 305": text(
        "g (float[1,4,6] x) => (float[1,2,2,6] y, float[1,2,2,6] z) { c = Concat<axis = 0>(a, b) y = Reshape(x, c) "
        "n = Neg(x) z = Reshape(n, c) }",
        a=whole(1, 2),
        b=whole(2, 6),
    ),
    # Batch normalizations of an input whose sizes are free, with equal weights of other nodes.
    "onnxslim 321": text(
        "g (float[N,3,H,W] x) => (float[N,2,H,W] y, float[N,2,H,W] z) "
        "{ n = BatchNormalization(x, s, b, m, v) p = Conv(n, w) y = BatchNormalization(p, t, t, t, u) "
        "q = Conv(n, k) z = BatchNormalization(q, t, t, t, u) }",
        s=np.ones(3, np.float32),
        b=(3,),
        m=(3,),
        v=positive(3),
        w=(2, 3, 1, 1),
        k=(2, 3, 1, 1),
        t=np.ones(2, np.float32),
        u=positive(2, 1),
    ),
    # Folded values that depend on a size, in a condition.
    "onnxslim 15": text(
        "g (float[B,1,T] x) => (float[B,K] y) { s = Shape(x) c = Gather(s, one) o = Equal(c, unit) "
        "y = If (o) <then_branch = t () => (float[d,e] p) { p = Squeeze(x, axis) }, "
        "else_branch = f () => (float[d,e] q) { q = ReduceMean<axes = [1], keepdims = 0>(x) }> }",
        one=np.asarray(1),
        unit=np.asarray(1),
        axis=whole(1),
    ),
    # Statistics of every sample in single operators, one of them unbiased.
    "onnxslim 118": text(
        "g (float[1,4,3,3] x) => (float[1,4,3,3] y) { m = ReduceMean<axes = [2, 3]>(x) d = Sub(x, m) s = Mul(d, d) "
        "t = ReduceSum(s, axes) v = Div(t, n) e = Add(v, eps) r = Sqrt(e) y = Div(d, r) }",
        axes=whole(2, 3),
        n=number(8),
        eps=number(1e-5),
    ),
    # A product with a vector, whose result has no matrix's rank, and a sum.
    "onnxslim 46": text(
        "g (float[4] x, float[2,4] z) => (float[3] y, float[2] u) { p = MatMul(x, w) y = Add(p, b) q = MatMul(z, k) u = Add(q, one) }",
        w=(4, 3),
        b=(3,),
        k=(4,),
        one=number(1),
    ),
    # A reshape between a product and a sum of another shape.
    "onnxslim 210": text(
        "g (float[2,4] x) => (float[4,3] y) { p = Gemm(x, w, b) r = Reshape(p, to) y = Add(r, k) }",
        w=(4, 6),
        b=(6,),
        to=whole(4, 3),
        k=(3,),
    ),
    # A matrix as the sum of a product, and a sum that is broadcast to more rows.
    "onnxslim 82": text("g (float[1,4] x) => (float[5,3] y) { p = MatMul(x, w) y = Add(p, k) }", w=(4, 3), k=(5, 3)),
    "tsingmicro/onnxslim 29": pad_for_two(),
    # Widths of a pad that are computed, and a pad with another value.
    "tsingmicro/onnxslim 4": text(
        "g (float[1,2,5,5] x, int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}) => (float[1,3,M,K] y, float[1,3,5,5] z) "
        "{ p = Pad(x, pads) y = Conv(p, w) q = Pad(x, same, one) z = Conv(q, w) }",
        w=(3, 2, 3, 3),
        same=whole(0, 0, 1, 1, 0, 0, 1, 1),
        one=number(1),
    ),
    # A batch normalization behind a transposed convolution in groups.
    "tsingmicro/onnxslim 22": text(
        "g (float[1,4,3,3] x) => (float[1,4,5,5] y) "
        "{ c = ConvTranspose<group = 2>(x, w, b) y = BatchNormalization(c, s, o, m, v) }",
        w=(4, 2, 3, 3),
        b=(4,),
        s=positive(4),
        o=(4,),
        m=(4,),
        v=positive(4, 1),
    ),
    # A condition that chooses between two decoders, each with weights of the outer graph.
    "transformers.js 811": text(
        "g (bool cached, float[2,4] x) => (float[2,4] y) { y = If (cached) "
        "<then_branch = t () => (float[2,4] p) { a = MatMul(x, w) p = Add(a, b) }, "
        "else_branch = e () => (float[2,4] q) { c = MatMul(x, w) q = Sub(c, b) }> }",
        w=(4, 4),
        b=(4,),
    ),
    # Unsqueezes after each other, whose second axes count the first one's.
    "onnxsim 157": text(
        "g (float[2,3] x) => (float[2,1,3,1] y, float[1,2,1,3] z) { a = Unsqueeze(x, one) y = Unsqueeze(a, last) "
        "b = Unsqueeze(x, one) z = Unsqueeze(b, zero) }",
        one=whole(1),
        last=whole(-1),
        zero=whole(0),
    ),
    # Shapes made of constants, an expansion, and cosines of sums of both.
    "onnxsim 1284": text(
        "g (float[2,1] x) => (float[2,3] y, bool[2,3] z) { c = ConstantOfShape<value = int64[1] {1}>(n) d = Concat<axis = 0>(c, k) "
        "s = Reshape(d, flat) e = Equal(s, minus) w = Where(e, ones, s) f = Expand(x, w) a = Add(f, r) y = Cos(a) z = Less(y, f) }",
        n=whole(1),
        k=whole(3),
        flat=whole(-1),
        minus=whole(-1),
        ones=whole(1, 1),
        r=(2, 3),
    ),
}
