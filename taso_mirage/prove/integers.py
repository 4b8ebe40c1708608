"""Quotients and bits of machine integers in normal form."""

from __future__ import annotations

from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.functions import Division
from taso_mirage.meanings.kinds import AtomKind, atom_kind, of_dtypes
from taso_mirage.meanings.polynomials import ONE, ZERO, Atom, Poly, Rational
from taso_mirage.prove.axioms import division
from taso_mirage.prove.machine import limits, modulus, reduced, value_bounds, wrapped_value
from taso_mirage.prove.quotients import single_term

AND = "bitwise_and"
BITS = (AND, "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift")

# ---------------------------------------------------------------- quotients


def divided(algebra: ScalarAlgebra, kind: str, how: Division, p: Poly, q: Poly) -> Poly:
    """Simplify integers divided by a number: by 1, numbers smaller than the divisor, quotients of
    quotients, and remainders of numbers that differ by a multiple of the divisor."""
    inner = _alone(p, kind)
    if how.rest and inner is not None and inner.args[1] == q:
        return p
    m = q.number
    if m is not None and m < -1 and not how.floors:
        found = divided(algebra, kind, how, p, q.scaled(-1))
        return found if how.rest else found.scaled(-1)
    if m is None or m <= 0:
        return algebra.poly(kind, p, q)
    if m == 1:
        return ZERO if how.rest else p
    if _below(algebra, p, m):
        return p if how.rest else ZERO
    if how.rest and how.floors:
        p = _residue(algebra, p, int(m))
        if _below(algebra, p, m):
            return p
    if not how.rest and inner is not None and (inner.args[1].number or 0) > 0:
        return algebra.poly(kind, inner.args[0], inner.args[1].scaled(m))
    return algebra.poly(kind, p, q)


def _below(algebra: ScalarAlgebra, p: Poly, m: Rational) -> bool:
    """Whether it is surely one of 0, ..., m - 1."""
    found = value_bounds(algebra, p)
    return found.low is not None and found.high is not None and found.low >= 0 and found.high < m


def _alone(p: Poly, kind: str) -> Atom | None:
    """The atom of a kind that a polynomial is."""
    monomial, c = single_term(p)
    alone = c == 1 and len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0].kind == kind
    return monomial[0][0] if alone else None


def _residue(algebra: ScalarAlgebra, p: Poly, m: int) -> Poly:
    """A polynomial with the same remainder modulo m, without remainders by a multiple of m and
    without wraps at one."""
    total = ZERO
    for monomial, c in p.terms.items():
        if c.denominator != 1 or any(power < 0 for _, power in monomial):
            return p
        part = Poly({(): int(c) % m}) if int(c) % m else ZERO
        for a, power in monomial:
            inner = a.args[0] if _turns(a) % m == 0 else Poly({((a, 1),): 1})
            part = algebra.mul(part, algebra.power(inner, power))
        total = total + part
    return total if total == p else _residue(algebra, total, m)


def _turns(a: Atom) -> Rational:
    """The number such that an atom is its operand minus a multiple of it; 1 if there is none."""
    kind, how = atom_kind(a.kind), division(a.kind)
    if kind.wraps:
        return modulus(kind.result) or 1
    if how is None or not how.rest or "int" not in kind.result:
        return 1
    return a.args[1].number or 1


# ---------------------------------------------------------------- bits


def bits(algebra: ScalarAlgebra, of: AtomKind, *ps: Poly) -> Poly:
    """Functions that invert, shift or join bits, modulo 2^n: all by `and`, as x | y = x + y - (x &
    y)."""
    if of.name == "invert":
        return ps[0].scaled(-1) - ONE
    a, b, *others = (reduced(algebra, p, of.result) for p in ps)
    if of.name in ("left_shift", "right_shift"):
        return _shifted(algebra, of, a, b)
    both = _and(algebra, of.result, a, b)
    if of.name == AND:
        return bits(algebra, of, both, *others) if others else both
    return a + b - both.scaled(1 if of.name == "bitwise_or" else 2)


def _shifted(algebra: ScalarAlgebra, of: AtomKind, a: Poly, b: Poly) -> Poly:
    """A shift by at most as many bits as the type has: a product with, or a quotient by, a power of
    2."""
    n, m = b.number, modulus(of.result) or 0
    unsigned = limits(of.result) is not None and of.result.startswith("u")
    if n is None or not unsigned or not 0 <= n < m.bit_length() - 1:
        return algebra.poly(of_dtypes(of.name, of.operands, of.result), a, b)
    if of.name == "left_shift":
        return a.scaled(2 ** int(n))
    return _call(algebra, "floor_divide", of.result, wrapped_value(algebra, a, of.result), 2 ** int(n))


def _call(algebra: ScalarAlgebra, name: str, dtype: str, p: Poly, n: int) -> Poly:
    found: Poly = algebra.apply(of_dtypes(name, (dtype, dtype), dtype), p, Poly({(): n}))
    return found


def _and(algebra: ScalarAlgebra, dtype: str, a: Poly, b: Poly) -> Poly:
    """x & y, of operands whose negation -1 - x is not the normal one."""
    for p, other in ((a, b), (b, a)):
        if algebra.flipped(p.scaled(2) + ONE):
            return other - _and(algebra, dtype, reduced(algebra, p.scaled(-1) - ONE, dtype), other)
    parts = dict.fromkeys(_parts(dtype, a) + _parts(dtype, b))
    if ZERO in parts:
        return ZERO
    mask = next((p.number for p in parts if p.number is not None), None)
    if mask is not None and len(parts) == 2 and int(mask) & (int(mask) + 1) == 0:
        (other,) = (p for p in parts if p.number is None)
        return _call(algebra, "remainder", dtype, wrapped_value(algebra, other, dtype), int(mask) + 1)
    ordered = sorted(parts, key=lambda p: (algebra.form(p), repr(p)))
    return ordered[0] if len(ordered) == 1 else algebra.poly(of_dtypes(AND, (dtype, dtype), dtype), *ordered)


def _parts(dtype: str, p: Poly) -> list[Poly]:
    """The operands of an `and` that a polynomial is."""
    inner = _alone(p, of_dtypes(AND, (dtype, dtype), dtype))
    return [p] if inner is None else list(inner.args)
