"""The parts of a sketch's polynomials: products of factors with exponents, and their coefficients;
atoms, which are the factors; and the names of labels."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple, TypeAlias

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


LabelSet: TypeAlias = frozenset[str]
Renaming: TypeAlias = tuple[tuple[str, str], ...]
AbstractExpression: TypeAlias = int

ROOT_LEVELS = 8
"""A factor is LEVELS * atom + the level of the root that it is under."""
NONE: LabelSet = frozenset()


class FactorForm(IntEnum):
    """The form of an atom."""

    INPUT = 0
    NUMBER = 1
    """A coefficient under a root, or in an exponent."""
    SHARE = 2
    """1 / n of a label."""
    SIZE = 3
    """n of a label, which no share cancels."""
    EXP = 4
    """The exponential of a product."""
    FUNCTION = 5
    """Opaque; without a name it is the exp of a term that has an exp inside it."""
    POLY = 6
    """A sum that stays factored."""
    WHOLE = 7
    """A sum that nothing takes apart."""
    SUM = 8
    FOLD = 9
    """Another reduction, by its name: opaque."""


INPUT_FORM, NUMBER, SHARE_FORM, SIZE, EXP_FORM, FUNCTION, POLY, WHOLE, SUM_FORM, FOLD = FactorForm
"""Plain names: a member of an enumeration takes long to look up."""


class AbstractFactor(NamedTuple):
    """`labels`: an input's own, or those bound here.

    `exponential`: of a function, whether the field knows its value mod p alone.
    """

    form: FactorForm
    name: str = ""
    labels: tuple[str, ...] = ()
    polys: tuple[AbstractExpression, ...] = ()
    inner: FactorPowers = ()
    exponential: bool = False


class Properties(NamedTuple):
    """Properties of an atom or a polynomial: the free labels, the nesting depth of binders, and
    whether the field's residue mod q is lost."""

    free: LabelSet = NONE
    height: int = 0
    exponential: bool = False


def family(label: str) -> str:
    """The label that a bound label stands for: k for k#1.0."""
    return label.split("#")[0]


def joined_factors(parts: Sequence[Properties]) -> Properties:
    """The properties of an expression with these parts that binds nothing itself."""
    return Properties(
        NONE.union(*[p.free for p in parts]),
        max([p.height for p in parts], default=0),
        any(p.exponential for p in parts),
    )
