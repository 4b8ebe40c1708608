"""Polynomials with rational coefficients over interned atoms: the data of scalar normal forms
(`scalars` has the rules)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TypeAlias

from taso_mirage.ir.dims import Floor
from taso_mirage.meanings.conditions import Conditions

Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"
Rational: TypeAlias = int | Fraction
Branch: TypeAlias = "tuple[tuple[str, ...], Conditions, Poly]"
"""Bound integers, conditions and body of one branch of a maximum."""


class Atom:
    """An interned factor.

    `names` are its free integers, `level` the depth of its binders, `skeleton` its form without
    integers.
    """

    __slots__ = ("args", "floors", "id", "kind", "level", "names", "skeleton")
    kind: str
    args: tuple[Any, ...]
    id: int
    level: int
    names: frozenset[str]
    skeleton: int
    floors: tuple[Floor, ...]

    def __lt__(self, other: Atom) -> bool:
        return self.id < other.id

    def __repr__(self) -> str:
        return f"{self.kind}{self.args}"


class Poly:
    """A sum of monomials with coefficients; equal polynomials over equal atoms are equal."""

    __slots__ = ("_hash", "_names", "terms")

    def __init__(self, terms: dict[Monomial, Rational]) -> None:
        self.terms = terms
        self._hash: int | None = None
        self._names: frozenset[str] | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Poly) and self.terms == other.terms)

    @property
    def names(self) -> frozenset[str]:
        if self._names is None:
            self._names = frozenset().union(*[a.names for m in self.terms for a, _ in m])
        return self._names

    @property
    def number(self) -> Rational | None:
        """The value of a constant polynomial."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def __add__(self, other: Poly) -> Poly:
        if len(self.terms) < len(other.terms):
            self, other = other, self
        terms = dict(self.terms)
        for m, c in other.terms.items():
            total = terms.get(m, 0) + c
            if total:
                terms[m] = total
            else:
                terms.pop(m, None)
        return Poly(terms)

    def __sub__(self, other: Poly) -> Poly:
        return self + other.scaled(-1)

    def scaled(self, c: Rational) -> Poly:
        """c times this."""
        return self if c == 1 else Poly({m: d * c for m, d in self.terms.items()} if c else {})

    def __repr__(self) -> str:
        return " + ".join(f"{c}{list(m)}" for m, c in self.terms.items()) or "0"


def constant_poly(c: Rational) -> Poly:
    return Poly({(): c} if c else {})


ZERO, ONE = constant_poly(0), constant_poly(1)
LEAST, MOST = Poly({(): Fraction(-1, 10**400)}), Poly({(): Fraction(1, 10**400)})
"""Stand for minus and plus infinity, by identity: the numbers do not matter.

Arithmetic on them is `elementwise.apply`'s.
"""


def infinite(p: Poly) -> bool:
    return p is LEAST or p is MOST


def plain_rational(c: Rational) -> Rational:
    """A whole number as an integer."""
    return int(c) if c == int(c) else c
