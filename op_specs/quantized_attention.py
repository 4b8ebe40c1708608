"""Attention of quantized numbers, of ONNX Runtime's own domain: the product with the packed weights
is one of integers, the rest is in floats."""

import numpy as np

from op_specs.attention import attention
from op_specs.quantized_products import matmul_integer_to_float
from op_specs.slice import slice_
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import ABSENT, Node
from taso_mirage.operators.ops import Call, op

FILTER = -10000.0
"""The summand of the scores of keys that are masked."""


@op(onnx="QAttention", domain="com.microsoft", since=1, quantized=True)
def qattention(
    xp,
    x,
    w,
    bias,
    x_scale,
    w_scale,
    mask=None,
    x_zero=None,
    w_zero=None,
    *,
    num_heads: int,
    unidirectional: int = 0,
    scale: float | None = None,
    mask_filter_value: float = FILTER,
):
    """(b,s,k), (k,3*n*d), (3*n*d), of all, of columns, (b,s) or (b) -> (b,s,n*d): self-attention of
    the product, scaled, and a bias, split in three; keys whose mask is 0, or which come after so
    many, are masked"""
    if xp.rank(x) != 3 or xp.rank(w) != 2 or xp.shape(bias) != xp.shape(w)[1:]:
        raise IllTyped(f"weights {xp.shape(w)} and bias {xp.shape(bias)} for data {xp.shape(x)}")
    packed = matmul_integer_to_float(xp, x, w, x_scale, w_scale, x_zero, w_zero, bias)
    width = xp.shape(w)[1] // 3
    ends = ((0, width), (width, width + width), (width + width, width * 3))
    q, k, v = (slice_(xp, packed, starts=(i,), ends=(j,), axes=(2,), steps=(1,)) for i, j in ends)
    added = None if mask is None else _added(xp, mask, xp.shape(x), packed, mask_filter_value)
    heads = {"q_num_heads": num_heads, "kv_num_heads": num_heads}
    return attention(xp, q, k, v, added, is_causal=unidirectional, scale=scale, **heads)


def _added(xp, mask, shape, like, value: float):
    """The summand of a mask for scores (b,n,s,t)."""
    if xp.shape(mask) not in (shape[:2], shape[:1]):
        raise IllTyped(f"a mask of shape {xp.shape(mask)} for data of shape {shape}")
    batch, keys = shape[:2]
    if xp.rank(mask) == 2:
        kept = xp.map(np.greater, xp.reshape(mask, (batch, 1, 1, keys)), xp.literal(0, mask))
    else:
        kept = xp.map(np.less, xp.iota(keys, xp.dtype(mask)), xp.reshape(mask, (batch, 1, 1, 1)))
    each = xp.map(np.where, kept, xp.literal(0, like), xp.literal(value, like))
    return xp.expand(each, (batch, 1, keys, keys))


@qattention.importer
def _(call: Call) -> Node:
    if call.outputs > 1 or call.arg(8) is not ABSENT:
        raise Unsupported("QAttention with a cache")
    if call.attrs.get("do_rotary", 0) or call.attrs.get("past_present_share_buffer", 0):
        raise Unsupported("QAttention with rotary embedding, or a shared buffer")
    mask, shape = call.arg(5), call.arg(0).shape
    if mask is not ABSENT and mask.shape not in (shape[:2], shape[:1]):
        raise Unsupported(f"QAttention with a mask of shape {mask.shape} for data of shape {shape}")
    attrs = {k: v for k, v in call.attrs.items() if k in qattention.attributes and not (k == "scale" and v == 0)}
    return qattention.term(*call.args[:8], **attrs)


@qattention.exporter
def _(node: Node, opset: int) -> Call:
    attrs = {k: v for k, v in node.attrs if v is not None}
    return Call("QAttention", node.args, attrs, opset, "com.microsoft")


_U8, _I8, _F = "uint8[()]", "int8[()]", "float32[()]"
qattention.example("uint8[2,3,4]", "int8[4,12]", "float32[12]", _F, _F, None, _U8, _I8, num_heads=2)
qattention.example(
    *("uint8[2,3,4]", "uint8[4,12]", "float32[12]", _F, "float32[12]", "int32[2,3]", _U8, "uint8[12]"),
    **{"num_heads": 2, "scale": 0.7},
)
qattention.example("uint8[2,3,4]", "int8[4,12]", "float32[12]", _F, _F, "int32[2]", num_heads=2)
