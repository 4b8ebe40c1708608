"""Transposed convolution."""

from op_specs.arithmetic import add
from op_specs.conv import check_bias, check_window, kernel_shape
from op_specs.reshape import reshape
from taso_mirage.errors import Unsupported
from taso_mirage.operators.ops import Call, Ints, op


@op(onnx="ConvTranspose", since=1, windowed=True, kernel=1, layout=True)
def conv_transpose(
    xp, x, w, b=None, *, strides: Ints, pads: Ints, dilations: Ints, output_padding: Ints, group: int = 1
):
    """(n,g*c,h,w), (g*c,o,i,j), (g*o) -> (n,g*o,h',w'), h' = (h-1)*stride + (i-1)*dilation + 1 -
    pads + output_padding

    A convolution with the flipped kernel over the data with stride - 1 zeros between neighbours.
    """
    spatial = xp.rank(x) - 2
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": output_padding}
    if b is not None:
        check_bias(xp, b, group * xp.shape(w)[1])
        result = conv_transpose(xp, x, w, **attrs, group=group)
        return add(xp, result, reshape(xp, b, shape=(1, xp.shape(b)[0], *(1,) * spatial)))
    check_window(xp, x, w, strides, pads, dilations)
    kernel = xp.shape(w)[2:]
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    low = [r - p for r, p in zip(reach, pads[:spatial], strict=True)]
    high = [r - p + extra for r, p, extra in zip(reach, pads[spatial:], output_padding, strict=True)]
    spread = xp.pad(x, (0, 0, *low), (0, 0, *high), interior=(0, 0, *[s - 1 for s in strides]))
    views = xp.window(spread, range(2, spatial + 2), kernel, (1,) * spatial, dilations)
    for axis in range(2, spatial + 2):
        w = xp.slice(w, axis, kernel[axis - 2] - 1, -1, -1)
    n, c, *rest = xp.shape(views)
    o = xp.shape(w)[1]
    views = xp.reshape(views, (n, group, c // group, *rest))
    weights = xp.reshape(w, (group, c // group, o, *kernel))
    at, letters = "xyz"[:spatial], "ijk"[:spatial]
    result = xp.contract(f"ngc{at}{letters},gco{letters}->ngo{at}", views, weights)
    return xp.reshape(result, (n, group * o, *rest[:spatial]))


@conv_transpose.importer
def _(call: Call):
    x, w = call.arg(0), call.arg(1)
    kernel = w.shape[2:]
    if tuple(call.attrs.get("kernel_shape", kernel)) != kernel:
        raise Unsupported(f"ConvTranspose with kernel_shape {call.attrs['kernel_shape']} and weights {w.shape}")
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    strides, dilations = (tuple(call.attrs.get(name, ones)) for name in ("strides", "dilations"))
    extra = tuple(call.attrs.get("output_padding", zeros))
    pads, extra = _pads(call, x.shape[2:], kernel, strides, dilations, extra)
    group = call.attrs.get("group", 1)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": extra, "group": group}
    return conv_transpose.term(x, w, call.arg(2), **attrs)


def _pads(call: Call, sizes, kernel, strides, dilations, extra) -> tuple[Ints, Ints]:
    """Pads and output_padding: as given, or so that the result has the shape that auto_pad or
    output_shape asks for."""
    auto = call.attrs.get("auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    wanted, none = call.attrs.get("output_shape"), (0,) * (2 * len(kernel))
    if wanted is None and not auto.startswith("SAME"):
        return (tuple(call.attrs.get("pads", none)) if auto == "NOTSET" else none), extra
    if wanted is None:
        wanted = [n * s for n, s in zip(sizes, strides, strict=True)]
    rows = zip(sizes, kernel, strides, dilations, extra, wanted[-len(kernel) :], strict=True)
    totals = [(n - 1) * s + e + (k - 1) * d + 1 - size for n, k, s, d, e, size in rows]
    if not all(isinstance(t, int) for t in totals):
        raise Unsupported(f"ConvTranspose to {wanted} positions from {sizes}")
    small, large = (tuple(max(f(t), 0) for t in totals) for f in (lambda t: t // 2, lambda t: t - t // 2))
    extra = tuple(e + max(-t, 0) for e, t in zip(extra, totals, strict=True))
    return (small + large if auto == "SAME_UPPER" else large + small), extra


@conv_transpose.exporter
def _(node, opset: int) -> Call:
    if any(p < 0 for p in node.attr("pads")):
        raise Unsupported(f"ConvTranspose with pads {node.attr('pads')}")
    return Call("ConvTranspose", node.args, {**kernel_shape(node.args[1].shape[2:]), **dict(node.attrs)}, opset)


_PLAIN = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "output_padding": (0, 0)}
conv_transpose.example("float32[1,2,3,3]", "float32[2,3,3,3]", **_PLAIN)
conv_transpose.example(
    "float32[2,4,3,2]", "float32[4,3,2,3]", "float32[6]", **{**_PLAIN, "group": 2, "pads": (1, 0, 0, 1)}
)
conv_transpose.example(
    "float32[1,2,3,3]",
    "float32[2,3,3,3]",
    **{**_PLAIN, "strides": (2, 3), "output_padding": (1, 0), "pads": (1, 1, 1, 1)},
)
conv_transpose.example("float32[1,2,3,3]", "float32[2,1,2,2]", "float32[1]", **{**_PLAIN, "dilations": (2, 3)})
conv_transpose.example(
    "float32[1,2,4]", "float32[2,3,4]", strides=(2,), pads=(1, 2), dilations=(1,), output_padding=(1,)
)

conv_transpose.laws("""
    conv_transpose(add(x, y), w, **a) \
        == add(conv_transpose(x, w, **a), conv_transpose(y, w, **a)) \
        where shape(x) == shape(y)
    conv_transpose(x, add(v, w), **a) \
        == add(conv_transpose(x, v, **a), conv_transpose(x, w, **a)) \
        where shape(v) == shape(w)
    mul(conv_transpose(x, w, **a), c) == conv_transpose(x, mul(w, c), **a)  where rank(c) == 0 and is_weight(w)
    mul(conv_transpose(x, w, group=1, **a), c) \
        == conv_transpose(x, mul(w, c), group=1, **a) \
        where shape(c) == (dim(w, 1),) + (1,) * (rank(x) - 2) and is_weight(w) and is_weight(c)
    add(conv_transpose(x, w, group=1, **a), c) \
        == conv_transpose(x, w, reshape(c, shape=(dim(w, 1),)), group=1, **a) \
        where shape(c) == (dim(w, 1),) + (1,) * (rank(x) - 2) and is_weight(c)
    concat(conv_transpose(x, v, group=1, **a), conv_transpose(x, w, group=1, **a), axis=1) \
        == conv_transpose(x, concat(v, w, axis=1), group=1, **a) \
        where shape(v)[2:] == shape(w)[2:]
    concat(conv_transpose(x, w, **a), conv_transpose(y, w, **a), axis=0) \
        == conv_transpose(concat(x, y, axis=0), w, **a) \
        where shape(x)[1:] == shape(y)[1:]
    mul(conv_transpose(x, w, b, **a), c) \
        == conv_transpose(x, mul(w, c), mul(b, c), **a) \
        where rank(c) == 0 and is_weight(w) and is_weight(b) and is_weight(c)
    add(conv_transpose(x, w, b, **a), c) \
        == conv_transpose(x, w, add(b, reshape(c, shape=(dim(b, 0),))), **a) \
        where shape(c) == (dim(b, 0),) + (1,) * (rank(x) - 2) and is_weight(b) and is_weight(c)
    given x: (n, 2*c, h, k), w: (2*c, o, 3, 2), b: (2*o), c: (2*o, 1, 1) \
        | a: {strides: (2, 1), pads: (1, 0, 0, 1), dilations: (1, 1), output_padding: (1, 0), group: 2}
    add(conv_transpose(x, w, b, **a), c) \
        == conv_transpose(x, w, add(b, c), **a) \
        where rank(c) == 0 and is_weight(b) and is_weight(c)
    given x: (n, 2*c, h, k), w: (2*c, o, 3, 2), b: (2*o), c: () \
        | a: {strides: (2, 1), pads: (1, 0, 0, 1), dilations: (1, 1), output_padding: (1, 0), group: 2}
""")
