"""Traits of an operator that are read off its definition, at its examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from taso_mirage.ir import Tensor
from taso_mirage.meanings.typed import Typed
from taso_mirage.ops import Example, Op, load_specs
from taso_mirage.text import parse_type

EACH = frozenset({"map", "choice", "cast", "scalar"})
"""Primitives of which an element of the result hangs on the same element of each operand alone."""
COPIES = frozenset("choice scalar constant reshape transpose expand concat slice pad window take take_along".split())
"""Primitives of which every element of the result is one of an operand's, or a constant."""


class _Primitives(Typed[None]):
    """Which primitives a definition uses."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def note(self, primitive: str, fn: Any, notes: Sequence[None], operands: Sequence[Tensor], result: Tensor) -> None:
        special = {"constant": ("scalar", result.shape == ()), "map": ("choice", fn is np.where)}
        name, holds = special.get(primitive, ("", False))
        self.used.add(name if holds else primitive)


@cache
def primitives(name: str) -> frozenset[str] | None:
    """Which primitives the definition of an operator uses at any of its examples; None where there is no operator or no example."""
    op = load_specs().get(name)
    return frozenset.union(*[_used(op, each) for each in op.examples]) if op is not None and op.examples else None


def _used(op: Op, example: Example) -> frozenset[str]:
    meaning = _Primitives()
    op.body(meaning, *map(_noted, example.operands), **op.normalise(example.attrs))
    return frozenset(meaning.used)


def _noted(operand: str | Sequence[Any] | None) -> tuple[Tensor, None] | None:
    if operand is None:
        return None
    return (parse_type(operand) if isinstance(operand, str) else Tensor("int64", np.shape(operand))), None


def elementwise(name: str) -> bool:
    """Whether an element of the result hangs on the same element of each operand alone, dims of 1 broadcast."""
    used = primitives(name)
    return used is not None and used <= EACH


def multiplies(name: str) -> bool:
    """Whether an operator sums products of its operands' elements: a matrix product, a convolution."""
    used = primitives(name)
    return used is not None and "contract" in used


def selects(name: str) -> bool:
    """Whether an operator computes nothing: every element of its result is one of an operand's, or a constant."""
    used = primitives(name)
    return used is not None and used <= COPIES
