"""Types of nodes that the definition of their operator does not accept: computed shapes, sizes that
are not known to be equal, forms of old opsets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.onnx_io.typed_nodes import AskedNode, Size, TypedOutput, TypeRules, broadcast, on_axis
from taso_mirage.onnx_io.types_of_shapes import axes_of, named, of_same_rank, wanted
from taso_mirage.onnx_io.types_onnx import convolved, is_same, matrix_product, numbered, placed, spatial

REFUSED_TYPES = TypeRules()
AS_LARGE = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
    "HardSwish Identity LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh "
    "Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Softmax LogSoftmax CumSum Trilu LRN LpNormalization "
    "InstanceNormalization GroupNormalization RMSNormalization SimplifiedLayerNormalization "
    "MeanVarianceNormalization RotaryEmbedding PRelu"
)
"""Operators whose result is as large as their first operand."""
REDUCTIONS = "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare"

# ------------------------------------------------------------ elements


REFUSED_TYPES.table(
    {
        AS_LARGE: lambda asked: [asked.like(0)],
        "IsNaN IsInf": lambda asked: [("bool", asked.shape(0))],
        "Add Sub Mul Div Pow Mod Min Max Sum Mean BitShift BitwiseAnd BitwiseOr BitwiseXor": lambda asked: [
            (asked.dtype(0), _broadcast(asked))
        ],
        "And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual": lambda asked: [("bool", _broadcast(asked))],
        "Where": lambda asked: [(asked.dtype(1), _broadcast(asked))],
        "Cast": lambda asked: [(numbered(asked, "to", ""), asked.shape(0))],
        "CastLike": lambda asked: [(asked.dtype(1), asked.shape(0))],
        "Dropout": lambda asked: [asked.like(0), ("bool" if asked.opset >= 10 else asked.dtype(0), asked.shape(0))],
        "BatchNormalization": lambda asked: [asked.like(0), *[asked.like(3)] * (4 if asked.opset < 14 else 2)],
    }
)


def _broadcast(asked: AskedNode) -> tuple[Size, ...]:
    if asked.opset < 7:  # the second operand stretches to the first
        return asked.shape(0)
    return broadcast(*(asked.shape(i) for i in range(len(asked.call.args))))


@REFUSED_TYPES("LayerNormalization")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    shape = asked.shape(0)
    axis = asked.axis(-1, len(shape))
    statistics = numbered(asked, "stash_type", "float32"), tuple(1 if i >= axis else n for i, n in enumerate(shape))
    return [asked.like(0), statistics, statistics]


# ------------------------------------------------------------ sums


REFUSED_TYPES.table(
    {
        "MatMul": lambda asked: [(asked.dtype(0), matrix_product(asked.shape(0), asked.shape(1)))],
        "Conv": lambda asked: [(asked.dtype(0), convolved(asked, 1))],
        "GlobalAveragePool GlobalMaxPool GlobalLpPool": lambda asked: [
            (asked.dtype(0), (*asked.shape(0)[:2], *(1,) * (asked.rank(0) - 2)))
        ],
        REDUCTIONS: lambda asked: _reduced(asked, asked.dtype(0), axes_of(asked, 18)),
        "ReduceSum": lambda asked: _reduced(asked, asked.dtype(0), axes_of(asked, 13)),
        "ArgMax ArgMin": lambda asked: _reduced(asked, "int64", (asked.attr("axis", 0),)),
    }
)


@REFUSED_TYPES("Gemm")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    a, b = asked.shape(0), asked.shape(1)
    return [(asked.dtype(0), (a[1 if asked.attr("transA", 0) else 0], b[0 if asked.attr("transB", 0) else 1]))]


@REFUSED_TYPES("ConvTranspose")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, (batch, _, *sizes) = asked.like(0)
    w, axes = asked.shape(1), len(sizes)
    channels = w[1] * asked.attr("group", 1)
    if asked.attr("output_shape"):
        return [(dtype, (batch, channels, *asked.attr("output_shape")[-axes:]))]
    strides, dilations, low, high = placed(asked, axes)
    if is_same(asked):
        return [(dtype, (batch, channels, *(n * s for n, s in zip(sizes, strides, strict=True))))]
    more = asked.attr("output_padding", (0,) * axes)
    rows = zip(sizes, w[2:], strides, dilations, low, high, more, strict=True)
    found = [s * (n - 1) + e + (k - 1) * d + 1 - p - q for n, k, s, d, p, q, e in rows]
    return [(dtype, (batch, channels, *found))]


@REFUSED_TYPES("AveragePool", "MaxPool", "LpPool")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    found = (*shape[:2], *spatial(asked, asked.attr("kernel_shape")))
    return [(dtype, found), ("int64", found)]


def _reduced(asked: AskedNode, dtype: str, axes: Sequence[Dim] | None) -> Sequence[TypedOutput]:
    shape, keep = asked.shape(0), asked.attr("keepdims", 1)
    if axes is None and not keep:
        raise Unsupported("which axes go is not known")
    if axes is None:
        return [(dtype, tuple(1 if n == 1 else f"size_{i}" for i, n in enumerate(shape)))]
    if not axes and asked.attr("noop_with_empty_axes", 0):
        return [(dtype, shape)]
    gone = {on_axis(int(a), len(shape)) for a in axes} or set(range(len(shape)))
    return [(dtype, tuple(1 if i in gone else n for i, n in enumerate(shape) if keep or i not in gone))]


@REFUSED_TYPES("Einsum")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """Dims by their letters; those of ellipses broadcast."""
    equation = asked.attr("equation").replace(" ", "")
    inputs, arrow, result = equation.partition("->")
    dims: dict[str, list[Dim]] = {}
    spans: list[tuple[Dim, ...]] = []
    for i, letters in enumerate(inputs.split(",")):
        shape = asked.shape(i)
        before, dots, behind = letters.partition("...")
        end = len(shape) - len(behind) if dots else len(before)
        if end < len(before) or (not dots and len(shape) != len(before)):
            raise Unsupported(f"{equation} on rank {len(shape)}")
        spans += [shape[len(before) : end]] if dots else []
        named = zip(before + behind, (*shape[: len(before)], *(shape[end:] if dots else ())), strict=True)
        for letter, n in named:
            dims.setdefault(letter, []).append(n)
    if not arrow:
        once = [c for c in sorted(dims) if inputs.count(c) == 1]
        result = ("..." if spans else "") + "".join(once)
    before, dots, behind = result.partition("...")
    sizes = {letter: broadcast(*((n,) for n in found))[0] for letter, found in dims.items()}
    named_sizes = {letter: f"of_{letter}" if isinstance(n, str) else n for letter, n in sizes.items()}
    middle = broadcast(*spans) if dots and spans else ()
    return [(asked.dtype(0), (*(named_sizes[c] for c in before), *middle, *(named_sizes[c] for c in behind)))]


# ------------------------------------------------------------ images, attention


@REFUSED_TYPES("Resize", "Upsample")
@of_same_rank
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    rank = len(shape)
    axes = [on_axis(a, rank) for a in asked.attr("axes", range(rank))]
    found: list[Dim | None] = list(shape)
    policy = asked.attr("keep_aspect_ratio_policy", "stretch")
    if asked.given(3):
        changed = wanted(asked, 3)
        if policy != "stretch":
            changed = _kept_aspect([shape[a] for a in axes], changed, policy)
    else:
        given = asked.attr("scales") if asked.call.op_type == "Upsample" and asked.opset < 9 else None
        scales = given or asked.numbers(1 if asked.opset < 11 else 2)
        changed = (
            [None] * len(axes) if not scales else [_scaled(shape[a], s) for a, s in zip(axes, scales, strict=True)]
        )
    for axis, n in zip(axes, changed, strict=True):
        found[axis] = n
    return [(dtype, named(found))]


def _scaled(n: Dim, scale: float) -> Dim | None:
    """floor(n * scale), in single precision as the runtime computes it; None where that depends on
    the size."""
    if scale == math.floor(scale):
        return n * int(scale)
    return math.floor(float(np.float32(n) * np.float32(scale))) if isinstance(n, int) else None


def _kept_aspect(have: Sequence[Dim], wanted: Sequence[Dim | None], policy: str) -> list[Dim | None]:
    fixed = [(n, m) for n, m in zip(have, wanted, strict=True) if isinstance(n, int) and isinstance(m, int)]
    if len(fixed) < len(have):
        return [None] * len(have)
    scale = (min if policy == "not_larger" else max)(m / n for n, m in fixed)
    return [math.floor(scale * n + 0.5) for n, _ in fixed]


@REFUSED_TYPES("Attention")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """(batch, heads, positions, width), or (batch, positions, heads * width): the keys of the past
    come before those that are given."""
    dtype, query = asked.like(0)
    key, value = asked.shape(1), asked.shape(2)
    past = asked.shape(4)[2] if asked.given(4) else 0
    if len(query) == 4:
        heads, positions = query[1], query[2]
        keys, values = (*key[:2], past + key[2], key[3]), (*value[:2], past + value[2], value[3])
        result: tuple[Dim, ...] = (query[0], heads, positions, value[3])
    else:
        heads, pairs, positions = asked.attr("q_num_heads"), asked.attr("kv_num_heads"), query[1]
        keys = (key[0], pairs, past + key[1], key[2] // pairs)
        values = (value[0], pairs, past + value[1], value[2] // pairs)
        result = (query[0], positions, heads * values[3])
    scores = (query[0], heads, positions, keys[2])
    return [(dtype, result), (asked.dtype(1), keys), (asked.dtype(2), values), (dtype, scores)]
