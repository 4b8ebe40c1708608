"""Folds in normal form: sums and maxima over bound integers under linear conditions (TensorRight's symbolic reductions)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import product

from taso_mirage.dims import Dim, symbol
from taso_mirage.meanings.indices import Conditions, Indices, linear, names
from taso_mirage.meanings.scalars import LEAST, ONE, ZERO, Branch, Monomial, Poly, Scalars, floors, number, plain

WITNESSES = 200
"""So many points of a concrete range are tried to show that a window is not empty."""


def fold(algebra: Scalars, kind: str, bound: Sequence[str], conditions: Conditions, body: Poly) -> Poly:
    """The sum (or product) of `body` over all values of `bound` that satisfy the conditions; ranges are understood."""
    if kind == "prod":
        return _product(algebra, bound, conditions, body)
    total = ZERO
    for monomial, c in body.terms.items():
        total = total + _sum(algebra, list(bound), list(conditions), monomial).scaled(c)
    return total


def _product(algebra: Scalars, bound: Sequence[str], conditions: Conditions, body: Poly) -> Poly:
    ((monomial, c),) = body.terms.items() if len(body.terms) == 1 else (((), 0),)
    if c != 1:
        monomial = ((algebra.atom("id", body), 1),)
    return _closed(algebra, "prod", list(bound), list(conditions), monomial)


def _sum(algebra: Scalars, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Poly:
    indices = algebra.indices
    indices.step()
    monomial = _flattened(algebra, bound, conditions, monomial)
    tidied = _tidied(indices, conditions)
    if tidied is None:
        return ZERO
    step = _refinement(algebra, bound, tidied, monomial) or _equality(indices, bound, tidied)
    if step is not None:
        name, value, more = step
        bound = [b for b in bound if b != name] + [n for n in sorted(names(value)) if n in more]
        conditions = [indices.bind(e, {name: value}) for e in (*tidied, *more.get("", ()))]
        return fold(algebra, "sum", bound, tuple(conditions), algebra.bind_monomial(monomial, {name: value}))
    outside, inside = _split(algebra, set(bound), monomial)
    result = Poly({outside: 1})
    for part, some, atoms in _components(algebra, bound, tidied, inside):
        if not some and not atoms:
            for name in part:
                result = algebra.mul(result, algebra.of_dim(indices.extents[name]))
        else:
            result = algebra.mul(result, _closed(algebra, "sum", part, some, atoms))
    return result


def _flattened(algebra: Scalars, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Monomial:
    """A factor that is a sum, and hangs on what is bound, joins its binders."""
    while True:
        nested = next((x for x in monomial if x[0].kind == "sum" and x[0].names & set(bound)), None)
        if nested is None:
            return monomial
        atom, power = nested
        rest = tuple(x for x in monomial if x[0] is not atom)
        if power > 1:
            rest = algebra.times(rest, ((atom, power - 1),))
        fresh, some, body = opened(algebra, *atom.args)
        bound.extend(fresh)
        conditions.extend(some)
        ((inner, _),) = body.terms.items()
        monomial = algebra.times(rest, inner)


def opened(
    algebra: Scalars, bound: Sequence[str], conditions: Conditions, body: Monomial | Poly
) -> tuple[list[str], Conditions, Poly]:
    """A binder's conditions and body under fresh names."""
    indices = algebra.indices
    mapping = {b: indices.fresh(indices.extents[b]) for b in bound}
    poly = body if isinstance(body, Poly) else Poly({body: 1})
    fresh = [str(v) for v in mapping.values()]
    return fresh, tuple(indices.bind(e, mapping) for e in conditions), algebra.bind(poly, mapping)


def _tidied(indices: Indices, conditions: Iterable[Dim]) -> list[Dim] | None:
    kept: list[Dim] = []
    for e in conditions:
        small = indices.tidy(e)
        if small is False:
            return None
        if small is not True and small not in kept:
            kept.append(small)
    for e in list(kept):
        others = [k for k in kept if k is not e]
        if any(indices.nonnegative(e - k) for k in others):
            kept = others
        elif any(indices.nonnegative(-e - k - 1) for k in others):
            return None
    return kept


