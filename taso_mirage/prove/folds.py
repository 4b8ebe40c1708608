"""Sums in normal form, over bound integers under linear conditions (TensorRight's symbolic
reductions)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations, product

from taso_mirage.ir.dims import Dim, Symbolic, symbol
from taso_mirage.meanings.algebra import ScalarAlgebra
from taso_mirage.meanings.conditions import Conditions, floors, index_level, index_names, linear, polynomial
from taso_mirage.meanings.indices import Indices
from taso_mirage.meanings.integers import covers
from taso_mirage.meanings.polynomials import ZERO, Atom, Monomial, Poly

WITNESSES = 200
"""The largest number of points of a concrete range that are tested to show that a window is not
empty."""
TERMS = 4
"""The largest number of terms that are split off a running sum."""


def fold(algebra: ScalarAlgebra, kind: str, bound: Sequence[str], conditions: Conditions, body: Poly) -> Poly:
    """The sum (or product) of `body` over all values of `bound` within their ranges that satisfy
    the conditions."""
    if kind == "prod":
        return _product(algebra, bound, conditions, body)
    total = ZERO
    for monomial, c in body.terms.items():
        total = total + _sum(algebra, list(bound), list(conditions), monomial).scaled(c)
    return total


def _product(algebra: ScalarAlgebra, bound: Sequence[str], conditions: Conditions, body: Poly) -> Poly:
    ((monomial, c),) = body.terms.items() if len(body.terms) == 1 else (((), 0),)
    if c != 1:
        monomial = ((algebra.atom("id", body), 1),)
    return _closed(algebra, "prod", list(bound), list(conditions), monomial)


def _sum(algebra: ScalarAlgebra, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Poly:
    indices = algebra.indices
    indices.step()
    nested = next((a for a, _ in monomial if a.kind == "sum" and a.names & set(bound)), None)
    if nested is not None:
        return _flattened(algebra, bound, conditions, monomial, nested)
    tidied = decided_conditions(indices, conditions)
    if tidied is None:
        return ZERO
    step = _multiple(indices, bound, tidied)
    step = step or _refinement(algebra, bound, tidied, monomial) or _equality(indices, bound, tidied)
    step = step or _padded(indices, bound, tidied, monomial)
    if step is not None:
        name, value, more = step
        bound = [b for b in bound if b != name] + [n for n in sorted(index_names(value)) if n in more]
        conditions = [indices.bind(e, {name: value}) for e in (*tidied, *more.get("", ()))]
        return fold(algebra, "sum", bound, tuple(conditions), algebra.bind_monomial(monomial, {name: value}))
    joined = _joined(algebra, bound, tidied, monomial) or _divided(algebra, bound, tidied, monomial)
    for rule in (_without_border, _without_last):
        joined = joined or rule(algebra, bound, tidied, monomial)
    if joined is not None:
        return joined
    outside, inside = _split(algebra, set(bound), monomial)
    result = Poly({outside: 1})
    for part, some, atoms in _components(algebra, bound, tidied, inside):
        count = None if atoms or len(part) != 1 else _count(indices, part[0], some)
        if count is not None:
            result = algebra.mul(result, algebra.of_dim(count))
        else:
            result = algebra.mul(result, _closed(algebra, "sum", part, some, atoms))
    return result


def _flattened(
    algebra: ScalarAlgebra, bound: list[str], conditions: list[Dim], monomial: Monomial, nested: Atom
) -> Poly:
    """A factor that is a sum, and depends on bound variables, joins its binders."""
    fresh, some, body = opened_binder(algebra, *nested.args)
    rest = Poly({tuple((a, power - (a is nested)) for a, power in monomial if power > 1 or a is not nested): 1})
    return fold(algebra, "sum", [*bound, *fresh], (*conditions, *some), algebra.mul(rest, body))


def opened_binder(
    algebra: ScalarAlgebra, bound: Sequence[str], conditions: Conditions, body: Monomial | Poly
) -> tuple[list[str], Conditions, Poly]:
    """A binder's conditions and body under fresh names."""
    indices = algebra.indices
    mapping = {b: indices.fresh(indices.extents[b]) for b in bound}
    poly = body if isinstance(body, Poly) else Poly({body: 1})
    fresh = [str(v) for v in mapping.values()]
    return fresh, tuple(indices.bind(e, mapping) for e in conditions), algebra.bind(poly, mapping)


def decided_conditions(indices: Indices, conditions: Iterable[Dim]) -> list[Dim] | None:
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


