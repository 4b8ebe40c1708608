"""Integers of a few bits in words of 32 bits: the weights that a block loads, as floats.

A thread that loads a word has eight numbers of four bits. Two at a time become floats of half
precision without a conversion, which is slow on a GPU: their bits become the lowest ones of 1024 or
64, which is subtracted then. Blocks of weights are loaded with the blocks outermost: so
neighbouring threads read neighbouring words, and a thread has several rows for which it reads an
activation once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from taso_mirage.emit.gpu.block_products import Digits, loaded_in_order
from taso_mirage.emit.gpu.moved_tensors import OperandTensor
from taso_mirage.emit.gpu.offsets import TileCut, inner, place
from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.emit.gpu.tiles import Tile, Tiles, known_count
from taso_mirage.emit.statements import Expression, ExpressionLike, group, sum_of, tl, v
from taso_mirage.ir.mugraph import LoopPhase, Lowering
from taso_mirage.ir.terms import Graph, Node, is_float
from taso_mirage.operators.ops import traits

WORD_BYTES = 4
"""The bytes of a word."""
POWER, TWICE, RAISED = 1024, 0x64006400, 0x54005400
"""The number of half precision whose least bit is worth 1, the bits of a pair of it, and the bits
of a pair of 64, whose fifth bit is worth 1."""

UNKNOWN = tl.program_id(0) >> 30
"""An expression for 0, as there are fewer blocks. The compiler does not know its value, and makes
one instruction of an "and" and an "or" if at most one of them is with a constant."""


def in_words(body: Graph, reads: Sequence[OperandTensor], readers: Mapping[Node, Sequence[Node]]) -> dict[Node, int]:
    """The terms that are numbers of a few bits of loaded values, with the number of bits. Only
    terms of whole words that are read as floats count."""
    found = {}
    for x, buffer in zip(body.inputs, reads, strict=True):
        if (
            not isinstance(buffer, TritonBuffer)
            or buffer.dtype != "uint8"
            or not x.shape
            or not _whole(x)
            or not _whole(buffer)
        ):
            continue
        for node in readers.get(x, ()):
            unpacks = traits(node).lowering is Lowering.UNPACK
            floats = [node] if not unpacks else readers.get(node, ())
            if all(traits(each).converts and is_float(each.dtype) for each in floats):
                found[node] = node.attr("bits") if unpacks else 8
    return found


def _whole(x: Node | TritonBuffer) -> bool:
    return isinstance(x.shape[-1], int) and x.shape[-1] % WORD_BYTES == 0


def loaded_words(
    tiles: Tiles,
    name: str,
    buffer: TritonBuffer,
    leaf: Node,
    stage: LoopPhase,
    cuts: Sequence[TileCut],
    digits: Digits | None = None,
) -> Tile:
    """The words of `leaf`, a tile of the argument `name`, loaded in the order of a product of
    blocks if there is one."""
    shape = (*leaf.shape[:-1], known_count(leaf.shape[-1:]) // WORD_BYTES)
    buffer = replace(buffer, dtype="int32", shape=(*buffer.shape[:-1], known_count(buffer.shape[-1:]) // WORD_BYTES))
    axes = tuple(tiles.axes_of.fresh(n) if n != 1 or d == len(shape) - 1 else None for d, n in enumerate(shape))
    present = [a for a in axes if a is not None]
    # the order of the load: Triton distributes threads over the last axis, and then over the first
    order = [*present[1:-1], present[0], present[-1]] if len(present) > 2 else list(present)
    at = place(tiles, buffer, shape, inner([[d] for d in range(len(shape))], shape, axes), order, cuts)
    masks = tiles.masks(order, [a for a in present if tiles.axes_of.padded(a)])
    pointer = tiles.lines.let(LoopPhase.INVARIANT, f"{name}_words", v[name].to(tl.pointer_type(tl.int32)))
    code = tl.load(sum_of([pointer, *at]), *masks, other=0)
    if digits is not None:
        code = loaded_in_order(tiles, pointer, buffer, shape, digits, cuts)
    elif order != present:
        code = tl.permute(code, tuple(order.index(a) for a in present))
    words = tiles.lines.let(stage, f"{name}_words", code)
    return Tile(words, shape, axes, "int32", "int32", stage, zero=True)


def apart(tiles: Tiles, words: Tile, dtype: str, bits: int, name: str) -> Tile:
    """The numbers of a tile of words, along its last dim, as floats."""
    each, low, high = 32 // bits, list[Expression](), list[Expression]()
    number = 2**bits - 1
    for i in range(each // 2):
        raised = i % 2 if bits == 4 else 0  # a number that stays at its place saves a shift
        moved = group(v[words.code] >> bits * (i - raised)) if i - raised else v[words.code]
        mask = hex(number * 0x10001 << bits * raised)
        twice = tiles.lines.let(LoopPhase.INVARIANT, "twice", v[hex(RAISED if raised else TWICE)] | group(UNKNOWN))
        both = v[tiles.lines.let(words.stage, name, group(moved & mask) | twice)]
        low.append(both.to(tl.int16))
        high.append((both >> 16).to(tl.int16))
    lows, highs = ([tiles.lines.let(words.stage, name, part) for part in parts] for parts in (low, high))
    last = tiles.axes_of.fresh(words.shape[-1] * each)
    axes = (*words.axes[:-1], last)
    lanes = [tiles.axes_of.lanes(a) for a in axes if a is not None]
    # The halves of a word beside each other in registers, so that one instruction takes both.
    rank, added = len(words.present), each.bit_length() - 1
    perm = (*range(rank), rank + added - 1, *range(rank, rank + added - 1))
    halves = tl.permute(tl.join(_joined(lows), _joined(highs)), perm)
    joined = tiles.lines.let(words.stage, name, tl.reshape(halves, lanes).to(tl.float16, bitcast=True))
    place = tiles.index([a for a in axes if a is not None], last)

    def less(number: int) -> Expression:
        power, small = float(POWER + number), float(POWER // 16 + number)
        return v[joined] - (tl.where((place % 2).equals(0), power, small).to(tl.float16) if bits == 4 else power)

    code = tiles.lines.let(words.stage, name, less(0))
    tiles.raised[code] = less
    shape = (*words.shape[:-1], words.shape[-1] * each)
    return replace(words, code=code, shape=shape, axes=axes, dtype=dtype, stored="float16", together=(last, each))


def _joined(parts: Sequence[str]) -> ExpressionLike:
    """Tiles in turn along new axes, the first ones along the last."""
    return parts[0] if len(parts) == 1 else tl.join(_joined(parts[::2]), _joined(parts[1::2]))
