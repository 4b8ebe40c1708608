"""Guards for equal letters: a typing with one letter at several dims says nothing about a match in
which those dims differ.

Fuzzing finds such matches only if they are likely. Therefore each letter is replaced by another one
at each set of places, and each pair of letters is exchanged in some of the variables (which
preserves sums and products). If both sides then have a type at some sizes, the rule must be proved
in this form; otherwise its guard requires the equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, islice
from random import Random
from typing import Any, NamedTuple

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Dim, bind, fixed, symbol, symbols
from taso_mirage.ir.terms import Tensor
from taso_mirage.prove.rules.ladder import EquationSides, proved_at
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.rewriting.equation import instantiate
from taso_mirage.rewriting.library import Rule
from taso_mirage.verdicts import Failure

ERRORS = (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError)
SIZE, MOST = 3, 200
"""The largest number of places of a set, and the largest number of variants of a kind."""
CASES, SIZES = 4, (1, 2, 2, 3, 4, 6)
OTHER = "_other"


class DimSite(NamedTuple):
    """A dim of a variable."""

    variable: str
    axis: int

    def __str__(self) -> str:
        return f"dim({self.variable}, {self.axis})"


class Variant(NamedTuple):
    """Letters that get other names at some places, and the places that keep them; whether the two
    letters' sizes are exchanged there."""

    letters: tuple[str, ...]
    chosen: tuple[DimSite, ...]
    others: tuple[DimSite, ...]
    exchanged: bool


def equality_guards(rule: Rule) -> list[tuple[DimSite, DimSite]]:
    """Pairs of places that must be equal for the rule to hold, unless the operators' types already
    require it."""
    found: list[tuple[DimSite, DimSite]] = []
    dims = dict(_dims(rule))
    for variant in (*islice(_untied(rule), MOST), *islice(_exchanged(rule), MOST)):
        if any((p in variant.chosen) != (q in variant.chosen) for p, q in found):
            continue
        if not _holds(rule, variant):
            pairs = [(p, q) for p in variant.chosen for q in variant.others if dims[p] == dims[q]]
            found += sorted(pairs, key=lambda pair: pair[0].axis != pair[1].axis)[:1]
    return found


def _dims(rule: Rule) -> Iterator[tuple[DimSite, Dim]]:
    for name, type in rule.given:
        for axis, dim in enumerate(type.shape or ()):
            yield DimSite(name, axis), dim


def _places(rule: Rule) -> dict[str, list[DimSite]]:
    places: dict[str, list[DimSite]] = {}
    for place, dim in _dims(rule):
        for letter in sorted(symbols(dim)):
            places.setdefault(letter, []).append(place)
    return places


def _untied(rule: Rule) -> Iterator[Variant]:
    """Each letter apart from itself, at the small sets of places first."""
    for size in range(1, SIZE + 1):
        for letter, places in _places(rule).items():
            for chosen in combinations(places, size):
                others = tuple(p for p in places if p not in chosen)
                if len(others) > size or (others and (len(others) == size and chosen < others)):
                    yield Variant((letter,), chosen, others, False)


def _exchanged(rule: Rule) -> Iterator[Variant]:
    """Each pair of letters the other way round in some variables, of those that have them."""
    for (a, here), (b, there) in combinations(_places(rule).items(), 2):
        variables = list(dict.fromkeys(p.variable for p in (*here, *there)))
        for size in range(1, len(variables) // 2 + 1):
            for some in combinations(variables, size):
                chosen = tuple(p for p in (*here, *there) if p.variable in some)
                others = tuple(p for p in (*here, *there) if p.variable not in some)
                yield Variant((a, b), chosen, others, True)


def _apart(rule: Rule, variant: Variant) -> Rule:
    """The rule with the other letters at the chosen places."""
    other = {letter: symbol(letter + OTHER) for letter in variant.letters}
    given = []
    for name, type in rule.given:
        shape: tuple[Any, ...] = tuple(
            bind(d, other) if DimSite(name, i) in variant.chosen else d for i, d in enumerate(type.shape or ())
        )
        given.append((name, Tensor(type.dtype, shape)))
    return replace(rule, given=tuple(given))


def _holds(rule: Rule, variant: Variant) -> bool:
    """Whether the rule is proved in letters, or at those sizes where a letter and its other one
    differ.

    Sizes of 1 are left out: they broadcast, which the fuzz tries often.
    """
    apart = _apart(rule, variant)
    cases = 0
    for sizes in _sizes(apart, variant):
        sides = _sides(_at(apart, sizes))
        if sides is None:
            continue
        if cases == 0 and _proved(apart):
            return True
        if isinstance(proved_at(*sides), Failure):
            return False
        cases += 1
        if cases == CASES:
            break
    return True


def _sizes(rule: Rule, variant: Variant) -> Iterator[dict[str, int]]:
    letters = sorted({*variant.letters, *(s for _, d in _dims(rule) for s in symbols(d))})
    rng = Random(0)
    for _ in range(20 if variant.exchanged else 60):
        sizes = {each: rng.choice(SIZES) for each in letters}
        if variant.exchanged:
            a, b = variant.letters
            sizes |= {a + OTHER: sizes[b], b + OTHER: sizes[a]}
        if all(1 != sizes[letter] != sizes.get(letter + OTHER, 1) != 1 for letter in variant.letters):
            yield sizes


def _at(rule: Rule, sizes: Mapping[str, int]) -> Rule:
    given = ((n, Tensor(t.dtype, tuple(bind(d, sizes) for d in t.shape or ()))) for n, t in rule.given)
    return replace(rule, given=tuple(given), attributes=tuple((n, fixed(v, sizes)) for n, v in rule.attributes))


def _sides(rule: Rule) -> EquationSides | None:
    """The two sides, if they have the same types and the guard admits them."""
    names: dict[str, Any] = dict(rule.attributes) | {n: rule.operand(n, t) for n, t in rule.given}
    try:
        if rule.equation.where is not None and not rule.equation.where(names):
            return None
        lhs, rhs = instantiate(rule.equation.lhs, names), instantiate(rule.equation.rhs, names)
    except ERRORS:
        return None
    return (lhs, rhs) if all(a.type == b.type for a, b in zip(lhs, rhs, strict=True)) else None


def _proved(rule: Rule) -> bool:
    try:
        return isinstance(prove_symbolic(*rule.instance()), Proved)
    except ERRORS:
        return False
