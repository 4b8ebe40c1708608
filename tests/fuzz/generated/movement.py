"""Single operators that move, select, repeat and place elements."""

from __future__ import annotations

import numpy as np

from fuzz.generated.graph import Impossible, RandomGraph, dim
from fuzz.generated.operators import step
from fuzz.generated.values import BOOL, EVERY, INT32, INT64, STRING, Dim, Value, array


def anything(g: RandomGraph, least: int = 0) -> Value:
    """A value of any dtype, mostly of the model's floats."""
    dtypes = (*EVERY, STRING) if g.chance(0.15) else (g.dtype,)
    return g.some(*dtypes, where=lambda v: v.rank >= least)


def known(d: Dim) -> bool:
    return isinstance(d, int) and d > 0


@step("Reshape")
def reshape(g: RandomGraph, op: str) -> Value:
    x = anything(g)
    dims: list[int] = [d if isinstance(d, int) else 0 for d in x.shape]
    match g.random.randrange(5):
        case 0:
            new = [-1]
        case 1 if x.rank > 1:
            new = [*dims[:-2], -1]
        case 2 if x.rank and known(x.shape[-1]) and dims[-1] % 2 == 0:
            new = [*dims[:-1], 2, dims[-1] // 2]
        case 3 if x.static and 0 not in x.shape:
            new = g.random.sample(dims, len(dims))
        case _:
            new = [0] * x.rank + ([1] if g.chance(0.5) else []) if x.rank else [1, 1]
    if 0 in x.shape:
        raise Impossible
    return g.add(op, x, g.ints(*new), exact=True)


@step("Transpose")
def transpose(g: RandomGraph, op: str) -> Value:
    x = anything(g, 1)
    return g.add(op, x, perm=g.choice((None, g.random.sample(range(x.rank), x.rank))), exact=True)


@step("Flatten")
def flatten(g: RandomGraph, op: str) -> Value:
    x = anything(g)
    return g.add(op, x, axis=g.random.randint(-x.rank, x.rank), exact=True)


@step("Squeeze")
def squeeze(g: RandomGraph, op: str) -> Value:
    x = anything(g, 1)
    axes = [i for i, d in enumerate(x.shape) if d == 1]
    if not axes:
        x = g.add("Unsqueeze", x, axes=[0], exact=True)
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    some = g.random.sample(axes, g.random.randint(1, len(axes)))
    return g.add(op, x, axes=None if g.chance(0.2) and x.static else some, exact=True)


@step("Unsqueeze")
def unsqueeze(g: RandomGraph, op: str) -> Value:
    x = anything(g)
    if x.rank > 4:
        raise Impossible
    count = g.choice((1, 1, 2))
    axes = g.random.sample(range(x.rank + count), count)
    return g.add(op, x, axes=[a - x.rank - count if g.chance(0.3) else a for a in axes], exact=True)


@step("Expand")
def expand(g: RandomGraph, op: str) -> Value:
    x = anything(g)
    wanted = [g.choice((1, 2, 3)) if d == 1 else 1 for d in x.shape]
    lead = [g.choice((1, 2))] if g.chance(0.4) and x.rank < 5 else []
    return g.add(op, x, g.ints(*lead, *wanted), exact=True)


@step("Tile")
def tile(g: RandomGraph, op: str) -> Value:
    x = anything(g, 1)
    return g.add(op, x, g.ints(*(g.choice((1, 1, 2, 3)) for _ in x.shape)), exact=True)


@step("Slice")
def slices(g: RandomGraph, op: str) -> Value:
    x = anything(g, 1)
    axes = sorted(g.random.sample(range(x.rank), g.random.randint(1, min(2, x.rank))))
    starts, ends, steps = [], [], []
    for _ in axes:
        start, end, by = g.choice(
            (
                (0, 2, 1),
                (1, 2**63 - 1, 1),
                (-2, 2**63 - 1, 1),
                (0, -1, 1),
                (-1, -(2**63) + 1, -1),
                (0, 9, 2),
                (1, 3, 1),
                (0, 1, 1),
            )
        )
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, by]
    given = [a - x.rank if g.chance(0.3) else a for a in axes]
    rest = (g.ints(*steps),) if g.chance(0.7) or -1 in steps or 2 in steps else ()
    return g.add(op, x, g.ints(*starts), g.ints(*ends), g.ints(*given), *rest, exact=True)


