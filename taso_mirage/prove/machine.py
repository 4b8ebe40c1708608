"""Machine integers in proofs: the values that a normal form can have, and wraps.

An element of an integer dtype of n bits is a polynomial with integer coefficients that stands for
its value modulo 2^n. Sums and products therefore need no reduction, and a reader of the value calls
`wrapped_value` first. Sizes and positions are ordinary numbers with the bounds of `sizes`: a value
computed from them wraps, and is rounded as a float, if those bounds do not fit the type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from math import inf, isfinite, lcm, nextafter

import numpy as np

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Literal, is_float, numpy_dtype
from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.conditions import Unprovable
from taso_mirage.meanings.intervals import Interval
from taso_mirage.meanings.kinds import atom_kind, conversion, rounding, wrapping
from taso_mirage.meanings.polynomials import (
    ZERO,
    Atom,
    Monomial,
    Poly,
    Rational,
    constant_poly,
    infinite,
    plain_rational,
)
from taso_mirage.meanings.sizes import monomial_bounds, size_bounds
from taso_mirage.prove.axioms import has
from taso_mirage.prove.cases import numeral
from taso_mirage.prove.folds import inhabited

FLAGS = 4
"""The number of factors of 0 or 1 that are distinguished when a polynomial is bounded."""
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""The most bits of integers that are numbers of the float type."""
_WIDTH = {"float8_e4m3fn": 0, "float8_e5m2": 0, "float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}


# ---------------------------------------------------------------- dtypes


@cache
def limits(dtype: str) -> Interval | None:
    """The values of an integer dtype or of bool; None for all others."""
    if dtype == "bool":
        return Interval(0, 1)
    unsigned = dtype.startswith("uint")
    digits = dtype.removeprefix("uint" if unsigned else "int")
    if not dtype.startswith(("int", "uint")) or not digits.isdigit():
        return None
    n = int(digits)
    return Interval(0, 2**n - 1) if unsigned else Interval(-(2 ** (n - 1)), 2 ** (n - 1) - 1)


@cache
def modulus(dtype: str) -> int | None:
    """2^n of an integer dtype of n bits; None for all others: bool does not wrap."""
    return None if dtype == "bool" or limits(dtype) is None else 2 ** int(dtype.lstrip("uint"))


def modelled_dtype(dtype: str) -> str:
    """The dtype, if proofs know its arithmetic."""
    if limits(dtype) is None and not is_float(dtype):
        raise Unprovable(f"arithmetic of {dtype}")
    return dtype


def widens(old: str, new: str) -> bool:
    """Whether every number of one float type is one of the other."""
    return old == new or (old in _WIDTH and _WIDTH[old] < _WIDTH.get(new, 0))


# ---------------------------------------------------------------- bounds


def value_bounds(algebra: ScalarAlgebra, p: Poly) -> Interval:
    """The bounds of a polynomial by the ranges of its atoms; factors of 0 or 1 are
    distinguished."""
    if any(a.kind == "read" and power % 2 and is_float(a.args[0][0]) for m in p.terms for a, power in m):
        return Interval()
    return _bounds(algebra, p, FLAGS)


def _bounds(algebra: ScalarAlgebra, p: Poly, flags: int) -> Interval:
    flag = next((a for m in p.terms if len(m) > 1 for a, _ in m if is_flag(a)), None) if flags else None
    if flag is not None:
        yes, no = assumed(p, flag, True), assumed(p, flag, False)
        return _bounds(algebra, yes, flags - 1).hull(_bounds(algebra, no, flags - 1))
    total = Interval(0, 0)
    for m, c in p.terms.items():
        total = total + _monomial(algebra, m).scaled(c)
        if total.low is None and total.high is None:
            break
    return total


def is_flag(a: Atom) -> bool:
    """Whether an atom is 0 or 1."""
    if a.kind == "sum":
        return not a.args[0] and not a.args[2]
    return (
        a.kind in ("positive", "zero")
        or atom_kind(a.kind).result == "bool"
        or (a.kind == "read" and a.args[0][0] == "bool")
    )


def assumed(p: Poly, flag: Atom, value: bool) -> Poly:
    """The polynomial where one factor is known to be 1 or 0."""
    total = ZERO
    for m, c in p.terms.items():
        rest = tuple(x for x in m if x[0] is not flag)
        if value or len(rest) == len(m):
            total = total + Poly({rest: c})
    return total


def _monomial(algebra: ScalarAlgebra, m: Monomial) -> Interval:
    sizes = tuple([(a.args[0], power) for a, power in m if a.kind == "size" and power > 0])
    result = monomial_bounds(algebra.indices, sizes)
    for a, power in m:
        if a.kind != "size" or power < 0:
            result = result * _atom(algebra, a).power(power)
    return result


def _atom(algebra: ScalarAlgebra, a: Atom) -> Interval:
    found = algebra.ranges.get(a)
    if found is None:
        found = algebra.ranges[a] = _new(algebra, a)
    return found


def _new(algebra: ScalarAlgebra, a: Atom) -> Interval:
    if a.kind == "read":
        return _of_read(*a.args[0])
    if a.kind in ("size", "floor"):
        return size_bounds(algebra.indices, symbol(a.args[0]) if a.kind == "size" else a.args[0])
    if is_flag(a):
        return Interval(0, 1)
    if a.kind in ("exp", "sqrt"):
        return Interval(0)
    if a.kind == "inv":
        low = value_bounds(algebra, a.args[0]).low
        return Interval(0) if low is not None and low >= 0 else Interval()
    if a.kind == "max":
        return _of_max(algebra, a)
    if a.kind == "sum":
        return _of_sum(algebra, a)
    result = atom_kind(a.kind).result
    if atom_kind(a.kind).converts and is_float(result):
        found = value_bounds(algebra, a.args[0])
        return Interval(_rounded(found.low, result, -inf), _rounded(found.high, result, inf))
    if result:
        found, span = algebra.span(a.kind, a.args), limits(result)
        return span if span is not None and found == Interval() else found
    return Interval()


def _rounded(bound: Rational | None, dtype: str, outward: float) -> Rational | None:
    """A bound of a rounded value, because rounding preserves order; None if it is infinite."""
    exact = Fraction(bound or 0)
    if bound is None or abs(exact) >= 2**1000:
        return None
    double = float(exact)
    if Fraction(double) != exact and (Fraction(double) < exact) == (outward > 0):
        double = nextafter(double, outward)
    with np.errstate(all="ignore"):
        found = float(np.float64(double).astype(numpy_dtype(dtype)))
    return plain_rational(Fraction(found)) if isfinite(found) else None


def _of_read(dtype: str, of: object) -> Interval:
    span = limits(dtype)
    if span is not None and isinstance(of, Literal):
        values = of.numpy()
        return Interval(int(values.min()), int(values.max()))
    return span or Interval()


def _of_max(algebra: ScalarAlgebra, a: Atom) -> Interval:
    """A branch over a range that may be empty gives only an upper bound."""
    every = [value_bounds(algebra, p) for _, _, p in a.args]
    sure = [
        i.low
        for i, (bound, conditions, _) in zip(every, a.args, strict=True)
        if i.low is not None and inhabited(algebra.indices, list(bound), list(conditions))
    ]
    tops = [i.high for i in every if i.high is not None]
    return Interval(max(sure, default=None), max(tops) if len(tops) == len(every) else None)


def _of_sum(algebra: ScalarAlgebra, a: Atom) -> Interval:
    bound, _, body = a.args
    one = _monomial(algebra, body)
    count: Rational | None = 1
    for b in bound:
        extent = size_bounds(algebra.indices, algebra.indices.extents[b]).high
        count = count * extent if count is not None and extent is not None else None
    low = 0 if one.low is not None and one.low >= 0 else None if one.low is None or count is None else one.low * count
    high: Rational | None = 0 if one.high is not None and one.high <= 0 else None
    if one.high is not None and one.high > 0 and count is not None:
        high = plain_rational(one.high * count)
    return Interval(low, high)


def integral(p: Poly) -> bool:
    """Whether a polynomial is surely an integer."""
    return all(c.denominator == 1 and all(power > 0 and _integer(a) for a, power in m) for m, c in p.terms.items())


def _integer(a: Atom) -> bool:
    if a.kind == "read":
        return limits(a.args[0][0]) is not None
    if a.kind == "max":
        return all(integral(p) for _, _, p in a.args)
    if a.kind in ("sum", "prod"):
        return all(power > 0 and _integer(x) for x, power in a.args[2])
    if a.kind in ("size", "floor", "positive", "zero") or has(a.kind, "whole"):
        return True
    if atom_kind(a.kind).converts and atom_kind(a.kind).result in ("bfloat16", "float32", "float64"):
        return integral(a.args[0])  # whole numbers are rounded to whole numbers, which these types hold
    return limits(atom_kind(a.kind).result) is not None


# ---------------------------------------------------------------- wrapping


def reduced(algebra: ScalarAlgebra, p: Poly, dtype: str) -> Poly:
    """The value reduced modulo 2^n, with coefficients nearest to 0 and without inner wraps that an
    outer wrap repeats."""
    m = modulus(dtype)
    if m is None or infinite(p):
        return p
    if any(c.denominator != 1 for c in p.terms.values()):
        raise Unprovable(f"a fraction as {dtype}")
    p = _unwrapped(algebra, p, m)
    half = m // 2
    if all(-half <= c < half for c in p.terms.values()):
        return p
    return Poly({k: int(v) for k, c in p.terms.items() if (v := (c + half) % m - half)})


def _unwrapped(algebra: ScalarAlgebra, p: Poly, m: int) -> Poly:
    """wrap(q) is q, modulo its own 2^n and all smaller ones."""
    if not any(_wraps(a, m) for k in p.terms for a, _ in k):
        return p
    total = ZERO
    for k, c in p.terms.items():
        part = Poly({tuple(x for x in k if not _wraps(x[0], m)): c})
        for a, power in k:
            if _wraps(a, m):
                part = algebra.mul(part, algebra.power(a.args[0], power))
        total = total + part
    return _unwrapped(algebra, total, m)


def _wraps(a: Atom, m: int) -> bool:
    kind = atom_kind(a.kind)
    return kind.wraps and (modulus(kind.result) or 0) >= m


def wrapped_value(algebra: ScalarAlgebra, p: Poly, dtype: str) -> Poly:
    """The value itself: the polynomial, possibly shifted by a multiple of 2^n, if it certainly fits
    its dtype; otherwise an atom."""
    m, span = modulus(dtype), limits(dtype)
    if m is None or span is None or infinite(p):
        return p
    low, high = span.low or 0, span.high or 0
    found = _span(algebra, p)
    if found.low is not None and found.high is not None:
        shift = (found.low - low) // m * m
        if found.high - shift <= high:
            return p - constant_poly(shift) if shift else p
    return algebra.poly(wrapping(dtype), reduced(algebra, p, dtype))


def _span(algebra: ScalarAlgebra, p: Poly) -> Interval:
    """The bounds of an integer; a difference of sizes and positions may be known not to be
    negative."""
    found = value_bounds(algebra, p)
    e = None if found.low is None or found.low >= 0 else algebra.as_dim(p)
    return found if e is None or not algebra.indices.nonnegative(e) else Interval(0, found.high)


def filling(algebra: ScalarAlgebra, value: float, dtype: str) -> Poly:
    """The number that pads a tensor: integers are padded with its whole part."""
    if is_float(dtype):
        return numeral(value)
    whole = int(value != 0) if dtype == "bool" else int(value)
    return reduced(algebra, numeral(whole), dtype)


def values(algebra: ScalarAlgebra, ps: Sequence[Poly], dtypes: Sequence[str]) -> list[Poly]:
    return [wrapped_value(algebra, p, dtype) for p, dtype in zip(ps, dtypes, strict=True)]


# ---------------------------------------------------------------- conversions


def to_integer(algebra: ScalarAlgebra, p: Poly, old: str, new: str) -> Poly:
    """Convert to an integer dtype: modular from integers; from a float the identity on integers
    that both types represent, otherwise unknown."""
    wide, narrow = modulus(old), modulus(new)
    if old == "bool":
        return p
    if wide is not None and narrow is not None:
        return reduced(algebra, p if narrow <= wide else wrapped_value(algebra, p, old), new)
    came = _integer_in_float(algebra, p)
    if came is not None:
        return to_integer(algebra, *came, new)
    if integral(p) and algebra.as_dim(p) in (None, p.number) and _inside(algebra, p, new, DIGITS.get(old, 0)):
        return reduced(algebra, p, new)
    return algebra.poly(conversion(old, new), p)


def _integer_in_float(algebra: ScalarAlgebra, p: Poly) -> tuple[Poly, str] | None:
    """The size or position, and its dtype, that became the float p without a loss."""
    ((monomial, c),) = p.terms.items() if len(p.terms) == 1 else (((), 0),)
    if c != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return None
    kind, inner = atom_kind(monomial[0][0].kind), monomial[0][0].args
    if not kind.converts or limits(kind.operands[0]) is None or not representable(algebra, inner[0], kind.result):
        return None
    return inner[0], kind.operands[0]


def _inside(algebra: ScalarAlgebra, p: Poly, dtype: str, digits: int) -> bool:
    found, span = value_bounds(algebra, p), limits(dtype) or Interval()
    if found.low is None or found.high is None or span.low is None or span.high is None:
        return False
    low, high = max(span.low, -(2**digits)), min(span.high, 2**digits)
    return bool(low <= found.low and found.high <= high)


def to_float(algebra: ScalarAlgebra, p: Poly, old: str, new: str) -> Poly:
    """Convert to a float: exact if the type certainly represents the number, otherwise a function
    of it (a rounding, the same from all floats). This includes sizes; the counts of definitions are
    real numbers."""
    if not is_float(old):
        p = wrapped_value(algebra, p, old)
        counts = p.number is None and algebra.as_dim(p) is not None
        exact = old == "bool" or (not counts and representable(algebra, p, new))
        if not exact and not counts and new in ("float32", "float64"):  # a single rounding, as from a float
            return algebra.apply(rounding(new), p)
        return p if exact else algebra.poly(conversion(old, new), p)
    if widens(old, new) or representable(algebra, p, new):
        return p
    return algebra.apply(rounding(new), p)


def counted_float(algebra: ScalarAlgebra, p: Poly, dtype: str) -> Poly:
    """A float that was computed from integers alone: the number if its type certainly represents
    it, otherwise a function of it, so that lost digits stay lost.

    Others are real numbers: products with fractions, quotients of numbers that are cut between
    bounds (they are rounded to quantized numbers), counts of the definitions (of sizes alone), and
    rounded floats without bounds.
    """
    digits = DIGITS.get(dtype)
    if digits is None or p.number is not None or infinite(p) or not _counted(algebra, p):
        return p
    common = lcm(*(Fraction(c).denominator for c in p.terms.values()))
    if common & (common - 1) == 0 and (common > 1 or representable(algebra, p, dtype)):
        return p
    if common > 1 and any(a.kind == "max" for m in p.terms for a, _ in m):  # values cut by numbers
        return p
    found = value_bounds(algebra, p)
    if (found.low is None or found.high is None) and any(has(a.kind, "whole") for a in _inside_of(p)):
        return p
    return algebra.apply(rounding(dtype), p)


def _counted(algebra: ScalarAlgebra, p: Poly) -> bool:
    """Whether it is made of integers, some of which are data or were converted."""
    atoms = list(_inside_of(p))
    if not any(a.kind not in ("size", "floor", "sum") for a in atoms):
        return False
    return all(_integer(a) or _integer_in_float(algebra, Poly({((a, 1),): 1})) is not None for a in atoms)


def _inside_of(p: Poly) -> Iterator[Atom]:
    """The atoms that sums, maxima and quotients are made of."""
    for a in (a for m in p.terms for a, _ in m):
        match a.kind:
            case "sum" | "prod":
                yield from _inside_of(Poly({a.args[2]: 1}))
            case "max":
                yield from (inner for _, _, q in a.args for inner in _inside_of(q))
            case "inv":
                yield from _inside_of(a.args[0])
            case _:
                yield a


def _fits(algebra: ScalarAlgebra, p: Poly, dtype: str) -> bool:
    digits, found = DIGITS.get(dtype), value_bounds(algebra, p)
    if digits is None or found.low is None or found.high is None:
        return False
    return bool(max(-found.low, found.high) <= 2**digits)


def representable(algebra: ScalarAlgebra, p: Poly, dtype: str) -> bool:
    """Whether a real number is surely one of a float type."""
    if p.number is not None:
        with np.errstate(all="ignore"):
            rounded = float(np.float64(p.number).astype(numpy_dtype(dtype)))
        return isfinite(rounded) and bool(Fraction(rounded) == Fraction(p.number))
    if integral(p) and _fits(algebra, p, dtype):
        return True
    ((monomial, c),) = p.terms.items() if len(p.terms) == 1 else (((), 0),)
    if c not in (1, -1) or len(monomial) != 1 or monomial[0][1] != 1:
        return False
    a = monomial[0][0]
    if a.kind == "read":
        return widens(a.args[0][0], dtype)
    if a.kind == "max":
        return all(representable(algebra, q, dtype) for _, _, q in a.args)
    kind = atom_kind(a.kind)
    return kind.converts and widens(kind.result, dtype)
