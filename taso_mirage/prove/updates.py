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
_Test = tuple[list[Dim], list[Dim]]
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
    _solved: dict[int, int] | None = None

    def read(self, index: _Index) -> Cases:
        """The element at an index. Raises Unprovable where the updates are too many."""
        counts = self.places[0].shape
        told = [1 if axis in self.solved else n for axis, n in enumerate(counts)]
        if not _few(told):
            raise Unprovable(f"a scatter of {counts} updates; at most {UPDATES} are told apart")
        return self._after(index, [*np.ndindex(*map(int, told))])

    @property
    def solved(self) -> dict[int, int]:
        """If the updates are many, their axes along which a place is the position itself, as beside
        the axis of `ScatterElements`: each with the axis of the tensor, whose index says which
        update it is."""
        if self._solved is None:
            counts, self._solved = self.places[0].shape, {}
            names = tuple(map(self.algebra.indices.fresh, counts))
            found = [] if _few(counts) else [self._place(k, names) for k in range(len(self.places))]
            known = [self.algebra.as_dim(each[0][1]) if len(each) == 1 and not each[0][0] else None for each in found]
            for axis, n in enumerate(counts):
                if n != 1 and names[axis] in known:
                    self._solved[axis] = known.index(names[axis])
        return self._solved

    def _place(self, axis: int, j: _Index) -> Cases:
        place = self.places[axis]
        return tuple((c, machine.wrapped_value(self.algebra, p, place.type.dtype)) for c, p in place.at(j))

    def _after(self, index: _Index, updates: Sequence[tuple[int, ...]]) -> Cases:
        key = index, len(updates)
        if key not in self.known:
            self.known[key] = self._updated(index, updates) if updates else self.whole.at(index)
        return self.known[key]

    def _updated(self, index: _Index, updates: Sequence[tuple[int, ...]]) -> Cases:
        """By whether the last of the updates has the place `index`: tests of conditions that all
        hold, each with those of which else one holds."""
        *before, last = updates
        j = tuple([index[self.solved[axis]] if axis in self.solved else i for axis, i in enumerate(last)])
        inside: list[_Test] = []
        for axis, k in self.solved.items():
            if (n := self.places[0].shape[axis]) != self.whole.shape[k]:
                inside.append(([n - 1 - index[k]], [index[k] - n]))
        others = [k for k in range(len(self.places)) if k not in self.solved.values()]
        indices, found = self.algebra.indices, list[tuple[Conditions, Poly]]()
        for pieces in product(*[self._place(k, j) for k in others]):
            given = [e for conditions, _ in pieces for e in conditions]
            tests = list(inside)
            for k, (_, p) in zip(others, pieces, strict=True):
                d = index[k] - self.algebra.position(p, self.whole.shape[k])
                tests.append(([d, -d], [d - 1, -d - 1]))
            held = list(given)
            for same, different in tests:
                for other in different:
                    found += cases_where(indices, [*held, other], lambda: self._after(index, before))
                held += same
            found += cases_where(indices, held, lambda: self._own(index, j, before))
        return merged_cases(found)

    def _own(self, index: _Index, j: _Index, before: Sequence[tuple[int, ...]]) -> Cases:
        new = self.updates.at((*j, *index[len(self.places) :]))
        return new if self.folded is None else self.folded(self._after(index, before), new)


def _few(counts: Sequence[Dim]) -> bool:
    return all(isinstance(n, int) for n in counts) and prod(map(int, counts)) <= UPDATES
