"""Fused operators that ONNX Runtime adds to ONNX (its `com.microsoft` domain): targets for fusing transformers."""

from typing import Any

from op_specs.activations import gelu, sigmoid
from op_specs.arithmetic import add, mul
from op_specs.attention import attention
from op_specs.layer_norm import layer_norm, rms_norm
from op_specs.matmul import matmul
from op_specs.slice import slice_
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir import ABSENT, Node
from taso_mirage.ops import Call, op


@op(onnx="FusedMatMul", domain="com.microsoft", since=1)
def fused_matmul(xp, a, b, *, alpha: float = 1.0, transA: int = 0, transB: int = 0):
    """(...,m,k), (...,k,n) -> alpha * a b, with the last two axes of a or b swapped first"""
    left = _swapped(xp, a) if transA else a
    product = matmul(xp, left, _swapped(xp, b) if transB else b)
    return product if alpha == 1 else mul(xp, product, xp.literal(alpha, product))


def _swapped(xp, x):
    n = xp.rank(x)
    if n < 2:
        raise IllTyped("a vector has no axes to swap")
    return transpose(xp, x, perm=(*range(n - 2), n - 1, n - 2))


@fused_matmul.importer
def _(call: Call) -> Node:
    attrs = dict(call.attrs)
    if attrs.pop("transBatchA", 0) or attrs.pop("transBatchB", 0):
        raise Unsupported("FusedMatMul with transposed batches")
    return fused_matmul.term(*call.args, **{k: v for k, v in attrs.items() if k != "transBatchB"})


@op(onnx="SkipLayerNormalization", domain="com.microsoft", since=1)
def skip_layer_norm(xp, x, skip, scale, offset=None, bias=None, *, epsilon: float = 1e-12):
    """layer_norm(x + skip + bias, scale, offset) over the last axis"""
    total = _skip(xp, x, skip, bias, scale, offset)
    return layer_norm(xp, total, scale, offset, axis=xp.rank(x) - 1, epsilon=epsilon)


@op(onnx="SkipSimplifiedLayerNormalization", domain="com.microsoft", since=1)
def skip_rms_norm(xp, x, skip, scale, bias=None, *, epsilon: float = 1e-12):
    """rms_norm(x + skip + bias, scale) over the last axis"""
    return rms_norm(xp, _skip(xp, x, skip, bias, scale), scale, axis=xp.rank(x) - 1, epsilon=epsilon)


def _skip(xp, x, skip, bias, *scales):
    """x + skip + bias. The runtime takes ranks 2 and 3, and scales, offset and bias of the last axis only."""
    if xp.rank(x) not in (2, 3):
        raise IllTyped(f"data of rank {xp.rank(x)}; the runtime takes 2 and 3")
    if xp.shape(skip) != xp.shape(x):
        raise IllTyped(f"skip of shape {xp.shape(skip)} for {xp.shape(x)}")
    for each in (bias, *scales):
        if each is not None and xp.shape(each) != xp.shape(x)[-1:]:
            raise IllTyped(f"scale, offset or bias of shape {xp.shape(each)} for {xp.shape(x)}")
    return add(xp, x, skip) if bias is None else add(xp, add(xp, x, bias), skip)


@op(onnx="BiasGelu", domain="com.microsoft", since=1)
def bias_gelu(xp, x, bias):
    """(...,n), (n) -> gelu(x + bias)"""
    if xp.shape(bias) != xp.shape(x)[-1:]:
        raise IllTyped(f"bias of shape {xp.shape(bias)} for {xp.shape(x)}")
    return gelu(xp, add(xp, x, bias))


@op(onnx="Gelu", domain="com.microsoft", since=1)
def contrib_gelu(xp, x):
    """gelu for models before opset 20"""
    return gelu(xp, x)


@op(onnx="FastGelu", domain="com.microsoft", since=1)
def fast_gelu(xp, x, bias=None):
    """(...,n), (n) -> gelu(x + bias) by tanh"""
    if bias is not None and xp.shape(bias) != xp.shape(x)[-1:]:
        raise IllTyped(f"bias of shape {xp.shape(bias)} for {xp.shape(x)}")
    return gelu(xp, x if bias is None else add(xp, x, bias), approximate="tanh")


@op(onnx="QuickGelu", domain="com.microsoft", since=1)
def quick_gelu(xp, x, *, alpha: float = 1.702):
    """x -> x * sigmoid(alpha * x)"""
    return mul(xp, x, sigmoid(xp, x if alpha == 1 else mul(xp, x, xp.literal(alpha, x))))


