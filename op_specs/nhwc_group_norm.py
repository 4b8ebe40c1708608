"""Group normalisation with channels last, alone or behind a sum, with SiLU behind it: operators of
ONNX Runtime's CUDA provider (`com.microsoft` domain).

The kernels compute in single precision and round their results once. Scale and offset have single
precision also where the data has half precision.
"""

from op_specs.activations import sigmoid
from op_specs.arithmetic import add, mul
from op_specs.cast import cast
from op_specs.instance_norm import group_norm
from op_specs.nhwc_conv import FIRST, LAST
from op_specs.reshape import reshape
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, Op, op

LARGEST = 512
"""The largest number of channels of a group that the runtime's kernel takes."""


@op(onnx="GroupNorm", domain="com.microsoft", since=1, layout=True)
def nhwc_group_norm(xp, x, scale, offset, *, groups: int, activation: int, epsilon: float = 1e-5):
    """(n,h,w,c), (c), (c) -> group_norm over groups of c / groups channels; SiLU of that if
    activation is 1"""
    if xp.rank(x) != 4:
        raise IllTyped(f"data of rank {xp.rank(x)}; the runtime takes images")
    if activation not in (0, 1):
        raise IllTyped(f"activation {activation}; the runtime knows 0 (none) and 1 (SiLU)")
    own = [cast(xp, each, to=xp.dtype(x)) for each in (scale, offset)]
    attrs = {"num_groups": groups, "epsilon": epsilon, "stash_type": 0}
    normal = transpose(xp, group_norm(xp, transpose(xp, x, perm=FIRST), *own, **attrs), perm=LAST)
    return mul(xp, normal, sigmoid(xp, normal)) if activation else normal


@op(onnx="SkipGroupNorm", domain="com.microsoft", since=1, layout=True)
def nhwc_skip_group_norm(xp, x, scale, offset, skip, bias=None, *, groups: int, activation: int, epsilon: float = 1e-5):
    """nhwc_group_norm(x + skip + bias, scale, offset); skip is (n,h,w,c), (n,1,1,c) or (n,c)"""
    attrs = {"groups": groups, "activation": activation, "epsilon": epsilon}
    return nhwc_group_norm(xp, _total(xp, x, skip, bias), scale, offset, **attrs)


@op(onnx="SkipGroupNorm", domain="com.microsoft", since=1, layout=True)
def nhwc_skip_group_norm_sum(
    xp, x, scale, offset, skip, bias=None, *, groups: int, activation: int, epsilon: float = 1e-5
):
    """nhwc_group_norm(x + skip + bias, scale, offset), and x + skip + bias"""
    total = _total(xp, x, skip, bias)
    attrs = {"groups": groups, "activation": activation, "epsilon": epsilon}
    return nhwc_group_norm(xp, total, scale, offset, **attrs), total


def _total(xp, x, skip, bias):
    """x + bias + skip, in the kernel's order; bias is (c)."""
    if xp.rank(x) != 4:
        raise IllTyped(f"data of rank {xp.rank(x)}; the runtime takes images")
    n, h, w, c = xp.shape(x)
    if xp.shape(skip) not in ((n, h, w, c), (n, 1, 1, c), (n, c)):
        raise IllTyped(f"skip of shape {xp.shape(skip)} for {xp.shape(x)}")
    if bias is not None and xp.shape(bias) != (c,):
        raise IllTyped(f"bias of shape {xp.shape(bias)} for {xp.shape(x)}")
    skip = reshape(xp, skip, shape=(n, 1, 1, c)) if xp.rank(skip) == 2 else skip
    return add(xp, x if bias is None else add(xp, x, bias), skip)


