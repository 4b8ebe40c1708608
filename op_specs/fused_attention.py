"""Fused attention that ONNX Runtime adds to ONNX (its `com.microsoft` domain)."""

from typing import Any

from op_specs.arithmetic import add
from op_specs.attention import attention
from op_specs.matmul import matmul
from op_specs.slice import slice_
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import ABSENT, Node
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import Call, op


def _scaled(node: Node) -> dict[str, Any]:
    if node.attr("scale") == 0:
        raise Unsupported("ONNX Runtime reads a scale of 0 as the default one")
    return {k: v for k, v in node.attrs if v is not None}


@op(onnx="MultiHeadAttention", domain="com.microsoft", since=1)
def multi_head_attention(
    xp, q, k, v, bias=None, mask=None, *, num_heads: int, scale: float | None = None, unidirectional: int = 0
):
    """(b,s,n*d), (b,t,n*d), (b,t,n*e), (2*n*d + n*e), (b,n,s,t) -> (b,s,n*e): biases are added,
    then attention"""
    if any(xp.rank(x) != 3 for x in (q, k, v)):
        raise IllTyped(f"data of ranks {[xp.rank(x) for x in (q, k, v)]}; all three are 3")
    if bias is not None:
        d, e = xp.shape(q)[2], xp.shape(v)[2]
        if xp.shape(bias) != (d + d + e,):
            raise IllTyped(f"bias of shape {xp.shape(bias)} for {d} + {d} + {e} columns")
        starts, ends = (0, d, d + d), (d, d + d, d + d + e)
        parts = [
            slice_(xp, bias, starts=(i,), ends=(j,), axes=(0,), steps=(1,)) for i, j in zip(starts, ends, strict=True)
        ]
        q, k, v = add(xp, q, parts[0]), add(xp, k, parts[1]), add(xp, v, parts[2])
    if unidirectional and xp.shape(k)[1] != xp.shape(q)[1]:  # the runtime lets the last query see every key
        raise IllTyped(f"unidirectional with {xp.shape(q)[1]} queries and {xp.shape(k)[1]} keys")
    heads = {"q_num_heads": num_heads, "kv_num_heads": num_heads}
    return attention(xp, q, k, v, mask, is_causal=unidirectional, scale=scale, **heads)


@multi_head_attention.importer
def _(call: Call) -> Node:
    if call.outputs > 1 or any(call.arg(i) is not ABSENT for i in (4, 6, 7, 8, 9)):
        raise Unsupported("MultiHeadAttention with a key padding mask, a cache, or several outputs")
    if any(call.arg(i) is ABSENT or call.arg(i).tensor.rank != 3 for i in range(3)):
        raise Unsupported("MultiHeadAttention with packed operands")
    attrs = {k: v for k, v in call.attrs.items() if k != "mask_filter_value" and not (k == "scale" and v == 0)}
    return multi_head_attention.term(*call.args[:4], call.arg(5), **attrs)


@multi_head_attention.exporter
def _(node: Node, opset: int) -> Call:
    args = (*node.args, ABSENT, ABSENT)[:5]
    attrs = _scaled(node)
    given = args[:4] if args[4] is ABSENT else (*args[:4], ABSENT, args[4])
    return Call("MultiHeadAttention", given, attrs, opset, "com.microsoft")


@op(onnx="Attention", domain="com.microsoft", since=1)
def packed_attention(xp, x, w, b, mask=None, *, num_heads: int, scale: float | None = None):
    """(b,s,k), (k,3*n*d), (3*n*d), (b,n,s,s) -> (b,s,n*d): self-attention of x w + b, split in
    three"""
    if xp.rank(x) != 3 or xp.rank(w) != 2 or xp.shape(b) != xp.shape(w)[1:]:
        raise IllTyped(f"weights {xp.shape(w)} and bias {xp.shape(b)} for data {xp.shape(x)}")
    width = xp.shape(w)[1] // 3
    packed = add(xp, matmul(xp, x, w), b)
    ends = ((0, width), (width, width + width), (width + width, width * 3))
    q, k, v = (slice_(xp, packed, starts=(i,), ends=(j,), axes=(2,), steps=(1,)) for i, j in ends)
    return attention(xp, q, k, v, mask, scale=scale, q_num_heads=num_heads, kv_num_heads=num_heads)


