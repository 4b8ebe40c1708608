"""Floats as small integers and back: q = saturate(round(x / scale) + zero), x = (q - zero) * scale.

Scales and zeros are one for the tensor, one for each position of an axis, or one for each block of
positions. Rounding is to the nearest, halves to even. Numbers of 8 and 16 bits are those of ONNX
Runtime, bit by bit: it divides and multiplies in single precision, also where the floats are of
half precision, and so are floats of 8 bits. Those of fewer bits follow ONNX.

Floats of few bits have no zero: where a model has one, it only tells the dtype, and must be 0. To
convert to them is to quantize with a scale of 1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from op_specs.arithmetic import mul
from op_specs.cast import cast, read_saturate
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import ABSENT, Node, constant, is_float, numpy_dtype
from taso_mirage.operators.expressions import uniform_value
from taso_mirage.operators.ops import Call, Op, op

FLOATS = {"float32": 1, "float16": 10, "bfloat16": 16}
"""ONNX's numbers of the dtypes that are quantized."""
SMALL_DTYPES = {
    **{"uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "float8_e4m3fn": 17, "float8_e5m2": 19},
    **{"uint4": 21, "int4": 22, "float4_e2m1fn": 23, "uint2": 25, "int2": 26},
}
"""ONNX's numbers of the quantized dtypes; int32 (biases) is only dequantized."""
NUMBERS = {number: name for name, number in (FLOATS | SMALL_DTYPES).items()}
DTYPES_SINCE = {
    **dict.fromkeys(["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"], 19),
    **dict.fromkeys(["uint16", "int16", "uint4", "int4"], 21),
    **{"float4_e2m1fn": 23, "uint2": 25, "int2": 25},
}
"""The opsets from which they are quantized, or are quantized dtypes."""
DEFAULTS = {"axis": 1, "saturate": 1, "block_size": 0, "output_dtype": 0, "precision": 0}
"""Attributes that are omitted if they have no effect."""


@op(onnx="QuantizeLinear", since=10, quantized=True, decides=True)
def quantize(xp, x, scale, zero=None, *, dtype: str = "uint8", axis: int = 1, block_size: int = 0, saturate: int = 1):
    """x, scale, zero -> saturate(round(x / scale) + zero) in `dtype`; to float8 and float4 it
    rounds to their numbers; `saturate` says nothing, see `read_saturate`"""
    check_quantized(xp, zero, dtype)
    if xp.dtype(x) != xp.dtype(scale) or not is_float(xp.dtype(x)) or dtype == "int32":
        raise IllTyped(f"{xp.dtype(x)} over a scale in {xp.dtype(scale)}, to {dtype}")
    quotient = xp.div(single(xp, x), single(xp, parameter(xp, scale, x, axis, block_size)))
    if is_float(dtype):
        return _to_small_float(xp, quotient, dtype)
    rounded = xp.map(np.rint, quotient)
    return shifted(xp, rounded, None if zero is None else parameter(xp, zero, x, axis, block_size), dtype)


@op(onnx="DequantizeLinear", since=10, quantized=True)
def dequantize(xp, q, scale, zero=None, *, dtype: str = "float32", axis: int = 1, block_size: int = 0):
    """q, scale, zero -> (q - zero) * scale in `dtype`"""
    check_quantized(xp, zero, xp.dtype(q))
    if not is_float(xp.dtype(scale)) or dtype not in FLOATS:
        raise IllTyped(f"a scale in {xp.dtype(scale)}, to {dtype}")
    if is_float(xp.dtype(q)) and (placed := _placed(xp, q, scale, axis, block_size)) is not None:
        return _scaled(xp, q, scale, *placed, dtype)
    factor = single(xp, parameter(xp, scale, q, axis, block_size))
    value = centred(xp, q, None if zero is None else parameter(xp, zero, q, axis, block_size))
    return _cast(xp, xp.mul(_cast(xp, value, "float32"), factor), dtype)


@op(onnx="DynamicQuantizeLinear", since=11, quantized=True, decides=True)
def dynamic_quantize(xp, x):
    """x -> x in uint8, its scale, its zero: of the range of x and 0"""
    axes, zero = range(xp.rank(x)), xp.literal(0, x)
    low = xp.map(np.minimum, xp.reduce(np.minimum, x, axes, False), zero)
    high = xp.maximum(xp.reduce(np.maximum, x, axes, False), zero)
    flat = xp.map(np.equal, low, high)
    scale = xp.map(np.where, flat, xp.literal(1, x), xp.div(xp.sub(high, low), xp.literal(255, x)))
    lowest = xp.div(xp.sub(zero, low), scale)
    offset = saturated(xp, xp.map(np.rint, lowest), "uint8")
    return quantize(xp, x, scale, offset), scale, offset


def check_quantized(xp, zero, dtype: str) -> None:
    """A dtype of quantized numbers, which is that of their zero."""
    if dtype not in SMALL_DTYPES or (zero is not None and (xp.dtype(zero) != dtype or is_float(dtype))):
        raise IllTyped(f"{dtype} with a zero in {None if zero is None else xp.dtype(zero)}")


def single(xp, x):
    """x in single precision."""
    return _cast(xp, x, "float32")


def _cast(xp, x, dtype: str):
    return x if xp.dtype(x) == dtype else xp.cast(x, dtype)


def parameter(xp, p, x, axis: int, block_size: int = 0):
    """A scale or zero with an element for each of x, or a shape that broadcasts so."""
    rank, shape = xp.rank(x), xp.shape(p)
    if all(n == 1 for n in shape) and not block_size and len(shape) < 2:
        return xp.reshape(p, ())
    at = axis + rank if axis < 0 else axis
    if not 0 <= at < rank:
        raise IllTyped(f"axis {axis} of rank {rank}")
    if block_size:
        return _repeated(xp, p, x, at, block_size)
    if shape != (xp.shape(x)[at],):
        raise IllTyped(f"scales or zeros of shape {shape} for axis {at} of {xp.shape(x)}")
    return xp.reshape(p, tuple(n if i == at else 1 for i, n in enumerate(xp.shape(x))))


def _repeated(xp, p, x, axis: int, block_size: int):
    """One for each block of positions; the last block may be shorter."""
    shape, whole = xp.shape(p), xp.shape(x)
    blocks = (whole[axis] + block_size - 1) // block_size
    if shape != (*whole[:axis], blocks, *whole[axis + 1 :]):
        raise IllTyped(f"scales or zeros of shape {shape} for blocks of {block_size} of axis {axis} of {whole}")
    apart = xp.reshape(p, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    every = xp.expand(apart, (*shape[: axis + 1], block_size, *shape[axis + 1 :]))
    joined = xp.reshape(every, (*shape[:axis], shape[axis] * block_size, *shape[axis + 1 :]))
    return joined if xp.shape(joined) == whole else xp.slice(joined, axis, 0, whole[axis])


def _placed(xp, q, scale, axis: int, block_size: int):
    """The shapes in which floats q and their scale broadcast; None where they do not, or the last
    block is shorter."""
    shape, scales, at = tuple(xp.shape(q)), tuple(xp.shape(scale)), axis % max(xp.rank(q), 1)
    if not block_size:
        one = scales in ((), (1,))
        along = tuple(n if i == at else 1 for i, n in enumerate(shape))
        return (shape, () if one else along) if one or scales == shape[at : at + 1] else None
    if not isinstance(shape[at], int):
        return None
    blocks = shape[at] // block_size
    if scales != (*shape[:at], blocks, *shape[at + 1 :]) or blocks * block_size != shape[at]:
        return None
    return (*scales[: at + 1], block_size, *shape[at + 1 :]), (*scales[: at + 1], 1, *scales[at + 1 :])


def _scaled(xp, q, scale, shape, scales, dtype: str):
    """q * scale, as operators: blocks are an axis of their own, which a product may be taken
    along."""
    value = mul(xp, _as(xp, _shaped(xp, q, shape), "float32"), _as(xp, _shaped(xp, scale, scales), "float32"))
    return _as(xp, _shaped(xp, value, xp.shape(q)), dtype)


def _shaped(xp, x, shape):
    return x if tuple(xp.shape(x)) == tuple(shape) else reshape(xp, x, shape=shape)


def _as(xp, x, dtype: str):
    return x if xp.dtype(x) == dtype else cast(xp, x, to=dtype)


def centred(xp, q, zero):
    """q - zero, as int32; floats of few bits have no zero."""
    if is_float(xp.dtype(q)):
        return xp.cast(q, "float32")
    wide = _cast(xp, q, "int32")
    found = wide if zero is None else xp.sub(wide, _cast(xp, zero, "int32"))
    if xp.shape(found) != xp.shape(q):
        raise IllTyped(f"zeros of shape {xp.shape(zero)} for numbers of shape {xp.shape(q)}")
    return found


def shifted(xp, whole, zero, dtype: str):
    """saturate(whole + zero) of whole numbers in single precision."""
    return saturated(xp, whole if zero is None else xp.add(whole, xp.cast(zero, "float32")), dtype)


def saturated(xp, whole, dtype: str):
    """The nearest number of an integer dtype."""
    low, high = _limits(dtype)
    inside = xp.map(np.minimum, xp.maximum(whole, xp.literal(low, whole)), xp.literal(high, whole))
    return xp.cast(inside, dtype)


def _limits(dtype: str) -> tuple[float, float]:
    import ml_dtypes

    info = ml_dtypes.finfo(numpy_dtype(dtype)) if is_float(dtype) else ml_dtypes.iinfo(numpy_dtype(dtype))
    return float(info.min), float(info.max)


def _to_small_float(xp, x, dtype: str):
    low, high = _limits(dtype)
    return xp.cast(xp.map(np.minimum, xp.maximum(x, xp.literal(low, x)), xp.literal(high, x)), dtype)


def read_dtype(call: Call, given: str) -> str:
    """The attribute `output_dtype`, or the dtype that an operand gives."""
    number = call.attrs.get("output_dtype", 0)
    if number and number not in NUMBERS:
        raise Unsupported(f"{call.op_type} to ONNX data type {number}")
    return NUMBERS[number] if number else given


def read_zero(call: Call) -> Node:
    """The zero; none of floats, which only tells their dtype."""
    zero = call.arg(2)
    if zero is ABSENT or not is_float(zero.dtype):
        return zero
    if uniform_value(zero) != 0:
        raise Unsupported(f"{call.op_type} with a zero in {zero.dtype} that is not 0")
    return ABSENT


@quantize.importer
def _(call: Call) -> Node:
    if call.attrs.get("precision", 0) not in (0, 1):
        raise Unsupported(f"QuantizeLinear in precision {call.attrs['precision']}")
    dtype = read_dtype(call, "uint8" if call.arg(2) is ABSENT else call.arg(2).dtype)
    return quantize.term(*call.args[:2], read_zero(call), dtype=dtype, saturate=read_saturate(call), **_places(call))


@dequantize.importer
def _(call: Call) -> Node:
    dtype = read_dtype(call, call.arg(1).dtype)
    return dequantize.term(*call.args[:2], read_zero(call), dtype=dtype, **_places(call))


@dynamic_quantize.importer
def _(call: Call) -> Node:
    return dynamic_quantize.term(call.arg(0))


@dynamic_quantize.exporter
def _(node: Node, opset: int) -> Call:
    return Call("DynamicQuantizeLinear", node.args, {}, opset, outputs=3)


def _places(call: Call) -> dict[str, int]:
    """The attributes that say which scale belongs to an element; none where there is one."""
    scale, block_size = call.arg(1), call.attrs.get("block_size", 0)
    if scale.tensor.rank == 0 or (scale.shape == (1,) and not block_size):
        return {}
    return {"axis": call.attrs.get("axis", DEFAULTS["axis"]), "block_size": block_size}


def _written(op_: Op, since: dict[str, int]) -> None:
    """Write only the attributes with an effect, which exist from some opset on."""

    @op_.exporter
    def _(node: Node, opset: int) -> Call:
        if op_ is quantize and is_float(node.dtype) and uniform_value(node.args[1]) == 1:
            return _cast_to_small_float(node, opset)
        args = node.args if op_ is dequantize else _with_zero(node)
        attrs = {**dict(node.attrs), "output_dtype": _told(op_, node, args)}
        attrs = {k: v for k, v in attrs.items() if k in DEFAULTS and v != DEFAULTS[k]}
        dtypes = [a.dtype for a in (*args, node) if a is not ABSENT]
        for name in (*attrs, *dtypes):
            if opset < since.get(name, DTYPES_SINCE.get(name, 0)):
                raise Unsupported(f"{op_.onnx} with {name} is not in opset {opset}")
        return Call(op_.onnx or "", args, attrs, opset)


def _cast_to_small_float(node: Node, opset: int) -> Call:
    if opset < DTYPES_SINCE[node.dtype]:
        raise Unsupported(f"Cast to {node.dtype} is not in opset {opset}")
    return Call("Cast", node.args[:1], {"to": SMALL_DTYPES[node.dtype]}, opset)


def _with_zero(node: Node) -> tuple[Node, ...]:
    """The operands of a QuantizeLinear: floats of few bits have a zero that tells their dtype,
    which older opsets need, and for blocks the attribute."""
    scale, dtype = node.args[1], node.attr("dtype")
    if not is_float(dtype) or node.attr("block_size") or not all(isinstance(n, int) for n in scale.shape):
        return node.args
    zeros: NDArray[Any] = np.zeros([int(n) for n in scale.shape], numpy_dtype(dtype))
    return (*node.args[:2], constant(zeros))


def _told(op_: Op, node: Node, args: tuple[Node, ...]) -> int:
    """The number of the result's dtype, where no operand has it."""
    if op_ is dequantize:
        given = args[1].dtype
    else:
        given = args[2].dtype if len(args) > 2 and args[2] is not ABSENT else "uint8"
    dtype = node.attr("dtype")
    return 0 if dtype == given else (FLOATS | SMALL_DTYPES)[dtype]


_written(quantize, {"axis": 13, "saturate": 19, "block_size": 21, "output_dtype": 21})
_written(dequantize, {"axis": 13, "block_size": 21, "output_dtype": 23})


quantize.example("float32[2,3]", "float32[()]", "uint8[()]")
quantize.example("float32[2,3]", "float32[()]")
quantize.example("float32[2,3,4]", "float32[3]", "int8[3]", dtype="int8")
quantize.example("float32[2,3,4]", "float32[4]", "int8[4]", dtype="int8", axis=-1)
quantize.example("float16[2,3]", "float16[()]", "int8[()]", dtype="int8")
quantize.example("float32[2,6]", "float32[2,2]", "int8[2,2]", dtype="int8", block_size=3)
quantize.example("float32[5,2]", "float32[3,2]", dtype="int16", axis=0, block_size=2)
quantize.example("float32[2,3]", "float32[()]", dtype="float8_e4m3fn")
quantize.example("float16[2,3,4]", "float16[3]", dtype="float8_e5m2")
quantize.example("float32[2,6]", "float32[2,2]", dtype="float8_e4m3fn", block_size=3)
dequantize.example("uint8[2,3]", "float32[()]", "uint8[()]")
dequantize.example("int8[2,3]", "float32[()]")
dequantize.example("int8[2,3,4]", "float32[3]", "int8[3]")
dequantize.example("int8[2,3,4]", "float32[4]", "int8[4]", axis=-1)
dequantize.example("uint8[1,8,2,3]", "float32[()]", "uint8[()]")
dequantize.example("int32[2,3]", "float32[()]")
dequantize.example("int8[2,3]", "float16[()]", "int8[()]", dtype="float16")
dequantize.example("uint8[2,6]", "float32[2,2]", "uint8[2,2]", block_size=3)
dequantize.example("int8[5,2]", "float32[3,2]", axis=0, block_size=2)
dequantize.example("float8_e4m3fn[2,3]", "float32[()]")
dequantize.example("float8_e5m2[2,3,4]", "float16[4]", dtype="float16", axis=-1)
dequantize.example("float8_e4m3fn[2,6]", "float32[2,2]", block_size=3)
dynamic_quantize.example("float32[2,3]")
