"""Where the tiles of a kernel lie: offsets from the start of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.emit.gpu.tiles import Tiles, known_count
from taso_mirage.ir.dims import Dim, Shape, bind, symbol, symbols
from taso_mirage.ir.mugraph import LoopPhase, Overlap, tile_stride, usual_size

Groups = Sequence[Sequence[int]]
TileCut = tuple[int, Dim, Overlap | None, str]
"""The dim that a grid dim or the loop cuts, into how many, how the tiles overlap, and the variable
that counts them."""


def place(
    tiles: Tiles,
    buffer: TritonBuffer,
    tile: Shape,
    axes: Sequence[Sequence[tuple[int, int]]],
    present: Sequence[int],
    cuts: Sequence[TileCut],
) -> str:
    """The offsets of a tile: for each dim the block's share, the iteration's, and the lanes,
    times the stride. `axes` are those of each dim in memory, each with how many elements of the
    dim one step along it is."""
    found: list[str] = []
    for dim in buffer.order:
        share, starts = buffer.shape[dim], list[str]()
        for cut, count, overlap, variable in cuts:
            if cut == dim and count != 1:
                share = tile_stride(share, tile[dim], count) if overlap is None else overlap[1]
                start = variable if share == 1 else f"{variable} * {_wide(tiles, share)}"
                starts.append(start if overlap is None else f"tl.minimum({start}, {overlap[0] - overlap[1]})")
        lanes = [_times([tiles.index(present, axis)], step) for axis, step in axes[dim]]
        found += _offsets(tiles, buffer, dim, starts, lanes, tile[dim])
    return "".join(f" + {each}" for each in found)


def _offsets(
    tiles: Tiles, buffer: TritonBuffer, dim: int, starts: Sequence[str], lanes: Sequence[str], tile: Dim
) -> list[str]:
    """The offsets along a dim. Where sizes are given in a run, offsets have 64 bits, except those
    of lanes that stay below 2^31."""
    size, stride = buffer.shape[dim], buffer.strides[dim]
    if isinstance(stride, int) and (isinstance(size, int) or stride == 1):
        return [_times([*starts, *lanes], stride)] if starts or lanes else []
    wide = _wide(tiles, stride)
    if isinstance(stride, int):
        wide = tiles.lines.let(LoopPhase.INVARIANT, f"wide_{stride}", f"tl.full([], {stride}, tl.int64)")
    near = isinstance(stride, int) and usual_size(tile) * stride < 2**31
    parts = [(starts, wide), (lanes, str(stride) if near else wide)]
    return [_product(each, factor) for each, factor in parts if each]


def _wide(tiles: Tiles, dim: Dim) -> str:
    """A size as code has it in an offset: a size that a run gives in 64 bits."""
    if isinstance(dim, int):
        return str(dim)
    names = {
        n: symbol(tiles.lines.let(LoopPhase.INVARIANT, f"{n}_wide", f"{n}.to(tl.int64)")) for n in sorted(symbols(dim))
    }
    shown = str(bind(dim, names))
    return shown if shown.isidentifier() else f"({shown})"


def _times(parts: Sequence[str], stride: int) -> str:
    """(a + b) * stride, with no more parentheses and factors than it needs."""
    total = " + ".join(parts)
    if stride == 1:
        return total
    single = len(parts) == 1 and " * " not in total
    return f"{total} * {stride}" if single else f"({total}) * {stride}"


def _product(parts: Sequence[str], factor: str) -> str:
    """The sum of the parts times a factor that is text, as `_times` writes it for a number."""
    total = " + ".join(parts)
    single = len(parts) == 1 and " * " not in total
    return f"{total if single else f'({total})'} * {factor}"


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