@packed_attention.traits.decomposition
def _(node: Node) -> Node | None:
    """softmax(q k) v of the three parts of x w + b, where w and b can be cut before the run."""
    x, w, b, *mask = node.args
    if not (is_weight(w) and is_weight(b)):
        return None
    width = int(b.shape[0]) // 3

    def part(of: Node, i: int) -> Node:
        axis = len(of.shape) - 1
        return slice_.term(of, starts=(i * width,), ends=((i + 1) * width,), axes=(axis,), steps=(1,))

    parts = [add.term(matmul.term(x, part(w, i)), part(b, i)) for i in range(3)]
    bias = (ABSENT, *mask) if mask else ()
    return multi_head_attention.term(*parts, *bias, **dict(node.attrs))


@packed_attention.importer
def _(call: Call) -> Node:
    if call.outputs > 1 or any(call.arg(i) is not ABSENT for i in (3, 4, 6)) or call.arg(2) is ABSENT:
        raise Unsupported("Attention of com.microsoft with a padding mask, a cache, several outputs or no bias")
    if known := call.attrs.keys() - {"num_heads", "scale", "mask_filter_value"}:
        raise Unsupported(f"Attention of com.microsoft with {', '.join(sorted(known))}")
    attrs = {k: v for k, v in call.attrs.items() if k != "mask_filter_value" and not (k == "scale" and v == 0)}
    return packed_attention.term(*call.args[:3], call.arg(5), **attrs)


@packed_attention.exporter
def _(node: Node, opset: int) -> Call:
    attrs = _scaled(node)
    bias = (ABSENT, ABSENT, node.args[3]) if len(node.args) > 3 else ()
    return Call("Attention", (*node.args[:3], *bias), attrs, opset, "com.microsoft")


packed_attention.example("float32[2,3,4]", "float32[4,12]", "float32[12]", num_heads=2)
packed_attention.example("float32[1,5,6]", "float32[6,12]", "float32[12]", num_heads=2, scale=0.5)
packed_attention.example("float32[2,3,4]", "float32[4,12]", "float32[12]", "float32[2,2,3,3]", num_heads=2)
packed_attention.example("float32[2,3,4]", "float32[4,12]", "float32[12]", "float32[1,1,3,3]", num_heads=2, scale=0.7)
multi_head_attention.example("float32[2,3,8]", "float32[2,5,8]", "float32[2,5,8]", num_heads=2)
multi_head_attention.example("float32[2,3,6]", "float32[2,3,6]", "float32[2,3,6]", num_heads=2)
multi_head_attention.example("float32[1,5,4]", "float32[1,5,4]", "float32[1,5,4]", num_heads=2, scale=0.5)
multi_head_attention.example("float32[2,3,8]", "float32[2,3,8]", "float32[2,3,8]", num_heads=4, unidirectional=1)
multi_head_attention.example(
    "float32[2,3,8]", "float32[2,5,8]", "float32[2,5,8]", "float32[24]", num_heads=2, scale=0.7
)
multi_head_attention.example(
    "float32[2,3,8]", "float32[2,5,8]", "float32[2,5,4]", None, "float32[2,2,3,5]", num_heads=2
)
multi_head_attention.example(
    "float32[2,3,8]", "float32[2,5,8]", "float32[2,5,8]", "float32[24]", "float32[1,1,3,5]", num_heads=2
)

multi_head_attention.example(
    "float32[2,3,8]", "float32[2,3,8]", "float32[2,3,8]", "float32[24]", "float32[1,1,3,3]", num_heads=2, scale=0.5
)
multi_head_attention.example(
    "float32[2,3,8]", "float32[2,3,8]", "float32[2,3,8]", None, "float32[2,2,3,3]", num_heads=2, scale=0.5
)
add.example("float32[2,3,8]", "float32[8]")
matmul.example("float32[2,3,8]", "float32[8,8]")

