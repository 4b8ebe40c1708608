"""Traits of an operator that are derived from its definition at its examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from taso_mirage.ir.terms import Tensor
from taso_mirage.meanings.typed import Typed
from taso_mirage.operators.ops import Example, Op, load_specs
from taso_mirage.rewriting.text import parse_type

N = TypeVar("N")
POWER = "power"
"""The further note of an exponential."""
EACH = frozenset({"map", "choice", "cast", "scalar", POWER})
"""Primitives that compute an element from the same element of each operand."""
COPIES = frozenset(
    "choice scalar constant reshape transpose expand concat slice pad window take take_along put".split()
)
"""Primitives that only move elements of their operands, or constants."""
MOVES = COPIES - frozenset("choice scalar constant pad window take take_along put".split())
"""Primitives whose results contain only elements of their operands."""


class _Primitives(Typed[None]):
    """A meaning that collects the primitives that a definition uses."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def note(self, primitive: str, fn: Any, notes: Sequence[None], operands: Sequence[Tensor], result: Tensor) -> None:
        special = {
            "constant": ("scalar", result.shape == ()),
            "map": ("choice", fn is np.where),
            "put": ("fold", fn is not None),
        }
        name, holds = special.get(primitive, ("", False))
        self.used.add(name if holds else primitive)
        if fn is np.exp:
            self.used.add(POWER)


class _Divisors(Typed[frozenset[int]]):
    """A meaning whose notes are the operands of which a value has the elements; it collects those
    by which a definition divides."""

    def __init__(self) -> None:
        self.used: set[int] = set()

    def note(
        self,
        primitive: str,
        fn: Any,
        notes: Sequence[frozenset[int]],
        operands: Sequence[Tensor],
        result: Tensor,
    ) -> frozenset[int]:
        if fn is np.divide:
            self.used |= notes[1]
        return frozenset().union(*notes) if primitive in MOVES or primitive == "cast" else frozenset()


@cache
def divisors(name: str) -> frozenset[int]:
    """The operands by whose elements an operator divides, at its examples."""
    op, meaning = load_specs().get(name), _Divisors()
    if op is not None:
        for each in op.examples:
            operands = [_noted(operand, frozenset({i})) for i, operand in enumerate(each.operands)]
            op.body(meaning, *operands, **op.normalise(each.attrs))
    return frozenset(meaning.used)


@cache
def primitives(name: str) -> frozenset[str] | None:
    """The primitives that an operator's definition uses at its examples.

    None where there is no such operator, or no example of it.
    """
    op = load_specs().get(name)
    return frozenset.union(*[_used(op, each) for each in op.examples]) if op is not None and op.examples else None


def _used(op: Op, example: Example) -> frozenset[str]:
    meaning = _Primitives()
    op.body(meaning, *(_noted(operand, None) for operand in example.operands), **op.normalise(example.attrs))
    return frozenset(meaning.used)


def _noted(operand: str | int | Sequence[Any] | None, note: N) -> tuple[Tensor, N] | None:
    if operand is None:
        return None
    return (parse_type(operand) if isinstance(operand, str) else Tensor("int64", np.shape(operand))), note


def elementwise(name: str) -> bool:
    """Whether an operator computes each element from the same element of each operand.

    Operands broadcast.
    """
    used = primitives(name)
    return used is not None and used <= EACH


def multiplies(name: str) -> bool:
    """Whether an operator sums products of its operands' elements: a matrix product, a
    convolution."""
    used = primitives(name)
    return used is not None and "contract" in used


def exponentiates(name: str) -> bool:
    """Whether an operator computes exponentials."""
    used = primitives(name)
    return used is not None and POWER in used


def selects(name: str) -> bool:
    """Whether an operator only moves elements of its operands, or constants."""
    used = primitives(name)
    return used is not None and used <= COPIES


def moves(name: str) -> bool:
    """Whether all elements of an operator's results are of its operands."""
    used = primitives(name)
    return used is not None and used <= MOVES
