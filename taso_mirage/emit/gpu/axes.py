"""Axes of tiles in registers: which of them are equal, and their numbers of lanes (powers of two,
at least 16 where a dot needs it)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import largest_size


def power_of_two(n: int) -> int:
    """The least power of two of at least n."""
    return 1 << max(n - 1, 0).bit_length()


def grouped(parts: Sequence[Dim], whole: Sequence[Dim]) -> list[list[int]] | None:
    """For each dim of `whole` the dims of `parts` of which it consists in row order, without those
    of 1; None if a dim of `parts` would be cut."""
    found, i = [], 0
    for n in whole:
        group: list[int] = []
        total: Dim = 1
        while total != n and i < len(parts):
            group += [i] if parts[i] != 1 else []
            total = total * parts[i]
            i += 1
        if total != n:
            return None
        found.append(group)
    return found if all(n == 1 for n in parts[i:]) else None


class TileAxes:
    """The axes of a body, which is read twice: the first reading joins axes and records the demands
    of dots, the second gets the same axes again.

    So numbers are given in the order of requests, and no step of a reading may depend on the number
    of an axis's lanes.
    """

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[Dim] = []
        self._least: list[int] = []
        self._next = 0

    def again(self) -> None:
        """Begin the next reading."""
        self._next = 0

    def fresh(self, size: Dim) -> int:
        if not isinstance(largest_size(size), int):
            raise Unsupported(f"a tile of all of {size}, which a run alone knows")
        axis = self._next
        self._next += 1
        if axis == len(self._parent):
            self._parent.append(axis)
            self._size.append(size)
            self._least.append(1)
        return axis

    def find(self, axis: int) -> int:
        while self._parent[axis] != axis:
            axis = self._parent[axis]
        return axis

    def join(self, a: int, b: int) -> int:
        """Join two axes, and return the joined one."""
        a, b = self.find(a), self.find(b)
        if self._size[a] != self._size[b]:
            raise Unsupported(f"an axis of {self._size[a]} elements beside one of {self._size[b]}")
        self._parent[max(a, b)] = min(a, b)
        self._least[min(a, b)] = max(self._least[a], self._least[b])
        return min(a, b)

    def demand(self, axis: int, lanes: int) -> None:
        axis = self.find(axis)
        self._least[axis] = max(self._least[axis], lanes)

    def size(self, axis: int) -> Dim:
        return self._size[self.find(axis)]

    def largest(self, axis: int) -> int:
        """The size of an axis; the full tile's size if the axis is cut into tiles."""
        return int(largest_size(self.size(axis)))

    def lanes(self, axis: int) -> int:
        axis = self.find(axis)
        return max(power_of_two(self.largest(axis)), self._least[axis])

    def all_lanes(self, axes: Iterable[int]) -> list[int]:
        """The lanes of each of some axes."""
        return [self.lanes(axis) for axis in axes]

    def padded(self, axis: int) -> bool:
        return self.lanes(axis) != self.size(axis)
