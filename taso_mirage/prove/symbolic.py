"""Proofs for every size: both sides' elements at one symbolic index have the same normal form
(TensorRight, POPL'25)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import Node, Tensor, topological
from taso_mirage.meanings.base import Meaning
from taso_mirage.meanings.conditions import Conditions, Unprovable, floors, index_names
from taso_mirage.meanings.polynomials import Poly, infinite
from taso_mirage.meanings.sizes import element_counts
from taso_mirage.operators.interpret import interpret
from taso_mirage.prove.arbiter import equal
from taso_mirage.prove.cases import Element
from taso_mirage.prove.definedness import Definedness
from taso_mirage.prove.elements import Elements
from taso_mirage.prove.folds import forced, refined
from taso_mirage.prove.matching import Matching
from taso_mirage.prove.splits import same_by_cases
from taso_mirage.verdicts import Failure, FailureKind

V = TypeVar("V")
ELSEWHERE = "one side has a value where the other has none"
BUDGET = 100_000
"""Steps of one proof; a step is a product of two terms, a bound, or a tenth of a comparison of
folds."""
EXPANDED = 16
"""The largest number of points of a fixed range over which a fold with cases is expanded, where
there is no other proof."""


@dataclass(frozen=True, slots=True)
class Proved:
    """Two lists of terms are equal; `steps` measures the work, the same on every machine."""

    steps: int


def prove_symbolic(lhs: Sequence[Node], rhs: Sequence[Node], budget: int = BUDGET) -> Proved | Failure:
    """Whether every element is equal for all sizes >= 1 of the symbols, within the bounds of
    `sizes`, and all finite real elements of the leaves.

    Both sides have a value at the same operands: a term that divides by zero, or takes the root of
    a negative number, has none, and there nothing is claimed.
    """
    first = Elements(budget)
    found = _proved(first, lhs, rhs)
    for xp in _further_attempts(first, budget):
        if isinstance(found, Proved):
            break
        found = _proved(xp, lhs, rhs)
    return found


def _further_attempts(first: Elements, budget: int) -> Iterator[Elements]:
    """Other normal forms of sums, for what the first attempt met."""
    if first.indices.more:
        xp = Elements(budget)
        xp.indices.second = True
        yield xp
    if first.indices.running:
        xp = Elements(budget)
        xp.indices.third = True
        yield xp
    if first.fewest <= EXPANDED:
        yield Elements(budget, unroll=EXPANDED)


def _proved(xp: Elements, lhs: Sequence[Node], rhs: Sequence[Node]) -> Proved | Failure:
    try:
        pairs = denoted_elements(xp, lhs, rhs)
        matching = Matching(xp.algebra)
        for i, (a, b) in enumerate(pairs):
            why = _differ(xp, matching, a, b)
            if why is not None:
                return unproved(f"output {i}: {why}", xp.indices.steps)
        for i, (a, b) in enumerate(undefined(xp, lhs, rhs)):
            if _differ(xp, matching, a, b) is not None:
                return unproved(f"output {i}: {ELSEWHERE}", xp.indices.steps)
    except (Unprovable, TasoMirageError, RecursionError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        return unproved(str(error) or type(error).__name__, xp.indices.steps)
    finally:
        xp.indices.release()
    return Proved(xp.indices.steps)


def undefined(xp: Elements, lhs: Sequence[Node], rhs: Sequence[Node]) -> list[tuple[Element, Element]]:
    """Where the outputs of both sides have no value, of those that may have none."""
    if not xp.partial:
        return []
    places = Definedness(xp)
    found: list[tuple[Element, Element]] = []
    for left, right in denoted(places, places.leaf, lhs, rhs):
        a, b = places.unsettled(left), places.unsettled(right)
        if a or b:
            nowhere = places.nowhere(left.value.shape)
            found.append((a or nowhere, b or nowhere))
    return found


def unproved(why: str, steps: int = 0) -> Failure:
    """The failure for a proof that reached the limit of work, which says nothing about the
    terms."""
    return Failure(FailureKind.UNPROVED, why, steps=steps)


def denoted_elements(xp: Elements, lhs: Sequence[Node], rhs: Sequence[Node]) -> list[tuple[Element, Element]]:
    """The elements of the outputs of both sides, by sizes whose products are numbers of elements of
    their tensors."""
    for n in topological([*lhs, *rhs]):
        if isinstance(n.type, Tensor) and n.type.shape is not None:
            xp.indices.volumes += element_counts(n.type.shape)
    return denoted(xp, xp.leaf, lhs, rhs)


def denoted(
    xp: Meaning[V], leaf: Callable[[str, Tensor], V], lhs: Sequence[Node], rhs: Sequence[Node]
) -> list[tuple[V, V]]:
    """The values of the outputs of both sides, several parts one after the other.

    Raises Unprovable on types that differ.
    """
    outputs = [*lhs, *rhs]
    env = {n: leaf(f"{n.op} {n.attr('name')}", n.tensor) for n in topological(outputs) if n.op in ("input", "weight")}
    if len({n.attr("name") for n in env}) < len(env):
        raise Unprovable("two leaves of one name")
    values = interpret(outputs, xp, env)
    pairs: list[tuple[V, V]] = []
    for left, right in zip(lhs, rhs, strict=True):
        if left.type != right.type:
            raise Unprovable(f"types {left.type} and {right.type}")
        a, b = values[left], values[right]
        pairs += zip(a, b, strict=True) if isinstance(left.type, tuple) else [(a, b)]  # type: ignore[call-overload]
    return pairs


def _differ(xp: Elements, matching: Matching, a: Element, b: Element) -> str | None:
    """The reason why two tensors are not proved equal; None if they are."""
    if 0 in a.shape:
        return None
    index = [xp.indices.variable(f"i{k}", n) for k, n in enumerate(a.shape)]
    for _ in range(12):
        place = tuple(index)
        left, right = a.at(place), b.at(place)
        step = _refinement(xp, left, right)
        if step is None:
            break
        index = [xp.indices.bind(e, step) for e in index]
    for some, p in left:
        for others, q in right:
            given = xp.indices.joined(some, others)
            if given is not None and not _same(xp, matching, p, q, given, a.type.dtype):
                return f"{_shown(p)} against {_shown(q)}" + (f" where {list(given)} >= 0" if given else "")
    return None


def _same(xp: Elements, matching: Matching, p: Poly, q: Poly, given: Conditions, dtype: str) -> bool:
    if infinite(p) or infinite(q):
        return p is q or _impossible(xp, given)
    free = sorted((p.names | q.names).intersection(xp.indices.extents))
    found = forced(xp.indices, free, given)
    if found is not None:
        step = dict([found])
        p, q = xp.algebra.bind(p, step), xp.algebra.bind(q, step)
        rest = xp.indices.joined((), [xp.indices.bind(e, step) for e in given])
        return rest is None or _same(xp, matching, p, q, rest, dtype)
    return matching.same(p, q, given) or _impossible(xp, given) or settled(matching, p, q, given, dtype)


def settled(matching: Matching, p: Poly, q: Poly, given: Conditions, dtype: str) -> bool:
    """Whether p = q by cases of signs, or for Z3."""
    cases = same_by_cases(matching.algebra, lambda a, b: matching.same(a, b, given), p, q)
    return cases or equal(matching, p, q, given, dtype)


def _impossible(xp: Elements, given: Conditions) -> bool:
    """Whether no index satisfies the conditions."""
    return bool(given) and xp.indices.entails(given, -1, True)


def _refinement(xp: Elements, *sides: tuple[tuple[Conditions, Poly], ...]) -> dict[str, Dim] | None:
    """An output index that is divided by d, and ranges over m * d, becomes two."""
    for cases in sides:
        for conditions, p in cases:
            found = [f for e in conditions for f in floors(e)] + [f for m in p.terms for a, _ in m for f in a.floors]
            for f in found:
                for name in sorted(index_names(f.numerator)):
                    split = refined(xp.indices, name, f.numerator, f.denominator)
                    if split is not None:
                        return {name: split}
    return None


def _shown(p: Poly) -> str:
    text = "infinite" if infinite(p) else repr(p)
    return text if len(text) <= 300 else text[:297] + "..."
