"""Normal forms of the checker: polynomials over atoms, conditions on integers, and sums over bound
index variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import chain, islice, permutations, product
from typing import Any, TypeAlias

from taso_mirage.errors import Unsupported

STEPS, LENGTH, BITS = 12_000, 100_000, 4096  # limits: terms multiplied, characters of a text, bits of a coefficient
FLOATS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
INTS = [f"{sign}int{n}" for sign in ("u", "") for n in (8, 16, 32, 64)]
Atom: TypeAlias = tuple[Any, ...]  # a kind and its parts; ("var", (height, number), extent) runs over 0 <= var < extent
Number: TypeAlias = int | Fraction
"""Exact. Whole numbers are ints, which are faster: see `number`."""
Powers: TypeAlias = frozenset[tuple[Atom, Number]]
Bound: TypeAlias = frozenset[Atom]
Term: TypeAlias = tuple[Bound, Powers]


@dataclass
class Work:
    """One check: its budget, polynomials known to be >= 0, and whether sizes are taken to be legal
    (on the left)."""

    steps: int = STEPS
    names: int = 0
    facts: frozenset[Poly] = frozenset()
    trusted: bool = True
    known: dict[Any, bool] = field(default_factory=dict)


WORK: ContextVar[Work] = ContextVar("WORK")


def need(true: bool, reason: str) -> None:
    if not true:
        raise Unsupported(reason)


def spend(steps: int = 1) -> None:
    WORK.get().steps -= steps
    need(WORK.get().steps >= 0, "the equation is too large for this checker")


def number(x: Number) -> Number:
    """x as an int if it is whole, else as a fraction."""
    return int(x) if x.denominator == 1 else x


def ratio(a: Number, b: Number) -> Number:
    return number(Fraction(a) / b)


# ---------------------------------------------------------------- polynomials
@dataclass(frozen=True)
class Poly:
    """Terms and their coefficients."""

    terms: frozenset[tuple[Term, Number]]

    def __add__(self, other: Poly | Number) -> Poly:
        others = poly(other).terms
        return collected([*self.terms, *others]) if self.terms and others else Poly(self.terms or others)

    def __mul__(self, other: Poly | Number) -> Poly:
        if not isinstance(other, Poly):
            return self if other == 1 else collected([(t, a * other) for t, a in self.terms])
        if ONE in (self, other):
            return other if self == ONE else self
        return collected(m for t, a in self.terms for u, b in other.terms for m in times(t, u, a * b))

    def __neg__(self) -> Poly:
        return self * -1

    def __sub__(self, other: Poly | Number) -> Poly:
        return self + poly(other) * -1

    def __pow__(self, e: Number) -> Poly:
        (bound, f), c = next(iter(self.terms)) if len(self.terms) == 1 else (UNIT, 0)
        if e == 1 or (c == 1 and not bound):
            return self if e == 1 else close(bound, [(a, n * e) for a, n in f])
        need(e == int(e) and -64 <= e <= 64, f"a power of {e}")
        return reduce(Poly.__mul__, [self if e > 0 else MAKERS["inv"](self)] * abs(int(e)), ONE)


def collected(pairs: Iterable[tuple[Term, Number]]) -> Poly:
    total: dict[Term, Number] = {}
    for term, c in pairs:
        total[term] = total.get(term, 0) + c
    need(all(c.numerator.bit_length() + c.denominator.bit_length() < BITS for c in total.values()), "huge numbers")
    return Poly(frozenset([(t, number(c)) for t, c in total.items() if c]))


def poly(x: Poly | Number) -> Poly:
    return x if isinstance(x, Poly) else Poly(frozenset({(UNIT, number(x))} if x else ()))


UNIT: Term = (frozenset(), frozenset())
ZERO, ONE = poly(0), poly(1)


def single(t: Term) -> Poly:
    return Poly(frozenset({(t, 1)}))


def just(*atom: Any) -> Poly:
    return single((frozenset(), frozenset({(atom, 1)})))


def total(ps: Iterable[Poly]) -> Poly:
    return collected([pair for p in ps for pair in p.terms])


def multiplied(ps: Iterable[Poly]) -> Poly:
    return reduce(Poly.__mul__, ps, ONE)


def fresh(extent: Poly) -> Atom:
    WORK.get().names += 1
    return ("var", (0, WORK.get().names), extent)


def constant(p: Poly) -> Number | None:
    return sum(c for _, c in p.terms) if all(t == UNIT for t, _ in p.terms) else None


def times(t: Term, u: Term, c: Number) -> Iterable[tuple[Term, Number]]:
    if UNIT in (t, u):
        return [(u if t == UNIT else t, c)]
    (v, f), (w, g) = opened(t), opened(u)
    return [(m, c * a) for m, a in close(v | w, [*f, *g]).terms]


@lru_cache(20_000)
def variables(x: Any) -> Bound:
    """All index variables in x, free and bound."""
    if isinstance(x, Poly) or (isinstance(x, tuple) and x[:1] == ("var",)):
        return variables(x.terms) if isinstance(x, Poly) else variables(x[2]) | {x}
    return frozenset().union(*(variables(y) for y in x if isinstance(y, tuple | frozenset | Poly)))


@lru_cache(20_000)
def key(x: Any) -> str:
    """A text that decides orders; of variables the newer one is behind."""
    if isinstance(x, int):
        return f"{x:09}"
    if isinstance(x, Poly | frozenset):
        return "{" + ";".join(sorted(map(key, x.terms if isinstance(x, Poly) else x))) + "}"
    return "(" + ",".join(map(key, x)) + ")" if isinstance(x, tuple) else repr(x)


def rename(x: Any, names: Mapping[Atom, Atom]) -> Any:
    """x with other variables. Bound ones inside have lower heights, so that none is caught."""
    if not isinstance(x, tuple | frozenset | Poly) or variables(x).isdisjoint(names):
        return x
    if isinstance(x, Poly) or (isinstance(x, tuple) and x in names):
        return Poly(rename(x.terms, names)) if isinstance(x, Poly) else names[x]
    return type(x)(rename(y, names) for y in x)


def opened(term: Term) -> Any:
    """A term with new names for its bound variables."""
    return rename(term, {v: fresh(v[2]) for v in term[0]}) if term[0] else term


def atoms(x: Any, kind: str) -> Iterator[Atom]:
    """All atoms of a kind in x."""
    if isinstance(x, tuple | frozenset | Poly):
        yield from [x] if isinstance(x, tuple) and x[:1] == (kind,) else []
        for y in x.terms if isinstance(x, Poly) else x:
            yield from atoms(y, kind)


# ---------------------------------------------------------------- terms: conditions, and bound variables
def close(bound: Bound, factors: Iterable[tuple[Atom, Number]]) -> Poly:
    """The sum of a product over bound variables, in normal form."""
    spend()
    powers: dict[Atom, Number] = {}
    for a, e in factors:
        powers[a] = 1 if boolean(a) else powers.get(a, 0) + e
    powers = {a: number(e) for a, e in powers.items() if e}
    for c in sorted((a for a in powers if a[0] == "ge"), key=key):
        others = WORK.get().facts | {a[1] for a in powers if a[0] == "ge" and a != c}
        if holds(-c[1] - 1, others):
            return ZERO
        if holds(c[1], others):
            del powers[c]
    for v in sorted(bound, key=key):
        if (found := without(v, bound, frozenset(powers.items()))) is not None:
            return found
    return single(named(bound, frozenset(powers.items())))


def without(v: Atom, bound: Bound, powers: Powers) -> Poly | None:
    """Remove the bound variable v from a sum, or give it a simpler range; None if it stays."""
    extent, others, n = v[2], bound - {v}, constant(v[2])
    if n is not None and n <= 1:
        return summed(substituted(single((frozenset(), powers)), {v: ZERO}), others) if n == 1 else ZERO
    if v not in variables(powers):
        return close(others, powers) * poly(extent)
    outer = WORK.get().facts | {a[1] for a, _ in powers if a[0] == "ge" and variables(a).isdisjoint(bound)}
    for c in sorted((a for a, _ in powers if a[0] == "ge" and v in variables(a)), key=key):
        slope, rest = linear(c[1], v)
        at = rest * -slope
        if abs(slope) != 1 or v in variables(rest):
            continue
        if (("ge", -c[1]), 1) in powers:  # v = at
            rest = substituted(single((frozenset(), powers)), {v: at})
            return summed(rest * condition(at) * condition(extent - 1 - at), others)
        start, size = (at, extent - at) if slope == 1 else (ZERO, at + 1)  # v >= at, or v <= at
        if not variables(at) and all(holds(p, outer) for p in (start, size, extent - start - size)):
            w = fresh(size)
            return summed(substituted(single((frozenset(), powers)), {v: just(*w) + start}), others | {w})
    cut = split(v, powers)
    return None if cut is None else summed(substituted(single((frozenset(), powers)), {v: cut[0]}), others | cut[1])


def split(v: Atom, x: Any) -> tuple[Poly, Bound] | None:
    """v as d * high + low, if x divides something with v by a d of which the extent of v is a
    multiple."""
    for _, above, below in sorted(set(atoms(x, "div")), key=key):
        slope, _ = linear(above, v)
        stride = divided(below, poly(slope)) if slope > 0 else None
        count = divided(v[2], stride) if stride else None
        if stride and count and ONE not in (stride, count):
            high, low = fresh(count), fresh(stride)
            return just(*high) * stride + just(*low), frozenset({high, low})
    return None


def linear(p: Poly, v: Atom) -> tuple[Number, Poly]:
    """p = slope * v + rest"""
    slope = next((c for (b, f), c in p.terms if not b and f == frozenset({(v, 1)})), 0)
    return slope, p - just(*v) * slope


def summed(p: Poly, bound: Bound) -> Poly:
    """The sum of p over bound variables."""
    return total(close(own | bound, f) * c for (own, f), c in [(opened(t), c) for t, c in p.terms])


def named(bound: Bound, powers: Powers) -> Term:
    """The term, with names of bound variables that do not depend on how it came about."""
    if not bound:
        return bound, powers
    height = 1 + max(v[1][0] for v in variables(powers) | bound)
    blank = {v: ("var", (0, -1), v[2]) for v in bound}
    marks = {v: key(rename(powers, {**blank, v: ("var", (0, -2), v[2])})) for v in bound}
    groups = [[v for v in sorted(bound, key=key) if marks[v] == m] for m in sorted(set(marks.values()))]
    orders = (chain(*order) for order in islice(product(*map(permutations, groups)), 24))
    choices = [{v: ("var", (height, i), v[2]) for i, v in enumerate(order)} for order in orders]
    best = min(choices, key=lambda names: key(rename(powers, names)))
    return frozenset(best.values()), rename(powers, best)


def rebuilt(atom: Atom, by: Mapping[Atom, Poly] | None) -> Poly:
    """The atom with polynomials for variables; with None, simplified by the known facts."""
    if atom[0] in ("var", "size") or (by is not None and (atom in by or variables(atom).isdisjoint(by))):
        return just(*atom) if by is None else by.get(atom, just(*atom))
    parts = [substituted(part, by) if isinstance(part, Poly) else part for part in atom[1:]]
    return MAKERS[atom[0]](*parts) if atom[0] in MAKERS else just(atom[0], *parts)


def substituted(p: Poly, by: Mapping[Atom, Poly] | None) -> Poly:
    opens = [(opened(t), c) for t, c in p.terms]
    return total(summed(multiplied(rebuilt(a, by) ** e for a, e in f), b) * c for (b, f), c in opens)


# ---------------------------------------------------------------- integers
RANGED = ("var", "place")
"""Kinds of atoms that run over 0 <= atom < their extent: variables, and positions that are read."""


def holds(p: Poly, facts: frozenset[Poly]) -> bool:
    """Whether p >= 0 follows, for index variables in their ranges and sizes of at least 1."""
    if (n := constant(p)) is not None and (n >= 0 or not facts):
        return n >= 0
    if (found := WORK.get().known.get((p, facts))) is None:
        found = follows(p, facts) or any(holds(q, facts) for q in reduced(p, facts))
        WORK.get().known[p, facts] = found
    return found


def follows(p: Poly, facts: frozenset[Poly]) -> bool:
    """Whether p >= 0 follows from at most two of the facts."""
    return remembered(p) or any(remembered(p - f) or any(remembered(p - f - g) for g in facts) for f in facts)


def remembered(p: Poly) -> bool:
    """`least`, once in a check."""
    known = WORK.get().known
    if p not in known:
        known[p] = least(p)
    return known[p]


def least(p: Poly) -> bool:
    """Whether p >= 0 with variables at the end of their range, and sizes as 1 + n with n at least
    0. A whole number above -1 is not below 0."""
    whole = all(c.denominator == 1 for _, c in p.terms)
    for _ in range(4):
        ends = [at_end(t, c) for t, c in p.terms]
        if any(end is None for end in ends):
            return False
        p = total(end for end in ends if end is not None)
    lifted = total(multiplied([poly(c), *((just(*a) + 1) ** e for a, e in f)]) for (_, f), c in p.terms)
    sizes = all(a[0] == "size" for (_, f), _ in p.terms for a, _ in f)
    return sizes and all(c >= 0 or (whole and t == UNIT and c > -1) for t, c in lifted.terms)


def at_end(term: Term, c: Number) -> Poly | None:
    """The least that c times the term can be, in atoms of fewer parts; None if not known."""
    bound, f = term
    if bound or any(e < 0 or a[0] not in (*RANGED, "size", "div") for a, e in f):
        return None
    ranged = frozenset((a, e) for a, e in f if a[0] in RANGED)
    quotients = [(a, e) for a, e in f if a[0] == "div"]
    rest = single((bound, f - ranged - frozenset(quotients))) * c
    if not quotients:
        return ZERO if ranged and c > 0 else multiplied([rest, *((a[2] - 1) ** e for a, e in ranged)])
    (quotient, e), *more = quotients
    if more or ranged or e != 1:
        return None
    above, below = as_polys(quotient)
    n = constant(below)
    share = rest * ratio(1, n) if n else divided(rest, below)
    if share is None:
        return ZERO if c > 0 and remembered(above) else None
    return share * (above - below + 1 if c > 0 else above)


def as_polys(a: Atom) -> list[Poly]:
    """The parts of an atom that has only such."""
    return [part for part in a[1:] if isinstance(part, Poly)]


def reduced(p: Poly, facts: frozenset[Poly]) -> Iterator[Poly]:
    """p // d for sizes d of which p is a multiple and a rest below d: it is negative where p is."""
    found = [
        single((frozenset(), frozenset((a, e) for a, e in f if a[0] == "size"))) * max(c, -c)
        for (b, f), c in p.terms
        if not b and c == int(c) and all(e > 0 for _, e in f)
    ]
    for d in sorted(set(found) - {ONE}, key=key):
        whole, rest = apart(p, d, towards_zero=True)
        for q, r in ((whole, rest), (whole - 1, rest + d)):
            if constant(q) != 0 and follows(r, facts) and follows(d - 1 - r, facts):
                yield q


