"""Whether two normal forms are equal: folds up to a one-to-one affine change of their bound
integers (TensorRight, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import permutations

from taso_mirage.ir.dims import Dim, Symbolic, bind, symbol
from taso_mirage.meanings.conditions import Conditions, index_names, linear
from taso_mirage.meanings.polynomials import ZERO, Atom, Monomial, Poly
from taso_mirage.prove.folds import opened_binder
from taso_mirage.prove.quotients import cleared
from taso_mirage.prove.scalars import Scalars

CANDIDATES = 60
"""The number of changes of bound integers that are tried for one pair of folds."""


class Matching:
    """Equality of normal forms of one proof; `given` are conditions on the free integers."""

    def __init__(self, algebra: Scalars) -> None:
        self.algebra, self.indices = algebra, algebra.indices
        self._known: dict[tuple[Conditions, Atom, Atom], bool] = {}

    def same(self, p: Poly, q: Poly, given: Conditions) -> bool:
        """Whether p = q: terms that are equal are counted together, and all counts must be 0."""
        difference = p - q
        if not difference.terms or (not given and all(a.level == 0 for m in difference.terms for a, _ in m)):
            if not difference.terms:  # without folds and conditions the normal form decides
                return True
            whole = cleared(self.algebra, difference)
            return whole is not None and self.same(whole, ZERO, given)
        classes: list[tuple[Monomial, int, Fraction]] = []
        for m, c in difference.terms.items():
            form = self.algebra.monomial_form(m)
            self.indices.step()
            for i, (other, of, total) in enumerate(classes):
                if of == form and self._same_monomial(other, m, given):
                    classes[i] = (other, of, total + Fraction(c))
                    break
            else:
                classes.append((m, form, Fraction(c)))
        if all(total == 0 for _, _, total in classes):
            return True
        whole = cleared(self.algebra, difference)
        return whole is not None and self.same(whole, ZERO, given)

    def _same_monomial(self, m: Monomial, n: Monomial, given: Conditions) -> bool:
        left = [x for x in n if x not in m]
        for a, power in m:
            if (a, power) in n:
                continue
            found = next((x for x in left if x[1] == power and self.same_atom(a, x[0], given)), None)
            if found is None:
                return False
            left.remove(found)
        return not left

    def same_atom(self, a: Atom, b: Atom, given: Conditions) -> bool:
        if a is b:
            return True
        if a.kind != b.kind or a.skeleton != b.skeleton:
            return False
        key = (given, a, b)
        if key not in self._known:
            self.indices.step(5)
            self._known[key] = False
            self._known[key] = self._same(a, b, given)
        return self._known[key]

    def _same(self, a: Atom, b: Atom, given: Conditions) -> bool:
        if a.kind == "read":
            return a.args[0] == b.args[0] and self._equal(a.args[1], b.args[1], given)
        if a.kind in ("size", "floor"):
            return False
        if a.kind in ("sum", "prod"):
            one, other = ((x.args[0], x.args[1], Poly({x.args[2]: 1})) for x in (a, b))
            return self._same_fold(one, other, given)
        if a.kind == "max":
            return self._same_largest(a, b, given)
        pairs = zip(a.args, b.args, strict=True)
        return all(x == y or (isinstance(x, Poly) and self.same(x, y, given)) for x, y in pairs)

    def _equal(self, xs: Sequence[Dim], ys: Sequence[Dim], given: Conditions) -> bool:
        for x, y in zip(xs, ys, strict=True):
            d = x - y
            if d == 0:
                continue
            if isinstance(d, int) or not given:
                return False
            if not (self.indices.entails(given, d, True) and self.indices.entails(given, -d, True)):
                return False
        return True

    # ------------------------------------------------------------ folds

    def _same_largest(self, a: Atom, b: Atom, given: Conditions) -> bool:
        left = list(b.args)
        for branch in a.args:
            found = next((x for x in left if x == branch or self._same_fold(branch, x, given)), None)
            if found is None:
                return False
            left.remove(found)
        return not left

    def _same_fold(
        self,
        a: tuple[tuple[str, ...], Conditions, Poly],
        b: tuple[tuple[str, ...], Conditions, Poly],
        given: Conditions,
    ) -> bool:
        if len(a[0]) != len(b[0]):
            return False
        mine, some, body = opened_binder(self.algebra, *a)
        theirs, others, rest = opened_binder(self.algebra, *b)
        for i, change in enumerate(self._changes(mine, body, theirs, rest)):
            if i >= CANDIDATES:
                break
            self.indices.step(10)
            if not _unimodular(mine, theirs, change):
                continue
            if not self._equivalent(mine, some, theirs, others, change, given):
                continue
            if self.same(body, self.algebra.bind(rest, change), (*given, *some)):
                return True
        return False

    def _equivalent(
        self,
        mine: list[str],
        some: Conditions,
        theirs: list[str],
        others: Conditions,
        change: dict[str, Dim],
        given: Conditions,
    ) -> bool:
        """Whether the conditions and ranges of both are equivalent.

        The ranges of `mine` are known to `entails`.
        """
        extents = self.indices.extents
        moved = [self.indices.bind(e, change) for e in others]
        moved += [r for n in theirs for r in (change[n], extents[n] - 1 - change[n])]
        if not all(self.indices.entails((*given, *some), e, True) for e in moved):
            return False
        back = _inverse(mine, theirs, change)
        if back is None:
            return False
        wanted = [self.indices.bind(e, back) for e in some]
        wanted += [r for n in mine for r in (back[n], extents[n] - 1 - back[n])]
        return all(self.indices.entails((*given, *others), e, True) for e in wanted)

    def _changes(self, mine: list[str], body: Poly, theirs: list[str], rest: Poly) -> Iterator[dict[str, Dim]]:
        """Candidates: changes that make reads of one leaf read the same element."""
        if not mine:
            yield {}
            return
        reads = list(_reads(body)), list(_reads(rest))
        yield from self._solve({}, theirs, set(mine), reads[1], reads[0])

    def _solve(
        self, known: dict[str, Dim], theirs: list[str], mine: set[str], left: list[Atom], right: list[Atom]
    ) -> Iterator[dict[str, Dim]]:
        missing = [n for n in theirs if n not in known]
        if not missing:
            yield known
            return
        read = next((r for r in left if r.names & set(missing)), None)
        if read is None:
            yield from self._guess(known, missing, mine)
            return
        others = [r for r in left if r is not read]
        for other in right:
            if other.args[0] == read.args[0]:
                found = self._unified(known, missing, read.args[1], other.args[1])
                if found is not None:
                    yield from self._solve(found, theirs, mine, others, right)

    def _unified(
        self, known: dict[str, Dim], missing: Iterable[str], left: Sequence[Dim], right: Sequence[Dim]
    ) -> dict[str, Dim] | None:
        """The change extended so that two reads have equal indices, for coefficients 1 and -1."""
        pending = [(x, y) for x, y in zip(left, right, strict=True) if x != y]
        progress = True
        while progress and pending:
            progress = False
            for pair in list(pending):
                d = self.indices.bind(pair[0], known) - pair[1]
                unknown = [n for n in missing if n in index_names(d)]
                if not unknown:
                    if d != 0 and (isinstance(d, int) or not _opaque(d)):
                        return None
                    pending.remove(pair)
                elif len(unknown) == 1:
                    parts = linear(d, unknown[0])
                    if parts is not None and parts[0] in (1, -1):
                        known = {**known, unknown[0]: parts[1] * -parts[0]}
                        pending.remove(pair)
                        progress = True
        return known

    def _guess(self, known: dict[str, Dim], missing: list[str], mine: set[str]) -> Iterator[dict[str, Dim]]:
        """Integers that no read mentions: paired with those of the same extent."""
        used = frozenset().union(*[index_names(v) for v in known.values()])
        spare = sorted(mine - used)
        extents = self.indices.extents
        if len(spare) != len(missing) or len(missing) > 4:
            return
        for order in permutations(spare):
            if all(extents[a] == extents[b] for a, b in zip(order, missing, strict=True)):
                yield {**known, **{b: symbol(a) for a, b in zip(order, missing, strict=True)}}


def _opaque(d: Dim) -> bool:
    """Whether an equation holds quotients or looked-up integers, which only the final comparison
    can judge."""
    return isinstance(d, Symbolic) and any(not isinstance(a, str) for m, _ in d.terms for a, _ in m)


def _reads(p: Poly) -> Iterator[Atom]:
    """All reads in a normal form, inner ones too."""
    for m in p.terms:
        for a, _ in m:
            if a.kind == "read":
                yield a
            elif a.kind in ("sum", "prod"):
                yield from _reads(Poly({a.args[2]: 1}))
            elif a.kind == "max":
                for branch in a.args:
                    yield from _reads(branch[2])
            else:
                for x in a.args:
                    if isinstance(x, Poly):
                        yield from _reads(x)


def _coefficients(mine: list[str], theirs: list[str], change: dict[str, Dim]) -> list[list[int]] | None:
    rows = []
    for n in theirs:
        row = []
        for m in mine:
            parts = linear(change[n], m)
            if parts is None or not isinstance(parts[0], int):
                return None
            row.append(parts[0])
        rows.append(row)
    return rows


def _unimodular(mine: list[str], theirs: list[str], change: dict[str, Dim]) -> bool:
    """Whether the change is one-to-one on the integers: its matrix has determinant 1 or -1."""
    rows = _coefficients(mine, theirs, change)
    return rows is not None and _determinant(rows) in (1, -1)


def _determinant(rows: list[list[int]]) -> int:
    if not rows:
        return 1
    first, *others = rows
    return sum((-1) ** k * c * _determinant([r[:k] + r[k + 1 :] for r in others]) for k, c in enumerate(first) if c)


def _inverse(mine: list[str], theirs: list[str], change: dict[str, Dim]) -> dict[str, Dim] | None:
    """The change solved for `mine`, one integer after the other; None if it is not triangular."""
    back: dict[str, Dim] = {}
    pending = {n: symbol(n) - change[n] for n in theirs}
    while len(back) < len(mine):
        for n, d in list(pending.items()):
            unknown = [m for m in mine if m in index_names(d)]
            if len(unknown) == 1:
                parts = linear(d, unknown[0])
                if parts is None or parts[0] not in (1, -1):
                    return None
                value = parts[1] * -parts[0]
                del pending[n]
                solved = {unknown[0]: value}
                back.update(solved)
                pending = {k: bind(v, solved) for k, v in pending.items()}
                break
        else:
            return None
    return back
