"""Exponentials, logarithms, trigonometric and hyperbolic functions: records of scalar functions.

Core Triton has no tanh and no log1p; those here keep their digits where results are small: later
operators may scale them up (the cap of Gemma 2's scores is 50 tanh(x / 50), the steps of Mamba are
softplus of about -6).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.functions.record import Fact, Function, Normal
from taso_mirage.meanings.polynomials import LEAST, ONE, ZERO, Poly
from taso_mirage.meanings.residues import exponential

LOG1P = (
    "tl.where(1.0 + {0} == 1.0, {0}, "
    "tl.where({0} < 1.0, tl.log(1.0 + {0}) * ({0} / ((1.0 + {0}) - 1.0)), tl.log(1.0 + {0})))"
)
"""Kahan's: the quotient corrects the rounding of 1 + x. At most 3e-7 of the result off."""
SERIES_OF_TANH = (
    "tl.where(tl.abs({0}) < 0.3, {0} + {0} * {0} * {0} * (-0.33333334 + {0} * {0} * (0.13333334 + {0} * {0} * (-0.053968254 "
    "+ {0} * {0} * 0.021869488))), 1.0 - 2.0 / (tl.exp(2.0 * {0}) + 1.0))"
)
"""The series of tanh near 0. Its error is at most 6e-7 of the result."""
ODD = Fact("odd", "f(-x) == -f(x)")
EVEN = Fact("even", "f(-x) == f(x)")
STRICT = Fact("strict", "f(x) < f(y)", "x < y")
BOUNDED = Fact("bounded", "-1 <= f(x) <= 1")
WITHIN_1 = (Fact("odd", "f(-x) == -f(x)", "-1 < x < 1"), Fact("strict", "f(x) < f(y)", "-1 < x < y < 1"))


def error_function(x: Any) -> Any:
    """The Gauss error function."""
    from scipy.special import erf as wide  # imported here, because the import takes a third of a second

    return np.asarray(wide(np.asarray(x, np.float64))).astype(np.asarray(x).dtype)


def _hyperbolic(sign: int) -> Normal:
    def built(algebra: ScalarAlgebra, p: Poly) -> Poly:
        return (algebra.exp(p) + algebra.exp(p.scaled(-1)).scaled(sign)).scaled(Fraction(1, 2))

    return built


def _beyond_1(algebra: ScalarAlgebra, p: Poly) -> Poly:
    return algebra.sign("positive", algebra.mul(p, p) - ONE)


EXP = Function(
    "exp",
    np.exp,
    field=exponential,
    normal=lambda algebra, a: algebra.exp(a),
    facts=(
        STRICT,
        Fact("inverse", "f(log(x) + y) == x * f(y)", "x > 0"),
        Fact("inverse", "f(log(x) / 2) == sqrt(x)", "x > 0"),
    ),
    infinite=lambda ps: ZERO if ps[0] is LEAST else None,
    cpp="exponential({})",
    triton="tl.exp({})",
    dear=True,
)
EXP2 = Function("exp2", np.exp2, triton="tl.exp2({})")
EXPM1 = Function(
    "expm1",
    np.expm1,
    normal=lambda algebra, p: algebra.exp(p) - ONE,
    facts=(Fact("rewritten", "f(x) == exp(x) - 1"),),
    triton="tl.exp({}) - 1.0",
    dear=True,
)
LOG = Function(
    "log",
    np.log,
    normal=lambda algebra, p: algebra.log(p),
    undefined=lambda algebra, p: ONE - algebra.sign("positive", p),
    facts=(
        Fact("strict", "f(x) < f(y)", "0 < x < y"),
        Fact("positive factors out", "f(x * y) == f(x) + f(y)", "x > 0 and y > 0"),
        Fact("inverse", "f(exp(x)) == x"),
        Fact("rewritten", "f(1 / x) == -f(x)", "x > 0"),
        Fact("rewritten", "f(sqrt(x)) == f(x) / 2", "x > 0"),
        Fact("exponentials out", "f(x + exp(-y)) == f(1 + x * exp(y)) - y", "x > 0"),
        Fact("softplus", "f(1 + exp(abs(x))) == f(1 + exp(x)) + abs(x) - max(x, 0)"),
    ),
    cpp="logarithm({})",
    triton="tl.log({})",
    dear=True,
)
LOG_1P = Function(
    "log1p",
    np.log1p,
    normal=lambda algebra, p: algebra.log(ONE + p),
    undefined=lambda algebra, p: ONE - algebra.sign("positive", ONE + p),
    facts=(Fact("rewritten", "f(x) == log(1 + x)", "x > -1"),),
    cpp="logarithm_of_1p({})",
    triton=LOG1P,
    dear=True,
)
SIN = Function("sin", np.sin, facts=(ODD, BOUNDED), cpp="std::sin({})", triton="tl.sin({})", dear=True)
COS = Function("cos", np.cos, facts=(EVEN, BOUNDED), cpp="std::cos({})", triton="tl.cos({})", dear=True)
TAN = Function("tan", np.tan, facts=(ODD,), dear=True)
TANH = Function(
    "tanh",
    np.tanh,
    normal=lambda algebra, p: ONE - algebra.inverse(ONE + algebra.exp(p.scaled(2))).scaled(2),
    facts=(Fact("rewritten", "f(x) == 1 - 2 / (1 + exp(2 * x))"),),
    cpp="tangent({})",
    triton=SERIES_OF_TANH,
    dear=True,
)
ERROR_FUNCTION = Function(
    "error_function",
    error_function,
    facts=(ODD, STRICT, BOUNDED),
    cpp="error_function({})",
    triton="tl.erf({})",
    dear=True,
)
SINH = Function("sinh", np.sinh, normal=_hyperbolic(-1), facts=(Fact("rewritten", "f(x) == (exp(x) - exp(-x)) / 2"),))
COSH = Function("cosh", np.cosh, normal=_hyperbolic(1), facts=(Fact("rewritten", "f(x) == (exp(x) + exp(-x)) / 2"),))
ARCTAN = Function("arctan", np.arctan, facts=(ODD, STRICT))
ARCSIN = Function("arcsin", np.arcsin, facts=WITHIN_1, undefined=_beyond_1)
ARCCOS = Function("arccos", np.arccos, undefined=_beyond_1)
ARCSINH = Function("arcsinh", np.arcsinh, facts=(ODD, STRICT))
ARCCOSH = Function(
    "arccosh",
    np.arccosh,
    facts=(Fact("strict", "f(x) < f(y)", "1 <= x < y"),),
    undefined=lambda algebra, p: algebra.sign("positive", ONE - p),
)
ARCTANH = Function(
    "arctanh",
    np.arctanh,
    facts=WITHIN_1,
    undefined=lambda algebra, p: ONE - algebra.sign("positive", ONE - algebra.mul(p, p)),
)
