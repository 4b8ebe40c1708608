"""Layer normalisation and its relatives over trailing axes, defined over other operators."""

from op_specs.arithmetic import add, div, mul, pow_, sqrt, sub
from op_specs.cast import cast
from op_specs.reductions import reduce_mean
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Node, constant
from taso_mirage.operators.ops import Call, Ints, Op, op


@op(onnx="LayerNormalization", since=7, domains={"axis": "any axis"})
def layer_norm(xp, x, scale, bias=None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1):
    """x -> (x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on"""
    wide = _widened(xp, x, stash_type)
    axes = range(axis % xp.rank(x), xp.rank(x))
    centred = sub(xp, wide, reduce_mean(xp, wide, axes=tuple(axes)))
    normal = _normalised(xp, centred, axes, epsilon)
    return _scaled(xp, _back(xp, normal, x), scale, bias)


@op(onnx="RMSNormalization", since=7, domains={"axis": "any axis"})
def rms_norm(xp, x, scale, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1):
    """x -> x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on"""
    normal = _normalised(xp, _widened(xp, x, stash_type), range(axis % xp.rank(x), xp.rank(x)), epsilon)
    return _scaled(xp, _back(xp, normal, x), scale)


@op(onnx="MeanVarianceNormalization", since=9)
def mean_variance_norm(xp, x, *, axes: Ints = (0, 2, 3)):
    """x -> (x - mean) / (sqrt(variance) + 1e-9) over `axes`"""
    centred = sub(xp, x, reduce_mean(xp, x, axes=axes))
    deviation = sqrt(xp, reduce_mean(xp, mul(xp, centred, centred), axes=axes))
    return div(xp, centred, add(xp, deviation, xp.literal(1e-9, x)))


def _widened(xp, x, stash_type):
    return cast(xp, x, to="float32") if stash_type == 1 and xp.dtype(x) in ("float16", "bfloat16") else x


def _back(xp, normal, x):
    return normal if xp.dtype(normal) == xp.dtype(x) else cast(xp, normal, to=xp.dtype(x))


def _normalised(xp, x, axes, epsilon):
    variance = reduce_mean(xp, mul(xp, x, x), axes=tuple(axes))
    return div(xp, x, sqrt(xp, add(xp, variance, xp.literal(epsilon, x))))


def _scaled(xp, normal, scale, bias=None):
    result = mul(xp, normal, scale)
    result = result if bias is None else add(xp, result, bias)
    if xp.shape(result) != xp.shape(normal):
        raise IllTyped(f"scale or bias of a shape that does not broadcast to {xp.shape(normal)}")
    return result


def _body(node: Node, wide: Node, centred: Node) -> Node:
    """Write the operator, for opsets without it, as nodes that ONNX Runtime fuses into one."""
    x, scale, *_ = node.args
    axes = tuple(range(node.attr("axis"), len(x.shape)))
    # In float64 ONNX Runtime would make one, too, but reads epsilon as if it was a float32.
    square = mul.term(centred, centred) if wide.dtype == "float64" else pow_.term(centred, constant(2.0, wide.dtype))
    variance = reduce_mean.term(square, axes=axes)
    deviation = sqrt.term(add.term(variance, constant(node.attr("epsilon"), wide.dtype)))
    normal = div.term(centred, deviation)
    return mul.term(normal if wide is x else cast.term(normal, to=x.dtype), scale)


def _wide(node: Node) -> Node:
    """The operand in the precision in which a norm computes."""
    x = node.args[0]
    return cast.term(x, to="float32") if node.attr("stash_type") == 1 and x.dtype in ("float16", "bfloat16") else x


@layer_norm.exporter
def _(node: Node, opset: int) -> Call:
    if opset >= 17:
        return layer_norm._write(node, opset)
    x, _, *bias = node.args
    wide = _wide(node)
    centred = sub.term(wide, reduce_mean.term(wide, axes=tuple(range(node.attr("axis"), len(x.shape)))))
    scaled = _body(node, wide, centred)
    return Call("Add", (scaled, *bias), {}, opset) if bias else Call("Mul", scaled.args, {}, opset)


@rms_norm.exporter
def _(node: Node, opset: int) -> Call:
    if opset >= 23:
        return rms_norm._write(node, opset)
    return Call("Mul", _body(node, wide := _wide(node), wide).args, {}, opset)


def _read(op_: Op, call: Call) -> Node:
    attrs = {**call.attrs, "axis": call.attrs.get("axis", -1) % len(call.arg(0).shape)}
    return op_._read(Call(call.op_type, call.args, attrs, call.opset, call.domain, call.outputs))


