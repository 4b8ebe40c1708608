"""Writing elements to computed positions.

ONNX leaves open which of several updates of one element counts; the definitions take the last.
Indices outside of the data have no meaning, as for ONNX Runtime, which refuses them.
"""

import math
from itertools import pairwise

import numpy as np

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import ABSENT
from taso_mirage.operators.movements import index_map, moved_elements
from taso_mirage.operators.ops import Call, op, term

FOLDS = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
"""The functions that fold an update into the element that is there."""
REDUCTION_SINCE = {"add": 16, "mul": 16, "max": 18, "min": 18}
"""The opsets that introduced the values of `reduction`."""
LISTED = 1 << 16
"""The largest number of constant indices that are searched for a box."""


@op(onnx="ScatterND", since=11, updates=2)
def scatter_nd(xp, x, indices, updates, *, reduction: str = "none"):
    """(n..., r...), (i..., k), (i..., r...) -> (n..., r...): x in which the rows at the positions
    that the last axis of the indices has, in k axes, are the updates; an index below 0 counts from
    the end"""
    _integers(xp, indices)
    shape, last = xp.shape(indices), xp.rank(indices) - 1
    if last < 0 or not isinstance(shape[last], int) or not 0 < shape[last] <= xp.rank(x):
        raise IllTyped(f"indices of shape {shape} for data of shape {xp.shape(x)}")
    places = [xp.reshape(xp.slice(indices, last, k, k + 1), shape[:last]) for k in range(shape[last])]
    return xp.put(x, places, updates, _fold(reduction))


@op(onnx="ScatterElements", since=11, updates=2)
def scatter_elements(xp, x, indices, updates, *, axis: int = 0, reduction: str = "none"):
    """x, i, u of equal rank -> x in which the element at [p, i[p, q, r], r] is u[p, q, r], for
    indices along an axis at q; an index below 0 counts from the end"""
    _integers(xp, indices)
    shape = xp.shape(indices)
    if len(shape) != xp.rank(x) or not 0 <= axis < len(shape):
        raise IllTyped(f"indices of shape {shape} along axis {axis} for data of shape {xp.shape(x)}")
    if any(isinstance(m, int) and isinstance(n, int) and m > n for m, n in _others(shape, xp.shape(x), axis)):
        raise IllTyped(f"indices of shape {shape} are larger than data of shape {xp.shape(x)} beside axis {axis}")
    places = [indices if k == axis else _along(xp, k, shape, indices) for k in range(len(shape))]
    return xp.put(x, places, updates, _fold(reduction))


@op(onnx="Scatter", since=9, until=10, updates=2)
def scatter(xp, x, indices, updates, *, axis: int = 0):
    """ScatterElements as it was called before opset 11"""
    return scatter_elements(xp, x, indices, updates, axis=axis)


@op(onnx="TensorScatter", since=24, updates=1)
def tensor_scatter(xp, x, updates, starts=None, *, axis: int = -2, mode: str = "linear"):
    """(b, m..., n, r...), (b, m..., k, r...), (b) -> (b, m..., n, r...): a cache in which k rows
    from one of each batch on are the updates; in the mode "circular" modulo n"""
    shape, rank = xp.shape(updates), xp.rank(x)
    axis = axis + rank if axis < 0 else axis
    if not 0 < axis < len(shape) or mode not in ("linear", "circular"):
        raise IllTyped(f"axis {axis} and mode {mode} of updates of shape {shape}")
    if any(m != n for m, n in _others(shape, xp.shape(x), axis)):
        raise IllTyped(f"updates of shape {shape} for a cache of shape {xp.shape(x)} along axis {axis}")
    lead = shape[: axis + 1]
    rows = xp.reshape(xp.iota(shape[axis]), (*(1,) * axis, shape[axis]))
    if starts is not None:
        _integers(xp, starts)
        rows = xp.add(rows, xp.reshape(xp.cast(starts, "int64"), (shape[0], *(1,) * axis)))
    if mode == "circular":
        rows = xp.map(np.remainder, rows, xp.extents((xp.shape(x)[axis],), scalar=True))
    rows = xp.expand(rows, lead)
    return xp.put(x, [*(_along(xp, k, lead, rows) for k in range(axis)), rows], updates)


def _integers(xp, indices) -> None:
    if xp.dtype(indices) not in ("int32", "int64"):
        raise IllTyped(f"indices of dtype {xp.dtype(indices)}")


def _fold(reduction: str):
    if reduction not in FOLDS:
        raise IllTyped(f"the reduction {reduction}; there are {', '.join(FOLDS)}")
    return FOLDS[reduction]


def _others(shape, whole, axis: int):
    return [(m, n) for k, (m, n) in enumerate(zip(shape, whole, strict=True)) if k != axis]


