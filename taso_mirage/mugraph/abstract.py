"""The sketch of a term: its normal form over named axes, modulo the axioms of Mirage (OSDI'25,
section 4.3), and the terms that are part of it.

A sketch is a polynomial: products of atoms with integer coefficients. An atom is an input, exp of a
product, a sum over bound labels, a function, a polynomial that stays factored (under an inverse, a
root or a product of sums), or a whole, which is a polynomial that nothing takes apart; it carries a
root level and an exponent. A sum distributes and pulls out factors without its label, exp(a + b)
splits, sqrt is multiplicative and otherwise opaque, and a product of sums is never expanded.
Sketches of one algebra are integers: equal means interned equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import permutations, product

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import times
from taso_mirage.mugraph.atoms import (
    EXP_FORM,
    FOLD,
    FUNCTION,
    INPUT_FORM,
    NUMBER,
    POLY,
    ROOT_LEVELS,
    SHARE_FORM,
    SIZE,
    SUM_FORM,
    WHOLE,
    AbstractExpression,
    AbstractFactor,
    Coefficient,
    FactorPowers,
    LabelSet,
    ProductSum,
    Properties,
    Renaming,
    family,
    first,
    joined_factors,
    nearest,
    over,
    plain_number,
    power,
)


class Algebra:
    """The sketches of one goal: every operation is memoised, every result interned."""

    def __init__(self) -> None:
        self.atoms: list[AbstractFactor] = []
        self._of_atom: list[Properties] = []
        self._atom_ids: dict[AbstractFactor, int] = {}
        self.polys: list[ProductSum] = []
        self._of_poly: list[Properties] = []
        self._poly_ids: dict[ProductSum, AbstractExpression] = {}
        self._renamed: dict[tuple[int, Renaming], int] = {}
        self._components: dict[tuple[tuple[str, ...], FactorPowers], int] = {}
        self._flat: dict[FactorPowers, tuple[tuple[str, ...], FactorPowers]] = {}
        self._lines: dict[AbstractExpression, tuple[frozenset[int], frozenset[int]]] = {}
        self._split: dict[AbstractExpression, tuple[FactorPowers, Coefficient, AbstractExpression]] = {}
        self._memo: dict[tuple[str, int, object], AbstractExpression] = {}
        self._wholes: dict[AbstractExpression, AbstractExpression] = {}
        self._fresh = 0
        self.zero = self._intern({})
        self.one = self.number(1)

    # ------------------------------------------------------------ interning

    def _atom(self, atom: AbstractFactor) -> int:
        found = self._atom_ids.get(atom)
        if found is None:
            found = self._atom_ids[atom] = len(self.atoms)
            self.atoms.append(atom)
            self._of_atom.append(self._properties(atom))
        return found

    def _properties(self, atom: AbstractFactor) -> Properties:
        if atom.form is INPUT_FORM:
            return Properties(frozenset(atom.labels))
        parts = joined_factors(
            [self._of_poly[p] for p in atom.polys] + [self._of_atom[f // ROOT_LEVELS] for f, _ in atom.inner]
        )
        return Properties(
            parts.free.difference(atom.labels),
            parts.height + bool(atom.labels),
            parts.exponential or atom.form is EXP_FORM or atom.exponential,
        )

    def _intern(self, terms: Mapping[FactorPowers, Coefficient]) -> AbstractExpression:
        poly = tuple(sorted([(m, plain_number(c)) for m, c in terms.items() if c], key=first))
        found = self._poly_ids.get(poly)
        if found is None:
            found = self._poly_ids[poly] = len(self.polys)
            self.polys.append(poly)
            self._of_poly.append(joined_factors([self._of_atom[f // ROOT_LEVELS] for m, _ in poly for f, _ in m]))
        return found

    def single(self, factors: FactorPowers, coefficient: Coefficient = 1) -> AbstractExpression:
        """The polynomial of one product."""
        return self._intern({factors: coefficient})

    def _leaf(self, atom: AbstractFactor) -> AbstractExpression:
        return self.single(((self._atom(atom) * ROOT_LEVELS, 1),))

    def free(self, p: AbstractExpression) -> LabelSet:
        """The labels that a term depends on."""
        return self._of_poly[p].free

    def free_of(self, factor: int) -> LabelSet:
        """The labels that a factor depends on."""
        return self._of_atom[factor // ROOT_LEVELS].free

    # ------------------------------------------------------------ leaves and functions

    def number(self, value: Coefficient) -> AbstractExpression:
        return self._intern({(): value})

    def is_number(self, p: AbstractExpression) -> bool:
        """Whether a term is only a coefficient, like the sum of a softmax."""
        return all(not factors for factors, _ in self.polys[p])

    def input(self, name: str, labels: Sequence[str] = ()) -> AbstractExpression:
        return self._leaf(AbstractFactor(INPUT_FORM, name, tuple(labels)))

    def function(self, name: str, args: Sequence[AbstractExpression], exponential: bool = False) -> AbstractExpression:
        """An opaque function; `exponential` where the field knows its value mod p alone, so that
        exp of it is opaque too."""
        return self._leaf(AbstractFactor(FUNCTION, name, (), tuple(args), (), exponential))

    def share(self, label: str) -> AbstractExpression:
        """1 / n for a label of n elements: a mean's factor stands where its sum does, above or
        below a fraction line."""
        return self._leaf(AbstractFactor(SHARE_FORM, family(label)))

    def whole(self, p: AbstractExpression) -> AbstractExpression:
        """Make a sum one opaque value, independent of its summands."""
        if len(self.polys[p]) > 1:
            self._wholes[p] = self._leaf(AbstractFactor(WHOLE, polys=(p,)))
        return self._wholes.get(p, p)

    # ------------------------------------------------------------ arithmetic

    def add(self, p: AbstractExpression, q: AbstractExpression, sign: int = 1) -> AbstractExpression:
        made = self._add(p, q, sign)
        return self._wholes.get(made, made)

    def _add(self, p: AbstractExpression, q: AbstractExpression, sign: int) -> AbstractExpression:
        def compute() -> AbstractExpression:
            total = dict(self.polys[p])
            for m, c in self.polys[q]:
                total[m] = total.get(m, 0) + sign * c
            return self._intern(total)

        return self._once("add" if sign == 1 else "sub", p, q, compute)

    def sub(self, p: AbstractExpression, q: AbstractExpression) -> AbstractExpression:
        return self.add(p, q, -1)

    def mul(self, p: AbstractExpression, q: AbstractExpression) -> AbstractExpression:
        return self._once("mul", min(p, q), max(p, q), lambda: self._mul(p, q))

    def _mul(self, p: AbstractExpression, q: AbstractExpression) -> AbstractExpression:
        if len(self.polys[p]) > 1 and len(self.polys[q]) > 1:
            ((a, c),), ((b, d),) = self.polys[self.factored(p)], self.polys[self.factored(q)]
            return self.single(times(a, b), c * d)
        total: dict[FactorPowers, Coefficient] = {}
        for m, c in self.polys[p]:
            for n, d in self.polys[q]:
                for each, e in self._opened(times(m, n), c * d):
                    total[each] = total.get(each, 0) + e
        return self._intern(total)

    def factored(self, p: AbstractExpression) -> AbstractExpression:
        """p as one product, with a sum as a factor."""
        shared, c, rest = self.common(p)
        return self.single(times(shared, self._factored(rest)), c) if rest != self.one else p

    def _factored(self, p: AbstractExpression) -> FactorPowers:
        return ((self._atom(AbstractFactor(POLY, polys=(p,))) * ROOT_LEVELS, 1),)

    def _opened(self, factors: FactorPowers, coefficient: Coefficient) -> ProductSum:
        """Distribute a product over its only factor that is a sum."""
        sums = [
            (f, e) for f, e in factors if e > 0 and not f % ROOT_LEVELS and self.atoms[f // ROOT_LEVELS].form is POLY
        ]
        if len(sums) != 1 or sums[0][1] != 1:
            return ((factors, coefficient),)
        rest = self.single(tuple(f for f in factors if f != sums[0]), coefficient)
        return self.polys[self.mul(rest, self.atoms[sums[0][0] // ROOT_LEVELS].polys[0])]

    def common(self, p: AbstractExpression) -> tuple[FactorPowers, Coefficient, AbstractExpression]:
        """p as product * number * rest, the rest without a common factor; its first coefficient, in
        an order that no renaming changes, is 1."""
        terms = self.polys[p]
        if len(terms) == 1:
            return *terms[0], self.one
        found = self._split.get(p)
        if found is None:
            found = self._split[p] = self._common(terms)
        return found

    def _common(self, terms: ProductSum) -> tuple[FactorPowers, Coefficient, AbstractExpression]:
        shared: dict[int, int] = dict(terms[0][0])
        for m, _ in terms[1:]:
            other = dict(m)
            shared = {f: nearest(e, other[f]) for f, e in shared.items() if f in other and e * other[f] > 0}
        factors = tuple(sorted(shared.items()))
        unit = min(terms, key=lambda term: (self.erased.product(term[0]), term[0]))[1]
        back = power(factors, -1)
        return factors, unit, self._intern({times(m, back): over(c, unit) for m, c in terms})

    def inverse(self, p: AbstractExpression) -> AbstractExpression:
        """1 / p. Raises Unsupported for 0."""
        if p == self.zero:
            raise Unsupported("a term that is zero everywhere is divided by")
        factors, c, rest = self.common(p)
        below = factors if rest == self.one else times(factors, self._factored(rest))
        return self.single(power(below, -1), over(1, c))

    def div(self, p: AbstractExpression, q: AbstractExpression) -> AbstractExpression:
        return self.mul(p, self.inverse(q))

    def sqrt(self, p: AbstractExpression) -> AbstractExpression:
        factors, c, rest = self.common(p) if p != self.zero else ((), 1, p)
        if c != 1:
            factors = times(factors, ((self._atom(AbstractFactor(NUMBER, str(c))) * ROOT_LEVELS, 1),))
        if rest != self.one:
            factors = times(factors, self._factored(rest))
        if any(f % ROOT_LEVELS == ROOT_LEVELS - 1 for f, _ in factors):
            raise Unsupported(f"{ROOT_LEVELS} nested roots")
        return self.single(tuple((f + 1, e) for f, e in factors))

    def exp(self, p: AbstractExpression) -> AbstractExpression:
        """exp(a + b) = exp(a) exp(b); the exp of a term with an exp inside it is opaque, as it is
        in the field."""
        if self._of_poly[p].exponential:
            return self.function("", (p,), True)
        total: FactorPowers = ()
        for m, c in self.polys[p]:
            if isinstance(c, Fraction):
                m, c = times(m, ((self._atom(AbstractFactor(NUMBER, str(c))) * ROOT_LEVELS, 1),)), 1
            total = times(total, ((self._atom(AbstractFactor(EXP_FORM, inner=m)) * ROOT_LEVELS, c),))
        return self.single(total)

    # ------------------------------------------------------------ folds

    def sum(self, p: AbstractExpression, label: str) -> AbstractExpression:
        return self._once("sum", p, label, lambda: self._sum(p, label))

    def _sum(self, p: AbstractExpression, label: str) -> AbstractExpression:
        total: dict[FactorPowers, Coefficient] = {}
        for m, c in self.polys[p]:
            inside = tuple([f for f in m if label in self.free_of(f[0])])
            outside = tuple([f for f in m if label not in self.free_of(f[0])])
            if inside:
                bound, factors = self.flat(inside)
                own = f"{family(label)}#f"
                factors = self.rename_product(factors, ((label, own),))
                each = times(outside, ((self._component((*bound, own), factors) * ROOT_LEVELS, 1),))
            else:
                each = times(outside, ((self._atom(AbstractFactor(SIZE, family(label))) * ROOT_LEVELS, 1),))
            total[each] = total.get(each, 0) + c
        return self._intern(total)

    def folded(self, p: AbstractExpression, labels: Sequence[str]) -> AbstractExpression:
        """The sum over several labels."""
        for label in reversed(labels):
            p = self.sum(p, label)
        return p

    def fold(self, name: str, p: AbstractExpression, label: str) -> AbstractExpression:
        """The sketch of another reduction over a label: opaque, except that its bound name does not
        matter."""
        bound = f"{family(label)}#{self._of_poly[p].height + 1}.0"
        return self._leaf(AbstractFactor(FOLD, name, (bound,), (self.rename(p, ((label, bound),)),)))

    def roots(self, p: AbstractExpression) -> int:
        """The deepest root that a factor is under."""
        return max([f % ROOT_LEVELS for m, _ in self.polys[p] for f, _ in m], default=0)

    def above(self, p: AbstractExpression, sign: int = 1) -> frozenset[int]:
        """The factors above the fraction line of p, or of 1/p for the sign -1."""
        return self.lines(p if sign > 0 else self.inverse(p))[0]

    def below(self, p: AbstractExpression, sign: int = 1) -> frozenset[int]:
        """The factors below the fraction line of p, or of 1/p for the sign -1."""
        return self.lines(p if sign > 0 else self.inverse(p))[1]

    def lines(self, p: AbstractExpression) -> tuple[frozenset[int], frozenset[int]]:
        found = self._lines.get(p)
        if found is None:
            factors = [pair for m, _ in self.polys[p] for pair in m]
            found = frozenset(f for f, e in factors if e > 0), frozenset(f for f, e in factors if e < 0)
            self._lines[p] = found
        return found

    def _free_name(self, label: str) -> str:
        self._fresh += 1
        return f"{family(label)}#f{self._fresh}"

    def flat(self, factors: FactorPowers) -> tuple[tuple[str, ...], FactorPowers]:
        """A product with its sums opened: fresh labels for those that they bind, and all factors
        below them."""
        found = self._flat.get(factors)
        if found is None:
            found = self._flat[factors] = self._opened_sums(factors)
        return found

    def _opened_sums(self, factors: FactorPowers) -> tuple[tuple[str, ...], FactorPowers]:
        bound: list[str] = []
        total: FactorPowers = ()
        for f, e in factors:
            atom = self.atoms[f // ROOT_LEVELS]
            if atom.form is not SUM_FORM or f % ROOT_LEVELS or e < 0:
                total = times(total, ((f, e),))
                continue
            for _ in range(e):
                renaming = tuple([(b, self._free_name(b)) for b in atom.labels])
                bound += [new for _, new in renaming]
                total = times(total, self.rename_product(atom.inner, renaming))
        return tuple(bound), total

    def _component(self, bound: tuple[str, ...], factors: FactorPowers) -> int:
        """The atom of a sum.

        Bound names number the binder's height, so that nothing below is captured; the least order
        is taken.
        """
        key = bound, factors
        found = self._components.get(key)
        if found is None:
            height = max(self._of_atom[f // ROOT_LEVELS].height for f, _ in factors) + 1
            groups: dict[str, list[str]] = {}
            for b in bound:
                groups.setdefault(family(b), []).append(b)
            names = tuple([f"{name}#{height}.{i}" for name, group in groups.items() for i in range(len(group))])
            orders = product(*[permutations(group) for group in groups.values()])
            least = min(
                self.rename_product(factors, tuple(zip([b for group in order for b in group], names, strict=True)))
                for order in orders
            )
            found = self._components[key] = self._atom(AbstractFactor(SUM_FORM, "", tuple(sorted(names)), (), least))
        return found

    # ------------------------------------------------------------ renaming

    def rename(self, p: AbstractExpression, renaming: Renaming) -> AbstractExpression:
        """All labels of `renaming` at once."""
        free = self.free(p)
        needed = tuple([pair for pair in renaming if pair[0] in free and pair[0] != pair[1]])
        if not needed:
            return p

        def compute() -> AbstractExpression:
            total: dict[FactorPowers, Coefficient] = {}
            for m, c in self.polys[p]:
                each = self.rename_product(m, needed)
                total[each] = total.get(each, 0) + c
            return self._intern(total)

        return self._once("rename", p, needed, compute)

    def rename_product(self, factors: FactorPowers, renaming: Renaming) -> FactorPowers:
        total: dict[int, int] = {}
        for f, e in factors:
            new = self._rename_atom(f // ROOT_LEVELS, renaming) * ROOT_LEVELS + f % ROOT_LEVELS
            total[new] = total.get(new, 0) + e
        return tuple(sorted([pair for pair in total.items() if pair[1]]))

    def _rename_atom(self, i: int, renaming: Renaming) -> int:
        free = self._of_atom[i].free
        needed = tuple([pair for pair in renaming if pair[0] in free and pair[0] != pair[1]])
        if not needed:
            return i
        key = i, needed
        found = self._renamed.get(key)
        if found is None:
            atom = self.atoms[i]
            if atom.form is INPUT_FORM:
                names = dict(needed)
                found = self._atom(atom._replace(labels=tuple(names.get(label, label) for label in atom.labels)))
            elif atom.form is SUM_FORM:
                found = self._component(atom.labels, self.rename_product(atom.inner, needed))
            else:
                polys = tuple(self.rename(p, needed) for p in atom.polys)
                found = self._atom(atom._replace(polys=polys, inner=self.rename_product(atom.inner, needed)))
                if atom.form is WHOLE:
                    self._wholes[polys[0]] = self.single(((found * ROOT_LEVELS, 1),))
            self._renamed[key] = found
        return found

    def _once(
        self, op: str, p: AbstractExpression, other: object, compute: Callable[[], AbstractExpression]
    ) -> AbstractExpression:
        key = op, p, other
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = compute()
        return found

    @cached_property
    def erased(self) -> _Erased:
        return _Erased(self)


class _Erased:
    """Atoms without their labels, as numbers that are equal for atoms that a renaming could make
    equal."""

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra
        self._ids: dict[object, int] = {}
        self._atoms: dict[int, int] = {}
        self._polys: dict[AbstractExpression, int] = {}

    def atom(self, i: int) -> int:
        found = self._atoms.get(i)
        if found is None:
            atom = self._algebra.atoms[i]
            polys = tuple([self.poly(p) for p in atom.polys])
            key = atom.form, atom.name, atom.exponential, len(atom.labels), polys, self.product(atom.inner)
            found = self._atoms[i] = self._ids.setdefault(key, len(self._ids))
        return found

    def poly(self, p: AbstractExpression) -> int:
        found = self._polys.get(p)
        if found is None:
            key = tuple(sorted([(self.product(m), c) for m, c in self._algebra.polys[p]]))
            found = self._polys[p] = self._ids.setdefault(("poly", key), len(self._ids))
        return found

    def product(self, factors: FactorPowers) -> FactorPowers:
        return tuple(sorted(self.counts(factors).items()))

    def counts(self, factors: FactorPowers) -> dict[int, int]:
        """The exponents of each erased factor, separately above and below a fraction line."""
        total: dict[int, int] = {}
        for f, e in factors:
            key = (self.atom(f // ROOT_LEVELS) * ROOT_LEVELS + f % ROOT_LEVELS) * 2 + (e < 0)
            total[key] = total.get(key, 0) + abs(e)
        return total
