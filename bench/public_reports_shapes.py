"""Reports about types, quantized weights, borders, and ranks that differ."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
from public_text import Builder, number, positive, text, whole

REPORTS: Mapping[str, Builder] = {
    # A cast to booleans through integers, which are zero for fractions.
    "onnxruntime 28089": text(
        "g (float[5] x) => (bool[5] y, bool[5] z) { i = Cast<to = 6>(x) y = Cast<to = 9>(i) z = Cast<to = 9>(x) }"
    ),
    # Signed integers that become floats without a zero point, and are reshaped.
    "onnxruntime 27845": text(
        "g (int8[4,3] q) => (float[2,6] y, float[3,4] z) { d = DequantizeLinear(q, s) y = Reshape(d, to) "
        "e = DequantizeLinear(w, s) z = Reshape(e, other) }",
        opset=21,
        s=number(0.01),
        w=np.arange(-6, 6, dtype=np.int8),
        to=whole(2, 6),
        other=whole(3, 4),
    ),
    # A quantized weight with a scale for each channel, which is transposed, and read twice.
    "onnxruntime 12800": text(
        "g (float[2,4] x, float[3,2] z) => (float[2,3] y, float[4,2] u) { d = DequantizeLinear<axis = 0>(w, s, o) "
        "t = Transpose<perm = [1, 0]>(d) y = MatMul(x, t) u = MatMul(t, z) }",
        w=np.arange(-6, 6, dtype=np.int8).reshape(3, 4),
        s=positive(3),
        o=np.array([0, 1, -1], np.int8),
    ),
    "onnxruntime 16188": text(
        "g (float[1,2,5,5] x) => (float[1,3,5,5] y, float[1,3,3,3] z) { d = DequantizeLinear<axis = 0>(w, s, o) "
        "y = Conv<pads = [1, 1, 1, 1]>(x, d) z = Conv(x, d) }",
        w=(np.arange(54).reshape(3, 2, 3, 3) - 27).astype(np.int8),
        s=positive(3),
        o=np.zeros(3, np.int8),
    ),
    # The axis of the scales behind a reshape that leaves fewer axes.
    "onnxruntime 32649": text(
        "g (int8[2,3,4] q) => (float[4,6] y) { d = DequantizeLinear<axis = 2>(q, s, o) r = Reshape(d, to) "
        "y = Transpose<perm = [1, 0]>(r) }",
        s=positive(4),
        o=np.zeros(4, np.int8),
        to=whole(6, 4),
    ),
    # Weights of four bits with a scale for each block of rows.
    "onnxsim 749": text(
        "g (float[2,32] x) => (float[2,8] y) { d = DequantizeLinear<axis = 0, block_size = 16>(w, s, o) y = MatMul(x, d) }",
        opset=21,
        w=(np.arange(256).reshape(32, 8) % 16 - 8).astype(ml_dtypes.int4),
        s=positive(16).reshape(2, 8),
        o=(np.arange(16).reshape(2, 8) % 5 - 2).astype(ml_dtypes.int4),
    ),
    # A product of one column, and a row that makes the sum wider.
    "onnxruntime 3764": text(
        "g (float[3,3] x, float[1,4] z) => (float[3,4] y) { p = MatMul(x, w) m = Mul(c, z) y = Add(p, m) }",
        w=(3, 1),
        c=number(0.5),
    ),
    # A product of a vector, with a sum.
    "onnxruntime 2407": text("g (float[4] x) => (float[5] y) { p = MatMul(x, w) y = Add(p, b) }", w=(4, 5), b=(5,)),
    "onnxruntime 24107": text(
        "g (float[4] x, float[2,1,3,4] z) => (float[5] y, float[2,2,3,5] u) { y = MatMul(x, w) u = MatMul(z, v) }",
        w=(4, 5),
        v=(2, 4, 5),
    ),
    # A product with a sum of more axes.
    "onnxslim 323": text(
        "g (float[3,4] x) => (float[1,1,1,3,5] y) { p = MatMul(x, w) y = Add(p, b) }", w=(4, 5), b=(1, 1, 1, 1, 5)
    ),
    # A border before windows: an average without it, another one with it, a largest one.
    "onnxruntime 22177": text(
        "g (float[1,2,5,5] x) => (float[1,2,3,3] y, float[1,2,3,3] z) { p = Pad(x, pads) "
        "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2]>(p) "
        "z = AveragePool<kernel_shape = [3, 3], strides = [2, 2], count_include_pad = 1>(p) }",
        pads=whole(0, 0, 1, 1, 0, 0, 1, 1),
    ),
    "onnx/optimizer 269": text(
        "g (float[1,2,5,5] x) => (float[1,2,4,4] y, float[1,2,4,4] z) { p = Pad(x, pads, low) q = Pad(x, pads) "
        "y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(p) "
        "z = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(q) }",
        pads=whole(0, 0, 1, 1, 0, 0, 1, 1),
        low=number(-1),
    ),
    # A border before a convolution: negative, with a mode of its own, without an attribute.
    "onnxscript 2838": text(
        "g (float[1,2,6,6] x) => (float[1,3,3,4] y) { p = Pad(x, pads) y = Conv(p, w) }",
        w=(3, 2, 3, 3),
        pads=whole(0, 0, -1, 1, 0, 0, 0, -1),
    ),
    "onnx 3259": text(
        'g (float[1,2,5,5] x) => (float[1,3,3,3] y) { p = Pad(x, pads) y = Conv<auto_pad = "VALID", strides = [2, 2]>(p, w) }',
        w=(3, 2, 3, 3),
        pads=whole(0, 0, 1, 1, 0, 0, 1, 1),
    ),
    "tensorflow-onnx 850": text(
        'g (float[1,2,5,5] x) => (float[1,3,4,4] y) { p = Pad(x, pads) y = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(p, w) }',
        w=(3, 2, 3, 3),
        pads=whole(0, 0, 1, 1, 0, 0, 1, 1),
    ),
    "onnxslim 214": text(
        'g (float[1,2,5,5] x) => (float[1,3,5,5] y, float[1,3,5,5] z) { p = Pad(x, pads) y = Conv(p, w) q = Pad<mode = "edge">(x, pads) '
        "z = Conv(q, w) }",
        w=(3, 2, 3, 3),
        pads=whole(0, 0, 1, 1, 0, 0, 1, 1),
    ),
    # Casts of which some change nothing.
    "onnx/optimizer 273": text(
        "g (double[3] x, float[3] z) => (float[3] y, double[3] u, float[3] v) { a = Cast<to = 1>(x) y = Cast<to = 1>(a) "
        "u = Cast<to = 11>(a) v = Cast<to = 1>(z) }"
    ),
    # A shape of sizes that nothing states.
    "onnxscript 2963": text(
        "g (float[N,M,4] x) => (float[a,b] y) { e = Relu(x) s = Shape(e) n = Gather(s, first) c = Concat<axis = 0>(n, rest) "
        "y = Reshape(e, c) }",
        first=whole(0),
        rest=whole(-1),
    ),
    # A convolution whose product with a number is read, and is an output.
    "onnxruntime 28559": text(
        "g (float[1,2,5,5] x) => (float[1,3,3,3] m, float[1,3,3,3] y) { t = Conv(x, w) m = Mul(t, c) y = Relu(m) }",
        w=(3, 2, 3, 3),
        c=number(0.25),
    ),
    # A transposition of three axes near an average of four.
    "onnxruntime 15008": text(
        "g (float[1,3,4,4] x, float[1,4,3] z) => (float[1,3,8] y) { a = GlobalAveragePool(x) s = Squeeze(a, last) "
        "b = Add(z, k) t = Transpose<perm = [0, 2, 1]>(b) c = Add(t, s) y = Concat<axis = 2>(t, c) }",
        last=whole(3),
        k=(3,),
    ),
    "onnxruntime 9870": text(
        "g (float[1,4,5,2] x) => (float[1,8,10,2] y) { t = Transpose<perm = [0, 3, 1, 2]>(x) "
        'r = Resize<mode = "nearest">(t, , scales) y = Transpose<perm = [0, 2, 3, 1]>(r) }',
        scales=np.array([1, 1, 2, 2], np.float32),
    ),
    # A mean over axes that count from the end, and its reshape.
    "onnxruntime 23868": text(
        "g (float[1,6,3,3] x) => (float[N,M] y) { m = ReduceMean(x, axes) y = Reshape(m, to) }",
        opset=20,
        axes=whole(-1, -2),
        to=whole(1, -1),
    ),
    # Reductions of a number.
    "onnxruntime 16492": text(
        "g (float x) => (float y, float z, float u) { y = ReduceSum(x) z = ReduceMean(x) u = ReduceL2(x) }"
    ),
    # Axes that one reduction has as an attribute, and another one as an operand.
    "onnx2tf 201": text(
        "g (float[2,3,4] x) => (float[2,1,4] y, float[2,4] z) { y = ReduceMax<axes = [-2]>(x) z = ReduceSum<keepdims = 0>(x, axes) }",
        opset=13,
        axes=whole(1),
    ),
    # A choice between values of fewer axes, with sizes that are free.
    "onnxruntime 5349": text(
        "g (bool[1,1,N,N] c, float[B,2,N,N] x) => (float[B,2,N,N] y) { w = Where(c, x, low) y = Softmax<axis = -1>(w) }",
        low=number(-10000),
    ),
    # A matrix of all axes but the last one.
    "onnx 2708": text(
        "g (float[2,3,4] x) => (float[6,4] y, float[24,1] z) { y = Flatten<axis = -1>(x) z = Flatten<axis = 3>(x) }"
    ),
    "cinn 1170": text(
        "g (float[2,3,4] x) => (float[2,3,4] y) { r = Reshape(k, to) y = Mul(x, r) }", k=(12,), to=whole(1, 3, 4)
    ),
    # Numbers of constants that are not finite, and a choice of others.
    "onnxruntime 31163": text(
        "g (float[2,3] x) => (float[2,3] y) { s = Sqrt(zeros) r = Reciprocal(s) m = ReduceMin<axes = [-1], keepdims = 0>(r) "
        "p = Mul(m, zero) n = IsNaN(p) y = Where(n, x, zero) }",
        zeros=np.zeros((3, 4), np.float32),
        zero=number(0),
    ),
    # A loss with weights of classes.
    "openvino 20977": text(
        "g (float[3,5] x, int64[3] t) => (float y, float[3] z) { y = SoftmaxCrossEntropyLoss(x, t, w) "
        'z = SoftmaxCrossEntropyLoss<reduction = "none">(x, t, w) }',
        w=positive(5),
    ),
}
