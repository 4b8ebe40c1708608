"""A region as text: which positions of an output are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from textwrap import wrap

import numpy as np

from taso_mirage.search.partial.agreement import AgreementRegion
from taso_mirage.search.partial.pieces import coarse

WIDEST = 3
"""The largest number of characters for an interval; the positions of a longer one are written
beside it."""
COLUMNS, LINES = 95, 40
"""The largest size of a picture; a note says if it was cut."""
RIGHT, WRONG = ".", "#"


def picture(region: AgreementRegion) -> str:
    """Draw two axes, with `.` where the programs agree and `#` where they do not, once for each
    different picture along the other axes. The two axes are the last two along which the region
    varies, or the last two of all.

    Up to three equal neighbouring positions are drawn one by one, more as three.
    """
    lines = list(_lines(region))
    if len(lines) > LINES:
        lines[LINES - 1 :] = [f"... and {len(lines) - LINES + 1} more lines"]
    return "\n".join(lines)


def _lines(region: AgreementRegion) -> Iterator[str]:
    grid, edges = coarse(region.same, region.edges)
    while grid.ndim < 2:
        grid, edges = grid[None], [(0, 1), *edges]
    axes = _axes(grid.shape)
    around = [list(pairwise(own)) for i, own in enumerate(edges) if i not in axes]
    rows, columns = (list(pairwise(edges[i])) for i in axes)
    cuts = np.moveaxis(grid, axes, (-2, -1))
    for index in product(*[range(len(own)) for own in around]):
        shown = [_shown(own[i]) for own, i in zip(around, index, strict=True)]
        for axis in axes:
            shown.insert(axis, ":")
        if around:
            yield f"[{', '.join(shown)}]"
        yield from _drawn(cuts[index].tolist(), rows, columns)


def _axes(shape: Sequence[int]) -> tuple[int, int]:
    """The rows and the columns of the picture of a grid."""
    last = len(shape) - 1
    differ = [i for i, n in enumerate(shape) if n > 1]
    if not differ or differ[-1] >= last - 1:
        return last - 1, last
    return (differ[-2], differ[-1]) if len(differ) > 1 else (differ[0], differ[0] + 1)


def _drawn(
    same: Sequence[Sequence[bool]], rows: Sequence[tuple[int, int]], columns: Sequence[tuple[int, int]]
) -> Iterator[str]:
    margin = max(len(_shown(r)) for r in rows)
    shown = _fitting(columns, COLUMNS - margin - len("  ..."))
    more = " ..." if len(shown) < len(columns) else ""
    for row, interval in zip(same, rows, strict=True):
        line = "".join((RIGHT if s else WRONG) * _width(c) for s, c in zip(row, shown, strict=False)) + more
        for i in range(_width(interval)):
            yield f"{_shown(interval) if i == 0 else '':>{margin}} {line}"
    labels = " ".join(_shown(c) for c in shown) + (f" ... {columns[-1][1]}" if more else "")
    yield from (
        " " * (margin + 1) + each for each in wrap(labels, COLUMNS - margin - 1, max_lines=2, placeholder=" ...")
    )


def _fitting(columns: Sequence[tuple[int, int]], room: int) -> Sequence[tuple[int, int]]:
    """The first columns that fit beside each other."""
    for i, column in enumerate(columns):
        room -= _width(column)
        if room < 0:
            return columns[:i]
    return columns


def _width(interval: tuple[int, int]) -> int:
    return min(interval[1] - interval[0], WIDEST)


def _shown(interval: tuple[int, int]) -> str:
    low, high = interval
    return str(low) if high == low + 1 else f"{low}:{high}"
