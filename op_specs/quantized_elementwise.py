"""Sums, functions, pools and concatenations of quantized numbers, of ONNX Runtime's domain: the
results are quantized functions of the numbers that the operands represent.

ONNX Runtime computes functions of one operand by a table of all 256 results, a sum with scales that
it divides by that of the result first, and a mean or a softmax from sums of integers. A result may
be one step off where it is within a rounding of the middle between two; the docstrings say for
which operators that was never seen (`tests/operators/test_quantized.py`).
"""

import numpy as np

from op_specs.activations import leaky_relu, sigmoid
from op_specs.arithmetic import add, mul
from op_specs.compare_logic import where
from op_specs.concat import concat
from op_specs.pool import average_pool, global_average_pool, pool_attributes
from op_specs.quantize import dequantize, quantize, shifted
from op_specs.quantized_products import one
from op_specs.softmax import softmax
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, Ints, op

OWN = {"domain": "com.microsoft", "since": 1, "quantized": True, "decides": True}


@op(onnx="QLinearAdd", **OWN)
def qlinear_add(xp, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero=None):
    """x, y -> x + y; at most one step off"""
    return _quantized(xp, a, add(xp, real(xp, a, a_scale, a_zero), real(xp, b, b_scale, b_zero)), y_scale, y_zero)


@op(onnx="QLinearMul", **OWN)
def qlinear_mul(xp, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero=None):
    """x, y -> x * y; at most one step off"""
    return _quantized(xp, a, mul(xp, real(xp, a, a_scale, a_zero), real(xp, b, b_scale, b_zero)), y_scale, y_zero)


@op(onnx="QLinearSigmoid", **OWN)
def qlinear_sigmoid(xp, x, x_scale, x_zero, y_scale, y_zero=None):
    """x -> 1 / (1 + exp(-x)); at most one step off"""
    return _quantized(xp, x, sigmoid(xp, real(xp, x, x_scale, x_zero)), y_scale, y_zero)


@op(onnx="QLinearLeakyRelu", **OWN)
def qlinear_leaky_relu(xp, x, x_scale, x_zero, y_scale, y_zero=None, *, alpha: float = 0.01):
    """x -> x, or alpha * x where it is negative; bit by bit"""
    return _quantized(xp, x, leaky_relu(xp, real(xp, x, x_scale, x_zero), alpha=alpha), y_scale, y_zero)


@op(onnx="QLinearSoftmax", **OWN)
def qlinear_softmax(xp, x, x_scale, x_zero, y_scale, y_zero, *, axis: int):
    """x -> exp(x) / sum(exp(x)) along an axis, times the whole part of 1 / y_scale, as the runtime
    has it; at most one step off"""
    _check(xp, x, y_scale, y_zero)
    share = softmax(xp, real(xp, x, x_scale, x_zero), axis=axis)
    steps = xp.map(np.floor, xp.div(xp.literal(1, y_scale), one(xp, y_scale)))
    return shifted(xp, xp.map(np.rint, xp.mul(share, steps)), one(xp, y_zero), xp.dtype(x))


@op(onnx="QLinearAveragePool", **OWN)
def qlinear_average_pool(
    xp,
    x,
    x_scale,
    x_zero,
    y_scale,
    y_zero=None,
    *,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    extra: Ints,
    count_include_pad: int = 0,
):
    """(n,c,h,w) -> (n,c,h',w'), the mean of each window; at most one step off"""
    attrs = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    attrs |= {"extra": extra, "count_include_pad": count_include_pad}
    return _quantized(xp, x, average_pool(xp, real(xp, x, x_scale, x_zero), **attrs), y_scale, y_zero)


@op(onnx="QLinearGlobalAveragePool", **OWN)
def qlinear_global_average_pool(xp, x, x_scale, x_zero, y_scale, y_zero):
    """(n,c,h,w) -> (n,c,1,1), the means of channels; at most one step off"""
    return _quantized(xp, x, global_average_pool(xp, real(xp, x, x_scale, x_zero)), y_scale, y_zero)


@op(onnx="QLinearConcat", **OWN)
def qlinear_concat(xp, y_scale, y_zero, *parts, axis: int):
    """x, its scale, its zero, y, ... -> all along `axis` with one scale and zero; bit by bit"""
    if len(parts) % 3 or not parts:
        raise IllTyped(f"{len(parts)} operands, which are three for each part")
    found = [
        _quantized(xp, x, real(xp, x, scale, zero), y_scale, y_zero)
        for x, scale, zero in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]
    return concat(xp, *found, axis=axis)


