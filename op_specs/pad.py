"""Padding."""

import math

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import constant, is_float
from taso_mirage.operators.ops import Call, Dims, extents, op
from taso_mirage.operators.slicing import needed, padded_term, sizes
from taso_mirage.operators.traits import Margin


@op(onnx="Pad", since=2, lowering=Lowering.PAD, domains={"pads": "margins"})
def pad(xp, x, *, pads: Dims, value: float = 0.0, mode: str = "constant"):
    """(n,...) -> (n + pads[0] + pads[rank], ...): first the pads before each axis, then those after
    each

    `value` counts in the mode "constant" only; "reflect" does not repeat the border, "edge" repeats
    only it, "wrap" goes round. A negative pad crops.
    """
    rank = xp.rank(x)
    if len(pads) != 2 * rank:
        raise IllTyped(f"{len(pads)} pads for a tensor of rank {rank}")
    if mode == "constant" and not math.isfinite(value) and not is_float(xp.dtype(x)):
        raise IllTyped(f"a pad of {xp.dtype(x)} by {value}")
    if mode == "constant":
        return xp.pad(x, pads[:rank], pads[rank:], value)
    if mode not in _BORDERS:
        raise IllTyped(f"no mode {mode} of pad")
    for axis in range(rank):
        x = _bordered(xp, x, axis, pads[axis], pads[rank + axis], _BORDERS[mode])
    return x


def _bordered(xp, x, axis, low, high, border):
    if low == 0 and high == 0:
        return x
    before, after = border(xp, x, axis, low, high)
    parts = [*([] if low == 0 else [before()]), x, *([] if high == 0 else [after()])]
    return xp.concat(parts, axis) if len(parts) > 1 else x


def _reflect(xp, x, axis, low, high):
    n = xp.shape(x)[axis]
    return lambda: xp.slice(x, axis, low, 0, -1), lambda: xp.slice(x, axis, n - 2, n - 2 - high, -1)


def _edge(xp, x, axis, low, high):
    n = xp.shape(x)[axis]

    def repeated(at, count):
        shape = tuple(count if i == axis else m for i, m in enumerate(xp.shape(x)))
        return xp.expand(xp.slice(x, axis, at, at + 1), shape)

    return lambda: repeated(0, low), lambda: repeated(n - 1, high)


def _wrap(xp, x, axis, low, high):
    n = xp.shape(x)[axis]
    return lambda: xp.slice(x, axis, n - low, n), lambda: xp.slice(x, axis, 0, high)


_BORDERS = {"reflect": _reflect, "edge": _edge, "wrap": _wrap}


@pad.importer
def _(call: Call):
    x, mode = call.arg(0), _text(call.attrs.get("mode", "constant"))
    if call.opset < 11:
        pads, value = call.attrs["pads"], call.attrs.get("value", 0.0)
    else:
        pads = _spread(call.extents(1), call.extents(3), x.tensor.rank)
        value = call.scalar(2, 0.0)
    if mode != "constant":
        _within(x.shape, pads, 1 if mode == "reflect" else 0, mode)
        value = 0.0
    return pad.term(x, pads=pads, value=value, mode=mode)


def _text(value) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _spread(pads: Dims, axes: Dims | None, rank: int) -> Dims:
    """Pads of some axes as pads of all."""
    if axes is None:
        return pads
    result = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        axis = axis + rank if axis < 0 else axis
        result[axis], result[rank + axis] = pads[i], pads[len(axes) + i]
    return tuple(result)


def _within(shape: Dims, pads: Dims, border: int, mode: str) -> None:
    for n, low, high in zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True):
        for p in (low, high):
            if isinstance(p, Symbolic) or p < 0:
                raise Unsupported(f"Pad of mode {mode} by {p}")
            if mode != "edge" and isinstance(n, int) and p > n - border:
                raise Unsupported(f"Pad of mode {mode} by {p}, of {n} positions")


@pad.exporter
def _(node, opset: int) -> Call:
    (x,), pads, mode, value = node.args, node.attr("pads"), node.attr("mode"), node.attr("value")
    if mode == "wrap" and opset < 19:
        raise Unsupported("Pad of mode wrap begins at opset 19")
    if opset < 11:
        if any(isinstance(p, Symbolic) for p in pads):
            raise Unsupported("Pad by computed sizes begins at opset 11")
        return Call("Pad", (x,), {"pads": pads, "mode": mode, "value": value}, opset)
    fill = (constant(value, x.dtype),) if value != 0 and mode == "constant" else ()
    return Call("Pad", (x, extents(pads), *fill), {"mode": mode}, opset)


@pad.traits.margins
def _(node):
    """The margin of a padding with one value; None if the padding repeats the border."""
    if node.attr("mode") != "constant":
        return None
    pads, rank = node.attr("pads"), node.tensor.rank
    return Margin(pads[:rank], pads[rank:], node.attr("value"))


@pad.traits.restriction
def _(inner, node, box):
    (x,), pads = node.args, [int(p) for p in node.attr("pads")]
    if node.attr("mode") != "constant":
        raise Unsupported(f"pad of mode {node.attr('mode')} has no restriction")
    found = [needed(n, interval, 1, 1, 1, low) for n, interval, low in zip(sizes(x), box, pads, strict=False)]
    part = inner(x, tuple(f[0] for f in found))
    return padded_term(part, [f[1] for f in found], [f[2] for f in found], node.attr("value"))


pad.example("float32[2,3]", pads=(0, 1, 2, 0))
pad.example("float32[2,3]", pads=(1, 1, 0, 2), value=1.5)
pad.example("float32[2,2,3,3]", pads=(0, 0, 1, 1, 0, 0, 1, 1))
pad.example("float32[1,2,3,3]", pads=(0, 0, 1, 0, 0, 0, 1, 2), value=2.0)
pad.example("float32[3,4]", pads=(0, -1, 1, -1))
pad.example("float32[3,4]", pads=(2, 1, 0, 3), mode="reflect")
pad.example("float32[3,4]", pads=(2, 1, 0, 5), mode="edge")
pad.example("float32[3,4]", pads=(2, 1, 0, 4), mode="wrap")
pad.example("float32[3]", pads=(0, 0))

pad.laws("""
    pad(x, pads=p, **a) == x  where min(p) == 0 and max(p) == 0
    pad(pad(x, pads=p, value=v), pads=q, value=v) == pad(x, pads=plus(p, q), value=v)  where min(p) >= 0 and min(q) >= 0
    relu(pad(x, pads=p)) == pad(relu(x), pads=p)
    pad(mul(x, c), pads=p) == mul(pad(x, pads=p), c)  where rank(c) == 0
    pad(add(x, y), pads=p) == add(pad(x, pads=p), pad(y, pads=p))  where shape(x) == shape(y)
""")
