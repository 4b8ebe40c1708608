"""Types of ONNX's operators that have no definition here."""

from __future__ import annotations

from collections.abc import Sequence

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.onnx_io.typed_nodes import (
    AskedNode,
    Size,
    TypedOutput,
    TypeRules,
    broadcast,
    on_axis,
    resized_at,
    window,
)

ONNX_TYPES = TypeRules()
NUMBERS = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool"},
    **{10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16"},
    **{17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4"},
    **{23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2"},
}
"""ONNX's numbers of dtypes."""


def numbered(asked: AskedNode, name: str, default: str) -> str:
    """The dtype that an attribute gives by its number."""
    number = asked.attr(name, 0)
    return NUMBERS[number] if number else default


# ------------------------------------------------------------ as large as an operand


ONNX_TYPES.table(
    {
        "ScatterND ScatterElements Scatter TensorScatter ReverseSequence Hardmax CumProd": lambda asked: [
            asked.like(0)
        ],
        "Bernoulli RandomNormalLike RandomUniformLike": lambda asked: [
            (numbered(asked, "dtype", asked.dtype(0)), asked.shape(0))
        ],
        "RandomNormal RandomUniform": lambda asked: [(numbered(asked, "dtype", "float32"), tuple(asked.attr("shape")))],
        "Multinomial": lambda asked: [
            (numbered(asked, "dtype", "int32"), (asked.shape(0)[0], int(asked.attr("sample_size", 1))))
        ],
        "SwiGLU": lambda asked: [(asked.dtype(0), broadcast(asked.shape(0), asked.shape(1)))],
        "QuantizeLinear": lambda asked: [
            (numbered(asked, "output_dtype", asked.dtype(2) if asked.given(2) else "uint8"), asked.shape(0))
        ],
        "DequantizeLinear": lambda asked: [(numbered(asked, "output_dtype", asked.dtype(1)), asked.shape(0))],
        "DynamicQuantizeLinear": lambda asked: [("uint8", asked.shape(0)), ("float32", ()), ("uint8", ())],
        "StringConcat": lambda asked: [("string", broadcast(asked.shape(0), asked.shape(1)))],
        "RegexFullMatch": lambda asked: [("bool", asked.shape(0))],
        "StringSplit": lambda asked: [("string", (*asked.shape(0), "parts")), ("int64", asked.shape(0))],
        "StringNormalizer": lambda asked: [("string", resized_at(asked.shape(0), asked.rank(0) - 1, "kept"))],
        "OptionalHasElement": lambda asked: [("bool", ())],
        "SequenceLength": lambda asked: [("int64", ())],
    }
)


# ------------------------------------------------------------ sizes that values tell


ONNX_TYPES.table(
    {
        "NonZero": lambda asked: [("int64", (asked.rank(0), "found"))],
        "NonMaxSuppression": lambda asked: [("int64", ("found", 3))],
    }
)


@ONNX_TYPES("Unique")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    axis = asked.attr("axis")
    if axis is None:
        found: tuple[Size, ...] = ("found",)
        every: Size = dim_product(asked.shape(0))
    else:
        axis = on_axis(axis, len(shape))
        found, every = resized_at(shape, axis, "found"), shape[axis]
    return [(dtype, found), ("int64", ("found",)), ("int64", (every,)), ("int64", ("found",))]


@ONNX_TYPES("Compress")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    axis = asked.attr("axis")
    return [(dtype, ("kept",) if axis is None else resized_at(shape, on_axis(axis, len(shape)), "kept"))]


@ONNX_TYPES("TopK")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    count = (asked.attr("k"),) if asked.opset < 10 else asked.integers(1)
    found = resized_at(shape, asked.axis(-1, len(shape)), "k" if count is None else count[0])
    return [(dtype, found), ("int64", found)]


@ONNX_TYPES("CenterCropPad")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    found: tuple[Size, ...] = shape
    axes = [on_axis(a, len(shape)) for a in asked.attr("axes", range(len(shape)))]
    wanted: Sequence[Size] = asked.integers(1) or [f"size_{a}" for a in axes]
    for axis, n in zip(axes, wanted, strict=True):
        found = resized_at(found, axis, n)
    return [(dtype, found)]


# ------------------------------------------------------------ images


@ONNX_TYPES("AffineGrid")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """theta is (batch, axes, axes + 1), the size (batch, channels, one for each axis)."""
    count = asked.shape(1)[0]
    axes = count - 2 if isinstance(count, int) else int(asked.shape(0)[1])
    size = asked.integers(1)
    spatial: Sequence[Size] = [f"size_{i}" for i in range(axes)] if size is None else size[2:]
    return [(asked.dtype(0), (asked.shape(0)[0], *spatial, axes))]


ONNX_TYPES.table(
    {
        "GridSample": lambda asked: [(asked.dtype(0), (*asked.shape(0)[:2], *asked.shape(1)[1:-1]))],
        "RoiAlign": lambda asked: [
            (
                asked.dtype(0),
                (asked.shape(1)[0], asked.shape(0)[1], asked.attr("output_height", 1), asked.attr("output_width", 1)),
            )
        ],
        "MaxRoiPool": lambda asked: [
            (asked.dtype(0), (asked.shape(1)[0], asked.shape(0)[1], *asked.attr("pooled_shape")))
        ],
        "CausalConvWithState": lambda asked: [
            asked.like(0),
            (asked.dtype(0), (*asked.shape(0)[:2], asked.shape(1)[2] - 1)),
        ],
        "ConvInteger": lambda asked: [("int32", convolved(asked, 1))],
        "QLinearConv": lambda asked: [(asked.dtype(7), convolved(asked, 3))],
        "DeformConv": lambda asked: [(asked.dtype(0), convolved(asked, 1))],
    }
)


@ONNX_TYPES("MaxUnpool")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    if asked.given(2):
        sizes = asked.integers(2)
        return [(dtype, tuple(f"size_{i}" for i in range(len(shape))) if sizes is None else sizes)]
    strides, _, low, high = placed(asked, len(shape) - 2)
    rows = zip(shape[2:], asked.attr("kernel_shape"), strides, low, high, strict=True)
    return [(dtype, (*shape[:2], *((n - 1) * s + k - p - q for n, k, s, p, q in rows)))]


def placed(asked: AskedNode, axes: int) -> tuple[Sequence[int], ...]:
    """Strides, dilations, and pads before and after, of windows over a number of axes."""
    strides, dilations = asked.attr("strides", (1,) * axes), asked.attr("dilations", (1,) * axes)
    own = asked.attr("auto_pad", "NOTSET") == "NOTSET"
    pads = asked.attr("pads", (0,) * 2 * axes) if own else (0,) * 2 * axes
    return strides, dilations, pads[:axes], pads[axes:]


def is_same(asked: AskedNode) -> bool:
    """Whether the runtime pads so that positions are counted by strides alone."""
    return bool(asked.attr("auto_pad", "NOTSET").startswith("SAME"))


def spatial(asked: AskedNode, kernel: Sequence[Dim]) -> tuple[Size, ...]:
    """The positions of a convolution's or a pool's windows over the first operand."""
    sizes = asked.shape(0)[2:]
    strides, dilations, low, high = placed(asked, len(sizes))
    if is_same(asked):
        return tuple(-(-n // s) for n, s in zip(sizes, strides, strict=True))
    ceil, rows = bool(asked.attr("ceil_mode", 0)), zip(sizes, kernel, strides, dilations, low, high, strict=True)
    counts = [window(n, k, s, d, (p, q), ceil) for n, k, s, d, p, q in rows]
    return tuple(f"windows_{i}" if isinstance(n, str) else n for i, n in enumerate(counts))


def convolved(asked: AskedNode, kernel: int) -> tuple[Size, ...]:
    """The shape of a convolution of the first operand with that of a number."""
    w = asked.shape(kernel)
    return (asked.shape(0)[0], w[0], *spatial(asked, w[2:]))


@ONNX_TYPES("Col2Im")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, (batch, rows, _) = asked.like(0)
    block, image = asked.integers(2), asked.integers(1)
    if not asked.given(1) or not isinstance(asked.shape(1)[0], int):
        raise Unsupported("Col2Im to an image of unknown rank")
    sizes = [f"size_{i}" for i in range(int(asked.shape(1)[0]))] if image is None else image
    return [(dtype, (batch, "channels" if block is None else rows // dim_product(block), *sizes))]


# ------------------------------------------------------------ products


def matrix_product(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Size, ...]:
    """numpy's matmul."""
    left, right = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
    rows = () if len(a) == 1 else left[-2:-1]
    columns = () if len(b) == 1 else right[-1:]
    return (*broadcast(left[:-2], right[:-2]), *rows, *columns)


ONNX_TYPES.table(
    {
        "MatMulInteger": lambda asked: [("int32", matrix_product(asked.shape(0), asked.shape(1)))],
        "QLinearMatMul": lambda asked: [(asked.dtype(7), matrix_product(asked.shape(0), asked.shape(3)))],
        "Det": lambda asked: [(asked.dtype(0), asked.shape(0)[:-2])],
    }
)


# ------------------------------------------------------------ losses


ONNX_TYPES.table(
    {
        "NegativeLogLikelihoodLoss": lambda asked: [
            (asked.dtype(0), asked.shape(1) if asked.attr("reduction", "mean") == "none" else ())
        ],
        "SoftmaxCrossEntropyLoss": lambda asked: [
            (asked.dtype(0), asked.shape(1) if asked.attr("reduction", "mean") == "none" else ()),
            asked.like(0),
        ],
    }
)


# ------------------------------------------------------------ sequences over time


@ONNX_TYPES("LSTM", "GRU", "RNN")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """X is (steps, batch, n), or (batch, steps, n) with layout 1; the weights of the state are
    (directions, ..., hidden)."""
    dtype, (first, second, _) = asked.like(0)
    directions = 2 if asked.attr("direction", "forward") == "bidirectional" else 1
    hidden: Dim = asked.attr("hidden_size") or asked.shape(2)[2]
    last: TypedOutput
    if asked.attr("layout", 0):
        last = dtype, (first, directions, hidden)
        return [(dtype, (first, second, directions, hidden)), last, last]
    last = dtype, (directions, second, hidden)
    return [(dtype, (first, directions, second, hidden)), last, last]


# ------------------------------------------------------------ signals


@ONNX_TYPES("HannWindow", "HammingWindow", "BlackmanWindow")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    size = asked.integers(0)
    return [(numbered(asked, "output_datatype", "float32"), ("size",) if size is None else (size[0],))]


@ONNX_TYPES("MelWeightMatrix")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    bins, length = asked.integers(0), asked.integers(1)
    rows: Size = "frequencies" if length is None else length[0] // 2 + 1
    return [(numbered(asked, "output_datatype", "float32"), (rows, "bins" if bins is None else bins[0]))]


@ONNX_TYPES("DFT")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    inverse, onesided = asked.attr("inverse", 0), asked.attr("onesided", 0)
    if asked.opset < 20:
        axis: int | None = on_axis(asked.attr("axis", 1), len(shape))
    else:
        given = asked.integers(2) if asked.given(2) else (-2,)
        axis = None if given is None else on_axis(int(given[0]), len(shape))
    if axis is None:  # it is computed
        rest = tuple(n if i == 0 else f"size_{i}" for i, n in enumerate(shape[:-1]))
        return [(dtype, (*rest, 1 if inverse and onesided else 2))]
    length = asked.integers(1) if asked.given(1) else (shape[axis],)
    n: Size = "frequencies" if length is None else length[0]
    if onesided and not inverse and not isinstance(n, str):
        n = n // 2 + 1
    if inverse and onesided and not asked.given(1):
        n = "samples"
    return [(dtype, (*resized_at(shape[:-1], axis, n), 1 if inverse and onesided else 2))]


@ONNX_TYPES("STFT")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, (batch, samples, *_) = asked.like(0)
    step = asked.integers(1)
    length: Sequence[Dim] | None = asked.integers(3) if asked.given(3) else asked.shape(2)[:1]
    bins: Size = "frequencies"
    if length is not None:
        bins = length[0] // 2 + 1 if asked.attr("onesided", 1) else length[0]
    known = step is not None and length is not None
    frames: Size = (samples - length[0]) // step[0] + 1 if known and step and length else "frames"
    return [(dtype, (batch, frames, bins, 2))]
