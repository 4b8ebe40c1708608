"""Repetition of whole tensors."""

from op_specs.expand import expand
from op_specs.families import ELEMENTWISE, each
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped
from taso_mirage.operators.ops import Call, Dims, extents, op


@op(onnx="Tile", since=6)
def tile(xp, x, *, repeats: Dims):
    """(n,...) -> (n*repeats[0],...): the whole axis again and again, not each element"""
    shape = xp.shape(x)
    if len(shape) != len(repeats):
        raise IllTyped(f"tile of {len(shape)} axes with {len(repeats)} repeats")
    pairs = list(zip(repeats, shape, strict=True))
    apart = reshape(xp, x, shape=tuple(d for _, n in pairs for d in (1, n)))
    return reshape(
        xp, expand(xp, apart, shape=tuple(d for p in pairs for d in p)), shape=tuple(r * n for r, n in pairs)
    )


@tile.importer
def _(call: Call):
    return tile.term(call.arg(0), repeats=call.extents(1))


@tile.exporter
def _(node, opset: int) -> Call:
    return Call("Tile", (node.args[0], extents(node.attr("repeats"))), {}, opset)


tile.example("float32[2,3]", repeats=(2, 1))
tile.example("float32[2,3]", repeats=(1, 3))
tile.example("float32[2,3,2]", repeats=(2, 2, 1))
tile.example("float32[2,3]", repeats=(1, 1))
tile.example("float32[3,2,2]", repeats=(1, 1, 1))
tile.example("int64[2]", repeats=(3,))

tile.laws("""
    tile(x, repeats=r) == x  where min(r) == 1 and max(r) == 1
    tile(tile(x, repeats=r), repeats=s) == tile(x, repeats=(r[0] * s[0], r[1] * s[1]))  where len(r) == 2
""")
tile.laws(each(ELEMENTWISE, "f(tile(x, repeats=r), **a) == tile(f(x, **a), repeats=r)"))
