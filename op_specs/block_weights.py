"""Operators of ONNX Runtime's domain on weights of few bits in blocks, each with a scale and a zero
point: products with such weights, and gathered rows."""

import numpy as np

from op_specs.arithmetic import mul, sub
from op_specs.cast import cast
from op_specs.gather import gather
from op_specs.matmul import matmul
from op_specs.quantize import dequantize, parameter, single
from op_specs.quantized_products import with_bias
from op_specs.reshape import reshape
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node, is_float
from taso_mirage.operators.ops import Call, op


@op(onnx="MatMulNBits", domain="com.microsoft", since=1, quantized=True, coarse="accuracy_level")
def matmul_nbits(
    xp,
    a,
    b,
    scales,
    zeros=None,
    g_idx=None,
    bias=None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
):
    """(...,k), (n, blocks, bytes), scales of blocks, their zeros -> a (w - zero) * scale + bias,
    where b has the numbers w of each column in its bytes, the lowest bits first

    Zeros are packed as the weights are, or floats; without them they are half of all numbers.
    `accuracy_level` is the least accuracy: 2 to 4 let the runtime round activations to half
    precision, bfloat16, or 8 bits, which it is free to do or not.
    """
    blocks = (K + block_size - 1) // block_size
    if g_idx is not None or xp.shape(b) != (N, blocks, block_size * bits // 8):
        raise IllTyped(f"weights of shape {xp.shape(b)} for {N} columns of {blocks} blocks, or with groups")
    numbers = _of_floats(xp, _unpacked(xp, b, bits), a)
    offsets = _of_floats(xp, _zeros(xp, zeros, scales, N, blocks, bits), a)
    offsets, factor = (_of_blocks(xp, each, N, blocks) for each in (offsets, scales))
    weights = _first(xp, reshape(xp, scaled(xp, numbers, offsets, factor), shape=(N, blocks * block_size)), K)
    return with_bias(xp, matmul(xp, a, transpose(xp, weights, perm=(1, 0))), bias)


@op(onnx="GatherBlockQuantized", domain="com.microsoft", since=1, quantized=True)
def gather_block_quantized(
    xp,
    data,
    indices,
    scales,
    zeros=None,
    *,
    gather_axis: int = 0,
    quantize_axis: int = 1,
    block_size: int = 128,
    bits: int = 4,
):
    """Rows of a table of (q - zero) * scale, in blocks along `quantize_axis`; in bytes, `bits` of
    each along the last axis, and then zeros are half of all numbers where they are left out"""
    rank, dtype = xp.rank(data), xp.dtype(scales)
    along = quantize_axis + rank if quantize_axis < 0 else quantize_axis
    if xp.dtype(data) != "uint8":
        table = dequantize(xp, data, scales, zeros, dtype="float32", axis=along, block_size=block_size)
    else:
        q = _of_floats(xp, _unpacked(xp, data, bits), single(xp, scales))
        offset = _of_floats(xp, _offsets(xp, zeros, scales, bits), single(xp, scales))
        centred = xp.sub(q, parameter(xp, offset, q, along, block_size))
        table = xp.mul(centred, single(xp, parameter(xp, scales, q, along, block_size)))
    rows = gather(xp, table, indices, axis=gather_axis + rank if gather_axis < 0 else gather_axis)
    return rows if xp.dtype(rows) == dtype else xp.cast(rows, dtype)


@op(lowering=Lowering.UNPACK)
def unpacked(xp, packed, *, bits: int):
    """(..., bytes) of uint8 -> (..., numbers), the lowest bits first"""
    if bits not in (2, 4) or xp.dtype(packed) != "uint8":
        raise IllTyped(f"{bits} bits in {xp.dtype(packed)}")
    shape = xp.shape(packed)
    shifts = [xp.map(np.right_shift, packed, xp.literal(at, packed)) for at in range(0, 8, bits)]
    low = [xp.map(np.bitwise_and, s, xp.literal(2**bits - 1, packed)) for s in shifts]
    parts = xp.concat([xp.reshape(each, (*shape, 1)) for each in low], len(shape))
    return xp.reshape(parts, (*shape[:-1], shape[-1] * (8 // bits)))


@op(lowering=Lowering.SCALE)
def scaled(xp, x, zero, scale):
    """numbers, their zeros, their scales -> (x - zero) * scale"""
    return mul(xp, sub(xp, x, zero), scale)


def _unpacked(xp, packed, bits: int):
    """The numbers in packed bytes."""
    return packed if bits == 8 and xp.dtype(packed) == "uint8" else unpacked(xp, packed, bits=bits)


def _first(xp, x, n: int):
    """The first n columns; all, if the block size divides n."""
    return x if xp.shape(x)[1] == n else xp.slice(x, 1, 0, n)


def _zeros(xp, zeros, scales, columns: int, blocks: int, bits: int):
    """The zero of each block: (n, blocks)."""
    if zeros is None or is_float(xp.dtype(zeros)):
        return xp.literal(2 ** (bits - 1), scales) if zeros is None else _shaped(xp, zeros, (columns, blocks))
    packed = _shaped(xp, zeros, (columns, (blocks * bits + 7) // 8))
    return _first(xp, _unpacked(xp, packed, bits), blocks)


def _offsets(xp, zeros, scales, bits: int):
    if zeros is None:
        return xp.expand(xp.scalar(2 ** (bits - 1), "uint8"), xp.shape(scales))
    axis, n = xp.rank(scales) - 1, xp.shape(scales)[-1]
    return xp.slice(_unpacked(xp, zeros, bits), axis, 0, n)


def _of_blocks(xp, p, columns: int, blocks: int):
    """A scale or zero beside the weights of its block: (n, blocks, 1)."""
    return p if xp.rank(p) == 0 else reshape(xp, p, shape=(columns, blocks, 1))


def _shaped(xp, x, shape: tuple[int, ...]):
    return x if tuple(xp.shape(x)) == shape else reshape(xp, x, shape=shape)


def _of_floats(xp, x, like):
    return x if xp.dtype(x) == xp.dtype(like) else cast(xp, x, to=xp.dtype(like))


@matmul_nbits.importer
def _(call: Call) -> Node:
    attrs = dict(call.attrs)
    if attrs.pop("weight_prepacked", 0):
        raise Unsupported("MatMulNBits with weights in an order of a device")
    return matmul_nbits.term(*call.args, **attrs)


@gather_block_quantized.importer
def _(call: Call) -> Node:
    if is_float(call.arg(0).dtype):
        raise Unsupported(f"GatherBlockQuantized of {call.arg(0).dtype}")
    return gather_block_quantized.term(*call.args, **call.attrs)


unpacked.example("uint8[5,2,8]", bits=4)
unpacked.example("uint8[3,2]", bits=2)
scaled.example("float32[3,2,4]", "float32[3,2,1]", "float32[3,2,1]")
matmul_nbits.example("float32[3,32]", "uint8[5,2,8]", "float32[5,2]", K=32, N=5, block_size=16)
matmul_nbits.example("float32[2,3,40]", "uint8[5,3,8]", "float32[15]", "uint8[10]", K=40, N=5, block_size=16)
matmul_nbits.example("float32[3,32]", "uint8[5,1,32]", "float32[5]", K=32, N=5, block_size=32, bits=8)
matmul_nbits.example(
    "float32[3,32]", "uint8[5,2,8]", "float32[10]", "float32[10]", None, "float32[5]", K=32, N=5, block_size=16
)
gather_block_quantized.example("uint8[5,16]", "int64[2]", "float32[5,2]", block_size=16)
gather_block_quantized.example("uint8[5,16]", "int64[2,3]", "float32[5,2]", "uint8[5,1]", block_size=16)
gather_block_quantized.example("uint8[5,32]", "int64[2]", "float32[5,2]", block_size=16, bits=8)
