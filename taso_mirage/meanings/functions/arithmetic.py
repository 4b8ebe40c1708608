"""Sums, products, quotients, powers and roundings: records of scalar functions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np

from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.functions.record import Division, Fact, Fold, Function, Linear
from taso_mirage.meanings.kinds import of_floats
from taso_mirage.meanings.polynomials import LEAST, MOST, ONE, ZERO, Poly, infinite
from taso_mirage.meanings.residues import exact, moduli, quotient, residue_order, root, tied_residues, whole_power


def truncated_divide(a: Any, b: Any) -> Any:
    """C's integer division, which rounds towards zero."""
    quotient = np.floor_divide(a, b)
    return quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))


# ---------------------------------------------------------------- infinite constants


def _sum_of_infinite(ps: Sequence[Poly]) -> Poly | None:
    found = [p for p in ps if infinite(p)]
    return found[0] if len({id(p) for p in found}) == 1 else None


def _difference_of_infinite(ps: Sequence[Poly]) -> Poly | None:
    if infinite(ps[0]) == infinite(ps[1]):
        return None
    if infinite(ps[0]):
        return ps[0]
    return MOST if ps[1] is LEAST else LEAST


def _itself(ps: Sequence[Poly]) -> Poly | None:
    return ps[0]


def _largest_of_infinite(absorbed: Poly, other: Poly) -> Any:
    """The larger (or smaller) of two numbers; `absorbed` is the infinity that does not matter."""

    def rule(ps: Sequence[Poly]) -> Poly | None:
        finite = [p for p in ps if not infinite(p)]
        signs = {id(p) for p in ps if infinite(p)}
        if len(ps) != 2 or len(signs) != 1:
            return None
        if id(absorbed) in signs:
            return finite[0] if finite else absorbed
        return other

    return rule


# ---------------------------------------------------------------- normal forms


def _maximum(algebra: ScalarAlgebra, a: Poly, b: Poly) -> Poly:
    return algebra.largest([((), (), a), ((), (), b)])


def _power(algebra: ScalarAlgebra, p: Poly, q: Poly) -> Poly:
    n = q.number
    if n == 0.5:
        return algebra.sqrt(p)
    if n == -0.5:
        return algebra.inverse(algebra.sqrt(p))
    if n is not None and n == int(n) and -8 <= n < 0:
        return algebra.inverse(algebra.power(p, -int(n)))
    return algebra.poly(of_floats("power"), p, q)


# ---------------------------------------------------------------- domains


def _by_zero(algebra: ScalarAlgebra, divisor: Poly) -> Poly:
    return algebra.sign("zero", divisor)


def _no_power(algebra: ScalarAlgebra, p: Poly, q: Poly) -> Poly:
    """Where p^q has no value: of 0 where q < 0, of a negative number where q is not whole."""
    n = q.number
    if n is None:
        negative = algebra.sign("positive", p.scaled(-1)).terms or algebra.sign("zero", p).terms
        return algebra.poly(of_floats("no_power", "bool"), p, q) if negative else ZERO
    if n == int(n):
        return algebra.sign("zero", p) if n < 0 else ZERO
    return ONE - algebra.sign("positive", p) if n < 0 else algebra.sign("positive", p.scaled(-1))


# ---------------------------------------------------------------- ring arithmetic

