"""The normal forms of functions, quotients, logarithms and orders that follow from the axioms."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor

from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.functions import SCALAR_FUNCTIONS
from taso_mirage.meanings.intervals import Interval
from taso_mirage.meanings.kinds import atom_kind
from taso_mirage.meanings.polynomials import (
    ONE,
    ZERO,
    Atom,
    Branch,
    Monomial,
    Poly,
    Rational,
    constant_poly,
    infinite,
    plain_rational,
)
from taso_mirage.prove.axioms import division, has
from taso_mirage.prove.folds import inhabited
from taso_mirage.prove.integers import BITS, bits, divided
from taso_mirage.prove.machine import integral
from taso_mirage.prove.machine import value_bounds as bounded
from taso_mirage.prove.maxima import LOG, largest, magnitude, surely_nonnegative, surely_positive
from taso_mirage.prove.quotients import cleared, exponent_of, factored, single_term
from taso_mirage.prove.roundings import whole_bounds


def rewritten(algebra: ScalarAlgebra, kind: str, args: tuple[Poly, ...]) -> Poly:
    """The normal form of a function of normal forms."""
    of = atom_kind(kind)
    function = SCALAR_FUNCTIONS.get(of.name)
    if function is not None and function.normal is not None and of.of_floats:
        return function.normal(algebra, *args)
    if has(kind, "idempotent") and _rounded(kind, args[0]):
        return args[0]
    if function is not None and function.whole is not None and of.of_floats:
        args = (whole_bounds(algebra, function.whole, args[0]),)
    if has(kind, "integer") and integral(args[0]):
        return args[0]
    if has(kind, "shifts") and (whole := _whole_part(args[0])).terms:
        return whole + rewritten(algebra, kind, (args[0] - whole,))
    if (how := division(kind)) is not None and "int" in of.result:
        return divided(algebra, kind, how, *args)
    if of.name in BITS and "int" in of.result:
        return bits(algebra, of, *args)
    if has(kind, "odd"):
        if not args[0].terms:
            return ZERO
        return (
            algebra.poly(kind, args[0].scaled(-1)).scaled(-1) if algebra.flipped(args[0]) else algebra.poly(kind, *args)
        )
    if has(kind, "even"):
        p = _unsigned(args[0])
        return algebra.poly(kind, p.scaled(-1) if algebra.flipped(p) else p)
    return algebra.poly(kind, *args)


def _unsigned(p: Poly) -> Poly:
    """c q of c |q|; others as they are."""
    monomial, c = single_term(p)
    of = magnitude(monomial[0][0]) if len(monomial) == 1 and monomial[0][1] == 1 else None
    return p if of is None else of.scaled(c)


def _whole_part(p: Poly) -> Poly:
    """The terms of p that are surely integers, and the whole part of its number."""
    found = {m: c for m, c in p.terms.items() if m and integral(Poly({m: c}))}
    n = floor(p.terms.get((), 0))
    return Poly({**found, (): n} if n else found)


def bounds(algebra: ScalarAlgebra, kind: str, args: tuple[Poly, ...]) -> Interval:
    """The bounds of a function's values that are tighter than its dtype's."""
    if has(kind, "bounded"):
        return Interval(-1, 1)
    if kind == LOG:
        return Interval(0) if surely_nonnegative(algebra, args[0] - ONE) else Interval()
    if has(kind, "increasing") and has(kind, "integer"):
        found = bounded(algebra, args[0])
        return Interval(
            None if found.low is None else floor(found.low), None if found.high is None else ceil(found.high)
        )
    divided = division(kind)
    m = args[1].number if divided is not None and divided.rest else None
    if divided is None or m is None or m <= 0 or "int" not in atom_kind(kind).result:
        return Interval()
    low = bounded(algebra, args[0]).low
    return Interval(0 if divided.floors or (low is not None and low >= 0) else 1 - m, m - 1)


def _rounded(kind: str, p: Poly) -> bool:
    monomial, c = single_term(p)
    return c in (1, -1) and len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0].kind == kind


# ---------------------------------------------------------------- logarithms


def log(algebra: ScalarAlgebra, p: Poly) -> Poly:
    """Positive factors and exponentials are taken out."""
    if p.number is not None:
        return ZERO if p.number == 1 else algebra.poly(LOG, p)
    p = factored(algebra, p)
    if len(p.terms) > 1:
        return _log_of_sum(algebra, p)
    ((monomial, c),) = p.terms.items()
    total, left = ZERO, []
    for a, power in monomial:
        part = _log_of_factor(algebra, a)
        total = total + (ZERO if part is None else part.scaled(power))
        left += [(a, power)] if part is None else []
    if c < 0 or not left:
        rest = Poly({tuple(left): c})
    else:
        total, rest = total + log(algebra, constant_poly(c)), Poly({tuple(left): 1})
    if rest.number is not None and rest.number == 1:
        return total
    return total + algebra.poly(LOG, rest)


def _log_of_factor(algebra: ScalarAlgebra, a: Atom) -> Poly | None:
    """The logarithm of a factor that is surely positive."""
    if a.kind == "exp":
        one: Poly = a.args[0]
        return one
    if not surely_positive(algebra, Poly({((a, 1),): 1})):
        return None
    if a.kind in ("inv", "sqrt"):
        return log(algebra, a.args[0]).scaled(-1 if a.kind == "inv" else Fraction(1, 2))
    return algebra.poly(LOG, Poly({((a, 1),): 1}))


def _log_of_sum(algebra: ScalarAlgebra, p: Poly) -> Poly:
    c = abs(Fraction(algebra.content(p)))
    factor, rest = algebra.shifted(p.scaled(plain_rational(1 / c)))
    total = factor + log(algebra, constant_poly(plain_rational(c)))
    u = _magnitude(algebra, rest)
    if u is None:
        return total + algebra.poly(LOG, rest)
    k, of, whole = u
    of = of.scaled(-1) if algebra.flipped(of) else of
    positive = largest(algebra, [((), (), of), ((), (), ZERO)])
    return total + log(algebra, ONE + algebra.exp(of.scaled(k))) + whole - positive.scaled(k)


def _magnitude(algebra: ScalarAlgebra, p: Poly) -> tuple[Rational, Poly, Poly] | None:
    """(k, u, k |u|) of 1 + exp(k |u|) with k > 0; that of a maximum u has the branches of u
    and -u."""
    exponent = next((m[0][0].args[0] for m in p.terms if len(m) == 1 and m[0][0].kind == "exp"), None)
    if exponent is None or len(p.terms) != 2 or p.terms.get(()) != 1 or sum(p.terms.values()) != 2:
        return None
    monomial, k = single_term(exponent)
    if k <= 0 or len(monomial) != 1 or monomial[0][1] != 1 or monomial[0][0].kind != "max":
        return None
    branches = monomial[0][0].args
    for last in (b for b in branches if not b[0] and not b[1]):
        of = algebra.largest([b for b in branches if b is not last])
        if not infinite(of) and not (of + last[2]).terms:
            return k, of, exponent
    return None


def exp_of_logs(algebra: ScalarAlgebra, p: Poly) -> Poly | None:
    """exp(n log(q) + r) = q^n exp(r) for positive q and whole or half n; None where there is no
    such term."""
    for m, c in p.terms.items():
        if len(m) != 1 or m[0][1] != 1 or m[0][0].kind != LOG or not -8 <= c <= 8 or int(2 * c) != 2 * c:
            continue
        of = m[0][0].args[0]
        if surely_positive(algebra, of):
            one = algebra.power(of if c == int(c) else algebra.sqrt(of), abs(int(c if c == int(c) else 2 * c)))
            rest = algebra.exp(Poly({k: v for k, v in p.terms.items() if k != m}))
            return algebra.mul(algebra.inverse(one) if c < 0 else one, rest)
    return None


# ---------------------------------------------------------------- order


def sign_of(algebra: ScalarAlgebra, kind: str, p: Poly) -> Poly:
    """A polynomial of the same sign (or the same zeros, for `zero`) with positive factors and
    strictly increasing functions gone."""
    common = _common(algebra, [p], frozenset())
    p = algebra.shifted(_without(p, common))[1]
    found = _difference(algebra, p) or cleared(algebra, p)
    return p if found is None else sign_of(algebra, kind, found)


def _difference(algebra: ScalarAlgebra, p: Poly) -> Poly | None:
    """a - b of f(a) - f(b) for a strictly increasing f; of 1 - exp(d) it is -d, and a of f(a) that
    is odd."""
    single, k = single_term(p)
    if len(single) == 1 and single[0][1] == 1 and has(single[0][0].kind, "strict") and has(single[0][0].kind, "odd"):
        inner: Poly = single[0][0].args[0]
        return inner.scaled(k)
    if len(p.terms) != 2 or sum(p.terms.values()) != 0:
        return _sum_of_odd(p)
    (m, c), (n, _) = p.terms.items()
    if c < 0:
        m, n = n, m
    if not m or not n:
        exponent = exponent_of(p)
        return None if exponent is None else exponent.scaled(1 if m else -1)
    if not (len(m) == len(n) == 1 and m[0][1] == n[0][1] == 1 and m[0][0].kind == n[0][0].kind):
        return None
    a: Poly = m[0][0].args[0]
    b: Poly = n[0][0].args[0]
    if m[0][0].kind == "inv" and surely_positive(algebra, a) and surely_positive(algebra, b):
        return b - a
    return a - b if has(m[0][0].kind, "strict") else None


def _sum_of_odd(p: Poly) -> Poly | None:
    """a + b of f(a) + f(b) for a strictly increasing odd f."""
    atoms = [m[0][0] for m in p.terms if len(m) == 1 and m[0][1] == 1]
    if len(p.terms) != 2 or len(atoms) != 2 or len(set(p.terms.values())) != 1 or atoms[0].kind != atoms[1].kind:
        return None
    if not (has(atoms[0].kind, "strict") and has(atoms[0].kind, "odd")):
        return None
    total: Poly = atoms[0].args[0] + atoms[1].args[0]
    return total.scaled(next(iter(p.terms.values())))


def pulled(algebra: ScalarAlgebra, branches: list[Branch]) -> Poly | None:
    """A maximum with common positive factors, or one monotone function of every branch, taken out
    of it."""
    bound = frozenset(n for b in branches for n in b[0])
    common = _common(algebra, [p for _, _, p in branches], bound)
    if common:
        inner = largest(algebra, [(b, c, _without(p, common)) for b, c, p in branches])
        return algebra.mul(Poly({common: 1}), inner)
    capped = _capped(algebra, branches)
    if capped is not None:
        return capped
    first = next((_function(p) for _, _, p in branches if p.number is None), None)
    if first is None:
        return _joined(algebra, branches)
    f, c = first
    inner_ = [_inside(algebra, f, c, p) for _, _, p in branches]
    if not _monotone(f) or any(q is None for q in inner_) or not any(_sure(algebra, b) for b in branches):
        return _joined(algebra, branches)
    top = [(b, e, q or ZERO) for (b, e, _), q in zip(branches, inner_, strict=True)]
    return _outside(algebra, f, c, top)


def _outside(algebra: ScalarAlgebra, f: str, c: Rational, branches: list[Branch]) -> Poly:
    """The maximum of c f(q) over branches q, with a monotone f."""
    sign = _monotone(f) * (1 if c > 0 else -1)
    top = largest(algebra, [(b, e, q.scaled(sign)) for b, e, q in branches])
    return algebra.apply(f, top.scaled(sign)).scaled(c)


def _monotone(f: str) -> int:
    """1 of a function that is increasing, -1 of the reciprocal of positive numbers, else 0."""
    return 1 if has(f, "strict", "increasing") else -1 if f == "inv" else 0


def _joined(algebra: ScalarAlgebra, branches: list[Branch]) -> Poly | None:
    """max(f(p) + r, f(q) + r, s) as max(f(max(p, q)) + r, s), where f rounds."""
    for f, c, rest in (found for _, _, p in branches for found in _rounded_terms(p)):
        inner = [_inside(algebra, f, c, p - rest) if f in _kinds(p) or _number(p) else None for _, _, p in branches]
        mine = [(b, e, q) for (b, e, _), q in zip(branches, inner, strict=True) if q is not None]
        several = len(mine) > 1 or any(b for b, _, _ in mine)
        if several and rest.names.isdisjoint(n for b in mine for n in b[0]) and any(_sure(algebra, b) for b in mine):
            others = [b for b, q in zip(branches, inner, strict=True) if q is None]
            return largest(algebra, [((), (), _outside(algebra, f, c, mine) + rest), *others])
    return None


def _rounded_terms(p: Poly) -> Iterator[tuple[str, Rational, Poly]]:
    """f, c and r of p = c f(q) + r."""
    for m, c in p.terms.items():
        found = _function(Poly({m: c}))
        if found is not None and has(found[0], "integer"):
            yield *found, Poly({k: v for k, v in p.terms.items() if k is not m})


def _number(p: Poly) -> bool:
    return p.number is not None


def _kinds(p: Poly) -> set[str]:
    return {a.kind for m in p.terms for a, _ in m}


def _capped(algebra: ScalarAlgebra, branches: list[Branch]) -> Poly | None:
    """max(min(p, c), min(q, c)) as min(max(p, q), c); a number that is never above c is its own
    minimum.

    max(min(p, c), d) and min(max(p, d), c) are one number: the form depends on the sign of p.
    """
    caps = next((found for _, _, p in branches if (found := _caps(p))), [])
    bound = {n for b in branches for n in b[0]}
    for cap in caps:
        below = [_below(algebra, p, cap) for _, _, p in branches]
        held = [q for q, (_, _, p) in zip(below, branches, strict=True) if q is not None and q is not p]
        forth = len(held) > 1 or any(q.terms and not algebra.flipped(q) for q in held)
        if forth and None not in below and cap.names.isdisjoint(bound) and any(_sure(algebra, b) for b in branches):
            top = largest(algebra, [(b, e, q or ZERO) for (b, e, _), q in zip(branches, below, strict=True)])
            return largest(algebra, [((), (), top.scaled(-1)), ((), (), cap.scaled(-1))]).scaled(-1)
    return None


def _caps(p: Poly) -> list[Poly]:
    """The plain operands of a minimum."""
    monomial, c = single_term(p)
    if c >= 0 or len(monomial) != 1 or monomial[0][1] != 1 or monomial[0][0].kind != "max":
        return []
    branches = monomial[0][0].args
    return [] if any(b or e for b, e, _ in branches) else [q.scaled(c) for _, _, q in branches]


def _below(algebra: ScalarAlgebra, p: Poly, cap: Poly) -> Poly | None:
    """q of p = min(q, cap)."""
    operands = _caps(p)
    if cap in operands:
        return largest(algebra, [((), (), q.scaled(-1)) for q in operands if q != cap]).scaled(-1)
    return p if surely_nonnegative(algebra, cap - p) else None


def _function(p: Poly) -> tuple[str, Rational] | None:
    monomial, c = single_term(p)
    return (monomial[0][0].kind, c) if len(monomial) == 1 and monomial[0][1] == 1 else None


def _inside(algebra: ScalarAlgebra, f: str, c: Rational, p: Poly) -> Poly | None:
    """q of p = c f(q)."""
    if p.number is not None:
        zero = p.number == 0 and has(f, "odd")
        whole = zero or (has(f, "integer") and int(p.number) == p.number and c in (1, -1))
        return p.scaled(plain_rational(1 / Fraction(c))) if whole else None
    if _function(p) != (f, c) and not (_function(p) == (f, -c) and has(f, "odd")):
        return None
    q: Poly = next(iter(p.terms))[0][0].args[0]
    if _function(p) != (f, c):
        return q.scaled(-1)
    return q if f != "inv" or surely_positive(algebra, q) else None


def _sure(algebra: ScalarAlgebra, branch: Branch) -> bool:
    """Whether a branch is surely over something."""
    return inhabited(algebra.indices, list(branch[0]), list(branch[1]))


def _common(algebra: ScalarAlgebra, ps: list[Poly], bound: frozenset[str]) -> Monomial:
    """The surely positive factors without bound integers that all terms share."""
    terms = [dict(m) for p in ps for m in p.terms]
    if not terms or not all(terms):
        return ()
    found: list[tuple[Atom, int]] = []
    for a, power in terms[0].items():
        least: int = min([t.get(a, 0) for t in terms]) if power > 0 else 0
        if least > 0 and a.names.isdisjoint(bound) and surely_positive(algebra, Poly({((a, 1),): 1})):
            found.append((a, least))
    return tuple(found)


def _without(p: Poly, common: Monomial) -> Poly:
    """The polynomial with factors that all its terms have taken out."""
    powers = dict(common)
    return Poly({tuple((a, n) for a, k in m if (n := k - powers.get(a, 0))): c for m, c in p.terms.items()})
