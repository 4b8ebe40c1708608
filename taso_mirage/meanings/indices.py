"""Integers of a proof: index variables with ranges, sizes of at least 1, and facts about
polynomials over both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd
from typing import Any

from taso_mirage.ir.dims import Dim, Floor, Symbolic, floor_divide, replaced_factors, symbol, uneven
from taso_mirage.meanings.conditions import (
    Conditions,
    Unprovable,
    index_names,
    linear,
    of_sizes_nonnegative,
    polynomial,
)
from taso_mirage.meanings.integers import follows


class Indices:
    """Index variables and their ranges, for one proof.

    `steps` counts its work; `budget` bounds it. `volumes` are the numbers of elements that tensors
    of the proof have, as powers by size. `second`: whether this is a second attempt, in which sums
    are split where a kernel extends beyond the data, and positions in repeated data are divided.
    `more`: whether a second attempt could find more. `third` and `running` are the same for an
    attempt in which terms are split off running sums.
    """

    def __init__(self, budget: int = 200_000) -> None:
        self.extents: dict[str, Dim] = {}
        self.quotients: dict[tuple[Dim, Dim], Dim] = {}
        self.volumes: list[Any] = []
        self.steps, self.budget = 0, budget
        self.second = self.more = False
        self.third = self.running = False
        self.context: Any = None
        self._nonnegative: dict[Dim, bool] = {}
        self._known: dict[tuple[Any, Dim], bool] = {}

    def step(self, n: int = 1) -> None:
        """Count work; Unprovable when the budget is spent."""
        self.steps += n
        if self.steps > self.budget:
            raise Unprovable("the budget is spent")

    def release(self) -> None:
        """Let go of Z3's state at the end of the proof: 16 MiB, which the next proof uses again.
        The terms of a proof refer to each other, so all else stays until garbage is collected."""
        self.context = None

    def variable(self, name: str, extent: Dim) -> Dim:
        """The variable with 0 <= name < extent; 0 where that is all."""
        if extent == 1:
            return 0
        self.extents[name] = extent
        return symbol(name)

    def fresh(self, extent: Dim) -> Dim:
        return self.variable(f"?{len(self.extents)}", extent)

    def bind(self, e: Dim, mapping: Mapping[str, Dim]) -> Dim:
        """`e` with variables replaced, and quotients simplified by known ranges."""
        if isinstance(e, int) or index_names(e).isdisjoint(mapping):
            return e

        def value(atom: Any) -> Any:
            if isinstance(atom, str):
                return mapping.get(atom, symbol(atom))
            if isinstance(atom, Floor):
                return self.divide(self.bind(atom.numerator, mapping), self.bind(atom.denominator, mapping))
            return atom.value.position(mapping)

        return replaced_factors(e, value)

    # ------------------------------------------------------------ order

    def lowest(self, e: Dim) -> Dim | None:
        """A lower bound over the ranges of the index variables, as a polynomial of sizes."""
        for name in sorted(index_names(e)):
            if name not in self.extents:
                continue
            parts = linear(e, name)
            if parts is None:
                return None
            slope, rest = parts
            if of_sizes_nonnegative(slope) and not self._varies(slope):
                e = rest
            elif of_sizes_nonnegative(-slope) and not self._varies(slope):
                e = rest + slope * (self.extents[name] - 1)
            else:
                return None
        return e

    def _varies(self, e: Dim) -> bool:
        return any(n in self.extents for n in index_names(e))

    def nonnegative(self, e: Dim) -> bool:
        """Whether e >= 0 follows from the ranges alone, by bounds."""
        if isinstance(e, int):
            return e >= 0
        known = self._nonnegative.get(e)
        if known is None:
            self.step()
            low = self.lowest(e)
            known = self._nonnegative[e] = low is not None and of_sizes_nonnegative(low)
        return known

    def tidy(self, e: Dim) -> Dim | bool:
        """The condition e >= 0 decided, or in a smaller equivalent form."""
        while True:
            if self.nonnegative(e):
                return True
            if self.nonnegative(-e - 1):
                return False
            smaller = self._reduced(e)
            if smaller == e:
                return e
            e = smaller

    def _reduced(self, e: Dim) -> Dim:
        """e = d*q + r with 0 <= r < d: e >= 0 iff q >= 0."""
        for d in self._factors(e):
            q, r = self._split(e, d)
            for shift in (0, 1):
                rest = r + d * shift
                if q != 0 and self.nonnegative(rest) and self.nonnegative(d - 1 - rest):
                    return q - shift
        return e

    def _factors(self, e: Dim) -> list[Dim]:
        found: list[Dim] = []
        for monomial, c in e.terms if isinstance(e, Symbolic) else ():
            if any(isinstance(a, str) and a in self.extents for a, _ in monomial):
                sizes = tuple((a, p) for a, p in monomial if isinstance(a, str) and a not in self.extents)
                factor = polynomial([(sizes, abs(c))])
                if factor != 1 and factor not in found:
                    found.append(factor)
        return found

    @staticmethod
    def _split(e: Dim, d: Dim) -> tuple[Dim, Dim]:
        """(q, r) with e = d*q + r, whole terms moved to q."""
        lead = d.terms[0] if isinstance(d, Symbolic) else ((), d)
        q: Dim = 0
        for _ in range(50):
            found = next((t for t in (_over(t, lead) for t in _terms(e)) if t is not None), None)
            if found is None:
                break
            q, e = q + found, e - found * d
        return q, e

    def divide(self, e: Dim, d: Dim) -> Dim:
        """e // d for d >= 1, simplified by ranges; the rest is a quotient atom."""
        if d == 1 or (isinstance(e, int) and isinstance(d, int)):
            return e // d
        q, r = self._split(e, d)
        for shift in (0, -1, 1):
            rest = r - d * shift
            if self.nonnegative(rest) and self.nonnegative(d - 1 - rest):
                return q + shift
        for f in self._common(r, d):
            a, b = self._split(r, f)
            if a != 0 and self.nonnegative(b) and self.nonnegative(f - 1 - b):
                return q + self.divide(a, self._split(d, f)[0])
        if isinstance(d, Symbolic) and len(d.terms) > 1:
            return q + uneven(r, d)
        left = floor_divide(r, d)
        for monomial, c in left.terms if isinstance(left, Symbolic) else ():
            match monomial:
                case ((Floor(numerator, denominator), 1),) if (numerator, denominator) != (r, d):
                    left = left + (self.divide(numerator, denominator) - polynomial([(monomial, 1)])) * c
        return q + left

    def _common(self, e: Dim, d: Dim) -> list[Dim]:
        """Proper factors of d that divide some term of e."""
        found: list[Dim] = []
        if isinstance(d, Symbolic) and len(d.terms) == 1:
            monomial, c = d.terms[0]
            found = [symbol(a) for a, _ in monomial if isinstance(a, str) and (len(monomial) > 1 or c != 1)]
            found += [c] if c > 1 else []
            found += [polynomial([(monomial, 1)])] if c > 1 and len(monomial) > 1 else []
            found += [
                polynomial([(tuple(x for x in monomial if x[0] != a), 1)]) for a, _ in monomial if len(monomial) > 2
            ]
        elif isinstance(d, int):
            found = sorted({gcd(c, d) for _, c in _terms(e)} - {1, d})
        return [f for f in found if self._split(d, f)[1] == 0]

    # ------------------------------------------------------------ entailment

    def entails(self, given: Conditions, e: Dim, deep: bool = False) -> bool:
        """Whether e >= 0 follows from `given` and the ranges; Z3 is asked if `deep`."""
        if self.nonnegative(e):
            return True
        if e in given or any(self.nonnegative(e - g) for g in given):
            return True
        if not deep:
            return False
        key = (given, e)
        if key not in self._known:
            self.step(20)
            self._known[key] = follows(self, given, [e])
        return self._known[key]

    def contradictory(self, given: Conditions, e: Dim) -> bool:
        """Whether e >= 0 cannot hold under `given`."""
        return self.entails(given, -e - 1)

    def joined(self, given: Conditions, more: Iterable[Dim]) -> Conditions | None:
        """The conjunction without implied conditions; None where it cannot hold."""
        for e in more:
            if e in given:
                continue
            if self.contradictory(given, e):
                return None
            if not self.entails(given, e):
                given = (*given, e)
        return given


def _terms(e: Dim) -> tuple[Any, ...]:
    if isinstance(e, Symbolic):
        return e.terms
    return (((), e),) if e else ()


def _over(term: Any, divisor: Any) -> Dim | None:
    """term / divisor where the monomial divides and a whole multiple of the coefficient can be
    taken out."""
    powers = dict(term[0])
    for atom, power in divisor[0]:
        powers[atom] = powers.get(atom, 0) - power
        if powers[atom] < 0:
            return None
    c, left = divmod(term[1], divisor[1])
    if c == 0 or (left and any(powers.values())):
        return None
    return polynomial([(tuple((a, p) for a, p in powers.items() if p), c)])