@step("Gather")
def gather(g: RandomGraph, op: str) -> Value:
    x = anything(g, 1)
    axis = g.axis(x, known)
    shape = g.choice(((), (1,), (2,), (2, 2)))
    high = dim(x, axis)
    indices = array(g.choice((INT64, INT32)), g.numbers.integers(-high, high, shape))
    return g.add(op, x, indices, axis=axis, exact=True)


@step("GatherElements", "ScatterElements")
def elements(g: RandomGraph, op: str) -> Value:
    x = g.float(lambda v: v.static and v.rank > 0 and 0 not in v.shape)
    axis = g.axis(x)
    high = x.ints()[axis]
    shape = tuple(d if op == "GatherElements" else g.random.randint(1, d) for d in x.ints())
    shape = tuple(min(d, high) if i == axis % x.rank else d for i, d in enumerate(shape))
    lines = np.moveaxis(np.zeros(shape, np.int64), axis, -1)
    lines = np.apply_along_axis(lambda v: g.numbers.permutation(high)[: v.size], -1, lines)  # no place twice
    indices = np.ascontiguousarray(np.moveaxis(lines, -1, axis))
    if op == "GatherElements":
        return g.add(op, x, indices, axis=axis, exact=True)
    sums = {"reduction": "add"} if g.opset >= 16 and g.chance(0.3) else {}
    return g.add(op, x, indices, g.weight(x.dtype, shape), axis=axis, bound=x.bound + 4, exact=not sums, **sums)


@step("GatherND", "ScatterND")
def points(g: RandomGraph, op: str) -> Value:
    x = g.float(lambda v: v.static and v.rank > 0 and 0 not in v.shape)
    depth, count = g.random.randint(1, x.rank), g.choice((1, 2))
    count = min(count, int(np.prod(x.ints()[:depth])))
    flat = g.numbers.permutation(int(np.prod(x.ints()[:depth])))[:count]
    indices = np.stack(np.unravel_index(flat, x.ints()[:depth]), -1).astype(np.int64)
    if op == "GatherND":
        return g.add(op, x, indices, exact=True)
    return g.add(op, x, indices, g.weight(x.dtype, (count, *x.ints()[depth:])), exact=True, bound=x.bound + 4)


@step("Concat")
def concat(g: RandomGraph, op: str) -> Value:
    x = anything(g, 1)
    axis = g.axis(x)
    rest = [*x.shape]
    rest[axis] = "*"

    def fits(v: Value) -> bool:
        return v.rank == x.rank and [d if i != axis % x.rank else "*" for i, d in enumerate(v.shape)] == rest

    parts = [v for v in g.visible() if v.dtype == x.dtype and v.container == x.container and fits(v)]
    chosen = [x, *(g.choice(parts) for _ in range(g.choice((0, 1, 1, 2))))]
    if g.chance(0.3) and all(known(d) for i, d in enumerate(x.shape) if i != axis % x.rank):
        size = [int(d) if known(d) else 1 for d in x.shape]
        size[axis] = g.choice((0, 1, 2))
        chosen += [g.weight(x.dtype, size)]
    g.random.shuffle(chosen)
    return g.add(op, *chosen, axis=axis, exact=True)


@step("Split")
def split(g: RandomGraph, op: str) -> Value:
    x = anything(g, 1)
    axis = g.axis(x, lambda d: isinstance(d, int) and d > 1)
    size = dim(x, axis)
    first = g.random.randint(1, size - 1)
    if size % 2 == 0 and g.chance(0.4):
        more = {"num_outputs": 2} if g.opset >= 18 else {}
        return g.choice(g.all(op, x, outputs=2, axis=axis, exact=True, **more))
    return g.choice(g.all(op, x, outputs=2, axis=axis, split=[first, size - first], exact=True))


@step("Pad")
def pad(g: RandomGraph, op: str) -> Value:
    x = g.float(lambda v: v.rank > 0)
    mode = g.choice(("constant", "constant", "reflect", "edge"))
    most = 1 if mode != "constant" else 2
    ok = [mode == "constant" or (isinstance(d, int) and d > 1) for d in x.shape]
    pads = [g.random.randint(0, most) if fine else 0 for fine in [*ok, *ok]]
    if mode == "constant" and g.chance(0.2):
        pads = [
            -1 if isinstance(d, int) and d > 2 and g.chance(0.5) else p
            for p, d in zip(pads, [*x.shape] * 2, strict=True)
        ]
    number = [g.like(x, g.choice((0.0, 1.0)))] if mode == "constant" and g.chance(0.6) else []
    return g.add(op, x, g.ints(*pads), *number, mode=mode, exact=True)


