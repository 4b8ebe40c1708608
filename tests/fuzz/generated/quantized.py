"""Quantized operators: QDQ islands, operators of quantized operands, products of integers."""

from __future__ import annotations

import numpy as np

from fuzz.generated.graph import MICROSOFT, Impossible, RandomGraph, dim
from fuzz.generated.layers import image
from fuzz.generated.operators import step
from fuzz.generated.values import FLOAT, INT8, UINT8, Value, array


def scale(g: RandomGraph) -> np.ndarray:
    return np.array(g.choice((0.03, 0.05, 0.0625, 0.1)), np.float32)


def zero(g: RandomGraph, dtype: int) -> np.ndarray:
    return array(dtype, g.choice((0, 0, 3, 128 if dtype == UINT8 else -5)))


def quantize(g: RandomGraph, x: Value, dtype: int = 0) -> Value:
    if x.dtype != FLOAT:
        raise Impossible
    return g.add("QuantizeLinear", x, scale(g), zero(g, dtype or g.choice((UINT8, INT8))), bound=255.0)


def dequantize(g: RandomGraph, x: Value) -> Value:
    return g.add("DequantizeLinear", x, scale(g), zero(g, x.dtype), bound=26.0)


def there_and_back(g: RandomGraph, x: Value) -> Value:
    """Quantized and dequantized by the same numbers, now and then by others."""
    by, at = scale(g), zero(g, g.choice((UINT8, INT8)))
    if x.dtype != FLOAT:
        raise Impossible
    y = g.add("QuantizeLinear", x, by, at, bound=255.0)
    return g.add("DequantizeLinear", y, scale(g) if g.chance(0.1) else by, at, bound=26.0)


def quantized_weight(g: RandomGraph, *shape: int, axis: int | None = None) -> Value:
    """A dequantized constant, of one scale or of one for each channel."""
    numbers = g.numbers.integers(-100, 100, shape).astype(np.int8)
    if axis is None or g.opset < 13 or g.chance(0.5):
        return g.add("DequantizeLinear", numbers, scale(g), np.int8(0), bound=10.0)
    scales = g.numbers.uniform(0.02, 0.1, shape[axis]).astype(np.float32)
    return g.add("DequantizeLinear", numbers, scales, np.zeros(shape[axis], np.int8), axis=axis, bound=10.0)


@step("QuantizeLinear")
def round_trip(g: RandomGraph, op: str) -> Value:
    return there_and_back(g, g.some(FLOAT, exact=True))


@step("DynamicQuantizeLinear")
def dynamic(g: RandomGraph, op: str) -> Value:
    x = g.some(FLOAT, where=lambda v: v.exact and 0 not in v.shape)
    y, by, at = g.all(op, x, outputs=3, bound=255.0)
    return g.add("DequantizeLinear", y, by, at, bound=20.0)


@step("QLinearMatMul", "MatMulInteger")
def product(g: RandomGraph, op: str) -> Value:
    kind = g.choice((UINT8, INT8))
    x = quantize(g, g.ranked(2, 3, dtypes=(FLOAT,), static=1), kind)
    k, n = dim(x, -1), g.choice((2, 3))
    w = g.constant(array(kind, g.numbers.integers(0, 100, (k, n))))
    if op == "MatMulInteger":
        zeros = [zero(g, kind), zero(g, kind)][: g.choice((0, 1, 2))]
        y = g.add(op, x, w, *zeros, bound=65000.0 * k)
        return g.add("Mul", g.add("Cast", y, to=FLOAT, bound=65000.0 * k), np.float32(1e-4), bound=6.5 * k)
    y = g.add(op, x, scale(g), zero(g, kind), w, scale(g), zero(g, kind), scale(g), zero(g, kind), bound=255.0)
    return dequantize(g, y)


