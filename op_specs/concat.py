"""Concatenation."""

from op_specs.families import ELEMENTWISE, PAIRWISE, each
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.operators.ops import Call, op
from taso_mirage.operators.slicing import join, sizes


@op(onnx="Concat", since=4, lowering=Lowering.CONCAT, joins="axis")
def concat(xp, *xs, axis: int):
    """(...,n,...), (...,m,...), ... -> (...,n+m+...,...) along `axis`"""
    return xp.concat(xs, axis)


@concat.importer
def _(call: Call):
    if not call.args:
        raise Unsupported("Concat of nothing")
    axis = call.attrs["axis"]
    return concat.term(*call.args, axis=axis + call.arg(0).tensor.rank if axis < 0 else axis)


@concat.traits.restriction
def _(inner, node, box):
    axis, start, parts = node.attr("axis"), 0, []
    for x in node.args:
        n = sizes(x)[axis]
        low, high = max(box[axis][0] - start, 0), min(box[axis][1] - start, n)
        if low < high:
            parts.append(inner(x, (*box[:axis], (low, high), *box[axis + 1 :])))
        start += n
    return join(parts, axis)


concat.example("float32[2,3]", "float32[1,3]", axis=0)
concat.example("float32[2,3]", "float32[2,1]", "float32[2,4]", axis=1)
concat.example("float32[2,3]", axis=1)
concat.example("float32[2,3,2,2]", "float32[2,1,2,2]", axis=1)
concat.example("int64[3]", "int64[2]", axis=0)
concat.example("bool[1,3]", "bool[1,2]", axis=1)

concat.laws("""
    concat(x, axis=i) == x
    concat(concat(x, y, axis=i), z, axis=i) == concat(x, y, z, axis=i)
    concat(x, concat(y, z, axis=i), axis=i) == concat(x, y, z, axis=i)
    concat(concat(v, w, axis=i), concat(x, y, axis=i), axis=i) == concat(v, w, x, y, axis=i)
    concat(concat(v, w, axis=i), concat(x, y, axis=i), axis=j) \
        == concat(concat(v, x, axis=j), concat(w, y, axis=j), axis=i) \
        where i != j and dim(v, i) == dim(x, i)
""")
concat.laws(each(ELEMENTWISE, "concat(f(x, **a), f(y, **a), axis=i) == f(concat(x, y, axis=i), **a)"))
concat.laws(
    each(
        PAIRWISE,
        "concat(f(v, w), f(x, y), axis=i) == f(concat(v, x, axis=i), concat(w, y, axis=i)) "
        "where shape(v) == shape(w) and shape(x) == shape(y)",
    )
)
concat.laws(each(PAIRWISE, "concat(f(x, c), f(y, c), axis=i) == f(concat(x, y, axis=i), c)  where rank(c) == 0"))
