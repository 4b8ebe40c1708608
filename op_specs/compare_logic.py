"""Comparisons, logic, bits and selection, elementwise."""

import numpy as np

from taso_mirage.errors import IllTyped
from taso_mirage.meanings.functions import NEVER
from taso_mirage.operators.ops import op


@op(onnx="Equal", since=7, commutative=True)
def equal(xp, a, b):
    """x, y -> x = y"""
    return xp.map(np.equal, a, b)


@op(onnx="Greater", since=7)
def greater(xp, a, b):
    """x, y -> x > y"""
    return xp.map(np.greater, a, b)


@op(onnx="Less", since=7)
def less(xp, a, b):
    """x, y -> x < y"""
    return xp.map(np.less, a, b)


@op(onnx="GreaterOrEqual", since=12)
def greater_or_equal(xp, a, b):
    """x, y -> x >= y"""
    return xp.map(np.greater_equal, a, b)


@op(onnx="LessOrEqual", since=12)
def less_or_equal(xp, a, b):
    """x, y -> x <= y"""
    return xp.map(np.less_equal, a, b)


@op(onnx="And", since=7, commutative=True)
def logical_and(xp, a, b):
    """x, y -> x and y, booleans"""
    return xp.map(np.logical_and, _boolean(xp, a), _boolean(xp, b))


@op(onnx="Or", since=7, commutative=True)
def logical_or(xp, a, b):
    """x, y -> x or y, booleans"""
    return xp.map(np.logical_or, _boolean(xp, a), _boolean(xp, b))


@op(onnx="Xor", since=7, commutative=True)
def logical_xor(xp, a, b):
    """x, y -> exactly one of x and y, booleans"""
    return xp.map(np.logical_xor, _boolean(xp, a), _boolean(xp, b))


@op(onnx="Not", since=1)
def logical_not(xp, x):
    """x -> not x, booleans"""
    return xp.map(np.logical_not, _boolean(xp, x))


def _boolean(xp, x):
    if xp.dtype(x) != "bool":
        raise IllTyped(f"an operand of dtype {xp.dtype(x)}; logic takes bool")
    return x


@op(onnx="IsNaN", since=9)
def isnan(xp, x):
    """x -> whether x is no number"""
    return xp.map(np.isnan, x)


@op(onnx="IsInf", since=10)
def isinf(xp, x, *, detect_negative: int = 1, detect_positive: int = 1):
    """x -> whether x is infinite, of the signs asked for"""
    if detect_negative and detect_positive:
        return xp.map(np.isinf, x)
    if detect_positive:
        return xp.map(np.isposinf, x)
    return xp.map(np.isneginf if detect_negative else NEVER, x)


@op(onnx="Where", since=9)
def where(xp, condition, a, b):
    """c, x, y -> x where c, else y"""
    return xp.map(np.where, _boolean(xp, condition), a, b)


@op(onnx="BitwiseAnd", since=18, commutative=True)
def bitwise_and(xp, a, b):
    """x, y -> the bits of both"""
    return xp.map(np.bitwise_and, a, b)


@op(onnx="BitwiseOr", since=18, commutative=True)
def bitwise_or(xp, a, b):
    """x, y -> the bits of either"""
    return xp.map(np.bitwise_or, a, b)


@op(onnx="BitwiseXor", since=18, commutative=True)
def bitwise_xor(xp, a, b):
    """x, y -> the bits of exactly one"""
    return xp.map(np.bitwise_xor, a, b)


@op(onnx="BitwiseNot", since=18)
def bitwise_not(xp, x):
    """x -> all bits turned"""
    return xp.map(np.invert, x)


@op(onnx="BitShift", since=11)
def bit_shift(xp, a, b, *, direction: str):
    """x, n -> x shifted by n bits to the LEFT or RIGHT"""
    return xp.map(np.left_shift if direction == "LEFT" else np.right_shift, a, b)


for each in (equal, greater, less, greater_or_equal, less_or_equal):
    each.example("float32[2,3]", "float32[2,1]")
    each.example("int64[3]", [3, 2, 1])
for each in (logical_and, logical_or, logical_xor):
    each.example("bool[2,3]", "bool[3]")
logical_not.example("bool[2,3]")
isnan.example("float32[2,3]")
isinf.example("float32[2,3]")
isinf.example("float32[2,3]", detect_negative=0)
isinf.example("float32[2,3]", detect_positive=0)
where.example("bool[2,3]", "float32[2,3]", "float32[()]")
where.example("bool[3]", "float32[2,3]", "float32[2,1]")
where.example("bool[2,3]", "int64[3]", "int64[2,3]")
for each in (bitwise_and, bitwise_or, bitwise_xor):
    each.example("int32[2,3]", "int32[3]")
bitwise_not.example("int32[2,3]")
bit_shift.example("uint8[2,3]", "uint8[3]", direction="LEFT")
bit_shift.example("uint32[2,3]", "uint32[3]", direction="RIGHT")

logical_not.laws("""
    logical_not(logical_not(x)) == x
    logical_not(logical_and(x, y)) == logical_or(logical_not(x), logical_not(y))
    logical_not(logical_or(x, y)) == logical_and(logical_not(x), logical_not(y))
    logical_not(less(x, y)) == greater_or_equal(x, y)  where dtype(x) == "int64"
    logical_not(greater(x, y)) == less_or_equal(x, y)  where dtype(x) == "int64"
""")
less.laws("""
    less(x, y) == greater(y, x)
    less_or_equal(x, y) == greater_or_equal(y, x)
""")
logical_and.laws("logical_and(x, 1) == x")
logical_or.laws("logical_or(x, 0) == x")
where.laws("""
    where(logical_not(c), x, y) == where(c, y, x)
    where(c, x, x) == x
    where(1, x, y) == x
    where(0, x, y) == y
    where(expand(1, shape=s), x, y) == x
    where(expand(0, shape=s), x, y) == y
""")
