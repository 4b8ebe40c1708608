"""Products of quantized numbers: sums of (a - zero)(b - zero) in int32, which are exact, and their
way to floats or back to a few bits.

ONNX Runtime multiplies the sum by one factor in single precision, (scale of a * scale of b) / scale
of the result, and rounds halves to even. The definitions do the same in the same order, so they
give its numbers bit by bit. On processors without VNNI its products of uint8 and int8 may saturate
in pairs; the definitions are ONNX's, which do not.
"""

import numpy as np

from op_specs.arithmetic import add
from op_specs.conv import check_bias, conv, kernel_shape, windows
from op_specs.matmul import matmul
from op_specs.quantize import centred, dynamic_quantize, shifted, single
from op_specs.reshape import reshape
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.mugraph import SIGN, Lowering
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, Ints, Op, op


@op(onnx="MatMulInteger", since=10, quantized=True)
def matmul_integer(xp, a, b, a_zero=None, b_zero=None):
    """(...,m,k), (...,k,n), of rows, of columns -> (a - a_zero)(b - b_zero) in int32"""
    check_bytes(xp, a, b, zeros=((a, a_zero), (b, b_zero)))
    left = a_zero if a_zero is None or xp.rank(a_zero) != 1 else of_one(xp, a_zero, (xp.shape(a_zero)[0], 1))
    right = b_zero if b_zero is None or xp.rank(b_zero) != 1 else of_one(xp, b_zero, xp.shape(b_zero))
    return matmul(xp, centred(xp, a, left), centred(xp, b, right))


@op(onnx="ConvInteger", since=10, windowed=True, kernel=1, quantized=True)
def conv_integer(xp, x, w, x_zero=None, w_zero=None, *, strides: Ints, pads: Ints, dilations: Ints, group: int = 1):
    """(n,g*c,h,w), (g*o,c,i,j) -> the convolution of x - x_zero and w - w_zero in int32; pads are
    x_zero"""
    check_bytes(xp, x, w, zeros=((x, x_zero), (w, w_zero)))
    left = None if x_zero is None else one(xp, x_zero)
    right = None if w_zero is None else of_one(xp, w_zero, (xp.shape(w)[0], *(1,) * (xp.rank(w) - 1)))
    data, kernel = centred(xp, x, left), centred(xp, w, right)
    return conv(xp, data, kernel, strides=strides, pads=pads, dilations=dilations, group=group)


