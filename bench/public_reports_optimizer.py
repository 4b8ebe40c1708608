"""Reports about onnx/optimizer, and about the same passes when they were in onnx."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from public_text import Builder, number, positive, text, whole


def conv_norm(name: str, weight: str) -> str:
    return f"c{name} = Conv<pads = [1, 1, 1, 1]>(x, {weight}) y{name} = BatchNormalization(c{name}, s{name}, b{name}, m{name}, v{name})"


def of_norm(name: str, seed: int) -> dict[str, tuple[int, ...] | np.ndarray]:
    """The weights of a batch normalization of four channels."""
    return {f"s{name}": positive(4, seed), f"b{name}": (4,), f"m{name}": (4,), f"v{name}": positive(4, seed + 1)}


REPORTS: Mapping[str, Builder] = {
    # A part of a shape, from the end.
    "onnx/optimizer 263": text(
        "g (float[N,3,4] x) => (int64[2] s, float[M] y) { n = Shape(x) s = Slice(n, start, end, zero) "
        "p = ReduceProd<keepdims = 0>(s) f = Cast<to = 1>(p) r = Reshape(x, all) y = Mul(r, f) }",
        start=whole(-2),
        end=whole(3),
        zero=whole(0),
        all=whole(-1),
    ),
    # Two batch normalizations behind convolutions with one weight.
    "onnx/optimizer 133": text(
        f"g (float[2,3,8,8] x) => (float[2,4,8,8] y1, float[2,4,8,8] y2) "
        f"{{ {conv_norm('1', 'w')} {conv_norm('2', 'w')} }}",
        w=(4, 3, 3, 3),
        **of_norm("1", 0),
        **of_norm("2", 5),
    ),
    # A weight that is a constant node, and a convolution with a bias, before a batch normalization.
    "onnx/optimizer 178": text(
        "g (float[1,2,5,5] x) => (float[1,4,5,5] y, float[4,2,1,1] w) "
        "{ w = ConstantOfShape<value = float[1] {0.5}>(size) k = Mul(w, z) c = Conv(x, k, b) "
        "y = BatchNormalization(c, s, o, m, v) }",
        size=whole(4, 2, 1, 1),
        z=(4, 2, 1, 1),
        b=(4,),
        s=positive(4),
        o=(4,),
        m=(4,),
        v=positive(4, 1),
    ),
    # A batch normalization with a large epsilon behind a convolution in groups.
    "onnx/optimizer 255": text(
        "g (float[1,4,5,5] x) => (float[1,4,5,5] y) "
        "{ c = Conv<group = 4>(x, w) y = BatchNormalization<epsilon = 0.1>(c, s, b, m, v) }",
        w=(4, 1, 1, 1),
        s=positive(4),
        b=(4,),
        m=(4,),
        v=positive(4, 1),
    ),
    # Squeezes after each other, whose axes are those of what is left.
    "onnx/optimizer 253": text(
        "g (float[1,3,1,1,4] x) => (float[3,4] y, float[3,1,4] z) "
        "{ a = Squeeze(x, zero) y = Squeeze(a, some) b = Squeeze(x, ends) z = Unsqueeze(b, one) }",
        zero=whole(0),
        some=whole(-2, 1),
        ends=whole(0, 2, -2),
        one=whole(1),
    ),
    # Operators that change nothing the second time, of which the first is an output.
    "onnx/optimizer 259": text(
        "g (float[2,6] x) => (float[2,6] y, float[3,4] z, float[2,6] r) "
        "{ r = Relu(x) s = Relu(r) f = Floor(s) y = Ceil(f) "
        "a = Reshape(x, first) z = Reshape(a, second) }",
        first=whole(0, 3, 2),
        second=whole(3, -1),
    ),
    # A node on which no output depends, with a subgraph that reads others.
    "onnx/optimizer 260": text(
        "g (bool c, float[2,3] x) => (float[2,3] y) { a = Neg(x) m = ReduceMin<keepdims = 0>(a) "
        "d = If (c) <then_branch = t () => (float p) { p = Abs(m) }, else_branch = e () => (float q) { q = Exp(m) }> y = Relu(a) }"
    ),
    # Sizes of a value with a part of the axes, and of one with a free axis.
    "onnx/optimizer 262": text(
        "g (float[2,3,4] x) => (int64[1] s, float[2,3,4] y) "
        "{ s = Shape<start = 1, end = 2>(x) f = Cast<to = 1>(s) y = Mul(x, f) }"
    ),
    "onnx/optimizer 279": text(
        "g (float[N,3,4] x) => (int64[2] s, float[N,3,4] y) "
        "{ s = Shape<start = -3, end = -1>(x) p = ReduceProd(s) f = Cast<to = 1>(p) y = Mul(x, f) }"
    ),
    # A mask of a dropout that is an output.
    "onnx/optimizer 274": text(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] m) { d, k = Dropout(x, rate) y = Relu(d) m = Cast<to = 1>(k) }",
        rate=number(0.5),
    ),
    # Expansions: to a smaller shape, to one with more axes, and to one that is needed.
    "onnx/optimizer 275": text(
        "g (float[2,1,3] x) => (float[2,1,3] y, float[2,4,3] z, float[1,2,1,3] u) "
        "{ a = Expand(x, ones) y = Neg(a) b = Expand(x, four) z = Neg(b) c = Expand(x, more) u = Neg(c) }",
        ones=whole(1, 1),
        four=whole(4, 1),
        more=whole(1, 1, 1, 1),
    ),
    # A flattening that changes nothing, and one that does, of the same shape.
    "onnx/optimizer 276": text(
        "g (float[2,3] x) => (float[2,3] y, float[1,6] z) "
        "{ a = Flatten<axis = 1>(x) y = Neg(a) b = Flatten<axis = 0>(x) z = Neg(b) }"
    ),
    # Pads without width in other modes, and of some axes.
    "onnx/optimizer 278": text(
        'g (float[2,3] x) => (float[2,3] y, float[2,4] z) { a = Pad<mode = "reflect">(x, none) y = Neg(a) '
        'b = Pad<mode = "edge">(x, one) z = Neg(b) }',
        none=whole(0, 0, 0, 0),
        one=whole(0, 1, 0, 0),
    ),
    # Pads of a negative width beside one without.
    "onnx/optimizer 261": text(
        "g (float[4,5] x) => (float[4,5] y, float[3,6] z) "
        "{ a = Pad(x, none, k) y = Neg(a) b = Pad(x, some, k) z = Neg(b) }",
        none=whole(0, 0, 0, 0),
        some=whole(-1, 0, 0, 1),
        k=number(0.5),
    ),
    # The position of the largest behind monotone operators: another axis, a negative slope.
    "onnx/optimizer 281": text(
        "g (float[3,4] x) => (int64[1,4] y, int64[3,1] z, int64[3,1] u) "
        "{ s = Softmax<axis = 1>(x) y = ArgMax<axis = 0>(s) "
        "l = LeakyRelu<alpha = -0.5>(x) z = ArgMax<axis = 1>(l) f = Floor(x) u = ArgMax<axis = 1>(f) }"
    ),
    # Splits into one part.
    "onnx/optimizer 283": text(
        "g (float[4,3] x) => (float[4,3] y, float[1,3] a, float[3,3] b) "
        "{ p = Split<axis = 0>(x, all) y = Neg(p) a, b = Split<axis = 0>(x, two) }",
        all=whole(4),
        two=whole(1, 3),
    ),
    # A transposition of axes of one element, and one of two equal axes.
    "onnx/optimizer 284": text(
        "g (float[1,3,3] x) => (float[3,1,3] y, float[1,3,3] z) "
        "{ a = Transpose<perm = [1, 0, 2]>(x) y = Neg(a) b = Transpose<perm = [0, 2, 1]>(x) z = Neg(b) }"
    ),
    # Units of operators that have more axes than the other operand.
    "onnx/optimizer 285": text(
        "g (float[3] x, bool[3] c) => (float[2,3] y, float[1,3] z, bool[2,3] d, float[2,3] q) "
        "{ y = Add(x, none) z = Mul(ones, x) d = And(c, yes) q = Div(y, more) }",
        none=np.zeros((2, 1), np.float32),
        ones=np.ones((1, 1), np.float32),
        yes=np.ones((2, 3), np.bool_),
        more=np.ones((2, 3), np.float32),
    ),
    # Concatenations of one operand, which is an input or an output.
    "onnx/optimizer 252": text(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z, float[2,3] u) "
        "{ y = Concat<axis = 0>(x) u = Neg(x) z = Concat<axis = 1>(u) }"
    ),
    # A shape made of a size and constants, of which one is zero and one is left free.
    "onnx/optimizer 267": text(
        "g (float[N,2,6] x) => (float[a,b,c] y) "
        "{ s = Shape<start = 0, end = 1>(x) t = Concat<axis = 0>(s, zero, rest) y = Reshape(x, t) }",
        zero=whole(0),
        rest=whole(-1),
    ),
    # A sum without its axes, which a later node puts back, not all at the same place.
    "onnx/optimizer 29": text(
        "g (float[2,3,4] x) => (float[2,1,1] y, float[1,2,1] z) "
        "{ a = ReduceSum<keepdims = 0>(x, last) y = Unsqueeze(a, last) z = Unsqueeze(a, ends) }",
        last=whole(1, 2),
        ends=whole(0, 2),
    ),
    # A loop that is left by a condition.
    "onnx/optimizer 36": text(
        "g (int64 n, bool on, float[2] x) => (float[2] y, float[K] z) { y, z = Loop(n, on, x) "
        "<body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float u) "
        "{ t = Mul(s, x) u = ReduceSum<keepdims = 0>(t) d = Less(u, limit) }> }",
        n=np.asarray(3),
        on=np.asarray(True),
        limit=number(100),
    ),
    # Weights that are inputs too, and nodes on which nothing depends.
    "onnx/optimizer 18": text(
        "g (float[3] x, float[3] k = {1.0, 2.0, 3.0}) => (float[3] y) { d = Neg(x) m = Mul(x, k) y = Add(m, b) }",
        b=(3,),
    ),
    # Constants with the same bytes and other types or shapes.
    "onnx/optimizer 70": text(
        "g (float[2,2] x, int32[2,2] i) => (float[2,2] y, int32[2,2] j, float[2,2] z) "
        "{ y = Add(x, a) j = Add(i, b) z = Add(x, c) }",
        a=np.zeros((2,), np.float32),
        b=np.zeros((2,), np.int32),
        c=np.zeros((2, 2), np.float32),
    ),
    # Identities of an input, and two outputs of one value.
    "onnx 2230": text(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Identity(x) a = Relu(x) z = Identity(a) }"
    ),
    # A weight that is no input.
    "onnx 2198": text("g (float[1] a) => (float[1] y) <float[1] b = {42.0}> { y = Add(a, b) }"),
    # A transposition and its inverse around an operator with a vector.
    "onnx 457": text(
        "g (float[2,3,4] x) => (float[2,3,4] y, float[4,2,3] z) "
        "{ t = Transpose<perm = [2, 0, 1]>(x) z = Add(t, k) y = Transpose<perm = [1, 2, 0]>(z) }",
        k=(3,),
    ),
    # A batch normalization behind a convolution without a bias, with strides and dilations.
    "onnx 2677": text(
        "g (float[1,3,9,9] x) => (float[1,4,3,3] y) { c = Conv<strides = [2, 2], dilations = [2, 2]>(x, w) "
        "n = BatchNormalization<epsilon = 0.001>(c, s, b, m, v) y = Clip(n, low, high) }",
        w=(4, 3, 3, 3),
        s=positive(4),
        b=(4,),
        m=(4,),
        v=positive(4, 1),
        low=number(0),
        high=number(6),
    ),
}