@step("QLinearConv", "ConvInteger")
def convolution(g: RandomGraph, op: str) -> Value:
    x = image(g)
    if x.dtype != FLOAT or x.rank != 4:
        x = g.given(FLOAT, (1, 2, 4, 4))
    q = quantize(g, x, UINT8)
    w = g.constant(g.numbers.integers(0, 100, (2, dim(x, 1), 1, 2)).astype(np.uint8))
    if op == "ConvInteger":
        y = g.add(op, q, w, zero(g, UINT8), zero(g, UINT8), bound=5e5)
        return g.add("Mul", g.add("Cast", y, to=FLOAT, bound=5e5), np.float32(1e-4), bound=50.0)
    bias = [g.constant(g.numbers.integers(-50, 50, (2,)).astype(np.int32))] if g.chance(0.5) else []
    y = g.add(
        op, q, scale(g), zero(g, UINT8), w, scale(g), zero(g, UINT8), scale(g), zero(g, UINT8), *bias, bound=255.0
    )
    return dequantize(g, y)


def islands(g: RandomGraph) -> Value:
    """A layer between quantizers, as exporters of quantized models write it."""
    if g.chance(0.5):
        x = there_and_back(g, g.ranked(2, 3, dtypes=(FLOAT,), static=1))
        y = g.add("MatMul", x, quantized_weight(g, dim(x, -1), 3, axis=1), bound=200.0)
        if g.chance(0.6):
            y = g.add("Add", y, g.weight(FLOAT, (3,)), bound=204.0)
    else:
        x = g.given(FLOAT, (1, 2, 4, 4))
        x = there_and_back(g, x)
        y = g.add("Conv", x, quantized_weight(g, 2, 2, 3, 3, axis=0), pads=[1, 1, 1, 1], bound=500.0)
    y = g.add("Relu", y) if g.chance(0.5) else y
    if g.chance(0.4):
        y = g.add("Add", y, there_and_back(g, y) if g.chance(0.3) else y, bound=1000.0)
    if g.chance(0.4):
        y = g.add(g.choice(("Transpose", "Identity", "Flatten")), y)
    return there_and_back(g, y)


SINGLE = "QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearGlobalAveragePool QLinearConcat QLinearSoftmax".split()


@step(*(f"com.microsoft.{name}" for name in SINGLE))
def single(g: RandomGraph, op: str) -> Value:
    name = op.removeprefix("com.microsoft.")
    x = quantize(g, g.ranked(4, dtypes=(FLOAT,), static=4), UINT8)
    of_x, to = (scale(g), zero(g, UINT8)), (scale(g), zero(g, UINT8))
    form: dict[str, object] = {}
    shape = x.shape
    match name:
        case "QLinearAdd" | "QLinearMul":
            other = quantize(g, g.weight(FLOAT, x.ints() if g.chance(0.5) else (x.ints()[-1],)), UINT8)
            given = [x, *of_x, other, scale(g), zero(g, UINT8), *to]
        case "QLinearConcat":
            given, form, shape = [*to, x, *of_x, x, *of_x], {"axis": 1}, (shape[0], 2 * int(shape[1]), *shape[2:])
        case _:
            given = [x, *of_x, *to]
    if name == "QLinearGlobalAveragePool":
        form, shape = {"channels_last": 0}, (*shape[:2], 1, 1)
    if name == "QLinearSoftmax":
        form = {"axis": -1, "opset": 13}
    if name == "QLinearLeakyRelu":
        form = {"alpha": 0.1}
    return dequantize(g, g.state(name, MICROSOFT, given, Value("", UINT8, shape, 255.0), **form)[0])


@step("com.microsoft.DynamicQuantizeMatMul", "com.microsoft.MatMulIntegerToFloat")
def dynamic_product(g: RandomGraph, op: str) -> Value:
    name = op.removeprefix("com.microsoft.")
    x = g.ranked(2, 3, dtypes=(FLOAT,), static=1)
    k = dim(x, -1)
    w = g.constant(g.numbers.integers(-50, 50, (k, 3)).astype(np.int8))
    made = Value("", FLOAT, (*x.shape[:-1], 3), 100.0 * k, False)
    if name == "DynamicQuantizeMatMul":
        return g.state(name, MICROSOFT, [x, w, scale(g)], made)[0]
    q = quantize(g, x, UINT8)
    return g.state(name, MICROSOFT, [q, w, scale(g), scale(g), zero(g, UINT8)], made)[0]