def _refinement(algebra: ScalarAlgebra, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Step | None:
    """A bound integer that is divided by d and ranges over m * d becomes two."""
    found = [f for e in conditions for f in floors(e)] + [f for a, _ in monomial for f in a.floors]
    for f in found:
        for name in bound:
            split = refined(algebra.indices, name, f.numerator, f.denominator)
            if split is not None:
                return name, split, dict.fromkeys(index_names(split) & algebra.indices.extents.keys(), ())
    return None


def refined(indices: Indices, name: str, numerator: Dim, denominator: Dim) -> Dim | None:
    """name = d * outer + inner, where name // d was met and its extent is a multiple of d."""
    extent = indices.extents.get(name)
    if extent is None or name not in index_names(numerator):
        return None
    parts = linear(numerator, name)
    for d in [denominator] if parts is not None and parts[0] == 1 else []:
        count = indices.quotients.get((extent, d))
        if count is None:
            count, left = indices._split(extent, d)
            if left != 0:
                continue
        if count in (0, 1) or d == 1 or any(n in indices.extents for n in index_names(d)):
            continue
        return indices.variable(f"{name}/{d}", count) * d + indices.variable(f"{name}%{d}", d)
    return None


def _multiple(indices: Indices, bound: list[str], conditions: list[Dim]) -> Step | None:
    """Replace a bound integer n for which the conditions state that d divides r + n or r - n by d
    times another integer minus r. This is the case for data with zeros between neighbours."""
    for e in conditions:
        for f in floors(e):
            d, r = f.denominator, f.numerator
            if not isinstance(d, int) or e != polynomial([(((f, 1),), d)]) - r:
                continue
            for name in sorted(bound, key=lambda n: isinstance(indices.extents[n], int)):
                slope, rest = linear(r, name) or (0, 0)
                span = _span(indices, name, r, d, conditions) if slope in (1, -1) else None
                if span is not None:
                    low, extent = span
                    whole = indices.fresh(extent)
                    value = ((whole + low) * d - rest) * slope
                    inside = (value, indices.extents[name] - 1 - value)
                    return name, value, {"": inside, **dict.fromkeys(index_names(whole), ())}
    return None


def _span(indices: Indices, name: str, r: Dim, d: int, conditions: list[Dim]) -> tuple[Dim, Dim] | None:
    """The smallest value of r / d if it is an integer, and the largest number of values: by
    conditions d q + r >= 0 and d q - r >= 0 with a q that does not depend on `name`, otherwise by
    the ranges."""
    below, above = (
        [
            q
            for q, left in (indices._split(e - r * sign, d) for e in conditions)
            if left == 0 and name not in index_names(q)
        ]
        for sign in (1, -1)
    )
    for q, p in product(below, above):
        if index_names(q + p).isdisjoint(indices.extents) and indices.nonnegative(q + p + 1):
            return -q, q + p + 1
    least, most = indices.lowest(r), indices.lowest(-r)
    if isinstance(least, int) and isinstance(most, int):
        low = -(-least // d)
        return low, max(-most // d - low + 1, 0)
    return None


def _padded(indices: Indices, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Step | None:
    """Replace a position of padded data that is computed from several bound integers by one bound
    integer."""
    for e in [e for a, _ in monomial if a.kind == "read" for e in a.args[1]]:
        mine = [n for n in bound if n in index_names(e)]
        if len(mine) < 2 or len(index_names(e) & indices.extents.keys()) > len(mine) or e not in conditions:
            continue
        last = next((k for c in conditions if index_names(k := c + e).isdisjoint(indices.extents)), None)
        if last is None or not indices.nonnegative(last):
            continue
        for name in sorted(mine, key=lambda n: isinstance(indices.extents[n], int)):
            slope, rest = linear(e, name) or (0, 0)
            if slope in (1, -1):
                place = indices.fresh(last + 1)
                value = (place - rest) * slope
                inside = (value, indices.extents[name] - 1 - value)
                return name, value, {"": inside, **dict.fromkeys(index_names(place), ())}
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
        inside = [n for n in among if n in index_names(e)]
        ranges = [r for n in inside for r in (symbol(n), indices.extents[n] - 1 - symbol(n))]
        if -e in conditions or -e in ranges:
            for name in inside:
                parts = linear(e, name)
                if parts is not None and parts[0] in (1, -1):
                    return name, parts[1] * -parts[0]
    return None


def _joined(algebra: ScalarAlgebra, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Poly | None:
    """Replace two bound integers a and b < d that occur only as d a + b by one integer."""
    indices = algebra.indices
    for a, b in permutations(bound, 2) if all(x.kind == "read" for x, _ in monomial) else ():
        met = [e for x, _ in monomial for e in x.args[1] if isinstance(e, Symbolic)] + conditions
        if not all((a in index_names(e)) == (b in index_names(e)) for e in met):
            continue
        d = indices.extents[b]
        place = indices.fresh(indices.extents[a] * d)
        there, back = {a: 0, b: place}, {str(place): symbol(a) * d + symbol(b)}
        moved = [indices.bind(e, there) for e in met]
        if any(floors(e) for e in moved) or [indices.bind(e, back) for e in moved] != met:
            continue
        rest = [*(n for n in bound if n not in (a, b)), str(place)]
        under = tuple(indices.bind(e, there) for e in conditions)
        return fold(algebra, "sum", rest, under, algebra.bind_monomial(monomial, there))
    return None


def _divided(algebra: ScalarAlgebra, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Poly | None:
    """Replace a position d a + b of data, with bound integers a and b < d, by one integer, and a by
    its quotient by d (windows over data that is repeated d times)."""
    indices = algebra.indices
    for e in [e for x, _ in monomial if x.kind == "read" for e in x.args[1]]:
        last = next((k for c in conditions if index_names(k := c + e).isdisjoint(indices.extents)), None)
        mine = [n for n in bound if n in index_names(e)]
        if last is None or e not in conditions or not indices.nonnegative(last):
            continue
        for a, b in permutations(mine, 2):
            d, (slope, rest) = indices.extents[b], linear(e, a) or (0, 0)
            sign, rest = linear(rest, b) or (0, 0)
            if not isinstance(d, int) or sign not in (1, -1) or slope not in (d, -d):
                continue
            if not indices.second:
                indices.more = True
                return None
            turn = 1 if slope == d else -1  # d a + turn sign b = turn (e - rest)
            place = indices.fresh(last + 1)
            whole = (place - rest) * turn
            above = whole if turn == sign else whole + d - 1
            quotient = indices.divide(above, d)
            mapping = {a: quotient, b: (whole - quotient * d) * (turn * sign)}
            inside = (above, indices.extents[a] * d - 1 - above)
            under = (*[indices.bind(c, mapping) for c in conditions], *inside)
            left = [*(n for n in bound if n not in (a, b)), *index_names(place)]
            return fold(algebra, "sum", left, under, algebra.bind_monomial(monomial, mapping))
    return None


def _without_border(algebra: ScalarAlgebra, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Poly | None:
    """Split off a border: if a condition on several bound integers fails only for the first or the
    last value of one (a kernel extends beyond the data), the sum is the sum without the condition
    minus the sum at this value."""
    indices = algebra.indices
    for e in conditions:
        mine = [n for n in bound if n in index_names(e)]
        if len(mine) < 2 or len(index_names(e) & indices.extents.keys()) > len(mine):
            continue
        for name in mine:
            value = _only(indices, name, -e - 1)
            if value is not None and not indices.second:
                indices.more = True
            elif value is not None:
                rest = [c for c in conditions if c is not e]
                under = tuple(indices.bind(c, {name: value}) for c in (*rest, -e - 1))
                at = algebra.bind_monomial(monomial, {name: value})
                border = fold(algebra, "sum", [n for n in bound if n != name], under, at)
                return _sum(algebra, list(bound), rest, monomial) - border
    return None


def _without_last(algebra: ScalarAlgebra, bound: list[str], conditions: list[Dim], monomial: Monomial) -> Poly | None:
    """Split the last terms off a running sum: up to i + 1 it is the sum up to i and one term more,
    and up to i - 1 one term less."""
    indices = algebra.indices
    for name, e in product(bound, conditions):
        slope, rest = linear(e, name) or (0, 0)
        free = index_names(rest) & indices.extents.keys()
        more = dict(rest.terms).get((), 0) if isinstance(rest, Symbolic) and free else 0
        if slope not in (1, -1) or not 0 < abs(more) <= TERMS:
            continue
        if not free.isdisjoint(bound) or not free.isdisjoint(names_in(monomial)):
            continue
        if not indices.third:
            indices.running = True
            return None
        sign = 1 if more > 0 else -1
        other = e - sign
        value = ((other if sign < 0 else e) - symbol(name) * slope) * -slope  # the place of the other term
        others = [c for c in conditions if c is not e]
        under = [indices.bind(c, {name: value}) for c in others] + [value, indices.extents[name] - 1 - value]
        at = algebra.bind_monomial(monomial, {name: value})
        part = fold(algebra, "sum", [n for n in bound if n != name], tuple(under), at)
        return _sum(algebra, list(bound), [*others, other], monomial) + part.scaled(sign)
    return None


def _only(indices: Indices, name: str, e: Dim) -> Dim | None:
    """The first or the last value of an integer, where e >= 0 holds for no other."""
    last = indices.extents[name] - 1
    if not indices.nonnegative(last):
        return None
    for value, other in ((0, symbol(name) + 1), (last, last - 1 - symbol(name))):
        if indices.nonnegative(-indices.bind(e, {name: other}) - 1):
            return value
    return None


def _split(algebra: ScalarAlgebra, bound: set[str], monomial: Monomial) -> tuple[Monomial, Monomial]:
    """The factors that do not depend on bound variables, and those that do; exp(a + b) is two
    factors."""
    outside: Monomial = ()
    inside: list[tuple[Poly, int]] = []
    for a, power in monomial:
        if a.names.isdisjoint(bound):
            outside = algebra.times(outside, ((a, power),))
        elif a.kind == "exp":
            free = Poly({m: c for m, c in a.args[0].terms.items() if names_in(m).isdisjoint(bound)})
            rest = a.args[0] - free
            if free.terms:
                outside = algebra.times(outside, ((algebra.atom("exp", free), 1),))
            inside += [(algebra.poly("exp", Poly({m: c})), 1) for m, c in rest.terms.items()]
        else:
            inside.append((Poly({((a, 1),): 1}), power))
    return outside, tuple((next(iter(p.terms))[0][0], power) for p, power in inside)


def names_in(m: Monomial) -> frozenset[str]:
    return frozenset().union(*[a.names for a, _ in m])


def _components(
    algebra: ScalarAlgebra, bound: list[str], conditions: list[Dim], inside: Monomial
) -> list[tuple[list[str], list[Dim], Monomial]]:
    """Independent parts: a sum of f(i) g(j) is a product of two sums."""
    group = {b: {b} for b in bound}
    links = [index_names(e) & group.keys() for e in conditions] + [a.names & group.keys() for a, _ in inside]
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
            some = [e for e in conditions if index_names(e) & group[b]]
            parts.append(([n for n in bound if n in group[b]], some, atoms))
    loose = [e for e in conditions if index_names(e).isdisjoint(bound)]
    return [*parts, ([], loose, ())] if loose else parts


def _count(indices: Indices, name: str, conditions: list[Dim]) -> Dim | None:
    """The number of values that satisfy the conditions, if these are at most one bound on each side
    and never cross."""
    low: Dim = 0
    high: Dim = indices.extents[name] - 1
    for e in conditions:
        slope, rest = linear(e, name) or (0, 0)
        if slope == 1 and low == 0 and indices.nonnegative(-rest):
            low = -rest
        elif slope == -1 and high == indices.extents[name] - 1 and indices.nonnegative(high - rest):
            high = rest
        else:
            return None
    return high - low + 1 if not conditions or indices.nonnegative(high - low + 1) else None


def _closed(algebra: ScalarAlgebra, kind: str, bound: list[str], conditions: list[Dim], body: Monomial) -> Poly:
    """The atom, its bound integers named by their place, so that equal folds built alike are one
    atom."""
    mapping = renaming(algebra, bound, conditions, Poly({body: 1}))
    poly = algebra.bind_monomial(body, mapping)
    if len(poly.terms) != 1 or next(iter(poly.terms.values())) != 1:
        moved = tuple(algebra.indices.bind(e, mapping) for e in conditions)
        return fold(algebra, kind, [str(v) for v in mapping.values()], moved, poly)
    (renamed,) = poly.terms
    some = sorted({algebra.indices.bind(e, mapping) for e in conditions}, key=str)
    return algebra.poly(kind, tuple(str(v) for v in mapping.values()), tuple(some), renamed)


def renaming(algebra: ScalarAlgebra, bound: list[str], conditions: Iterable[Dim], body: Poly) -> dict[str, Dim]:
    """Names by position, of a level above all inner binders, so they are never captured."""
    indices = algebra.indices
    levels = [a.level for m in body.terms for a, _ in m] + [index_level(e) for e in conditions]
    level = max(levels, default=0) + 1
    order: list[str] = []
    seen: set[str] = set()
    factors = sorted(((a.skeleton, a.id, a) for m in body.terms for a, _ in m), key=lambda x: x[:2])
    for _, _, a in factors:
        for name in _walk(a, bound):
            if name not in seen:
                seen.add(name)
                order.append(name)
    order += [b for b in bound if b not in seen]
    return {b: indices.variable(f"${level}.{i}<{indices.extents[b]}", indices.extents[b]) for i, b in enumerate(order)}


def _walk(a: Atom, bound: list[str]) -> Iterable[str]:
    if a.kind == "read":
        for i in a.args[1]:
            yield from (b for b in bound if b in index_names(i))
        return
    yield from (b for b in bound if b in a.names)


def inhabited(indices: Indices, bound: list[str], conditions: list[Dim]) -> bool:
    """Whether some value of `bound` satisfies the conditions for all free integers."""
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
    indices.step(50)
    return covers(indices, (), cases)
