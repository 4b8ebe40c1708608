"""Proved cases that contain an instance: a search for its own case types the terms at dozens of
other sizes, and one substitution decides whether a known case has it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.dims import Dim, symbol, symbols
from taso_mirage.ir.terms import LEAVES, Node, topological
from taso_mirage.meanings.sizes import LARGEST, within_bounds
from taso_mirage.prove.rules.cases import Instance, dims_of_letters, resized_instance, unranked

_Outline: TypeAlias = tuple[Hashable, ...]
"""A row for each term: operator and places of the operands, or name, dtype and rank of a leaf."""


class ProvedCases:
    """Cases that are proved for every size of their letters, by what they share with their
    instances."""

    def __init__(self) -> None:
        self._cases: dict[_Outline, dict[Instance, None]] = {}

    def add(self, case: Instance) -> None:
        self._cases.setdefault(_outline(case), {})[case] = None

    def contain(self, instance: Instance) -> bool:
        """Whether a case becomes the instance if sizes stand for its letters: numbers from 2 to the
        bound of dims, because dims of 1 are fixed in a case, and sizes that only the run fixes."""
        if unranked(instance) or not within_bounds(d for n in instance.leaves for d in n.shape):
            return False
        return any(_becomes(case, instance) for case in self._cases.get(_outline(instance), ()))


def _becomes(case: Instance, instance: Instance) -> bool:
    sizes = dims_of_letters(case, instance)
    if not all(map(_is_size, sizes.values())):
        return False
    try:
        return resized_instance(case, sizes) == instance
    except (IllTyped, Undecidable, Unsupported, LookupError, TypeError, ValueError, ArithmeticError):
        return False


def _is_size(dim: Dim) -> bool:
    """Whether a letter may stand for a dim: a difference of sizes may be 0, which no proof of a
    case covers."""
    return 1 < dim <= LARGEST if isinstance(dim, int) else dim in map(symbol, symbols(dim))


def _outline(instance: Instance) -> _Outline:
    order = topological((*instance.lhs, *instance.rhs))
    place = {node: i for i, node in enumerate(order)}
    sides = tuple([place[n] for n in instance.lhs]), tuple([place[n] for n in instance.rhs])
    return (*sides, *(_row(node, place) for node in order))


def _row(node: Node, place: dict[Node, int]) -> Hashable:
    if node.op in LEAVES:
        return node.op, node.attrs, node.dtype, node.tensor.rank
    return node.op, tuple([place[a] for a in node.args])
