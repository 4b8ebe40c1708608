"""The terms of a model that one kernel computes: one, and those that follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from taso_mirage.forms.base.form import IsWanted, Users
from taso_mirage.ir.terms import ABSENT, Node
from taso_mirage.operators.expressions import is_weight
from taso_mirage.rewriting.forms import ADDED, RegionPattern

RECTIFIED = RegionPattern("relu(y)")
FollowingStep = tuple[RegionPattern, Callable[[Sequence[Node]], bool]]


def followed(node: Node, users: Users, wanted: IsWanted, steps: Iterable[FollowingStep]) -> list[Node]:
    """A term of a model with the terms of its type that alone read it, each of a step in turn: its
    pattern matches, and it takes the other operands."""
    members = [node]
    for pattern, takes in steps:
        last = members[-1]
        readers = users(last)
        if wanted(last) or len(readers) != 1 or pattern.match(readers[0]) is None or readers[0].type != node.type:
            continue
        if takes([a for a in readers[0].args if a is not last]):
            members.append(readers[0])
    return members


def followed_convolution(node: Node, users: Users, wanted: IsWanted) -> list[Node]:
    """A convolution of a model with the sum and the relu that alone read it."""

    def computed(others: Sequence[Node]) -> bool:
        return len(others) == 1 and others[0].type == node.type and not is_weight(others[0])

    return followed(node, users, wanted, ((ADDED, computed), (RECTIFIED, lambda others: True)))


def summed_and_rectified(members: Sequence[Node]) -> tuple[Node, bool] | None:
    """The other summand, or ABSENT, and whether a relu follows, if no other operators follow the
    first of some terms; otherwise None."""
    first, *rest = members
    z = ABSENT
    if rest and ADDED.match(rest[0]) is not None:
        others = [a for a in rest[0].args if a is not first]
        if [a.type for a in others] != [first.type]:
            return None
        (z,), rest = others, rest[1:]
    relu = bool(rest) and RECTIFIED.match(rest[0]) is not None
    return (z, relu) if len(rest) == relu else None
