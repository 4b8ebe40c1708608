"""Slices along several axes at once."""

from taso_mirage.dims import Symbolic
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ops import Call, Dims, Ints, extents, op

UNBOUNDED = 2**31 - 1
"""What exporters write for "to the end" is this or more."""


@op(onnx="Slice", since=1)
def slice_(xp, x, *, starts: Dims, ends: Dims, axes: Ints, steps: Ints):
    """x[..., start:end:step, ...] at each of `axes`

    Canonical: axes ascend, no whole ranges, 0 <= start, end <= the dim; where a step is negative, an end of -1 means
    that the first element is included.
    """
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = xp.slice(x, axis, start, end, step)
    return x


@slice_.importer
def _(call: Call):
    x = call.arg(0)
    starts, ends, axes, steps = _given(call)
    axes = range(len(starts)) if axes is None else [a + x.tensor.rank if a < 0 else a for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    if len(set(axes)) != len(axes) or any(not 0 <= a < x.tensor.rank for a in axes):
        raise IllTyped(f"slice of axes {tuple(axes)} of {x.shape}")
    rows = sorted(zip(axes, starts, ends, steps, strict=True), key=lambda row: row[0])
    bounds = [(a, *_bounds(x.shape[a], s, e, step), step) for a, s, e, step in rows]
    bounds = [b for b in bounds if b[1:] != (0, x.shape[b[0]], 1)]
    axes, starts, ends, steps = zip(*bounds, strict=True) if bounds else ((), (), (), ())
    return slice_.term(x, starts=starts, ends=ends, axes=axes, steps=steps)


def _given(call: Call):
    if call.opset < 10:
        return call.attrs["starts"], call.attrs["ends"], call.attrs.get("axes"), None
    return call.extents(1), call.extents(2), call.extents(3), call.extents(4)


def _bounds(n, start, end, step):
    """ONNX's start and end, clamped into the dim `n`."""
    if not isinstance(step, int) or step == 0:
        raise IllTyped(f"a slice with step {step}")
    if all(isinstance(v, int) for v in (n, start, end)):
        start = max(start, -n) if step < 0 else start
        start, end, _ = slice(start, end if end + n >= 0 or step > 0 else None, step).indices(n)
        empty = start >= end if step > 0 else start <= end
        return (0, 0) if empty else (start, end)
    if step > 0:
        return _position(n, start), _position(n, end)
    if start in (-1, n - 1) or (isinstance(start, int) and start >= UNBOUNDED):
        if isinstance(end, int) and end <= -UNBOUNDED or end == -n - 1:
            return n - 1, -1
    raise Unsupported(f"the slice {start}:{end}:{step} of {n} positions depends on the size")


def _position(n, at):
    """`at` counted from the front, where it is known to lie within a dim `n` whose size, or which itself, is not fixed.

    An int from the end, as in x[:-2], is n - 2: sizes below 2 would make a dim negative. A symbolic position within a
    dim of fixed size (a table of positions cut to the length) is taken to be legal; so would be what uses it.
    """
    if isinstance(at, int) and at >= UNBOUNDED:
        return n
    if isinstance(at, int) and at <= -UNBOUNDED:
        return 0
    if isinstance(at, int) and at < 0 or isinstance(at, Symbolic) and all(c < 0 for _, c in at.terms):
        return n + at
    if _least(at) is not None and (isinstance(n, int) or (_least(n - at) or 0) >= 0 and _least(n - at) is not None):
        return at
    raise Unsupported(f"whether the position {at} lies within {n} depends on the size")


def _least(dim):
    """A lower bound of a dim whose symbols are sizes of at least 1; None if there is none to be seen."""
    if isinstance(dim, int):
        return dim
    constant = sum(c for m, c in dim.terms if not m)
    rest = [(m, c) for m, c in dim.terms if m]
    if any(c < 0 or not all(isinstance(atom, str) for atom, _ in m) for m, c in rest):
        return None
    return constant + sum(c for _, c in rest)


@slice_.exporter
def _(node, opset: int) -> Call:
    (x,) = node.args
    starts, ends, axes, steps = (node.attr(name) for name in ("starts", "ends", "axes", "steps"))
    if not axes:
        return Call("Identity", (x,), {}, opset)
    starts = tuple(_written(x.shape[axis], at) for at, axis in zip(starts, axes, strict=True))
    rows = zip(ends, axes, steps, strict=True)
    ends = tuple(-(2**62) if step < 0 and at == -1 else _written(x.shape[axis], at) for at, axis, step in rows)
    if opset >= 10:
        stepped = () if set(steps) == {1} else (extents(steps),)
        return Call("Slice", (x, extents(starts), extents(ends), extents(axes), *stepped), {}, opset)
    if set(steps) != {1} or any(isinstance(v, Symbolic) for v in (*starts, *ends)):
        raise Unsupported("a slice with steps or computed bounds begins at opset 10")
    return Call("Slice", (x,), {"starts": starts, "ends": ends, "axes": axes}, opset)


def _written(n, at):
    """A position without computed sizes where it can be counted from the end of a dim `n` that is not fixed."""
    if not isinstance(n, Symbolic) or not isinstance(at, Symbolic) or not isinstance(n - at, int):
        return at
    return at - n if n != at else 2**63 - 1


slice_.example("float32[4,5]", starts=(1,), ends=(3,), axes=(0,), steps=(1,))
slice_.example("float32[4,5]", starts=(1, 0), ends=(4, 5), axes=(0, 1), steps=(2, 3))
slice_.example("float32[4,5]", starts=(4,), ends=(-1,), axes=(1,), steps=(-1,))
slice_.example("float32[4,5]", starts=(3,), ends=(0,), axes=(1,), steps=(-2,))
slice_.example("float32[2,6,3]", starts=(2,), ends=(6,), axes=(1,), steps=(1,))
slice_.example("float32[4]", starts=(0,), ends=(0,), axes=(0,), steps=(1,))
slice_.example("float32[4]", starts=(), ends=(), axes=(), steps=())
slice_.example("int64[5]", starts=(0,), ends=(2,), axes=(0,), steps=(1,))
