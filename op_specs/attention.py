"""Scaled dot-product attention, defined over other operators."""

import math

import numpy as np

from op_specs.activations import tanh
from op_specs.arithmetic import add, div, mul
from op_specs.cast import DTYPES, cast
from op_specs.compare_logic import equal, less_or_equal, where
from op_specs.concat import concat
from op_specs.cumsum import cumsum
from op_specs.expand import expand
from op_specs.matmul import matmul
from op_specs.reductions import reduce_max
from op_specs.reshape import reshape
from op_specs.softmax import softmax
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import ABSENT, Node, numpy_dtype
from taso_mirage.operators.ops import Call, Op, get, op


@op(onnx="Attention", since=23)
def attention(
    xp,
    q,
    k,
    v,
    mask=None,
    *,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
):
    """(b,h,s,d), (b,g,t,d), (b,g,t,e) -> (b,h,s,e), or (b,s,h*d), ... -> (b,s,h*e): softmax(scale *
    q k' + mask) v

    Heads of k and v serve h/g neighbouring heads of q. A mask is boolean (true: attend) or is
    added; a query that may attend nothing gives 0. Causal: query i sees the past and the keys up to
    i.
    """
    heads = (q_num_heads, kv_num_heads)
    options = (is_causal, heads, scale, softcap, softmax_precision)
    return _attend(xp, q, k, v, mask, None, None, options, 0)[0]


@op(onnx="Attention", since=23)
def attention_cached(
    xp,
    q,
    k,
    v,
    mask=None,
    past_key=None,
    past_value=None,
    *,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
):
    """attention that also returns the keys and values, the past ones first"""
    heads = (q_num_heads, kv_num_heads)
    options = (is_causal, heads, scale, softcap, softmax_precision)
    return _attend(xp, q, k, v, mask, past_key, past_value, options, 0)[:3]


@op(onnx="Attention", since=23)
def attention_traced(
    xp,
    q,
    k,
    v,
    mask=None,
    past_key=None,
    past_value=None,
    *,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    qk_matmul_output_mode: int = 0,
):
    """attention_cached that also returns the scores: scaled, after softcap (1), after the mask (2),
    after softmax (3)"""
    heads = (q_num_heads, kv_num_heads)
    options = (is_causal, heads, scale, softcap, softmax_precision)
    return _attend(xp, q, k, v, mask, past_key, past_value, options, qk_matmul_output_mode)


def _attend(xp, q, k, v, mask, past_key, past_value, options, mode):
    causal, (q_heads, kv_heads), scale, softcap, precision = options
    if causal not in (0, 1):
        raise IllTyped(f"causal is {causal}; it is 0 or 1")
    flat = xp.rank(q) == 3
    if flat:
        q, k, v = split_heads(xp, q, q_heads), split_heads(xp, k, kv_heads), split_heads(xp, v, kv_heads)
    for x, heads in ((q, q_heads), (k, kv_heads), (v, kv_heads)):
        if xp.rank(x) != 4 or (heads is not None and xp.shape(x)[1] != heads):
            raise IllTyped(f"{heads} heads for a tensor of shape {xp.shape(x)}")
    if xp.shape(k)[:2] != xp.shape(v)[:2] or xp.shape(q)[0] != xp.shape(k)[0]:
        raise IllTyped(f"batches and heads of {xp.shape(q)}, {xp.shape(k)} and {xp.shape(v)} differ")
    past = 0 if past_key is None else xp.shape(past_key)[2]
    k = k if past_key is None else concat(xp, past_key, k, axis=2)
    v = v if past_value is None else concat(xp, past_value, v, axis=2)
    factor = 1 / math.sqrt(int(xp.shape(q)[3])) if scale is None else scale
    keys = transpose(xp, repeat_heads(xp, k, xp.shape(q)[1]), perm=(0, 1, 3, 2))
    scaled = matmul(xp, mul(xp, q, _precise(xp, factor, q)), keys)
    capped = _capped(xp, scaled, softcap)
    masked, weights = _weights(xp, capped, bias(xp, capped, mask, causal, past), mask, precision)
    y = matmul(xp, weights, repeat_heads(xp, v, xp.shape(q)[1]))
    return (merge_heads(xp, y) if flat else y), k, v, (scaled, capped, masked, weights)[mode]


