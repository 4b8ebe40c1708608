"""Types of nodes that change shapes and that their operator's definition does not take: the shape
is computed, or sizes are not known to be equal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps

import numpy as np

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Symbolic, dim_product
from taso_mirage.ir.terms import ABSENT
from taso_mirage.onnx_io.typed_nodes import (
    AskedNode,
    Size,
    TypedOutput,
    TypeRule,
    TypeRules,
    broadcast,
    equal_in_runs,
    on_axis,
    resized_at,
)
from taso_mirage.onnx_io.types_onnx import numbered
from taso_mirage.operators.static_values import partly_known

SHAPE_TYPES = TypeRules()

# ------------------------------------------------------------ shapes that are computed


def wanted(asked: AskedNode, i: int) -> list[Dim | None]:
    if asked.call.arg(i) is ABSENT or (values := partly_known(asked.call.arg(i))) is None:
        raise Unsupported(f"how many elements operand {i} has is not known")
    return values


def named(values: Sequence[Dim | None]) -> tuple[Size, ...]:
    return tuple(f"size_{i}" if v is None else v for i, v in enumerate(values))


def of_same_rank(rule: TypeRule) -> TypeRule:
    """A rule for an operator that keeps the rank; only the rank is known."""

    @wraps(rule)
    def ranked(asked: AskedNode) -> Sequence[TypedOutput]:
        try:
            return rule(asked)
        except Unsupported:
            return [(asked.dtype(0), named([None] * asked.rank(0)))]

    return ranked


@SHAPE_TYPES("Reshape")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """One size that is not known is the quotient of the whole and the others."""
    dtype, have = asked.like(0)
    want = [asked.attr("shape")[i] for i in range(len(asked.attr("shape")))] if asked.opset < 5 else wanted(asked, 1)
    copies = not asked.attr("allowzero", 0)
    shape = [have[i] if n == 0 and copies else None if n == -1 else n for i, n in enumerate(want)]
    if shape.count(None) != 1:
        return [(dtype, named(shape))]
    others = dim_product(n for n in shape if n is not None)
    rest = dim_product(have) // others if others != 0 else None
    return [(dtype, named([rest if n is None else n for n in shape]))]


@SHAPE_TYPES("Expand")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, have = asked.like(0)
    want = wanted(asked, 1)
    rank = max(len(have), len(want))
    have = (1,) * (rank - len(have)) + have
    want = [*(1,) * (rank - len(want)), *want]
    known = [
        broadcast((n,), (m,))[0] if m is not None else n if isinstance(n, int) and n != 1 else None
        for n, m in zip(have, want, strict=True)
    ]
    return [(dtype, tuple(f"size_{i}" if n is None or isinstance(n, str) else n for i, n in enumerate(known)))]


@SHAPE_TYPES("ConstantOfShape")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    value = asked.attr("value")
    return [("float32" if value is None else np.asarray(value).dtype.name, named(wanted(asked, 0)))]


@SHAPE_TYPES("Range")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    values = [asked.integers(i) for i in range(3)]
    if all(v is not None and isinstance(v[0], int) for v in values):
        start, limit, step = (int(v[0]) for v in values if v is not None)
        return [(asked.dtype(0), (len(range(start, limit, step)),))]
    return [(asked.dtype(0), ("count",))]


SHAPE_TYPES.table(
    {
        "Shape": lambda asked: [("int64", (len(asked.shape(0)[asked.attr("start", 0) : asked.attr("end")]),))],
        "Size": lambda asked: [("int64", ())],
        "GatherElements": lambda asked: [(asked.dtype(0), asked.shape(1))],
        "Transpose": lambda asked: [
            (asked.dtype(0), tuple(asked.shape(0)[i] for i in asked.attr("perm", range(asked.rank(0))[::-1])))
        ],
        "EyeLike": lambda asked: [(numbered(asked, "dtype", asked.dtype(0)), asked.shape(0))],
    }
)


@SHAPE_TYPES("OneHot")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    shape, depth = asked.shape(0), asked.integers(1) or tuple(map(int, asked.numbers(1) or ())) or ("depth",)
    axis = on_axis(asked.attr("axis", -1), len(shape) + 1)
    return [(asked.dtype(2), (*shape[:axis], depth[0], *shape[axis:]))]


@SHAPE_TYPES("Tile")
@of_same_rank
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    times = wanted(asked, 1)
    return [(dtype, named([None if k is None else n * k for n, k in zip(shape, times, strict=True)]))]


@SHAPE_TYPES("Pad")
@of_same_rank
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    pads = list(asked.attr("pads", ())) if asked.opset < 11 else wanted(asked, 1)
    axes = asked.integers(3) if asked.given(3) else tuple(range(len(shape)))
    if axes is None:
        return [(dtype, named([None] * len(shape)))]
    found: list[Dim | None] = list(shape)
    for axis, low, high in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        at = on_axis(int(axis), len(shape))
        found[at] = None if low is None or high is None else shape[at] + low + high
    return [(dtype, named(found))]


@SHAPE_TYPES("Slice")
@of_same_rank
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    if asked.opset < 10:
        starts, ends = list(asked.attr("starts")), list(asked.attr("ends"))
        axes, steps = asked.attr("axes", tuple(range(len(starts)))), None
    else:
        starts, ends = wanted(asked, 1), wanted(asked, 2)
        axes = asked.integers(3) if asked.given(3) else tuple(range(len(starts)))
        steps = wanted(asked, 4) if asked.given(4) else None
    if axes is None:
        return [(dtype, named([None] * len(shape)))]
    found: list[Dim | None] = list(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        at = on_axis(int(axis), len(shape))
        found[at] = _sliced(shape[at], start, end, step)
    return [(dtype, named(found))]


def _sliced(n: Dim, start: Dim | None, end: Dim | None, step: Dim | None) -> Dim | None:
    numbers = [v for v in (n, start, end, step) if isinstance(v, int)]
    if len(numbers) < 4 or numbers[3] == 0:
        return None
    n, start, end, step = numbers
    if step > 0:
        return len(range(n)[max(start, -n) if start < 0 else start : max(end, -n) if end < 0 else end : step])
    first = min(start, n - 1) if start >= 0 else max(start + n, -1)
    last = min(end, n - 1) if end >= 0 else max(end + n, -1)
    return len(range(first, last, step))


# ------------------------------------------------------------ positions


@SHAPE_TYPES("Concat")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    shapes = [asked.shape(i) for i in range(len(asked.call.args))]
    axis = asked.axis(1, len(shapes[0]))
    found: list[Dim] = [equal_in_runs(dims) for dims in zip(*shapes, strict=True)]
    total: Dim = 0
    for shape in shapes:
        total = total + shape[axis]
    return [(asked.dtype(0), resized_at(found, axis, total))]


@SHAPE_TYPES("Gather")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    axis = asked.axis(0, len(shape))
    return [(dtype, (*shape[:axis], *asked.shape(1), *shape[axis + 1 :]))]


@SHAPE_TYPES("GatherND")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    *outer, depth = asked.shape(1)
    return [(dtype, (*outer, *shape[asked.attr("batch_dims", 0) + int(depth) :]))]


def axes_of(asked: AskedNode, since: int) -> Sequence[Dim] | None:
    """The axes of a node, an attribute or from an opset on an operand; None where only a run can
    tell."""
    if asked.opset < since:
        return tuple(asked.attr("axes", ()))
    return asked.integers(1) if asked.given(1) else ()


@SHAPE_TYPES("Squeeze")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    axes = axes_of(asked, 13)
    if axes is None:
        return [(dtype, named([None] * (len(shape) - len(wanted(asked, 1)))))]
    if not axes and any(isinstance(n, Symbolic) for n in shape):
        raise Unsupported("which axes go is not known")
    gone = {on_axis(int(a), len(shape)) for a in axes} or {i for i, n in enumerate(shape) if n == 1}
    return [(dtype, tuple(n for i, n in enumerate(shape) if i not in gone))]


@SHAPE_TYPES("Unsqueeze")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    axes = axes_of(asked, 13)
    if axes is None:
        return [(dtype, named([None] * (len(shape) + len(wanted(asked, 1)))))]
    rank = len(shape) + len(axes)
    new, rest = {on_axis(int(a), rank) for a in axes}, iter(shape)
    return [(dtype, tuple(1 if i in new else next(rest) for i in range(rank)))]


@SHAPE_TYPES("Flatten")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    axis = asked.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [(dtype, (dim_product(shape[:axis]), dim_product(shape[axis:])))]


@SHAPE_TYPES("Split")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    axis, parts = asked.axis(0, len(shape)), asked.call.listed
    given = asked.attr("split") if asked.opset < 13 else asked.integers(1) if asked.given(1) else None
    if given is not None:
        return [(dtype, resized_at(shape, axis, n)) for n in given]
    n = shape[axis]
    if asked.given(1) or not isinstance(n, int):
        return [(dtype, resized_at(shape, axis, f"part_{i}")) for i in range(parts)]
    size = -(-n // parts)
    return [(dtype, resized_at(shape, axis, min(size, max(n - i * size, 0)))) for i in range(parts)]


@SHAPE_TYPES("DepthToSpace", "SpaceToDepth")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, (n, c, h, w) = asked.like(0)
    block = asked.attr("blocksize")
    deeper = asked.call.op_type == "SpaceToDepth"
    sizes = (c * block**2, h // block, w // block) if deeper else (c // block**2, h * block, w * block)
    return [(dtype, (n, *sizes))]
