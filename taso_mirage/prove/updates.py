"""The element of a tensor of which some elements were updated (the primitive `put`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Protocol

import numpy as np

from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Tensor
from taso_mirage.meanings.conditions import Conditions, Unprovable
from taso_mirage.meanings.polynomials import Poly
from taso_mirage.prove import machine
from taso_mirage.prove.cases import Cases, cases_where, merged_cases
from taso_mirage.prove.scalars import Scalars

_Index = tuple[Dim, ...]
UPDATES = 8
"""The largest number of updates that are told apart."""


class ReadElement(Protocol):
    """A tensor whose elements are read at an index."""

    type: Tensor

    @property
    def shape(self) -> Shape:
        """The dims of the tensor."""

    def at(self, index: _Index) -> Cases:
        """The element at an index."""


@dataclass(slots=True)
class UpdatedElement:
    """A tensor after `updates`, whose positions along its first axes are `places`. `folded` gives
    the element for the one that was there and an update; if it is None, the last update counts."""

    algebra: Scalars
    whole: ReadElement
    places: Sequence[ReadElement]
    updates: ReadElement
    folded: Callable[[Cases, Cases], Cases] | None
    known: dict[tuple[_Index, int], Cases] = field(default_factory=dict)

    def read(self, index: _Index) -> Cases:
        """The element at an index. Raises Unprovable where the updates are too many."""
        counts = self.places[0].shape
        if not all(isinstance(n, int) for n in counts) or prod(map(int, counts)) > UPDATES:
            raise Unprovable(f"a scatter of {counts} updates; at most {UPDATES} are told apart")
        return self._after(index, [*np.ndindex(*map(int, counts))])

    def _place(self, axis: int, j: tuple[int, ...]) -> Cases:
        place = self.places[axis]
        return tuple((c, machine.wrapped_value(self.algebra, p, place.type.dtype)) for c, p in place.at(j))

    def _after(self, index: _Index, updates: Sequence[tuple[int, ...]]) -> Cases:
        key = index, len(updates)
        if key not in self.known:
            self.known[key] = self._updated(index, updates) if updates else self.whole.at(index)
        return self.known[key]

    def _updated(self, index: _Index, updates: Sequence[tuple[int, ...]]) -> Cases:
        """By whether the last of the updates has the place `index`."""
        *before, j = updates
        indices, found = self.algebra.indices, list[tuple[Conditions, Poly]]()
        for pieces in product(*[self._place(axis, j) for axis in range(len(self.places))]):
            given = [e for conditions, _ in pieces for e in conditions]
            at = [self.algebra.position(p, n) for (_, p), n in zip(pieces, self.whole.shape, strict=False)]
            apart = [i - p for i, p in zip(index, at, strict=False)]
            same = [*given, *(e for d in apart for e in (d, -d))]
            found += cases_where(indices, same, lambda: self._own(index, j, before))
            for k, d in enumerate(apart):
                equal = [e for other in apart[:k] for e in (other, -other)]
                for other in (d - 1, -d - 1):
                    found += cases_where(indices, [*given, *equal, other], lambda: self._after(index, before))
        return merged_cases(found)

    def _own(self, index: _Index, j: tuple[int, ...], before: Sequence[tuple[int, ...]]) -> Cases:
        new = self.updates.at((*j, *index[len(self.places) :]))
        return new if self.folded is None else self.folded(self._after(index, before), new)
