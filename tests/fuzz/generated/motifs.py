"""Patterns that optimizers know, each with what spoils it now and then: another number, axis, shape
or dtype, a value inside that something else reads, a shared weight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuzz.generated.graph import Impossible, RandomGraph, dim
from fuzz.generated.layers import image, tokens
from fuzz.generated.operators import other
from fuzz.generated.quantized import islands
from fuzz.generated.values import FLOAT, INT64, Value, array

Motif = Callable[[RandomGraph], object]
MOTIFS: dict[str, Motif] = {"islands": islands}


def motif(function: Callable[[RandomGraph], object]) -> Callable[[RandomGraph], object]:
    MOTIFS[function.__name__] = function
    return function


def bias(g: RandomGraph, size: int, x: Value) -> Value:
    """A bias along the last axis, in one of its shapes."""
    return g.weight(x.dtype, g.choice(((size,), (size,), (1, size), (1,) * (x.rank - 1) + (size,), ())))


def axis(g: RandomGraph, right: int, rank: int) -> int:
    """An axis from either end, rarely another one."""
    if g.chance(0.1):
        return g.random.randrange(rank)
    return right if g.chance(0.6) else right % rank


def activation(g: RandomGraph, x: Value) -> Value:
    op = g.choice(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip", "none"))
    if op == "none":
        return x
    if op == "Clip":
        return g.add(op, x, g.like(x, 0.0), g.like(x, 6.0))
    return g.add(op, x)


@motif
def conv_bn_relu(g: RandomGraph) -> Value:
    x = image(g)
    c, k, n = (
        dim(x, 1),
        g.choice((1, 2, 3)) if x.rank < 5 and x.static and min(x.ints()[2:]) > 2 else 1,
        g.choice((2, 3, 4)),
    )
    w = g.weight(x.dtype, (n, c, *[k] * (x.rank - 2)), 0.5)
    held = [g.weight(x.dtype, (n,))] if g.chance(0.5) else []
    y = g.add("Conv", x, w, *held, pads=[k // 2] * 2 * (x.rank - 2), bound=x.bound * 2 * c * k**3)
    if g.chance(0.3):
        y = g.add("Add", y, g.weight(x.dtype, g.choice(((1, n) + (1,) * (x.rank - 2), (n,) + (1,) * (x.rank - 2), ()))))
    scale, shift, mean = (g.weight(x.dtype, (n,)) for _ in range(3))
    y = g.add(
        "BatchNormalization",
        y,
        scale,
        shift,
        mean,
        g.weight(x.dtype, (n,), positive=True),
        epsilon=1e-3,
        bound=y.bound * 12,
    )
    return activation(g, y)


@motif
def bn_conv(g: RandomGraph) -> Value:
    x = image(g)
    c = dim(x, 1)
    scale, shift, mean = (g.weight(x.dtype, (c,)) for _ in range(3))
    y = g.add("BatchNormalization", x, scale, shift, mean, g.weight(x.dtype, (c,), positive=True), bound=x.bound * 12)
    pads = [0] * (x.rank - 2) if g.chance(0.6) else [1] * (x.rank - 2)
    return g.add("Conv", y, g.weight(x.dtype, (2, c, *[1] * (x.rank - 2))), pads=pads * 2, bound=y.bound * 3 * c)


@motif
def pad_conv(g: RandomGraph) -> Value:
    x = g.given(g.dtype, (1, 2, 4, 4))
    pads = g.choice(([0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0, 0]))
    number = [g.like(x, g.choice((0.0, 0.0, 1.0)))] if g.chance(0.7) else []
    y = g.add("Pad", x, g.ints(*pads), *number, mode=g.choice(("constant", "constant", "edge", "reflect")), exact=True)
    op = g.choice(("Conv", "Conv", "MaxPool", "AveragePool"))
    if op == "Conv":
        return g.add(op, y, g.weight(x.dtype, (2, dim(y, 1), 2, 2)), pads=g.choice((None, [1, 1, 1, 1])), bound=100.0)
    return g.add(op, y, kernel_shape=[2, 2], pads=g.choice((None, [1, 1, 1, 1])))


@motif
def residual(g: RandomGraph) -> Value:
    x = image(g)
    c = dim(x, 1)
    y = g.add("Conv", x, g.weight(x.dtype, (c, c, *[1] * (x.rank - 2))), bound=x.bound * 3 * c)
    return activation(g, g.add("Add", *((x, y) if g.chance(0.5) else (y, x)), bound=x.bound + y.bound))


@motif
def squeeze_excite(g: RandomGraph) -> Value:
    x = image(g)
    c = dim(x, 1)
    pooled = (
        g.add("GlobalAveragePool", x) if g.chance(0.6) else g.add("ReduceMean", x, axes=[*range(2, x.rank)], keepdims=1)
    )
    ones = [1] * (x.rank - 2)
    y = g.add("Relu", g.add("Conv", pooled, g.weight(x.dtype, (2, c, *ones)), bound=x.bound * 3 * c))
    gate = g.add("Sigmoid", g.add("Conv", y, g.weight(x.dtype, (c, 2, *ones)), bound=y.bound * 6), bound=1.0)
    return g.add("Mul", x, gate)


@motif
def layer_norm(g: RandomGraph) -> Value:
    x = tokens(g)
    d = dim(x, -1)
    at = axis(g, -1, 3)
    center = g.add("Sub", x, g.add("ReduceMean", x, axes=[at], keepdims=1), bound=x.bound * 2)
    square = (
        g.add("Pow", center, g.scalar(2.0, exact=0.95))
        if g.chance(0.6)
        else g.add("Mul", center, center, bound=center.bound**2)
    )
    if square.bound > 1e3 or d < 2:
        raise Impossible
    spread = g.add(
        "Sqrt",
        g.add("Add", g.add("ReduceMean", square, axes=[axis(g, -1, 3)], keepdims=1), g.like(x, g.choice((1e-5, 1e-2)))),
        bound=20.0,
    )
    y = g.add("Div", center, spread, bound=30.0)
    if g.chance(0.3):
        y = g.add("Mul", center, g.add("Reciprocal", spread, bound=100.0), bound=30.0)
    y = g.add("Mul", y, bias(g, d, x), bound=90.0)
    return g.add("Add", y, bias(g, d, x)) if g.chance(0.8) else y


@motif
def rms_norm(g: RandomGraph) -> Value:
    x = tokens(g)
    two = g.scalar(2.0, exact=0.95)
    mean = g.add("ReduceMean", g.add("Pow", x, two, bound=x.bound**3), axes=[-1], keepdims=1)
    root = g.add("Sqrt", g.add("Add", mean, g.like(x, 1e-3)), bound=20.0)
    y = (
        g.add("Div", x, root, bound=30.0)
        if g.chance(0.5)
        else g.add("Mul", x, g.add("Reciprocal", root, bound=40.0), bound=30.0)
    )
    return g.add("Mul", *((y, bias(g, dim(x, -1), x)) if g.chance(0.5) else (bias(g, dim(x, -1), x), y)), bound=90.0)


@motif
def gelu(g: RandomGraph) -> Value:
    x = g.bounded(g.float(), 5.0)
    if g.chance(0.5):
        inner = (
            g.add("Div", x, g.scalar(g.choice((1.4142135, 1.41421356237, 1.4)), x.dtype, 1.0))
            if g.chance(0.6)
            else g.add("Mul", x, g.scalar(g.choice((0.70710678, 0.7071, 0.70)), x.dtype, 1.0))
        )
        half = g.add("Add", g.add("Erf", inner, bound=1.0), g.scalar(1.0, x.dtype), bound=2.1)
    else:
        cube = g.add(
            "Mul", g.scalar(0.044715, x.dtype), g.add("Pow", x, g.scalar(3.0, x.dtype, 0.97), bound=130.0), bound=6.0
        )
        inner = g.add(
            "Mul", g.scalar(g.choice((0.7978845608, 0.79788, 0.8)), x.dtype, 1.0), g.add("Add", x, cube, bound=12.0)
        )
        half = g.add("Add", g.scalar(1.0, x.dtype), g.add("Tanh", inner, bound=1.0), bound=2.1)
    if g.chance(0.5):
        return g.add("Mul", g.add("Mul", x, half, bound=11.0), g.scalar(0.5, x.dtype), bound=6.0)
    return g.add("Mul", g.add("Mul", g.scalar(0.5, x.dtype), x), half, bound=6.0)


@motif
def gated(g: RandomGraph) -> Value:
    x = g.bounded(g.float(), 5.0)
    inner = g.add("Mul", x, g.scalar(1.702, x.dtype), bound=9.0) if g.chance(0.4) else x
    if g.chance(0.3):
        return g.add(
            "Mul",
            x,
            g.add("Clip", g.add("Add", x, g.scalar(3.0, x.dtype), bound=9.0), g.like(x, 0.0), g.like(x, 6.0)),
            bound=30.0,
        )
    return g.add("Mul", x, g.add("Sigmoid", inner, bound=1.0), bound=5.0)


@motif
def linear(g: RandomGraph) -> Value:
    x = g.bounded(g.ranked(2, 3, 4, static=1))
    k, n = dim(x, -1), g.choice((1, 2, 4))
    y = g.add("MatMul", x, g.weight(x.dtype, (k, n)), bound=x.bound * 3 * k)
    y = g.add("Add", *((y, bias(g, n, y)) if g.chance(0.6) else (bias(g, n, y), y)), bound=y.bound + 4)
    y = activation(g, y)
    if g.chance(0.4):
        y = g.bounded(y, 50.0)
        y = g.add("MatMul", y, g.weight(x.dtype, (n, 3)), bound=y.bound * 9)
    return y


@motif
def attention_by_hand(g: RandomGraph) -> Value:
    x = tokens(g, 4)
    b, s = x.shape[0], x.shape[1]
    if not x.static:
        raise Impossible
    shared = g.weight(x.dtype, (4, 4))

    def head(perm: list[int]) -> Value:
        w = shared if g.chance(0.2) else g.weight(x.dtype, (4, 4))
        y = g.add("MatMul", x, w, bound=x.bound * 8)
        y = g.add("Add", y, g.weight(x.dtype, (4,)), bound=y.bound + 3) if g.chance(0.5) else y
        return g.add("Transpose", g.add("Reshape", y, g.ints(int(b), int(s) if g.chance(0.7) else -1, 2, 2)), perm=perm)

    q, k, v = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
    scores = g.add("MatMul", g.bounded(q), g.bounded(k), bound=64.0)
    scores = g.add("Div", scores, g.scalar(1.4142135)) if g.chance(0.5) else g.add("Mul", scores, g.scalar(0.70710678))
    if g.chance(0.4):
        scores = g.add("Add", scores, g.weight(x.dtype, (int(s), int(s))), bound=60.0)
    elif g.chance(0.4):
        kept = g.constant(np.tril(np.ones((int(s), int(s)), bool)))
        scores = g.add("Where", kept, scores, g.like(scores, -1e4), bound=60.0)
    share = g.add("Softmax", scores, axis=axis(g, -1, 4), bound=1.0)
    y = g.add("Transpose", g.add("MatMul", share, v, bound=v.bound), perm=[0, 2, 1, 3])
    return g.add("Reshape", y, g.ints(int(b), int(s), 4))


@motif
def rope(g: RandomGraph) -> Value:
    x = g.bounded(g.ranked(3, 4, static=1))
    d = dim(x, -1)
    if d % 2:
        raise Impossible
    h = d // 2 if g.chance(0.9) else 1
    end = 2**63 - 1 if g.chance(0.5) else d
    first, second = (
        g.add("Slice", x, g.ints(a), g.ints(e), g.ints(g.choice((-1, x.rank - 1))), g.ints(1))
        for a, e in ((0, h), (h, end))
    )
    turned = g.add("Concat", g.add("Neg", second), first, axis=-1)
    cos, sin = g.weight(x.dtype, (d,)), g.weight(x.dtype, (d,))
    return g.add(
        "Add", g.add("Mul", x, cos, bound=x.bound * 3), g.add("Mul", turned, sin, bound=x.bound * 3), bound=x.bound * 6
    )


@motif
def transposes_around(g: RandomGraph) -> Value:
    x = g.float(lambda v: v.rank > 1)
    perm = g.random.sample(range(x.rank), x.rank)
    y = g.add("Transpose", x, perm=perm, exact=True)
    for _ in range(g.choice((0, 1, 2))):
        op = g.choice(("Relu", "Add", "Tanh", "Softmax", "ReduceMax"))
        y = (
            g.add(op, y, other(g, y), bound=y.bound + 4)
            if op == "Add"
            else g.add(
                op,
                y,
                **({"axis": g.axis(y)} if op == "Softmax" else {"axes": [g.axis(y)]} if op == "ReduceMax" else {}),
            )
        )
    if y.rank != x.rank:
        raise Impossible
    back = [perm.index(i) for i in range(x.rank)] if g.chance(0.8) else g.random.sample(range(x.rank), x.rank)
    return g.add("Transpose", y, perm=back, exact=True)


@motif
def slices_of_slices(g: RandomGraph) -> Value:
    x = g.float(lambda v: v.rank > 0 and any(isinstance(d, int) and d > 3 for d in v.shape))
    at = g.axis(x, lambda d: isinstance(d, int) and d > 3)
    y = x
    for _ in range(g.choice((2, 3))):
        a, e, by = g.choice(((1, 2**31, 1), (0, -1, 1), (-3, 2**31, 1), (0, 9, 2), (-1, -99, -1), (0, 99, 1)))
        y = g.add("Slice", y, g.ints(a), g.ints(e), g.ints(at), g.ints(by), exact=True)
    return y


@motif
def shape_arithmetic(g: RandomGraph) -> Value:
    """A reshape to sizes that nodes compute."""
    x = g.float(lambda v: v.rank > 1 and 0 not in v.shape)
    shape = g.add("Shape", x, bound=100.0)
    first = (
        g.add("Gather", shape, np.array(0), axis=0, bound=100.0)
        if g.chance(0.5)
        else g.add("Slice", shape, g.ints(0), g.ints(1), g.ints(0))
    )
    if first.rank == 0:
        first = g.add("Unsqueeze", first, axes=[0])
    if g.chance(0.3):
        first = g.add("Cast", g.add("Cast", first, to=FLOAT), to=INT64, bound=100.0)
    new = g.add("Concat", first, g.ints(-1), axis=0)
    y = g.add(
        "Reshape", x, new, shape=(x.shape[0], int(np.prod(x.ints()[1:])) if x.static else g.name("?")), exact=True
    )
    if g.chance(0.5):
        return g.add("Reshape", g.add("Relu", y, exact=True), shape, shape=x.shape, exact=True)
    return y


@motif
def expand_to_shape(g: RandomGraph) -> Value:
    x = g.float(lambda v: v.rank > 0 and 0 not in v.shape)
    shape = g.add("Shape", x, bound=100.0)
    made = (
        g.add("Expand", g.weight(x.dtype, ()), shape, shape=x.shape)
        if g.chance(0.5)
        else g.add("ConstantOfShape", shape, shape=x.shape)
    )
    made = made if made.dtype == x.dtype else g.add("Cast", made, to=x.dtype)
    return g.add(g.choice(("Add", "Sub")), x, made, bound=x.bound + 3)


@motif
def split_concat(g: RandomGraph) -> Value:
    x = g.float(lambda v: v.rank > 0 and any(isinstance(d, int) and d % 2 == 0 and d > 0 for d in v.shape))
    at = g.axis(x, lambda d: isinstance(d, int) and d % 2 == 0 and d > 0)
    half = dim(x, at) // 2
    parts = g.all("Split", x, outputs=2, split=[half, half], axis=at, exact=True)
    if g.chance(0.4):
        parts = [g.add(g.choice(("Relu", "Neg")), p, exact=True) for p in parts]
    parts = parts[::-1] if g.chance(0.3) else parts
    return g.add("Concat", *parts, axis=at if g.chance(0.9) else g.axis(x), exact=True)


@motif
def masked(g: RandomGraph) -> Value:
    """Constants that are infinite, of which nothing infinite remains."""
    x = g.bounded(g.float(lambda v: v.rank > 1 and all(isinstance(d, int) and d > 0 for d in v.shape[-2:])))
    shape = tuple(int(d) for d in x.shape[-2:])
    low = g.choice((-np.inf, -np.inf, -3e4))
    numbers = np.where(np.tril(np.ones(shape, bool)), 0.0, low)
    if g.chance(0.4):
        held = g.constant(np.tril(np.ones(shape, bool)))
        y = g.add("Where", held, x, g.constant(array(x.dtype, low)), bound=x.bound)
    else:
        mask = g.constant(array(x.dtype, numbers))
        y = g.add("Add", x, mask, bound=x.bound)
    return g.add("Softmax", y, axis=-1, bound=1.0)


@motif
def empty_parts(g: RandomGraph) -> Value:
    """Values of no elements, joined to others or reduced."""
    x = g.float(lambda v: v.rank > 0 and v.static)
    nothing = g.add("Slice", x, g.ints(0), g.ints(0), g.ints(0), exact=True)
    if g.chance(0.5):
        nothing = g.add(g.choice(("Relu", "Tanh", "Neg")), nothing, exact=True)
    if g.chance(0.3):
        return g.add("ReduceSum", nothing, axes=[0], keepdims=1)
    return g.add("Concat", *((nothing, x) if g.chance(0.5) else (x, nothing)), axis=0, exact=True)


@motif
def gathers(g: RandomGraph) -> Value:
    """An embedding, or a gather of a gather."""
    table = g.weight(g.dtype, (5, 4))
    indices = (
        g.some(INT64, where=lambda v: v.name.startswith("x") and v.rank < 3)
        if g.chance(0.1)
        else g.constant(g.numbers.integers(-5, 5, (2, 3)))
    )
    if indices.bound > 5:
        indices = g.add("Clip", indices, np.array(0), np.array(4)) if g.opset > 11 else indices
    y = g.add("Gather", table, indices, axis=0)
    return g.add(
        "Gather", y, np.array(g.choice(([0], 1, [-1, 0]))), axis=g.axis(y, lambda d: isinstance(d, int) and d > 1)
    )
