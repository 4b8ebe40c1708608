"""Enlarging by whole factors, each element repeated (ONNX's Resize and Upsample of mode
nearest)."""

import math

import numpy as np

from op_specs.expand import expand
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import ABSENT, constant
from taso_mirage.operators.ops import Call, Ints, extents, op

EXACT = 1 << 24
"""The largest integer up to which single precision represents all integers."""


@op(onnx="Resize", since=10)
def resize(xp, x, *, factors: Ints):
    """(n,c,h,w) -> (n,c,h*factors[2],w*factors[3]): position i shows i // factor"""
    shape = xp.shape(x)
    if len(factors) != len(shape):
        raise IllTyped(f"{len(factors)} factors for a tensor of rank {len(shape)}")
    pairs = list(zip(shape, factors, strict=True))
    apart = reshape(xp, x, shape=tuple(d for n, _ in pairs for d in (n, 1)))
    return reshape(
        xp, expand(xp, apart, shape=tuple(d for p in pairs for d in p)), shape=tuple(n * f for n, f in pairs)
    )


_SAME = {
    "asymmetric": {"floor"},
    "half_pixel": {"round_prefer_floor", "round_prefer_ceil"},
    "half_pixel_symmetric": {"round_prefer_floor", "round_prefer_ceil"},
}
"""The conventions under which a whole factor shows element i // factor at position i."""


@resize.importer
def _(call: Call):
    x = call.arg(0)
    if call.attrs.get("mode", "nearest") != "nearest":
        raise Unsupported(f"Resize of mode {call.attrs['mode']}")
    coordinates = call.attrs.get("coordinate_transformation_mode", "half_pixel" if call.opset >= 11 else "asymmetric")
    rounding = call.attrs.get("nearest_mode", "round_prefer_floor" if call.opset >= 11 else "floor")
    if rounding not in _SAME.get(coordinates, ()):
        raise Unsupported(f"Resize of mode nearest with {coordinates} and {rounding}")
    if call.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unsupported(f"Resize with {call.attrs['keep_aspect_ratio_policy']}")
    axes = [a + x.tensor.rank if a < 0 else a for a in call.attrs.get("axes", range(x.tensor.rank))]
    given = dict(zip(axes, _factors(call, [x.shape[a] for a in axes]), strict=True))
    return resize.term(x, factors=[given.get(i, 1) for i in range(x.tensor.rank)])


def _factors(call: Call, have: list[Dim]) -> Ints:
    sizes = call.arg(3)
    if call.opset >= 11 and sizes is not ABSENT:
        return tuple(_ratio(n, m) for n, m in zip(have, call.extents(3), strict=True))
    scales = call.numbers(1 if call.opset < 11 else 2)
    if scales is None:
        raise Unsupported("Resize without scales and sizes")
    return _whole(scales)


def _ratio(n: Dim, m: Dim) -> int:
    factor = m // n
    if not isinstance(factor, int) or factor * n != m:
        raise Unsupported(f"Resize from {n} to {m}")
    return factor


def _whole(scales) -> Ints:
    """Scales that are whole numbers above 0."""
    if any(s < 1 or s != math.floor(s) for s in scales):
        raise Unsupported(f"Resize by {tuple(float(s) for s in scales)}")
    return tuple(int(s) for s in scales)


@resize.exporter
def _(node, opset: int) -> Call:
    """By scales, which need no sizes of a run, and with which ONNX Runtime's CPU provider keeps a
    blocked layout; as they are multiplied in single precision, by sizes where these are large."""
    (x,) = node.args
    scales = constant(np.array(node.attr("factors"), np.float32))
    if opset < 11:
        return Call("Resize", (x, scales), {"mode": "nearest"}, opset)
    nearest = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    empty = constant(np.zeros(0, np.float32)) if opset < 13 else ABSENT
    if any(isinstance(d, int) and d > EXACT for d in node.shape):
        return Call("Resize", (x, empty, empty, extents(node.shape)), nearest, opset)
    return Call("Resize", (x, empty, scales), nearest, opset)


resize.example("float32[1,2,3,4]", factors=(1, 1, 2, 3))
resize.example("float32[2,2,3,2]", factors=(1, 1, 1, 2))
resize.example("float32[1,2,3,4]", factors=(1, 1, 4, 4))


@op(onnx="Upsample", since=7, until=9)
def upsample(xp, x, *, factors: Ints):
    """Resize as it was called before opset 10"""
    return resize(xp, x, factors=factors)


@upsample.importer
def _(call: Call):
    if call.attrs.get("mode", "nearest") != "nearest":
        raise Unsupported(f"Upsample of mode {call.attrs['mode']}")
    scales = call.attrs["scales"] if call.opset < 9 else call.numbers(1)
    if scales is None:
        raise Unsupported("Upsample without scales")
    return upsample.term(call.arg(0), factors=_whole(scales))


@upsample.exporter
def _(node, opset: int) -> Call:
    scales = tuple(float(f) for f in node.attr("factors"))
    if opset < 9:
        return Call("Upsample", node.args, {"mode": "nearest", "scales": scales}, opset)
    return Call("Upsample", (*node.args, constant(np.array(scales, np.float32))), {"mode": "nearest"}, opset)


upsample.example("float32[1,2,3,4]", factors=(1, 1, 2, 3))

for _f in ((1, 1, 4, 5), (1, 1, 5, 1)):  # uses on single pixels, for the laws below
    resize.example("float32[2,3,1,1]", factors=_f)

# A tensor of one number for each channel is spread over its image before a product by an operator
# in the layout of the other factor (squeeze and excite).
_SPREAD = "where rank(x) == 4 and rank(s) == 4 and shape(s) == shape(x)[:2] + (1, 1) and shape(x)[2:] != (1, 1)"
resize.laws(
    f"""
    mul(x, reshape(s, shape=t)) == mul(x, resize(global_average_pool(reshape(s, shape=t)), factors=(1, 1) + shape(x)[2:])) \
        {_SPREAD.replace("rank(s)", "len(t)").replace("shape(s)", "t")}
    given x: (n, c, 4, 5), s: (n, c) | t: (n, c, 1, 1)
    mul(x, s) == mul(x, resize(s, factors=(1, 1) + shape(x)[2:])) \
        {_SPREAD}
    given x: (n, c, 4, 5), s: (n, c, 1, 1)
""",
    together=True,
)
