"""Fused operators that ONNX Runtime adds to ONNX (its `com.microsoft` domain): targets for fusing
transformers."""

from op_specs.activations import gelu, sigmoid
from op_specs.arithmetic import add, mul
from op_specs.layer_norm import layer_norm, rms_norm
from op_specs.matmul import matmul
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, Op, op


@op(onnx="FusedMatMul", domain="com.microsoft", since=1)
def fused_matmul(xp, a, b, *, alpha: float = 1.0, transA: int = 0, transB: int = 0):
    """(...,m,k), (...,k,n) -> alpha * a b, with the last two axes of a or b swapped first"""
    if transA and xp.rank(a) > 2 and xp.shape(a)[-2] == 0:
        raise IllTyped("batches of sums of nothing, which the runtime leaves unset")
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


@op(onnx="SkipLayerNormalization", domain="com.microsoft", since=1, commutative=True)
def skip_layer_norm(xp, x, skip, scale, offset=None, bias=None, *, epsilon: float = 1e-12):
    """layer_norm(x + skip + bias, scale, offset) over the last axis"""
    total = _skip(xp, x, skip, bias, scale, offset)
    return layer_norm(xp, total, scale, offset, axis=xp.rank(x) - 1, epsilon=epsilon)


@op(onnx="SkipSimplifiedLayerNormalization", domain="com.microsoft", since=1, commutative=True)
def skip_rms_norm(xp, x, skip, scale, bias=None, *, epsilon: float = 1e-12):
    """rms_norm(x + skip + bias, scale) over the last axis"""
    return rms_norm(xp, _skip(xp, x, skip, bias, scale), scale, axis=xp.rank(x) - 1, epsilon=epsilon)


@op(onnx="SkipLayerNormalization", domain="com.microsoft", since=1, commutative=True)
def skip_layer_norm_sum(xp, x, skip, scale, offset=None, bias=None, *, epsilon: float = 1e-12):
    """layer_norm(x + skip + bias, scale, offset) over the last axis, and x + skip + bias"""
    return skip_layer_norm(xp, x, skip, scale, offset, bias, epsilon=epsilon), _skip(xp, x, skip, bias)


@op(onnx="SkipSimplifiedLayerNormalization", domain="com.microsoft", since=1, commutative=True)
def skip_rms_norm_sum(xp, x, skip, scale, bias=None, *, epsilon: float = 1e-12):
    """rms_norm(x + skip + bias, scale) over the last axis, and x + skip + bias"""
    return skip_rms_norm(xp, x, skip, scale, bias, epsilon=epsilon), _skip(xp, x, skip, bias)


def _with_sum(op_: Op) -> None:
    """Reading and writing the form whose first and fourth outputs are used; the two between are for
    training."""

    @op_.importer
    def _(call: Call) -> Node:
        if (call.outputs, call.blank) != (4, (1, 2)):
            raise Unsupported(f"{call.op_type} with other outputs than the first and the fourth")
        return op_.term(*call.args, **call.attrs)

    @op_.exporter
    def _(node: Node, opset: int) -> Call:
        return Call(op_.onnx, node.args, dict(node.attrs), opset, op_.domain, outputs=4, blank=(1, 2))


_with_sum(skip_layer_norm_sum)
_with_sum(skip_rms_norm_sum)


def _skip(xp, x, skip, bias, *scales):
    """x + skip + bias.

    The runtime takes ranks 2 and 3, and scales, offset and bias of the last axis only.
    """
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
    if xp.rank(x) == 0:
        raise IllTyped("data of rank 0; there is a last axis")
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
    if xp.rank(x) == 0:
        raise IllTyped("data of rank 0; there is a last axis")
    if bias is not None and xp.shape(bias) != xp.shape(x)[-1:]:
        raise IllTyped(f"bias of shape {xp.shape(bias)} for {xp.shape(x)}")
    return gelu(xp, x if bias is None else add(xp, x, bias), approximate="tanh")


