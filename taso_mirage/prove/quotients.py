"""Quotients and roots in normal form: numbers and exponentials taken out, positive denominators
cleared, squares found."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.polynomials import ONE, ZERO, Atom, Monomial, Poly, Rational, constant_poly, plain_rational
from taso_mirage.prove.maxima import surely_nonnegative, surely_positive


def single_term(p: Poly) -> tuple[Monomial, Rational]:
    """The one term of a polynomial; nothing where there are more."""
    return next(iter(p.terms.items())) if len(p.terms) == 1 else ((), 0)


def inverse_of_sum(algebra: ScalarAlgebra, p: Poly) -> Poly:
    """1 / p with numbers and exponentials taken out; 1 / (a + b exp(x)) is noted for `fraction`."""
    e, p = algebra.shifted(p)
    outside = algebra.exp(e.scaled(-1))
    if len(p.terms) == 1:
        return algebra.mul(outside, algebra.inverse(p))
    c = Fraction(algebra.content(p))
    p = p.scaled(plain_rational(1 / c))
    atom = algebra.atom("inv", p)
    exponent = exponent_of(p)
    if exponent is not None:
        a, b = p.terms[()], sum(p.terms.values()) - p.terms[()]
        if a > 0 and b > 0:
            algebra.fractions[atom] = (a, plain_rational(b), exponent)
    return algebra.mul(outside, Poly({((atom, 1),): plain_rational(1 / c)}))


def exponent_of(p: Poly) -> Poly | None:
    """x of a + b exp(x)."""
    if len(p.terms) != 2 or () not in p.terms:
        return None
    (other,) = (m for m in p.terms if m)
    alone: Atom = other[0][0]
    found: Poly | None = alone.args[0] if len(other) == 1 and alone.kind == "exp" else None
    return found


def fraction(algebra: ScalarAlgebra, m: Monomial) -> Poly | None:
    """Apply exp(x) / (a + b exp(x)) = (1 - a / (a + b exp(x))) / b, also for multiples of x; None
    if it does not apply."""
    held = next(((a, n) for a, n in m if a in algebra.fractions and n > 0), None)
    exponent = next((a for a, _ in m if a.kind == "exp"), None)
    if held is None or exponent is None:
        return None
    a, b, x = algebra.fractions[held[0]]
    of: Poly = exponent.args[0]
    ratios = [Fraction(of.terms.get(k, 0)) / c for k, c in x.terms.items()]
    one = Poly({((held[0], 1),): 1})
    rest = Poly({tuple(y for y in m if y[0] is not exponent and y[0] is not held[0]): 1})
    rest = algebra.mul(rest, algebra.power(one, held[1] - 1))
    algebra.indices.step(5)
    if min(ratios) >= 1:
        left = algebra.mul(rest, algebra.exp(of - x))
        return algebra.mul(left, (ONE - one.scaled(a)).scaled(plain_rational(1 / Fraction(b))))
    if max(ratios) < 0:
        more = algebra.mul(algebra.mul(rest, algebra.exp(of + x)), one).scaled(plain_rational(Fraction(b)))
        return (algebra.mul(rest, algebra.exp(of)) - more).scaled(plain_rational(1 / Fraction(a)))
    return None


def factored(algebra: ScalarAlgebra, p: Poly) -> Poly:
    """Write c - c a / (a + b exp(x)) as the product c b exp(x) / (a + b exp(x)); other polynomials
    are unchanged."""
    if not algebra.fractions or len(p.terms) != 2 or () not in p.terms:
        return p
    (other,) = (m for m in p.terms if m)
    held = algebra.fractions.get(other[0][0]) if len(other) == 1 and other[0][1] == 1 else None
    c = p.terms[()]
    if held is None or p.terms[other] != -c * held[0]:
        return p
    return Poly({algebra.times(other, ((algebra.atom("exp", held[2]), 1),)): c * held[1]})


def without_factor(m: Monomial, a: Atom, power: int) -> Monomial:
    """A product without one of its factors, to a power."""
    return tuple((x, n - power if x is a else n) for x, n in m if x is not a or n != power)


def cleared(algebra: ScalarAlgebra, p: Poly) -> Poly | None:
    """A polynomial with the same zeros and signs, without a quotient 1 / q of a positive q; None if
    there is no such quotient."""
    found = next((a for m in p.terms for a, n in m if a.kind == "inv" and n > 0), None)
    if found is None or not surely_positive(algebra, found.args[0]):
        return None
    powers = [dict(m).get(found, 0) for m in p.terms]
    total = ZERO
    for (m, c), n in zip(p.terms.items(), powers, strict=True):
        rest = Poly({without_factor(m, found, n) if n else m: c})
        total = total + algebra.mul(rest, algebra.power(found.args[0], max(powers) - n))
    return total


def square_root(algebra: ScalarAlgebra, p: Poly) -> Poly | None:
    """q of p = q^2, found term by term from one that is a square; None where there is none."""
    first = next((m for m, c in p.terms.items() if all(n % 2 == 0 for _, n in m) and _whole_root(c) is not None), None)
    count = len(p.terms)
    if first is None or count < 3 or count > SQUARE:
        return None
    lead = tuple((a, n // 2) for a, n in first)
    root = Poly({lead: _whole_root(p.terms[first]) or 1})
    for m, c in p.terms.items():
        powers = dict(m)
        if m is not first and all(powers.get(a, 0) >= n for a, n in lead):
            rest = tuple((a, k) for a, n in powers.items() if (k := n - dict(lead).get(a, 0)))
            if rest != lead and all(2 * n <= _degree(p, a) for a, n in rest):
                root = root + Poly({tuple(sorted(rest)): plain_rational(Fraction(c) / (2 * root.terms[lead]))})
    return root if algebra.mul(root, root) == p else None


SQUARE = 10
"""Sums of more terms are not tried as squares."""


def _degree(p: Poly, a: Atom) -> int:
    return max(dict(m).get(a, 0) for m in p.terms)


def _whole_root(c: Rational) -> int | None:
    root = isqrt(int(c)) if c > 0 and c.denominator == 1 else 0
    return root if root and root * root == c else None


def sqrt(algebra: ScalarAlgebra, p: Poly) -> Poly:
    """Multiplicative; as a total function it is sqrt(|x|), so sqrt(x)^2 is not x."""
    if len(p.terms) != 1:
        c = algebra.content(p) if p.terms else 0
        root = _rational_root(c)
        if root is None or root == 0:
            return _new_root(algebra, p) if p.terms else ZERO
        p = p.scaled(plain_rational(1 / Fraction(c)))
        base = square_root(algebra, p)
        if base is not None:
            return algebra.largest([((), (), base.scaled(root)), ((), (), base.scaled(-root))])
        return _new_root(algebra, p).scaled(root)
    ((monomial, c),) = p.terms.items()
    root = _rational_root(c)
    result = constant_poly(root) if root is not None else algebra.poly("sqrt", constant_poly(c))
    for a, power in monomial:
        if a.kind == "exp":
            one, power = algebra.exp(a.args[0].scaled(Fraction(1, 2))), 1
        elif a.kind == "inv":
            one = algebra.inverse(algebra.sqrt(algebra.power(a.args[0], power)))
            power = 1
        elif power > 1:
            whole = algebra.power(_magnitude(algebra, Poly({((a, 1),): 1})), power // 2)
            one, power = (algebra.mul(whole, _new_root(algebra, Poly({((a, 1),): 1}))) if power % 2 else whole), 1
        else:
            one = _new_root(algebra, Poly({((a, 1),): 1}))
        one = algebra.inverse(one) if power < 0 else one
        result = algebra.mul(result, algebra.power(one, abs(power)))
    return result


def _new_root(algebra: ScalarAlgebra, p: Poly) -> Poly:
    root = algebra.poly("sqrt", p)
    if surely_nonnegative(algebra, p):
        algebra.squares[next(iter(root.terms))[0][0]] = p
    return root


def _magnitude(algebra: ScalarAlgebra, p: Poly) -> Poly:
    """|p|"""
    return algebra.largest([((), (), p), ((), (), p.scaled(-1))])


def _rational_root(c: Rational) -> Rational | None:
    """The exact square root of a rational, if it has one."""
    f = Fraction(c)
    if f < 0:
        return None
    a, b = isqrt(f.numerator), isqrt(f.denominator)
    return plain_rational(Fraction(a, b)) if a * a == f.numerator and b * b == f.denominator else None
