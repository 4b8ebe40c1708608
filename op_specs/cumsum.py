"""Running sums and products along one axis."""

import numpy as np

from taso_mirage.ir import Node
from taso_mirage.ops import Call, Op, extents, op


@op(onnx="CumSum", since=11)
def cumsum(xp, x, *, axis: int, exclusive: int = 0, reverse: int = 0):
    """x -> sums of all elements up to each along `axis`; without itself if `exclusive`, from the end if `reverse`"""
    return _running(xp, np.add, 0, x, axis, exclusive, reverse)


@op(onnx="CumProd", since=26)
def cumprod(xp, x, *, axis: int, exclusive: int = 0, reverse: int = 0):
    """x -> products of all elements up to each along `axis`; without itself if `exclusive`, from the end if `reverse`"""
    return _running(xp, np.multiply, 1, x, axis, exclusive, reverse)


def _running(xp, fn, neutral, x, axis, exclusive, reverse):
    total = xp.cumulate(fn, _reversed(xp, x, axis) if reverse else x, axis)
    if exclusive:
        before, nothing = [int(i == axis) for i in range(xp.rank(x))], [0] * xp.rank(x)
        total = xp.slice(xp.pad(total, before, nothing, neutral), axis, 0, xp.shape(x)[axis])
    return _reversed(xp, total, axis) if reverse else total


def _reversed(xp, x, axis):
    return xp.slice(x, axis, xp.shape(x)[axis] - 1, -1, -1)


def _read(op_: Op, call: Call) -> Node:
    x, axis = call.arg(0), call.extents(1)
    return op_.term(x, **{**call.attrs, "axis": int((axis or (0,))[0]) % len(x.shape)})


def _write(op_: Op, node: Node, opset: int) -> Call:
    attrs = dict(node.attrs)
    axis = extents((attrs.pop("axis"),), scalar=True)
    return Call(op_.onnx or "", (*node.args, axis), attrs, opset)


for each in (cumsum, cumprod):
    each.importer(lambda call, each=each: _read(each, call))
    each.exporter(lambda node, opset, each=each: _write(each, node, opset))
    each.example("float32[2,3]", axis=1)
    each.example("float32[2,3]", axis=0, exclusive=1)
    each.example("float32[2,3]", axis=1, reverse=1)
    each.example("float32[2,3,2]", axis=1, exclusive=1, reverse=1)
    each.example("int64[4]", axis=0)