@fast_gelu.importer
def _(call: Call) -> Node:
    _single_constants(call.arg(0))
    return fast_gelu.term(*call.args)


@fast_gelu.exporter
def _(node: Node, opset: int) -> Call:
    _single_constants(node.args[0])
    return fast_gelu._write(node, opset)


def _single_constants(x: Node) -> None:
    if x.dtype == "float64":
        raise Unsupported("FastGelu of float64: the runtime's constants there have single precision")


@op(onnx="QuickGelu", domain="com.microsoft", since=1)
def quick_gelu(xp, x, *, alpha: float = 1.702):
    """x -> x * sigmoid(alpha * x)"""
    return mul(xp, x, sigmoid(xp, x if alpha == 1 else mul(xp, x, xp.literal(alpha, x))))


fused_matmul.example("float32[2,3,4]", "float32[2,4,5]")
fused_matmul.example("float32[2,4,3]", "float32[2,5,4]", transA=1, transB=1, alpha=0.5)
fused_matmul.example("float32[2,3,3,4]", "float32[2,3,5,4]", transB=1, alpha=2.0)
skip_layer_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", "float32[4]")
skip_layer_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", epsilon=0.01)
skip_layer_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", "float32[4]", "float32[4]", epsilon=1e-5)
skip_rms_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", epsilon=1e-5)
skip_rms_norm.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", "float32[4]", epsilon=1e-5)
skip_layer_norm_sum.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", "float32[4]")
skip_layer_norm_sum.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", "float32[4]", "float32[4]", epsilon=1e-5)
skip_rms_norm_sum.example("float32[2,3,4]", "float32[2,3,4]", "float32[4]", epsilon=1e-5)
bias_gelu.example("float32[2,3,4]", "float32[4]")
contrib_gelu.example("float32[2,3]")
fast_gelu.example("float32[2,3,4]")
fast_gelu.example("float32[2,3,4]", "float32[4]")
quick_gelu.example("float32[2,3]")
quick_gelu.example("float32[2,3]", alpha=1.0)

