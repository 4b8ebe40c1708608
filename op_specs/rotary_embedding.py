"""Rotary position embedding, defined over other operators."""

from op_specs.arithmetic import add, mul, sub
from op_specs.concat import concat
from op_specs.gather import gather
from op_specs.reshape import reshape
from op_specs.slice import slice_
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir import Node
from taso_mirage.ops import Call, op


@op(onnx="RotaryEmbedding", since=23)
def rotary_embedding(
    xp, x, cos, sin, positions=None, *, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0
):
    """(b,h,s,d) or (b,s,h*d), (p,r/2), (p,r/2), (b,s) -> x, its first r of d elements turned by its position's angles

    The pairs that turn are the halves, or neighbours if `interleaved`; without positions cos and sin are (b,s,r/2).
    """
    flat = xp.rank(x) == 3
    if flat:
        b, s, n = xp.shape(x)
        if num_heads == 0 or n % num_heads != 0:
            raise IllTyped(f"{n} columns for {num_heads} heads")
        split = reshape(xp, x, shape=(b, s, num_heads, n // num_heads))
    else:
        b, _, s, _ = xp.shape(x)
        split = x
    size = xp.shape(split)[3]
    turned = rotary_embedding_dim or size
    if turned % 2 != 0:
        raise IllTyped(f"{turned} elements of each head cannot be turned in pairs")
    angles = [_at(xp, table, positions, (b, s, turned // 2), 2 if flat else 1) for table in (cos, sin)]
    result = _turned(xp, _part(xp, split, 0, turned), *angles, turned, interleaved)
    if turned != size:
        result = concat(xp, result, _part(xp, split, turned, size), axis=3)
    return reshape(xp, result, shape=xp.shape(x)) if flat else result


def _at(xp, table, positions, wanted, heads_axis):
    """The rows of a table, with an axis of 1 for the heads. The runtime takes no sequence longer than the table."""
    if positions is None:
        rows = table
    else:
        if xp.rank(table) != 2 or _less(xp.shape(table)[0], wanted[1]):
            raise IllTyped(f"a table of shape {xp.shape(table)} for {wanted[1]} positions")
        rows = gather(xp, table, positions, axis=0)
    if xp.shape(rows) != wanted:
        raise IllTyped(f"angles of shape {xp.shape(rows)}, expected {wanted}")
    return reshape(xp, rows, shape=(*wanted[:heads_axis], 1, *wanted[heads_axis:]))


def _less(a, b) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a < b


def _part(xp, x, start, end, step=1):
    if (start, end, step) == (0, xp.shape(x)[3], 1):
        return x
    return slice_(xp, x, starts=(start,), ends=(end,), axes=(3,), steps=(step,))


def _turned(xp, x, cos, sin, size, interleaved):
    if interleaved:
        first, second = _part(xp, x, 0, size, 2), _part(xp, x, 1, size, 2)
    else:
        first, second = _part(xp, x, 0, size // 2), _part(xp, x, size // 2, size)
    real = sub(xp, mul(xp, first, cos), mul(xp, second, sin))
    imaginary = add(xp, mul(xp, first, sin), mul(xp, second, cos))
    if not interleaved:
        return concat(xp, real, imaginary, axis=3)
    pairs = [reshape(xp, part, shape=(*xp.shape(part), 1)) for part in (real, imaginary)]
    return reshape(xp, concat(xp, *pairs, axis=4), shape=xp.shape(x))


@op(onnx="RotaryEmbedding", domain="com.microsoft", since=1)
def contrib_rotary_embedding(
    xp, x, positions, cos, sin, *, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0
):
    """rotary_embedding for models before opset 23"""
    attrs = {"interleaved": interleaved, "num_heads": num_heads, "rotary_embedding_dim": rotary_embedding_dim}
    return rotary_embedding(xp, x, cos, sin, positions, **attrs)


@contrib_rotary_embedding.importer
def _(call: Call) -> Node:
    attrs = dict(call.attrs)
    if attrs.pop("is_packed_batching", 0) or attrs.pop("scale", 1.0) != 1.0:
        raise Unsupported("RotaryEmbedding with packed batches or a scale")
    if call.arg(1).tensor.rank != 2:
        raise Unsupported("RotaryEmbedding with one first position")
    return contrib_rotary_embedding.term(*call.args, **attrs)


_positions = [[0, 1, 2], [3, 1, 0]]
rotary_embedding.example("float32[2,4,3,8]", "float32[2,3,4]", "float32[2,3,4]")
rotary_embedding.example("float32[2,4,3,8]", "float32[5,4]", "float32[5,4]", _positions)
rotary_embedding.example("float32[2,3,16]", "float32[5,4]", "float32[5,4]", _positions, num_heads=2, interleaved=1)
rotary_embedding.example("float32[2,4,3,8]", "float32[5,2]", "float32[5,2]", _positions, rotary_embedding_dim=4)
rotary_embedding.example("float32[2,4,3,8]", "float32[2,3,4]", "float32[2,3,4]", interleaved=1)
contrib_rotary_embedding.example("float32[2,4,3,8]", _positions, "float32[5,4]", "float32[5,4]")
contrib_rotary_embedding.example(
    "float32[2,3,16]", _positions, "float32[5,4]", "float32[5,4]", num_heads=2, interleaved=1
)
