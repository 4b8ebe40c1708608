"""Quantized operators: floats as small integers with a scale and a zero, and products of these.

Scales and floats are real numbers here. Where the runtime rounds the result of an operator of its
own otherwise than the operators that it stands for, the rounding is a function of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taso_mirage.checker.casts import cast, exact
from taso_mirage.checker.elementwise import kinked, sigmoid
from taso_mirage.checker.forms import FLOATS, INTS, ONE, Poly, bits, floor, just, need, poly
from taso_mirage.checker.functions import REAL, called, greatest, lifted, valued
from taso_mirage.checker.moves import concat
from taso_mirage.checker.norms import per_channel
from taso_mirage.checker.products import average_pool, centred, conv, matmul, matmul_integer
from taso_mirage.checker.tensors import Tensor


def parameter(p: Tensor, x: Tensor, axis: int, block_size: int = 0) -> Tensor:
    """A scale or a zero for each element of x: one, one for each position of an axis, or for each
    block of positions."""
    if not block_size and p.shape in ((), (ONE,)):
        return p.reshape(())
    need(-len(x.shape) <= axis < len(x.shape), "no such axis")
    at = axis % len(x.shape)
    if block_size:
        blocks = floor(x.shape[at] + block_size - 1, poly(block_size))
        need(p.shape == (*x.shape[:at], blocks, *x.shape[at + 1 :]), "scales for other blocks")
        return p.along(at, x.shape[at], lambda *i: floor(i[at], poly(block_size)))
    need(p.shape == (x.shape[at],), "scales for other positions")
    return p.reshape(tuple(n if i == at else ONE for i, n in enumerate(x.shape)))


def real(q: Tensor, scale: Tensor, zero: Tensor | None, to: str, axis: int = 1, block_size: int = 0) -> Tensor:
    """(q - zero) * scale"""
    need(q.dtype in INTS and scale.dtype in FLOATS and to in FLOATS, "no quantized numbers")
    need(zero is None or zero.dtype == q.dtype != "int32", "a zero of another type")
    ts = [parameter(t, q, axis, block_size) for t in (scale, *([zero] if zero is not None else []))]
    whole, factor, *shift = (Tensor(to, t.shape, read(t)) for t in (q, *ts))
    return (whole - shift[0] if shift else whole) * factor


def read(t: Tensor) -> Callable[..., Poly]:
    return lambda *i: exact(t.dtype, t.at(*i))


def saturated(to: str, p: Poly) -> Poly:
    """The number of an integer type that is nearest to a whole number."""
    low, high = bits(to)

    def one(q: Poly) -> Poly:
        below = greatest(REAL, valued(REAL, -q) + valued(REAL, poly(-high))) * -1
        return just("call", f"whole {to}", greatest(REAL, valued(REAL, below) + valued(REAL, poly(low))))

    return lifted(one, p)


def steps(
    x: Tensor, scale: Tensor, zero: Tensor | None, to: str, axis: int = 1, block_size: int = 0, name: str = "round"
) -> Tensor:
    """saturate(round(x / scale) + zero)"""
    need(to in ("int8", "uint8", "int16", "uint16") and x.dtype in FLOATS and scale.dtype in FLOATS, "no such steps")
    need(zero is None or zero.dtype == to, "a zero of another type")
    factor = parameter(scale, x, axis, block_size)
    y = (x / Tensor(x.dtype, factor.shape, factor.read)).over(lambda p: called(name, p))
    if zero is not None:
        shift = parameter(zero, x, axis, block_size)
        y = y + Tensor(x.dtype, shift.shape, read(shift))
    return Tensor(to, y.shape, lambda *i: saturated(to, y.at(*i)))


def quantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, *, dtype: str, axis: int, block_size: int, saturate: int
) -> Tensor:
    need(x.dtype == scale.dtype, "a scale of another type")
    if dtype.startswith(("float8", "float4")):
        need(False, "a type that is not read by this checker")
    return steps(x, scale, zero, dtype, axis, block_size)


def dynamic_quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x in uint8, its scale and its zero, of the range of x and 0."""
    every = range(len(x.shape))
    low, high = x.most_of(every, 0, sign=-1).most(0, sign=-1), x.most_of(every, 0).most(0)
    scale = (high - low) / 255
    zero = Tensor("uint8", (), lambda: saturated("uint8", called("round", (low * -1 / scale).at())))
    return steps(x, scale, zero, "uint8"), scale, zero


