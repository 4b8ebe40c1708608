"""Patterns of algebra: operations and their inverses, values with themselves, chains of moves."""

from __future__ import annotations

import numpy as np

from fuzz.generated.graph import Impossible, RandomGraph, dim
from fuzz.generated.motifs import motif
from fuzz.generated.operators import STEPS, other
from fuzz.generated.values import BOOL, DOUBLE, FLOAT, INT32, INT64, Value

MOVES = tuple(
    "Reshape Transpose Flatten Squeeze Unsqueeze Expand Tile Slice Gather Concat Split Pad Identity Relu Neg Add Mul "
    "ReduceSum ReduceMax ReduceMean Softmax Cast Clip Where".split()
)


@motif
def chain_of_moves(g: RandomGraph) -> None:
    """Moves, each of the last value."""
    kept, g.focus = g.focus, 0.95
    for _ in range(g.random.randint(3, 7)):
        try:
            STEPS[g.choice(MOVES)](g)
        except Impossible:
            continue
    g.focus = kept


@motif
def with_itself(g: RandomGraph) -> Value:
    """An operation whose operands are the same value, or one that differs by nothing."""
    x = g.some(g.dtype, INT64, INT32, BOOL)
    same = g.add("Identity", x, exact=True) if g.chance(0.3) else x
    if x.dtype == BOOL:
        return g.add(g.choice(("And", "Or", "Xor", "Equal")), x, same)
    op = g.choice(("Sub", "Add", "Max", "Min", "Equal", "Where", "Greater", "Div", "Mul"))
    if op == "Where":
        return g.add(op, g.weight(BOOL, ()), x, same, exact=True)
    if op in ("Max", "Min", "Greater") and x.dtype != g.dtype:
        raise Impossible
    if op == "Div":
        x = g.positive(x) if x.dtype == g.dtype else g.add("Add", g.add("Abs", x), np.array(1, x_dtype(x)))
        same = x
    x, same = (x, same) if op != "Mul" else (g.bounded(x, 30.0),) * 2 if x.dtype == g.dtype else (x, same)
    return g.add(op, x, same, bound=x.bound * (x.bound if op == "Mul" else 2))


def x_dtype(x: Value) -> type[np.signedinteger]:
    return np.int64 if x.dtype == INT64 else np.int32


@motif
def moves_and_back(g: RandomGraph) -> Value:
    """A move and its inverse, or nearly so; something may be between."""
    x = g.float(lambda v: v.rank > 0 and 0 not in v.shape)
    right = g.random.randrange(x.rank)
    match g.random.randrange(4):
        case 0:
            y = g.add("Unsqueeze", x, axes=[right], exact=True)
            y = g.add("Relu", y, exact=True) if g.chance(0.5) else y
            return g.add("Squeeze", y, axes=[right], exact=True)
        case 1:
            low = [int(i == right) for i in range(x.rank)]
            y = g.add("Pad", x, g.ints(*low, *low), exact=True)
            return g.add("Slice", y, g.ints(1), g.ints(g.choice((-1, 2**31))), g.ints(right), exact=True)
        case 2:
            size = dim(x, right)
            y = g.add("Concat", x, x, axis=right, exact=True)
            start, end = g.choice((0, size, 1)), g.choice((size, 2**31))
            return g.add("Slice", y, g.ints(start), g.ints(end), g.ints(right), exact=True)
        case _:
            y = g.add("Flatten", x, axis=right, exact=True)
            return g.add("Reshape", y, g.ints(*(d if isinstance(d, int) else -1 for d in x.shape)), exact=True)


@motif
def functions_and_back(g: RandomGraph) -> Value:
    """A function and its inverse, a repetition and its reduction, a comparison through casts."""
    x = g.float(lambda v: v.rank > 0 and 0 not in v.shape)
    right = g.random.randrange(x.rank)
    match g.random.randrange(5):
        case 0:
            return g.add("Exp", g.add("Log", g.positive(x)))
        case 1:
            return g.add("Log", g.add("Exp", g.unit(x), bound=3.0), bound=1.0)
        case 2:
            y = g.add("Unsqueeze", x, axes=[right], exact=True)
            y = g.add("Expand", y, g.ints(*[3 if i == right else 1 for i in range(x.rank + 1)]), exact=True)
            op = g.choice(("ReduceMean", "ReduceMax", "ReduceSum"))
            return g.add(op, y, axes=[right], keepdims=g.choice((0, 1)), bound=3 * y.bound)
        case 3:
            y = g.add("Cast", g.add("Greater", x, g.like(x, 0.5)), to=g.choice((FLOAT, INT64)))
            return g.add("Cast", y, to=BOOL)
        case _:
            return g.add("Reciprocal", g.add("Reciprocal", g.positive(x), bound=10.0), bound=10.0)


