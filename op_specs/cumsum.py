"""Running sums along one axis."""

import numpy as np

from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, extents, op


@op(onnx="CumSum", since=11)
def cumsum(xp, x, *, axis: int, exclusive: int = 0, reverse: int = 0):
    """x -> sums of all elements up to each along `axis`; without itself if `exclusive`, from the
    end if `reverse`"""
    total = xp.cumulate(np.add, _reversed(xp, x, axis) if reverse else x, axis)
    if exclusive:
        before, nothing = [int(i == axis) for i in range(xp.rank(x))], [0] * xp.rank(x)
        total = xp.slice(xp.pad(total, before, nothing), axis, 0, xp.shape(x)[axis])
    return _reversed(xp, total, axis) if reverse else total


def _reversed(xp, x, axis):
    return xp.slice(x, axis, xp.shape(x)[axis] - 1, -1, -1)


@cumsum.importer
def _(call: Call) -> Node:
    x, axis = call.arg(0), call.extents(1)
    return cumsum.term(x, **{**call.attrs, "axis": int((axis or (0,))[0]) % len(x.shape)})


@cumsum.exporter
def _(node: Node, opset: int) -> Call:
    attrs = dict(node.attrs)
    axis = extents((attrs.pop("axis"),), scalar=True)
    return Call("CumSum", (*node.args, axis), attrs, opset)


cumsum.example("float32[2,3]", axis=1)
cumsum.example("float32[2,3]", axis=0, exclusive=1)
cumsum.example("float32[2,3]", axis=1, reverse=1)
cumsum.example("float32[2,3,2]", axis=1, exclusive=1, reverse=1)
cumsum.example("int64[4]", axis=0)
cumsum.example("float32[4,5]", axis=1)

cumsum.laws("""
    slice(cumsum(slice(x, starts=s, ends=(-1,), axes=(i,), steps=(-1,)), axis=i, exclusive=e, reverse=r), starts=s, \
        ends=(-1,), axes=(i,), steps=(-1,)) \
        == cumsum(x, axis=i, exclusive=e, reverse=1 - r) \
        where s == (dim(x, i) - 1,)
""")