@op(onnx="QLinearMatMul", since=10, quantized=True, decides=True)
def qlinear_matmul(xp, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    """(...,m,k), (...,k,n) -> their product, quantized; the scale and zero of b may be those of
    columns"""
    factor = factors(xp, xp.mul(single(xp, one(xp, a_scale)), vector(xp, b_scale)), y_scale)
    return requantized(xp, matmul_integer(xp, a, b, a_zero, b_zero), factor, y_zero)


@op(onnx="QLinearConv", since=10, windowed=True, kernel=3, quantized=True, decides=True)
def qlinear_conv(
    xp,
    x,
    x_scale,
    x_zero,
    w,
    w_scale,
    w_zero,
    y_scale,
    y_zero,
    b=None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    group: int = 1,
):
    """(n,g*c,h,w), (g*o,c,i,j), (g*o) -> their convolution and a bias in int32, quantized; the
    scale and zero of w may be those of output channels"""
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    total = conv_integer(xp, x, w, x_zero, w_zero, **attrs)
    channels = (xp.shape(w)[0], *(1,) * (xp.rank(w) - 2))
    if b is not None:
        check_bias(xp, b, xp.shape(w)[0])
        total = xp.add(total, xp.reshape(b, channels))
    scales = xp.mul(single(xp, one(xp, x_scale)), single(xp, of_one(xp, w_scale, channels)))
    return requantized(xp, total, factors(xp, scales, y_scale), y_zero)


@op(onnx="MatMulIntegerToFloat", domain="com.microsoft", since=1, quantized=True)
def matmul_integer_to_float(xp, a, b, a_scale, b_scale, a_zero=None, b_zero=None, bias=None):
    """(...,m,k), (...,k,n) -> (a - a_zero)(b - b_zero) * a_scale * b_scale + bias"""
    if xp.shape(b_scale) not in ((), (1,), xp.shape(b)[1:][-1:]):
        raise IllTyped(f"scales of shape {xp.shape(b_scale)} for weights of shape {xp.shape(b)}")
    factor = xp.mul(one(xp, a_scale), vector(xp, b_scale))
    return with_bias(xp, xp.mul(_float(xp, matmul_integer(xp, a, b, a_zero, b_zero), factor), factor), bias)


@op(onnx="DynamicQuantizeMatMul", domain="com.microsoft", since=1, quantized=True, decides=True)
def dynamic_quantize_matmul(xp, a, b, b_scale, b_zero=None, bias=None):
    """(...,m,k), (...,k,n) -> a, quantized to uint8 by its range, times (b - b_zero) * b_scale, and
    a bias"""
    q, scale, zero = dynamic_quantize(xp, a)
    return matmul_integer_to_float(xp, q, b, scale, b_scale, zero, b_zero, bias)


@op(onnx="QGemm", domain="com.microsoft", since=1, quantized=True, decides=True)
def qgemm(
    xp,
    a,
    a_scale,
    a_zero,
    b,
    b_scale,
    b_zero,
    c=None,
    y_scale=None,
    y_zero=None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
):
    """(m,k), (k,n), (n) -> alpha * scales * ((a - a_zero)(b - b_zero) + c), quantized where there
    is a scale for it; a or b may come transposed"""
    if xp.rank(a) != 2 or xp.rank(b) != 2:
        raise IllTyped(f"operands of rank {xp.rank(a)} and {xp.rank(b)}; a product takes matrices")
    left = transpose(xp, a, perm=(1, 0)) if transA else a
    right = transpose(xp, b, perm=(1, 0)) if transB else b
    total = matmul_integer(xp, left, right, a_zero, b_zero)
    total = total if c is None else xp.add(total, c)
    scale = one(xp, a_scale)
    factor = xp.mul(xp.mul(xp.literal(alpha, scale), scale), vector(xp, b_scale))
    if y_scale is None:
        return xp.mul(_float(xp, total, factor), factor)
    return requantized(xp, total, factors(xp, factor, y_scale), y_zero)


@op(lowering=Lowering.WHOLE)
def whole(xp, x):
    """int8, uint8 or int32 -> int32: x, and of uint8 x - 128; so one signed byte holds either"""
    if xp.dtype(x) == "int32":  # a sum of such numbers, which is known
        return x
    check_bytes(xp, x, zeros=())
    wide = xp.cast(x, "int32")
    return wide if xp.dtype(x) == "int8" else xp.sub(wide, xp.literal(SIGN, wide))


def check_bytes(xp, *operands, zeros) -> None:
    """Operands of 8 bits, and zeros of the dtypes of their operands."""
    for x in operands:
        if xp.dtype(x) not in ("int8", "uint8"):
            raise IllTyped(f"a product of quantized numbers in {xp.dtype(x)}")
    for x, zero in zeros:
        if zero is not None and xp.dtype(zero) != xp.dtype(x):
            raise IllTyped(f"a zero in {xp.dtype(zero)} of {xp.dtype(x)}")


def one(xp, p):
    """A scale or zero of a whole tensor, which may be a vector of one."""
    if any(n != 1 for n in xp.shape(p)) or xp.rank(p) > 1:
        raise IllTyped(f"scales or zeros of shape {xp.shape(p)}, where there is one")
    return xp.reshape(p, ())


def of_one(xp, p, shape):
    """A scale or zero of a whole tensor, or one for each of the only dim of `shape` that is not
    1."""
    return one(xp, p) if xp.shape(p) in ((), (1,)) else reshape(xp, p, shape=shape)


def vector(xp, p):
    """A scale or zero of a whole tensor, or of columns."""
    return single(xp, one(xp, p) if xp.shape(p) in ((), (1,)) else p)


def factors(xp, scales, y_scale):
    """The factors of sums of products."""
    return xp.div(scales, single(xp, one(xp, y_scale)))


def requantized(xp, total, factor, zero):
    """saturate(round(total * factor) + zero) in the dtype of `zero`."""
    rounded = xp.map(np.rint, xp.mul(_float(xp, total, factor), factor))
    return shifted(xp, rounded, one(xp, zero), xp.dtype(zero))


def _float(xp, total, like):
    return xp.cast(total, xp.dtype(like))


def with_bias(xp, x, bias):
    """x + bias of columns."""
    if bias is None:
        return x
    if xp.shape(bias) != xp.shape(x)[-1:]:
        raise IllTyped(f"bias of shape {xp.shape(bias)} for {xp.shape(x)}")
    return add(xp, x, bias)


def _windowed(op_: Op, kernel: int) -> None:
    """Reading and writing with the attributes of a convolution."""

    @op_.importer
    def _(call: Call) -> Node:
        shape = call.arg(kernel).shape[2:]
        if tuple(call.attrs.get("kernel_shape", shape)) != shape:
            raise Unsupported(f"{call.op_type} with kernel_shape {call.attrs['kernel_shape']} and weights {shape}")
        if call.attrs.get("channels_last", 0):
            raise Unsupported(f"{call.op_type} with channels last")
        attrs = windows(call, call.arg(0).shape[2:], shape)
        return op_.term(*call.args, **attrs, group=call.attrs.get("group", 1))

    @op_.exporter
    def _(node: Node, opset: int) -> Call:
        if any(p < 0 for p in node.attr("pads")):
            raise Unsupported(f"{op_.onnx} with pads {node.attr('pads')}")
        attrs = {**kernel_shape(node.args[kernel].shape[2:]), **dict(node.attrs)}
        return Call(op_.onnx or "", node.args, attrs, opset, op_.domain)


_windowed(conv_integer, 1)
_windowed(qlinear_conv, 3)


_U8, _I8, _F = "uint8[()]", "int8[()]", "float32[()]"
_WINDOW = {"strides": (1, 1), "pads": (1, 0, 0, 1), "dilations": (1, 1)}
whole.example("int8[2,3]")
whole.example("uint8[2,3]")
whole.example("int32[2,3]")
matmul_integer.example("uint8[3,4]", "int8[4,5]")
matmul_integer.example("uint8[3,4]", "uint8[4,5]", _U8, _U8)
matmul_integer.example("uint8[2,3,4]", "int8[4,5]", _U8, "int8[5]")
conv_integer.example("uint8[2,4,5,5]", "uint8[3,4,2,2]", _U8, _U8, **_WINDOW)
conv_integer.example("uint8[2,4,5,5]", "uint8[6,2,3,2]", **_WINDOW, group=2)
qlinear_matmul.example("uint8[3,4]", _F, _U8, "uint8[4,5]", _F, _U8, _F, _U8)
qlinear_matmul.example("uint8[2,3,4]", _F, _U8, "int8[4,5]", "float32[5]", "int8[5]", _F, _U8)
qlinear_matmul.example("int8[3,4]", _F, _I8, "int8[4,5]", _F, _I8, _F, _I8)
qlinear_conv.example("uint8[2,4,5,5]", _F, _U8, "int8[3,4,2,2]", _F, _I8, _F, _U8, "int32[3]", **_WINDOW)
qlinear_conv.example("int8[2,4,5,5]", _F, _I8, "int8[6,2,3,2]", "float32[6]", "int8[6]", _F, _I8, **_WINDOW, group=2)
matmul_integer_to_float.example("uint8[3,4]", "int8[4,5]", _F, _F)
matmul_integer_to_float.example("uint8[3,4]", "int8[4,5]", _F, "float32[5]", _U8, "int8[5]", "float32[5]")
dynamic_quantize_matmul.example("float32[3,4]", "int8[4,5]", _F)
dynamic_quantize_matmul.example("float32[2,3,4]", "uint8[4,5]", "float32[5]", "uint8[5]", "float32[5]")
qgemm.example("uint8[3,4]", _F, _U8, "int8[4,5]", _F, _I8, "int32[5]", _F, _U8)
qgemm.example("uint8[3,4]", _F, _U8, "int8[5,4]", "float32[5]", "int8[5]", transB=1, alpha=0.5)
