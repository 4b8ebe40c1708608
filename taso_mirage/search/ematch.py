"""Matching patterns in an e-graph: they are followed through classes; what is found are terms, of which `equation.matches` decides."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from taso_mirage.ir.terms import ABSENT, Node
from taso_mirage.operators.expressions import Expr, uniform_value
from taso_mirage.operators.ops import get
from taso_mirage.rewriting.equation import REST, Equation
from taso_mirage.search.egraph import EGraph

Bound: TypeAlias = Mapping[str, Hashable]
"""What the variables of a pattern stand for: classes, and the values of attributes."""

Apart: TypeAlias = Callable[[tuple[int, ...]], bool]
"""Whether the last of some classes may be an output beside the others."""


@dataclass(frozen=True, slots=True)
class EMatch:
    """Where a left-hand side seems to match: terms that look like its outputs, and their classes."""

    outputs: tuple[Node, ...]
    classes: tuple[int, ...]


def ematches(equation: Equation, graph: EGraph, of: int, apart: Apart = lambda classes: True) -> Iterator[EMatch]:
    """Where an equation seems to match with its first output in a class; guards and computed attributes are not looked at.

    Operands are the terms that stand for their classes. Further outputs are found by climbing from a shared operand, in classes
    that may be `apart` from those before.
    """
    first, *others = equation.lhs.outputs
    for root, bound in _terms(first, graph, of, {}):
        yield from _others(others, graph, EMatch((root,), (of,)), bound, apart)


def _others(patterns: list[Node], graph: EGraph, place: EMatch, bound: Bound, apart: Apart) -> Iterator[EMatch]:
    if not patterns:
        yield place
        return
    pattern, *rest = patterns
    for of in _climbed(pattern, graph, bound):
        if not apart((*place.classes, of)):
            continue
        for root, more in _terms(pattern, graph, of, bound):
            if root not in place.outputs:
                yield from _others(rest, graph, EMatch((*place.outputs, root), (*place.classes, of)), more, apart)


def _climbed(pattern: Node, graph: EGraph, bound: Bound) -> list[int]:
    """The classes where a pattern could be found, above one of its variables that is bound."""
    path = _path(pattern, bound)
    if not path:
        return []
    start: Any = bound[path[0].attr("name")]
    found: dict[int, None] = {start: None}
    for step in path[1:]:
        found = {user: None for of in found for user in graph.users(of, step.op)}
    return list(found)


def _path(pattern: Node, bound: Bound) -> list[Node]:
    if pattern.op == "input":
        return [pattern] if pattern.attr("name") in bound else []
    for arg in pattern.args:
        path = _path(arg, bound)
        if path:
            return [*path, pattern]
    return []


def _terms(pattern: Node, graph: EGraph, of: int, bound: Bound) -> Iterator[tuple[Node, Bound]]:
    """The terms of a class that look like a pattern, with what its variables stand for."""
    if pattern.op == "input":
        name = pattern.attr("name")
        if bound.get(name, of) == of and graph.best(of) is not ABSENT:
            yield graph.best(of), bound if name in bound else {**bound, name: of}
        return
    if pattern.op == "splat":
        if uniform_value(graph.best(of)) == pattern.attr("value"):
            yield graph.best(of), bound
        return
    for op, attrs, classes, _ in graph.members(of, pattern.op):
        started = _attributes(pattern, attrs, bound) if len(classes) == len(pattern.args) else None
        if started is None:
            continue
        type = graph.best(of).type
        for args, more in _operands(pattern.args, graph, classes, started):
            yield Node(op, args, attrs, type), more
        if _commutes(pattern) and classes[0] != classes[1]:
            for args, more in _operands(pattern.args, graph, classes[::-1], started):
                yield Node(op, args[::-1], attrs, type), more


def _operands(
    patterns: tuple[Node, ...], graph: EGraph, classes: tuple[int, ...], bound: Bound
) -> Iterator[tuple[tuple[Node, ...], Bound]]:
    if not patterns:
        yield (), bound
        return
    for node, more in _terms(patterns[0], graph, classes[0], bound):
        for rest, most in _operands(patterns[1:], graph, classes[1:], more):
            yield (node, *rest), most


@lru_cache(maxsize=1 << 14)
def _commutes(pattern: Node) -> bool:
    return len(pattern.args) == 2 and get(pattern.op).commutative


def _attributes(pattern: Node, attrs: tuple[tuple[str, Any], ...], bound: Bound) -> Bound | None:
    """What is bound once a term's attributes are; None where they are not the pattern's."""
    if not pattern.attrs:
        return bound
    found, actual = dict(bound), dict(attrs)
    for key, wanted in pattern.attrs:
        value: Hashable = tuple(sorted(actual.items())) if key == REST else actual.pop(key)
        if not isinstance(wanted, Expr):
            if wanted != value:
                return None
        elif wanted.name is not None and found.setdefault(wanted.name, value) != value:
            return None
    return found
