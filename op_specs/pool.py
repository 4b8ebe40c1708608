"""Pooling over one to three axes, and over all of them."""

from collections.abc import Iterator

import numpy as np

from op_specs.conv import seen, windows
from op_specs.reductions import reduce_l2, reduce_max, reduce_mean
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.terms import constant, is_float, numpy_dtype
from taso_mirage.operators.ops import Call, Dims, Ints, op, term
from taso_mirage.operators.slicing import sizes


@op(onnx="MaxPool", since=1, windowed=True, layout=True)
def max_pool(xp, x, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints):
    """(n,c,h,w) -> (n,c,h',w'), the largest of each window; padding is below everything"""
    views = _windows(xp, x, kernel, strides, pads, dilations, _lowest(xp.dtype(x)))
    return xp.reduce(np.maximum, views, _last(xp, views, kernel), False)


def _lowest(dtype: str) -> float:
    return -np.inf if is_float(dtype) else int(np.iinfo(numpy_dtype(dtype)).min)


def _windows(xp, x, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, value: float = 0):
    spatial = len(kernel)
    if (
        not 1 <= spatial <= 3
        or xp.rank(x) != spatial + 2
        or not len(strides) == len(dilations) == spatial == len(pads) / 2
    ):
        raise IllTyped(f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads} for rank {xp.rank(x)}")
    _check_channels(xp, x)
    padded = xp.pad(x, (0, 0, *pads[:spatial]), (0, 0, *pads[spatial:]), value)
    return xp.window(padded, range(2, spatial + 2), kernel, strides, dilations)


def _check_channels(xp, x) -> None:
    if xp.shape(x)[1] == 0:
        raise IllTyped("a pool of no channels, which the runtime refuses")


def _last(xp, views, kernel: Ints) -> range:
    return range(xp.rank(views) - len(kernel), xp.rank(views))


@max_pool.importer
def _(call: Call):
    if call.outputs > 1:
        raise Unsupported("MaxPool with indices")
    attrs = pool_attributes(call)
    extra = attrs.pop("extra")
    attrs["pads"] = attrs["pads"][: len(extra)] + _plus(attrs["pads"][len(extra) :], extra)
    return max_pool.term(call.arg(0), **_checked(attrs))


def _plus(xs: Ints, ys: Ints) -> Ints:
    return tuple(x + y for x, y in zip(xs, ys, strict=True))


def pool_attributes(call: Call) -> dict[str, Ints]:
    """The attributes of all windows; `extra` is how far the last window, which ceil_mode adds,
    reaches beyond the padding."""
    kernel = tuple(call.attrs["kernel_shape"])
    sizes = call.arg(0).shape[2:]
    attrs = {"kernel": kernel, **windows(call, sizes, kernel)}
    extra = (0,) * len(kernel)
    if call.attrs.get("ceil_mode", 0) and call.attrs.get("auto_pad", "NOTSET") == "NOTSET":
        attrs["kernel"] = tuple(_inside(*row) for row in _rows(sizes, **attrs))
        extra = _extra(sizes, **attrs)
    elif call.attrs.get("ceil_mode", 0) and call.attrs["auto_pad"] == "VALID":
        raise Unsupported("auto_pad VALID with ceil_mode")
    return {**attrs, "extra": extra}