ADD = Function(
    "add",
    np.add,
    field=exact(np.add),
    normal=lambda algebra, a, b: a + b,
    floats=False,
    ring=True,
    boolean="logical_or",
    infinite=_sum_of_infinite,
    linear=Linear.SUM,
    sizes=True,
    cpp="{} + {}",
    triton="{} + {}",
    fold=Fold("sum", "0.0f", "+", "tl.sum", 0.0),
)
SUBTRACT = Function(
    "subtract",
    np.subtract,
    field=exact(np.subtract),
    normal=lambda algebra, a, b: a - b,
    floats=False,
    ring=True,
    boolean="logical_xor",
    infinite=_difference_of_infinite,
    linear=Linear.SUM,
    sizes=True,
    cpp="{} - {}",
    triton="{} - {}",
)
MULTIPLY = Function(
    "multiply",
    np.multiply,
    field=exact(np.multiply),
    normal=lambda algebra, a, b: algebra.mul(a, b),
    floats=False,
    ring=True,
    linear=Linear.PRODUCT,
    sizes=True,
    cpp="{} * {}",
    triton="{} * {}",
    fold=Fold("prod", "1.0f", "*"),
)
NEGATIVE = Function(
    "negative",
    np.negative,
    field=exact(np.negative),
    normal=lambda algebra, a: a.scaled(-1),
    floats=False,
    ring=True,
    boolean="logical_not",
    infinite=lambda ps: MOST if ps[0] is LEAST else LEAST,
    linear=Linear.SUM,
    sizes=True,
    cpp="-{}",
    triton="-{}",
)
SQUARE = Function(
    "square",
    np.square,
    field=exact(lambda a: a * a),
    normal=lambda algebra, a: algebra.mul(a, a),
    floats=False,
    ring=True,
    cpp="{0} * {0}",
    triton="{0} * {0}",
)

# ---------------------------------------------------------------- quotients, roots and powers

DIVIDE = Function(
    "divide",
    np.divide,
    field=quotient,
    normal=lambda algebra, a, b: algebra.mul(a, algebra.inverse(b)),
    undefined=_by_zero,
    decisive=(1,),
    linear=Linear.QUOTIENT,
    cpp="{} / {}",
    triton="{} / {}",
    dear=True,
)
RECIPROCAL = Function(
    "reciprocal",
    np.reciprocal,
    field=quotient,
    normal=lambda algebra, a: algebra.mul(ONE, algebra.inverse(a)),
    undefined=_by_zero,
    cpp="1.0f / {}",
    triton="1.0 / {}",
    dear=True,
)
SQRT = Function(
    "sqrt",
    np.sqrt,
    field=exact(root),
    normal=lambda algebra, a: algebra.sqrt(a),
    undefined=lambda algebra, a: algebra.sign("positive", a.scaled(-1)),
    facts=(
        Fact("strict", "f(x) < f(y)", "0 <= x < y"),
        Fact("even powers out", "f(x * x * y) == abs(x) * f(y)", "y >= 0"),
    ),
    cpp="std::sqrt({})",
    triton="tl.sqrt({})",
    dear=True,
)
POWER = Function(
    "power",
    np.power,
    free=(1,),
    field=whole_power,
    normal=_power,
    undefined=_no_power,
    facts=(
        Fact("rewritten", "f(x, -2) == 1 / (x * x)", "x != 0"),
        Fact("rewritten", "f(x, 0.5) == sqrt(x)", "x >= 0"),
        Fact("rewritten", "f(x, -0.5) == 1 / sqrt(x)", "x > 0"),
    ),
    cpp="std::pow({}, {})",
    dear=True,
)

# ---------------------------------------------------------------- the larger, the smaller, the sign