def _precise(xp, value, like):
    """A number with twice the digits of a dtype. Kernels apply a scale to sums with more digits,
    and the product of two numbers of the dtype has twice the digits."""
    high = float(np.asarray(value, numpy_dtype(xp.dtype(like))))
    number = xp.literal(high, like)
    return number if high == value else add(xp, number, xp.literal(value - high, like))


def split_heads(xp, x, heads):
    """(b,s,h*d) -> (b,h,s,d)"""
    b, s, n = xp.shape(x)
    if heads is None or (isinstance(heads, int) and heads < 1) or n % heads != 0:
        raise IllTyped(f"{n} columns for {heads} heads")
    return transpose(xp, reshape(xp, x, shape=(b, s, heads, n // heads)), perm=(0, 2, 1, 3))


def merge_heads(xp, x):
    """(b,h,s,d) -> (b,s,h*d)"""
    b, h, s, d = xp.shape(x)
    return reshape(xp, transpose(xp, x, perm=(0, 2, 1, 3)), shape=(b, s, h * d))


def repeat_heads(xp, x, heads):
    """(b,g,t,d) -> (b,h,t,d), every head h/g times in a row"""
    b, g, t, d = xp.shape(x)
    if g == heads:
        return x
    if heads % g != 0:
        raise IllTyped(f"{heads} heads of queries for {g} heads of keys")
    each = expand(xp, reshape(xp, x, shape=(b, g, 1, t, d)), shape=(b, g, heads // g, t, d))
    return reshape(xp, each, shape=(b, heads, t, d))


def _capped(xp, scores, softcap):
    if not softcap:
        return scores
    cap = xp.literal(softcap, scores)
    return mul(xp, tanh(xp, div(xp, scores, cap)), cap)


def bias(xp, scores, mask, causal, past):
    """The summand of the scores (b,h,s,t): 0 or minus infinity, or a mask of numbers; None if there
    is none."""
    least, zero = xp.literal(-math.inf, scores), xp.literal(0, scores)
    if mask is not None and xp.shape(mask)[-2:] != xp.shape(scores)[-2:]:  # the runtime broadcasts neither
        raise IllTyped(f"a mask of shape {xp.shape(mask)} for scores of shape {xp.shape(scores)}")
    found = mask
    if mask is not None and xp.dtype(mask) == "bool":
        found = where(xp, mask, zero, least)
    if not causal:
        return found
    ones = expand(xp, xp.scalar(1, "int64"), shape=xp.shape(scores)[2:])
    last = add(xp, cumsum(xp, ones, axis=0), xp.extents((past,), scalar=True))
    frontier = where(xp, less_or_equal(xp, cumsum(xp, ones, axis=1), last), zero, least)
    return frontier if found is None else add(xp, found, frontier)


def _weights(xp, scores, added, mask, precision):
    """The scores after the mask, and their softmax; a row that is masked throughout has weights
    0."""
    if added is None:
        return scores, _softmax(xp, scores, precision)
    masked = add(xp, scores, added)
    if xp.shape(masked) != xp.shape(scores):
        raise IllTyped(f"a mask of shape {xp.shape(added)} for scores of shape {xp.shape(scores)}")
    weights = _softmax(xp, masked, precision)
    if mask is None:
        return masked, weights
    nothing = equal(xp, reduce_max(xp, added, axes=(xp.rank(added) - 1,)), xp.literal(-math.inf, added))
    return masked, where(xp, nothing, xp.literal(0, weights), weights)


def _softmax(xp, scores, precision):
    wide = DTYPES[precision] if precision else xp.dtype(scores)
    if wide == xp.dtype(scores):
        return softmax(xp, scores, axis=3)
    return cast(xp, softmax(xp, cast(xp, scores, to=wide), axis=3), to=xp.dtype(scores))


def _read(op_: Op, outputs: tuple[int, ...], call: Call) -> Node:
    if call.arg(6) is not ABSENT:
        raise Unsupported("Attention with nonpad_kv_seqlen")
    if call.outputs not in outputs or (op_ is attention and len(call.args) > 4):
        raise Unsupported(f"Attention with {call.outputs} outputs")
    _check_float64(call.arg(0))
    attrs = {k: v for k, v in call.attrs.items() if k in op_.attributes}
    if unknown := {k for k, v in call.attrs.items() if k not in attrs and k != "qk_matmul_output_mode" and v != -1}:
        raise Unsupported(f"Attention with the attribute {sorted(unknown)[0]}")
    whole = op_.term(*call.args[:6], **attrs)
    return get("item").term(whole, index=0) if call.outputs == 1 and op_ is not attention else whole


def _write(op_: Op, node: Node, opset: int) -> Call:
    _check_float64(node.args[0])
    return op_._write(node, opset)


def _check_float64(q: Node) -> None:
    if q.dtype == "float64":
        raise Unsupported("Attention of float64: the runtime scales there by numbers of single precision")


for each, outputs in ((attention, (1,)), (attention_cached, (1, 2, 3)), (attention_traced, (4,))):
    each.importer(lambda call, each=each, outputs=outputs: _read(each, outputs, call))
    each.exporter(lambda node, opset, each=each: _write(each, node, opset))
    each.example("float32[2,2,3,4]", "float32[2,2,5,4]", "float32[2,2,5,4]")
    each.example("float32[2,4,3,4]", "float32[2,2,3,4]", "float32[2,2,3,4]", is_causal=1)
    each.example("float32[2,3,8]", "float32[2,5,4]", "float32[2,5,6]", "float32[3,5]", q_num_heads=4, kv_num_heads=2)
    each.example("float32[2,2,3,4]", "float32[2,2,5,4]", "float32[2,2,5,4]", "float32[2,1,3,5]")
    each.example("float32[2,2,3,4]", "float32[2,2,3,4]", "float32[2,2,3,4]", "float32[3,3]")
    each.example("float32[1,2,3,4]", "float32[1,2,3,4]", "float32[1,2,3,4]", "bool[1,1,3,3]", scale=0.3, softcap=2.0)
for each in (attention_cached, attention_traced):
    each.example(
        "float32[1,4,2,4]",
        "float32[1,2,2,4]",
        "float32[1,2,2,4]",
        "float32[1,4,2,5]",
        "float32[1,2,3,4]",
        "float32[1,2,3,4]",
    )
for mode in (1, 2, 3):
    attention_traced.example(
        "float32[1,2,3,4]",
        "float32[1,2,5,4]",
        "float32[1,2,5,4]",
        "float32[3,5]",
        softcap=2.0,
        qk_matmul_output_mode=mode,
    )

# of float64 ONNX Runtime computes the softmax of an Attention in single precision
attention.laws("""
    matmul(mul(q, c), mul(k, d)) == mul(matmul(q, k), mul(c, d))  where is_constant(c) and is_constant(d) and size(c) == 1 \
        and size(d) == 1 and rank(c) == 0 and rank(d) == 0
    reshape(transpose(reshape(x, shape=s), perm=(0, 2, 1)), shape=t) == transpose(x, perm=(0, 1, 3, 2)) \
        where rank(x) == 4 and s == (dim(x, 0) * dim(x, 1), dim(x, 2), dim(x, 3)) \
            and t == (dim(x, 0), dim(x, 1), dim(x, 3), dim(x, 2))
    matmul(softmax(add(mul(matmul(q, transpose(k, perm=(0, 1, 3, 2))), c), *m), axis=3), v) \
        == attention(q, k, v, *m, scale=value(c)) \
        where is_constant(c) and rank(m) > 1 and shape(m)[rank(m) - 1] == dim(k, 2) \
            and shape(q)[:2] == shape(k)[:2] and shape(k)[:3] == shape(v)[:3] and dtype(q) != "float64"
    matmul(softmax(add(matmul(mul(q, c), transpose(k, perm=(0, 1, 3, 2))), *m), axis=3), v) \
        == attention(q, k, v, *m, scale=value(c)) \
        where is_constant(c) and rank(m) > 1 and shape(m)[rank(m) - 1] == dim(k, 2) \
            and shape(q)[:2] == shape(k)[:2] and shape(k)[:3] == shape(v)[:3] and dtype(q) != "float64"
    matmul(softmax(div(matmul(q, transpose(k, perm=(0, 1, 3, 2))), c), axis=3), v) \
        == attention(q, k, v, scale=1 / value(c)) \
        where value(c) in (0.5, 2.0, 4.0, 8.0, 16.0) and shape(q)[:2] == shape(k)[:2] and shape(k)[:3] == shape(v)[:3] \
            and dtype(q) != "float64"
    matmul(softmax(add(fused_matmul(q, k, alpha=a, transB=1), *m), axis=3), v) \
        == attention(q, k, v, *m, scale=a) \
        where rank(q) == 4 and rank(m) > 1 and shape(m)[rank(m) - 1] == dim(k, 2) \
            and shape(q)[:2] == shape(k)[:2] and shape(k)[:3] == shape(v)[:3] and dtype(q) != "float64"
""")
