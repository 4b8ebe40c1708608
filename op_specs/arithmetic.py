"""Elementwise arithmetic."""

from collections.abc import Callable
from functools import reduce

import numpy as np

from taso_mirage.ir import Node, is_float, numpy_dtype
from taso_mirage.ops import Call, op


@op(onnx="Add", since=7, commutative=True)
def add(xp, a, b):
    """x, y -> x + y"""
    return xp.add(a, b)


@op(onnx="Sub", since=7)
def sub(xp, a, b):
    """x, y -> x - y"""
    return xp.sub(a, b)


@op(onnx="Mul", since=7, commutative=True)
def mul(xp, a, b):
    """x, y -> x * y"""
    return xp.mul(a, b)


def truncated_divide(a, b):
    """C's integer division, which rounds towards zero."""
    quotient = np.floor_divide(np.abs(a), np.abs(b))
    return np.where((a < 0) != (b < 0), -quotient, quotient)


@op(onnx="Div", since=7)
def div(xp, a, b):
    """x, y -> x / y; integers round towards zero"""
    if is_float(xp.dtype(a)):
        return xp.div(a, b)
    unsigned = numpy_dtype(xp.dtype(a)).kind == "u"
    return xp.map(np.floor_divide if unsigned else truncated_divide, a, b)


@op(onnx="Neg", since=6)
def neg(xp, x):
    """x -> -x"""
    return xp.map(np.negative, x)


@op(onnx="Abs", since=6)
def abs_(xp, x):
    """x -> |x|"""
    return xp.map(np.absolute, x)


@op(onnx="Sign", since=9)
def sign(xp, x):
    """x -> -1, 0 or 1"""
    return xp.map(np.sign, x)


@op(onnx="Reciprocal", since=6)
def reciprocal(xp, x):
    """x -> 1 / x"""
    return xp.div(xp.literal(1, x), x)


@op(onnx="Sqrt", since=6)
def sqrt(xp, x):
    """x -> sqrt(x)"""
    return xp.map(np.sqrt, x)


@op(onnx="Exp", since=6)
def exp(xp, x):
    """x -> e^x"""
    return xp.map(np.exp, x)


@op(onnx="Log", since=6)
def log(xp, x):
    """x -> ln x"""
    return xp.map(np.log, x)


@op(onnx="Pow", since=7)
def pow_(xp, x, y):
    """x, y -> x^y in the dtype of x"""
    result = xp.map(np.power, x, y)
    return result if xp.dtype(y) == xp.dtype(x) else xp.cast(result, xp.dtype(x))


@op(onnx="Mod", since=10)
def mod(xp, a, b, *, fmod: int = 0):
    """x, y -> the remainder, with the sign of y; of x if fmod"""
    return xp.map(np.fmod if fmod else np.remainder, a, b)


@op(onnx="Floor", since=6)
def floor(xp, x):
    """x -> the largest integer <= x"""
    return xp.map(np.floor, x)


@op(onnx="Ceil", since=6)
def ceil(xp, x):
    """x -> the smallest integer >= x"""
    return xp.map(np.ceil, x)


@op(onnx="Round", since=11)
def round_(xp, x):
    """x -> the nearest integer, halves to even"""
    return xp.map(np.rint, x)


@op(onnx="Max", since=8, commutative=True)
def max_(xp, a, b):
    """x, y -> the larger"""
    return xp.maximum(a, b)


@op(onnx="Min", since=8, commutative=True)
def min_(xp, a, b):
    """x, y -> the smaller"""
    return xp.map(np.minimum, a, b)


@op(onnx="Sum", since=8)
def sum_(xp, *xs):
    """x, y, ... -> x + y + ...; read as binary sums"""
    return reduce(lambda a, b: add(xp, a, b), xs)


@op(onnx="Mean", since=8)
def mean(xp, *xs):
    """x, y, ... -> (x + y + ...) / n"""
    total = sum_.body(xp, *xs)
    return div(xp, total, xp.literal(len(xs), total))


def _folded(binary: Callable[..., Node]) -> Callable[[Call], Node]:
    return lambda call: reduce(binary, call.args)


max_.importer(_folded(max_.term))
min_.importer(_folded(min_.term))
sum_.importer(_folded(add.term))

for each in (add, sub, mul, div, max_, min_):
    each.example("float32[2,3]", "float32[2,3]")
    each.example("float32[2,1,3]", "float32[4,1]")
    each.example("float32[2,3]", "float32[()]")
    each.example("int64[2,3]", "int64[3]")
    each.example("float16[5]", "float16[5]")
div.example([7, -7, 7, -7], "int64[4]")
for each in (neg, abs_, sign):
    each.example("float32[2,3]")
    each.example("int32[4]")
for each in (reciprocal, sqrt, exp, log, floor, ceil, round_):
    each.example("float32[2,3]")
    each.example("float64[3]")
pow_.example("float32[2,3]", "float32[()]")
pow_.example("float32[2,3]", [2, 3, 0])
mod.example([7, -7, 7, -7], "int64[4]")
mod.example([7, -7, 7, -7], "int64[4]", fmod=1)
mod.example("float32[2,3]", "float32[3]", fmod=1)
sum_.example("float32[2,3]", "float32[3]", "float32[2,1]")
mean.example("float32[2,3]", "float32[3]", "float32[2,1]")
