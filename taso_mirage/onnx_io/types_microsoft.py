"""Types of ONNX Runtime's own operators, which exporters and its optimizers write."""

from __future__ import annotations

from collections.abc import Sequence

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.onnx_io.typed_nodes import AskedNode, Size, TypedOutput, TypeRules, broadcast, resized_at
from taso_mirage.onnx_io.types_onnx import convolved, matrix_product

MICROSOFT_TYPES = TypeRules("com.microsoft")


MICROSOFT_TYPES.table(
    {
        (
            "Gelu FastGelu BiasGelu QuickGelu BiasAdd BiasSoftmax GroupNorm RotaryEmbedding QLinearSigmoid "
            "QLinearLeakyRelu QLinearSoftmax Inverse Trilu MoE QMoE NGramRepeatBlock"
        ): lambda asked: [asked.like(0)],
        "BiasSplitGelu": lambda asked: [(asked.dtype(0), (*asked.shape(0)[:-1], asked.shape(0)[-1] // 2))],
        "SkipGroupNorm": lambda asked: [asked.like(0), asked.like(0)],
    }
)


@MICROSOFT_TYPES("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """The result, two statistics, and the sum that was normalized."""
    statistics = "float32", (*asked.shape(0)[:-1], 1)
    return [asked.like(0), statistics, statistics, asked.like(0)]


@MICROSOFT_TYPES("EmbedLayerNormalization")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    batch, length = asked.shape(0)
    embedded = asked.dtype(2), (batch, length, asked.shape(2)[1])
    return [embedded, ("int32", (batch,)), embedded]


# ------------------------------------------------------------ products


def _product(asked: AskedNode) -> tuple[Size, ...]:
    a, b = asked.shape(0), asked.shape(1)
    if asked.attr("transBatchA", 0) or asked.attr("transBatchB", 0):
        raise Unsupported("transposed batches")
    a = (*a[:-2], a[-1], a[-2]) if asked.attr("transA", 0) and len(a) > 1 else a
    b = (*b[:-2], b[-1], b[-2]) if asked.attr("transB", 0) and len(b) > 1 else b
    return matrix_product(a, b)


MICROSOFT_TYPES.table(
    {
        "FusedMatMul TransposeMatMul FusedGemm": lambda asked: [(asked.dtype(0), _product(asked))],
        "MatMulIntegerToFloat": lambda asked: [(asked.dtype(2), matrix_product(asked.shape(0), asked.shape(1)))],
        "DynamicQuantizeMatMul": lambda asked: [(asked.dtype(0), matrix_product(asked.shape(0), asked.shape(1)))],
        "MatMulNBits MatMulBnb4": lambda asked: [(asked.dtype(0), (*asked.shape(0)[:-1], asked.attr("N")))],
        "FusedConv": lambda asked: [(asked.dtype(0), convolved(asked, 1))],
        "QLinearAdd QLinearMul": lambda asked: [(asked.dtype(0), broadcast(asked.shape(0), asked.shape(3)))],
        "QuantizeLinear": lambda asked: [(asked.dtype(2) if asked.given(2) else "uint8", asked.shape(0))],
        "DequantizeLinear": lambda asked: [(asked.dtype(1), asked.shape(0))],
    }
)


@MICROSOFT_TYPES("DynamicQuantizeLSTM")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """X is (steps, batch, n); the weights of the state are (directions, hidden, ...)."""
    dtype, (steps, batch, _) = asked.like(0)
    directions, hidden = asked.shape(2)[:2]
    last: TypedOutput = dtype, (directions, batch, hidden)
    return [(dtype, (steps, directions, batch, hidden)), last, last]


@MICROSOFT_TYPES("QAttention")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """The result, and keys and values with those of the past."""
    batch, length, _ = asked.shape(0)
    hidden, heads = asked.shape(2)[0] // 3, asked.attr("num_heads")
    past = asked.shape(8)[3] if asked.given(8) else 0
    dtype = asked.dtype(2)
    return [(dtype, (batch, length, hidden)), (dtype, (2, batch, heads, past + length, hidden // heads))]


@MICROSOFT_TYPES("QLinearConcat")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    shapes = [asked.shape(i) for i in range(2, len(asked.call.args), 3)]
    axis = asked.axis(0, len(shapes[0]))
    total: Dim = 0
    for shape in shapes:
        total = total + shape[axis]
    return [(asked.dtype(2), resized_at(shapes[0], axis, total))]


# ------------------------------------------------------------ attention


def _total(asked: AskedNode, past: int, length: Dim, at: int, shared: int) -> Size:
    """The positions of a present cache: that of the past is `shared` and has room, or new ones are
    put behind it."""
    if not asked.given(past):
        return length
    before = asked.shape(past)[at]
    return before if asked.given(shared) else before + length


@MICROSOFT_TYPES("MultiHeadAttention")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """query (batch, n, heads * width); keys and values so, or with their heads apart."""
    heads, dtype, query = asked.attr("num_heads"), *asked.like(0)
    if len(query) != 3 or asked.rank(1) == 5:
        raise Unsupported("packed queries, keys and values")
    (batch, n, hidden), key, value = query, asked.shape(1), asked.shape(2)
    length, width = key[1 if len(key) == 3 else 2], hidden // heads
    deep = value[2] // heads if len(value) == 3 else value[3]
    total = _total(asked, 6, length, 2, 8)
    present = (dtype, (batch, heads, total, width)), (dtype, (batch, heads, total, deep))
    return [(dtype, (batch, n, heads * deep)), *present, (dtype, (batch, heads, n, total))]


@MICROSOFT_TYPES("GroupQueryAttention")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """The present cache has as many positions as the operand `total_sequence_length` says, or as
    the past, if that has more."""
    heads, pairs = asked.attr("num_heads"), asked.attr("kv_num_heads")
    dtype, (batch, n, hidden) = asked.like(0)
    width = hidden // heads if asked.given(1) else hidden // (heads + 2 * pairs)
    past: Dim = asked.shape(3)[2] if asked.given(3) else 0
    given = asked.integers(6)
    total: Size = "total" if given is None else given[0]
    if isinstance(past, int) and isinstance(total, int):
        total = max(past, total)
    elif total not in (past, past + n) and past != 0:
        total = "total"
    cache = asked.dtype(3) if asked.given(3) else dtype
    present = cache, (batch, pairs, total, width)
    return [(dtype, (batch, n, heads * width)), present, present]


@MICROSOFT_TYPES("Attention")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    heads, dtype, (batch, n, _) = asked.attr("num_heads"), *asked.like(0)
    hidden: Sequence[Dim] = asked.attr("qkv_hidden_sizes") or (asked.shape(1)[1] // 3,) * 3
    total = _total(asked, 4, n, 3, 6)
    return [(dtype, (batch, n, hidden[2])), (dtype, (2, batch, heads, total, hidden[1] // heads))]