Step = tuple[str, Dim, dict[str, tuple[Dim, ...]]]


def _refinement(algebra: Scalars, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Step | None:
    """A bound integer that is divided by d and ranges over m * d becomes two."""
    found = [f for e in conditions for f in floors(e)] + [f for a, _ in monomial for f in a.floors]
    for f in found:
        for name in bound:
            split = refined(algebra.indices, name, f.numerator, f.denominator)
            if split is not None:
                return name, split, {n: () for n in names(split)}
    return None


def refined(indices: Indices, name: str, numerator: Dim, denominator: Dim) -> Dim | None:
    """name = d * outer + inner, where name // d was met and its extent is a multiple of d."""
    extent = indices.extents.get(name)
    if extent is None or name not in names(numerator):
        return None
    parts = linear(numerator, name)
    for d in [denominator] if parts is not None and parts[0] == 1 else []:
        count = indices.quotients.get((extent, d))
        if count is None:
            count, left = indices._split(extent, d)
            if left != 0:
                continue
        if count in (0, 1) or d == 1 or any(n in indices.extents for n in names(d)):
            continue
        return indices.variable(f"{name}/{d}", count) * d + indices.variable(f"{name}%{d}", d)
    return None


def _equality(indices: Indices, bound: list[str], conditions: list[Dim]) -> Step | None:
    """A bound integer that the conditions determine is replaced; its range stays a condition."""
    found = forced(indices, bound, conditions)
    if found is None:
        return None
    name, value = found
    return name, value, {"": (value, indices.extents[name] - 1 - value)}


def forced(indices: Indices, among: Sequence[str], conditions: Sequence[Dim]) -> tuple[str, Dim] | None:
    """An integer and its only value, where e >= 0 and -e >= 0 are both conditions or ranges."""
    for e in conditions:
        inside = [n for n in among if n in names(e)]
        ranges = [r for n in inside for r in (symbol(n), indices.extents[n] - 1 - symbol(n))]
        if -e in conditions or -e in ranges:
            for name in inside:
                parts = linear(e, name)
                if parts is not None and parts[0] in (1, -1):
                    return name, parts[1] * -parts[0]
    return None


def _split(algebra: Scalars, bound: set[str], monomial: Monomial) -> tuple[Monomial, Monomial]:
    """The factors that do not hang on what is bound, and those that do; exp(a + b) is two factors."""
    outside: Monomial = ()
    inside: list[tuple[Poly, int]] = []
    for a, power in monomial:
        if a.names.isdisjoint(bound):
            outside = algebra.times(outside, ((a, power),))
        elif a.kind == "exp":
            free = Poly({m: c for m, c in a.args[0].terms.items() if _names(m).isdisjoint(bound)})
            rest = a.args[0] - free
            for m in algebra.exp(free).terms:
                outside = algebra.times(outside, m)
            inside += [(algebra.exp(Poly({m: c})), 1) for m, c in rest.terms.items()]
        else:
            inside.append((Poly({((a, 1),): 1}), power))
    return outside, tuple((next(iter(p.terms))[0][0], power) for p, power in inside)


def _names(m: Monomial) -> frozenset[str]:
    return frozenset().union(*[a.names for a, _ in m])


def _components(
    algebra: Scalars, bound: list[str], conditions: list[Dim], inside: Monomial
) -> list[tuple[list[str], list[Dim], Monomial]]:
    """Independent parts: a sum of f(i) g(j) is a product of two sums."""
    group = {b: {b} for b in bound}
    links = [names(e) & group.keys() for e in conditions] + [a.names & group.keys() for a, _ in inside]
    for link in links:
        merged = set().union(*[group[n] for n in link])
        for n in merged:
            group[n] = merged
    parts: list[tuple[list[str], list[Dim], Monomial]] = []
    for b in bound:
        if b == min(group[b], key=bound.index):
            atoms: Monomial = ()
            for a, power in inside:
                if a.names & group[b]:
                    atoms = algebra.times(atoms, ((a, power),))
            some = [e for e in conditions if names(e) & group[b]]
            parts.append(([n for n in bound if n in group[b]], some, atoms))
    loose = [e for e in conditions if names(e).isdisjoint(bound)]
    return [*parts, ([], loose, ())] if loose else parts


def _closed(algebra: Scalars, kind: str, bound: list[str], conditions: list[Dim], body: Monomial) -> Poly:
    """The atom, its bound integers named by their place, so that equal folds built alike are one atom."""
    mapping = _renaming(algebra, bound, conditions, Poly({body: 1}))
    poly = algebra.bind_monomial(body, mapping)
    if len(poly.terms) != 1 or next(iter(poly.terms.values())) != 1:
        return fold(algebra, kind, [str(v) for v in mapping.values()], (), poly)
    (renamed,) = poly.terms
    some = sorted({algebra.indices.bind(e, mapping) for e in conditions}, key=str)
    return algebra.poly(kind, tuple(str(v) for v in mapping.values()), tuple(some), renamed)


def _renaming(algebra: Scalars, bound: list[str], conditions: Sequence[Dim], body: Poly) -> dict[str, Dim]:
    indices = algebra.indices
    level = max((a.level for m in body.terms for a, _ in m), default=0) + 1
    order: list[str] = []
    seen: set[str] = set()
    factors = sorted(((a.skeleton, a.id, a) for m in body.terms for a, _ in m), key=lambda x: x[:2])
    for _, _, a in factors:
        for name in _walk(a, bound):
            if name not in seen:
                seen.add(name)
                order.append(name)
    order += [b for b in bound if b not in seen]
    return {
        b: indices.variable(f"${level}.{i}<{indices.extents[b]}", indices.extents[b]) for i, b in enumerate(order)
    }


def _walk(a: object, bound: list[str]) -> Iterable[str]:
    kind, args = getattr(a, "kind", ""), getattr(a, "args", ())
    if kind == "read":
        for i in args[1]:
            yield from (b for b in bound if b in names(i))
        return
    yield from (b for b in bound if b in getattr(a, "names", ()))


# ---------------------------------------------------------------- maxima


def largest(algebra: Scalars, branches: Iterable[Branch]) -> Poly:
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
    kept = [(b, c, (p - shift).scaled(plain(1 / Fraction(scale)))) for b, c, p in kept]
    if len(kept) == 1 and not kept[0][0] and not kept[0][1]:
        return kept[0][2].scaled(scale) + shift
    kept.sort(key=lambda b: (algebra.form(b[2]), str(b[1])))
    closed = tuple(dict.fromkeys(_closed_branch(algebra, b) for b in kept))
    return algebra.poly("max", *closed).scaled(scale) + shift


def _unfolded(algebra: Scalars, branch: Branch) -> list[Branch]:
    """A positive multiple of a maximum inside a branch joins it."""
    bound, conditions, p = branch
    for m, c in p.terms.items():
        if c > 0 and len(m) == 1 and m[0][1] == 1 and m[0][0].kind == "max":
            rest = Poly({k: v for k, v in p.terms.items() if k is not m})
            result: list[Branch] = []
            for inner in m[0][0].args:
                fresh, some, body = opened(algebra, *inner)
                result += _unfolded(
                    algebra, ((*bound, *fresh), (*conditions, *some), rest + body.scaled(c))
                )
            return result
    return [branch]


def _small(algebra: Scalars, branch: Branch) -> Branch | None:
    """Conditions decided, quotients refined, binders dropped that do not matter."""
    bound, conditions, p = branch
    tidied = _tidied(algebra.indices, conditions)
    if tidied is None:
        return None
    found = [f for e in tidied for f in floors(e)] + [f for m in p.terms for a, _ in m for f in a.floors]
    for f in found:
        for name in bound:
            split = refined(algebra.indices, name, f.numerator, f.denominator)
            if split is not None:
                mapping = {name: split}
                names_ = (*(b for b in bound if b != name), *sorted(names(split) & algebra.indices.extents.keys()))
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
    for group, some in _linked(bound, tidied):
        if p.names & set(group) or not inhabited(algebra.indices, group, some):
            keep += group
        else:
            left = [e for e in left if e not in some]
    return tuple(keep), tuple(left), p


def _linked(bound: Sequence[str], conditions: list[Dim]) -> list[tuple[list[str], list[Dim]]]:
    groups: list[set[str]] = [{b} for b in bound]
    for e in conditions:
        touched = [g for g in groups if g & names(e)]
        if touched:
            groups = [g for g in groups if g not in touched] + [set().union(*touched)]
    return [([b for b in bound if b in g], [e for e in conditions if names(e) & g]) for g in groups]


def inhabited(indices: Indices, bound: list[str], conditions: list[Dim]) -> bool:
    """Whether some value of `bound` satisfies the conditions, whatever the free integers are."""
    if not all(indices.nonnegative(indices.extents[b] - 1) for b in bound):
        return False
    if not conditions:
        return True
    choices = []
    for b in bound:
        extent = indices.extents[b]
        choices.append(list(range(extent)) if isinstance(extent, int) and extent <= WITNESSES else [0, extent - 1])
    points = list(product(*choices))[:WITNESSES]
    cases = [[indices.bind(e, dict(zip(bound, p, strict=True))) for e in conditions] for p in points]
    if any(all(indices.nonnegative(e) for e in case) for case in cases):
        return True
    from taso_mirage.meanings.integers import covers

    indices.step(50)
    return covers(indices, (), cases)


def _undominated(algebra: Scalars, branches: list[Branch]) -> list[Branch]:
    """Without unconditional branches that another one is never below: max(x, x - exp(y)) = x, max(x, -x, 0) = max(x, -x)."""
    plain_ = [b for b in branches if not b[0] and not b[1]]
    kept = list(branches)
    for b in plain_:
        others = [o[2] for o in plain_ if o is not b and o in kept]
        pairs = [a + c - b[2].scaled(2) for i, a in enumerate(others) for c in others[:i]]
        if any(nonnegative(d) for d in [*(o - b[2] for o in others), *pairs]):
            kept.remove(b)
    return kept


def nonnegative(p: Poly) -> bool:
    """Whether a scalar is surely >= 0: sums of squares, exponentials, sizes, roots, and maxima with such a branch."""
    return all(c > 0 and all(power % 2 == 0 or _positive(a) for a, power in m) for m, c in p.terms.items())


def _positive(a: object) -> bool:
    kind, args = getattr(a, "kind", ""), getattr(a, "args", ())
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
    """The terms that all branches share and that hang on nothing bound."""
    bound = {n for b in branches for n in b[0]}
    first = branches[0][2].terms
    return Poly(
        {
            m: c
            for m, c in first.items()
            if _names(m).isdisjoint(bound) and all(b[2].terms.get(m) == c for b in branches[1:])
        }
        if len(branches) > 1 or branches[0][0]
        else {}
    )


def _scale(polys: list[Poly]) -> int | Fraction:
    from math import gcd

    top, bottom = 0, 1
    for p in polys:
        for c in p.terms.values():
            f = Fraction(c)
            top, bottom = gcd(top, f.numerator), bottom * f.denominator // gcd(bottom, f.denominator)
    return plain(Fraction(top, bottom)) if top else 1


def _closed_branch(algebra: Scalars, branch: Branch) -> Branch:
    bound, conditions, p = branch
    mapping = _renaming(algebra, list(bound), conditions, p)
    some = tuple(sorted((algebra.indices.bind(e, mapping) for e in conditions), key=str))
    return tuple(str(v) for v in mapping.values()), some, algebra.bind(p, mapping)


__all__ = ["ONE", "fold", "inhabited", "largest", "nonnegative", "number", "opened", "refined", "symbol"]
