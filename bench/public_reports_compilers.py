"""Reports about compilers: TVM, IREE, onnx-mlir, MIGraphX, TensorRT, OpenVINO, tt-mlir."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from public_text import Builder, number, positive, text, whole

REPORTS: Mapping[str, Builder] = {
    # A division of sizes, one of which is made from a constant, and a comparison of floors.
    "tvm 17745": text(
        "g (float[2,3] x) => (float[2,3] y, int64[3] z) { s = Shape(x) p = Concat<axis = 0>(s, one) z = Div(six, p) "
        "f = Cast<to = 1>(z) g = ReduceSum<keepdims = 0>(f) y = Add(x, g) }",
        one=whole(1),
        six=whole(6, 6, 6),
    ),
    # Quotients of negative integers, in two integer types.
    "tvm 17835": text(
        "g (int64[2,3] x, int32[2,3] z) => (int64[2,3] y, int32[2,3] u, int64[1,3] m) "
        "{ y = Div(x, five) u = Div(z, six) m = ReduceMin<axes = [0]>(y) }",
        five=np.asarray(5),
        six=np.asarray(6, np.int32),
    ),
    # A comparison of constants, whose result is an output, and chooses.
    "tvm 20282": text(
        "g (float[3] x) => (float[3] y, bool[3] c) { c = Less(a, b) y = Where(c, x, a) }",
        a=np.array([1, 5, 3], np.float32),
        b=np.array([2, 4, 3], np.float32),
    ),
    # Means, sums and extremes of one constant and of several.
    "tvm 20146": text(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z, float[2,3] u) "
        "{ m = Mean(k) n = Mean(k, l) y = Add(x, m) z = Max(x, n, k) s = Sum(k, l, x) u = Min(s, l) }",
        k=(2, 3),
        l=(3,),
    ),
    "tvm 20117": text(
        "g (float[2,2] x) => (float[2,2] y, float y2) { m = Min(a, b) p = Mul(x, m) y = Neg(p) y2 = ReduceSum<keepdims = 0>(p) }",
        a=np.array([1, 2], np.float32),
        b=np.array([3, -4], np.float32),
    ),
    # A dropout in a model of constants, of which the mask is read.
    "tvm 7530": text(
        "g (float[2,3] x) => (float[2,3] y) { d, m = Dropout(k) f = Cast<to = 1>(m) s = Mul(d, f) y = Add(x, s) }",
        k=(2, 3),
    ),
    # A flattening to one row, and a sum of that row.
    "tvm 7270": text(
        "g (float[3,2,5] x) => (float[1,30] y, float[1,1] z) "
        "{ f = Flatten<axis = 0>(x) a = Abs(f) y = ReduceSum(a, first) z = ReduceSum(a, last) }",
        first=whole(0),
        last=whole(1),
    ),
    # Quotients by constants, one of them a vector, which become products.
    "tvm 16819": text(
        "g (float[2,4] x) => (float[2,4] y, float[2,4] z) { a = Div(x, k) y = Mul(a, k) b = Div(k, x) z = Div(b, three) }",
        k=positive(4),
        three=number(3),
    ),
    # A normalization of constants, and a sum over what it scales.
    "tvm 16870": text(
        "g (float[2,4] x) => (float[2,4] y) { q = QuantizeLinear(x, s, zero) d = DequantizeLinear(q, s, zero) "
        "m = Mul(d, two) a = Add(m, d) r = QuantizeLinear(a, t, zero) y = DequantizeLinear(r, t, zero) }",
        s=number(0.0625),
        t=number(0.125),
        zero=number(0, np.int8),
        two=number(2),
    ),
    # Batch normalization, relu and convolution in turn, as of a dense block.
    "tvm 12630": text(
        "g (float[1,2,6,6] x) => (float[1,5,6,6] y) { n = BatchNormalization(x, s, o, m, v) r = Relu(n) "
        "c = Conv<pads = [1, 1, 1, 1]>(r, w) y = Concat<axis = 1>(x, c) }",
        s=positive(2),
        o=(2,),
        m=(2,),
        v=positive(2, 1),
        w=(3, 2, 3, 3),
    ),
    # A slope of a parametric relu for each channel, and for all.
    "tvm 18598": text(
        "g (float[1,3,4,4] x) => (float[1,3,4,4] y, float[1,3,4,4] z) { y = PRelu(x, a) z = PRelu(y, b) }",
        a=(3, 1, 1),
        b=np.array([-0.5], np.float32),
    ),
    # Functions near the ends of their domains.
    "tvm 18241": text("g (float[2,3] x) => (float[2,3] y) { m = Mul(x, large) y = Softplus(m) }", large=number(300)),
    "tvm 19562": text(
        "g (float[2,3] x) => (float[2,3] y) { m = Mul(x, tiny) e = Erf(m) y = Div(e, tiny) }", tiny=number(1e-12)
    ),
    "tvm 19559": text(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { c = Clip(x, low, one) a = Add(c, near) y = Sinh(a) z = Cosh(a) }",
        low=number(-1),
        one=number(1),
        near=number(87.5),
    ),
    # A constant as an attribute of one number.
    "tvm 15719": text(
        "g (float[3] x) => (float[3] y, float[2] z, int64 n) { a = Constant<value_float = 2.5>() y = Mul(x, a) "
        "z = Constant<value_floats = [1.0, 2.0]>() n = Constant<value_int = 3>() }"
    ),
    # Shapes that are weights, and inputs with defaults.
    "tvm 20001": text(
        "g (float[3] x, int64[1] shape = {3}) => (float[K] y) "
        "{ c = ConstantOfShape<value = float[1] {1.0}>(shape) y = Add(c, x) }"
    ),
    "tvm 20066": text(
        "g (float[6,2] x, int64[2] parts = {2, 4}) => (float[A,2] y, float[B,2] z) { y, z = Split<axis = 0>(x, parts) }"
    ),
    # A number minus itself plus one.
    "iree 20803": text("g (float[1] x) => (float[1] y) { a = Add(x, one) y = Sub(x, a) }", one=number(1)),
    # A bias and a scaled product that are added to a value in another order.
    "iree 23171": text(
        "g (float[1,5,4] x, float[1,1,3] z) => (float[1,5,4] y) { m = Mul(z, s) p = MatMul(m, w) "
        "b = Add(bias, p) t = Slice(x, zero, one, one) u = Add(t, b) r = Slice(x, one, five, one) y = Concat<axis = 1>(u, r) }",
        s=number(0.5),
        w=(3, 4),
        bias=(4,),
        zero=whole(0),
        one=whole(1),
        five=whole(5),
    ),
    # Depthwise convolutions of quantized weights, and of seven rows and columns.
    "iree 20429": text(
        "g (float[1,4,6,6] x) => (float[1,4,6,6] y) { d = DequantizeLinear(w, t, zero) "
        "c = Conv<group = 4, pads = [1, 1, 1, 1]>(x, d) r = Relu(c) q = QuantizeLinear(r, s, zero) y = DequantizeLinear(q, s, zero) }",
        w=(np.arange(36, dtype=np.int8) - 18).reshape(4, 1, 3, 3),
        s=number(0.125),
        t=number(0.0625),
        zero=number(0, np.int8),
    ),
    "iree 19339": text(
        "g (float[1,6,9,9] x) => (float[1,6,9,9] y) { y = Conv<group = 6, pads = [3, 3, 3, 3]>(x, w, b) }",
        w=(6, 1, 7, 7),
        b=(6,),
    ),
    # Quantized operands before a convolution, a relu and a sum.
    "iree 22865": text(
        "g (float[1,3,5,5] x, float[1,4,5,5] z) => (float[1,4,5,5] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w, b) r = Relu(c) "
        "q = QuantizeLinear(r, s, zero) d = DequantizeLinear(q, s, zero) p = QuantizeLinear(z, s, zero) "
        "e = DequantizeLinear(p, s, zero) y = Add(d, e) }",
        w=(4, 3, 3, 3),
        b=(4,),
        s=number(0.125),
        zero=number(0, np.int8),
    ),
    # A product of a matrix and a batch of them, with a bias for each row.
    "onnx-mlir 3490": text(
        "g (float[1,4,6] x) => (float[1,5,6] y) { p = MatMul(w, x) y = Add(p, b) }", w=(5, 4), b=(1, 5, 1)
    ),
    # A product, a sum and another one.
    "onnx-mlir 664": text(
        "g (float[4,4] x, float[4,4] z) => (float[4,4] y, float[4,4] u) { p = MatMul(x, z) y = Add(p, b) q = MatMul(y, x) u = Add(q, y) }",
        b=(4, 4),
    ),
    # Ends of a slice that are themselves folded.
    "onnx-mlir 1610": text(
        "g (float[6,4] x) => (float[2,4] y) { e = Add(one, two) f = Unsqueeze(e, zero) g = Reshape(one, minus) "
        "y = Slice(x, g, f, zero) }",
        one=np.asarray(1),
        two=np.asarray(2),
        zero=whole(0),
        minus=whole(-1),
    ),
    # A choice between constants of other shapes.
    "onnx-mlir 1959": text(
        "g (float[2,3] x) => (float[2,3] y) { w = Where(c, a, b) y = Add(x, w) }",
        c=np.array([[True], [False]]),
        a=(3,),
        b=number(2),
    ),
    # Reshapes of which the second copies axes of the first, with zeros and a free one.
    "onnx-mlir 2601": text(
        "g (float[3,4,2,2] x) => (float[a,b,c] y) { s = Shape<start = 0, end = 1>(x) t = Shape<start = 1, end = 2>(x) "
        "h = Div(t, two) u = Shape<start = 2>(x) d = Concat<axis = 0>(s, two, h, u) r = Reshape(x, d) y = Reshape(r, last) }",
        two=whole(2),
        last=whole(0, 0, -1),
    ),
    # An axis of a slice behind an identity.
    "onnx-mlir 2237": text(
        "g (float[1,1,5,5] x) => (float[1,1,3,5] y) { a = Identity(two) y = Slice(x, zero, three, a) }",
        two=whole(2),
        zero=whole(0),
        three=whole(3),
    ),
    # Axes that are negative.
    "onnx-mlir 881": text(
        "g (float[2,3,4] x) => (float[2,3,4] y, float[2,3] z, float[2,1,3,4] u) { y = Softmax<axis = -2>(x) "
        "z = ReduceMax<axes = [-1], keepdims = 0>(x) u = Unsqueeze(x, minus) }",
        minus=whole(-3),
    ),
    # Halves of one value, each reshaped and transposed, before a product.
    "migraphx 1496": text(
        "g (float[2,4,6] x) => (float[2,3,4,4] y) { a = Slice(x, zero, three, two) b = Slice(x, three, six, two) "
        "c = Reshape(a, heads) d = Reshape(b, heads) e = Transpose<perm = [0, 2, 1, 3]>(c) "
        "f = Transpose<perm = [0, 2, 3, 1]>(d) y = MatMul(e, f) }",
        zero=whole(0),
        two=whole(2),
        three=whole(3),
        six=whole(6),
        heads=whole(2, 4, 3, 1),
    ),
    # Convolutions after each other, the second of one row and column.
    "migraphx 394": text(
        "g (float[1,2,5,5] x) => (float[1,4,5,5] y) { a = Conv<pads = [1, 1, 1, 1]>(x, v, b) c = Conv(a, w, d) "
        "s = Conv(x, u) y = Add(c, s) }",
        v=(3, 2, 3, 3),
        b=(3,),
        w=(4, 3, 1, 1),
        d=(4,),
        u=(4, 2, 1, 1),
    ),
    # A sum with a value of one number for each channel, which is expanded.
    "migraphx 903": text(
        "g (float[1,3,4,5] x, float[3] b) => (float[1,3,4,5] y) { u = Unsqueeze(b, ends) e = Expand(u, size) y = Add(x, e) }",
        ends=whole(0, 2, 3),
        size=whole(1, 3, 4, 5),
    ),
    # A convolution of a concatenation, and one with strides of a part of it.
    "migraphx 5156": text(
        "g (float[1,2,6,6] x, float[1,3,6,6] z) => (float[1,4,6,6] y, float[1,4,3,3] u) { c = Concat<axis = 1>(x, z) "
        "y = Conv<pads = [1, 1, 1, 1]>(c, w) u = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(z, v) }",
        w=(4, 5, 3, 3),
        v=(4, 3, 3, 3),
    ),
    # A product with an operand that is expanded over batches.
    "migraphx 2365": text("g (float[2,1,2,3] x, float[2,3,3,4] z) => (float[2,3,2,4] y) { y = MatMul(x, z) }"),
    # A product and a sum with very large numbers.
    "tensorrt 1609": text(
        "g (float[1,1] x) => (float[1,4] y) { m = Mul(x, a) y = Add(m, b) }",
        a=np.array([-552544768, 1816086528, 1668662272, 602328064], np.float32),
        b=np.array([1765214720, 1445973248, 560432896, 185898496], np.float32),
    ),
    # A convolution and its relu, both outputs.
    "tensorrt 305": text(
        "g (float[1,2,5,5] x) => (float[1,3,5,5] c, float[1,3,5,5] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Relu(c) }",
        w=(3, 2, 3, 3),
        b=(3,),
    ),
    # A batch normalization behind a transposed convolution with strides.
    "tensorrt 1699": text(
        "g (float[1,2,3,3] x) => (float[1,3,6,6] y) { c = ConvTranspose<strides = [2, 2], kernel_shape = [2, 2]>(x, w) "
        "n = BatchNormalization(c, s, o, m, v) y = Relu(n) }",
        w=(2, 3, 2, 2),
        s=positive(3),
        o=(3,),
        m=(3,),
        v=positive(3, 1),
    ),
    # Rows chosen by an index, reshaped to heads, and a sum of products.
    "tensorrt 3645": text(
        "g (float[5,8] x, float[6,8] k, int64[6] at) => (float[6,2] y) { r = Gather(x, at) q = MatMul(r, w) a = Reshape(q, heads) "
        "l = MatMul(k, v) b = Reshape(l, heads) p = Mul(a, b) y = ReduceSum<keepdims = 0>(p, last) }",
        w=(8, 8),
        v=(8, 8),
        heads=whole(-1, 2, 4),
        last=whole(-1),
    ),
    # Elements that are assigned into zeros before a reshape.
    "tensorrt 2782": text(
        "g (float[2,6] x) => (float[2,3,2] y) { z = ConstantOfShape<value = float[1] {0.0}>(size) "
        "s = ScatterND(z, at, x) y = Reshape(s, to) }",
        size=whole(2, 6),
        at=whole(1, 0).reshape(2, 1),
        to=whole(2, 3, 2),
    ),
    # A condition whose branches are transposed and enlarged.
    "tensorrt 4846": text(
        "g (bool c, float[1,2,3,4] x) => (float[1,3,4,8] y) { i = If (c) <then_branch = t () => (float[1,2,3,4] p) { p = Neg(x) }, "
        "else_branch = e () => (float[1,2,3,4] q) { q = Abs(x) }> u = Transpose<perm = [0, 2, 1, 3]>(i) "
        'y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(u, , scales) }',
        scales=np.array([1, 1, 2, 2], np.float32),
    ),
    # A mean of channels and pixels behind a convolution of one row and column.
    "onnxruntime 20357": text(
        "g (float[2,3,5,5] x) => (float[2] y) { a = Conv<pads = [1, 1, 1, 1]>(x, v, b) c = Conv(a, w, d) "
        "y = ReduceMean<axes = [1, 2, 3], keepdims = 0>(c) }",
        v=(4, 3, 3, 3),
        b=(4,),
        w=(1, 4, 1, 1),
        d=(1,),
    ),
    # A cast of a folded value.
    "openvino 33446": text(
        "g (float[2,3] x) => (float[2,3] y, bool[3] z) { c = Cast<to = 9>(k) z = Not(c) f = Cast<to = 1>(c) "
        "h = Cast<to = 10>(f) d = Cast<to = 1>(h) y = Mul(x, d) }",
        k=np.array([0, 1, -2], np.int32),
    ),
    # A transposed convolution with a padded output behind a convolution.
    "openvino 33397": text(
        "g (float[1,2,4,4] x) => (float[1,3,4,4] c, float[1,2,8,8] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w) "
        "y = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]>(c, v, b) }",
        w=(3, 2, 3, 3),
        v=(3, 2, 3, 3),
        b=(2,),
    ),
    # A convolution of seven rows and columns with strides, and a relu.
    "tt-mlir 7414": text(
        "g (float[1,3,14,18] x) => (float[1,4,7,9] y) "
        "{ c = Conv<pads = [3, 3, 3, 3], strides = [2, 2]>(x, w, b) y = Relu(c) }",
        w=(4, 3, 7, 7),
        b=(4,),
    ),
    # A mean of one value, and of values that are broadcast, in half precision.
    "tensorrt 4509": text(
        "g (float16[2,3] x, float16[3] z) => (float16[2,3] y, float16[2,3] u) { y = Mean(x) u = Mean(x, z) }"
    ),
    # A disjunction, and its cast.
    "tensorrt 4512": text(
        "g (bool[2,3] x) => (int32[2,3] y, float[2,3] z) { o = Or(x, k) y = Cast<to = 6>(o) n = Or(x, x) z = Cast<to = 1>(n) }",
        k=np.array([True, False, True]),
    ),
}
