"""Images at other sizes: every mode of ONNX's Resize whose sizes are fixed but repetition by whole
factors, which is `resize`."""

import math
from fractions import Fraction

import numpy as np

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.terms import ABSENT, Literal, constant, numpy_dtype
from taso_mirage.operators.ops import Call, Floats, Ints, extents, op

DTYPES = ("float32", "float64")
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = {
    "round_prefer_floor": lambda at: math.ceil(at - Fraction(1, 2)),
    "round_prefer_ceil": lambda at: math.floor(at + Fraction(1, 2)),
    "floor": math.floor,
    "ceil": math.ceil,
}


@op(onnx="Resize", since=11)
def resample(
    xp,
    x,
    *,
    axes: Ints,
    sizes: Ints,
    scales: Floats = (),
    mode: str = "linear",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    cubic: float = -0.75,
    inside: int = 0,
):
    """(..., n, ...) -> (..., m, ...) at each of `axes`: position i is a mean of those around its
    coordinate in x (Keys, "Cubic convolution interpolation", 1981).

    `scales` are m / n unless given; with `inside` positions beyond the edge have no weight.
    """
    shape = xp.shape(x)
    if xp.dtype(x) not in DTYPES:
        raise IllTyped(f"dtype {xp.dtype(x)}; {' and '.join(DTYPES)} can be resampled")
    if not len(axes) == len(sizes) == len(scales or axes) or any(not 0 <= a < len(shape) for a in axes):
        raise IllTyped(f"axes {axes}, sizes {sizes} and scales {scales} for a tensor of rank {len(shape)}")
    for i, (axis, m) in enumerate(zip(axes, sizes, strict=True)):
        n = shape[axis]
        if isinstance(n, Symbolic) or n < 1 or m < 1:
            raise IllTyped(f"dimension {axis} of size {n} cannot be resampled to {m}")
        if m > LONGEST:
            raise IllTyped(f"dimension {axis} of size {n} to {m}: up to {LONGEST} positions are resampled")
        if scales and m != _scaled(n, scales[i]):
            raise IllTyped(f"dimension {axis} of size {n}, scaled by {scales[i]}, is {_scaled(n, scales[i])}, not {m}")
        at = _positions(n, m, Fraction(scales[i]) if scales else Fraction(m, n), coordinates)
        x = _mean(xp, x, axis, _taps(at, n, mode, rounding, Fraction(cubic), inside))
    return x


def _positions(n: int, m: int, scale: Fraction, coordinates: str) -> list[Fraction]:
    """Where the m positions of the result lie among the n of the operand."""
    if coordinates == "align_corners":
        return [Fraction(i * (n - 1), m - 1) if m > 1 else Fraction(0) for i in range(m)]
    if coordinates == "asymmetric":
        return [i / scale for i in range(m)]
    offset = Fraction(0)
    if coordinates == "half_pixel_symmetric":
        offset = Fraction(n, 2) * (1 - m / (scale * n))
    if coordinates not in COORDINATES or (coordinates == "pytorch_half_pixel" and m == 1):
        raise IllTyped(f"the coordinates {coordinates} of {m} positions")
    return [offset + (i + Fraction(1, 2)) / scale - Fraction(1, 2) for i in range(m)]


LONGEST = 1 << 16
"""Positions of a result along one axis, each of which is a fraction; more are the runtime's."""
Tap = tuple[list[int], list[Fraction]]
"""Positions of the operand and their weights, which add up to 1."""


def _taps(at: list[Fraction], n: int, mode: str, rounding: str, cubic: Fraction, inside: int) -> list[Tap]:
    """The taps of each position of the result."""
    if mode == "nearest":
        return [([min(max(ROUNDINGS[rounding](p), 0), n - 1)], [Fraction(1)]) for p in at]
    if mode == "linear":
        return [_pair(min(max(p, Fraction(0)), Fraction(n - 1)), n) for p in at]
    if mode == "cubic":
        return [_four(p, n, cubic, inside) for p in at]
    raise IllTyped(f"the mode {mode}")


def _pair(at: Fraction, n: int) -> Tap:
    low = math.floor(at)
    return [low, min(low + 1, n - 1)], [low + 1 - at, at - low]


