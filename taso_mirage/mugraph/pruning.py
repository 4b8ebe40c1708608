"""Pruning by sub-expression (Mirage, OSDI'25, section 4.3): a term is kept if the goal can still be
made of it.

P is part of a target T if for a monomial t of T and an injective map of P's labels, Q = t / P has
no sign or rest that t lacks and sum(P * Q) is within T. The targets are the goal and every
polynomial within an atom, a root, an inverse or an exp of it. A term that would have to cancel
later is not part of any target, because there is no cancellation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from taso_mirage.ir.dims import times
from taso_mirage.mugraph.abstract import Algebra
from taso_mirage.mugraph.atoms import (
    EXP_FORM,
    ROOT_LEVELS,
    AbstractExpression,
    Coefficient,
    FactorPowers,
    Renaming,
    family,
)


class _Opened(NamedTuple):
    """A monomial of a target with its sums opened.

    It has its labels and those of its target, by family, and the counts of its factors without
    labels.
    """

    coefficient: Coefficient
    bound: tuple[str, ...]
    factors: FactorPowers
    labels: dict[str, list[str]]
    counts: dict[int, int]


class Targets:
    """The polynomials that a closure makes, and the test that prunes it."""

    def __init__(self, algebra: Algebra, goals: Iterable[AbstractExpression]) -> None:
        self.algebra = algebra
        self.polys = _targets(algebra, goals)
        self._terms = {p: dict(algebra.polys[p]) for p in self.polys}
        self._opened = {p: [self._open(m, c, p) for m, c in algebra.polys[p]] for p in self.polys}
        self._memo: dict[AbstractExpression, bool] = {algebra.one: True, algebra.zero: False}
        self._places: dict[AbstractExpression, int] = {}

    def _open(self, factors: FactorPowers, coefficient: Coefficient, target: AbstractExpression) -> _Opened:
        bound, opened = self.algebra.flat(factors)
        groups: dict[str, list[str]] = {}
        for label in (*sorted(self.algebra.free(target)), *bound):
            groups.setdefault(family(label), []).append(label)
        return _Opened(coefficient, bound, opened, groups, self.algebra.erased.counts(opened))

    def __contains__(self, p: AbstractExpression) -> bool:
        found = self._memo.get(p)
        if found is None:
            found = self._memo[p] = self._part(p)
        return found

    @property
    def checked(self) -> int:
        """The number of different terms that were tested."""
        return len(self._memo) - 2

    def places(self, p: AbstractExpression) -> int:
        """The targets, as bits, of which every product of p is a part of some product, ignoring
        labels. A product or a sum without cancellation is a part of every target of which all its
        operands are parts."""
        found = self._places.get(p)
        if found is None:
            counts = [self.algebra.erased.counts(self.algebra.flat(m)[1]) for m, _ in self.algebra.polys[p]]
            fits = [all(any(_fits(c, t) for t in monomials) for c in counts) for monomials in self._opened.values()]
            found = self._places[p] = sum(1 << i for i, fit in enumerate(fits) if fit)
        return found

    def _part(self, p: AbstractExpression) -> bool:
        algebra, places = self.algebra, self.places(p)
        if not places:
            return False
        terms = algebra.polys[p]
        bound, factors = algebra.flat(terms[0][0])
        free = tuple(sorted(algebra.free(p)))
        counts = algebra.erased.counts(factors)
        for i, (target, monomials) in enumerate(self._opened.items()):
            if not places >> i & 1 or len(monomials) < len(terms):
                continue
            for t in monomials:
                if _fits(counts, t) and any(
                    self._within(p, free, terms[0][1], factors, m, t, target) for m in _maps((*free, *bound), t)
                ):
                    return True
        return False

    def _within(
        self,
        p: AbstractExpression,
        free: tuple[str, ...],
        coefficient: Coefficient,
        factors: FactorPowers,
        renaming: Renaming,
        t: _Opened,
        target: AbstractExpression,
    ) -> bool:
        algebra = self.algebra
        rest = _quotient(t.factors, algebra.rename_product(factors, renaming))
        if rest is None or t.coefficient % coefficient:
            return False
        whole = algebra.mul(
            algebra.rename(p, renaming[: len(free)]), algebra.single(rest, t.coefficient // coefficient)
        )
        for label in t.bound:
            if label in algebra.free(whole):
                whole = algebra.sum(whole, label)
        terms = self._terms[target]
        return all(terms.get(m) == c for m, c in algebra.polys[whole])


def _fits(counts: Mapping[int, int], t: _Opened) -> bool:
    return all(t.counts.get(key, 0) >= n for key, n in counts.items())


def _maps(labels: tuple[str, ...], t: _Opened) -> Iterator[Renaming]:
    """Every injective map of labels into a target's labels of the same family."""
    for images in product(*[t.labels.get(family(label), ()) for label in labels]):
        if len(set(images)) == len(images):
            yield tuple(zip(labels, images, strict=True))


def _quotient(whole: FactorPowers, part: FactorPowers) -> FactorPowers | None:
    """whole / part, where part has no factor of another sign or a larger exponent."""
    left = dict(whole)
    for f, e in part:
        had = left.get(f, 0)
        if had * e <= 0 or abs(had) < abs(e):
            return None
        left[f] = had - e
    return tuple([(f, e) for f, e in left.items() if e])


def _targets(algebra: Algebra, goals: Iterable[AbstractExpression]) -> tuple[AbstractExpression, ...]:
    found: dict[AbstractExpression, None] = {}
    waiting = list(goals)[::-1]
    while waiting:
        p = waiting.pop()
        if p not in found:
            found[p] = None
            for factors, _ in algebra.polys[p]:
                waiting += _inner(algebra, factors)
    return tuple(found)


def _inner(algebra: Algebra, factors: FactorPowers) -> Iterator[AbstractExpression]:
    for f, _ in factors:
        atom = algebra.atoms[f // ROOT_LEVELS]
        if atom.inner:
            yield algebra.single(atom.inner)
        yield from atom.polys
    yield from _grouped(algebra, factors)
    for each in (factors, algebra.flat(factors)[1]):  # exp(a) exp(b) is exp(a + b)
        exponents: Counter[FactorPowers] = Counter()
        for f, e in each:
            if algebra.atoms[f // ROOT_LEVELS].form is EXP_FORM and not f % ROOT_LEVELS:
                exponents[algebra.atoms[f // ROOT_LEVELS].inner] += e
        if len(exponents) > 1:
            total = algebra.zero
            for inner, e in exponents.items():
                total = algebra.add(total, algebra.single(inner, e))
            yield total


def _grouped(algebra: Algebra, factors: FactorPowers) -> Iterator[AbstractExpression]:
    """The products below a fraction line, or under a root."""
    for level in range(1 + max([f % ROOT_LEVELS for f, _ in factors], default=0)):
        for sign in (1, -1):
            group: FactorPowers = ()
            for f, e in factors:
                if f % ROOT_LEVELS >= level and e * sign > 0 and (level or sign < 0):
                    group = times(group, ((f - level, abs(e)),))
            if group:
                yield algebra.single(group)
