"""Conditions on the integers of a proof: polynomials over index variables and sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from taso_mirage.ir.dims import Dim, Floor, Symbolic, replaced_factors, summed_terms, symbol

Conditions = tuple[Dim, ...]
"""A conjunction: each polynomial is >= 0."""


class Unprovable(Exception):
    """A step outside of the proof methods, with the reason."""


@dataclass(frozen=True)
class DataIndex:
    """An integer that is read from data (an index of a gather): one unknown for equal `value`s,
    which is a normal form."""

    value: Any
    text: str

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=65536)
def index_names(e: Dim) -> frozenset[str]:
    """The variables and sizes in a polynomial."""
    found: set[str] = set()
    for monomial, _ in e.terms if isinstance(e, Symbolic) else ():
        for atom, _ in monomial:
            if isinstance(atom, str):
                found.add(atom)
            elif isinstance(atom, Floor):
                found |= index_names(atom.numerator) | index_names(atom.denominator)
            else:
                found |= atom.value.names
    return frozenset(found)


@lru_cache(maxsize=65536)
def index_level(e: Dim) -> int:
    """How deep binders are nested in the integers that a polynomial reads from data."""
    level = 0
    for atom in (a for monomial, _ in (e.terms if isinstance(e, Symbolic) else ()) for a, _ in monomial):
        if isinstance(atom, Floor):
            level = max(level, index_level(atom.numerator), index_level(atom.denominator))
        elif not isinstance(atom, str):
            level = max(level, atom.value.level)
    return level


@lru_cache(maxsize=65536)
def linear(e: Dim, name: str) -> tuple[Dim, Dim] | None:
    """(a, b) with e = a * name + b; None where e is not linear in it."""
    if name not in index_names(e) or not isinstance(e, Symbolic):
        return 0, e
    sloped: list[Any] = []
    others: list[Any] = []
    for monomial, c in e.terms:
        if any(a == name for a, _ in monomial):
            if any((a == name and p != 1) for a, p in monomial):
                return None
            sloped.append((tuple([x for x in monomial if x[0] != name]), c))
        else:
            others.append((monomial, c))
    slope, rest = summed_terms(sloped), summed_terms(others)
    if name in index_names(slope) or name in index_names(rest):
        return None
    return slope, rest


def polynomial(terms: Iterable[Any]) -> Dim:
    kept = tuple(terms)
    if not kept:
        return 0
    return kept[0][1] if len(kept) == 1 and kept[0][0] == () else Symbolic(kept)


@lru_cache(maxsize=65536)
def of_sizes_nonnegative(e: Dim) -> bool:
    """Whether a polynomial over sizes is >= 0 whenever all sizes are >= 1: its coefficients in
    sizes - 1 are."""
    if isinstance(e, int):
        return e >= 0
    if any(not isinstance(atom, str) for monomial, _ in e.terms for atom, _ in monomial):
        return False
    total = replaced_factors(e, lambda name: symbol(str(name)) + 1)
    return total >= 0 if isinstance(total, int) else all(c >= 0 for _, c in total.terms)


def _floors(e: Dim) -> Iterable[Floor]:
    for monomial, _ in e.terms if isinstance(e, Symbolic) else ():
        for atom, _ in monomial:
            if isinstance(atom, Floor):
                yield atom
                yield from _floors(atom.numerator)


def names_of(f: Floor) -> frozenset[str]:
    return index_names(f.numerator) | index_names(f.denominator)


def floors(e: Dim) -> tuple[Floor, ...]:
    return tuple(_floors(e))
