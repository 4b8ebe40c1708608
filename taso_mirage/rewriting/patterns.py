"""Pattern matching in terms, where each place has one form, and in e-graphs, where a class has
many.

The same search serves both (egg's e-matching, Willsey et al., POPL'21, section 4, is the general
one). A `PatternSpace` defines its places.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from taso_mirage.ir.terms import ABSENT, Attributes, Node
from taso_mirage.operators.expressions import Expr, uniform_value
from taso_mirage.operators.ops import get
from taso_mirage.rewriting import reversal
from taso_mirage.rewriting.match_reason import UNASKED, MatchReason

REST = reversal.REST_KEY

T = TypeVar("T")
Place = TypeVar("Place", bound=Hashable)
"""A term, or an e-class."""


class PatternSpace(Protocol[Place]):
    """A space in which patterns are matched."""

    def best(self, place: Place) -> Node:
        """The representative term of a place."""

    def forms(self, place: Place, op: str) -> Iterable[tuple[Attributes, tuple[Place, ...]]]:
        """The attributes and operands of the terms that an operator computes at a place."""

    def users(self, place: Place, op: str) -> Iterable[Place]:
        """The places that an operator computes from one."""

    def built(self, place: Place, op: str, attrs: Attributes, args: tuple[Node, ...]) -> Node:
        """The term of a form, over terms for its operands."""


@dataclass(frozen=True, slots=True)
class Bindings(Generic[Place]):
    """The values of a pattern's names, and the computed attributes that are still to compare."""

    operands: Mapping[str, Place]
    attributes: Mapping[str, Any]
    later: tuple[tuple[Expr, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class JointMatch(Generic[Place]):
    """Where all outputs of a pattern were found."""

    outputs: tuple[Node, ...]
    places: tuple[Place, ...]
    bindings: Bindings[Place]


def found_at(
    outputs: tuple[Node, ...],
    place: Place,
    space: PatternSpace[Place],
    apart: Callable[[tuple[Place, ...]], bool] = lambda places: True,
    why: MatchReason = UNASKED,
) -> Iterator[JointMatch[Place]]:
    """Where patterns match with the first at a place; guards and computed attributes are not
    checked.

    The others are found by climbing from an operand that they share, at places of which `apart`
    says whether the last may be an output beside those before.
    """
    start: Bindings[Place] = Bindings({}, {})
    first, *others = outputs
    for root, bindings in _matched(first, place, space, start, why):
        yield from _joined(others, space, JointMatch((root,), (place,), bindings), apart, why)


def _joined(
    patterns: list[Node],
    space: PatternSpace[Place],
    found: JointMatch[Place],
    apart: Callable[[tuple[Place, ...]], bool],
    why: MatchReason,
) -> Iterator[JointMatch[Place]]:
    if not patterns:
        yield found
        return
    pattern, *rest = patterns
    for place in _climbed(pattern, space, found.bindings):
        if not apart((*found.places, place)):
            continue
        for root, bindings in _matched(pattern, place, space, found.bindings, why):
            if root not in found.outputs:
                more = JointMatch((*found.outputs, root), (*found.places, place), bindings)
                yield from _joined(rest, space, more, apart, why)


def _climbed(pattern: Node, space: PatternSpace[Place], bindings: Bindings[Place]) -> Iterable[Place]:
    """The places where a pattern could be found, above one of its variables that is bound."""
    path = _path_to_bound(pattern, bindings)
    if not path:
        return ()
    found = {bindings.operands[path[0].attr("name")]: None}
    for step in path[1:]:
        found = {user: None for place in found for user in space.users(place, step.op)}
    return found


def _path_to_bound(pattern: Node, bindings: Bindings[Place]) -> list[Node]:
    if pattern.op == "input":
        return [pattern] if pattern.attr("name") in bindings.operands else []
    for arg in pattern.args:
        path = _path_to_bound(arg, bindings)
        if path:
            return [*path, pattern]
    return []


def _matched(
    pattern: Node, place: Place, space: PatternSpace[Place], known: Bindings[Place], why: MatchReason
) -> Iterator[tuple[Node, Bindings[Place]]]:
    """The terms at a place that match a pattern, with the values of its names."""
    if pattern.op == "input":
        bound = _bound(pattern.attr("name"), place, space, known, why)
        if bound is not None:
            yield space.best(place), bound
        return
    if pattern.op == "splat":
        term = space.best(place)
        if uniform_value(term) == pattern.attr("value"):
            yield term, known
        else:
            why.note("{} is not the constant {}", term.op, pattern.attr("value"))
        return
    arity, other = len(pattern.args), True
    for attrs, args in space.forms(place, pattern.op):
        if len(args) != arity:
            continue
        other = False
        started = _with_attributes(pattern, attrs, known, why)
        if started is None:
            continue
        for terms, bound in _operands(pattern.args, args, space, started, why):
            yield space.built(place, pattern.op, attrs, terms), bound
        if _commutes(pattern) and args[0] != args[1]:
            for terms, bound in _operands(pattern.args, _swapped(args), space, started, why):
                yield space.built(place, pattern.op, attrs, _swapped(terms)), bound
    if other:
        term = space.best(place)
        why.note("{} with {} operands is not {} with {}", term.op, len(term.args), pattern.op, arity)


def _bound(
    name: str, place: Place, space: PatternSpace[Place], known: Bindings[Place], why: MatchReason
) -> Bindings[Place] | None:
    before = known.operands.get(name)
    if space.best(place) is ABSENT:  # equations are proved with the operand there
        why.note("{} stands for an operand, which is absent", name)
    elif before is None:
        return Bindings({**known.operands, name: place}, known.attributes, known.later)
    elif before == place:
        return known
    else:
        why.note("{} stands for two different terms", name)
    return None


def _operands(
    patterns: tuple[Node, ...],
    places: tuple[Place, ...],
    space: PatternSpace[Place],
    known: Bindings[Place],
    why: MatchReason,
) -> Iterator[tuple[tuple[Node, ...], Bindings[Place]]]:
    if not patterns:
        yield (), known
        return
    for term, bound in _matched(patterns[0], places[0], space, known, why):
        for rest, most in _operands(patterns[1:], places[1:], space, bound, why):
            yield (term, *rest), most


@lru_cache(maxsize=1 << 14)
def _commutes(pattern: Node) -> bool:
    return len(pattern.args) > 1 and get(pattern.op).commutative


def _swapped(operands: tuple[T, ...]) -> tuple[T, ...]:
    first, second, *rest = operands
    return second, first, *rest


def _with_attributes(
    pattern: Node, attrs: Attributes, known: Bindings[Place], why: MatchReason
) -> Bindings[Place] | None:
    """The bindings after a term's attributes are bound; None where they are not the pattern's."""
    if not pattern.attrs:
        return known
    attributes, later = dict(known.attributes), list(known.later)
    actual = dict(attrs)
    for key, wanted in pattern.attrs:
        value: Any = tuple(sorted(actual.items())) if key == REST else actual.pop(key)
        name = wanted.name if isinstance(wanted, Expr) else None
        if isinstance(wanted, Expr) and name is None:
            later.append((wanted, value))
        elif name is None and wanted != value:
            why.note("{} has {}={}, not {}", pattern.op, key, value, wanted)
            return None
        elif name is not None and attributes.setdefault(name, value) != value:
            why.note("{} has {}={}, where {} is {}", pattern.op, key, value, name, attributes[name])
            return None
    return Bindings(known.operands, attributes, tuple(later))


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms as they are, with the users of each."""

    around: Mapping[Node, list[Node]]

    def best(self, place: Node) -> Node:
        return place

    def forms(self, place: Node, op: str) -> Iterable[tuple[Attributes, tuple[Node, ...]]]:
        return ((place.attrs, place.args),) if place.op == op else ()

    def users(self, place: Node, op: str) -> Iterable[Node]:
        return [u for u in self.around.get(place, ()) if u.op == op]

    def built(self, place: Node, op: str, attrs: Attributes, args: tuple[Node, ...]) -> Node:
        return place