def _scaled(node: Node) -> dict[str, Any]:
    if node.attr("scale") == 0:
        raise Unsupported("ONNX Runtime reads a scale of 0 as the default one")
    return {k: v for k, v in node.attrs if v is not None}


@op(onnx="MultiHeadAttention", domain="com.microsoft", since=1)
def multi_head_attention(
    xp, q, k, v, bias=None, mask=None, *, num_heads: int, scale: float | None = None, unidirectional: int = 0
):
    """(b,s,n*d), (b,t,n*d), (b,t,n*e), (2*n*d + n*e), (b,n,s,t) -> (b,s,n*e): biases are added, then attention"""
    if any(xp.rank(x) != 3 for x in (q, k, v)):
        raise IllTyped(f"data of ranks {[xp.rank(x) for x in (q, k, v)]}; all three are 3")
    if bias is not None:
        d, e = xp.shape(q)[2], xp.shape(v)[2]
        if xp.shape(bias) != (d + d + e,):
            raise IllTyped(f"bias of shape {xp.shape(bias)} for {d} + {d} + {e} columns")
        starts, ends = (0, d, d + d), (d, d + d, d + d + e)
        parts = [
            slice_(xp, bias, starts=(i,), ends=(j,), axes=(0,), steps=(1,)) for i, j in zip(starts, ends, strict=True)
        ]
        q, k, v = add(xp, q, parts[0]), add(xp, k, parts[1]), add(xp, v, parts[2])
    heads = {"q_num_heads": num_heads, "kv_num_heads": num_heads}
    return attention(xp, q, k, v, mask, is_causal=unidirectional, scale=scale, **heads)


@multi_head_attention.importer
def _(call: Call) -> Node:
    if call.outputs > 1 or any(call.arg(i) is not ABSENT for i in (4, 6, 7, 8, 9)):
        raise Unsupported("MultiHeadAttention with a key padding mask, a cache, or several outputs")
    if any(call.arg(i) is ABSENT or call.arg(i).tensor.rank != 3 for i in range(3)):
        raise Unsupported("MultiHeadAttention with packed operands")
    attrs = {k: v for k, v in call.attrs.items() if k != "mask_filter_value" and not (k == "scale" and v == 0)}
    return multi_head_attention.term(*call.args[:4], call.arg(5), **attrs)


@multi_head_attention.exporter
def _(node: Node, opset: int) -> Call:
    args = (*node.args, ABSENT, ABSENT)[:5]
    attrs = _scaled(node)
    given = args[:4] if args[4] is ABSENT else (*args[:4], ABSENT, args[4])
    return Call("MultiHeadAttention", given, attrs, opset, "com.microsoft")


@op(onnx="Attention", domain="com.microsoft", since=1)
def packed_attention(xp, x, w, b, mask=None, *, num_heads: int, scale: float | None = None):
    """(b,s,k), (k,3*n*d), (3*n*d), (b,n,s,s) -> (b,s,n*d): self-attention of x w + b, split in three"""
    if xp.rank(x) != 3 or xp.rank(w) != 2 or xp.shape(b) != xp.shape(w)[1:]:
        raise IllTyped(f"weights {xp.shape(w)} and bias {xp.shape(b)} for data {xp.shape(x)}")
    width = xp.shape(w)[1] // 3
    packed = add(xp, matmul(xp, x, w), b)
    ends = ((0, width), (width, width + width), (width + width, width * 3))
    q, k, v = (slice_(xp, packed, starts=(i,), ends=(j,), axes=(2,), steps=(1,)) for i, j in ends)
    return attention(xp, q, k, v, mask, scale=scale, q_num_heads=num_heads, kv_num_heads=num_heads)


@packed_attention.importer
def _(call: Call) -> Node:
    if call.outputs > 1 or any(call.arg(i) is not ABSENT for i in (3, 4, 6)) or call.arg(2) is ABSENT:
        raise Unsupported("Attention of com.microsoft with a padding mask, a cache, several outputs or no bias")
    if known := call.attrs.keys() - {"num_heads", "scale", "mask_filter_value"}:
        raise Unsupported(f"Attention of com.microsoft with {', '.join(sorted(known))}")
    attrs = {k: v for k, v in call.attrs.items() if k != "mask_filter_value" and not (k == "scale" and v == 0)}
    return packed_attention.term(*call.args[:3], call.arg(5), **attrs)


