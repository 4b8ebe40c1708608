"""Rotary position embedding, defined over other operators."""

from op_specs.arithmetic import add, mul, sub
from op_specs.concat import concat
from op_specs.gather import gather
from op_specs.reshape import reshape
from op_specs.slice import slice_
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, op


@op(onnx="RotaryEmbedding", since=23, inside=3)
def rotary_embedding(
    xp, x, cos, sin, positions=None, *, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0
):
    """(b,h,s,d) or (b,s,h*d), (p,r/2), (p,r/2), (b,s) -> x, its first r of d elements turned by its
    position's angles

    The pairs that turn are the halves, or neighbours if `interleaved`; without positions cos and
    sin are (b,s,r/2).
    """
    if positions is not None and xp.rank(positions) != 2:
        raise IllTyped(f"positions of rank {xp.rank(positions)}, expected one a sequence and token")
    return _rotary(xp, x, cos, sin, positions, interleaved, num_heads, rotary_embedding_dim)


def _rotary(xp, x, cos, sin, positions, interleaved: int, num_heads: int, rotary_embedding_dim: int):
    flat = xp.rank(x) == 3
    if flat:
        b, s, n = xp.shape(x)
        if (isinstance(num_heads, int) and num_heads < 1) or n % num_heads != 0:
            raise IllTyped(f"{n} columns for {num_heads} heads")
        split = reshape(xp, x, shape=(b, s, num_heads, n // num_heads))
    else:
        b, _, s, _ = xp.shape(x)
        split = x
    size = xp.shape(split)[3]
    turned = rotary_embedding_dim or size
    if interleaved not in (0, 1):
        raise IllTyped(f"interleaved is {interleaved}; it is 0 or 1")
    if turned % 2 != 0 or rotary_embedding_dim < 0:
        raise IllTyped(f"{turned} elements of each head cannot be turned in pairs")
    angles = [_at(xp, table, positions, (b, s, turned // 2), 2 if flat else 1) for table in (cos, sin)]
    result = _turned(xp, _part(xp, split, 0, turned), *angles, turned, interleaved)
    if turned != size:
        result = concat(xp, result, _part(xp, split, turned, size), axis=3)
    return reshape(xp, result, shape=xp.shape(x)) if flat else result


def _at(xp, table, positions, wanted, heads_axis):
    """The rows of a table, with an axis of 1 for the heads.

    The runtime takes no sequence longer than the table.
    """
    if positions is None:
        rows = table
    elif xp.rank(positions) == 1:
        rows = _from(xp, table, positions, wanted)
    else:
        if xp.rank(table) != 2 or _less(xp.shape(table)[0], wanted[1]):
            raise IllTyped(f"a table of shape {xp.shape(table)} for {wanted[1]} positions")
        rows = gather(xp, table, positions, axis=0)
    if xp.shape(rows) != wanted:
        raise IllTyped(f"angles of shape {xp.shape(rows)}, expected {wanted}")
    return reshape(xp, rows, shape=(*wanted[:heads_axis], 1, *wanted[heads_axis:]))


def _from(xp, table, first, wanted):
    """The rows from the first position on, the same for every sequence."""
    if xp.rank(table) != 2 or xp.shape(first) != (1,) or _less(xp.shape(table)[0], wanted[1]):
        raise IllTyped(
            f"a table of shape {xp.shape(table)} and first positions {xp.shape(first)} for {wanted[1]} positions"
        )
    rows = gather(xp, table, xp.add(xp.iota(wanted[1]), first), axis=0)
    return xp.expand(reshape(xp, rows, shape=(1, *wanted[1:])), wanted)


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


@op(onnx="RotaryEmbedding", domain="com.microsoft", since=1, inside=1)
def contrib_rotary_embedding(
    xp, x, positions, cos, sin, *, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0
):
    """rotary_embedding for models before opset 23; one position is that of the first row"""
    return _rotary(xp, x, cos, sin, positions, interleaved, num_heads, rotary_embedding_dim)


@contrib_rotary_embedding.importer
def _(call: Call) -> Node:
    attrs = dict(call.attrs)
    if attrs.pop("is_packed_batching", 0) or attrs.pop("scale", 1.0) != 1.0:
        raise Unsupported("RotaryEmbedding with packed batches or a scale")
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

contrib_rotary_embedding.example("float32[2,3,16]", [0], "float32[5,4]", "float32[5,4]", num_heads=2)
contrib_rotary_embedding.laws("""
    # torch's rotate_half, before and after the heads move in front
    add(mul(transpose(reshape(x, shape=s), perm=(0, 2, 1, 3)), concat(c, c, axis=3)), \
            mul(concat(neg(slice(transpose(reshape(x, shape=s), perm=(0, 2, 1, 3)), starts=i, ends=j, axes=(3,), \
            steps=(1,))), slice(transpose(reshape(x, shape=s), perm=(0, 2, 1, 3)), starts=(0,), ends=i, axes=(3,), \
            steps=(1,)), axis=3), concat(d, d, axis=3))) \
        == transpose(reshape(contrib_rotary_embedding(x, range(n=1), reshape(c, shape=shape(c)[2:]), reshape(d, \
            shape=shape(d)[2:]), num_heads=s[2]), shape=s), perm=(0, 2, 1, 3)) \
        where rank(x) == 3 and s[:2] == shape(x)[:2] and shape(c) == (1, 1, s[1], i[0]) and shape(d) == shape(c) and \
            s[3] == 2 * i[0] and j == (s[3],) and dtype(x) in ("float32", "float16")
    given x: (b, q, n*2*h), c: (1, 1, q, h), d: (1, 1, q, h) | s: (b, q, n, 2*h), i: (h,), j: (2*h,)
""")
