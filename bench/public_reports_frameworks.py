"""Reports about compiled PyTorch, expressed as graphs of ONNX, and about the optimizer of
tensorflow-onnx."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from public_text import Builder, number, positive, text, whole

REPORTS: Mapping[str, Builder] = {
    # Products of small integers that overflow, distributed over a sum.
    "pytorch 109105": text(
        "g (int32[2,3] x, int32[2,3] z) => (int32[2,3] y, int32[2,3] u) "
        "{ a = Mul(c, x) b = Mul(a, z) y = Add(b, a) d = Mul(c, z) e = Add(d, c) u = Mul(e, x) }",
        c=np.asarray(6, np.int32),
    ),
    # A product in another order, cast to an integer afterwards.
    "pytorch 113143": text(
        "g (int32[3] x, int32[3] z) => (uint8[3] y, int8[3] u) { a = Mul(x, z) b = Mul(a, k) y = Cast<to = 2>(b) "
        "c = Mul(z, k) d = Mul(x, c) u = Cast<to = 3>(d) }",
        k=np.asarray(48, np.int32),
    ),
    # A running sum of equal constants, forward and backward.
    "pytorch 179571": text(
        "g (float[5,2] x) => (float[5,2] y) { s = CumSum(k, zero) t = CumSum<reverse = 1>(k, zero) u = CumSum<exclusive = 1>(k, zero) "
        "a = Add(s, t) b = Sub(a, u) c = Unsqueeze(b, one) y = Mul(x, c) }",
        k=np.full(5, 0.75, np.float32),
        zero=np.asarray(0),
        one=whole(1),
    ),
    # Patches that are put together again, as sums at places.
    "pytorch 148754": text(
        'g (float[1,4,4] x) => (float[4,4] y) { p = Reshape(x, flat) y = ScatterND<reduction = "add">(z, at, p) }',
        flat=whole(16),
        z=np.zeros((4, 4), np.float32),
        at=np.stack(np.meshgrid(range(4), range(4), indexing="ij"), -1).reshape(16, 2).astype(np.int64),
    ),
    # A logarithm of equal differences, as of relative positions, from constants alone.
    "pytorch 145697": text(
        "g (float[1,2,3,3] x) => (float[1,2,3,3] y) { a = Abs(k) b = Add(a, one) l = Log(b) d = Div(l, log) s = Sign(k) t = Mul(s, d) "
        "r = MatMul(t, w) u = Sigmoid(r) v = Transpose<perm = [2, 0, 1]>(u) m = Mul(v, sixteen) n = Unsqueeze(m, zero) y = Add(x, n) }",
        k=np.linspace(-8, 8, 18, dtype=np.float32).reshape(3, 3, 2),
        one=number(1),
        log=number(np.log(8)),
        w=(2, 2),
        sixteen=number(16),
        zero=whole(0),
    ),
    # A loop that is unrolled, whose steps write into one value.
    "pytorch 96064": text(
        "g (float[4] x) => (float[4] y) { a = ScatterElements(x, i, p) b = Gather(a, i) c = Add(b, p) d = ScatterElements(a, j, c) "
        "e = Gather(d, j) f = Mul(e, p) y = ScatterElements(d, k, f) }",
        i=whole(0),
        j=whole(1),
        k=whole(2),
        p=np.array([1.5], np.float32),
    ),
    # A product with a very small constant, whose result has few digits.
    "pytorch 126848": text(
        "g (float[3] x) => (float[3] y, float[3] z) { m = Mul(x, tiny) y = Mul(m, large) z = Mul(x, small) }",
        tiny=number(2.0**-100),
        large=number(2.0**99),
        small=number(2.0**-60),
    ),
    # A layer normalization of numbers with a large mean.
    "pytorch 143182": text(
        "g (float[2,16] x) => (float[2,16] y) { a = Add(x, large) m = ReduceMean<axes = [-1]>(a) d = Sub(a, m) s = Mul(d, d) "
        "v = ReduceMean<axes = [-1]>(s) e = Add(v, eps) r = Sqrt(e) y = Div(d, r) }",
        large=number(100),
        eps=number(1e-5),
    ),
    # A norm, a variance over few samples, and powers of them.
    "pytorch 163449": text(
        "g (float[3,2] x, float[2,4] z) => (float y) { p = MatMul(x, z) n = ReduceL2<keepdims = 0>(p) m = ReduceMean<axes = [0]>(x) "
        "d = Sub(x, m) s = Mul(d, d) t = ReduceSum<keepdims = 0>(s) v = Div(t, two) c = Clip(v, low, one) y = Pow(n, c) }",
        two=number(2),
        low=number(0.1),
        one=number(1),
    ),
    # Sums of integers that become floats, and their quotient.
    "pytorch 164486": text(
        "g (int32[2] x) => (float[2] y, int32[2] z) { a = Add(one, x) z = Div(a, three) "
        "f = Cast<to = 1>(a) g = Cast<to = 1>(three) y = Div(f, g) }",
        one=np.asarray(1, np.int32),
        three=np.asarray(3, np.int32),
    ),
    "pytorch 164686": text(
        "g (int64 x, int64 z) => (float y) { a = Add(x, minus) f = Cast<to = 1>(a) b = Add(f, one) q = Div(unit, ten) c = Cast<to = 1>(z) "
        "d = Div(c, five) e = Add(q, d) y = Mul(b, e) }",
        minus=np.asarray(-3),
        one=number(1),
        unit=number(1),
        ten=number(-10),
        five=number(-5),
    ),
    # A quotient of a size that is a float, with its floor.
    "pytorch 95698": text(
        "g (float[1,N] x) => (float[1,N] y) { s = Shape<start = 1>(x) f = Cast<to = 1>(s) t = Mul(f, two) "
        "u = Sub(t, one) q = Div(f, u) y = Mul(x, q) }",
        two=number(2),
        one=number(1),
    ),
    "pytorch 102068": text(
        "g (float[N] x) => (float[N] y, int64[1] z) { s = Shape(x) n = Sub(three, s) z = Div(n, two) m = Mod(n, two) a = Add(z, m) "
        "f = Cast<to = 1>(a) y = Add(x, f) }",
        two=whole(2),
        three=whole(3),
    ),
    # Splits along an axis whose sizes are an operand, moved through transpositions.
    "tensorflow-onnx 1809": text(
        "g (float[1,2,3,6] x) => (float[1,2,3,2] y, float[1,2,3,4] z) { t = Transpose<perm = [0, 3, 1, 2]>(x) "
        "a, b = Split<axis = 1>(t, parts) y = Transpose<perm = [0, 2, 3, 1]>(a) z = Transpose<perm = [0, 2, 3, 1]>(b) }",
        parts=whole(2, 4),
    ),
    "tensorflow-onnx 1941": text(
        "g (float[1,2,3,6] x) => (float[1,6] y) { t = Transpose<perm = [0, 3, 1, 2]>(x) a = Split<axis = 1>(t, all) "
        "m = ReduceMean<axes = [2, 3]>(a) u = Transpose<perm = [0, 2, 3, 1]>(m) y = Reshape(u, flat) }",
        all=whole(6),
        flat=whole(1, 6),
    ),
    # One constant that is cast for one reader, and read as it is by another.
    "tensorflow-onnx 322": text(
        "g (float[2,3] x) => (float[3,2] y, int32[2] z) { c = Cast<to = 7>(k) y = Reshape(x, c) z = Add(k, k) }",
        k=np.array([3, 2], np.int32),
    ),
    # Convolutions and batch normalizations in turn.
    "tensorflow-onnx 2186": text(
        "g (float[1,2,5,5] x) => (float[1,4,5,5] y) { a = Conv(x, v) b = BatchNormalization(a, s, o, m, u) "
        "c = Conv<pads = [1, 1, 1, 1]>(b, w) y = BatchNormalization(c, s, o, m, u) }",
        v=(4, 2, 1, 1),
        w=(4, 4, 3, 3),
        s=positive(4),
        o=(4,),
        m=(4,),
        u=positive(4, 1),
    ),
    # A value between two operators that are fused, which others read.
    "tensorflow-onnx 1498": text(
        "g (float[1,2,5,5] x) => (float[1,3,5,5] y, float[1,3,5,5] z) { c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Add(c, b) z = Mul(c, y) }",
        w=(3, 2, 3, 3),
        b=(1, 3, 1, 1),
    ),
    # A weight that several convolutions read, each behind a transposition of it.
    "tensorflow-onnx 356": text(
        "g (float[1,2,5,5] x) => (float[1,3,3,3] y, float[1,3,5,5] z) { t = Transpose<perm = [3, 2, 0, 1]>(w) y = Conv(x, t) "
        "u = Transpose<perm = [3, 2, 0, 1]>(w) z = Conv<pads = [1, 1, 1, 1]>(x, u) }",
        w=(3, 3, 2, 3),
    ),
    # A constant of several products behind transpositions.
    "tensorflow-onnx 1255": text(
        "g (float[1,2,3,4] x) => (float[1,2,3,4] y, float[1,2,3,4] z) { t = Transpose<perm = [0, 3, 1, 2]>(x) a = Mul(t, k) "
        "y = Transpose<perm = [0, 2, 3, 1]>(a) b = Transpose<perm = [0, 3, 1, 2]>(k) z = Mul(x, l) }",
        k=(1, 4, 1, 1),
        l=(1, 1, 1, 4),
    ),
    # A concatenation of a value with itself.
    "tensorflow-onnx 580": text(
        "g (float[1,2,3,4] x) => (float[1,2,3,8] y) { t = Transpose<perm = [0, 3, 1, 2]>(x) c = Concat<axis = 1>(t, t) "
        "y = Transpose<perm = [0, 2, 3, 1]>(c) }"
    ),
    # Transpositions that together change three axes.
    "onnx 2446": text(
        "g (float[2,3,4] x) => (float[3,4,2] y) { a = Transpose<perm = [1, 0, 2]>(x) y = Transpose<perm = [0, 2, 1]>(a) }"
    ),
    # A reciprocal of a value that others read.
    "pytorch 93824": text(
        "g (float[3] x) => (float[3] y, float[3] z) { e = Exp(x) r = Reciprocal(e) y = Mul(r, e) z = Add(r, x) }"
    ),
    # A scaled sum at an index into zeros, and its half.
    "pytorch 108963": text(
        'g (double[1] x) => (double[1] y, double[1] z) { m = Mul(x, two) s = ScatterElements<reduction = "add">(zeros, at, m) '
        "y = Div(s, two) z = Identity(x) }",
        two=number(2, np.float64),
        zeros=np.zeros(1),
        at=whole(0),
    ),
}
