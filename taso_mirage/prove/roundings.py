"""Roundings to whole numbers of maxima with numbers: f(max(x, 0.3)) = f(max(x, f(0.3))).

A rounding f keeps order and whole numbers, so f(max(x, n)) = max(f(x), f(n)), and f(n) in the place
of n gives the same. So bounds between two whole numbers have one form.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.polynomials import Poly, constant_poly, plain_rational
from taso_mirage.prove.maxima import largest

Whole = Callable[[Fraction], int]


def whole_bounds(
    algebra: ScalarAlgebra, whole: Whole, p: Poly, scale: Fraction = Fraction(1), shift: Fraction = Fraction(0)
) -> Poly:
    """p with those numbers among its maxima for which scale * p + shift is whole."""
    if p.number is not None:
        n = (whole(scale * Fraction(p.number) + shift) - shift) / scale
        return constant_poly(plain_rational(n))
    added = p.terms.get((), 0)
    others = [(m, c) for m, c in p.terms.items() if m]
    (monomial, c) = others[0]
    atom, power = monomial[0]
    if len(others) > 1 or len(monomial) > 1 or power != 1 or atom.kind != "max" or any(b or e for b, e, _ in atom.args):
        return p
    inner = scale * Fraction(c), shift + scale * Fraction(added)
    top = largest(algebra, [((), (), whole_bounds(algebra, whole, q, *inner)) for _, _, q in atom.args])
    return top.scaled(c) + constant_poly(added)