def _along(xp, axis: int, shape, like):
    """The positions along an axis, for each index."""
    ones = (*(1,) * axis, shape[axis], *(1,) * (len(shape) - axis - 1))
    return xp.expand(xp.reshape(xp.iota(shape[axis], xp.dtype(like)), ones), shape)


# ---------------------------------------------------------------- the updates in the result


@scatter_nd.traits.storing
def _(node, whole):
    """The rows of a gather; of indices into several axes, where all but one are the positions of
    the update itself, as PyTorch's index_put is exported, the elements of one axis."""
    indices, shape = node.args[1], node.args[2].shape
    if node.attr("reduction") != "none":
        return None
    if indices.shape[-1] == 1:
        return term("gather", whole, term("reshape", indices, shape=indices.shape[:-1]), axis=0)
    last, lead = indices.tensor.rank - 1, indices.shape[:-1]
    columns = [
        term("slice", indices, axes=(last,), starts=(k,), ends=(k + 1,), steps=(1,)) for k in range(indices.shape[-1])
    ]
    moving = [k for k, column in enumerate(columns) if len(columns) != last or not _is_position(column, k)]
    if len(moving) != 1:
        return None
    row = term("reshape", columns[moving[0]], shape=(*lead, *(1,) * (len(shape) - last)))
    return _picked(whole, term("expand", row, shape=shape), moving[0])


@scatter_elements.traits.storing
def _(node, whole):
    return _picked(whole, node.args[1], node.attr("axis")) if node.attr("reduction") == "none" else None


@scatter.traits.storing
def _(node, whole):
    return _picked(whole, node.args[1], node.attr("axis"))


@tensor_scatter.traits.storing
def _(node, whole):
    """The elements of one row of each batch, so that no row is outside."""
    shape, axis = node.args[1].shape, node.attr("axis")
    if len(node.args) < 3 or shape[axis] != 1 or node.attr("mode") != "linear":
        return None
    starts = term("reshape", node.args[2], shape=(shape[0], *(1,) * (len(shape) - 1)))
    return _picked(whole, term("expand", starts, shape=shape), axis)


def _is_position(column, axis: int) -> bool:
    """Whether a column of indices is constant, and has the position along an axis."""
    try:
        found = index_map(column)
    except Unsupported:
        return False
    known = {source: source.attr("value").numpy() for source in found.sources if source.op == "constant"}
    fixed = len(known) == len(found.sources) and all(isinstance(n, int) for n in found.shape)
    return fixed and np.array_equal(moved_elements(found, known), np.indices(found.shape)[axis])


def _picked(whole, indices, axis: int):
    return term("gather_elements", whole, indices, axis=axis)


# ---------------------------------------------------------------- from and to ONNX


@scatter_nd.importer
def _(call: Call):
    x, updates, reduction = call.arg(0), call.arg(2), _reduction(call)
    if (rows := _known(call, 1)) is not None and (box := _nd_box(rows, x.shape)) is not None:
        return _placed(x, box, updates, reduction)
    return scatter_nd.term(x, call.arg(1), updates, reduction=reduction)


@scatter_elements.importer
def _(call: Call):
    x, updates, reduction, axis = call.arg(0), call.arg(2), _reduction(call), call.attrs.get("axis", 0)
    axis = axis + x.tensor.rank if axis < 0 else axis
    if (rows := _known(call, 1)) is not None and (box := _element_box(rows, x.shape, axis)) is not None:
        return _placed(x, box, updates, reduction)
    return scatter_elements.term(x, call.arg(1), updates, axis=axis, reduction=reduction)


@scatter.importer
def _(call: Call):
    x, axis = call.arg(0), call.attrs.get("axis", 0)
    return scatter.term(x, call.arg(1), call.arg(2), axis=axis + x.tensor.rank if axis < 0 else axis)


@tensor_scatter.importer
def _(call: Call):
    x, axis = call.arg(0), call.attrs.get("axis", -2)
    mode = call.attrs.get("mode", "linear")
    return tensor_scatter.term(
        x,
        call.arg(1),
        call.arg(2),
        axis=axis + x.tensor.rank if axis < 0 else axis,
        mode=mode.decode() if isinstance(mode, bytes) else mode,
    )


@scatter_nd.exporter
def _(node, opset: int) -> Call:
    return Call("ScatterND", node.args, _stated(node, opset), opset)


@scatter_elements.exporter
def _(node, opset: int) -> Call:
    return Call("ScatterElements", node.args, {"axis": node.attr("axis"), **_stated(node, opset)}, opset)


def _reduction(call: Call) -> str:
    found = call.attrs.get("reduction", "none")
    return found.decode() if isinstance(found, bytes) else found


