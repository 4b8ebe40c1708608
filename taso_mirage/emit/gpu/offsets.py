"""The places of a kernel's tiles: offsets from the start of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.emit.gpu.tiles import Tiles, known_count
from taso_mirage.emit.statements import Expression, ExpressionLike, expression, group, sum_of, tl, v
from taso_mirage.ir.dims import Dim, Shape, bind, symbol, symbols
from taso_mirage.ir.mugraph import LoopPhase, Overlap, tile_stride, usual_size

Groups = Sequence[Sequence[int]]
TileCut = tuple[int, Dim, Overlap | None, str]
"""The dim that a grid dim or the loop cuts, the number of tiles, their overlap, and the variable
that counts them."""


def place(
    tiles: Tiles,
    buffer: TritonBuffer,
    tile: Shape,
    axes: Sequence[Sequence[tuple[int, int]]],
    present: Sequence[int],
    cuts: Sequence[TileCut],
) -> list[Expression]:
    """The offsets of a tile: for each dim the block's share, the iteration's, and the lanes, times
    the stride. `axes` are those of each dim in memory, each with the number of the dim's elements
    in one step along it."""
    found = [expression(wide_size(tiles, buffer.start))] if buffer.start != 0 else list[Expression]()
    for dim in buffer.order:
        starts = block_starts(tiles, buffer.shape[dim], tile, dim, cuts)
        lanes = lanes_along(tiles, axes[dim], present)
        found += offsets_along(tiles, buffer.shape[dim], buffer.strides[dim], starts, lanes, tile[dim])
    return found


def block_starts(tiles: Tiles, size: Dim, tile: Shape, dim: int, cuts: Sequence[TileCut]) -> list[Expression]:
    """The beginning of a tile along a dim: the block's share and the iteration's."""
    share, starts = size, list[Expression]()
    for cut, count, overlap, variable in cuts:
        if cut == dim and count != 1:
            share = tile_stride(share, tile[dim], count) if overlap is None else overlap[1]
            start = v[variable] if share == 1 else v[variable] * wide_size(tiles, share)
            starts.append(start if overlap is None else tl.minimum(start, overlap[0] - overlap[1]))
    return starts


def lanes_along(tiles: Tiles, axes: Sequence[tuple[int, int]], present: Sequence[int]) -> list[Expression]:
    """The lanes of a tile along a dim that consists of some axes."""
    return [_product([tiles.index(present, axis)], step) for axis, step in axes]


def offsets_along(
    tiles: Tiles, size: Dim, stride: Dim, starts: Sequence[Expression], lanes: Sequence[Expression], tile: Dim
) -> list[Expression]:
    """The offsets along a dim of this size. If a run gives sizes, offsets have 64 bits, except
    those of lanes that stay below 2^31."""
    if isinstance(stride, int) and (isinstance(size, int) or stride == 1):
        parts = [*starts, *lanes]
        return parts if stride == 1 or not parts else [_product(parts, stride)]
    wide = wide_size(tiles, stride)
    if isinstance(stride, int):
        wide = tiles.lines.let(LoopPhase.INVARIANT, f"wide_{stride}", tl.full([], stride, tl.int64))
    near = isinstance(stride, int) and usual_size(tile) * stride < 2**31
    scaled = [(starts, wide), (lanes, str(stride) if near else wide)]
    return [_product(each, factor) for each, factor in scaled if each]


def wide_size(tiles: Tiles, dim: Dim) -> str:
    """A size as code has it in an offset: a size that a run gives in 64 bits."""
    if isinstance(dim, int):
        return str(dim)
    names = {
        n: symbol(tiles.lines.let(LoopPhase.INVARIANT, f"{n}_wide", v[n].to(tl.int64))) for n in sorted(symbols(dim))
    }
    shown = str(bind(dim, names))
    return shown if shown.isidentifier() else f"({shown})"


def _product(parts: Sequence[Expression], factor: ExpressionLike) -> Expression:
    """The sum of the parts times a factor."""
    whole = sum_of(parts)
    if factor == 1:
        return whole
    return (group(whole) if len(parts) == 1 and " * " in str(whole) else whole) * factor


def inner(groups: Groups, shape: Shape, axes: Sequence[int | None]) -> list[list[tuple[int, int]]]:
    """For each group of dims in row order their axes, each with the elements that one step is."""
    return [
        [
            (axis, known_count([shape[e] for e in group[i + 1 :]]))
            for i, d in enumerate(group)
            if (axis := axes[d]) is not None
        ]
        for group in groups
    ]
