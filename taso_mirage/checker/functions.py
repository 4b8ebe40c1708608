"""Functions of normal forms: in each case of the conditions in them, with facts about them beyond
that equal operands give equal results."""

from __future__ import annotations

import math
from collections.abc import Callable

from taso_mirage.checker.forms import (
    FLOATS,
    INTS,
    MAKERS,
    ONE,
    UNIT,
    WORK,
    ZERO,
    Atom,
    Bound,
    Number,
    Poly,
    Powers,
    Term,
    bits,
    close,
    condition,
    conditions,
    constant,
    just,
    key,
    need,
    opened,
    poly,
    ratio,
    single,
    substituted,
    summed,
    total,
    variables,
)

REAL = "real"
"""The name of bags of real numbers; those of integers have their dtype, with 1 or -1 before it."""


def lifted(fn: Callable[..., Poly], *ps: Poly) -> Poly:
    """A function of polynomials, in each case of their conditions."""
    for a in conditions(*ps)[:1]:
        yes, no = (lifted(fn, *(assumed(p, a, truth) for p in ps)) for truth in (True, False))
        return just(*a) * yes + denied(just(*a)) * no
    return fn(*ps)


def assumed(p: Poly, a: Atom, truth: bool) -> Poly:
    """p where a condition holds, or does not."""
    work, before = WORK.get(), WORK.get().facts
    work.facts |= {a[1] if truth else -a[1] - 1} if a[0] == "ge" else frozenset()
    found = substituted(p, None if a[0] == "ge" else {a: poly(truth)})
    work.facts = before
    return found


def denied(p: Poly) -> Poly:
    """1 - p; of one condition the contrary one."""
    a = next((a for (_, f), _ in p.terms for a, _ in f if a[0] == "ge"), None)
    return condition(-a[1] - 1) if a and p == just(*a) else ONE - p


def exponential(p: Poly) -> Poly:
    """e^(2x + y) as (e^x)^2 e^y"""
    return lifted(lambda q: close(frozenset(), [(("exp", single(t)), c) for t, c in q.terms]), p)


def inverse(p: Poly) -> Poly:
    """1 / p, common factors apart."""

    def one(q: Poly) -> Poly:
        need(q != ZERO, "a division by zero")
        powers = [{a: e for a, e in f if variables(a).isdisjoint(b)} for (b, f), _ in q.terms]
        shared = {a: min(e.get(a, 0) for e in powers) for a in frozenset[Atom]().union(*powers)}
        apart = close(frozenset(), [(a, -e) for a, e in shared.items()]) * ratio(1, min(q.terms, key=key)[1])
        return apart if q * apart == ONE else apart * just("inv", q * apart)

    return lifted(one, p)


IDEMPOTENT = ("abs", "ceil", "floor", "round", "sign", "as")
"""Functions that are the identity on their own results; names may have a dtype behind them."""
MONOTONE = ("as", "atan", "ceil", "erf", "floor", "log", "round", "sign", "sinh", "sqrt", "tanh")
"""Functions that keep order."""
TO_WHOLE = ("ceil", "floor", "round")


def called(name: str, *ps: Poly) -> Poly:
    """A function of which little is known."""
    first = name.split()[0]

    def one(*qs: Poly) -> Poly:
        if first in IDEMPOTENT and (a := lone(qs[0])) is not None and a[:2] == ("call", name):
            return qs[0]
        if first in TO_WHOLE and is_whole(qs[0]):
            return qs[0]
        top = a_largest(qs[0]) if first in MONOTONE else None
        return just("call", name, *qs) if top is None else through(name, qs[0], *top)

    return lifted(one, *ps)


def is_whole(p: Poly) -> bool:
    """Whether a real number is surely a whole one."""

    def whole(a: Atom) -> bool:
        name = a[1].split() if a[0] == "call" else [""]
        return (a[0] in ("read", "table") and not {a[1], a[2]}.isdisjoint(INTS)) or (
            name[0] in TO_WHOLE or name[-1] in INTS
        )

    return all(not b and c.denominator == 1 and all(e > 0 and whole(a) for a, e in f) for (b, f), c in p.terms)


