"""The terms of a model that one kernel computes together with a convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taso_mirage.ir.terms import Node
from taso_mirage.operators.expressions import is_weight
from taso_mirage.rewriting.forms import ADDED, RegionPattern

RECTIFIED = RegionPattern("relu(y)")


def followed_convolution(
    node: Node, users: Callable[[Node], Sequence[Node]], wanted: Callable[[Node], bool]
) -> list[Node]:
    """A convolution of a model with the sum and the relu that alone read it."""
    members = [node]
    for pattern in (ADDED, RECTIFIED):
        last = members[-1]
        readers = users(last)
        if wanted(last) or len(readers) != 1 or pattern.match(readers[0]) is None or readers[0].type != node.type:
            continue
        others = [a for a in readers[0].args if a is not last]
        if pattern is RECTIFIED or (len(others) == 1 and others[0].type == node.type and not is_weight(others[0])):
            members.append(readers[0])
    return members
