"""A region as text: which positions of an output are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from taso_mirage.partial.agreement import Region
from taso_mirage.partial.pieces import coarse

WIDEST = 3
"""Characters of an interval, at most: a long one says its positions beside."""
RIGHT, WRONG = ".", "#"


def picture(region: Region) -> str:
    """The last two axes, `.` where the programs agree and `#` where not, for each part of the axes before that looks otherwise.

    Up to three neighbouring positions that look alike are drawn one by one, more of them as three.
    """
    grid, edges = coarse(region.same, region.edges)
    while grid.ndim < 2:
        grid, edges = grid[None], [(0, 1), *edges]
    *before, rows, columns = [list(pairwise(own)) for own in edges]
    lines: list[str] = []
    for index in product(*[range(len(own)) for own in before]):
        if before:
            lines.append(f"[{', '.join(_shown(own[i]) for own, i in zip(before, index, strict=True))}, :, :]")
        lines += _drawn(grid[index].tolist(), rows, columns)
    return "\n".join(lines)


def _drawn(
    same: Sequence[Sequence[bool]], rows: Sequence[tuple[int, int]], columns: Sequence[tuple[int, int]]
) -> Iterator[str]:
    margin = max(len(_shown(r)) for r in rows)
    for row, interval in zip(same, rows, strict=True):
        line = "".join((RIGHT if s else WRONG) * _width(c) for s, c in zip(row, columns, strict=True))
        for i in range(_width(interval)):
            yield f"{_shown(interval) if i == 0 else '':>{margin}} {line}"
    yield " " * (margin + 1) + " ".join(_shown(c) for c in columns)


def _width(interval: tuple[int, int]) -> int:
    return min(interval[1] - interval[0], WIDEST)


def _shown(interval: tuple[int, int]) -> str:
    low, high = interval
    return str(low) if high == low + 1 else f"{low}:{high}"
