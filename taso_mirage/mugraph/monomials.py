"""Products of factors with exponents, and their coefficients: the parts of a sketch's
polynomials."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

from taso_mirage.ir.dims import Powers

Coefficient: TypeAlias = "int | Fraction"
FactorPowers: TypeAlias = Powers[int]
"""(factor, exponent), sorted."""
ProductSum: TypeAlias = tuple[tuple[FactorPowers, Coefficient], ...]


def power(a: FactorPowers, n: int) -> FactorPowers:
    """Every exponent times n."""
    return tuple([(f, e * n) for f, e in a])


def first(term: tuple[FactorPowers, Coefficient]) -> FactorPowers:
    """The key by which terms are sorted."""
    return term[0]


def nearest(a: int, b: int) -> int:
    """The one of two exponents of one sign that is nearer to 0."""
    return min(a, b) if a > 0 else max(a, b)


def over(c: Coefficient, d: Coefficient) -> Coefficient:
    """c / d, whole where it is."""
    return c * d if d in (1, -1) else plain_number(Fraction(c) / d)


def plain_number(c: Coefficient) -> Coefficient:
    """A whole number as an int."""
    return int(c) if isinstance(c, Fraction) and c.denominator == 1 else c
