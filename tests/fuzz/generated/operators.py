"""Single operators by families: elementwise ones, reductions, and those that move elements.

A step is a function that adds an operator to a graph. `STEPS` names them by their operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from fuzz.generated.graph import Impossible, RandomGraph, dim
from fuzz.generated.values import BOOL, EVERY, FLOATS, INT32, INT64, INTEGERS, NUMBERS, STRING, Dim, Value, array

Step = Callable[[RandomGraph], object]
Draw = Callable[[RandomGraph, Value], dict[str, Any]]
STEPS: dict[str, Step] = {}


def step(*names: str) -> Callable[[Callable[[RandomGraph, str], object]], Callable[[RandomGraph, str], object]]:
    """Register a function as the step of these operators."""

    def register(function: Callable[[RandomGraph, str], object]) -> Callable[[RandomGraph, str], object]:
        for name in names:
            STEPS[name] = lambda g, name=name: function(g, name)
        return function

    return register


# ---------------------------------------------------------------- one operand

ANY, SMALL, POSITIVE, UNIT, ABOVE, EXACT = "any", "small", "positive", "unit", "above 1", "exact"
NO_ATTRIBUTES: Draw = lambda g, x: {}  # noqa: E731
UNARY: Mapping[str, tuple[str, float | None, Draw]] = {
    **dict.fromkeys(("Neg", "Abs", "Relu", "Identity"), (ANY, None, NO_ATTRIBUTES)),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Sign"), (EXACT, None, NO_ATTRIBUTES)),
    **dict.fromkeys(("Sigmoid", "Tanh", "Erf", "Softsign"), (ANY, 1.0, NO_ATTRIBUTES)),
    **dict.fromkeys(("Sin", "Cos", "Atan", "HardSigmoid"), (SMALL, 1.6, NO_ATTRIBUTES)),
    **dict.fromkeys(("HardSwish", "Mish", "Softplus", "Asinh"), (SMALL, 8.0, NO_ATTRIBUTES)),
    **dict.fromkeys(("Asin", "Acos", "Atanh", "Tan", "Sinh", "Cosh", "Exp"), (UNIT, 3.0, NO_ATTRIBUTES)),
    **dict.fromkeys(("Sqrt", "Log", "Reciprocal"), (POSITIVE, 10.0, NO_ATTRIBUTES)),
    "Acosh": (ABOVE, 5.0, NO_ATTRIBUTES),
    "LeakyRelu": (ANY, None, lambda g, x: {"alpha": g.choice((0.01, 0.1, 0.0, 1.0, 2.0))}),
    "Elu": (ANY, None, lambda g, x: {"alpha": g.choice((1.0, 0.5))}),
    "Celu": (ANY, None, lambda g, x: {"alpha": g.choice((1.0, 0.5))}),
    "Selu": (ANY, None, NO_ATTRIBUTES),
    "ThresholdedRelu": (EXACT, None, lambda g, x: {"alpha": g.choice((1.0, 0.3))}),
    "Shrink": (EXACT, None, lambda g, x: {"lambd": g.choice((0.5, 0.1)), "bias": g.choice((0.0, 0.1))}),
    "Gelu": (ANY, None, lambda g, x: {"approximate": g.choice(("none", "tanh"))}),
    "Swish": (SMALL, 8.0, lambda g, x: {"alpha": g.choice((1.0, 1.702))}),
    "Hardmax": (EXACT, 1.0, lambda g, x: {"axis": g.axis(x)}),
    "Softmax": (SMALL, 1.0, lambda g, x: {"axis": g.axis(x)}),
    "LogSoftmax": (SMALL, 10.0, lambda g, x: {"axis": g.axis(x)}),
    "LpNormalization": (ANY, 1.0, lambda g, x: {"axis": g.axis(x), "p": g.choice((1, 2))}),
    "MeanVarianceNormalization": (SMALL, 8.0, lambda g, x: {"axes": [g.axis(x)]}),
}
"""Operand, bound of the result (None: the operand's), and attributes."""
KEEPS = frozenset("Neg Abs Relu Identity LeakyRelu Floor Ceil Round Sign".split())
INTEGRAL = frozenset("Neg Abs Relu Identity Sign".split())


@step(*UNARY)
def unary(g: RandomGraph, op: str) -> Value:
    domain, bound, draw = UNARY[op]
    x = g.some(*NUMBERS) if op in INTEGRAL and g.chance(0.2) else g.float(exact=domain == EXACT)
    if domain == SMALL:
        x = g.bounded(x, 5.0)
    elif domain == POSITIVE:
        x = g.positive(x)
    elif domain == UNIT:
        x = g.unit(x)
    elif domain == ABOVE:
        x = g.add("Add", g.add("Abs", g.bounded(x)), g.like(x, 1.125), bound=9.0)
    return g.add(op, x, bound=bound, exact=op in KEEPS, shape=x.shape, **draw(g, x))


@step("Cast")
def cast(g: RandomGraph, op: str) -> Value:
    x = g.some(*EVERY, exact=True)
    to = g.choice([d for d in EVERY if d != x.dtype and (d in FLOATS or x.dtype not in FLOATS)])
    return g.add(op, x, to=to, exact=True)


@step("BitCast")
def bits(g: RandomGraph, op: str) -> Value:
    return g.add(op, g.some(INT32), to=TensorProto.UINT32, bound=100.0)


@step("CastLike")
def cast_like(g: RandomGraph, op: str) -> Value:
    return g.add(op, g.some(INT64, INT32, BOOL), g.float())


@step("Not")
def negation(g: RandomGraph, op: str) -> Value:
    return g.add(op, g.some(BOOL))


@step("BitwiseNot", "IsNaN", "IsInf")
def tests(g: RandomGraph, op: str) -> Value:
    return g.add(op, g.some(*INTEGERS) if op == "BitwiseNot" else g.float(), bound=100.0)


@step("Clip")
def clip(g: RandomGraph, op: str) -> Value:
    x = g.some(*NUMBERS) if g.chance(0.2) else g.float()
    low, high = g.choice(((0, 6), (-1, 1), (0, None), (None, 1), (None, None), (1, 0), (0, 0), (-6, 6)))
    if x.dtype not in (*FLOATS, INT64, INT32, 3):
        low, high = 0, 6
    limits = [None if v is None else g.constant(array(x.dtype, v)) for v in (low, high)]
    return g.add(op, x, *limits, exact=True)


@step("Dropout")
def dropout(g: RandomGraph, op: str) -> Value:
    return g.add(op, g.float(), outputs=g.choice((1, 1, 2)) if g.opset > 12 else 1, ratio=0.5 if g.opset < 12 else None)


# ---------------------------------------------------------------- two operands and more


def other(g: RandomGraph, x: Value, positive: bool = False) -> Value:
    """A value that broadcasts with another one: of the same shape, of a part of it, or a number."""
    same = [v for v in g.visible() if v.container == x.container and (v.dtype, v.shape) == (x.dtype, x.shape)]
    if same and not positive and g.chance(0.4):
        return g.choice(same)
    cut = g.random.randint(0, x.rank) if g.chance(0.5) else 0
    shape = tuple(d if isinstance(d, int) and g.chance(0.7) else 1 for d in x.shape)[cut:]
    if g.chance(0.15):
        shape = (1,) * g.random.randint(0, 2) + (1,) * (x.rank - len(shape)) + shape if x.rank < 4 else shape
    return g.weight(x.dtype, shape, positive=positive)


@step("Add", "Sub", "Mul")
def arithmetic(g: RandomGraph, op: str) -> Value:
    x = g.some(INT64, INT32, *FLOATS) if g.chance(0.2) else g.float()
    y = other(g, x)
    if op == "Mul":
        x, y = (g.bounded(v) if v.dtype in FLOATS else v for v in (x, y))
    bound = x.bound * y.bound if op == "Mul" else x.bound + y.bound
    return g.add(op, *((x, y) if g.chance(0.7) else (y, x)), bound=bound)


@step("Div")
def division(g: RandomGraph, op: str) -> Value:
    if g.chance(0.2):
        x = g.some(INT64, INT32)
        return g.add(op, x, array(x.dtype, g.choice((1, 2, 3))))
    x = g.bounded(g.float())
    y = other(g, x, positive=True) if g.chance(0.6) else g.positive(g.choice([v for v in g.visible() if v == x]))
    return g.add(op, x, y, bound=x.bound * 10)


@step("Pow")
def power(g: RandomGraph, op: str) -> Value:
    x, exponent = g.bounded(g.float(), 5.0), g.choice((2.0, 3.0, 1.0, 0.0, 0.5, -1.0, -0.5, 1.5))
    x = x if exponent in (2.0, 3.0, 1.0, 0.0) else g.positive(x)
    kind = x.dtype if g.chance(0.8) or exponent % 1 or g.opset < 12 else INT64
    return g.add(op, x, g.constant(array(kind, exponent)), bound=max(10.0, x.bound**3))


@step("Mod", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
def integral(g: RandomGraph, op: str) -> Value:
    if op == "Mod" and g.chance(0.4):
        x = g.float(exact=True)
        return g.add(op, x, g.like(x, g.choice((1.0, 0.7))), fmod=1)
    x = g.some(2, 12, 13) if op == "BitShift" else g.some(*INTEGERS)
    y = g.constant(array(x.dtype, g.numbers.integers(1, 4, [d for d in x.shape if isinstance(d, int)][x.rank :])))
    return g.add(op, x, y, direction=g.choice(("LEFT", "RIGHT")) if op == "BitShift" else None, bound=100.0)


@step("And", "Or", "Xor")
def logic(g: RandomGraph, op: str) -> Value:
    x = g.some(BOOL)
    return g.add(op, x, other(g, x))


@step("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
def comparison(g: RandomGraph, op: str) -> Value:
    x = g.some(INT64, INT32, BOOL) if op == "Equal" and g.chance(0.7) else g.float(exact=True)
    return g.add(op, x, g.weight(x.dtype, ()) if g.chance(0.5) else other(g, x))


@step("Max", "Min", "Sum", "Mean")
def variadic(g: RandomGraph, op: str) -> Value:
    x = g.some(*NUMBERS) if op in ("Max", "Min") and g.chance(0.2) else g.float()
    operands = [x, *(other(g, x) for _ in range(g.choice((0, 1, 1, 2))))]
    g.random.shuffle(operands)
    return g.add(op, *operands, bound=sum(v.bound for v in operands), exact=op in ("Max", "Min"))


@step("Where")
def where(g: RandomGraph, op: str) -> Value:
    x = g.some(*EVERY)
    y = other(g, x)
    condition = g.weight(BOOL, tuple(d if isinstance(d, int) else 1 for d in x.shape))
    if g.chance(0.6) and x.dtype in FLOATS and x.exact:
        condition = g.add("Less", x, g.like(x, 0.25))
    return g.add(op, condition, *((x, y) if g.chance(0.5) else (y, x)), exact=True)


@step("PRelu")
def parametric(g: RandomGraph, op: str) -> Value:
    x = g.float()
    slope = tuple(d if isinstance(d, int) and g.chance(0.7) else 1 for d in x.shape[1:])
    return g.add(op, x, g.weight(x.dtype, slope), bound=x.bound * 4)


# ---------------------------------------------------------------- reductions

REDUCTIONS: Mapping[str, str] = {
    **dict.fromkeys("ReduceSum ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2".split(), ANY),
    **dict.fromkeys("ReduceSumSquare ReduceLogSumExp".split(), SMALL),
    "ReduceProd": UNIT,
    "ReduceLogSum": POSITIVE,
}


def few(size: Dim) -> bool:
    return isinstance(size, int) and size <= 6


def axes_of(g: RandomGraph, x: Value) -> list[int]:
    found = sorted(g.random.sample(range(x.rank), g.random.randint(1, x.rank)))
    return [a - x.rank if g.chance(0.4) else a for a in found]


@step(*REDUCTIONS)
def reduction(g: RandomGraph, op: str) -> Value:
    x = g.some(INT64, INT32) if op in ("ReduceSum", "ReduceMax", "ReduceProd") and g.chance(0.1) else g.float()
    if (not x.rank and g.chance(0.8)) or 0 in x.shape:
        raise Impossible
    if x.dtype in FLOATS:
        x = {SMALL: g.bounded, POSITIVE: g.positive, UNIT: g.unit}.get(REDUCTIONS[op], lambda v: v)(x)
    axes = axes_of(g, x) if x.rank and g.chance(0.85) else None
    if op == "ReduceProd":  # of few factors: roundings add up relative to a small product
        axes = [g.axis(x, few)]
    empty = g.chance(0.2) and "noop_with_empty_axes" in g.schema(op).attributes
    bound = {SMALL: 25.0 * x.elements, POSITIVE: 10.0}.get(REDUCTIONS[op], x.bound * x.elements)
    return g.add(
        op, x, axes=axes, keepdims=g.choice((0, 1, None)), noop_with_empty_axes=int(empty) or None, bound=bound
    )


@step("ArgMax", "ArgMin")
def arg(g: RandomGraph, op: str) -> Value:
    x = g.float(lambda v: v.rank > 0 and 0 not in v.shape, exact=True)
    last = g.choice((0, 1)) if g.opset > 11 else None
    return g.add(op, x, axis=g.axis(x), keepdims=g.choice((0, 1)), select_last_index=last, bound=float(x.elements))


@step("CumSum", "CumProd")
def cumulative(g: RandomGraph, op: str) -> Value:
    x = g.float(lambda v: v.rank > 0)
    x, place = (g.unit(x), g.axis(x, few)) if op == "CumProd" else (x, g.axis(x))
    axis = g.constant(np.array(place, g.choice((np.int64, np.int32))))
    return g.add(op, x, axis, exclusive=g.choice((0, 1)), reverse=g.choice((0, 1)), bound=x.bound * x.elements)


@step("TopK")
def largest(g: RandomGraph, op: str) -> Value:
    x = g.float(lambda v: v.exact and any(isinstance(d, int) and d > 1 for d in v.shape))
    axis = g.axis(x, lambda d: isinstance(d, int) and d > 1)
    k = g.ints(g.random.randint(1, dim(x, axis)))
    both = g.all(op, x, k, outputs=2, axis=axis, largest=g.choice((0, 1)), sorted=1, exact=True)
    return g.choice(both)


@step("NonZero", "Unique", "Compress")
def by_values(g: RandomGraph, op: str) -> Value:
    x = g.some(BOOL, INT64) if op == "NonZero" else g.float(lambda v: v.rank > 0 and v.exact)
    if op == "NonZero":
        return g.add(op, x, bound=8.0)
    if op == "Unique":
        return g.choice(
            g.all(op, x, outputs=g.choice((1, 3)), sorted=g.choice((0, 1)), axis=g.choice((None, 0)), exact=True)
        )
    axis = g.axis(x, lambda d: isinstance(d, int))
    kept = g.numbers.random(dim(x, axis)) < 0.6
    rest: list[Dim | None] = list(x.shape)
    rest[axis] = int(kept.sum())
    return g.add(op, x, kept, axis=axis, exact=True, shape=tuple(d for d in rest if d is not None))


@step("Equal strings")
def words(g: RandomGraph, op: str) -> Value:
    return g.add("Equal", g.some(STRING), "a") if g.opset > 18 else g.add("Identity", g.some(STRING))