def a_largest(p: Poly) -> tuple[Atom, Number] | None:
    """A maximum of floats that p has as a term, and its coefficient."""
    tops = [(a, c) for (b, f), c in p.terms if not b for a, e in f if f == {(a, 1)} and a[:2] == ("max", REAL)]
    return min(tops, key=key) if tops else None


def through(name: str, p: Poly, top: Atom, c: Number) -> Poly:
    """A function that keeps order, of each member of the maximum in p; below 0 it is a minimum."""
    rest, sign = p - just(*top) * c, 1 if c > 0 else -1
    members = members_as(top[2], lambda m: valued(top[1], called(name, m * c + rest) * sign))
    return greatest(top[1], members) * sign


def lone(p: Poly) -> Atom | None:
    """The atom that p is."""
    ((b, f), c), *more = p.terms or [(UNIT, 0)]
    return next(iter(f))[0] if not more and not b and len(f) == 1 and c == 1 and next(iter(f))[1] == 1 else None


def greatest(dtype: str, values: Poly) -> Poly:
    """The largest of a formal sum of values: a sum over bound variables stands for a bag, in which
    it does not matter how often a value is. A summand of all of them comes out."""

    def one(q: Poly) -> Poly:
        if all(c > 0 for _, c in q.terms):
            q = Poly(frozenset(((b, frozenset((a, e) for a, e in f if a[0] != "size")), 1) for (b, f), _ in q.terms))
        members = [a for (_, f), _ in q.terms for a, _ in f if a[0] == "val"]
        need(0 < len(members) == len(q.terms), "a largest value of nothing")
        shared = frozenset.intersection(*(unbound(b, f) for (b, f), _ in q.terms)) if dtype == REAL else None
        if shared:
            added = Poly(shared)
            return one(members_as(q, lambda p: just("val", p - added))) + added
        if dtype == REAL and (scale := content(members)) != 1:
            return one(members_as(q, lambda p: just("val", p * ratio(1, scale)))) * scale
        if dtype != REAL and (found := of_wholes(dtype, q, members)) is not None:
            return found
        numbers = [n for n in (single_number(dtype, t) for t in q.terms) if n is not None]
        best = (min if dtype[0] == "-" else max)(numbers, default=None)
        if best is not None and dtype != REAL and best == bits(dtype.lstrip("-1"))[dtype[0] != "-"]:
            return poly(best)
        if len(numbers) > 1:
            return one(Poly(frozenset(t for t in q.terms if single_number(dtype, t) in (None, best))))
        ((b, f), _), *more = q.terms
        return members[0][1] if not more and not b and len(f) == 1 else just("max", dtype, q)

    return lifted(one, values)


def single_number(dtype: str, member: tuple[Term, Number]) -> Number | None:
    """The number that a member of a bag is, if it is there once, and none that wraps."""
    (bound, f), c = member
    value = next(iter(f))[0] if not bound and len(f) == 1 and c == 1 else ("", ZERO)
    n = constant(value[1]) if value[0] == "val" else None
    if n is None or dtype == REAL:
        return n
    low, high = bits(dtype.lstrip("-1"))
    return n if low <= n <= high else None


def content(members: list[Atom]) -> Number:
    """The largest number that divides all coefficients of the members of a bag."""
    found = [c for a in members for _, c in a[1].terms]
    above, below = math.gcd(*(c.numerator for c in found)), math.lcm(*(c.denominator for c in found))
    return ratio(above or 1, below)


def of_wholes(dtype: str, bag: Poly, members: list[Atom]) -> Poly | None:
    """The largest of whole numbers of an integer type, if all are whole."""
    tag, sign = dtype.lstrip("-1"), -1 if dtype[0] == "-" else 1
    values = {a[1]: value_of(tag, a[1]) for a in members}
    if None in values.values() or not any((a := lone(p)) is not None and a[0] == "call" for p in values):
        return None
    real = members_as(bag, lambda p: valued(REAL, (value_of(tag, p) or p) * sign))
    return just("call", f"whole {tag}", greatest(REAL, real) * sign)


