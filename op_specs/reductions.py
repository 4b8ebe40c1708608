"""Folds over axes. In terms `axes` is always spelled out, sorted and non-negative."""

import numpy as np

from op_specs.arithmetic import abs_, add, exp, log, mul, product_below, sqrt, sub
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Node
from taso_mirage.operators.ops import Call, Ints, Op, extents, get, op
from taso_mirage.operators.slicing import sizes


def kept(keepdims: int) -> bool:
    """Whether folded axes stay as dims of 1. ONNX defines 0 and 1; for other numbers the runtime
    removes the axes."""
    if keepdims not in (0, 1):
        raise IllTyped(f"keepdims is {keepdims}; it is 0 or 1")
    return bool(keepdims)


@op(onnx="ReduceSum", since=1, rounds=True, lowering=Lowering.SUM)
def reduce_sum(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> the sum over `axes`"""
    return xp.sum(x, axes, kept(keepdims))


@op(onnx="ReduceMean", since=1, truncates=True)
def reduce_mean(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> the mean over `axes`"""
    return xp.mean(x, axes, kept(keepdims))


@op(onnx="ReduceMax", since=1)
def reduce_max(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> the largest over `axes`"""
    return xp.reduce(np.maximum, x, axes, kept(keepdims))


@op(onnx="ReduceMin", since=1)
def reduce_min(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> the smallest over `axes`"""
    return xp.reduce(np.minimum, x, axes, kept(keepdims))


@op(onnx="ReduceProd", since=1, rounds=True)
def reduce_prod(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> the product over `axes`"""
    return xp.reduce(np.multiply, x, axes, kept(keepdims))


@op(onnx="ReduceL1", since=1, rounds=True)
def reduce_l1(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> sum(|x|)"""
    return reduce_sum(xp, abs_(xp, x), axes=axes, keepdims=keepdims)


@op(onnx="ReduceSumSquare", since=1, rounds=True)
def reduce_sum_square(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> sum(x^2)"""
    return reduce_sum(xp, mul(xp, x, x), axes=axes, keepdims=keepdims)


@op(onnx="ReduceL2", since=1)
def reduce_l2(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> sqrt(sum(x^2))"""
    return sqrt(xp, reduce_sum_square(xp, x, axes=axes, keepdims=keepdims))


@op(onnx="ReduceLogSum", since=1)
def reduce_log_sum(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> ln(sum(x))"""
    return log(xp, reduce_sum(xp, x, axes=axes, keepdims=keepdims))


@op(onnx="ReduceLogSumExp", since=1)
def reduce_log_sum_exp(xp, x, *, axes: Ints, keepdims: int = 1):
    """x -> ln(sum(e^x)); the maximum is taken off first, so that nothing overflows"""
    shifted = exp(xp, sub(xp, x, reduce_max(xp, x, axes=axes)))
    largest = reduce_max(xp, x, axes=axes, keepdims=keepdims)
    return add(xp, largest, log(xp, reduce_sum(xp, shifted, axes=axes, keepdims=keepdims)))


@reduce_prod.traits.exactness
def _(numbers, below: int) -> bool:
    return product_below(list(map(abs, numbers[0])), below) < below


@reduce_sum_square.traits.exactness
def _(numbers, below: int) -> bool:
    return sum(v * v for each in numbers for v in each) < below


def _restricted(inner, node, box):
    """A fold is over whole axes; along the others it is as many folds."""
    (x,) = node.args
    axes, kept = node.attr("axes"), list(box)
    around = []
    for i, n in enumerate(sizes(x)):
        own = kept.pop(0) if node.attr("keepdims") or i not in axes else (0, n)
        around.append((0, n) if i in axes else own)
    return get(node.op).term(inner(x, tuple(around)), **dict(node.attrs))


def _read(op_: Op, moved: int, call: Call) -> Node:
    x = call.arg(0)
    axes = call.extents(1) if call.opset >= moved else call.attrs.get("axes")
    if not axes and call.attrs.get("noop_with_empty_axes"):
        if op_ not in (reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_prod):
            raise Unsupported(f"{call.op_type} with noop_with_empty_axes")
        return x
    rank = len(x.shape)
    every = sorted(int(i) % rank for i in axes) if axes else range(rank)
    return op_.term(x, axes=every, keepdims=call.attrs.get("keepdims", 1))


def _write(op_: Op, moved: int, node: Node, opset: int) -> Call:
    x, axes, keepdims = node.args[0], node.attr("axes"), node.attr("keepdims")
    if not axes and x.shape:
        raise Unsupported(f"{op_.onnx} over no axes")
    if opset >= moved:
        return Call(op_.onnx or "", (x, extents(axes) if axes else ABSENT), {"keepdims": keepdims}, opset)
    return Call(op_.onnx or "", (x,), {"keepdims": keepdims} | ({"axes": axes} if axes else {}), opset)


_folds = (reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_prod)
_norms = (reduce_l1, reduce_l2, reduce_sum_square, reduce_log_sum, reduce_log_sum_exp)
for each in (*_folds, *_norms):
    moved = 13 if each is reduce_sum else 18
    each.traits.restriction(_restricted)
    each.importer(lambda call, each=each, moved=moved: _read(each, moved, call))
    each.exporter(lambda node, opset, each=each, moved=moved: _write(each, moved, node, opset))
    each.example("float32[2,3,4]", axes=(1,))
    each.example("float32[2,3,4]", axes=(0, 2), keepdims=0)
    each.example("float32[2,3]", axes=(0, 1), keepdims=0)
    each.example("float32[2,3,4]", axes=(2,))
reduce_sum.example("int64[2,3]", axes=(1,))
reduce_max.example("int64[2,3]", axes=(1,))


@op(onnx="ArgMax", since=1)
def argmax(xp, x, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0):
    """x -> the index of the largest along `axis`, the first one unless `select_last_index`"""
    return _position(xp, np.maximum, x, axis, keepdims, select_last_index)


@op(onnx="ArgMin", since=1)
def argmin(xp, x, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0):
    """x -> the index of the smallest along `axis`, the first one unless `select_last_index`"""
    return _position(xp, np.minimum, x, axis, keepdims, select_last_index)


def _position(xp, fn, x, axis, keepdims, last):
    n, behind = xp.shape(x)[axis], xp.rank(x) - axis - 1
    best = xp.map(np.equal, x, xp.reduce(fn, x, (axis,)))
    indices = xp.reshape(xp.iota(n), (n, *[1] * behind))
    nowhere = xp.scalar(-1, "int64") if last else xp.extents((n,), scalar=True)
    found = xp.map(np.where, best, indices, nowhere)
    return xp.reduce(np.maximum if last else np.minimum, found, (axis,), kept(keepdims))


def _read_position(op_: Op, call: Call) -> Node:
    x = call.arg(0)
    return op_.term(x, **{**call.attrs, "axis": call.attrs.get("axis", 0) % len(x.shape)})


def _write_position(op_: Op, node: Node, opset: int) -> Call:
    attrs = dict(node.attrs)
    if opset < 12 and attrs.pop("select_last_index"):
        raise Unsupported(f"{op_.onnx} of the last index before opset 12")
    return Call(op_.onnx or "", node.args, attrs, opset)


for each in (argmax, argmin):
    each.importer(lambda call, each=each: _read_position(each, call))
    each.exporter(lambda node, opset, each=each: _write_position(each, node, opset))
    each.example("float32[2,3,4]", axis=1)
    each.example("float32[2,3]", axis=1, keepdims=0)
    each.example("float32[2,3]", axis=0, select_last_index=1)

reduce_sum.laws("""
    div(reduce_sum(x, axes=i, keepdims=k), c) \
        == reduce_mean(x, axes=i, keepdims=k) \
        where value(c) == prod(at(shape(x), i)) and size(c) == 1
    reduce_sum(mul(x, c), axes=i, keepdims=k) == mul(reduce_sum(x, axes=i, keepdims=k), c)  where size(c) == 1
    reduce_sum(div(x, c), axes=i, keepdims=k) == div(reduce_sum(x, axes=i, keepdims=k), c)  where size(c) == 1
    reduce_sum(neg(x), axes=i, keepdims=k) == neg(reduce_sum(x, axes=i, keepdims=k))
    add(reduce_sum(x, axes=i, keepdims=k), reduce_sum(y, axes=i, keepdims=k)) \
        == reduce_sum(add(x, y), axes=i, keepdims=k) \
        where shape(x) == shape(y)
    reduce_sum(reduce_sum(x, axes=i), axes=j) == reduce_sum(reduce_sum(x, axes=j), axes=i)
    reduce_sum(abs(x), axes=i, keepdims=k) == reduce_l1(x, axes=i, keepdims=k)
    log(reduce_sum(x, axes=i, keepdims=k)) == reduce_log_sum(x, axes=i, keepdims=k)
""")
reduce_mean.laws("""
    reduce_mean(mul(x, c), axes=i, keepdims=k) == mul(reduce_mean(x, axes=i, keepdims=k), c)  where size(c) == 1
    reduce_mean(add(x, c), axes=i, keepdims=k) == add(reduce_mean(x, axes=i, keepdims=k), c)  where size(c) == 1
    add(reduce_mean(x, axes=i, keepdims=k), reduce_mean(y, axes=i, keepdims=k)) \
        == reduce_mean(add(x, y), axes=i, keepdims=k) \
        where shape(x) == shape(y)
    reduce_mean(matmul(x, w), axes=(1,), keepdims=1) \
        == matmul(reduce_mean(x, axes=(1,), keepdims=1), w) \
        where rank(x) == 3 and rank(w) == 2
""")
reduce_max.laws("""
    reduce_max(relu(x), axes=i, keepdims=k) == relu(reduce_max(x, axes=i, keepdims=k))
    neg(reduce_max(neg(x), axes=i, keepdims=k)) == reduce_min(x, axes=i, keepdims=k) where is_float(x)
    max(reduce_max(x, axes=i, keepdims=k), reduce_max(y, axes=i, keepdims=k)) \
        == reduce_max(max(x, y), axes=i, keepdims=k) \
        where shape(x) == shape(y)
""")
for _op, _more in ((reduce_sum, ""), (reduce_mean, "and is_float(x)"), (reduce_max, "")):
    _op.laws(f"""
        {_op.name}(x, axes=i, keepdims=1) == x  where prod(at(shape(x), i)) == 1 {_more}
        unsqueeze({_op.name}(x, axes=i, keepdims=0), axes=i) == {_op.name}(x, axes=i, keepdims=1)
        squeeze({_op.name}(x, axes=i, keepdims=1), axes=i) == {_op.name}(x, axes=i, keepdims=0)
    """)
reduce_min.laws("""
    reduce_min(x, axes=i, keepdims=1) == x  where prod(at(shape(x), i)) == 1
""")
reduce_log_sum_exp.laws("""
    reduce_log_sum_exp(x, axes=i, keepdims=1) == x  where prod(at(shape(x), i)) == 1
""")
for _op, _more in ((reduce_sum, ""), (reduce_mean, "and is_float(x)")):
    _op.laws(f"""
        {_op.name}(x, axes=i, keepdims=0) == squeeze(x, axes=i)  where prod(at(shape(x), i)) == 1 {_more}
        {_op.name}(add(x, c), axes=i, keepdims=1) \
            == add({_op.name}(x, axes=i, keepdims=1), {_op.name}(c, axes=(rank(c) - 1,), keepdims=1)) \
            where i == (rank(x) - 1,) and rank(c) > 0 and rank(c) <= rank(x) and dim(c, -1) == dim(x, -1) \
                and is_weight(c) {_more}
        {_op.name}(reshape(x, shape=s), axes=i, keepdims=0) \
            == {_op.name}(x, axes=iota(rank(x))[1:], keepdims=0) \
            where i == iota(len(s))[1:] and rank(x) > 1 and len(s) > 1 and s[0] == dim(x, 0) {_more}
        given x: (n, c, 2*h) | s: (n, c*2, h), i: (1, 2)
    """)
