"""Normal forms of scalar expressions: the rules by which polynomials over atoms (a read, a
function, a fold) are built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd
from typing import Any

from taso_mirage.ir.dims import Dim, Floor, Symbolic, symbol
from taso_mirage.meanings.conditions import DataIndex, Unprovable, floors, index_level, index_names, names_of
from taso_mirage.meanings.indices import Indices
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
    plain_rational,
)
from taso_mirage.prove import folds, machine, maxima, quotients, rewrites


class Looked:
    """An integer computed from data, as an index within 0..extent-1 (legal runs stay inside)."""

    def __init__(self, algebra: Scalars, poly: Poly, extent: Dim) -> None:
        self.algebra, self.poly, self.extent = algebra, poly, extent

    @property
    def names(self) -> frozenset[str]:
        return self.poly.names

    @property
    def level(self) -> int:
        return max((a.level for m in self.poly.terms for a, _ in m), default=0)

    def position(self, mapping: Mapping[str, Dim]) -> Dim:
        return self.algebra.position(self.algebra.bind(self.poly, mapping), self.extent)

    def __hash__(self) -> int:
        return hash((self.poly, self.extent))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Looked) and (self.poly, self.extent) == (other.poly, other.extent)


class Scalars:
    """The normal form's rules; atoms are interned here, one instance a proof."""

    def __init__(self, indices: Indices) -> None:
        self.indices = indices
        self._atoms: dict[Any, Atom] = {}
        self._skeletons: dict[Any, int] = {}
        self._bound: dict[Any, Poly] = {}
        self._places: dict[Any, Dim] = {}
        self.ranges: dict[Atom, Any] = {}
        self.fractions: dict[Atom, tuple[Rational, Rational, Poly]] = {}
        self.inverses: dict[Atom, Atom] = {}
        self.squares: dict[Atom, Poly] = {}

    def atom(self, kind: str, *args: Any) -> Atom:
        """The interned atom."""
        found = self._atoms.get((kind, args))
        if found is None:
            self.indices.step()
            found = Atom()
            found.kind, found.args, found.id = kind, args, len(self._atoms)
            dims, polys, bound = _parts(kind, args)
            inner = [p.names for p in polys] + [index_names(d) for d in dims]
            found.names = frozenset().union(*inner) - frozenset(bound)
            levels = [a.level for p in polys for m in p.terms for a, _ in m] + [index_level(d) for d in dims]
            found.level = max(levels, default=0) + (1 if bound else 0)
            found.skeleton = self._number((kind, *self._form(kind, args)))
            nested = [f for p in polys for m in p.terms for a, _ in m for f in a.floors]
            inside = [f for d in dims for f in floors(d)] + nested
            found.floors = tuple(dict.fromkeys(f for f in inside if not names_of(f) & set(bound)))
            self._atoms[(kind, args)] = found
        return found

    def _number(self, form: Any) -> int:
        return self._skeletons.setdefault(form, len(self._skeletons))

    def _form(self, kind: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if kind == "read":
            return (args[0],)
        if kind in ("sum", "prod"):
            return len(args[0]), self.monomial_form(args[2])
        if kind == "max":
            return tuple(sorted((len(b[0]), self.form(b[2])) for b in args))
        if kind in ("size", "floor"):
            return () if kind == "floor" or args[0] in self.indices.extents else args
        return tuple(self.form(a) if isinstance(a, Poly) else a for a in args)

    def form(self, p: Poly) -> int:
        """A number that equal polynomials share, independent of the names of their integers."""
        return self._number(tuple(sorted((self.monomial_form(m), str(c)) for m, c in p.terms.items())))

    def monomial_form(self, m: Monomial) -> int:
        return self._number(tuple(sorted((a.skeleton, p) for a, p in m)))

    # ------------------------------------------------------------ arithmetic

    def poly(self, kind: str, *args: Any) -> Poly:
        return Poly({((self.atom(kind, *args), 1),): 1})

    def mul(self, a: Poly, b: Poly) -> Poly:
        """The expanded product."""
        total: dict[Monomial, Rational] = {}
        self.indices.step(len(a.terms) * len(b.terms))
        for m, c in a.terms.items():
            for n, d in b.terms.items():
                k = self.times(m, n)
                if (self.fractions or self.squares) and (parts := self._parts(k)) is not None:
                    total = (Poly(total) + parts.scaled(c * d)).terms
                    continue
                value = total.get(k, 0) + c * d
                if value:
                    total[k] = value
                else:
                    total.pop(k, None)
        return Poly(total)

    def _parts(self, m: Monomial) -> Poly | None:
        """The form of a product whose factors have one together; None where they have none."""
        root = next((a for a, power in m if power > 1 and a in self.squares), None)
        if root is not None:
            return self.mul(self.squares[root], Poly({quotients.without_factor(m, root, 2): 1}))
        return quotients.fraction(self, m) if any(a in self.fractions for a, _ in m) else None

    def added(self, ps: Iterable[Poly]) -> Poly:
        """The sum of many."""
        total: dict[Monomial, Rational] = {}
        for p in ps:
            self.indices.step(1 + len(p.terms))
            for m, c in p.terms.items():
                total[m] = total.get(m, 0) + c
        return Poly({m: c for m, c in total.items() if c})

    def times(self, m: Monomial, n: Monomial) -> Monomial:
        if not m or not n:
            return m or n
        powers = dict(m)
        for atom, power in n:
            powers[atom] = powers.get(atom, 0) + power
        exponents = [a for a in powers if a.kind == "exp"]
        if len(exponents) > 1 or any(powers[a] != 1 for a in exponents):
            total = ZERO
            for a in exponents:
                total = total + a.args[0].scaled(powers.pop(a))
            for ((merged, _),) in self.poly("exp", total).terms if total.terms else ():
                powers[merged] = 1
        if self.inverses:
            self._cancel(powers)
        return tuple(sorted((a, 1 if _boolean(a) else p) for a, p in powers.items() if p))

    def _cancel(self, powers: dict[Atom, int]) -> None:
        """Take out x * (1 / x), for an x that is surely positive."""
        for a in [a for a in powers if a in self.inverses and self.inverses[a] in powers]:
            x = self.inverses[a]
            shared = min(powers[a], powers[x]) if powers[a] > 0 and powers[x] > 0 else 0
            powers[a], powers[x] = powers[a] - shared, powers[x] - shared

    def power(self, a: Poly, n: int) -> Poly:
        result = ONE
        for _ in range(n):
            result = self.mul(result, a)
        return result

    def content(self, p: Poly) -> Rational:
        """The number to take out so that coefficients are coprime integers with a sum that is not
        negative."""
        values = [Fraction(c) for c in p.terms.values()]
        top = 0
        bottom = 1
        for v in values:
            top = gcd(top, v.numerator)
            bottom = bottom * v.denominator // gcd(bottom, v.denominator)
        c = Fraction(top, bottom)
        return plain_rational(-c if sum(values) < 0 else c)

    def inverse(self, p: Poly) -> Poly:
        """The form of 1 / p, where 1/0 is some number (0): inv(ab) = inv(a) inv(b), inv(inv(a)) =
        a. A factor that may be 0 does not cancel."""
        if not p.terms:
            return self.poly("inv", p)  # 1/0 is some fixed number, of which nothing else is known
        if len(p.terms) > 1:
            return quotients.inverse_of_sum(self, p)
        ((monomial, c),) = p.terms.items()
        result = constant_poly(plain_rational(1 / Fraction(c)))
        for a, power in monomial:
            if a.kind == "exp":
                one = self.exp(a.args[0].scaled(-1))
            elif a.kind == "size" and a.args[0] not in self.indices.extents:
                one, power = Poly({((a, -power),): 1}), 1
            elif a.kind == "inv":
                one = a.args[0]
            else:
                one = self.poly("inv", Poly({((a, 1),): 1}))
                if maxima.surely_positive(self, Poly({((a, 1),): 1})):
                    self.inverses[next(iter(one.terms))[0][0]] = a
            result = self.mul(result, self.power(one, power))
        return result

    def exp(self, p: Poly) -> Poly:
        if any(a.kind == maxima.LOG for m in p.terms for a, _ in m):
            found = rewrites.exp_of_logs(self, p)
            if found is not None:
                return found
        return self.poly("exp", p) if p.terms else ONE

    def flipped(self, p: Poly) -> bool:
        """Whether -p is the normal one of p and -p."""
        total = sum(p.terms.values())
        if total or not p.terms:
            return bool(total < 0)
        return bool(p.terms[min(p.terms, key=lambda m: (self.monomial_form(m), m))] < 0)

    def shifted(self, p: Poly) -> tuple[Poly, Poly]:
        """(e, q) with p = exp(e) q: the shared exponent of all terms, and of two terms one
        exponential in the normal direction."""
        exponents = [next((a.args[0] for a, _ in m if a.kind == "exp"), ZERO) for m in p.terms]
        if not exponents or not any(e.terms for e in exponents):
            return ZERO, p
        if len(exponents) == 2:
            e = exponents[1] if self.flipped(exponents[1] - exponents[0]) else exponents[0]
        else:
            first, *others = (e.terms for e in exponents)
            e = Poly({m: c for m, c in first.items() if all(o.get(m) == c for o in others)})
        return (e, self.mul(self.poly("exp", e.scaled(-1)), p)) if e.terms else (ZERO, p)

    def sqrt(self, p: Poly) -> Poly:
        return quotients.sqrt(self, p)

    def largest(self, branches: Sequence[Branch]) -> Poly:
        return maxima.largest(self, branches)

    def pulled(self, branches: list[Branch]) -> Poly | None:
        return rewrites.pulled(self, branches)

    def factored(self, p: Poly) -> Poly:
        return quotients.factored(self, p)

    def log(self, p: Poly) -> Poly:
        return rewrites.log(self, p)

    def span(self, kind: str, args: tuple[Poly, ...]) -> Interval:
        return rewrites.bounds(self, kind, args)

    # ------------------------------------------------------------ integers

    def of_dim(self, e: Dim) -> Poly:
        """A size or index as a number."""
        if isinstance(e, int):
            return constant_poly(e)
        total = ZERO
        for monomial, c in e.terms:
            part = constant_poly(c)
            for atom, power in monomial:
                one = self.poly("size", atom) if isinstance(atom, str) else self._integer(atom)
                part = self.mul(part, self.power(one, power))
            total = total + part
        return total

    def _integer(self, atom: Floor | DataIndex) -> Poly:
        if isinstance(atom, DataIndex):
            raise Unprovable("an index read from data is used as a number")
        return self.poly("floor", Symbolic(((((atom, 1),), 1),)))

    def as_dim(self, p: Poly) -> Dim | None:
        """The integer that a polynomial over sizes and indices is; None for others."""
        total: Dim = 0
        for monomial, c in p.terms.items():
            part: Dim = 1
            for a, power in monomial:
                if a.kind not in ("size", "floor") or power < 0:
                    return None
                value = symbol(a.args[0]) if a.kind == "size" else a.args[0]
                for _ in range(power):
                    part = part * value
            if c.denominator != 1:
                return None
            total = total + part * int(c)
        return total

    def position(self, p: Poly, extent: Dim) -> Dim:
        """The index that a number is: a plain integer that is surely within 0..extent-1, or an
        unknown one there that depends on the number; those below 0 count from the end."""
        e = self.as_dim(p)
        if isinstance(e, int):
            return e + extent if e < 0 else e
        inside = e is not None and self.indices.nonnegative(e) and self.indices.nonnegative(extent - 1 - e)
        return e if e is not None and inside else self.place(p, extent)

    def place(self, p: Poly, extent: Dim) -> Dim:
        """The unknown index: one for equal numbers and extents."""
        if extent == 1:
            return 0
        key = (p, extent)
        if key not in self._places:
            text = f"@{len(self._places)}"
            place = DataIndex(Looked(self, p, extent), text)
            self._places[key] = Symbolic(((((place, 1),), 1),))  # type: ignore[arg-type]
        return self._places[key]

    # ------------------------------------------------------------ substitution

    def bind(self, p: Poly, mapping: Mapping[str, Dim]) -> Poly:
        """`p` with integers replaced."""
        if p.names.isdisjoint(mapping):
            return p
        total = ZERO
        for m, c in p.terms.items():
            total = total + self.bind_monomial(m, mapping).scaled(c)
        return total

    def bind_monomial(self, m: Monomial, mapping: Mapping[str, Dim]) -> Poly:
        fixed = tuple(x for x in m if x[0].names.isdisjoint(mapping))
        part = Poly({fixed: 1})
        for a, power in m:
            if not a.names.isdisjoint(mapping):
                one = self._bind_atom(a, {k: v for k, v in mapping.items() if k in a.names})
                part = self.mul(part, self.power(self.inverse(one) if power < 0 else one, abs(power)))
        return part

    def _bind_atom(self, a: Atom, mapping: Mapping[str, Dim]) -> Poly:
        key = (a, tuple(sorted(mapping.items())))
        if key not in self._bound:
            self._bound[key] = self._rebuilt(a, mapping)
        return self._bound[key]

    def _rebuilt(self, a: Atom, mapping: Mapping[str, Dim]) -> Poly:
        bind = self.indices.bind
        if a.kind == "read":
            return self.poly("read", a.args[0], tuple(bind(i, mapping) for i in a.args[1]))
        if a.kind in ("size", "floor"):
            return self.of_dim(bind(symbol(a.args[0]) if a.kind == "size" else a.args[0], mapping))
        if a.kind in ("sum", "prod"):
            bound, conditions, body = a.args
            conditions = tuple(bind(e, mapping) for e in conditions)
            return folds.fold(self, a.kind, bound, conditions, self.bind_monomial(body, mapping))
        if a.kind == "max":
            branches = [(b, tuple(bind(e, mapping) for e in c), self.bind(p, mapping)) for b, c, p in a.args]
            return maxima.largest(self, branches)
        return self.apply(a.kind, *[self.bind(x, mapping) if isinstance(x, Poly) else x for x in a.args])

    def apply(self, kind: str, *args: Any) -> Poly:
        """A function of normal forms."""
        if kind == "inv":
            return self.inverse(args[0])
        if kind == "exp":
            return self.exp(args[0])
        if kind == "sqrt":
            return self.sqrt(args[0])
        if kind in ("positive", "zero"):
            return self.sign(kind, args[0])
        of = atom_kind(kind)
        if of.wraps:
            return machine.wrapped_value(self, args[0], of.result)
        if of.result:
            return rewrites.rewritten(self, kind, args)
        return self.poly(kind, *args)

    def _one_is_zero(self, m: Monomial) -> Poly:
        """[m = 0] of a product: whether one of its factors is 0, which no quotient 1 / x is."""
        ps = [a.args[0] if a.kind == "sqrt" else Poly({((a, 1),): 1}) for a, _ in m if a.kind != "inv"]
        if len(ps) == 1 and ps[0].terms.keys() == {m}:
            return self.poly("zero", ps[0])
        return self.largest([((), (), self.sign("zero", p)) for p in ps]) if ps else ZERO

    def sign(self, kind: str, p: Poly) -> Poly:
        """[p > 0] or [p = 0], as 0 or 1; a positive factor does not matter."""
        p = rewrites.sign_of(self, kind, p)
        n = p.number
        if n is not None:
            return ONE if (n > 0 if kind == "positive" else n == 0) else ZERO
        above, below = (maxima.surely_positive(self, q) for q in (p, p.scaled(-1)))
        if above or below:
            return ONE if above and kind == "positive" else ZERO
        if kind == "positive" and maxima.surely_nonnegative(self, p.scaled(-1)):
            return ZERO
        if kind == "zero" and len(p.terms) == 1:
            return self._one_is_zero(next(iter(p.terms)))
        c = abs(Fraction(self.content(p))) * (-1 if self.flipped(p) else 1)
        return self.poly(kind, p.scaled(plain_rational(1 / (c if kind == "zero" else abs(c)))))


def _parts(kind: str, args: tuple[Any, ...]) -> tuple[list[Dim], list[Poly], tuple[str, ...]]:
    """The integers, normal forms and bound names of an atom."""
    if kind == "read":
        return list(args[1]), [], ()
    if kind == "size":
        return [symbol(args[0])], [], ()
    if kind == "floor":
        return [args[0]], [], ()
    if kind in ("sum", "prod"):
        return list(args[1]), [Poly({args[2]: 1})], args[0]
    if kind == "max":
        dims = [e for b in args for e in b[1]]
        return dims, [b[2] for b in args], tuple(n for b in args for n in b[0])
    return [], [a for a in args if isinstance(a, Poly)], ()


def _boolean(a: Atom) -> bool:
    return a.kind in ("positive", "zero") or (a.kind == "read" and a.args[0][0] == "bool")