def qlinear(name: str, fn: Callable[..., Tensor], count: int = 1, exactly: bool = False) -> Callable[..., Tensor]:
    """An operator on `count` quantized operands, whose result is quantized again."""

    def one(*ts: Any, **attributes: Any) -> Tensor:
        operands, scale, zero = ts[: 3 * count], ts[3 * count], [*ts[3 * count + 1 :], None][0]
        values = [real(operands[3 * k], operands[3 * k + 1], operands[3 * k + 2], "float32") for k in range(count)]
        return steps(fn(*values, **attributes), scale, zero, ts[0].dtype, name="round" if exactly else f"round {name}")

    return one


def qlinear_concat(scale: Tensor, zero: Tensor, *parts: Tensor, axis: int) -> Tensor:
    values = [real(parts[k], parts[k + 1], parts[k + 2], "float32") for k in range(0, len(parts), 3)]
    return steps(concat(*values, axis=axis), scale, zero, zero.dtype)


def columns(p: Tensor, x: Tensor) -> Tensor:
    """A number for each column of a product's right side, or one."""
    return p.reshape(()) if p.shape in ((), (ONE,)) else p


def product_as_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """A product of integers times the scales, plus a bias."""
    need(a_scale.dtype == b_scale.dtype and a_scale.dtype in FLOATS, "scales of several types")
    total = cast(matmul_integer(a, b, a_zero, b_zero), to=a_scale.dtype)
    y = total * (columns(a_scale, a) * columns(b_scale, b))
    return y if bias is None else y + bias


def dynamic_product(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    q, scale, zero = dynamic_quantize(a)
    return product_as_float(q, b, scale, b_scale, zero, b_zero, bias)


def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    b: Tensor | None = None,
    **a: Any,
) -> Tensor:
    """Padding is the zero of x; the bias is in steps of both scales."""
    data, zero = centred(x, x_zero.reshape(())), centred(w, w_zero, 0)
    total = conv(data, zero, None, **a)
    total = total if b is None else total + per_channel(b, total)
    factor = x_scale.reshape(()) * (
        w_scale.reshape(()) if w_scale.shape in ((), (ONE,)) else per_channel(w_scale, total)
    )
    return steps(cast(total, to="float32") * factor, y_scale, y_zero, y_zero.dtype, name="round qlinear_conv")


QUANTIZED: dict[str, Callable[..., Any]] = {
    "quantize": quantize,
    "dequantize": lambda q, scale, zero=None, *, dtype, axis, block_size: real(q, scale, zero, dtype, axis, block_size),
    "dynamic_quantize": dynamic_quantize,
    "matmul_integer_to_float": product_as_float,
    "dynamic_quantize_matmul": dynamic_product,
    "qlinear_add": qlinear("qlinear_add", lambda a, b: a + b, 2),
    "qlinear_mul": qlinear("qlinear_mul", lambda a, b: a * b, 2),
    "qlinear_sigmoid": qlinear("qlinear_sigmoid", sigmoid),
    "qlinear_leaky_relu": qlinear("qlinear_leaky_relu", lambda x, *, alpha: kinked(x, x * alpha), exactly=True),
    "qlinear_average_pool": qlinear("qlinear_average_pool", average_pool),
    "qlinear_global_average_pool": qlinear("qlinear_global_average_pool", lambda x: x.mean(range(2, len(x.shape)))),
    "qlinear_matmul": qlinear("qlinear_matmul", matmul, 2),
    "qlinear_concat": qlinear_concat,
    "qlinear_conv": qlinear_conv,
    "whole": lambda x: cast(x, to="int32") - (128 if x.dtype == "uint8" else 0),
}