for each in (layer_norm, rms_norm):
    each.importer(lambda call, each=each: _read(each, call))
    each.example("float32[2,3,4]", "float32[4]", axis=2)
    each.example("float32[2,3,4]", "float32[3,4]", axis=1, epsilon=0.01)
    each.example("float32[2,4]", "float32[4]", axis=1)
layer_norm.example("float32[2,3,4]", "float32[4]", "float32[4]", axis=2)
layer_norm.example("float32[2,3,4]", "float32[3,4]", "float32[3,4]", axis=1)
rms_norm.example("float16[2,3,4]", "float16[4]", axis=2)
mean_variance_norm.example("float32[2,3,2,2]")
mean_variance_norm.example("float32[2,3,4]", axes=(1, 2))


@mean_variance_norm.importer
def _(call: Call) -> Node:
    x = call.arg(0)
    return mean_variance_norm.term(x, axes=sorted(i % len(x.shape) for i in call.attrs.get("axes", (0, 2, 3))))


layer_norm.laws("""
    mul(div(sub(x, reduce_mean(x, axes=i)), sqrt(add(reduce_mean(mul(sub(x, reduce_mean(x, axes=i)), sub(x, \
        reduce_mean(x, axes=i))), axes=i), e))), g) \
        == layer_norm(x, g, axis=rank(x) - 1, epsilon=value(e)) \
        where i == (rank(x) - 1,) and is_constant(e) and shape(g) == shape(x)[rank(x) - 1:] \
            and dtype(x) in ("float32", "float64")
    mul(div(sub(x, reduce_mean(x, axes=i)), sqrt(add(reduce_mean(pow(sub(x, reduce_mean(x, axes=i)), 2), axes=i), \
        e))), g) \
        == layer_norm(x, g, axis=rank(x) - 1, epsilon=value(e)) \
        where i == (rank(x) - 1,) and is_constant(e) and shape(g) == shape(x)[rank(x) - 1:] \
            and dtype(x) in ("float32", "float64")
    rms_norm(sub(x, reduce_mean(x, axes=i)), g, axis=j, epsilon=e) \
        == layer_norm(x, g, axis=j, epsilon=e) \
        where i == (j,) and j == rank(x) - 1 and dtype(x) in ("float32", "float64")
    add(layer_norm(x, g, **a), b) == layer_norm(x, g, b, **a)  where shape(b) == shape(g)
    layer_norm(x, mul(g, c), **a) == mul(layer_norm(x, g, **a), c)  where size(c) == 1
    matmul(layer_norm(x, g, b, **a), w) \
        == add(matmul(layer_norm(x, g, **a), w), matmul(b, w)) \
        where is_weight(b) and is_weight(w) and rank(b) == 1 and rank(w) == 2
""")
rms_norm.laws("""
    mul(div(x, sqrt(add(reduce_mean(mul(x, x), axes=i), e))), g) \
        == rms_norm(x, g, axis=rank(x) - 1, epsilon=value(e)) \
        where i == (rank(x) - 1,) and is_constant(e) and shape(g) == shape(x)[rank(x) - 1:] \
            and dtype(x) in ("float32", "float64")
    mul(div(x, sqrt(add(reduce_mean(pow(x, 2), axes=i), e))), g) \
        == rms_norm(x, g, axis=rank(x) - 1, epsilon=value(e)) \
        where i == (rank(x) - 1,) and is_constant(e) and shape(g) == shape(x)[rank(x) - 1:] \
            and dtype(x) in ("float32", "float64")
    mul(cast(div(cast(x, to="float32"), sqrt(add(reduce_mean(pow(cast(x, to="float32"), 2), axes=i), e))), \
        to="float16"), g) \
        == rms_norm(x, g, axis=rank(x) - 1, epsilon=value(e)) \
        where i == (rank(x) - 1,) and is_constant(e) and shape(g) == shape(x)[rank(x) - 1:] \
            and dtype(x) == "float16"
    matmul(rms_norm(x, g, **a), w) \
        == matmul(rms_norm(x, expand(1, shape=shape(g)), **a), mul(reshape(g, shape=(dim(g, 0), 1)), w)) \
        where is_weight(g) and is_weight(w) and rank(g) == 1 and rank(w) == 2 and dim(x, rank(x) - 1) == dim(g, 0)
""")
for _normal in ("mul(x, div(1, {}))", "mul(x, reciprocal({}))"):
    for _square in ("mul(x, x)", "pow(x, 2)"):
        rms_norm.laws(f"""
            mul({_normal.format(f"sqrt(add(reduce_mean({_square}, axes=i), e))")}, g) \
                == rms_norm(x, g, axis=rank(x) - 1, epsilon=value(e)) \
                where i == (rank(x) - 1,) and is_constant(e) and shape(g) == shape(x)[rank(x) - 1:] \
                    and dtype(x) in ("float32", "float64")
        """)
