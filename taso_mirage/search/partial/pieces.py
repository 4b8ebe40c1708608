"""Boxes merged into as few pieces as possible: a region cut from edge to edge, again and again
(PET, OSDI'21, section 6.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import Unsupported
from taso_mirage.operators.traits import Box
from taso_mirage.search.partial.agreement import AgreementRegion

LARGEST = 6000
"""The largest number of boxes of neighbouring intervals that are examined. A correction of a region
with more does not pay."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A box on which two programs agree everywhere or nowhere, or a box that is cut along `axis`
    into `parts`."""

    box: Box
    agrees: bool
    axis: int = 0
    parts: tuple[Piece, ...] = ()

    def leaves(self) -> Iterator[Piece]:
        """The pieces that are not cut."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


def pieces(region: AgreementRegion) -> Piece:
    """The whole output, cut into the smallest number of failing pieces, and among those into the
    fewest pieces.

    Raises Unsupported if it is too ragged.
    """
    grid, edges = coarse(region.same, region.edges)
    looked = prod(n * (n + 1) // 2 for n in grid.shape)
    if looked > LARGEST:
        raise Unsupported(
            f"a region with {' x '.join(map(str, grid.shape))} different rows is too ragged ({looked} boxes, {LARGEST} at most)"
        )
    return _Cutter(grid, edges).piece(tuple((0, n) for n in grid.shape))


def merged_boxes(region: AgreementRegion, agree: bool) -> list[Box]:
    """The boxes that agree, or those that do not, in few boxes."""
    return [p.box for p in pieces(region).leaves() if p.agrees == agree]


def coarse(grid: NDArray[np.bool_], edges: Sequence[Sequence[int]]) -> tuple[NDArray[np.bool_], list[tuple[int, ...]]]:
    """Without the cuts between slabs that are the same."""
    found = []
    for axis, own in enumerate(edges):
        rows = np.moveaxis(grid, axis, 0)
        kept = [0, *(i for i in range(1, len(rows)) if not np.array_equal(rows[i], rows[i - 1]))]
        grid = np.take(grid, kept, axis)
        found.append((*(own[i] for i in kept), own[-1]))
    return grid, found


class _Cutter:
    """The best cuts of every box of neighbouring intervals, each found once."""

    def __init__(self, grid: NDArray[np.bool_], edges: Sequence[Sequence[int]]) -> None:
        self.grid, self.edges = grid, edges
        self._best: dict[Box, tuple[tuple[int, int], int, int]] = {}

    def piece(self, box: Box) -> Piece:
        """Cuts along one axis in a row are one."""
        own = self.grid[tuple(slice(*i) for i in box)]
        where = tuple((e[a], e[b]) for e, (a, b) in zip(self.edges, box, strict=True))
        if own.all() or not own.any():
            return Piece(where, bool(own.all()))
        _, axis, at = self._cheapest(box)
        halves = [self.piece(half) for half in _halves(box, axis, at)]
        parts = [p for half in halves for p in (half.parts if half.parts and half.axis == axis else (half,))]
        return Piece(where, False, axis, tuple(parts))

    def _cheapest(self, box: Box) -> tuple[tuple[int, int], int, int]:
        """The (failing, all) pieces of the best cut, its axis and place."""
        if box not in self._best:
            own = self.grid[tuple(slice(*i) for i in box)]
            if own.all() or not own.any():
                self._best[box] = (int(not own.any()), 1), 0, 0
            else:
                self._best[box] = min(self._cuts(box))
        return self._best[box]

    def _cuts(self, box: Box) -> Iterator[tuple[tuple[int, int], int, int]]:
        for axis, (low, high) in enumerate(box):
            for at in range(low + 1, high):
                left, right = (self._cheapest(half)[0] for half in _halves(box, axis, at))
                yield (left[0] + right[0], left[1] + right[1]), axis, at


def _halves(box: Box, axis: int, at: int) -> tuple[Box, Box]:
    low, high = box[axis]
    return (*box[:axis], (low, at), *box[axis + 1 :]), (*box[:axis], (at, high), *box[axis + 1 :])