@packed_attention.exporter
def _(node: Node, opset: int) -> Call:
    attrs = _scaled(node)
    bias = (ABSENT, ABSENT, node.args[3]) if len(node.args) > 3 else ()
    return Call("Attention", (*node.args[:3], *bias), attrs, opset, "com.microsoft")


packed_attention.example("float32[2,3,4]", "float32[4,12]", "float32[12]", num_heads=2)
packed_attention.example("float32[1,5,6]", "float32[6,12]", "float32[12]", num_heads=2, scale=0.5)
packed_attention.example("float32[2,3,4]", "float32[4,12]", "float32[12]", "float32[2,2,3,3]", num_heads=2)
packed_attention.example("float32[2,3,4]", "float32[4,12]", "float32[12]", "float32[1,1,3,3]", num_heads=2, scale=0.7)
fused_matmul.example("float32[2,3,4]", "float32[2,4,5]")
fused_matmul.example("float32[2,4,3]", "float32[2,5,4]", transA=1, transB=1, alpha=0.5)
fused_matmul.example("float32[2,3,3,4]", "float32[2,3,5,4]", transB=1, alpha=2.0)
skip_layer_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", "float32[4]")
skip_layer_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", epsilon=0.01)
skip_layer_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", "float32[4]", "float32[4]", epsilon=1e-5)
skip_rms_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", epsilon=1e-5)
skip_rms_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", "float32[4]", epsilon=1e-5)
bias_gelu.example("float32[2,3,4]", "float32[4]")
contrib_gelu.example("float32[2,3]")
fast_gelu.example("float32[2,3,4]")
fast_gelu.example("float32[2,3,4]", "float32[4]")
quick_gelu.example("float32[2,3]")
quick_gelu.example("float32[2,3]", alpha=1.0)
multi_head_attention.example("float32[2,3,8]", "float32[2,5,8]", "float32[2,5,8]", num_heads=2)
multi_head_attention.example("float32[2,3,6]", "float32[2,3,6]", "float32[2,3,6]", num_heads=2)
multi_head_attention.example("float32[1,5,4]", "float32[1,5,4]", "float32[1,5,4]", num_heads=2, scale=0.5)
multi_head_attention.example("float32[2,3,8]", "float32[2,3,8]", "float32[2,3,8]", num_heads=4, unidirectional=1)
multi_head_attention.example(
    "float32[2,3,8]", "float32[2,5,8]", "float32[2,5,8]", "float32[24]", num_heads=2, scale=0.7
)
multi_head_attention.example(
    "float32[2,3,8]", "float32[2,5,8]", "float32[2,5,4]", None, "float32[2,2,3,5]", num_heads=2
)
multi_head_attention.example(
    "float32[2,3,8]", "float32[2,5,8]", "float32[2,5,8]", "float32[24]", "float32[1,1,3,5]", num_heads=2
)

multi_head_attention.example(
    "float32[2,3,8]", "float32[2,3,8]", "float32[2,3,8]", "float32[24]", "float32[1,1,3,3]", num_heads=2, scale=0.5
)
multi_head_attention.example(
    "float32[2,3,8]", "float32[2,3,8]", "float32[2,3,8]", None, "float32[2,2,3,3]", num_heads=2, scale=0.5
)
add.example("float32[2,3,8]", "float32[8]")
matmul.example("float32[2,3,8]", "float32[8,8]")

