"""Patterns of algebra: operations and their inverses, values with themselves, chains of moves."""

from __future__ import annotations

import numpy as np

from fuzz.generated.graph import Impossible, RandomGraph, dim
from fuzz.generated.motifs import motif
from fuzz.generated.operators import STEPS
from fuzz.generated.values import BOOL, FLOAT, INT32, INT64, Value

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
def inverses(g: RandomGraph) -> Value:
    """An operation and its inverse, or nearly so; something may be between."""
    x = g.float(lambda v: v.rank > 0 and 0 not in v.shape)
    at = g.axis(x)
    right = at % x.rank
    match g.random.randrange(8):
        case 0:
            y = g.add("Unsqueeze", x, axes=[right], exact=True)
            y = g.add("Relu", y, exact=True) if g.chance(0.5) else y
            return g.add("Squeeze", y, axes=[right], exact=True)
        case 1:
            low = [0] * x.rank
            low[right] = 1
            y = g.add("Pad", x, g.ints(*low, *low), exact=True)
            return g.add("Slice", y, g.ints(1), g.ints(g.choice((-1, 2**31))), g.ints(right), exact=True)
        case 2:
            half = dim(x, at)
            y = g.add("Concat", x, x, axis=at, exact=True)
            return g.add(
                "Slice", y, g.ints(g.choice((0, half, 1))), g.ints(g.choice((half, 2**31))), g.ints(at), exact=True
            )
        case 3:
            y = g.positive(x)
            return (
                g.add("Exp", g.add("Log", y))
                if g.chance(0.5)
                else g.add("Log", g.add("Exp", g.unit(x), bound=3.0), bound=1.0)
            )
        case 4:
            y = g.add("Unsqueeze", x, axes=[right], exact=True)
            y = g.add("Expand", y, g.ints(*[3 if i == right else 1 for i in range(x.rank + 1)]), exact=True)
            return g.add(
                g.choice(("ReduceMean", "ReduceMax", "ReduceSum")),
                y,
                axes=[right],
                keepdims=g.choice((0, 1)),
                bound=3 * y.bound,
            )
        case 5:
            y = g.add("Cast", g.add("Greater", x, g.like(x, 0.5)), to=g.choice((FLOAT, INT64)))
            return g.add("Cast", y, to=BOOL)
        case 6:
            y = g.add("Flatten", x, axis=right, exact=True)
            return g.add("Reshape", y, g.ints(*(d if isinstance(d, int) else -1 for d in x.shape)), exact=True)
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
