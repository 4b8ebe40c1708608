"""Maxima in normal form: branches, each over bound integers under linear conditions; minima are
maxima of negatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import gcd

from taso_mirage.ir.dims import Dim
from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.conditions import floors, index_names
from taso_mirage.meanings.kinds import of_floats
from taso_mirage.meanings.polynomials import LEAST, Atom, Branch, Poly, plain_rational
from taso_mirage.prove import machine
from taso_mirage.prove.axioms import near
from taso_mirage.prove.folds import decided_conditions, forced, inhabited, names_in, opened_binder, refined, renaming

LOG = of_floats("log")


def largest(algebra: ScalarAlgebra, branches: Iterable[Branch]) -> Poly:
    """The maximum over branches, each a bound maximum; empty ranges are minus infinity."""
    flat: list[Branch] = []
    for branch in branches:
        flat += _unfolded(algebra, branch)
    kept: list[Branch] = []
    for branch in flat:
        small = _small(algebra, branch)
        if small is not None and small not in kept:
            kept.append(small)
    kept = _undominated(algebra, kept)
    if not kept:
        return LEAST
    shift = _shift(kept)
    scale = _scale([p - shift for _, _, p in kept])
    kept = [(b, c, (p - shift).scaled(plain_rational(1 / Fraction(scale)))) for b, c, p in kept]
    if len(kept) == 1 and not kept[0][0] and not kept[0][1]:
        return kept[0][2].scaled(scale) + shift
    outside = algebra.pulled(kept)
    if outside is not None:
        return outside.scaled(scale) + shift
    kept.sort(key=lambda b: (algebra.form(b[2]), str(b[1])))
    closed = tuple(dict.fromkeys(_closed_branch(algebra, b) for b in kept))
    top = algebra.poly("max", *closed)
    p = magnitude(next(iter(top.terms))[0][0])
    if p is not None and len(p.terms) <= FEW:
        algebra.squares[next(iter(top.terms))[0][0]] = algebra.mul(p, p)
    return top.scaled(scale) + shift


FEW = 4
"""The largest number of terms of a sum p whose square of |p| is expanded."""


def magnitude(a: Atom) -> Poly | None:
    """p of |p|, which is max(p, -p); None of other atoms."""
    if a.kind != "max" or len(a.args) != 2 or any(b or c for b, c, _ in a.args):
        return None
    p: Poly = a.args[0][2]
    return None if (p + a.args[1][2]).terms else p


def _unfolded(algebra: ScalarAlgebra, branch: Branch) -> list[Branch]:
    """A positive multiple of a maximum inside a branch joins it."""
    bound, conditions, p = branch
    for m, c in p.terms.items():
        if c > 0 and len(m) == 1 and m[0][1] == 1 and m[0][0].kind == "max":
            rest = Poly({k: v for k, v in p.terms.items() if k is not m})
            result: list[Branch] = []
            for inner in m[0][0].args:
                fresh, some, body = opened_binder(algebra, *inner)
                result += _unfolded(algebra, ((*bound, *fresh), (*conditions, *some), rest + body.scaled(c)))
            return result
    return [branch]


def _small(algebra: ScalarAlgebra, branch: Branch) -> Branch | None:
    """Simplify a branch: decide conditions, refine quotients, and remove binders without effect."""
    bound, conditions, p = branch
    tidied = decided_conditions(algebra.indices, conditions)
    if tidied is None:
        return None
    found = [f for e in tidied for f in floors(e)] + [f for m in p.terms for a, _ in m for f in a.floors]
    for f in found:
        for name in bound:
            split = refined(algebra.indices, name, f.numerator, f.denominator)
            if split is not None:
                mapping = {name: split}
                names_ = (
                    *(b for b in bound if b != name),
                    *sorted(index_names(split) & algebra.indices.extents.keys()),
                )
                some = tuple(algebra.indices.bind(e, mapping) for e in tidied)
                return _small(algebra, (names_, some, algebra.bind(p, mapping)))
    only = forced(algebra.indices, bound, tidied)
    if only is not None:
        name, value = only
        ranges = (value, algebra.indices.extents[name] - 1 - value)
        some = tuple(algebra.indices.bind(e, {name: value}) for e in (*tidied, *ranges))
        return _small(algebra, (tuple(b for b in bound if b != name), some, algebra.bind(p, {name: value})))
    keep: list[str] = []
    left = list(tidied)
    for group, mine in _linked(bound, tidied):
        if p.names & set(group) or not inhabited(algebra.indices, group, mine):
            keep += group
        else:
            left = [e for e in left if e not in mine]
    return tuple(keep), tuple(left), p


def _linked(bound: Sequence[str], conditions: list[Dim]) -> list[tuple[list[str], list[Dim]]]:
    groups: list[set[str]] = [{b} for b in bound]
    for e in conditions:
        touched = [g for g in groups if g & index_names(e)]
        if touched:
            groups = [g for g in groups if g not in touched] + [set().union(*touched)]
    return [([b for b in bound if b in g], [e for e in conditions if index_names(e) & g]) for g in groups]


def _undominated(algebra: ScalarAlgebra, branches: list[Branch]) -> list[Branch]:
    """Remove branches that are never larger than another one: max(x, x - exp(y)) = x, max(x, -x, 0)
    = max(x, -x)."""
    plain_ = [b for b in branches if not b[0] and not b[1]]
    kept = list(branches)
    for b in (b for b in branches if b[2].names.isdisjoint(b[0])):
        others = [o[2] for o in plain_ if o is not b and o in kept]
        pairs = [a + c - b[2].scaled(2) for i, a in enumerate(others) for c in others[:i]]
        bounded = any(surely_nonnegative(algebra, d) for d in [*(o - b[2] for o in others), *pairs])
        if bounded or any(o[0] and o is not b and _dominates(algebra, o, b[2]) for o in kept):
            kept.remove(b)
    return kept


def _dominates(algebra: ScalarAlgebra, branch: Branch, p: Poly) -> bool:
    """Whether a bound branch has a nonempty range and is nowhere below `p`."""
    bound, conditions, q = branch
    return surely_nonnegative(algebra, q - p) and inhabited(algebra.indices, list(bound), list(conditions))


def nonnegative(p: Poly) -> bool:
    """Whether a scalar is certainly >= 0: sums of squares, exponentials, sizes, roots, and maxima
    with such a branch."""
    return all(c > 0 and all(power % 2 == 0 or _positive(a) for a, power in m) for m, c in p.terms.items())


def surely_nonnegative(algebra: ScalarAlgebra, p: Poly) -> bool:
    """Whether a scalar is surely >= 0, by the criteria of `nonnegative` or by known ranges."""
    if nonnegative(p):
        return True
    p = algebra.factored(p)
    if nonnegative(p):
        return True

    low = machine.value_bounds(algebra, p).low
    return (low is not None and low >= 0) or _nonnegative_about(algebra, p) or _nonnegative_log(algebra, p)


def _nonnegative_log(algebra: ScalarAlgebra, p: Poly) -> bool:
    """Whether log(q) + r is >= 0, as q >= exp(-r)."""
    logs = [m for m in p.terms if len(m) == 1 and m[0][1] == 1 and m[0][0].kind == LOG]
    if len(logs) != 1 or p.terms[logs[0]] != 1 or len(p.terms) == 1:
        return False
    q: Poly = logs[0][0][0].args[0]
    return nonnegative(q) and nonnegative(q - algebra.exp(Poly({logs[0]: 1}) - p))


def _nonnegative_about(algebra: ScalarAlgebra, p: Poly) -> bool:
    """Whether it is >= 0 as a rounding f(x) is near x: a whole number above -1 is, too."""
    spans = {m: span for m in p.terms if len(m) == 1 and m[0][1] == 1 and (span := near(m[0][0].kind)) is not None}
    if not spans:
        return False
    low, rest = Fraction(0), p
    for m, (least, most) in spans.items():
        c, of = p.terms[m], m[0][0].args[0]
        rest = rest - Poly({m: c}) + of.scaled(c)
        low += min(Fraction(c) * least, Fraction(c) * most)
    found = machine.value_bounds(algebra, rest).low if rest.terms else 0
    if found is None and nonnegative(rest):
        found = 0
    return found is not None and (found + low >= 0 or (found + low > -1 and machine.integral(p)))


def surely_positive(algebra: ScalarAlgebra, p: Poly) -> bool:
    """Whether a scalar is surely > 0: it is nonnegative, and one of its terms is not 0."""
    p = algebra.factored(p)
    if nonnegative(p) and any(all(_strict(algebra, a) for a, _ in m) for m in p.terms):
        return True
    low = machine.value_bounds(algebra, p).low
    return low is not None and low > 0


def _strict(algebra: ScalarAlgebra, a: Atom) -> bool:
    kind, args = a.kind, a.args
    if kind == "size":
        return args[0] not in algebra.indices.extents
    if kind in ("inv", "sqrt"):
        return surely_positive(algebra, args[0])
    if kind == "sum":
        return all(_strict(algebra, x) for x, _ in args[2]) and inhabited(algebra.indices, list(args[0]), list(args[1]))
    if kind == "max":
        return any(surely_positive(algebra, p) and inhabited(algebra.indices, list(b), list(c)) for b, c, p in args)
    return kind == "exp"


def _positive(a: Atom) -> bool:
    kind, args = a.kind, a.args
    if kind in ("exp", "size", "sqrt", "positive", "zero"):
        return True
    if kind == "inv":
        return nonnegative(args[0])
    if kind == "sum":
        return all(power % 2 == 0 or _positive(x) for x, power in args[2])
    if kind == "max":
        ps = [p for b, c, p in args if not b and not c]
        return any(nonnegative(p) for p in ps) or any(nonnegative(p + q) for i, p in enumerate(ps) for q in ps[:i])
    return False


def _shift(branches: list[Branch]) -> Poly:
    """The terms that all branches share and that depend on nothing bound."""
    bound = {n for b in branches for n in b[0]}
    first = branches[0][2].terms
    return Poly(
        {
            m: c
            for m, c in first.items()
            if names_in(m).isdisjoint(bound) and all(b[2].terms.get(m) == c for b in branches[1:])
        }
        if len(branches) > 1 or branches[0][0]
        else {}
    )


def _scale(polys: list[Poly]) -> int | Fraction:
    top, bottom = 0, 1
    for p in polys:
        for c in p.terms.values():
            f = Fraction(c)
            top, bottom = gcd(top, f.numerator), bottom * f.denominator // gcd(bottom, f.denominator)
    return plain_rational(Fraction(top, bottom)) if top else 1


def _closed_branch(algebra: ScalarAlgebra, branch: Branch) -> Branch:
    bound, conditions, p = branch
    mapping = renaming(algebra, list(bound), conditions, p)
    some = tuple(sorted((algebra.indices.bind(e, mapping) for e in conditions), key=str))
    return tuple(str(v) for v in mapping.values()), some, algebra.bind(p, mapping)