def _check(node: Node) -> Node:
    """A term that the runtime's kernel takes; each of its threads computes two channels of one
    group."""
    x, scale, offset, *added = node.args
    channels, groups = x.shape[3], node.attr("groups")
    if not isinstance(channels, int):
        raise Unsupported(f"GroupNorm of {channels} channels; the runtime's limits are checked ahead")
    each = channels // groups
    if each % 2 or each > LARGEST:
        raise Unsupported(f"GroupNorm with groups of {each} channels; the runtime takes even numbers up to {LARGEST}")
    if x.dtype not in ("float16", "float32") or {scale.dtype, offset.dtype} != {"float32"}:
        raise Unsupported(f"GroupNorm of {x.dtype} with scale {scale.dtype} and offset {offset.dtype}")
    if any(each.dtype != x.dtype for each in added):
        raise Unsupported(f"GroupNorm of {x.dtype} with a skip or bias of another dtype")
    if node.attr("epsilon") < 0:
        raise Unsupported(f"GroupNorm with epsilon {node.attr('epsilon')}")
    if 0 in x.shape:
        raise Unsupported("GroupNorm of nothing")
    return node


def _read_and_written(op_: Op, outputs: int) -> None:
    """Reading and writing an operator with so many outputs."""

    @op_.importer
    def _(call: Call) -> Node:
        attrs = dict(call.attrs)
        if call.outputs != outputs or call.blank:
            raise Unsupported(f"{call.op_type} with {call.outputs} outputs")
        if not attrs.pop("channels_last", 1):
            raise Unsupported(f"{call.op_type} with channels first; the runtime takes channels last")
        if unknown := attrs.keys() - op_.attributes.keys():
            raise Unsupported(f"{call.op_type} with the attribute {min(unknown)}")
        return _check(op_.term(*call.args, **attrs))

    @op_.exporter
    def _(node: Node, opset: int) -> Call:
        _check(node)
        return Call(op_.onnx, node.args, dict(node.attrs), opset, op_.domain, outputs=outputs)


_read_and_written(nhwc_group_norm, 1)
_read_and_written(nhwc_skip_group_norm, 1)
_read_and_written(nhwc_skip_group_norm_sum, 2)

for _op in (nhwc_group_norm, nhwc_skip_group_norm, nhwc_skip_group_norm_sum):
    _add = () if _op is nhwc_group_norm else ("float16[2,3,2,8]",)
    _op.example("float16[2,3,2,8]", "float32[8]", "float32[8]", *_add, groups=2, activation=0)
    _op.example("float16[2,3,2,8]", "float32[8]", "float32[8]", *_add, groups=4, activation=1)
for _op in (nhwc_skip_group_norm, nhwc_skip_group_norm_sum):
    for _skip in ("[2,8]", "[2,1,1,8]"):
        _op.example(
            "float16[2,3,2,8]", "float32[8]", "float32[8]", f"float16{_skip}", "float16[8]", groups=2, activation=1
        )
        _op.example("float32[2,3,2,8]", "float32[8]", "float32[8]", f"float32{_skip}", groups=2, activation=0)
nhwc_group_norm.example("float32[2,3,2,8]", "float32[8]", "float32[8]", groups=2, activation=0, epsilon=0.01)
nhwc_group_norm.example("float32[1,4,2,6]", "float32[6]", "float32[6]", groups=3, activation=1)

# PyTorch exports a group norm as an instance norm of groups, which is scaled and shifted for each
# channel. In single precision channels last is slower by itself, as for convolutions.
_GROUPS = "reshape(instance_norm(reshape({x}, shape=s), u, v, epsilon=e), shape=t)"
_IMAGE = "len(s) == 3 and len(t) == 4 and s[0] == t[0] and t[1] % s[1] == 0 and value(u) == 1 and value(v) == 0"
_FIRST = f"rank(x) == 4 and t == shape(x) and {_IMAGE} and dtype(x) == 'float16'"
_LAST = f"rank(x) == 4 and t == at(shape(x), (0, 3, 1, 2)) and {_IMAGE} and dtype(x) in ('float16', 'float32')"
_CHANNEL = "rank(g) == rank(b) == 3 and shape(g) == shape(b) == (t[1], 1, 1) and is_weight(g) and is_weight(b)"
_GIVEN = "u: {0}(2), v: {0}(2){1} | s: (n, 2, 2*c*h*w), t: (n, 4*c, h, w), e: 0.01"
_PLAIN = ("expand(1, shape=(t[1],))", "expand(0, shape=(t[1],))")
_OWN = ("reshape(g, shape=(t[1],))", "reshape(b, shape=(t[1],))")