# Torch exports attention in many spellings: the scale behind the product or on both sides of it, a
# mask or none, softmax guarded against rows that are not a number, and fewer key and value heads,
# each repeated (GQA). The laws are put together from their pieces.
QUERY = "transpose(reshape(q, shape=s), perm=(0, 2, 1, 3))"
KEYS = "transpose(reshape(k, shape=t), perm=(0, 2, 3, 1))"
VALUES = "transpose(reshape(v, shape=u), perm=(0, 2, 1, 3))"
REPEATED = "reshape(expand(unsqueeze(transpose(reshape({x}, shape={split}), perm=(0, 2, 1, 3)), axes=(2,)), shape={wide}), shape={heads})"
SHARED_KEYS = REPEATED.format(x="k", split="t", wide="f", heads="h")
SHARED_VALUES = REPEATED.format(x="v", split="u", wide="e", heads="r")
RANKS = "rank(q) == rank(k) == rank(v) == 3 and s[:2] == shape(q)[:2] and t[:2] == shape(k)[:2] and u[:2] == shape(v)[:2] and t[1] == u[1]"
RANKS += " and t[0] == s[0] == u[0] and dtype(q) in ('float32', 'float16')"
AS_MANY = f"{RANKS} and t[2] == s[2] and u[2] == s[2]"
FEWER = f"{RANKS} and t[3] == s[3] and t[2] == u[2] and s[2] == t[2] * f[2] and f[2] == e[2] and f == (t[0], t[2], f[2], t[1], t[3])"
FEWER += " and e == (u[0], u[2], e[2], u[1], u[3]) and r == (u[0], s[2], u[1], u[3])"
MASK = "rank(m) == 4 and shape(m)[2:] == (dim(q, 1), dim(k, 1)) and shape(m)[0] in (1, dim(q, 0)) and shape(m)[1] in (1, s[2])"
FINITE = "size(b) == 1 and abs(value(b)) < inf and value(b) < 0"
SCALED = (
    ("mul(matmul({q}, {k}), c)", "value(c)", "is_constant(c)", "c: ()"),
    (
        "matmul(mul({q}, c), mul({k}, d))",
        "value(c) * value(d)",
        "is_constant(c) and is_constant(d) and size(c) == 1 and size(d) == 1",
        "c: (), d: ()",
    ),
)
SAME_HEADS = "s: (j, x, 2, l), t: (j, y, 2, l), u: (j, y, 2, i), o: (j, x, 2*i)"
FEWER_HEADS = "s: (j, x, 2*i, l), t: (j, y, i, l), u: (j, y, i, l), "
FEWER_HEADS += "f: (j, i, 2, y, l), e: (j, i, 2, y, l), r: (j, 2*i, y, l), o: (j, x, 2*i*l)"
"""Typings of the laws, in letters."""
UNGUARDED, MASKED, UNMASKED = "unguarded", "guarded, with a mask", "guarded, without a mask"
"""Whether the softmax is guarded against NaN rows."""


def _once_repeated(x: str, split: str, wide: str) -> str:
    """Heads that are repeated before they become the leading axis."""
    kept = f"reshape({x}, shape={split}[:3] + (1, {split}[3]))"
    grown = f"expand({kept}, shape=({split}[0], {split}[1], {split}[2], {wide}[2], {split}[3]))"
    return f"reshape({grown}, shape=({split}[0], {split}[1], s[2] * {split}[3]))"


def _law(scores: str, values: str, operands: str, scale: str, guard: str, given: str) -> None:
    """softmax(scores) values, the heads behind one another, as one operator."""
    joined = f"reshape(transpose(matmul({scores}, {values}), perm=(0, 2, 1, 3)), shape=o)"
    fused = f"multi_head_attention({operands}, num_heads=s[2], scale={scale})"
    multi_head_attention.laws(f"{joined} == {fused} where {guard}\ngiven {given}")


