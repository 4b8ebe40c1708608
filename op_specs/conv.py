"""Convolution over one to three axes."""

from op_specs.arithmetic import add
from op_specs.reshape import reshape
from taso_mirage.dims import Symbolic
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ops import Call, Dims, Ints, op


@op(onnx="Conv", since=1)
def conv(xp, x, w, b=None, *, strides: Ints, pads: Ints, dilations: Ints, group: int = 1):
    """(n,g*c,h,w), (g*o,c,i,j), (g*o) -> (n,g*o,h',w'); one to three axes; pads are (low..., high...)"""
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    spatial = xp.rank(x) - 2
    if b is not None:
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
    """Strides, pads and dilations spelled out; auto_pad becomes pads."""
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
    """How much padding gives ceil(n / stride) positions."""
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
    return Call("Conv", node.args, {"kernel_shape": node.args[1].shape[2:], **dict(node.attrs)}, opset)


conv.example("float32[2,3,5,5]", "float32[4,3,3,3]", strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
conv.example("float32[1,3,5,6]", "float32[4,3,3,2]", "float32[4]", strides=(2, 1), pads=(0, 1, 1, 0), dilations=(1, 1))
conv.example("float32[1,4,5,5]", "float32[6,2,3,3]", strides=(1, 1), pads=(2, 2, 2, 2), dilations=(2, 2), group=2)
conv.example("float32[1,4,5,5]", "float32[4,1,3,3]", "float32[4]", strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=4)
conv.example("float32[2,4,3,3]", "float32[5,4,1,1]", strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))
conv.example("float32[1,4,6,6]", "float32[8,1,2,2]", strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), group=4)
conv.example("float32[2,3,7]", "float32[4,3,3]", "float32[4]", strides=(2,), pads=(1, 2), dilations=(1,))
conv.example("float32[1,2,3,4,5]", "float32[3,2,2,3,1]", strides=(1, 1, 2), pads=(0, 1, 0, 1, 0, 0), dilations=(1, 1, 1))