@motif
def products_of_constants(g: RandomGraph) -> Value:
    """Products with constants that associate, and transposes that go into them."""
    x = g.bounded(g.ranked(2, 3, static=1))
    k, n = dim(x, -1), g.choice((2, 3, 4))
    a = g.weight(x.dtype, (k, n) if g.chance(0.7) else (n, k))
    if a.shape != (k, n) or (k == n and g.chance(0.3)):
        a = g.add("Transpose", a, perm=[1, 0])
    if a.shape != (k, n):
        raise Impossible
    y = g.add("MatMul", x, a, bound=x.bound * 3 * k)
    if g.chance(0.6):
        y = g.add("Mul", y, g.scalar(0.5, y.dtype) if g.chance(0.5) else g.weight(y.dtype, (n,)), bound=y.bound)
    y = g.bounded(y, 200.0)
    return g.add("MatMul", y, g.weight(x.dtype, (n, 2)), bound=y.bound * 3 * n)


@motif
def joined_products(g: RandomGraph) -> Value:
    """Several products of one value, joined or summed."""
    x = g.bounded(g.ranked(2, 3, static=1))
    k = dim(x, -1)
    n = g.choice((2, 4))
    parts = [
        g.add("MatMul", x, g.weight(x.dtype, (k, n if g.chance(0.8) else 3)), bound=x.bound * 3 * k)
        for _ in range(g.choice((2, 3)))
    ]
    if g.chance(0.4) and len({v.shape for v in parts}) == 1:
        return g.add(g.choice(("Sum", "Max")), *parts, bound=sum(v.bound for v in parts))
    return g.add("Concat", *parts, axis=-1)


@motif
def casts(g: RandomGraph) -> Value:
    x = g.float()
    y = g.add("Cast", x, to=DOUBLE if g.chance(0.7) else FLOAT)
    if g.chance(0.5):
        y = g.add(g.choice(("Relu", "Tanh", "Neg")), y)
    return g.add("Cast", y, to=x.dtype)


@motif
def identities(g: RandomGraph) -> Value:
    """Operations that change nothing, or little."""
    x = g.float()
    for _ in range(g.random.randint(1, 4)):
        match g.random.randrange(7):
            case 0:
                x = g.add("Identity", x, exact=True)
            case 1:
                x = g.add(g.choice(("Mul", "Div")), x, g.scalar(1.0, x.dtype))
            case 2:
                x = g.add(g.choice(("Add", "Sub")), x, g.scalar(0.0, x.dtype), bound=x.bound + 1)
            case 3 if x.rank:
                x = g.add("Transpose", x, perm=[*range(x.rank)], exact=True)
            case 4 if 0 not in x.shape and x.rank:
                x = g.add("Reshape", x, g.ints(*[0] * x.rank), exact=True)
            case 5 if x.rank:
                x = g.add("Slice", x, g.ints(0), g.ints(2**63 - 1), g.ints(0), exact=True)
            case _:
                x = g.add("Neg", g.add("Neg", x, exact=True), exact=True)
    return x


@motif
def reductions(g: RandomGraph) -> Value:
    """A reduction of a reduction, or of a moved value."""
    x = g.bounded(g.float(lambda v: v.rank > 1 and 0 not in v.shape))
    op, keep = g.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")), g.choice((0, 1))
    y = g.add("Transpose", x, exact=True) if g.chance(0.4) else x
    y = g.add(op, y, axes=[g.axis(y)], keepdims=keep, bound=x.bound * x.elements)
    if y.rank:
        y = g.add(
            op if g.chance(0.7) else "ReduceMean",
            y,
            axes=[g.axis(y)],
            keepdims=g.choice((0, 1)),
            bound=y.bound * y.elements,
        )
    return y


@motif
def chain_of_arithmetic(g: RandomGraph) -> Value:
    """Sums and products with constants that can be collected."""
    x = g.float(lambda v: v.bound < 50)
    for _ in range(g.random.randint(2, 5)):
        op, number = g.choice((("Add", 1.5), ("Mul", 0.5), ("Sub", 0.25), ("Div", 2.0), ("Mul", -1.0), ("Add", -1.5)))
        c = g.scalar(number, x.dtype) if g.chance(0.6) else other(g, x, positive=op == "Div")
        x = g.add(op, *((x, c) if op == "Div" or g.chance(0.6) else (c, x)), bound=x.bound * 3 + 10)
    return x


@motif
def common_subexpressions(g: RandomGraph) -> Value:
    x, c = g.bounded(g.float()), None
    ys = []
    for _ in range(2):
        c = c if c is not None and g.chance(0.7) else other(g, x)
        ys.append(g.add(g.choice(("Add", "Add", "Sub")), x, c, bound=x.bound + 4))
    if ys[0].shape != ys[1].shape:
        raise Impossible
    return (
        g.add(g.choice(("Sub", "Mul", "Max", "Concat")), *ys, **({"axis": 0} if x.rank and ys else {}))
        if x.rank and g.chance(0.2)
        else g.add("Mul", *ys, bound=150.0)
    )


@motif
def selected(g: RandomGraph) -> Value:
    """A choice by a comparison, by a constant, or by its own negation."""
    x = g.float(exact=True)
    c = g.add(g.choice(("Greater", "Less")), x, g.like(x, 0.1)) if g.chance(0.7) else g.weight(BOOL, ())
    c = g.add("Not", g.add("Not", c)) if g.chance(0.3) else g.add("Not", c) if g.chance(0.3) else c
    y = g.add(g.choice(("Relu", "Neg", "Identity")), x, exact=True)
    return g.add("Where", c, *((x, y) if g.chance(0.5) else (y, x)), exact=True)
