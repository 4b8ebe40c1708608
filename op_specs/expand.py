"""Broadcasting to a shape."""

from op_specs.families import ELEMENTWISE, PAIRWISE, each
from taso_mirage.errors import IllTyped
from taso_mirage.ir.dims import Symbolic, broadcast_shapes
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.operators.ops import Call, Dims, extents, op
from taso_mirage.operators.slicing import sizes, under


@op(onnx="Expand", since=8, lowering=Lowering.EXPAND, domains={"shape": "wider"})
def expand(xp, x, *, shape: Dims):
    """(...) -> shape, the whole result's; ONNX's may hold a 1 where the operand has more"""
    return xp.expand(x, shape)


expand.traits.repeats = True


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


@expand.traits.restriction
def _(inner, node, box):
    (x,) = node.args
    part = inner(x, under(x, box))
    shape = [b - a for a, b in box]
    return part if list(sizes(part)) == shape else expand.term(part, shape=shape)


@expand.traits.resizing
def _(attrs, old, new, names):
    shape = list(attrs["shape"])
    behind = len(shape) - len(old[0])
    for k, (n, m) in enumerate(zip(old[0], new[0], strict=True)):
        if n == shape[behind + k] and n != 1:
            shape[behind + k] = m
    return {"shape": tuple(names.get(n, n) if n != 1 else n for n in shape)}


expand.example("float32[3,1]", shape=(3, 4))
expand.example("float32[3,1]", shape=(2, 3, 4))
expand.example("float32[3,4]", shape=(3, 4))
expand.example("float32[2,3,4]", shape=(2, 3, 4))
expand.example("float32[5]", shape=(5,))
expand.example("float32[()]", shape=(2, 2))
expand.example("int64[1]", shape=(3,))
expand.example("bool[1,2]", shape=(2, 2))

expand.laws("""
    expand(x, shape=s) == x  where shape(x) == s
    expand(expand(x, shape=s), shape=t) == expand(x, shape=t)
    matmul(expand(x, shape=s), y) == matmul(x, y)
    matmul(x, expand(y, shape=s)) == matmul(x, y)
    where(c, expand(x, shape=s), y) == where(c, x, y)
    where(c, x, expand(y, shape=s)) == where(c, x, y)
    where(expand(c, shape=s), x, y) == where(c, x, y)
""")
expand.laws(each(ELEMENTWISE, "f(expand(x, shape=s), **a) == expand(f(x, **a), shape=s)"))
expand.laws(each(PAIRWISE, "f(expand(x, shape=s), y) == f(x, y)"))
expand.laws(each(PAIRWISE, "f(x, expand(y, shape=s)) == f(x, y)"))
expand.laws(each(("min", "max"), "f(expand(x, shape=s), y) == f(x, y)"))
