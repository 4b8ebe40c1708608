"""Which integers of a model's inputs index a table, and how many rows that has: ids of tokens,
positions and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import ABSENT, Graph, Tensor, topological
from taso_mirage.meanings.typed import Typed
from taso_mirage.operators.interpret import interpret_term

MOVES = frozenset("cast reshape transpose expand concat slice".split())
"""Primitives whose results hold the integers of their operands, and no others."""
INDICES = ("int32", "int64")
InputNames = frozenset[str]
NO_NAMES: InputNames = frozenset()
_Value = tuple[Tensor, InputNames]


class _Lookups(Typed[InputNames]):
    """The meaning `lookups`: a note names the inputs whose integers a value holds; `rows` are those
    of the smallest table that they index."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def note(
        self, primitive: str, fn: Any, notes: Sequence[InputNames], operands: Sequence[Tensor], result: Tensor
    ) -> InputNames:
        if primitive in MOVES or (primitive == "map" and fn is np.where):
            return NO_NAMES.union(*notes) if result.dtype in INDICES else NO_NAMES
        return NO_NAMES

    def take(self, a: _Value, indices: _Value, axis: int) -> _Value:
        return self._looked_up(a, indices, axis, super().take(a, indices, axis))

    def take_along(self, a: _Value, indices: _Value, axis: int) -> _Value:
        return self._looked_up(a, indices, axis, super().take_along(a, indices, axis))

    def _looked_up(self, a: _Value, indices: _Value, axis: int, result: _Value) -> _Value:
        rows = self.shape(a)[axis]
        if isinstance(rows, int) and rows > 0:
            self.rows |= {name: min(rows, self.rows.get(name, rows)) for name in indices[1]}
        return result


def indexed_rows(graph: Graph) -> dict[str, int]:
    """By name of an input of integers: the rows of the smallest table that they index."""
    meaning = _Lookups()
    notes = {n: frozenset((str(n.attr("name")),)) for n in graph.inputs if n.dtype in INDICES}
    for node in topological(graph.outputs) if notes else ():
        if node.op == "opaque" or not any(a in notes for a in node.args):
            continue
        args: list[Any] = [None if a is ABSENT else (a.type, notes.get(a, NO_NAMES)) for a in node.args]
        try:
            _, note = interpret_term(node, meaning, args)
        except (IllTyped, Unsupported, TypeError, ValueError):  # a tuple of parts, an unknown rank: nothing is known
            continue
        if note:
            notes[node] = note
    return meaning.rows