fused_matmul.laws("""
    matmul(transpose(a, perm=p), b) \
        == fused_matmul(a, b, transA=1) \
        where rank(a) > 1 and rank(b) > 1 and p == (0, 1, 2, 3)[:rank(a) - 2] + (rank(a) - 1, rank(a) - 2)
    matmul(a, transpose(b, perm=p)) \
        == fused_matmul(a, b, transB=1) \
        where rank(a) > 1 and rank(b) > 1 and p == (0, 1, 2, 3)[:rank(b) - 2] + (rank(b) - 1, rank(b) - 2)
    mul(matmul(a, b), c) \
        == fused_matmul(a, b, alpha=value(c)) \
        where is_constant(c) and rank(a) > 1 and rank(b) > 1 and dtype(a) == "float32"
    div(matmul(a, b), c) \
        == fused_matmul(a, b, alpha=1 / value(c)) \
        where value(c) in (0.5, 2.0, 4.0, 8.0, 16.0) and rank(a) > 1 and rank(b) > 1 and dtype(a) == "float32"
    div(fused_matmul(a, b, alpha=1.0, **t), c) \
        == fused_matmul(a, b, alpha=1 / value(c), **t) \
        where value(c) in (0.5, 2.0, 4.0, 8.0, 16.0)
    mul(fused_matmul(a, b, **t), c) \
        == fused_matmul(a, b, alpha=value(c), transA=t[1][1], transB=t[2][1]) \
        where is_constant(c) and t[0][1] == 1.0
    fused_matmul(transpose(a, perm=p), b, transA=0, **t) \
        == fused_matmul(a, b, transA=1, **t) \
        where rank(a) > 1 and p == (0, 1, 2, 3)[:rank(a) - 2] + (rank(a) - 1, rank(a) - 2)
    fused_matmul(a, transpose(b, perm=p), transB=0, **t) \
        == fused_matmul(a, b, transB=1, **t) \
        where rank(b) > 1 and p == (0, 1, 2, 3)[:rank(b) - 2] + (rank(b) - 1, rank(b) - 2)
""")
skip_rms_norm.laws("""
    mul(div(add(x, y), sqrt(add(reduce_mean(pow(add(x, y), 2), axes=(2,)), e))), g) \
        == skip_rms_norm(x, y, g, epsilon=value(e)) \
        where rank(x) == 3 and is_constant(e) and shape(x) == shape(y) and shape(g) == (dim(x, 2),) \
            and dtype(x) == "float32"
    mul(div(add(x, y), sqrt(add(reduce_mean(mul(add(x, y), add(x, y)), axes=(2,)), e))), g) \
        == skip_rms_norm(x, y, g, epsilon=value(e)) \
        where rank(x) == 3 and is_constant(e) and shape(x) == shape(y) and shape(g) == (dim(x, 2),) \
            and dtype(x) == "float32"
""")
bias_gelu.laws("""
    contrib_gelu(add(x, b)) \
        == bias_gelu(x, b) \
        where rank(x) > 1 and shape(b) == shape(x)[rank(x) - 1:] and dtype(x) == "float32"
""")
contrib_gelu.laws("""
    mul(mul(x, 0.5), add(erf(mul(x, 0.7071067690849304)), 1)) == contrib_gelu(x)  where dtype(x) == "float32"
    mul(mul(x, add(erf(mul(x, 0.7071067690849304)), 1)), 0.5) == contrib_gelu(x)  where dtype(x) == "float32"
    mul(x, mul(add(erf(mul(x, 0.7071067690849304)), 1), 0.5)) == contrib_gelu(x)  where dtype(x) == "float32"
""")
fast_gelu.laws("""
    fast_gelu(add(x, b)) == fast_gelu(x, b)  where rank(x) > 1 and shape(b) == shape(x)[rank(x) - 1:]
    mul(mul(x, 0.5), add(tanh(mul(add(x, mul(pow(x, 3), 0.044714998453855515)), 0.7978845834732056)), 1)) \
        == fast_gelu(x) \
        where dtype(x) == "float32"
    mul(mul(x, 0.5), add(tanh(mul(add(x, mul(mul(mul(x, x), x), 0.044714998453855515)), 0.7978845834732056)), 1)) \
        == fast_gelu(x) \
        where dtype(x) == "float32"
""")
quick_gelu.laws("""
    mul(x, sigmoid(x)) == quick_gelu(x, alpha=1.0)  where dtype(x) == "float32"
    mul(x, sigmoid(mul(x, c))) == quick_gelu(x, alpha=value(c))  where is_constant(c) and dtype(x) == "float32"
""")
multi_head_attention.laws("""
    reshape(transpose(matmul(softmax(mul(matmul(transpose(reshape(q, shape=s), perm=(0, 2, 1, 3)), \
        transpose(reshape(k, shape=t), perm=(0, 2, 3, 1))), c), axis=3), transpose(reshape(v, shape=u), perm=(0, 2, 1, \
        3))), perm=(0, 2, 1, 3)), shape=o) \
        == multi_head_attention(q, k, v, num_heads=s[2], scale=value(c)) \
        where is_constant(c) and rank(q) == rank(k) == rank(v) == 3 and s[:2] == shape(q)[:2] \
            and t[:2] == shape(k)[:2] and u[:2] == shape(v)[:2] and t[2] == s[2] and u[2] == s[2] and t[1] == u[1] \
            and t[0] == s[0] and u[0] == s[0] and dtype(q) == "float32"
    reshape(transpose(matmul(softmax(add(mul(matmul(transpose(reshape(q, shape=s), perm=(0, 2, 1, 3)), \
        transpose(reshape(k, shape=t), perm=(0, 2, 3, 1))), c), m), axis=3), transpose(reshape(v, shape=u), perm=(0, 2, \
        1, 3))), perm=(0, 2, 1, 3)), shape=o) \
        == multi_head_attention(q, k, v, None, m, num_heads=s[2], scale=value(c)) \
        where is_constant(c) and rank(m) == 4 and rank(q) == rank(k) == rank(v) == 3 and s[:2] == shape(q)[:2] \
            and t[:2] == shape(k)[:2] and u[:2] == shape(v)[:2] and t[2] == s[2] and u[2] == s[2] and t[1] == u[1] \
            and t[0] == s[0] and u[0] == s[0] and dtype(q) == "float32" \
            and shape(m)[2:] == (dim(q, 1), dim(k, 1)) and shape(m)[0] in (1, dim(q, 0)) and shape(m)[1] in (1, s[2])
    reshape(transpose(matmul(softmax(matmul(mul(transpose(reshape(q, shape=s), perm=(0, 2, 1, 3)), c), \
        mul(transpose(reshape(k, shape=t), perm=(0, 2, 3, 1)), d)), axis=3), transpose(reshape(v, shape=u), perm=(0, 2, 1, \
        3))), perm=(0, 2, 1, 3)), shape=o) \
        == multi_head_attention(q, k, v, num_heads=s[2], scale=value(c) * value(d)) \
        where is_constant(c) and is_constant(d) and size(c) == 1 and size(d) == 1 \
            and rank(q) == rank(k) == rank(v) == 3 and s[:2] == shape(q)[:2] \
            and t[:2] == shape(k)[:2] and u[:2] == shape(v)[:2] and t[2] == s[2] and u[2] == s[2] and t[1] == u[1] \
            and t[0] == s[0] and u[0] == s[0] and dtype(q) == "float32"
    reshape(transpose(matmul(softmax(add(matmul(mul(transpose(reshape(q, shape=s), perm=(0, 2, 1, 3)), c), \
        mul(transpose(reshape(k, shape=t), perm=(0, 2, 3, 1)), d)), m), axis=3), transpose(reshape(v, shape=u), perm=(0, 2, \
        1, 3))), perm=(0, 2, 1, 3)), shape=o) \
        == multi_head_attention(q, k, v, None, m, num_heads=s[2], scale=value(c) * value(d)) \
        where is_constant(c) and is_constant(d) and size(c) == 1 and size(d) == 1 \
            and rank(m) == 4 and rank(q) == rank(k) == rank(v) == 3 and s[:2] == shape(q)[:2] \
            and t[:2] == shape(k)[:2] and u[:2] == shape(v)[:2] and t[2] == s[2] and u[2] == s[2] and t[1] == u[1] \
            and t[0] == s[0] and u[0] == s[0] and dtype(q) == "float32" \
            and shape(m)[2:] == (dim(q, 1), dim(k, 1)) and shape(m)[0] in (1, dim(q, 0)) and shape(m)[1] in (1, s[2])
    multi_head_attention(add(q, b), add(k, c), add(v, d), None, m, **a) \
        == multi_head_attention(q, k, v, concat(b, c, d, axis=0), m, **a) \
        where shape(b) == shape(q)[2:] and shape(c) == shape(k)[2:] and shape(d) == shape(v)[2:] and is_weight(b) \
            and is_weight(c) and is_weight(d)
    multi_head_attention(add(q, b), add(k, c), add(v, d), **a) \
        == multi_head_attention(q, k, v, concat(b, c, d, axis=0), **a) \
        where shape(b) == shape(q)[2:] and shape(c) == shape(k)[2:] and shape(d) == shape(v)[2:] and is_weight(b) \
            and is_weight(c) and is_weight(d)
    multi_head_attention(matmul(x, u), matmul(x, v), matmul(x, w), b, m, unidirectional=0, **a) \
        == packed_attention(x, concat(u, v, w, axis=1), b, m, **a) \
        where rank(u) == rank(v) == rank(w) == 2 and is_weight(u) and is_weight(v) and is_weight(w) and is_weight(b) \
            and shape(u) == shape(v) == shape(w)
    multi_head_attention(matmul(x, u), matmul(x, v), matmul(x, w), b, unidirectional=0, **a) \
        == packed_attention(x, concat(u, v, w, axis=1), b, **a) \
        where rank(u) == rank(v) == rank(w) == 2 and is_weight(u) and is_weight(v) and is_weight(w) and is_weight(b) \
            and shape(u) == shape(v) == shape(w)
""")
