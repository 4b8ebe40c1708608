"""The meaning `degree`: the polynomial degree of a program in each input; at most 1 in each is
multi-linear (PET section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taso_mirage.ir.terms import Tensor
from taso_mirage.meanings.functions import Linear, function_of
from taso_mirage.meanings.typed import Typed

Degrees = Mapping[str, float]
_FUNCTIONS = ("map", "reduce", "cumulate")
"""The primitives that apply a scalar function."""


class DegreeMeaning(Typed[Degrees]):
    """A note maps input names to degrees; infinity where it is no polynomial."""

    def note(
        self, primitive: str, fn: Any, notes: Sequence[Degrees], operands: Sequence[Tensor], result: Tensor
    ) -> Degrees:
        linear = function_of(fn).linear if primitive in _FUNCTIONS else None
        if primitive == "contract" or (primitive == "map" and linear is Linear.PRODUCT):
            return _plus(notes[0], notes[1])
        if primitive in ("take", "take_along") or (primitive == "map" and linear is Linear.QUOTIENT):
            return _plus(notes[0], _opaque(notes[1]))
        if primitive == "put":
            own = _most(notes[:2]) if fn is None or function_of(fn).linear is Linear.SUM else _opaque(_most(notes[:2]))
            return _plus(own, _opaque(_most(notes[2:])))
        if primitive == "map" and linear is Linear.CHOICE:
            return _plus(_most([notes[1], notes[2]]), _opaque(notes[0]))
        if primitive in _FUNCTIONS and linear is not Linear.SUM:
            return _opaque(_most(notes))
        return self._pad(fn, notes[0]) if primitive == "pad" else _most(notes)

    @staticmethod
    def _pad(value: float, note: Degrees) -> Degrees:
        return note if value == 0 else _most([note])


def _plus(a: Degrees, b: Degrees) -> Degrees:
    return {k: a.get(k, 0) + b.get(k, 0) for k in {**a, **b}}


def _most(notes: Sequence[Degrees]) -> Degrees:
    return {k: max(n.get(k, 0) for n in notes) for k in dict.fromkeys(k for n in notes for k in n)}


def _opaque(a: Degrees) -> Degrees:
    return {k: math.inf if v else 0 for k, v in a.items()}


DEGREE = DegreeMeaning()
