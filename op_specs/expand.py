"""Broadcasting to a shape."""

from taso_mirage.dims import Symbolic, broadcast_shapes
from taso_mirage.errors import IllTyped
from taso_mirage.ops import Call, Dims, extents, op


@op(onnx="Expand", since=8)
def expand(xp, x, *, shape: Dims):
    """(...) -> shape, the whole result's; ONNX's may hold a 1 where the operand has more"""
    return xp.expand(x, shape)


@expand.importer
def _(call: Call):
    x = call.arg(0)
    try:
        return expand.term(x, shape=broadcast_shapes(x.shape, call.extents(1)))
    except ValueError as error:
        raise IllTyped(f"expand: {error}") from None


@expand.exporter
def _(node, opset: int) -> Call:
    (x,), shape = node.args, node.attr("shape")
    have = (1,) * (len(shape) - x.tensor.rank) + x.shape
    written = [1 if isinstance(n, Symbolic) and n == m else n for n, m in zip(shape, have, strict=True)]
    return Call("Expand", (x, extents(written)), {}, opset)


expand.example("float32[3,1]", shape=(3, 4))
expand.example("float32[3,1]", shape=(2, 3, 4))
expand.example("float32[3,4]", shape=(3, 4))
expand.example("float32[()]", shape=(2, 2))
expand.example("int64[1]", shape=(3,))
expand.example("bool[1,2]", shape=(2, 2))