def condition(p: Poly) -> Poly:
    """1 where p >= 0, else 0."""
    need(all(c.denominator == 1 for _, c in p.terms), "an index that is no integer")
    content = math.gcd(*(int(c) for t, c in p.terms if t != UNIT)) or 1
    p = collected((t, c // content) for t, c in p.terms)
    facts = WORK.get().facts
    if holds(p, facts) or holds(-p - 1, facts):
        return ONE if holds(p, facts) else ZERO
    simpler = next(reduced(p, facts), None)
    return just("ge", p) if simpler is None else condition(simpler)


def divided(p: Poly, d: Poly) -> Poly | None:
    """p / d if that is a polynomial with whole coefficients."""
    ((_, below), n), found = next(iter(d.terms)), []
    for (bound, f), c in p.terms:
        powers = dict(f)
        for a, e in below:
            powers[a] = number(powers.get(a, 0) - e)
        if len(d.terms) > 1 or c % n or bound or min(powers.values(), default=0) < 0:
            return ONE if p == d else None
        found.append(((bound, frozenset((a, e) for a, e in powers.items() if e)), ratio(c, n)))
    return collected(found)


def apart(p: Poly, d: Poly, towards_zero: bool = False) -> tuple[Poly, Poly]:
    """p as d * whole + rest, by the multiples of d among its terms; the rest of a coefficient is
    not negative, or towards 0."""
    n, whole, rest = constant(d), [], []
    for t, c in p.terms:
        if n:
            times = -(-c // n) if towards_zero and c < 0 else c // n
            whole.append(single(t) * times)
            rest.append(single(t) * (c - times * n))
        elif (q := divided(single(t) * c, d)) is not None:
            whole.append(q)
        else:
            rest.append(single(t) * c)
    return total(whole), total(rest)


TURNS = 4


def floor(p: Poly, d: Poly) -> Poly:
    """p // d: whole multiples come out, and the rest may be below d."""
    facts = WORK.get().facts
    need(holds(d - 1, facts), "a division by a term that may not be positive")
    if d == ONE:
        return p
    whole, rest = apart(p, d)
    for _ in range(TURNS):
        if not variables(rest) or not holds(rest - d, facts):  # of sizes alone it depends on no facts
            break
        whole, rest = whole + 1, rest - d
    if holds(rest, facts) and holds(d - 1 - rest, facts):
        return whole
    inner = next(iter(rest.terms))[0][1] if len(rest.terms) == 1 else frozenset()
    (a, _), *_ = inner or [(("none",), 0)]
    if a[0] == "div" and rest == just(*a):
        return whole + floor(a[1], a[2] * d)
    return whole + just("div", rest, d)


def boolean(a: Atom) -> bool:
    return a[0] in ("ge", "lt", "eq") or (a[0] == "read" and a[2] == "bool")


def conditions(*ps: Poly) -> list[Atom]:
    """The conditions among the factors of some polynomials that bind no variable, in order."""
    return sorted(
        {a for p in ps for (b, f), _ in p.terms for a, _ in f if boolean(a) and variables(a).isdisjoint(b)}, key=key
    )


MAKERS: dict[str, Callable[..., Poly]] = {"ge": condition, "div": floor}
"""How atoms of a kind are made again of other parts; `functions` adds its own."""


def bits(dtype: str) -> tuple[int, int]:
    """The least number of an integer type, and the largest."""
    n = int(dtype.lstrip("uint"))
    return (0, 2**n - 1) if dtype[0] == "u" else (-(2 ** (n - 1)), 2 ** (n - 1) - 1)
