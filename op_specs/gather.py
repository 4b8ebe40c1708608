"""Reading elements at computed positions."""

import numpy as np

from op_specs.families import ELEMENTWISE, PAIRWISE, each
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.operators.ops import Call, op


@op(onnx="Gather", since=1, lowering=Lowering.GATHER)
def gather(xp, x, indices, *, axis: int = 0):
    """(a..., n, b...), (i...) -> (a..., i..., b...): x[..., indices, ...]; an index below 0 counts
    from the end"""
    _integers(xp, indices)
    return xp.take(x, indices, axis)


def _integers(xp, indices) -> None:
    if xp.dtype(indices) not in ("int32", "int64"):
        raise IllTyped(f"indices of dtype {xp.dtype(indices)}")


@gather.importer
def _(call: Call):
    x, axis = call.arg(0), call.attrs.get("axis", 0)
    return gather.term(x, call.arg(1), axis=axis + x.tensor.rank if axis < 0 else axis)


gather.example("float32[4,3]", [0, 2, 3])
gather.example("float32[4,3]", [[0, -1], [2, 1]], axis=0)
gather.example("float32[2,4,3]", [3, 0], axis=1)
gather.example("float32[2,5]", "int64[2]", axis=1)
gather.example("int64[4]", [1], axis=0)
gather.example("float32[5,2]", "int32[2,2]", axis=0)
gather.example("float32[4,3]", 2)
gather.example("float32[2,4,3]", 3, axis=1)


@op(onnx="GatherElements", since=11, lowering=Lowering.PICK)
def gather_elements(xp, x, indices, *, axis: int = 0):
    """x, i of equal rank -> x[p, i[p, q], q] at each [p, q] of i; other axes of i may be shorter
    than those of x"""
    _integers(xp, indices)
    for i, n in enumerate(xp.shape(indices)):
        if i != axis:
            x = xp.slice(x, i, 0, n)
    return xp.take_along(x, indices, axis)


@gather_elements.importer
def _(call: Call):
    x, axis = call.arg(0), call.attrs.get("axis", 0)
    return gather_elements.term(x, call.arg(1), axis=axis + x.tensor.rank if axis < 0 else axis)


gather_elements.example("float32[3,3]", [[1, 2, 0], [2, 0, 0]], axis=0)
gather_elements.example("float32[2,3]", [[0, -1], [2, 0]], axis=1)
gather_elements.example("float32[2,3]", [[0, 1, 1, 0]], axis=1)
gather_elements.example("int64[5,2]", "int64[2,2]", axis=0)


@op(onnx="GatherND", since=11)
def gather_nd(xp, x, indices, *, batch_dims: int = 0):
    """(b..., n..., r...), (b..., i..., k) -> (b..., i..., r...): the last axis of the indices is a
    position in k axes"""
    _integers(xp, indices)
    if batch_dims:
        raise IllTyped("batch_dims is not supported")
    shape, last = xp.shape(x), xp.rank(indices) - 1
    depth = xp.shape(indices)[last]
    if depth == 1:
        return xp.take(x, xp.reshape(indices, xp.shape(indices)[:last]), 0)
    position = xp.cast(xp.extents((0,), scalar=True), xp.dtype(indices))
    for i, n in enumerate(shape[:depth]):
        size = xp.cast(xp.extents((n,), scalar=True), xp.dtype(indices))
        part = xp.reshape(xp.slice(indices, last, i, i + 1), xp.shape(indices)[:last])
        part = xp.map(np.where, xp.map(np.less, part, xp.literal(0, part)), xp.add(part, size), part)
        position = xp.add(xp.mul(position, size), part)
    rows = 1
    for n in shape[:depth]:
        rows = rows * n
    return xp.take(xp.reshape(x, (rows, *shape[depth:])), position, 0)


@gather_nd.importer
def _(call: Call):
    if call.attrs.get("batch_dims", 0):
        raise Unsupported("GatherND with batch_dims")
    return gather_nd.term(call.arg(0), call.arg(1))


@gather_nd.exporter
def _(node, opset: int) -> Call:
    return Call("GatherND", node.args, {}, opset)


gather_nd.example("float32[2,3]", [[0, 0], [1, 2]])
gather_nd.example("float32[2,3]", [[1], [0], [-1]])
gather_nd.example("float32[2,3,2]", [[[0, 1]], [[1, 0]]])
gather_nd.example("int64[4]", [[3]])

gather.laws("""
    gather(matmul(x, w), i, axis=k) == matmul(gather(x, i, axis=k), w)  where rank(w) == 2 and k < rank(x) - 1
    gather(gather(x, i, axis=k), j, axis=k) == gather(x, gather(i, j, axis=0), axis=k)  where rank(i) == 1
""")
gather.laws(each(ELEMENTWISE, "gather(f(x, **a), i, axis=k) == f(gather(x, i, axis=k), **a)"))
gather.laws(
    each(
        PAIRWISE,
        "gather(f(x, y), i, axis=k) == f(gather(x, i, axis=k), gather(y, i, axis=k))  where shape(x) == shape(y)",
    )
)
gather.laws("""
    unsqueeze(gather(x, c, axis=k), axes=(k,)) \
        == slice(x, starts=(value(c),), ends=(value(c) + 1,), axes=(k,), steps=(1,)) \
        where rank(c) == 0
""")
# Queries, keys and values of one product, as PyTorch separates them.
gather.laws("""
    gather(transpose(reshape(x, shape=s), perm=(2, 0, 1, 3)), c, axis=0) \
        == slice(x, starts=(value(c) * s[3],), ends=(value(c) * s[3] + s[3],), axes=(2,), steps=(1,)) \
        where rank(c) == 0 and rank(x) == 3 and len(s) == 4 and s[:2] == shape(x)[:2] and value(c) >= 0 and \
            value(c) < s[2]
    given x: (m, n, 3*e), c: int64 () | s: (m, n, 3, e)
    transpose(reshape(gather(transpose(reshape(x, shape=s), perm=(2, 1, 0, 3)), c, axis=0), shape=t), perm=p) \
        == transpose(reshape(slice(x, starts=(value(c) * s[3],), ends=(value(c) * s[3] + s[3],), axes=(2,), \
            steps=(1,)), shape=at(t, (1, 0, 2, 3))), perm=at((1, 0, 2, 3), p)) \
        where rank(c) == 0 and rank(x) == 3 and len(s) == 4 and len(t) == 4 and s[:2] == shape(x)[:2] and \
            t[:2] == (s[1], s[0]) and value(c) >= 0 and value(c) < s[2]
    given x: (m, n, 3*h*d), c: int64 () | s: (m, n, 3, h*d), t: (n, m, h, d), p: (1, 2, 0, 3)
""")