def _stated(node, opset: int):
    """The attribute `reduction`, where it is not the default."""
    reduction = node.attr("reduction")
    if opset < REDUCTION_SINCE.get(reduction, 0):
        raise Unsupported(f"{node.op} with the reduction {reduction} at opset {opset}")
    return {} if reduction == "none" else {"reduction": reduction}


# ---------------------------------------------------------------- constant indices


def _known(call: Call, i: int):
    """Constant indices, an initializer too; None for others, and for many."""
    node = call.arg(i)
    if node is ABSENT or not all(isinstance(n, int) for n in node.shape) or math.prod(node.shape) > LISTED:
        return None
    if node.op == "constant":
        return node.attr("value").numpy()
    known = call.weights.get(node.attr("name")) if node.op == "weight" else None
    return None if known is None else np.asarray(known.numpy())


def _nd_box(rows, shape):
    """The axis and the first row of a part of data along one axis that these indices are; None if
    they are no such part."""
    depth = rows.shape[-1]
    if not rows.size or depth > len(shape) or not all(isinstance(n, int) for n in shape[:depth]):
        return None
    counts = (*rows.shape[:-1],)
    if len(counts) != depth:
        return None
    return _box([rows[..., k] for k in range(depth)], counts, shape)


def _element_box(rows, shape, axis: int):
    if not rows.size or not all(isinstance(n, int) for n in shape):
        return None
    places = [rows if k == axis else np.indices(rows.shape)[k] for k in range(len(shape))]
    return _box(places, rows.shape, shape)


def _box(places, counts, shape):
    axes = [k for k, (m, n) in enumerate(zip(counts, shape, strict=False)) if m != n]
    starts = [0] * len(counts)
    for k, place in enumerate(places):
        at = np.where(place < 0, place + shape[k], place)
        starts[k] = int(at.flat[0])
        expected = starts[k] + np.indices(counts)[k]
        if not np.array_equal(at, expected) or not 0 <= starts[k] <= shape[k] - counts[k]:
            return None
    if len(axes) > 1:
        return None
    axis = axes[0] if axes else 0
    return axis, starts[axis], counts[axis]


def _placed(x, box, updates, reduction: str):
    """The part of x from a row on is the updates: a concatenation."""
    axis, start, count = box
    end, n = start + count, x.shape[axis]

    def rows(low, high):
        return term("slice", x, axes=(axis,), starts=(low,), ends=(high,), steps=(1,)) if (low, high) != (0, n) else x

    bounds = [(low, high) for low, high in pairwise((0, start, end, n)) if low < high or (low, high) == (start, end)]
    if reduction != "none":
        updates = term(reduction, rows(start, end), updates)
    parts = [updates if b == (start, end) else rows(*b) for b in bounds]
    return term("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


scatter_nd.example("float32[4,3]", [[1], [-1]], "float32[2,3]")
scatter_nd.example("float32[4,3]", [[0, 1], [3, -2], [2, 2]], "float32[3]")
scatter_nd.example("float32[4,3]", [[1], [1], [0]], "float32[3,3]", reduction="add")
scatter_nd.example("float32[4,3]", [[1], [1], [0]], "float32[3,3]", reduction="mul")
scatter_nd.example("float32[4]", [[2], [2]], "float32[2]", reduction="max")
scatter_nd.example("float32[4]", [[2], [2]], "float32[2]", reduction="min")
scatter_nd.example("float32[2,4,3]", "int64[1,2]", "float32[1,3]")
scatter_nd.example("int64[5,2]", [[4], [0]], "int64[2,2]")

scatter_elements.example("float32[3,3]", [[1, 0, 2], [0, 2, 1]], "float32[2,3]", axis=0)
scatter_elements.example("float32[2,5]", [[1, -1], [0, 2]], "float32[2,2]", axis=1)
scatter_elements.example("float32[2,5]", [[1, 1]], "float32[1,2]", axis=1, reduction="add")
scatter_elements.example("float32[2,5]", [[1, 1]], "float32[1,2]", axis=1, reduction="mul")
scatter_elements.example("float32[2,5]", [[1, 1]], "float32[1,2]", axis=1, reduction="max")
scatter_elements.example("float32[2,5]", [[1, 1]], "float32[1,2]", axis=1, reduction="min")
scatter_elements.example("int64[5,2]", [[4, 0]], "int64[1,2]", axis=0)

scatter.example("float32[3,3]", [[1, 0, 2], [0, 2, 1]], "float32[2,3]", axis=0)

tensor_scatter.example("float32[2,3,4,2]", "float32[2,3,1,2]", [3, 0], axis=2)
tensor_scatter.example("float32[2,4,2]", "float32[2,2,2]", axis=1)
tensor_scatter.example("float32[2,4,2]", "float32[2,2,2]", [3, 1], axis=1, mode="circular")
