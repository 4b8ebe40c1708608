"""Concatenation."""

from taso_mirage.errors import Unsupported
from taso_mirage.ops import Call, op


@op(onnx="Concat", since=4)
def concat(xp, *xs, axis: int):
    """(...,n,...), (...,m,...), ... -> (...,n+m+...,...) along `axis`"""
    return xp.concat(xs, axis)


@concat.importer
def _(call: Call):
    if not call.args:
        raise Unsupported("Concat of nothing")
    axis = call.attrs["axis"]
    return concat.term(*call.args, axis=axis + call.arg(0).tensor.rank if axis < 0 else axis)


concat.example("float32[2,3]", "float32[1,3]", axis=0)
concat.example("float32[2,3]", "float32[2,1]", "float32[2,4]", axis=1)
concat.example("float32[2,3]", axis=1)
concat.example("float32[2,3,2,2]", "float32[2,1,2,2]", axis=1)
concat.example("int64[3]", "int64[2]", axis=0)
concat.example("bool[1,3]", "bool[1,2]", axis=1)
