"""Slices along several axes at once."""

from op_specs.families import ELEMENTWISE, PAIRWISE, each
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.operators.ops import Call, Dims, Ints, extents, op
from taso_mirage.operators.slicing import whole

UNBOUNDED = 10**9
"""The smallest number that exporters write for "to the end"; no free dim of a sliced tensor has so
many positions."""


@op(onnx="Slice", since=1, lowering=Lowering.SLICE)
def slice_(xp, x, *, starts: Dims, ends: Dims, axes: Ints, steps: Ints):
    """x[..., start:end:step, ...] at each of `axes`

    Canonical: axes ascend, no whole ranges, 0 <= start, end <= the dim; where a step is negative,
    an end of -1 means that the first element is included.
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
    from_last = start in (-1, n - 1) or (isinstance(start, int) and start >= UNBOUNDED)
    to_first = end == -n - 1 or (isinstance(end, int) and end <= -UNBOUNDED)
    if from_last and to_first:
        return n - 1, -1
    raise Unsupported(f"the slice {start}:{end}:{step} of {n} positions depends on the size")


def _position(n, at):
    """`at` counted from the front, where it is known to lie within a dim `n` whose size, or which
    itself, is not fixed.

    An int from the end, as in x[:-2], is n - 2: sizes below 2 would make a dim negative. A symbolic
    position within a dim of fixed size (a table of positions cut to the length) is taken to be
    legal; so would be its users.
    """
    if isinstance(at, int) and abs(at) >= UNBOUNDED:
        return n if at > 0 else 0
    if _negative(at):
        return n + at
    if at == 0 or (_at_least(at, 0) and (isinstance(n, int) or _at_least(n - at, 0))):
        return at
    raise Unsupported(f"whether the position {at} lies within {n} depends on the size")


def _negative(dim) -> bool:
    return dim < 0 if isinstance(dim, int) else all(c < 0 for _, c in dim.terms)


def _at_least(dim, bound: int) -> bool:
    """Whether a dim is surely that large; its symbols are sizes of at least 1, its quotients are
    not negative."""
    if isinstance(dim, int):
        return dim >= bound
    lowest = sum(c * all(isinstance(atom, str) for atom, _ in m) for m, c in dim.terms)
    return lowest >= bound and all(c >= 0 for m, c in dim.terms if m)


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
    """A position without computed sizes where it can be counted from the end of a dim `n` that is
    not fixed."""
    if not isinstance(n, Symbolic) or not isinstance(at, Symbolic) or not isinstance(n - at, int):
        return at
    return at - n if n != at else 2**63 - 1


@slice_.traits.placing
def _(node):
    """Where the steps are 1."""
    if set(node.attr("steps")) != {1}:
        return None
    box = list(whole(node.args[0]))
    for axis, start, end in zip(node.attr("axes"), node.attr("starts"), node.attr("ends"), strict=True):
        box[axis] = (int(start), int(end))
    return tuple(box)


@slice_.traits.restriction
def _(inner, node, box):
    (x,) = node.args
    around, starts, ends = list(box), [], []
    axes, steps = node.attr("axes"), node.attr("steps")
    for axis, start, step in zip(axes, node.attr("starts"), steps, strict=True):
        first, last = (int(start) + i * step for i in (box[axis][0], box[axis][1] - 1))
        low, high = min(first, last), max(first, last) + 1
        around[axis] = (low, high)
        starts.append(0 if step > 0 else high - low - 1)
        ends.append(high - low if step > 0 else -1)
    part = inner(x, tuple(around))
    return part if set(steps) <= {1} else slice_.term(part, starts=starts, ends=ends, axes=axes, steps=steps)


@slice_.traits.resizing
def _(attrs, old, new, names):
    found: dict = {"starts": [], "ends": []}
    for start, end, axis in zip(attrs["starts"], attrs["ends"], attrs["axes"], strict=True):
        n, m = old[0][axis], new[0][axis]
        if n == m:
            found["starts"].append(start)
            found["ends"].append(end)
            continue
        cut = [names.get(v, v) if v > 1 else v for v in (start, end)]
        found["starts"].append(m - (n - start) if start == n - 1 and end == -1 else cut[0])
        found["ends"].append(m if end == n else cut[1])
    return {k: tuple(v) for k, v in found.items()}


slice_.example("float32[4,5]", starts=(1,), ends=(3,), axes=(0,), steps=(1,))
slice_.example("float32[4,5]", starts=(1, 0), ends=(4, 5), axes=(0, 1), steps=(2, 3))
slice_.example("float32[4,5]", starts=(4,), ends=(-1,), axes=(1,), steps=(-1,))
slice_.example("float32[4,5]", starts=(3,), ends=(0,), axes=(1,), steps=(-2,))
slice_.example("float32[2,6,3]", starts=(2,), ends=(6,), axes=(1,), steps=(1,))
slice_.example("float32[3,3]", starts=(2,), ends=(3,), axes=(0,), steps=(1,))
slice_.example("float32[4]", starts=(0,), ends=(0,), axes=(0,), steps=(1,))
slice_.example("float32[4]", starts=(), ends=(), axes=(), steps=())
slice_.example("int64[5]", starts=(0,), ends=(2,), axes=(0,), steps=(1,))

slice_.laws("""
    slice(x, starts=(), ends=(), axes=(), steps=()) == x
    slice(x, starts=(0,), ends=e, axes=i, steps=(1,)) == x  where e == (dim(x, i[0]),)
    slice(slice(x, starts=s, ends=e, axes=i, steps=(1,)), starts=t, ends=u, axes=i, steps=(1,)) \
        == slice(x, starts=plus(s, t), ends=plus(s, u), axes=i, steps=(1,))
    slice(slice(x, starts=s, ends=e, axes=i, steps=k), starts=t, ends=u, axes=j, steps=l) \
        == slice(x, starts=s + t, ends=e + u, axes=i + j, steps=k + l) \
        where len(i) == 1 and len(j) == 1 and i[0] < j[0]
    slice(slice(x, starts=s, ends=e, axes=i, steps=k), starts=t, ends=u, axes=j, steps=l) \
        == slice(x, starts=t + s, ends=u + e, axes=j + i, steps=l + k) \
        where len(i) == 1 and len(j) == 1 and j[0] < i[0]
    slice(concat(x, y, axis=i), starts=(0,), ends=e, axes=(i,), steps=(1,)) == x  where e == (dim(x, i),)
    slice(concat(x, y, axis=i), starts=s, ends=e, axes=(i,), steps=(1,)) \
        == y \
        where s == (dim(x, i),) and e == (dim(x, i) + dim(y, i),)
    concat(slice(x, starts=s, ends=e, axes=(i,), steps=(1,)), slice(x, starts=e, ends=u, axes=(i,), steps=(1,)), \
            axis=i) \
        == slice(x, starts=s, ends=u, axes=(i,), steps=(1,))
    slice(matmul(x, w), axes=i, **a) \
        == matmul(slice(x, axes=i, **a), w) \
        where rank(w) == 2 and len(i) == 1 and i[0] < rank(x) - 1
    slice(matmul(x, w), axes=i, **a) \
        == matmul(x, slice(w, axes=(1,), **a)) \
        where rank(w) == 2 and len(i) == 1 and i[0] == rank(x) - 1
    slice(conv(x, w, group=1, **a), axes=(1,), **c) == conv(x, slice(w, axes=(0,), **c), group=1, **a)
    slice(conv(x, w, *b, **a), axes=(0,), **c) == conv(slice(x, axes=(0,), **c), w, *b, **a)
""")
slice_.laws(each(ELEMENTWISE, "slice(f(x, **a), **c) == f(slice(x, **c), **a)"))
slice_.laws(each(PAIRWISE, "slice(f(x, y), **a) == f(slice(x, **a), slice(y, **a))  where shape(x) == shape(y)"))
slice_.laws(each(PAIRWISE, "slice(f(x, c), **a) == f(slice(x, **a), c)  where rank(c) == 0"))
