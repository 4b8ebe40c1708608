"""Operators of one element each: arithmetic, activations, comparisons and logic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from taso_mirage.checker.forms import FLOATS, INTS, ZERO, Poly, constant, fresh, just, key, need, poly
from taso_mirage.checker.functions import called, compared, denied, exponential, inverse, lone, single_number
from taso_mirage.checker.tensors import Tensor


def gelu(x: Tensor, b: Tensor | None = None, *, approximate: str = "none") -> Tensor:
    need(approximate in ("none", "tanh") and (b is None or b.shape == x.shape[-1:]), "no such gelu")
    y = x if b is None else x + b
    inner = y * math.sqrt(0.5) if approximate == "none" else (y + y * y * y * 0.044715) * math.sqrt(2 / math.pi)
    return y * 0.5 * (inner.call("erf" if approximate == "none" else "tanh") + 1)


def sigmoid(x: Tensor) -> Tensor:
    return x.over(lambda p: inverse(exponential(-p) + 1), real=True)


def kinked(x: Tensor, low: Tensor) -> Tensor:
    """x, and `low` where x is negative."""
    need(low.dtype == x.dtype, "operands of other dtypes")
    return chosen(x, low, x)


def chosen(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """`low` where x < 0, else `high`."""

    def one(p: Poly, q: Poly, r: Poly) -> Poly:
        c = compared("lt", x.dtype, p, ZERO)
        return c * q + denied(c) * r

    return x.over(one, low, high)


def elu(x: Tensor, alpha: float, gamma: float = 1.0, beta: float = 1.0) -> Tensor:
    """gamma * x, and gamma * alpha * (e^(x / beta) - 1) below 0."""
    return chosen(x, ((x / beta).over(exponential, real=True) - 1) * alpha, x) * gamma


def shrink(x: Tensor, *, bias: float, lambd: float) -> Tensor:
    need(x.dtype in FLOATS and lambd >= 0, "no shrink")
    low, high = chosen(x + lambd, x + bias, x * 0), chosen(x * -1 + lambd, x - bias, x * 0)
    return low + high


def thresholded_relu(x: Tensor, *, alpha: float) -> Tensor:
    need(x.dtype in FLOATS, "no such activation")
    return chosen(x * -1 + alpha, x, x * 0)


def power(x: Tensor, y: Tensor) -> Tensor:
    n, like = constant(y.at(*(just(*fresh(n)) for n in y.shape))), Tensor(x.dtype, y.shape, y.read)
    if n in (1, 2, 3, 4):
        return x.over(lambda p, _: p ** (n or 1), like)
    return x.over(lambda p, q: called(f"pow {x.dtype} {y.dtype}", p, q), like)


def comparing(kind: str, turn: bool, deny: bool) -> Callable[[Tensor, Tensor], Tensor]:
    last = denied if deny else poly
    return lambda a, b: a.over(
        lambda p, q: last(compared(kind, a.dtype, *((q, p) if turn else (p, q)))), b, dtype="bool"
    )


def logic(fn: Callable[..., Poly]) -> Callable[..., Tensor]:
    def one(*ts: Tensor) -> Tensor:
        need(all(t.dtype == "bool" for t in ts), "logic of numbers")
        return ts[0].over(fn, *ts[1:], dtype="bool")

    return one


def of_bits(name: str, commutes: bool = False) -> Callable[..., Tensor]:
    """A function of the bits of integers."""

    def one(*ts: Tensor, **attributes: Any) -> Tensor:
        need(all(t.dtype in INTS for t in ts), "bits of a value that is no integer")
        tag = " ".join([name, ts[0].dtype, *map(str, attributes.values())])
        return ts[0].over(lambda *ps: called(tag, *(sorted(ps, key=key) if commutes else ps)), *ts[1:])

    return one


def modulo(a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    return a.over(lambda p, q: called(f"mod {a.dtype} {fmod}", p, q), b)


def where(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    need(c.dtype == "bool" and a.dtype == b.dtype, "operands of other dtypes")
    return Tensor(a.dtype, c.shape, c.read).over(lambda p, x, y: p * x + denied(p) * y, a, b)


def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    y = x if low is None else x.most(low)
    return y if high is None else y.most(high, sign=-1)


def absolute(x: Tensor) -> Tensor:
    """The larger of x and -x, which of the least integer is that again."""

    def one(p: Poly, q: Poly) -> Poly:
        return p if (a := lone(p)) is not None and a[:2] == ("max", f"1{x.dtype}") and of_both_signs(a[2]) else q

    return x if x.dtype[0] == "u" else x.over(one, x.most(x.over(Poly.__neg__)))


def of_both_signs(bag: Poly) -> bool:
    """Whether a bag is of some x and -x, or the largest of it is not negative."""
    numbers = [n for n in (single_number("int8", t) for t in bag.terms) if n is not None]
    if max(numbers, default=-1) >= 0:
        return True
    members = [a[1] for (_, f), _ in bag.terms for a, _ in f if a[0] == "val"]
    return (
        len(members) == len(bag.terms) == 2
        and members[0] == -members[1]
        and all(len(f) == 1 for (_, f), _ in bag.terms)
    )


def softplus(x: Tensor) -> Tensor:
    return (x.over(exponential, real=True) + 1).call("log")


def nothing(x: Tensor, **_: Any) -> Tensor:
    """A finite number is neither NaN nor infinite, so the result is false everywhere."""
    return x.over(lambda p: ZERO, dtype="bool")


FUNCTIONS = (
    *("sqrt", "log", "erf", "tanh", "sin", "cos", "floor", "ceil", "round", "sign"),
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
)
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "mod": modulo,
    "neg": lambda x: x.over(Poly.__neg__),
    "reciprocal": lambda x: x.over(inverse, real=True),
    "pow": power,
    "exp": lambda x: x.over(exponential, real=True),
    "max": lambda a, b: a.most(b),
    "min": lambda a, b: a.most(b, sign=-1),
    "sum": lambda *ts: sum(ts[1:], start=ts[0]),
    "mean": lambda *ts: sum(ts[1:], start=ts[0]) / len(ts),
    "relu": lambda x: x.most(0),
    "abs": absolute,
    **{name: lambda x, name=name: x.call(name) for name in FUNCTIONS},
    "clip": clip,
    "leaky_relu": lambda x, *, alpha: kinked(x, x * alpha),
    "prelu": lambda x, slope: kinked(x, x * slope),
    "thresholded_relu": thresholded_relu,
    "shrink": shrink,
    "elu": lambda x, *, alpha: elu(x, alpha),
    "selu": lambda x, *, alpha, gamma: elu(x, alpha, gamma),
    "celu": lambda x, *, alpha: elu(x, alpha, beta=alpha),
    "sigmoid": sigmoid,
    "hard_sigmoid": lambda x, *, alpha, beta: (x * alpha + beta).most(1, sign=-1).most(0),
    "softsign": lambda x: x / (absolute(x) + 1),
    "swish": lambda x, *, alpha: x * sigmoid(x * alpha),
    "quick_gelu": lambda x, *, alpha: x * sigmoid(x * alpha),
    "gelu": lambda x, *, approximate: gelu(x, approximate=approximate),
    "contrib_gelu": lambda x: gelu(x),
    "bias_gelu": lambda x, b: gelu(x, b),
    "fast_gelu": lambda x, b=None: gelu(x, b, approximate="tanh"),
    "hard_swish": lambda x: x * (x + 3).most(0).most(6, sign=-1) / 6,
    "mish": lambda x: x * softplus(x).call("tanh"),
    "softplus": softplus,
    "where": where,
    "less": comparing("lt", False, False),
    "equal": comparing("eq", False, False),
    "greater": comparing("lt", True, False),
    "less_or_equal": comparing("lt", True, True),
    "greater_or_equal": comparing("lt", False, True),
    "logical_and": logic(Poly.__mul__),
    "logical_or": logic(lambda a, b: a + b - a * b),
    "logical_xor": logic(lambda a, b: a + b - a * b * 2),
    "logical_not": logic(denied),
    "bitwise_and": of_bits("and", commutes=True),
    "bitwise_or": of_bits("or", commutes=True),
    "bitwise_xor": of_bits("xor", commutes=True),
    "bitwise_not": of_bits("not"),
    "bit_shift": of_bits("shift"),
    "isnan": nothing,
    "isinf": nothing,
}
