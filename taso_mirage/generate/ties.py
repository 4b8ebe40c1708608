"""Guards for equal letters: a typing that has one letter at several dims says nothing about a match where those dims differ.

Fuzz finds that out only where such a match is likely; so each letter is untied, set of places by set of places. Where both
sides have a type then at some sizes, the rule must be proved so, or else its guard asks for the equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

from taso_mirage.dims import Dim, bind, fixed, symbol, symbols
from taso_mirage.equation import instantiate
from taso_mirage.errors import TasoMirageError
from taso_mirage.ir import Tensor
from taso_mirage.library import Rule
from taso_mirage.verify.fingerprint import Refuted
from taso_mirage.verify.ladder import Sides, proved_at
from taso_mirage.verify.symbolic import Proved, Unproved, prove_symbolic

ERRORS = (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError)
SIZE, MOST = 3, 200
"""Sets of so many places at most, so many sets of a rule at most."""
DRAWS, CASES, SIZES = 60, 4, (1, 2, 2, 3, 4, 6)
UNTIED = "_untied"


class Place(NamedTuple):
    """A dim of a variable."""

    variable: str
    axis: int

    def __str__(self) -> str:
        return f"dim({self.variable}, {self.axis})"


def ties(rule: Rule) -> list[tuple[Place, Place]]:
    """Pairs of places that must be equal for the rule to hold, as far as the operators' types do not ask for it themselves."""
    found: list[tuple[Place, Place]] = []
    dims = dict(_dims(rule))
    for count, (letter, chosen, others) in enumerate(_sets(rule)):
        if count >= MOST:
            break
        if any((p in chosen) != (q in chosen) for p, q in found):
            continue
        free = _untied(rule, letter, chosen)
        if not _holds(free, letter):
            pairs = [(p, q) for p in chosen for q in others if dims[p] == dims[q]]
            found += sorted(pairs, key=lambda pair: pair[0].axis != pair[1].axis)[:1]
    return found


def _dims(rule: Rule) -> Iterator[tuple[Place, Dim]]:
    for name, type in rule.given:
        for axis, dim in enumerate(type.shape or ()):
            yield Place(name, axis), dim


def _sets(rule: Rule) -> Iterator[tuple[str, tuple[Place, ...], tuple[Place, ...]]]:
    """Letters with a set of their places, the small ones first, and the places that are left."""
    places: dict[str, list[Place]] = {}
    for place, dim in _dims(rule):
        for letter in sorted(symbols(dim)):
            places.setdefault(letter, []).append(place)
    for size in range(1, SIZE + 1):
        for letter, all_places in places.items():
            for chosen in combinations(all_places, size):
                others = tuple(p for p in all_places if p not in chosen)
                if len(others) > size or (others and (len(others) == size and chosen < others)):
                    yield letter, chosen, others


def _untied(rule: Rule, letter: str, chosen: tuple[Place, ...]) -> Rule:
    other = {letter: symbol(letter + UNTIED)}
    given = []
    for name, type in rule.given:
        shape: tuple[Any, ...] = tuple(
            bind(d, other) if Place(name, i) in chosen else d for i, d in enumerate(type.shape or ())
        )
        given.append((name, Tensor(type.dtype, shape)))
    return replace(rule, given=tuple(given))


def _holds(rule: Rule, letter: str) -> bool:
    """Whether the rule is proved in letters, or at those sizes where the letter and the untied one differ.

    Sizes of 1 are left out: they broadcast, which the fuzz tries often.
    """
    letters = sorted({letter, *(s for _, d in _dims(rule) for s in symbols(d))})
    rng, cases = Random(0), 0
    for _ in range(DRAWS):
        sizes = {each: rng.choice(SIZES) for each in letters}
        if not 1 != sizes[letter] != sizes[letter + UNTIED] != 1:
            continue
        sides = _sides(_at(rule, sizes))
        if sides is None:
            continue
        if cases == 0 and _proved(rule):
            return True
        if isinstance(proved_at(*sides), Refuted | Unproved):
            return False
        cases += 1
        if cases == CASES:
            break
    return True


def _at(rule: Rule, sizes: Mapping[str, int]) -> Rule:
    given = ((n, Tensor(t.dtype, tuple(bind(d, sizes) for d in t.shape or ()))) for n, t in rule.given)
    return replace(rule, given=tuple(given), attributes=tuple((n, fixed(v, sizes)) for n, v in rule.attributes))


def _sides(rule: Rule) -> Sides | None:
    """Both sides, if they have the same types and the guard admits them."""
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
