"""Integers of a few bits in words of 32: what a block loads of weights, and the floats that they are.

A thread that loads a word has eight numbers of four bits side by side. Each becomes a float without
a conversion, which is slow on a GPU: its bits are set below those of a power of two, which is then
taken away. Blocks of weights are loaded with the blocks outermost: so neighbouring threads read
neighbouring words, and a thread has several rows for which it reads an activation once (9.2 to 7.2
us for 4,096 x 4,096 of 4 bits and one row on an H100, written by hand).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from taso_mirage.ir.mugraph import LoopPhase, Lowering
from taso_mirage.ir.terms import Graph, Node, is_float
from taso_mirage.kernels.codegen.gpu.program import TritonBuffer
from taso_mirage.kernels.codegen.gpu.tiles import Tile, Tiles
from taso_mirage.operators.ops import traits

WORD = 4
"""Bytes of a word."""
POWERS = {2: 16.0, 4: 16.0, 8: 2.0**23}
"""For each number of bits a power of two, and where in a float32 of that power its least bit is."""
PLACES = {2: (0x41800000, 19), 4: (0x41800000, 19), 8: (0x4B000000, 0)}


def in_words(body: Graph, reads: Sequence[TritonBuffer], readers: Mapping[Node, Sequence[Node]]) -> dict[Node, int]:
    """The terms that are numbers of a few bits of what is loaded, with how many bits: whole words
    of them, of which only floats are read."""
    found = {}
    for x, buffer in zip(body.inputs, reads, strict=True):
        if buffer.dtype != "uint8" or not x.shape or not _whole(x) or not _whole(buffer):
            continue
        for node in readers.get(x, ()):
            unpacks = traits(node).lowering is Lowering.UNPACK
            floats = [node] if not unpacks else readers.get(node, ())
            if all(traits(each).converts and is_float(each.dtype) for each in floats):
                found[node] = node.attr("bits") if unpacks else 8
    return found


def _whole(x: Node | TritonBuffer) -> bool:
    return isinstance(x.shape[-1], int) and x.shape[-1] % WORD == 0


def of_words(buffer: TritonBuffer) -> TritonBuffer:
    """A tensor of bytes as one of words."""
    return replace(buffer, dtype="int32", shape=(*buffer.shape[:-1], buffer.shape[-1] // WORD))


def outermost(present: Sequence[int]) -> list[int]:
    """The axes of a tile in the order in which it is loaded: Triton spreads threads over the last
    one, and then over the first."""
    return [*present[1:-1], present[0], present[-1]] if len(present) > 2 else list(present)


def numbers(tiles: Tiles, words: Tile, bits: int, name: str) -> Tile:
    """The floats of a tile of words, along its last dim: of the dtype that the words have."""
    (power, place), each = PLACES[bits], 32 // bits
    mask = (2**bits - 1) << place
    parts = []
    for i in range(each):
        shift = place - bits * i
        moved = f"({words.code} {'<<' if shift > 0 else '>>'} {abs(shift)})" if shift else words.code
        parts.append(tiles.lines.let(words.stage, name, f"({moved} & {mask:#x}) | {power:#x}"))
    axes = (*words.axes[:-1], tiles.axes_of.fresh(words.shape[-1] * each))
    lanes = ", ".join(str(tiles.axes_of.lanes(a)) for a in axes if a is not None)
    bits_of_floats = tiles.lines.let(words.stage, name, f"tl.reshape({_joined(parts)}, [{lanes}])")
    code = tiles.lines.let(words.stage, name, f"{bits_of_floats}.to(tl.float32, bitcast=True) - {POWERS[bits]}")
    shape = (*words.shape[:-1], words.shape[-1] * each)
    together = None if axes[-1] is None else (axes[-1], each)
    return replace(words, code=code, shape=shape, axes=axes, stored="float32", together=together)


def _joined(parts: Sequence[str]) -> str:
    """Tiles in turn along new axes, the first ones along the last."""
    return parts[0] if len(parts) == 1 else f"tl.join({_joined(parts[::2])}, {_joined(parts[1::2])})"


def pointer(tiles: Tiles, name: str) -> str:
    """What points to the words of a tensor of bytes."""
    return tiles.lines.let(LoopPhase.INVARIANT, f"{name}_words", f"{name}.to(tl.pointer_type(tl.int32))")