@step("DepthToSpace", "SpaceToDepth")
def blocks(g: RandomGraph, op: str) -> Value:
    n, c, h, w = g.choice((1, 2)), 4, g.choice((2, 4)), 2
    x = g.ranked(4, static=3)
    if (op == "DepthToSpace" and dim(x, 1) % 4) or (op != "DepthToSpace" and any(int(d) % 2 for d in x.shape[2:])):
        x = g.given(g.dtype, (n, c, h, w))
    mode = g.choice(("DCR", "CRD")) if op == "DepthToSpace" else None
    return g.add(op, x, blocksize=2, mode=mode, exact=True)


@step("ReverseSequence")
def reverse(g: RandomGraph, op: str) -> Value:
    x = g.float(lambda v: v.rank > 1 and all(known(d) for d in v.shape[:2]))
    lengths = np.array([g.random.randint(1, dim(x, 0)) for _ in range(dim(x, 1))], np.int64)
    return g.add(op, x, lengths, batch_axis=1, time_axis=0, exact=True)


@step("Trilu")
def triangle(g: RandomGraph, op: str) -> Value:
    x = g.some(g.dtype, INT64, BOOL, where=lambda v: v.rank > 1)
    return g.add(
        op,
        x,
        *([g.constant(np.array(g.choice((-1, 0, 1))))] if g.chance(0.6) else []),
        upper=g.choice((0, 1)),
        exact=True,
    )


@step("OneHot")
def one_hot(g: RandomGraph, op: str) -> Value:
    indices = (
        g.constant(g.numbers.integers(-4, 4, (2, 3)))
        if g.chance(0.5)
        else g.add("ArgMax", g.float(lambda v: v.rank > 1 and v.exact and 0 not in v.shape), axis=1)
    )
    values = g.constant(array(g.dtype, g.choice(((0, 1), (-1, 2)))))
    return g.add(op, indices, g.constant(np.array(g.choice((4, 5)))), values, axis=g.choice((-1, 0)), bound=2.0)


@step("EyeLike")
def eye(g: RandomGraph, op: str) -> Value:
    return g.add(op, g.float(lambda v: v.rank == 2), k=g.choice((-1, 0, 1)), bound=1.0)


@step("Range")
def numbers(g: RandomGraph, op: str) -> Value:
    dtype = g.choice((INT64, g.dtype))
    start, count, by = g.choice((0, 1)), g.choice((3, 4)), g.choice((1, 2))
    end = start + count * by
    return g.add(op, *(g.constant(array(dtype, v)) for v in (start, end, by)), shape=(count,), bound=9.0)


@step("ConstantOfShape")
def filled(g: RandomGraph, op: str) -> Value:
    value = g.choice((None, np.array([1], np.float32), np.array([2], np.int64), np.array([True])))
    from onnx import numpy_helper

    return g.add(
        op,
        g.ints(*(g.choice((1, 2, 3)) for _ in range(g.choice((0, 1, 2))))),
        value=None if value is None else numpy_helper.from_array(value),
        bound=2.0,
    )


@step("Shape", "Size")
def sizes(g: RandomGraph, op: str) -> Value:
    x = anything(g)
    part = (
        {"start": g.choice((0, -1)), "end": g.choice((1, 2))}
        if op == "Shape" and g.opset >= 15 and g.chance(0.3)
        else {}
    )
    made = g.add(op, x, bound=100.0, **part)
    return g.add("Cast", made, to=g.dtype, bound=100.0) if g.chance(0.5) else made


@step("Col2Im", "CenterCropPad")
def images(g: RandomGraph, op: str) -> Value:
    if op == "Col2Im":
        return g.add(op, g.given(g.dtype, (1, 8, 9)), g.ints(4, 4), g.ints(2, 2), bound=20.0)
    x = g.float(lambda v: v.rank == 2 and v.static)
    return g.add(op, x, g.ints(3, 3), axes=[0, 1])


@step("TensorScatter")
def cache(g: RandomGraph, op: str) -> Value:
    past, new = g.given(g.dtype, (1, 2, 4, 4)), g.given(g.dtype, (1, 2, 1, 4))
    return g.add(op, past, new, g.ints(g.choice((0, 2))), mode="linear", exact=True)
