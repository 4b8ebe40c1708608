"""Products of one row with weights in blocks on the tensor cores, without shared memory.

A thread that loads 16 bytes of weights has the numbers of four words in a row of one column. A
product of matrices (`mma`) needs these in a thread, up to the order of the sum, if loads distribute
the threads of a warp over four such pieces and eight columns. So weights and x are loaded in that
order; all later steps only name axes, and move nothing. A warp has a group of blocks. The tensor
cores multiply at least eight columns of x, but x has one row: so they get one column for each block
of the group. Of all blocks of weights times all blocks of x, the diagonal counts, with the scale of
each block. Integers of 8 bits are exact in half precision, and sums are single precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.moved_tensors import OperandTensor
from taso_mirage.emit.gpu.offsets import TileCut, inner, place
from taso_mirage.emit.gpu.products import elements
from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.emit.gpu.tiles import Tile, Tiles
from taso_mirage.emit.statements import Expression, sum_of, tl, v
from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, is_constant, users
from taso_mirage.operators.ops import traits

PIECES, WORDS, COLUMNS = 4, 4, 8
"""Threads of a warp side by side in a row of weights, words of each, and columns of x at a time."""
LANE_WORDS = PIECES * WORDS
WARPS, LOADS = 8, 8
"""The largest number of warps of a block, and the loads of 16 bytes of weights that a thread has if
there are fewer warps."""
LARGE, SMALL = 2.0**15, 2.0**-17
"""The absolute value from which x is multiplied by a power of two, and that: then the product of
two numbers in half precision is in its range."""


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """The sum over blocks of (numbers x) scale: the terms of its operands, (..., c, d, e), (..., 1,
    d, e) and (..., c, d) for c columns and d blocks of e numbers, `bits` of each; `packed` is the
    term that unpacks them. Dims before these are 1."""

    numbers: Node
    x: Node
    scales: Node
    packed: Node
    bits: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Columns, blocks, and numbers of a block."""
        columns, blocks, each = map(int, self.numbers.shape[-3:])
        return columns, blocks, each

    @property
    def source(self) -> Node:
        """The operand x without reshapes that only move its dims of 1."""
        return _source(self.x)

    @property
    def parts(self) -> int:
        """The number of blocks of a line: 1 where a block has whole lines."""
        return max(LANE_WORDS * 32 // self.bits // self.shape[2], 1)

    @property
    def lines(self) -> tuple[int, int]:
        """The number of groups, and of lines (or blocks of whole lines) in each."""
        lines = self.shape[1] // self.parts
        group = math.gcd(lines, COLUMNS // self.parts)
        return lines // group, group

    @property
    def is_whole(self) -> bool:
        """Whether the tile has whole columns for the tensor cores and whole lines, and groups."""
        columns, blocks, each = self.shape
        line = LANE_WORDS * 32 // self.bits
        even = each % line == 0 or (line % each == 0 and PIECES % self.parts == 0 and blocks % self.parts == 0)
        return columns % COLUMNS == 0 and even and self.lines[1] * self.parts > 1

    @property
    def digits(self) -> tuple[int, ...]:
        """The numbers of a line, or of a block of several: runs of words, pieces, words, then
        numbers of a word: which half of a pair, and pairs, in powers of two."""
        each = 32 // self.bits
        pairs = (2,) * (each.bit_length() - 2)
        runs = max(self.shape[2] // (LANE_WORDS * each), 1)
        return (runs, PIECES, WORDS, 2, *pairs)


def block_products(body: Graph, reads: Sequence[OperandTensor], words: Mapping[Node, int]) -> dict[Node, BlockProduct]:
    """The sums of a body without a loop that are such products, of whole pieces and columns, and of
    weights and scales of the model: both are loaded before the preceding kernel ends."""
    readers = users(body)
    read = zip(body.inputs, reads, strict=True)
    given = {x for x, buffer in read if isinstance(buffer, TritonBuffer) and buffer.role == "input"}
    alone = {n for n in body if len(readers.get(n, ())) == 1 and n not in body.outputs}
    found = {}
    for node in body:
        scaled = _operands(node, alone)
        summed = next((x for x in scaled if _operands(x, alone) and x in alone), None)
        if summed is None:
            continue
        scales = scaled[1 - scaled.index(summed)]
        numbers, x = sorted(_operands(summed, alone), key=lambda n: -math.prod(map(int, n.shape)))
        packed = _packed(numbers, words)
        if (
            packed is None
            or not {packed.args[0], _source(scales)} <= given
            or scales.shape != summed.shape
            or x.shape != (*[1] * (len(numbers.shape) - 2), *numbers.shape[-2:])
            or set(numbers.shape[:-3]) > {1}
        ):
            continue
        made = BlockProduct(numbers, x, scales, packed, words[packed])
        if numbers.dtype == x.dtype == "float16" and made.is_whole:
            found[node] = made
    return found


def _source(x: Node) -> Node:
    while traits(x).lowering is Lowering.RESHAPE and _long(x) == _long(x.args[0]):
        x = x.args[0]
    return x


def _long(x: Node) -> list[Dim]:
    """The dims that are not 1."""
    return [n for n in x.shape if n != 1]


def held(products: Mapping[Node, BlockProduct], node: Node) -> int:
    """The number of elements of a term in registers: numbers stay in words until they are
    multiplied."""
    bits = next((p.bits for p in products.values() if node.shape == p.numbers.shape), 32)
    return elements(node) * bits // 32


def warps(products: Mapping[Node, BlockProduct]) -> int:
    """The number of warps, at most one for each group of blocks; 0 without such products."""
    groups = max((p.lines[0] for p in products.values()), default=0)
    loads = sum(math.prod(p.shape) * p.bits // 128 for p in products.values())
    return min(power_of_two(groups), power_of_two(max(loads // (32 * LOADS), 1)), WARPS) if groups else 0


def _operands(node: Node, alone: set[Node]) -> tuple[Node, ...]:
    """The operands of the product that a term sums over its last axis."""
    if traits(node).lowering is not Lowering.SUM or node.args[0] not in alone:
        return ()
    of = node.args[0]
    if node.attr("axes") != (len(of.shape) - 1,) or node.attr("keepdims"):
        return ()
    fixed = all(isinstance(n, int) for n in of.shape)
    return of.args if traits(of).lowering is Lowering.MULTIPLY and fixed else ()


def _packed(numbers: Node, words: Mapping[Node, int]) -> Node | None:
    """The term that unpacks integers of at most 8 bits, or that subtracts such integers from them,
    which half precision holds exactly; None for others: zeros that are floats do not count."""
    if numbers in words:
        return numbers
    if traits(numbers).converts or traits(numbers).lowering is Lowering.RESHAPE:
        return _packed(numbers.args[0], words)
    less = traits(numbers).lowering is Lowering.SUBTRACT
    if not less or not (_is_integer(numbers.args[1]) or _packed(numbers.args[1], words)):
        return None
    return _packed(numbers.args[0], words)


def _is_integer(x: Node) -> bool:
    while traits(x).converts:
        x = x.args[0]
    return is_constant(x) and bool(np.all(np.isin(x.attr("value").numpy(), range(256))))


# ---------------------------------------------------------------- loads

Digits = Sequence[tuple[int, int, int]]
"""Parts of the dims of a tile, from the outermost on: the dim, how many, and the place in the order
in which they are loaded."""


def digits_of_words(product: BlockProduct) -> Digits:
    """Columns, blocks, and words of a block: threads are spread over the last part and then over
    the first ones (the compiler's order), warps over groups of blocks."""
    columns, words = product.shape[0], product.shape[2] * product.bits // 32
    (groups, group), side = product.lines, LANE_WORDS // product.parts
    blocks = [(1, groups, 2), (1, group, 3), (1, product.parts, 0)]
    return [(0, columns // COLUMNS, 4), (0, COLUMNS, 1), *blocks, (2, words // side, 5), (2, side, 6)]


def digits_of_x(product: BlockProduct) -> Digits:
    """Blocks, and numbers of a block, in runs of 16 bytes."""
    (groups, group), parts, (runs, pieces, words, *pairs) = product.lines, product.parts, product.digits
    each = words * math.prod(pairs)
    blocks = [(0, groups, 3), (0, group, 2), (0, parts, 1)]
    return [*blocks, (1, runs, 4), (1, pieces // parts, 0), (1, each // 8, 5), (1, 8, 6)]


def loaded_in_order(
    tiles: Tiles, pointer: str, buffer: TritonBuffer, tile: Shape, digits: Digits, cuts: Sequence[TileCut]
) -> Expression:
    """A tile that is loaded with parts of its dims in an order; where it has other dims
    than in memory, they are parts of the last one there."""
    kept = [each for each in digits if each[1] != 1]
    axes = [tiles.axes_of.fresh(n) for _, n, _ in kept]
    dims = 1 + max(d for d, _, _ in digits)
    groups = [[i for i, (d, _, _) in enumerate(kept) if d == at] for at in range(dims)]
    if [math.prod(n for d, n, _ in digits if d == at) for at in range(dims)] != list(tile):
        groups = [*([[]] * (len(tile) - 1)), list(range(len(kept)))]
    shape = tuple([n for _, n, _ in kept])
    order = [axes[i] for i in sorted(range(len(kept)), key=lambda i: kept[i][2])]
    at = place(tiles, buffer, tile, inner(groups, shape, axes), order, cuts)
    masks = tiles.masks(order, [a for a in axes if tiles.axes_of.padded(a)])
    found = tl.load(sum_of([pointer, *at]), *masks, other=0)
    lanes = tiles.axes_of.all_lanes(axes)
    whole = [math.prod(n for n, (d, _, _) in zip(lanes, kept, strict=True) if d == at) for at in range(dims)]
    return tl.reshape(tl.permute(found, tuple(order.index(a) for a in axes)), whole)


def loaded_x(
    products: Mapping[Node, BlockProduct],
    tiles: Tiles,
    leaf: Node,
    pointer: str,
    buffer: TritonBuffer,
    tile: Shape,
    cuts: Sequence[TileCut],
) -> Expression | None:
    """A tile of one row that a product reads as `leaf`, in the order that this wants;
    None of another tile."""
    product = next((each for each in products.values() if each.source is leaf), None)
    if product is None or [n for n in tile if n != 1] != list(tile[-1:]):
        return None
    return loaded_in_order(tiles, pointer, buffer, tile, digits_of_x(product), cuts)


# ---------------------------------------------------------------- the product


def block_product(xp: Tiles, product: BlockProduct, numbers: Tile, x: Tile, scales: Tile) -> Tile:
    """(c,): the sum over blocks."""
    columns, blocks, each = numbers.axes[-3:]
    assert columns is not None
    assert blocks is not None
    assert each is not None
    for axis, other in (
        (blocks, x.axes[-2]),
        (each, x.axes[-1]),
        (columns, scales.axes[-2]),
        (blocks, scales.axes[-1]),
    ):
        if other is not None:
            xp.axes_of.join(axis, other)
    x, factor = _in_half(xp, xp.masked(x, x.present, 0.0))
    c, group, digits, parts = xp.axes_of.lanes(columns), product.lines[1], product.digits, product.parts
    groups, e = xp.axes_of.lanes(blocks) // (group * parts), math.prod(digits)
    inside = [0, 2, *range(4, len(digits) - 1), 1, len(digits) - 1, 3]  # pieces precede only a pair of pairs
    stage = max(numbers.stage, x.stage, scales.stage)
    let = xp.lines.let
    apart = tl.reshape(_half(numbers), [c, groups, group, *digits])
    rows = tl.permute(apart, (1, 2, 0, *[3 + i for i in inside]))
    left = let(stage, "left", tl.reshape(rows, [groups, group * c, e]))
    apart = tl.reshape(_half(x), [groups, group, *digits])
    row = tl.permute(apart, (0, *[2 + i for i in inside], 1))
    more, last = ([], ()) if parts == 1 else ([parts], (slice(None),))
    if parts > 1:
        row = _columns_of_parts(xp, row, inside.index(1), len(digits), parts)
    right = let(stage, "right", tl.reshape(row, [groups, e, group * parts]))
    dot = let(stage, xp.hint, tl.reshape(tl.dot(left, right), [groups, group, c, group, *more]))
    one = v[xp.lines.lanes(group)]
    apart = tl.reshape(xp.spread(scales, numbers.axes[:-1]), [c, groups, group, *more])
    scale = tl.permute(apart, (1, 2, 0, 3)[: 3 + len(more)])
    own = let(stage, f"{scales.code}_t", scale[(*[slice(None)] * 3, None, *last)].to(tl.float32))
    end = (None,) * len(more)
    diagonal = one[(None, slice(None), None, None, *end)].equals(one[(None, None, None, slice(None), *end)])
    kept = let(stage, xp.hint, v[dot] * tl.where(diagonal, own, 0.0))
    summed = tl.sum(tl.sum(kept, 1), 2)
    total = tl.sum(tl.sum(summed, 2) if more else summed, 0)
    code = let(stage, xp.hint, total if factor is None else total / factor)
    many = group * parts
    xp.notes.append(f"{xp.hint}: {many} blocks of weights times {many} of x at a time, of which the diagonal counts.")
    return replace(
        numbers,
        code=code,
        shape=numbers.shape[:-2],
        axes=numbers.axes[:-2],
        stored="float32",
        stage=stage,
        zero=False,
        together=None,
    )


def _columns_of_parts(xp: Tiles, row: Expression, pieces: int, digits: int, parts: int) -> Expression:
    """Lines (groups, *digits, group) with a last dim for the blocks of a line: the numbers of other
    blocks are zero. `pieces`: the place of that digit."""
    each = PIECES // parts
    at = v[xp.lines.lanes(PIECES)] // each if each > 1 else v[xp.lines.lanes(PIECES)]
    lanes = [None] * (1 + pieces) + [slice(None)] + [None] * (digits - pieces + 1)
    mine = at[tuple(lanes)].equals(v[xp.lines.lanes(parts)][(None,) * (digits + 2) + (slice(None),)])
    return tl.where(mine, row[(slice(None),) * (digits + 2) + (None,)], 0.0)


def _in_half(xp: Tiles, x: Tile) -> tuple[Tile, Expression | None]:
    """x in half precision, and the power of two that it is multiplied with, because a product of
    two numbers in half precision may be out of its range; None where x is loaded."""
    if x.stored == "float16":
        return x, None
    largest = xp.lines.let(x.stage, "largest", tl.max(tl.abs(x.code), None))
    factor = v[xp.lines.let(x.stage, "factor", tl.where(v[largest] < LARGE, 1.0, SMALL))]
    code = xp.lines.let(x.stage, f"{x.code}_h", (v[x.code] * factor).to(tl.float16))
    return replace(x, code=code, stored="float16"), factor


def _half(x: Tile) -> Expression:
    return v[x.code] if x.stored == "float16" else v[x.code].to(tl.float16)