fused_matmul.laws("""
    matmul(transpose(a, perm=p), b) \
        == fused_matmul(a, b, transA=1) \
        where rank(a) > 1 and rank(b) > 1 and p == (0, 1, 2, 3)[:rank(a) - 2] + (rank(a) - 1, rank(a) - 2)
    matmul(a, transpose(b, perm=p)) \
        == fused_matmul(a, b, transB=1) \
        where rank(a) > 1 and rank(b) > 1 and p == (0, 1, 2, 3)[:rank(b) - 2] + (rank(b) - 1, rank(b) - 2)
    mul(matmul(a, b), c) \
        == fused_matmul(a, b, alpha=value(c)) \
        where is_constant(c) and rank(a) > 1 and rank(b) > 1 and dtype(a) in ("float32", "float16")
    div(matmul(a, b), c) \
        == fused_matmul(a, b, alpha=1 / value(c)) \
        where value(c) in (0.5, 2.0, 4.0, 8.0, 16.0) and rank(a) > 1 and rank(b) > 1 and dtype(a) in ("float32", "float16")
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
skip_layer_norm_sum.laws("""
    (layer_norm(add(x, y), g, *o, axis=2, epsilon=e, stash_type=1), add(x, y)) \
        == (item(skip_layer_norm_sum(x, y, g, *o, epsilon=e), index=0), item(skip_layer_norm_sum(x, y, g, *o, \
            epsilon=e), index=1)) \
        where rank(x) == 3 and shape(x) == shape(y) and shape(g) == (dim(x, 2),) and shape(o) == shape(g)
    (skip_layer_norm(x, y, g, o, *b, epsilon=e), add(x, add(y, *b))) \
        == (item(skip_layer_norm_sum(x, y, g, o, *b, epsilon=e), index=0), item(skip_layer_norm_sum(x, y, g, o, *b, \
            epsilon=e), index=1))
    (item(skip_layer_norm_sum(add(y, b), x, g, *o, epsilon=e), index=0), item(skip_layer_norm_sum(add(y, b), x, g, *o, \
        epsilon=e), index=1)) \
        == (item(skip_layer_norm_sum(y, x, g, *o, b, epsilon=e), index=0), item(skip_layer_norm_sum(y, x, g, *o, b, \
            epsilon=e), index=1)) \
        where shape(b) == shape(g) and is_weight(b)
""")
skip_rms_norm_sum.laws("""
    (skip_rms_norm(x, y, g, epsilon=e), add(x, y)) \
        == (item(skip_rms_norm_sum(x, y, g, epsilon=e), index=0), item(skip_rms_norm_sum(x, y, g, epsilon=e), index=1))
    (rms_norm(add(x, y), g, axis=2, epsilon=e, stash_type=1), add(x, y)) \
        == (item(skip_rms_norm_sum(x, y, g, epsilon=e), index=0), item(skip_rms_norm_sum(x, y, g, epsilon=e), index=1)) \
        where rank(x) == 3 and shape(x) == shape(y) and shape(g) == (dim(x, 2),)
""")
skip_rms_norm.laws("""
    mul(div(add(x, y), sqrt(add(reduce_mean(pow(add(x, y), 2), axes=(2,)), e))), g) \
        == skip_rms_norm(x, y, g, epsilon=value(e)) \
        where rank(x) == 3 and is_constant(e) and shape(x) == shape(y) and shape(g) == (dim(x, 2),) \
            and dtype(x) in ("float32", "float16")
    mul(div(add(x, y), sqrt(add(reduce_mean(mul(add(x, y), add(x, y)), axes=(2,)), e))), g) \
        == skip_rms_norm(x, y, g, epsilon=value(e)) \
        where rank(x) == 3 and is_constant(e) and shape(x) == shape(y) and shape(g) == (dim(x, 2),) \
            and dtype(x) in ("float32", "float16")
""")
bias_gelu.laws("""
    contrib_gelu(add(x, b)) \
        == bias_gelu(x, b) \
        where rank(x) > 1 and shape(b) == shape(x)[rank(x) - 1:] and dtype(x) in ("float32", "float16")
""")
contrib_gelu.laws("""
    mul(mul(x, 0.5), add(erf(mul(x, 0.7071067690849304)), 1)) == contrib_gelu(x)  where dtype(x) in ("float32", "float16")
    mul(mul(x, add(erf(mul(x, 0.7071067690849304)), 1)), 0.5) == contrib_gelu(x)  where dtype(x) in ("float32", "float16")
    mul(x, mul(add(erf(mul(x, 0.7071067690849304)), 1), 0.5)) == contrib_gelu(x)  where dtype(x) in ("float32", "float16")
""")
fast_gelu.laws("""
    fast_gelu(add(x, b)) == fast_gelu(x, b)  where rank(x) > 1 and shape(b) == shape(x)[rank(x) - 1:]
    mul(mul(x, 0.5), add(tanh(mul(add(x, mul(pow(x, 3), 0.044714998453855515)), 0.7978845834732056)), 1)) \
        == fast_gelu(x) \
        where dtype(x) in ("float32", "float16")
    mul(mul(x, 0.5), add(tanh(mul(add(x, mul(mul(mul(x, x), x), 0.044714998453855515)), 0.7978845834732056)), 1)) \
        == fast_gelu(x) \
        where dtype(x) in ("float32", "float16")
""")
quick_gelu.laws("""
    mul(x, sigmoid(x)) == quick_gelu(x, alpha=1.0)  where dtype(x) in ("float32", "float16")
    mul(x, sigmoid(mul(x, c))) == quick_gelu(x, alpha=value(c))  where is_constant(c) and dtype(x) in ("float32", "float16")
""")
