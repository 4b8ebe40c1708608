"""Convolution over one to three axes."""

from op_specs.arithmetic import add, div, mul, sub
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import Symbolic
from taso_mirage.operators.ops import Call, Dims, Ints, op
from taso_mirage.operators.slicing import cut, needed, padded_term, sizes, whole


@op(onnx="Conv", since=1, windowed=True, kernel=1, layout=True)
def conv(xp, x, w, b=None, *, strides: Ints, pads: Ints, dilations: Ints, group: int = 1):
    """(n,g*c,h,w), (g*o,c,i,j), (g*o) -> (n,g*o,h',w'); one to three axes; pads are (low...,
    high...)"""
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    spatial = xp.rank(x) - 2
    if b is not None:
        check_bias(xp, b, xp.shape(w)[0])
        channels = (1, xp.shape(w)[0], *(1,) * spatial)
        return add(xp, conv(xp, x, w, **attrs), reshape(xp, b, shape=channels))
    check_window(xp, x, w, strides, pads, dilations)
    axes = range(2, spatial + 2)
    padded = xp.pad(x, (0, 0, *pads[:spatial]), (0, 0, *pads[spatial:]))
    views = xp.window(padded, axes, xp.shape(w)[2:], strides, dilations)
    n, c, *rest = xp.shape(views)
    o = xp.shape(w)[0]
    views = xp.reshape(views, (n, group, c // group, *rest))
    weights = xp.reshape(w, (group, o // group, *xp.shape(w)[1:]))
    at, kernel = "xyz"[:spatial], "ijk"[:spatial]
    result = xp.contract(f"ngc{at}{kernel},goc{kernel}->ngo{at}", views, weights)
    return xp.reshape(result, (n, o, *rest[:spatial]))


def check_bias(xp, b, channels) -> None:
    """One number for each output channel."""
    if xp.shape(b) != (channels,):
        raise IllTyped(f"bias of shape {xp.shape(b)} for {channels} output channels")


def check_window(xp, x, w, strides: Ints, pads: Ints, dilations: Ints) -> None:
    """Ranks of data and kernel, and lengths of the attributes."""
    spatial = xp.rank(x) - 2
    if not 1 <= spatial <= 3 or xp.rank(w) != spatial + 2:
        raise IllTyped(f"data of rank {xp.rank(x)} with a kernel of rank {xp.rank(w)}; both are 3 to 5")
    if not len(strides) == len(dilations) == spatial == len(pads) / 2:
        raise IllTyped(f"strides {strides}, dilations {dilations}, pads {pads} for {spatial} axes")


@conv.importer
def _(call: Call):
    x, w = call.arg(0), call.arg(1)
    kernel = w.shape[2:]
    if tuple(call.attrs.get("kernel_shape", kernel)) != kernel:
        raise Unsupported(f"Conv with kernel_shape {call.attrs['kernel_shape']} and weights {w.shape}")
    attrs = windows(call, x.shape[2:], kernel)
    return conv.term(x, w, call.arg(2), **attrs, group=call.attrs.get("group", 1))


def windows(call: Call, sizes: Dims, kernel: Dims) -> dict[str, Ints]:
    """The attributes with explicit strides, pads and dilations; auto_pad becomes pads."""
    ones = (1,) * len(kernel)
    strides, dilations = (tuple(call.attrs.get(name, ones)) for name in ("strides", "dilations"))
    auto = call.attrs.get("auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    pads = tuple(call.attrs.get("pads", (0,) * (2 * len(kernel))))
    if auto == "VALID":
        pads = (0,) * (2 * len(kernel))
    elif auto.startswith("SAME"):
        totals = [_same(*row) for row in zip(sizes, kernel, strides, dilations, strict=True)]
        small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
        pads = small + large if auto == "SAME_UPPER" else large + small
    return {"strides": strides, "pads": pads, "dilations": dilations}


def _same(n, kernel: int, stride: int, dilation: int) -> int:
    """The padding that gives ceil(n / stride) positions."""
    span = (kernel - 1) * dilation + 1
    if stride == 1:
        return span - 1
    if isinstance(n, Symbolic):
        raise Unsupported(f"auto_pad with stride {stride} over {n} positions depends on the size")
    return max((-(-n // stride) - 1) * stride + span - n, 0)


@conv.exporter
def _(node, opset: int) -> Call:
    if any(p < 0 for p in node.attr("pads")):
        raise Unsupported(f"Conv with pads {node.attr('pads')}")
    return Call("Conv", node.args, {**kernel_shape(node.args[1].shape[2:]), **dict(node.attrs)}, opset)


def kernel_shape(sizes: Dims) -> dict[str, Dims]:
    """The attribute with the sizes of the weights' windows, where they are known."""
    return {"kernel_shape": sizes} if all(isinstance(n, int) for n in sizes) else {}


@conv.traits.batching
def _(node) -> bool:
    """Images."""
    return True


@conv.traits.absorbing
def _(node, data, margin):
    """Zeros around the axes of the image."""
    if margin.value != 0 or min(*margin.low, *margin.high) < 0 or any((*margin.low[:2], *margin.high[:2])):
        return None
    sums = [p + q for p, q in zip(node.attr("pads"), (*margin.low[2:], *margin.high[2:]), strict=True)]
    return conv.term(data, *node.args[1:], **{**dict(node.attrs), "pads": sums})


@conv.traits.restriction
def _(inner, node, box):
    """Restrict a convolution to a box. Pads become an explicit `pad` of the cut operand, so that
    corrections at different borders have one shape."""
    x, w, *bias = node.args
    groups, rows = node.attr("group"), box[1]
    out, each = sizes(w)[0] // groups, sizes(w)[1]
    first, last = rows[0] // out, -(-rows[1] // out)
    if last - first > 1 and (rows[0] % out or rows[1] % out):
        aligned = (first * out, last * out)
        inside = [(0, b - a) for a, b in box]
        inside[1] = (rows[0] - aligned[0], rows[1] - aligned[0])
        return cut(inner(node, (box[0], aligned, *box[2:])), tuple(inside))
    around, low, high = seen(node, box, sizes(w)[2:])
    part = padded_term(inner(x, (box[0], (first * each, last * each), *around)), (0, 0, *low), (0, 0, *high))
    kernel = inner(w, (rows, *whole(w)[1:]))
    shift = [inner(b, (rows,)) for b in bias]
    return conv.term(part, kernel, *shift, **{**dict(node.attrs), "pads": (0,) * (2 * len(low)), "group": last - first})


def seen(node, box, kernel):
    """The intervals of the image that the windows of a box read, and the padding before and
    after."""
    attrs = (node.attr(name) for name in ("strides", "dilations", "pads"))
    found = [needed(*row) for row in zip(sizes(node.args[0])[2:], box[2:], kernel, *attrs, strict=False)]
    return [f[0] for f in found], [f[1] for f in found], [f[2] for f in found]


conv.example("float32[2,3,5,5]", "float32[4,3,3,3]", strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
conv.example("float32[2,3,5,5]", "float32[5,3,3,3]", strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))
conv.example("float32[2,3,5,5]", "float32[3,3,3,3]", strides=(1, 1), pads=(2, 2, 2, 2), dilations=(2, 2))
conv.example("float32[2,3,5,5]", "float32[3,3,3,3]", "float32[3]", strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
conv.example("float32[2,3,5,5]", "float32[4,3,3,3]", "float32[4]", strides=(1, 1), pads=(0, 0, 1, 1), dilations=(1, 1))
conv.example("float32[1,3,5,6]", "float32[4,3,3,2]", "float32[4]", strides=(2, 1), pads=(0, 1, 1, 0), dilations=(1, 1))
conv.example("float32[1,4,5,5]", "float32[6,2,3,3]", strides=(1, 1), pads=(2, 2, 2, 2), dilations=(2, 2), group=2)
conv.example(
    "float32[1,4,5,5]", "float32[4,1,3,3]", "float32[4]", strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=4
)
conv.example("float32[2,4,3,3]", "float32[5,4,1,1]", strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))
conv.example("float32[1,4,6,6]", "float32[8,1,2,2]", strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), group=4)
conv.example("float32[2,3,7]", "float32[4,3,3]", "float32[4]", strides=(2,), pads=(1, 2), dilations=(1,))
conv.example(
    "float32[1,2,3,4,5]", "float32[3,2,2,3,1]", strides=(1, 1, 2), pads=(0, 1, 0, 1, 0, 0), dilations=(1, 1, 1)
)

for _each in (add, sub, mul, div):  # uses on channels, for the laws below
    _each.example("float32[2,3,4,5]", "float32[3,1,1]")
    _each.example("float32[2,3,4,5]", "float32[1,3,1,1]")
    _each.example("float32[2,4,3,4]", "float32[4,1,1]")

conv.laws("""
    # linear in the data and in the weights
    conv(add(x, y), w, **a) == add(conv(x, w, **a), conv(y, w, **a))  where shape(x) == shape(y)
    conv(sub(x, y), w, **a) == sub(conv(x, w, **a), conv(y, w, **a))  where shape(x) == shape(y)
    conv(x, add(v, w), **a) == add(conv(x, v, **a), conv(x, w, **a))  where shape(v) == shape(w)
    conv(x, sub(v, w), **a) == sub(conv(x, v, **a), conv(x, w, **a))  where shape(v) == shape(w)
    conv(mul(x, c), w, **a) == mul(conv(x, w, **a), c)  where rank(c) == 0
    conv(x, mul(w, c), **a) == mul(conv(x, w, **a), c)  where rank(c) == 0
    conv(neg(x), w, **a) == neg(conv(x, w, **a))
    conv(x, neg(w), **a) == neg(conv(x, w, **a))

    # scale and shift per channel go into weights and bias
    mul(conv(x, w, *b, **a), c) \
        == conv(x, mul(w, reshape(c, shape=(dim(w, 0),) + (1,) * (rank(x) - 1))), mul(*b, reshape(c, shape=(dim(w, \
            0),))), **a) \
        where shape(c) in ((dim(w, 0),) + (1,) * (rank(x) - 2), (1, dim(w, 0)) + (1,) * (rank(x) - 2)) \
            and is_weight(w) and is_weight(c) and is_weight(b)
    div(conv(x, w, *b, **a), c) \
        == conv(x, div(w, reshape(c, shape=(dim(w, 0),) + (1,) * (rank(x) - 1))), div(*b, reshape(c, shape=(dim(w, \
            0),))), **a) \
        where shape(c) in ((dim(w, 0),) + (1,) * (rank(x) - 2), (1, dim(w, 0)) + (1,) * (rank(x) - 2)) \
            and is_weight(w) and is_weight(c) and is_weight(b)
    add(conv(x, w, *b, **a), c) \
        == conv(x, w, add(*b, reshape(c, shape=(dim(w, 0),))), **a) \
        where shape(c) in ((dim(w, 0),) + (1,) * (rank(x) - 2), (1, dim(w, 0)) + (1,) * (rank(x) - 2)) \
            and is_weight(c)
    sub(conv(x, w, **a), c) \
        == conv(x, w, neg(reshape(c, shape=(dim(w, 0),))), **a) \
        where shape(c) in ((dim(w, 0),) + (1,) * (rank(x) - 2), (1, dim(w, 0)) + (1,) * (rank(x) - 2)) \
            and is_weight(c)
    sub(conv(x, w, b, **a), c) \
        == conv(x, w, sub(b, reshape(c, shape=(dim(w, 0),))), **a) \
        where shape(c) in ((dim(w, 0),) + (1,) * (rank(x) - 2), (1, dim(w, 0)) + (1,) * (rank(x) - 2)) \
            and is_weight(c)
    mul(conv(x, w, b, **a), c) \
        == conv(x, mul(w, c), mul(b, c), **a) \
        where rank(c) == 0 and is_weight(w) and is_weight(b) and is_weight(c)
    batch_norm(conv(x, w, **a), s, t, m, v, epsilon=e) \
        == conv(x, transpose(batch_norm(transpose(w, perm=(1, 0) + iota(rank(w))[2:]), s, sub(t, t), sub(m, m), v, \
            epsilon=e), perm=(1, 0) + iota(rank(w))[2:]), reshape(batch_norm(reshape(sub(m, m), shape=(1, dim(w, \
            0))), s, t, m, v, epsilon=e), shape=(dim(w, 0),)), **a) \
        where is_weight(w) and is_weight(s) and is_weight(t) and is_weight(m) and is_weight(v)
    batch_norm(conv(x, w, b, **a), s, t, m, v, epsilon=e) \
        == conv(x, transpose(batch_norm(transpose(w, perm=(1, 0) + iota(rank(w))[2:]), s, sub(t, t), sub(m, m), v, \
            epsilon=e), perm=(1, 0) + iota(rank(w))[2:]), reshape(batch_norm(reshape(b, shape=(1, dim(w, 0))), s, t, \
            m, v, epsilon=e), shape=(dim(w, 0),)), **a) \
        where is_weight(w) and is_weight(b) and is_weight(s) and is_weight(t) and is_weight(m) and is_weight(v)
    add(conv(x, w, b, **a), y) \
        == add(conv(x, w, **a), add(y, reshape(b, shape=(dim(w, 0),) + (1,) * (rank(x) - 2)))) \
        where is_weight(y)
    add(conv(x, w, b, **a), conv(y, v, c, **a)) == add(conv(x, w, add(b, c), **a), conv(y, v, **a))

    # padding with zeros
    conv(pad(x, pads=p), w, *b, pads=q, **a) \
        == conv(x, w, *b, pads=plus(q, p[2:rank(x)] + p[rank(x) + 2:]), **a) \
        where p[:2] == (0, 0) and p[rank(x):rank(x) + 2] == (0, 0) and min(p) >= 0

    # one kernel for several outputs; false for groups, whose concatenated weights would meet other
    # channels
    (conv(x, v, c, group=1, **a), conv(x, w, d, group=1, **a)) \
        == (item(split(conv(x, concat(v, w, axis=0), concat(c, d, axis=0), group=1, **a), axis=1, split=(dim(v, 0), \
            dim(w, 0))), index=0), item(split(conv(x, concat(v, w, axis=0), concat(c, d, axis=0), group=1, **a), \
            axis=1, split=(dim(v, 0), dim(w, 0))), index=1)) \
        where shape(v)[1:] == shape(w)[1:] and is_weight(v) and is_weight(w)
    (conv(x, u, *b, group=1, **a), conv(x, v, *c, group=1, **a), conv(x, w, *d, group=1, **a)) \
        == (item(split(conv(x, concat(u, v, w, axis=0), concat(*b, *c, *d, axis=0), group=1, **a), axis=1, \
            split=(dim(u, 0), dim(v, 0), dim(w, 0))), index=0), item(split(conv(x, concat(u, v, w, axis=0), concat(*b, \
            *c, *d, axis=0), group=1, **a), axis=1, split=(dim(u, 0), dim(v, 0), dim(w, 0))), index=1), \
            item(split(conv(x, concat(u, v, w, axis=0), concat(*b, *c, *d, axis=0), group=1, **a), axis=1, \
            split=(dim(u, 0), dim(v, 0), dim(w, 0))), index=2)) \
        where shape(u)[1:] == shape(w)[1:] and shape(v)[1:] == shape(w)[1:] and is_weight(u) and is_weight(v) \
            and is_weight(w)
    (conv(x, k, group=1, **a), conv(x, u, group=1, **a), conv(x, v, group=1, **a), conv(x, w, group=1, **a)) \
        == (item(split(conv(x, concat(k, u, v, w, axis=0), group=1, **a), axis=1, split=(dim(k, 0), dim(u, 0), dim(v, \
            0), dim(w, 0))), index=0), item(split(conv(x, concat(k, u, v, w, axis=0), group=1, **a), axis=1, \
            split=(dim(k, 0), dim(u, 0), dim(v, 0), dim(w, 0))), index=1), item(split(conv(x, concat(k, u, v, w, \
            axis=0), group=1, **a), axis=1, split=(dim(k, 0), dim(u, 0), dim(v, 0), dim(w, 0))), index=2), \
            item(split(conv(x, concat(k, u, v, w, axis=0), group=1, **a), axis=1, split=(dim(k, 0), dim(u, 0), dim(v, \
            0), dim(w, 0))), index=3)) \
        where shape(k)[1:] == shape(w)[1:] and shape(u)[1:] == shape(w)[1:] and shape(v)[1:] == shape(w)[1:] \
            and is_weight(k) and is_weight(u) and is_weight(v) and is_weight(w)
    (relu(conv(x, v, c, group=1, **a)), relu(conv(x, w, d, group=1, **a))) \
        == (item(split(relu(conv(x, concat(v, w, axis=0), concat(c, d, axis=0), group=1, **a)), axis=1, split=(dim(v, \
            0), dim(w, 0))), index=0), item(split(relu(conv(x, concat(v, w, axis=0), concat(c, d, axis=0), group=1, \
            **a)), axis=1, split=(dim(v, 0), dim(w, 0))), index=1)) \
        where shape(v)[1:] == shape(w)[1:] and is_weight(v) and is_weight(w)
    concat(conv(x, v, *c, group=1, **a), conv(x, w, *d, group=1, **a), axis=1) \
        == conv(x, concat(v, w, axis=0), concat(*c, *d, axis=0), group=1, **a) \
        where shape(v)[1:] == shape(w)[1:]
    concat(conv(x, w, *b, **a), conv(y, w, *b, **a), axis=0) \
        == conv(concat(x, y, axis=0), w, *b, **a) \
        where shape(x)[1:] == shape(y)[1:]
    concat(conv(x, v, group=g, **a), conv(y, w, group=h, **a), axis=1) \
        == conv(concat(x, y, axis=1), concat(v, w, axis=0), group=g + h, **a) \
        where shape(v)[1:] == shape(w)[1:] and dim(v, 0) * h == dim(w, 0) * g and shape(x)[2:] == shape(y)[2:]

    # other shapes of the same convolution
    conv(x, w, pads=p, dilations=(1, 1), **a) \
        == conv(x, pad(w, pads=(0, 0, 1, 0, 0, 0, 1, 0)), pads=plus(p, (1, 0, 1, 0)), dilations=(1, 1), **a) \
        where shape(w)[2:] == (1, 3) and is_weight(w)
    conv(x, w, pads=p, dilations=(1, 1), **a) \
        == conv(x, pad(w, pads=(0, 0, 0, 1, 0, 0, 0, 1)), pads=plus(p, (0, 1, 0, 1)), dilations=(1, 1), **a) \
        where shape(w)[2:] == (3, 1) and is_weight(w)
    conv(x, w, *b, pads=p, dilations=(1, 1), **a) \
        == conv(x, pad(w, pads=(0, 0, 1, 1, 0, 0, 1, 1)), *b, pads=plus(p, (1, 1, 1, 1)), dilations=(1, 1), **a) \
        where shape(w)[2:] == (1, 1) and is_weight(w)
    conv(x, w, *b, strides=(2, 2), pads=(0, 0, 0, 0), **a) \
        == conv(slice(x, starts=(0, 0), ends=(dim(x, 2), dim(x, 3)), axes=(2, 3), steps=(2, 2)), w, *b, strides=(1, \
            1), pads=(0, 0, 0, 0), **a) \
        where shape(w)[2:] == (1, 1)
    conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=d) \
        == reshape(matmul(reshape(w, shape=(dim(w, 0), dim(w, 1))), reshape(x, shape=(dim(x, 0), dim(x, 1), dim(x, \
            2) * dim(x, 3)))), shape=(dim(x, 0), dim(w, 0), dim(x, 2), dim(x, 3))) \
        where shape(w)[2:] == (1, 1)

    # pairs of groups as one, with zeros where a group would see the other's channels; PET, section
    # 3
    conv(x, w, *b, group=g, **a) \
        == conv(x, reshape(concat(pad(slice(reshape(w, shape=(g // 2, 2, dim(w, 0) // g) + shape(w)[1:]), starts=(0,), \
            ends=(1,), axes=(1,), steps=(1,)), pads=(0,) * (rank(w) + 5) + (dim(w, 1),) + (0,) * (rank(w) - 2)), \
            pad(slice(reshape(w, shape=(g // 2, 2, dim(w, 0) // g) + shape(w)[1:]), starts=(1,), ends=(2,), \
            axes=(1,), steps=(1,)), pads=(0, 0, 0, dim(w, 1)) + (0,) * (2 * rank(w))), axis=1), shape=(dim(w, 0), \
            2 * dim(w, 1)) + shape(w)[2:]), *b, group=g // 2, **a) \
        where g % 2 == 0 and is_weight(w)

    # all groups as one
    conv(x, w, *b, group=g, **a) \
        == conv(x, reshape(where(reshape(eye_like(expand(0, shape=(g, g)), dtype="bool"), shape=(g, 1, g) + (1,) * (rank(w) - 1)), \
            reshape(w, shape=(g, dim(w, 0) // g, 1) + shape(w)[1:]), 0), shape=(dim(w, 0), g * dim(w, 1)) + shape(w)[2:]), \
            *b, group=1, **a) \
        where g > 2 and dim(w, 1) > 1 and is_weight(w)
    given x: (n, 4*c, h, k), w: (4*o, c, 3, 3), b: (4*o) \
        | g: 4, a: {dilations: (1, 1), pads: (1, 1, 1, 1), strides: (1, 1)}

    # a column kernel is a row kernel on the transposed image
    conv(x, w, *b, strides=s, pads=p, dilations=d, group=g) \
        == transpose(conv(transpose(x, perm=(0, 1, 3, 2)), transpose(w, perm=(0, 1, 3, 2)), *b, strides=reversed(s), \
            pads=at(p, (1, 0, 3, 2)), dilations=reversed(d), group=g), perm=(0, 1, 3, 2)) \
        where rank(x) == 4 and dim(w, 3) == 1 and dim(w, 2) > 1 and is_weight(w)
""")
