"""Softmax and its logarithm."""

from op_specs.arithmetic import div, exp, log, sub
from op_specs.reductions import reduce_max, reduce_sum
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, Op, op


@op(onnx="Softmax", since=1, domains={"axis": "any axis"})
def softmax(xp, x, *, axis: int = -1):
    """x -> e^x / sum(e^x) along `axis`; the maximum is taken off first, so that nothing
    overflows"""
    axis = _legal(xp, x, axis)
    parts = exp(xp, sub(xp, x, reduce_max(xp, x, axes=(axis,))))
    return div(xp, parts, reduce_sum(xp, parts, axes=(axis,)))


@op(onnx="LogSoftmax", since=1)
def log_softmax(xp, x, *, axis: int = -1):
    """x -> ln(softmax(x)) along `axis`"""
    axis = _legal(xp, x, axis)
    shifted = sub(xp, x, reduce_max(xp, x, axes=(axis,)))
    return sub(xp, shifted, log(xp, reduce_sum(xp, exp(xp, shifted), axes=(axis,))))


def _legal(xp, x, axis: int) -> int:
    if not -xp.rank(x) <= axis < xp.rank(x):
        raise IllTyped(f"axis {axis} of a tensor of rank {xp.rank(x)}")
    return axis % xp.rank(x)


def _read(op_: Op, call: Call) -> Node:
    x = call.arg(0)
    if call.opset >= 13:
        return op_.term(x, axis=call.attrs.get("axis", -1) % x.tensor.rank)
    return op_.term(x, axis=_only_axis(x, call.attrs.get("axis", 1) % x.tensor.rank))


def _only_axis(x: Node, first: int) -> int:
    """Before opset 13 all axes from `first` on are one; the same where at most one of them is not
    1."""
    wide = [i for i in range(first, x.tensor.rank) if x.shape[i] != 1]
    if len(wide) > 1:
        raise Unsupported(f"softmax before opset 13 over the axes {first} to {x.tensor.rank - 1} together")
    return wide[0] if wide else first


def _write(op_: Op, node: Node, opset: int) -> Call:
    x, axis = node.args[0], node.attr("axis") % node.args[0].tensor.rank
    if opset < 13 and (_only_axis(x, axis) != axis):
        raise Unsupported("softmax before opset 13 takes the last axis")
    return Call(op_.onnx or "", node.args, {"axis": axis}, opset)


for each in (softmax, log_softmax):
    each.importer(lambda call, each=each: _read(each, call))
    each.exporter(lambda node, opset, each=each: _write(each, node, opset))
    each.example("float32[2,3,4]", axis=2)
    each.example("float32[2,3,4]", axis=1)
    each.example("float32[5]", axis=0)

# The last four assume that the scores do not overflow: softmax of finite numbers is never NaN. A
# mask of finite constants keeps its rows finite; one with minus infinity may not, and a mask that
# is a weight is not known to be finite.
softmax.laws("""
    div(exp(sub(x, reduce_max(x, axes=i))), reduce_sum(exp(sub(x, reduce_max(x, axes=i))), axes=i)) \
        == softmax(x, axis=i[0]) \
        where len(i) == 1
    softmax(add(x, c), axis=i) == softmax(x, axis=i)  where size(c) == 1
    softmax(sub(x, reduce_max(x, axes=j)), axis=i) == softmax(x, axis=i)  where j == (i,)
    where(isnan(softmax(matmul(q, k), axis=i)), z, softmax(matmul(q, k), axis=i)) == softmax(matmul(q, k), axis=i) \
        where dtype(q) in ("float32", "float64")
    where(isnan(softmax(mul(matmul(q, k), c), axis=i)), z, softmax(mul(matmul(q, k), c), axis=i)) \
        == softmax(mul(matmul(q, k), c), axis=i) \
        where is_constant(c) and abs(value(c)) < inf and dtype(q) in ("float32", "float64")
    where(isnan(softmax(add(matmul(q, k), where(m, b, c)), axis=i)), z, softmax(add(matmul(q, k), where(m, b, c)), axis=i)) \
        == softmax(add(matmul(q, k), where(m, b, c)), axis=i) \
        where abs(value(b)) < inf and abs(value(c)) < inf and dtype(q) in ("float32", "float64")
    where(isnan(softmax(add(mul(matmul(q, k), d), where(m, b, c)), axis=i)), z, softmax(add(mul(matmul(q, k), d), \
        where(m, b, c)), axis=i)) \
        == softmax(add(mul(matmul(q, k), d), where(m, b, c)), axis=i) \
        where abs(value(b)) < inf and abs(value(c)) < inf and abs(value(d)) < inf \
            and dtype(q) in ("float32", "float64")
""")
# Along another axis than the last ONNX Runtime transposes before and after, in a slow way (of the
# classes of pixels, of the bins of distances).
softmax.laws(
    """
    softmax(x, axis=i) \
        == div(exp(sub(x, reduce_max(x, axes=(i,)))), reduce_sum(exp(sub(x, reduce_max(x, axes=(i,)))), axes=(i,))) \
        where i >= 0 and i < rank(x) - 1
""",
    together=True,
)
# A row of a softmax is NaN as a whole or not at all, and so is that of its product with finite
# values, which is mostly smaller; the number is 0, as a row of zeros has a product of zeros.
softmax.laws(
    """
    matmul(where(isnan(softmax(s, axis=i)), 0, softmax(s, axis=i)), v) \
        == where(isnan(matmul(softmax(s, axis=i), v)), 0, matmul(softmax(s, axis=i), v)) \
        where i == rank(s) - 1 and rank(v) > 1 and dtype(s) in ("float32", "float64")
""",
    last=True,
)