def _rows(sizes: Dims, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> Iterator[tuple]:
    """The numbers of each axis."""
    lows, highs = pads[: len(kernel)], pads[len(kernel) :]
    return zip(sizes, kernel, strides, lows, highs, dilations, strict=True)


def _extra(sizes: Dims, **attrs: Ints) -> Ints:
    return tuple(_reach(*row) for row in _rows(sizes, **attrs))


def _inside(n, kernel: int, stride: int, low: int, high: int, dilation: int) -> int:
    """The kernel without what reaches beyond the padding, if there is a single window, which has
    all elements: exporters write the number of channels for the whole image."""
    if isinstance(n, Symbolic) or dilation > 1 or not 0 < kernel - (n + low + high) < stride:
        return kernel
    return n + low + high


def _reach(n, kernel: int, stride: int, low: int, high: int, dilation: int) -> int:
    """The window that ceil adds counts only if it begins inside the data or the low padding."""
    if stride == 1:
        return 0
    if isinstance(n, Symbolic):
        raise Unsupported(f"ceil_mode with stride {stride} over {n} positions depends on the size")
    span = (kernel - 1) * dilation + 1
    count = -(-(n + low + high - span) // stride) + 1
    if (count - 1) * stride >= n + low:
        count -= 1
    return max((count - 1) * stride + span - (n + low + high), 0)


def _checked(attrs: dict) -> dict:
    """Check ONNX's requirement that no window is only padding: pads are smaller than the kernel."""
    if any(p < 0 or p >= k for p, k in zip(attrs["pads"], attrs["kernel"] * 2, strict=True)):
        raise Unsupported(f"pads {attrs['pads']} for the kernel {attrs['kernel']}")
    return attrs


def _pool_call(name: str, node, opset: int, dilations_since: int, **more) -> Call:
    attrs = _checked(dict(node.attrs))
    given = {"kernel_shape": attrs["kernel"], "strides": attrs["strides"], "pads": attrs["pads"], **more}
    if opset >= dilations_since:
        given["dilations"] = attrs["dilations"]
    elif set(attrs["dilations"]) != {1}:
        raise Unsupported(f"{name} with dilations begins at opset {dilations_since}")
    return Call(name, node.args, given, opset)


@max_pool.exporter
def _(node, opset: int) -> Call:
    return _pool_call("MaxPool", node, opset, 10)


max_pool.example("float32[2,3,5,5]", kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
max_pool.example("float32[1,2,6,5]", kernel=(2, 3), strides=(2, 2), pads=(0, 1, 1, 0), dilations=(1, 1))
max_pool.example("float32[1,2,7,7]", kernel=(2, 2), strides=(1, 2), pads=(0, 0, 0, 0), dilations=(2, 3))
max_pool.example("float32[1,2,6]", kernel=(3,), strides=(2,), pads=(1, 1), dilations=(1,))
max_pool.example(
    "float32[1,1,3,4,5]", kernel=(2, 2, 2), strides=(1, 1, 2), pads=(0, 1, 0, 0, 0, 1), dilations=(1, 1, 1)
)


@op(onnx="AveragePool", since=1, windowed=True, layout=True)
def average_pool(
    xp,
    x,
    *,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    extra: Ints,
    count_include_pad: int = 0,
):
    """(n,c,h,w) -> (n,c,h',w'), the mean of each window without its padding, or with it if
    count_include_pad

    `extra` is how far the windows reach beyond the high padding (ONNX's ceil_mode); that never
    counts.
    """
    spatial = len(kernel)
    around = pads[:spatial] + _plus(pads[spatial:], extra)
    views = _windows(xp, x, kernel, strides, around, dilations)
    total = xp.sum(views, _last(xp, views, kernel), False)
    if not any(extra) and (count_include_pad or not any(pads)):
        return xp.div(total, xp.literal(int(np.prod(kernel)), x))
    ones = xp.expand(xp.literal(1, x), (1, 1, *xp.shape(x)[2:]))
    ones = xp.pad(ones, (0, 0, *pads[:spatial]), (0, 0, *pads[spatial:]), 1 if count_include_pad else 0)
    counted = _windows(xp, ones, kernel, strides, (0,) * spatial + extra, dilations)
    return xp.div(total, xp.sum(counted, _last(xp, counted, kernel), False))


@average_pool.importer
def _(call: Call):
    attrs = pool_attributes(call)
    _checked(attrs)
    return average_pool.term(call.arg(0), **attrs, count_include_pad=call.attrs.get("count_include_pad", 0))


@average_pool.exporter
def _(node, opset: int) -> Call:
    attrs, more = dict(node.attrs), {}
    extra, include = attrs.pop("extra"), attrs.pop("count_include_pad")
    if include and opset < 7:
        raise Unsupported("AveragePool with count_include_pad begins at opset 7")
    if include:
        more["count_include_pad"] = 1
    if any(extra):
        if opset < 10 or _extra(node.args[0].shape[2:], **attrs) != extra:
            raise Unsupported(f"AveragePool whose windows reach {extra} beyond the padding")
        more["ceil_mode"] = 1
    return _pool_call("AveragePool", node, opset, 19, **more)


@average_pool.traits.restriction
def _(inner, node, box):
    """Restrict a mean. Pads stay pads, because the operator decides whether they count; the
    attribute `extra` is kept."""
    attrs = dict(node.attrs)
    n = len(attrs["kernel"])
    around, low, high = seen(node, box, attrs["kernel"])
    if min(low + high) < 0:
        raise Unsupported("average_pool over nothing but padding has no restriction")
    padding = [min(h, p) for h, p in zip(high, attrs["pads"][n:], strict=True)]
    extra = [h - p for h, p in zip(high, padding, strict=True)]
    part = inner(node.args[0], (*box[:2], *around))
    return average_pool.term(part, **{**attrs, "pads": (*low, *padding), "extra": extra})


@average_pool.traits.mutant("pool to convolution")
def _(node):
    """A mean as a convolution of every channel with equal weights; wrong at a border that does not
    count."""
    if any(node.attr("extra")):
        return
    (x,), kernel = node.args, node.attr("kernel")
    c = sizes(x)[1]
    share = constant(np.prod(kernel), x.dtype)
    weights = term("div", term("expand", constant(1.0, x.dtype), shape=(c, 1, *kernel)), share)
    attrs = {name: node.attr(name) for name in ("strides", "pads", "dilations")}
    yield term("conv", x, weights, **attrs, group=c)


_POOL = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "extra": (0, 0)}
average_pool.example("float32[2,3,5,5]", **_POOL)
average_pool.example("float32[2,3,5,5]", **_POOL, count_include_pad=1)
average_pool.example("float32[1,2,6,5]", **{**_POOL, "kernel": (2, 3), "strides": (2, 2), "pads": (0, 1, 1, 0)})
average_pool.example("float32[1,2,6,6]", **{**_POOL, "strides": (2, 2), "pads": (0, 0, 0, 0), "extra": (1, 1)})
average_pool.example("float32[1,2,7,7]", **{**_POOL, "kernel": (2, 2), "pads": (0, 0, 0, 0), "dilations": (2, 3)})
average_pool.example("float32[1,2,6]", kernel=(3,), strides=(2,), pads=(1, 1), dilations=(1,), extra=(0,))


@op(onnx="LpPool", since=2, windowed=True)
def lp_pool(xp, x, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, p: int = 2):
    """(n,c,h,w) -> (n,c,h',w'): the p-norm of each window"""
    views = _windows(xp, xp.map(np.abs, x), kernel, strides, pads, dilations)
    if p == 1:
        return xp.sum(views, _last(xp, views, kernel), False)
    if p == 2:
        return xp.map(np.sqrt, xp.sum(xp.mul(views, views), _last(xp, views, kernel), False))
    power, root = xp.literal(p, x), xp.literal(1 / p, x)
    return xp.map(np.power, xp.sum(xp.map(np.power, views, power), _last(xp, views, kernel), False), root)


@lp_pool.importer
def _(call: Call):
    attrs = pool_attributes(call)
    if any(attrs.pop("extra")):
        raise Unsupported("LpPool with ceil_mode")
    return lp_pool.term(call.arg(0), **_checked(attrs), p=call.attrs.get("p", 2))


@lp_pool.exporter
def _(node, opset: int) -> Call:
    return _pool_call("LpPool", node, opset, 18, p=node.attr("p"))


lp_pool.example("float32[2,3,5,5]", kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
lp_pool.example("float32[1,2,6,5]", kernel=(2, 3), strides=(2, 2), pads=(0, 1, 1, 0), dilations=(1, 1), p=1)
lp_pool.example("float32[1,2,6,5]", kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), p=3)


def _spatial(xp, x) -> tuple[int, ...]:
    if xp.rank(x) < 3:
        raise IllTyped(f"pooling over all positions of a tensor of rank {xp.rank(x)}")
    _check_channels(xp, x)
    return tuple(range(2, xp.rank(x)))


@op(onnx="GlobalAveragePool", since=1, layout=True)
def global_average_pool(xp, x):
    """(n,c,h,w) -> (n,c,1,1), the mean"""
    return reduce_mean(xp, x, axes=_spatial(xp, x), keepdims=1)


@op(onnx="GlobalMaxPool", since=1, layout=True)
def global_max_pool(xp, x):
    """(n,c,h,w) -> (n,c,1,1), the largest"""
    return reduce_max(xp, x, axes=_spatial(xp, x), keepdims=1)


@op(onnx="GlobalLpPool", since=2)
def global_lp_pool(xp, x):
    """(n,c,h,w) -> (n,c,1,1), the 2-norm"""
    return reduce_l2(xp, x, axes=_spatial(xp, x), keepdims=1)


@global_lp_pool.importer
def _(call: Call):
    if call.attrs.get("p", 2) != 2:
        raise Unsupported(f"GlobalLpPool with p = {call.attrs['p']}")
    return global_lp_pool.term(call.arg(0))


for _each in (reduce_mean, reduce_max):  # uses on pixels, for the laws below
    _each.example("float32[2,3,4,5]", axes=(2, 3))
    _each.example("float32[2,3,4]", axes=(2,))
for _each in (global_average_pool, global_max_pool, global_lp_pool):
    _each.example("float32[2,3,4,5]")
    _each.example("float32[2,3,4]")
    _each.example("float32[1,2,3,1,2]")

max_pool.laws("""
    max_pool(pad(x, pads=p, value=-inf), kernel=k, pads=q, **a) \
        == max_pool(x, kernel=k, pads=plus(q, p[2:rank(x)] + p[rank(x) + 2:]), **a) \
        where p[:2] == (0, 0) and p[rank(x):rank(x) + 2] == (0, 0) and min(p) >= 0 and max(p) + max(q) < min(k)
    concat(max_pool(x, **a), max_pool(y, **a), axis=i) \
        == max_pool(concat(x, y, axis=i), **a) \
        where i < 2 and shape(x)[2:] == shape(y)[2:]
""")
ALL = "expand(1, shape=(1, 1) + k)"
SHARE = f"div(1, conv({ALL}, {ALL}, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1))"
"""The share of one element in a window of k: shape (1,1,1,1)."""

average_pool.laws(f"""
    average_pool(add(x, y), **a) == add(average_pool(x, **a), average_pool(y, **a))  where shape(x) == shape(y)
    average_pool(mul(x, c), **a) == mul(average_pool(x, **a), c)  where rank(c) == 0
    concat(average_pool(x, **a), average_pool(y, **a), axis=i) \
        == average_pool(concat(x, y, axis=i), **a) \
        where i < 2 and shape(x)[2:] == shape(y)[2:]
    average_pool(pad(x, pads=p), kernel=k, pads=q, count_include_pad=1, extra=(0, 0), **a) \
        == average_pool(x, kernel=k, pads=plus(q, p[2:rank(x)] + p[rank(x) + 2:]), count_include_pad=1, extra=(0, 0), \
            **a) \
        where p[:2] == (0, 0) and p[rank(x):rank(x) + 2] == (0, 0) and min(p) >= 0 and max(p) + max(q) < min(k)
    average_pool(x, pads=p, count_include_pad=0, **a) \
        == average_pool(x, pads=p, count_include_pad=1, **a) \
        where max(p) == 0
    average_pool(x, kernel=(3, 3), strides=s, pads=p, dilations=d, extra=(0, 0), count_include_pad=1) \
        == conv(x, expand(div(1, 9), shape=(dim(x, 1), 1, 3, 3)), strides=s, pads=p, dilations=d, group=dim(x, 1))
    average_pool(x, kernel=(2, 2), strides=s, pads=p, dilations=d, extra=(0, 0), count_include_pad=c) \
        == conv(x, expand(div(1, 4), shape=(dim(x, 1), 1, 2, 2)), strides=s, pads=p, dilations=d, group=dim(x, 1)) \
        where max(p) == 0 or c == 1

    # a kernel of one pixel before or after: the fewer channels are pooled, the better
    conv(average_pool(x, **a), w, strides=(1, 1), pads=(0, 0, 0, 0), **b) \
        == average_pool(conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), **b), **a) \
        where shape(w)[2:] == (1, 1)
    given x: (n, 2*c, h, k), w: (2*o, c, 1, 1) \
        | a: {{kernel: (3, 3), strides: (1, 1), pads: (1, 1, 1, 1), dilations: (1, 1), count_include_pad: 0, extra: (0, 0)}}, \
        b: {{dilations: (1, 1), group: 2}}
    # (the runtime's mean of a window in the padding alone is 0, not the bias)
    conv(average_pool(x, kernel=k, pads=p, dilations=e, extra=f, count_include_pad=c, **a), w, d, strides=(1, 1), \
        pads=(0, 0, 0, 0), **b) \
        == average_pool(conv(x, w, d, strides=(1, 1), pads=(0, 0, 0, 0), **b), kernel=k, pads=p, dilations=e, extra=f, \
            count_include_pad=c, **a) \
        where shape(w)[2:] == (1, 1) and (max(p) == 0 or (c == 0 and max(e) == 1 and max(f) == 0 and max(p) < min(k)))
    given x: (n, 2*c, h, m), w: (2*o, c, 1, 1), d: (2*o) \
        | k: (2, 3), p: (1, 1, 0, 1), e: (1, 1), f: (0, 0), c: 0, a: {{strides: (1, 1)}}, \
        b: {{dilations: (1, 1), group: 2}}
    conv(average_pool(x, pads=p, count_include_pad=1, **a), w, d, strides=(1, 1), pads=(0, 0, 0, 0), **b) \
        == add(average_pool(conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), **b), pads=p, count_include_pad=1, **a), \
            reshape(d, shape=(dim(d, 0), 1, 1))) \
        where shape(w)[2:] == (1, 1) and max(p) > 0
    given x: (n, 2*c, h, k), w: (2*o, c, 1, 1), d: (2*o) \
        | p: (1, 1, 0, 1), a: {{kernel: (2, 3), strides: (1, 1), dilations: (1, 1), extra: (0, 0)}}, \
        b: {{dilations: (1, 1), group: 2}}

    # the part of each window that is in the image does not depend on the image; the sum itself
    # could overflow in half precision
    average_pool(x, kernel=k, strides=s, pads=p, dilations=d, extra=(0, 0), count_include_pad=0) \
        == mul(conv(x, expand({SHARE}, shape=(dim(x, 1), 1) + k), strides=s, pads=p, dilations=d, group=dim(x, 1)), \
            div(1, conv(expand(1, shape=(1, 1) + shape(x)[2:]), expand({SHARE}, shape=(1, 1) + k), strides=s, pads=p, \
            dilations=d, group=1))) \
        where len(k) == 2 and max(p) > 0 and max(d) == 1 and max(p) < min(k)
""")
global_average_pool.laws(
    """
    reduce_mean(x, axes=(2, 3), keepdims=1) == global_average_pool(x)  where rank(x) == 4
""",
    together=True,
)
global_average_pool.laws("""
    reduce_mean(x, axes=(2,), keepdims=1) == global_average_pool(x)  where rank(x) == 3
    concat(global_average_pool(x), global_average_pool(y), axis=i) \
        == global_average_pool(concat(x, y, axis=i)) \
        where i < 2 and shape(x)[2:] == shape(y)[2:]
    global_average_pool(add(x, y)) == add(global_average_pool(x), global_average_pool(y))  where shape(x) == shape(y)
""")
global_max_pool.laws("""
    reduce_max(x, axes=(2, 3), keepdims=1) == global_max_pool(x)  where rank(x) == 4
    concat(global_max_pool(x), global_max_pool(y), axis=i) \
        == global_max_pool(concat(x, y, axis=i)) \
        where i < 2 and shape(x)[2:] == shape(y)[2:]
    relu(global_max_pool(x)) == global_max_pool(relu(x))
""")