def _four(at: Fraction, n: int, a: Fraction, inside: int) -> Tap:
    low = math.floor(at)
    near, places = at - low, range(low - 1, low + 3)
    weights = [_keys(abs(near - k), a) for k in (-1, 0, 1, 2)]
    if inside:
        weights = [w if 0 <= p < n else Fraction(0) for w, p in zip(weights, places, strict=True)]
        total = sum(weights)
        weights = [w / total for w in weights]
    return [min(max(p, 0), n - 1) for p in places], weights


def _keys(d: Fraction, a: Fraction) -> Fraction:
    """The kernel of cubic convolution at a distance of at most 2."""
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def _mean(xp, x, axis: int, taps: list[Tap]):
    """Weights are quotients, so that they add up to 1 in a field, too."""
    total = None
    for k in range(len(taps[0][0])):
        places, weights = [p[k] for p, _ in taps], [w[k] for _, w in taps]
        part = xp.take(x, xp.constant(Literal.of(np.array(places, np.int64))), axis)
        if set(weights) != {1}:
            above, below = (_column(xp, x, axis, [getattr(w, side) for w in weights]) for side in _SIDES)
            part = xp.mul(part, xp.div(above, below))
        total = part if total is None else xp.add(total, part)
    return total


_SIDES = ("numerator", "denominator")


def _column(xp, x, axis: int, numbers: list[int]):
    column = np.array(numbers, numpy_dtype(xp.dtype(x))).reshape(-1, *(1,) * (xp.rank(x) - axis - 1))
    return xp.constant(Literal.of(column))


@resample.importer
def _(call: Call):
    x, attrs = call.arg(0), call.attrs
    _check(call)
    axes = [a + x.tensor.rank if a < 0 else a for a in attrs.get("axes", range(x.tensor.rank))]
    if call.arg(3) is not ABSENT:
        rows = [(a, m, None) for a, m in zip(axes, call.extents(3), strict=True) if m != x.shape[a]]
    else:
        scales = call.numbers(2) or ()
        rows = [(a, _scaled(x.shape[a], s), s) for a, s in zip(axes, scales, strict=True) if s != 1]
        if attrs.get("coordinate_transformation_mode") == "align_corners" and any(
            m != x.shape[a] * s for a, m, s in rows
        ):
            raise Unsupported("Resize with align_corners by scales that leave a rest")  # the runtime is not ONNX there
    if any(isinstance(v, Symbolic) for a, m, _ in rows for v in (x.shape[a], m)):
        raise Unsupported(f"Resize of {x.shape} to sizes that are not fixed")
    if not rows:
        return x
    axes, sizes, scales = zip(*sorted(rows), strict=True)
    mode = attrs.get("mode", "nearest")
    found = resample.term(
        x,
        axes=axes,
        sizes=sizes,
        scales=() if None in scales else scales,
        mode=mode,
        coordinates=attrs.get("coordinate_transformation_mode", "half_pixel"),
        rounding=attrs.get("nearest_mode", "round_prefer_floor") if mode == "nearest" else "round_prefer_floor",
        cubic=attrs.get("cubic_coeff_a", -0.75) if mode == "cubic" else -0.75,
        inside=attrs.get("exclude_outside", 0) if mode == "cubic" else 0,
    )
    if mode == "nearest":
        _check_rounding(found)
    return found


def _check(call: Call) -> None:
    attrs = call.attrs
    if attrs.get("antialias", 0):
        raise Unsupported("Resize with antialias")
    if attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unsupported(f"Resize with {attrs['keep_aspect_ratio_policy']}")
    if attrs.get("coordinate_transformation_mode", "half_pixel") not in COORDINATES:
        raise Unsupported(f"Resize with {attrs['coordinate_transformation_mode']}")
    if call.arg(0).dtype not in DTYPES:
        raise Unsupported(f"Resize of {call.arg(0).dtype}")


def _scaled(n, scale: float):
    """floor(n * scale), as the runtime computes it in single precision."""
    return n if isinstance(n, Symbolic) else math.floor(float(np.float32(n) * np.float32(scale)))


def _check_rounding(node) -> None:
    """The runtime computes coordinates in single precision: none may lie so near where it is
    rounded up or down that this could matter."""
    (x,), scales = node.args, node.attr("scales")
    shift = Fraction(1, 2) if node.attr("rounding").startswith("round") else Fraction(0)
    for i, (axis, m) in enumerate(zip(node.attr("axes"), node.attr("sizes"), strict=True)):
        n = x.shape[axis]
        scale = Fraction(scales[i]) if scales else Fraction(m, n)
        for at in _positions(n, m, scale, node.attr("coordinates")):
            distance = abs(at + shift - round(at + shift))
            if distance < Fraction(n, 10**5) and not (distance == 0 and _is_exact(at, scale, node.attr("coordinates"))):
                raise Unsupported(f"Resize of mode nearest from {n} to {m}: a coordinate lies between two positions")