MAXIMUM = Function(
    "maximum",
    np.maximum,
    field=residue_order(lambda order, arrays: np.where(order[0] >= order[1], arrays[0], arrays[1]), tied_residues),
    normal=_maximum,
    floats=False,
    infinite=_largest_of_infinite(LEAST, MOST),
    cpp="maximum({}, {})",
    triton="tl.maximum({}, {})",
    fold=Fold("max", "-INFINITY", "max", "tl.max", -np.inf),
)
MINIMUM = Function(
    "minimum",
    np.minimum,
    field=residue_order(lambda order, arrays: np.where(order[0] <= order[1], arrays[0], arrays[1]), tied_residues),
    normal=lambda algebra, a, b: _maximum(algebra, a.scaled(-1), b.scaled(-1)).scaled(-1),
    floats=False,
    infinite=_largest_of_infinite(MOST, LEAST),
    cpp="minimum({}, {})",
    triton="tl.minimum({}, {})",
    fold=Fold("min", "INFINITY", "min", "tl.min", np.inf),
)
ABSOLUTE = Function(
    "absolute",
    np.absolute,
    field=residue_order(
        lambda order, arrays: np.where(order[0] < 0, -arrays[0], arrays[0]) % moduli(order[0].ndim - 1),
        lambda arrays: (arrays[0][0] == 0) & (arrays[0][1] != 0),
    ),
    normal=lambda algebra, a: _maximum(algebra, a, a.scaled(-1)),
    floats=False,
    cpp="std::fabs({})",
    triton="tl.abs({})",
)
SIGN = Function(
    "sign",
    np.sign,
    field=residue_order(lambda order, arrays: np.sign(order[0])[None] % moduli(order[0].ndim - 1)),
    normal=lambda algebra, p: algebra.sign("positive", p) - algebra.sign("positive", p.scaled(-1)),
    floats=False,
    facts=(Fact("rewritten", "f(x) == (x > 0) - (x < 0)"),),
    cpp="static_cast<float>(({0} > 0.0f) - ({0} < 0.0f))",
    triton="tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))",
)

# ---------------------------------------------------------------- roundings

_ROUNDS = (
    Fact("increasing", "f(x) <= f(y)", "x < y"),
    Fact("integer", "f(x) == x", "x == floor(x)"),
    Fact("whole", "f(x) == floor(f(x))"),
)
FLOOR = Function(
    "floor",
    np.floor,
    facts=(*_ROUNDS, Fact("shifts", "f(x + floor(y)) == f(x) + floor(y)"), Fact("near", "x - 1 < f(x) <= x")),
    whole=floor,
    near=(-1, 0),
    infinite=_itself,
    cpp="std::floor({})",
    triton="tl.floor({})",
)
CEIL = Function(
    "ceil",
    np.ceil,
    normal=lambda algebra, p: algebra.apply(of_floats("floor"), p.scaled(-1)).scaled(-1),
    facts=(Fact("rewritten", "f(x) == -floor(-x)"),),
    infinite=_itself,
    cpp="std::ceil({})",
    triton="tl.ceil({})",
)
RINT = Function(
    "rint",
    np.rint,
    facts=(Fact("odd", "f(-x) == -f(x)"), *_ROUNDS, Fact("near", "x - 0.5 <= f(x) <= x + 0.5")),
    whole=round,
    near=(Fraction(-1, 2), Fraction(1, 2)),
    infinite=_itself,
    cpp="std::nearbyint({})",
)
FLOOR_DIVIDE = Function(
    "floor_divide",
    np.floor_divide,
    undefined=_by_zero,
    decisive=(1,),
    division=Division(rest=False, floors=True),
    sizes=True,
)
TRUNCATED_DIVIDE = Function(
    "truncated_divide",
    truncated_divide,
    undefined=_by_zero,
    decisive=(1,),
    division=Division(rest=False, floors=False),
)
REMAINDER = Function(
    "remainder",
    np.remainder,
    undefined=_by_zero,
    decisive=(1,),
    division=Division(rest=True, floors=True),
    facts=(Fact("small", "x - floor(x / y) * y == x", "0 <= x < y"),),
    sizes=True,
    dear=True,
)
FMOD = Function(
    "fmod",
    np.fmod,
    undefined=_by_zero,
    decisive=(1,),
    division=Division(rest=True, floors=False),
    dear=True,
)
LEFT_SHIFT = Function("left_shift", np.left_shift, free=(1,))
RIGHT_SHIFT = Function("right_shift", np.right_shift, free=(1,), triton="({} >> {})")
BITWISE_AND = Function("bitwise_and", np.bitwise_and, ring=True, triton="({} & {})")
BITWISE_OR = Function("bitwise_or", np.bitwise_or, ring=True)
BITWISE_XOR = Function("bitwise_xor", np.bitwise_xor, ring=True)
INVERT = Function("invert", np.invert, ring=True, boolean="logical_not")