def _masked(scores: str, variant: str) -> tuple[str, str, str, str]:
    """The softmax of scores, the mask, its guard and its typing.

    Where the softmax is guarded against rows that are not a number, there is no mask, or one of
    zero and a finite number: then scores plus mask are finite reals, and there are no such rows.
    With minus infinity there would be: a row that is masked whole. The fused kernels add the mask
    in single precision, so that half precision does not overflow to it.
    """
    if variant == UNGUARDED:
        return f"softmax(add({scores}, *m), axis=3)", "*m", MASK, "m: (1, 1, x, y)"
    mask = "where(m, 0, b)" if variant == MASKED else "None"
    soft = f"softmax(add({scores}, {mask}), axis=3)" if variant == MASKED else f"softmax({scores}, axis=3)"
    guard, typing = (
        (f"{MASK} and {FINITE}", "m: bool(1, 1, x, y), b: (), z: ()") if variant == MASKED else ("", "z: ()")
    )
    return f"where(isnan({soft}), z, {soft})", mask, guard, typing


def _laws(variants: tuple[str, ...]) -> None:
    """Every form of the scale and of the heads, with the softmax that `_masked` has for each
    variant."""
    for form, scale, guard, given in SCALED:
        scores = form.format(q=QUERY, k=KEYS)
        typed = f"q: (j, x, 2*l), k: (j, y, 2*l), v: (j, y, 2*i), {given}"
        for variant in variants:
            soft, mask, extra, more = _masked(scores, variant)
            guards = " and ".join(filter(None, (guard, AS_MANY, extra)))
            _law(soft, VALUES, f"q, k, v, None, {mask}", scale, guards, f"{typed}, {more} | {SAME_HEADS}")

        typed = f"q: (j, x, 2*i*l), k: (j, y, i*l), v: (j, y, i*l), {given}"
        both = f"q, {_once_repeated('k', 't', 'f')}, {_once_repeated('v', 'u', 'e')}"
        for keys, shaped, heads in (
            (
                f"reshape(transpose({SHARED_KEYS}, perm=(0, 2, 1)), shape=g)",
                "h == (t[0] * s[2], t[1], t[3]) and g == (t[0], s[2], t[3], t[1])",
                f"{FEWER_HEADS}, h: (2*j*i, y, l), g: (j, 2*i, l, y)",
            ),
            (
                f"transpose({SHARED_KEYS}, perm=(0, 1, 3, 2))",
                "h == (t[0], s[2], t[1], t[3])",
                f"{FEWER_HEADS}, h: (j, 2*i, y, l)",
            ),
        ):
            for variant in variants:
                soft, mask, extra, more = _masked(form.format(q=QUERY, k=keys), variant)
                guards = " and ".join(filter(None, (guard, FEWER, shaped, extra)))
                _law(soft, SHARED_VALUES, f"{both}, None, {mask}", scale, guards, f"{typed}, {more} | {heads}")


_laws((UNGUARDED, MASKED))
multi_head_attention.laws("""
    multi_head_attention(add(q, b), add(k, c), add(v, d), None, *m, **a) \
        == multi_head_attention(q, k, v, concat(b, c, d, axis=0), *m, **a) \
        where shape(b) == shape(q)[2:] and shape(c) == shape(k)[2:] and shape(d) == shape(v)[2:] and is_weight(b) and \
            is_weight(c) and is_weight(d)
    multi_head_attention(matmul(x, u), matmul(x, v), matmul(x, w), b, *m, unidirectional=0, **a) \
        == packed_attention(x, concat(u, v, w, axis=1), b, *m, **a) \
        where rank(u) == rank(v) == rank(w) == 2 and is_weight(u) and is_weight(v) and is_weight(w) and is_weight(b) and \
            shape(u) == shape(v) == shape(w)
""")
_laws((UNMASKED,))