def _is_exact(at: Fraction, scale: Fraction, coordinates: str) -> bool:
    """Whether single precision gives a coordinate of few digits as it is."""
    powers = all(v & (v - 1) == 0 for v in (scale.numerator, scale.denominator))
    return powers or coordinates == "align_corners" or (coordinates == "asymmetric" and at == 0)


@resample.exporter
def _(node, opset: int) -> Call:
    (x,), axes, scales = node.args, node.attr("axes"), node.attr("scales")
    attrs = {
        "coordinate_transformation_mode": node.attr("coordinates"),
        "mode": node.attr("mode"),
        "nearest_mode": node.attr("rounding"),
        "cubic_coeff_a": node.attr("cubic"),
        "exclude_outside": node.attr("inside"),
    }
    empty = constant(np.zeros(0, np.float32)) if opset < 13 else ABSENT
    if scales:
        every = [scales[axes.index(i)] if i in axes else 1.0 for i in range(x.tensor.rank)]
        return Call("Resize", (x, empty, constant(np.array(every, np.float32))), attrs, opset)
    if opset >= 18:
        return Call("Resize", (x, empty, empty, extents(node.attr("sizes"))), {**attrs, "axes": axes}, opset)
    return Call("Resize", (x, empty, empty, extents(node.shape)), attrs, opset)


resample.example("float32[1,2,3,4]", axes=(2, 3), sizes=(6, 6))
resample.example("float32[1,2,4,4]", axes=(2, 3), sizes=(8, 6), mode="cubic")
resample.example("float32[1,2,4,4]", axes=(2, 3), sizes=(2, 3), coordinates="align_corners")
resample.example(
    "float32[1,1,4,6]", axes=(2, 3), sizes=(3, 5), mode="nearest", coordinates="asymmetric", rounding="floor"
)
resample.example("float32[1,2,4,4]", axes=(2, 3), sizes=(8, 6), scales=(2.0, 1.5), coordinates="pytorch_half_pixel")
resample.example("float32[2,5]", axes=(1,), sizes=(8,), mode="cubic", inside=1, coordinates="half_pixel_symmetric")

_ENLARGED = "axes: (2, 3), sizes: (8, 6), scales: (), mode: 'linear', coordinates: 'half_pixel', \
        rounding: 'round_prefer_floor', cubic: -0.75, inside: 0"
_ONE = "strides=(1, 1), pads=(0, 0, 0, 0)"


def _channels(start: str, end: str) -> str:
    return f"slice(w, starts=({start},), ends=({end},), axes=(1,), steps=(1,))"


resample.laws(f"""
    # a kernel of one pixel before or after: the fewer pixels, the better; positions have means,
    # whose weights add up to 1, so that a bias may come before them
    conv(resample(x, **r), w, *b, {_ONE}, **a) \
        == resample(conv(x, w, *b, {_ONE}, **a), **r) \
        where shape(w)[2:] == (1, 1) and min(r[0][1]) > 1
    given x: (n, c, 4, 4), w: (o, c, 1, 1), b: (o) | a: {{dilations: (1, 1), group: 1}}, r: {{{_ENLARGED}}}
    conv(concat(resample(x, **r), y, axis=1), w, *b, {_ONE}, group=1, **a) \
        == add(resample(conv(x, {_channels("0", "dim(x, 1)")}, {_ONE}, group=1, **a), **r), \
            conv(y, {_channels("dim(x, 1)", "dim(w, 1)")}, *b, {_ONE}, group=1, **a)) \
        where shape(w)[2:] == (1, 1) and min(r[0][1]) > 1 and is_weight(w)
    given x: (n, c, 4, 4), y: (n, d, 8, 6), w: (o, c + d, 1, 1), b: (o) \
        | a: {{dilations: (1, 1)}}, r: {{{_ENLARGED}}}
    add(resample(x, **r), resample(y, **r)) == resample(add(x, y), **r)  where shape(x) == shape(y)
""")
