"""Equality of normal forms by cases: the sign of the polynomial in a comparison or a maximum, and
the value of a condition inside of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.polynomials import ONE, ZERO, Atom, Poly, constant_poly, plain_rational
from taso_mirage.prove.machine import is_flag
from taso_mirage.prove.rewrites import sign_of

DEPTH = 3
"""The number of signs that are distinguished, one inside the other."""
SMALL = 40
"""The largest number of terms of a sum that is split."""
Same = Callable[[Poly, Poly], bool]


@dataclass(frozen=True, slots=True)
class Case:
    """The assumptions of a case: `of` has a sign (1, -1 or 0), and an atom is replaced by its value
    then."""

    of: Poly
    sign: int
    atom: Atom | None = None
    value: Poly = ZERO


def same_by_cases(algebra: ScalarAlgebra, same: Same, p: Poly, q: Poly, depth: int = DEPTH) -> bool:
    """Whether p = q in each of the cases of a question that one of them has."""
    if len(p.terms) + len(q.terms) > SMALL:
        return False
    asked = next(_asked(p - q, False), None)
    if asked is None or not depth:
        return False
    for case in _cases(asked):
        algebra.indices.step(10)
        a, b = resolved(algebra, p, case), resolved(algebra, q, case)
        if not same(a, b) and not same_by_cases(algebra, same, a, b, depth - 1):
            return False
    return True


def _asked(p: Poly, inside: bool) -> Iterator[Atom | Poly]:
    """A condition inside of a function, or a polynomial whose sign matters; terms under a binder
    are not visited."""
    for a in (a for m in p.terms for a, _ in m):
        if a.kind in ("positive", "zero"):
            yield a.args[0]
        elif a.kind == "max" and not any(b or c for b, c, _ in a.args):
            for _, _, branch in a.args:
                yield from _asked(branch, True)
            yield a.args[0][2] - a.args[1][2]
        elif inside and is_flag(a) and a.kind != "sum":
            yield a
        elif a.kind not in ("sum", "prod", "max", "read"):
            for x in a.args:
                if isinstance(x, Poly):
                    yield from _asked(x, True)


def _cases(asked: Atom | Poly) -> list[Case]:
    if isinstance(asked, Atom):
        return [Case(ZERO, 0, asked, value) for value in (ONE, ZERO)]
    return [Case(asked, 1), Case(asked, -1), _equal(asked)]


def _equal(of: Poly) -> Case:
    """The case of 0, in which an atom is known by all others."""
    for m, c in of.terms.items():
        if len(m) == 1 and m[0][1] == 1 and sum(a is m[0][0] for k in of.terms for a, _ in k) == 1:
            others = Poly({k: v for k, v in of.terms.items() if k is not m})
            return Case(of, 0, m[0][0], others.scaled(plain_rational(-1 / Fraction(c))))
    return Case(of, 0)


def resolved(algebra: ScalarAlgebra, p: Poly, case: Case) -> Poly:
    """A normal form in a case."""
    total = ZERO
    for m, c in p.terms.items():
        part = constant_poly(c)
        for a, power in m:
            one = _atom(algebra, a, case)
            one = algebra.inverse(one) if power < 0 else one
            part = algebra.mul(part, algebra.power(one, abs(power)))
        total = total + part
    return total


def _atom(algebra: ScalarAlgebra, a: Atom, case: Case) -> Poly:
    if a is case.atom:
        return case.value
    if a.kind in ("sum", "prod", "read", "size", "floor"):
        return Poly({((a, 1),): 1})
    if a.kind in ("positive", "zero"):
        sign = _sign(case, a.args[0])
        if sign is not None:
            return ONE if (sign > 0 if a.kind == "positive" else sign == 0) else ZERO
    if a.kind == "max":
        return _largest(algebra, a, case)
    return algebra.apply(a.kind, *[resolved(algebra, x, case) if isinstance(x, Poly) else x for x in a.args])


def _largest(algebra: ScalarAlgebra, a: Atom, case: Case) -> Poly:
    """A maximum without the branches that are known not to be larger."""
    if any(b or c for b, c, _ in a.args):
        return Poly({((a, 1),): 1})
    kept: list[Poly] = []
    for _, _, branch in a.args:
        p = resolved(algebra, branch, case)
        if any(_known(algebra, case, q - p) for q in kept):
            continue
        kept = [q for q in kept if not _known(algebra, case, p - q)]
        kept.append(p)
    return algebra.largest([((), (), p) for p in kept])


def _known(algebra: ScalarAlgebra, case: Case, p: Poly) -> bool:
    """Whether p >= 0 is the assumption of the case."""
    sign = _sign(case, sign_of(algebra, "positive", p))
    return sign is not None and sign >= 0


def _sign(case: Case, p: Poly) -> int | None:
    """The sign of p, if it is a number, or a multiple of that whose sign is known."""
    if p.number is not None:
        return int(p.number > 0) - int(p.number < 0)
    if not case.of.terms or p.terms.keys() != case.of.terms.keys():
        return None
    ratios = {Fraction(c) / Fraction(case.of.terms[m]) for m, c in p.terms.items()}
    return None if len(ratios) > 1 else case.sign * (1 if min(ratios) > 0 else -1)
