"""The meaning `lookups`: the inputs whose integers a value contains, and the numbers of rows of the
tables that they index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taso_mirage.ir.terms import Tensor
from taso_mirage.meanings.typed import Typed

MOVES = frozenset("cast reshape transpose expand concat slice".split())
"""Primitives whose results hold the integers of their operands, and no others."""
TAKES = ("take", "take_along")
"""Primitives whose results hold the integers of their first operand."""
INDICES = ("int32", "int64")
InputNames = frozenset[str]
NO_NAMES: InputNames = frozenset()
_Value = tuple[Tensor, InputNames]


class IndexMeaning(Typed[InputNames]):
    """A note names the inputs whose integers a value holds; `rows` are those of the smallest table
    that they index."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def note(
        self, primitive: str, fn: Any, notes: Sequence[InputNames], operands: Sequence[Tensor], result: Tensor
    ) -> InputNames:
        if result.dtype not in INDICES:
            return NO_NAMES
        if primitive in TAKES:
            return notes[0]
        return NO_NAMES.union(*notes) if primitive in MOVES or (primitive == "map" and fn is np.where) else NO_NAMES

    def take(self, a: _Value, indices: _Value, axis: int) -> _Value:
        return self._looked_up(a, indices, axis, super().take(a, indices, axis))

    def take_along(self, a: _Value, indices: _Value, axis: int) -> _Value:
        return self._looked_up(a, indices, axis, super().take_along(a, indices, axis))

    def put(self, a: _Value, places: Sequence[_Value], updates: _Value, fn: np.ufunc | None = None) -> _Value:
        made = super().put(a, places, updates, fn)
        for axis, place in enumerate(places):
            made = self._looked_up(a, place, axis, made)
        return made

    def _looked_up(self, a: _Value, indices: _Value, axis: int, result: _Value) -> _Value:
        rows = self.shape(a)[axis]
        if isinstance(rows, int) and rows > 0:
            self.rows |= {name: min(rows, self.rows.get(name, rows)) for name in indices[1]}
        return result