@op(onnx="QLinearWhere", **OWN)
def qlinear_where(xp, condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero):
    """c, x, y -> x where c, else y, with one scale and zero; bit by bit"""
    found = [
        _quantized(xp, part, real(xp, part, scale, zero), z_scale, z_zero)
        for part, scale, zero in ((x, x_scale, x_zero), (y, y_scale, y_zero))
    ]
    return where(xp, condition, *found)


def real(xp, x, scale, zero):
    """The numbers that x stands for; of 8 bits, with one scale."""
    _check(xp, x, scale, zero)
    return dequantize(xp, x, scale, zero)


def _quantized(xp, like, x, scale, zero):
    """x in the dtype of `like`."""
    _check(xp, like, scale, zero)
    return quantize(xp, x, scale, zero, dtype=xp.dtype(like))


def _check(xp, x, scale, zero) -> None:
    if xp.dtype(x) not in ("int8", "uint8"):
        raise IllTyped(f"quantized numbers in {xp.dtype(x)}")
    for each in (scale, zero):
        if each is not None and xp.shape(each) not in ((), (1,)):
            raise IllTyped(f"scales or zeros of shape {xp.shape(each)}, where there is one")


@qlinear_softmax.importer
def _(call: Call) -> Node:
    rank = call.arg(0).tensor.rank
    axis = call.attrs.get("axis", -1)
    axis = axis + rank if axis < 0 else axis
    if call.attrs.get("opset", 13) < 13 and axis != rank - 1:
        raise Unsupported("QLinearSoftmax over several axes")
    return qlinear_softmax.term(*call.args, axis=axis)


@qlinear_softmax.exporter
def _(node: Node, opset: int) -> Call:
    return Call("QLinearSoftmax", node.args, {**dict(node.attrs), "opset": 13}, opset, "com.microsoft")


@qlinear_concat.importer
def _(call: Call) -> Node:
    axis = call.attrs["axis"]
    return qlinear_concat.term(*call.args, axis=axis + call.arg(2).tensor.rank if axis < 0 else axis)


@qlinear_average_pool.importer
def _(call: Call) -> Node:
    if call.attrs.get("channels_last", 0):
        raise Unsupported("QLinearAveragePool with channels last")
    attrs = pool_attributes(call)
    return qlinear_average_pool.term(*call.args, **attrs, count_include_pad=call.attrs.get("count_include_pad", 0))


@qlinear_average_pool.exporter
def _(node: Node, opset: int) -> Call:
    attrs = dict(node.attrs)
    if any(d != 1 for d in attrs["dilations"]):
        raise Unsupported("QLinearAveragePool with dilations")
    given = {"kernel_shape": attrs["kernel"], "ceil_mode": int(any(attrs["extra"]))}
    given |= {name: attrs[name] for name in ("strides", "pads", "count_include_pad")}
    return Call("QLinearAveragePool", node.args, given, opset, "com.microsoft")


@qlinear_global_average_pool.importer
def _(call: Call) -> Node:
    if call.attrs.get("channels_last", 0):
        raise Unsupported("QLinearGlobalAveragePool with channels last")
    return qlinear_global_average_pool.term(*call.args)


_U8, _I8, _F = "uint8[()]", "int8[()]", "float32[()]"
for _pairwise in (qlinear_add, qlinear_mul):
    _pairwise.example("uint8[2,3]", _F, _U8, "uint8[2,3]", _F, _U8, _F, _U8)
    _pairwise.example("int8[2,3,4]", _F, _I8, "int8[4]", _F, _I8, _F)
for _function in (qlinear_sigmoid, qlinear_leaky_relu, qlinear_global_average_pool):
    _function.example("uint8[2,3,4,5]", _F, _U8, _F, _U8)
qlinear_softmax.example("uint8[2,3,4]", _F, _U8, _F, _U8, axis=2)
qlinear_softmax.example("uint8[2,3,4]", _F, _U8, _F, _U8, axis=1)
_WINDOW = {"kernel": (2, 3), "strides": (2, 2), "pads": (0, 1, 1, 0), "dilations": (1, 1)}
qlinear_average_pool.example("uint8[1,2,6,5]", _F, _U8, _F, _U8, **_WINDOW, extra=(0, 0))
qlinear_average_pool.example("uint8[1,2,6,5]", _F, _U8, _F, _U8, **_WINDOW, extra=(0, 0), count_include_pad=1)
qlinear_concat.example(_F, _U8, "uint8[2,3]", _F, _U8, "uint8[2,4]", _F, _U8, axis=1)
qlinear_where.example("bool[2,1]", "uint8[2,3]", _F, _U8, "uint8[3]", _F, _U8, _F, _U8)
qlinear_where.example("bool[3]", "int8[()]", _F, _I8, "int8[2,3]", _F, _I8, _F, _I8)
