"""Comparisons, choices and functions of booleans: records of scalar functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taso_mirage.meanings.functions.record import Comparison, Function, Linear
from taso_mirage.meanings.polynomials import MOST, ONE, ZERO, Poly, constant_poly, infinite
from taso_mirage.meanings.residues import residue_order, tested


def never(x: Any) -> Any:
    """False everywhere."""
    return np.zeros(np.shape(x), bool)


def _compare(real: np.ufunc, code: str, comparison: Comparison, sizes: bool = False) -> Function:
    """A comparison, which C++ and Triton write alike."""

    def beyond(ps: Sequence[Poly]) -> Poly | None:
        """The comparison of an infinite constant with a finite element; None for other operands."""
        finite = [p for p in ps if not infinite(p)]
        if len(finite) != 1:
            return None
        a, b = (constant_poly(0) if p is finite[0] else constant_poly(1 if p is MOST else -1) for p in ps)
        return constant_poly(int(real(a.number, b.number)))

    text = f"{{}} {code} {{}}"
    return Function(
        real.__name__,
        real,
        tests=True,
        field=tested(real),
        infinite=beyond,
        comparison=comparison,
        sizes=sizes,
        cpp=text,
        triton=text,
    )


LESS = _compare(np.less, "<", Comparison("positive", swapped=True))
LESS_EQUAL = _compare(np.less_equal, "<=", Comparison("positive", holds=False))
GREATER = _compare(np.greater, ">", Comparison("positive"))
GREATER_EQUAL = _compare(np.greater_equal, ">=", Comparison("positive", holds=False, swapped=True))
EQUAL = _compare(np.equal, "==", Comparison("zero"), sizes=True)
NOT_EQUAL = _compare(np.not_equal, "!=", Comparison("zero", holds=False), sizes=True)


def _chosen(ps: Sequence[Poly]) -> Poly | None:
    c = ps[0].number
    return None if c is None else ps[1] if c else ps[2]


WHERE = Function(
    "where",
    np.where,
    free=(0,),
    field=residue_order(lambda order, arrays: np.where(order[0] != 0, arrays[1], arrays[2])),
    normal=lambda algebra, c, a, b: algebra.mul(c, a) + algebra.mul(ONE - c, b),
    floats=False,
    infinite=_chosen,
    linear=Linear.CHOICE,
    sizes=True,
    cpp="{} ? {} : {}",
    triton="tl.where({}, {}, {})",
)
ISNAN = Function(
    "isnan",
    np.isnan,
    tests=True,
    field=residue_order(lambda order, arrays: np.zeros_like(order[0])[None]),  # a real number is none
    normal=lambda algebra, p: ZERO,
    floats=False,
    cpp="{0} != {0}",
    triton="{0} != {0}",
)
NEVER = Function("never", never, normal=lambda algebra, p: ZERO, floats=False)
LOGICAL_NOT = Function(
    "logical_not", np.logical_not, normal=lambda algebra, a: ONE - a, floats=False, cpp="!{}", triton="{} == 0"
)
LOGICAL_AND = Function(
    "logical_and",
    np.logical_and,
    normal=lambda algebra, a, b: algebra.mul(a, b),
    floats=False,
    cpp="{} && {}",
    triton="{} & {}",
)
LOGICAL_OR = Function(
    "logical_or",
    np.logical_or,
    normal=lambda algebra, a, b: a + b - algebra.mul(a, b),
    floats=False,
    cpp="{} || {}",
    triton="{} | {}",
)
LOGICAL_XOR = Function(
    "logical_xor",
    np.logical_xor,
    normal=lambda algebra, a, b: a + b - algebra.mul(a, b).scaled(2),
    floats=False,
    cpp="{} != {}",
    triton="{} ^ {}",
)