def value_of(dtype: str, p: Poly) -> Poly | None:
    """An element of an integer type as a real number, if it is one that does not wrap."""
    a, n = lone(p), constant(p)
    if n is not None:
        return p if bits(dtype)[0] <= n <= bits(dtype)[1] else None
    if a is not None and a[:2] == ("call", f"whole {dtype}"):
        return Poly(a[2].terms)
    if a is not None and a[0] == "max" and a[1] in (f"1{dtype}", f"-1{dtype}"):
        members, sign = [m[1] for (_, f), _ in a[2].terms for m, _ in f if m[0] == "val"], int(a[1][: -len(dtype)])
        values = {m: value_of(dtype, m) for m in members}
        if None in values.values():
            return None
        return greatest(REAL, members_as(a[2], lambda m: valued(REAL, (value_of(dtype, m) or m) * sign))) * sign
    return p if a is not None and a[0] == "read" and a[2] == dtype else None


def unbound(bound: Bound, powers: Powers) -> frozenset[tuple[Term, Number]]:
    """The terms of a member of a bag that do not depend on its bound variables."""
    p = next(a[1] for a, _ in powers if a[0] == "val")
    return frozenset((t, c) for t, c in p.terms if variables(t).isdisjoint(bound))


def members_as(bag: Poly, fn: Callable[[Poly], Poly]) -> Poly:
    """The bag with other members for each of its own."""
    found = []
    for (b, f), c in [(opened(t), c) for t, c in bag.terms]:
        value = next(a[1] for a, _ in f if a[0] == "val")
        others = close(frozenset(), [(a, e) for a, e in f if a[0] != "val"])
        found.append(summed(others * fn(value), b) * c)
    return total(found)


def valued(dtype: str, p: Poly) -> Poly:
    """p as a member of a bag; a maximum, and one to which something is added, as its members."""

    def one(q: Poly) -> Poly:
        tops = [
            (a, c)
            for (b, f), c in q.terms
            if not b and c > 0
            for a, e in f
            if f == {(a, 1)} and a[:2] == ("max", dtype)
        ]
        if not tops or (dtype != REAL and q != just(*tops[0][0])):
            return just("val", q)
        first, scale = min(tops, key=key)
        rest = q - just(*first) * scale
        return members_as(first[2], lambda member: valued(dtype, member * scale + rest))

    return lifted(one, p)


def of_some(bag: Poly) -> Poly:
    """A bag over bound variables that do not leave it empty: members that they do not change are in
    it once."""
    found = []
    for (b, f), c in bag.terms:
        value = next((a for a, _ in f if a[0] == "val"), None)
        alone = value is not None and b and variables(value).isdisjoint(b) and c > 0
        found.append(just(*value) if alone and value is not None else single((b, f)) * c)
    return total(found)


def compared(kind: str, dtype: str, a: Poly, b: Poly) -> Poly:
    """Whether a < b ("lt") or a = b ("eq"). No sum of few indices and sizes leaves 64 bits."""
    parts = [(c, f) for p in (a, b) for (_, f), c in p.terms]
    if dtype == "int64" and all(
        -(2**16) < c < 2**16 and len(f) < 2 and all(x[0] in ("var", "size") and e == 1 for x, e in f) for c, f in parts
    ):
        return condition(b - a - 1) if kind == "lt" else condition(a - b) * condition(b - a)
    if a == b or dtype not in FLOATS:
        pair = sorted((a, b), key=key) if kind == "eq" else (a, b)
        return poly(kind == "eq") if a == b else called(f"{kind} {dtype}", *pair)
    return lifted(
        lambda d: (
            poly(n < 0 if kind == "lt" else n == 0)
            if (n := constant(d)) is not None
            else just(kind, d * ratio(1, max(abs(c) for _, c in d.terms)))
        ),
        a - b,
    )


MAKERS |= {"exp": exponential, "inv": inverse, "max": greatest}