def _norm(image: str, scales: tuple[str, str]) -> str:
    """The runtime's operator with weights in the data's dtype."""
    own = ", ".join(f"cast({each}, to='float32')" for each in scales)
    return f"nhwc_group_norm({image}, {own}, groups=s[1], activation=0, epsilon=e)"


for _before, _scales, _where, _more in (
    ("{}", _PLAIN, "", ""),
    ("add(mul({}, g), b)", _OWN, f" and {_CHANNEL}", ", g: {0}(4*c, 1, 1), b: {0}(4*c, 1, 1)"),
):
    _first, _last = (_before.format(_GROUPS.format(x=x)) for x in ("x", "transpose(x, perm=(0, 3, 1, 2))"))
    _given = [_GIVEN.format(dtype, _more.format(dtype)) for dtype in ("float16", "float32")]
    nhwc_group_norm.laws(
        f"""
        {_first} == transpose({_norm("transpose(x, perm=(0, 2, 3, 1))", _scales)}, perm=(0, 3, 1, 2)) where {_FIRST}{_where}
        given x: float16(n, 4*c, h, w), {_given[0]}
        """,
        moving=True,
    )
    nhwc_group_norm.laws(f"""
        transpose({_last}, perm=(0, 2, 3, 1)) == {_norm("x", _scales)} where {_LAST}{_where}
        given x: float32(n, h, w, 4*c), {_given[1]}
    """)
nhwc_group_norm.laws("""
    transpose(group_norm(transpose(x, perm=(0, 3, 1, 2)), s, t, num_groups=g, epsilon=e), perm=(0, 2, 3, 1)) \
        == nhwc_group_norm(x, s, t, groups=g, activation=0, epsilon=e) \
        where rank(x) == 4 and dtype(x) == "float32"
    given x: (n, h, w, 4*c), s: (4*c), t: (4*c) | g: 2, e: 0.01
""")
_LETTERS = "x: float16(n, h, w, 4*c), s: (4*c), t: (4*c), y: float16(n, h, w, 4*c)"
for _op, _skip, _around in (
    (nhwc_group_norm, "", "{}"),
    (nhwc_group_norm, "", "transpose({}, perm=p)"),
    (nhwc_skip_group_norm, ", y", "{}"),
):
    _plain, _silu = (_around.format(f"{_op.name}(x, s, t{_skip}, activation={i}, **a)") for i in (0, 1))
    _perm = "p: (0, 3, 1, 2), " if "perm" in _around else ""
    _given = f"given {_LETTERS if _skip else _LETTERS.partition(', y')[0]} | {_perm}a: {{groups: 2, epsilon: 0.01}}"
    _op.laws(f"""
        mul({_plain}, sigmoid({_plain})) == {_silu}
        {_given}
        quick_gelu({_plain}, alpha=1.0) == {_silu}
        {_given}
    """)
_GIVEN_SUM = f"given {_LETTERS} | a: {{groups: 2, activation: 1, epsilon: 0.01}}"
nhwc_skip_group_norm.laws(f"""
    nhwc_group_norm(add(x, y), s, t, **a) == nhwc_skip_group_norm(x, s, t, y, **a)  where shape(x) == shape(y)
    {_GIVEN_SUM}
    nhwc_group_norm(add(x, unsqueeze(y, axes=(1, 2))), s, t, **a) \
        == nhwc_skip_group_norm(x, s, t, y, **a) \
        where rank(x) == 4 and shape(y) == at(shape(x), (0, 3))
    {_GIVEN_SUM.replace("y: float16(n, h, w, 4*c)", "y: float16(n, 4*c)")}
""")
nhwc_skip_group_norm_sum.laws(f"""
    (nhwc_group_norm(add(x, y), s, t, **a), add(x, y)) \
        == (item(nhwc_skip_group_norm_sum(x, s, t, y, **a), index=0), item(nhwc_skip_group_norm_sum(x, s, t, y, **a), \
            index=1)) \
        where shape(x) == shape(y)
    {_GIVEN_SUM}
""")
