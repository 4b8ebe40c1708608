"""Contractions of tiles: a dot on the tensor cores where both operands have rows, else multiply and
sum.

A vector times a matrix, both as stored, is a dot, too, if the sum cannot wait for the end of a loop
(`vector_products`): lanes need not exchange partial sums in every iteration then (16.4 to 16.1 us
for one query on 8,192 keys of 8 heads on an H100, written by hand).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.program import BF16_PARTS, TF32_PARTS
from taso_mirage.emit.gpu.small_floats import SMALL_FLOATS
from taso_mirage.emit.gpu.tiles import HALF_FLOATS, Tile, Tiles, known_count, marked
from taso_mirage.emit.statements import Expression, ExpressionLike, expression, let, tl, v, when
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import SIGN, LoopPhase, Lowering, largest_size
from taso_mirage.ir.terms import Graph, Node, users
from taso_mirage.operators.ops import traits

GROUP_ROWS = 64
"""The rows of a product of Hopper's tensor cores, which four warps share."""
APART = "always: its warps share this product, as the compiler sees none behind it"
"""If another product reads a product, Triton 3.6 gives each warp all columns of its rows, so with
more warps than the rows need several compute the same. It looks for the other product through
operands, and not past a branch. (One latent head on an H200: 22.6 to 21.4 us.)"""
Letters = dict[str, int]
"""The axis of every letter, in the tile's order; letters without an axis are left out."""
LAYOUT = frozenset({Lowering.TRANSPOSE, Lowering.RESHAPE})
"""Operators that move elements and compute nothing."""
LEAST = 16
"""The least size of each of a dot's three sides."""
DEFERRED = 8192
"""The largest number of elements of a tile that are accumulated unfolded, and folded once after the
loop."""
Make = Callable[[Tiles, Tile, Tile, Letters, Letters, Sequence[str]], tuple[Tile, list[str]]]


def vector_products(body: Graph, stage: Mapping[Node, LoopPhase], halves: Collection[Node]) -> dict[Node, Node]:
    """The sums of a loop that are dots of a vector, with the products that they sum. Both operands
    are as loaded (`halves`: operands stored in half precision), so that nothing is rounded, and no
    accumulator takes the product itself."""
    readers = users(body)
    found = {}
    for node in body:
        of = node.args[0] if traits(node).lowering is Lowering.SUM else node
        if (
            traits(of).lowering is not Lowering.MULTIPLY
            or stage[node] is not LoopPhase.LOOP
            or readers[of] != [node]
            or of in body.outputs
        ):
            continue
        waits = (
            any(traits(user).lowering is Lowering.ACCUMULATE for user in readers.get(node, ()))
            and elements(of) <= DEFERRED
        )
        if not waits and {_loaded(x) for x in of.args} <= set(halves) and _is_vector_by_matrix(of, node.attr("axes")):
            found[node] = of
    return found


def chained(body: Graph, looped: bool) -> set[Node]:
    """The contractions that another one reads before an iteration ends, directly or through other
    terms."""
    readers, found = users(body), set[Node]()
    for node in (n for n in body if traits(n).lowering is Lowering.CONTRACT):
        waiting, seen = list(readers.get(node, ())), set[Node]()
        while waiting:
            each = waiting.pop()
            kind = traits(each).lowering
            if kind is Lowering.CONTRACT:
                found.add(node)
                break
            if each not in seen and not (looped and kind is Lowering.ACCUMULATE):
                seen.add(each)
                waiting += readers.get(each, ())
    return found


def elements(x: Node) -> int:
    """The number of elements of a term, with parts at their largest."""
    return known_count([largest_size(n) for n in x.shape])


def _loaded(x: Node) -> Node:
    """The term below all reshapes and other layout operators."""
    while traits(x).lowering in LAYOUT:
        x = x.args[0]
    return x


def _is_vector_by_matrix(of: Node, axes: Sequence[int]) -> bool:
    """Whether one operand of a product has only the summed axes, and the other has all, of lengths
    for a dot."""
    shape = of.shape
    wanted: list[Dim] = [n if i in axes or i - len(shape) in axes else 1 for i, n in enumerate(shape)]
    small, large = sorted(of.args, key=elements)
    vector = [1] * (len(shape) - len(small.shape)) + list(small.shape)
    inner = known_count(list(map(largest_size, wanted)))
    return vector == wanted and elements(large) == elements(of) and min(inner, elements(of) // inner) >= LEAST


def signed(xp: Tiles, x: Tile) -> Tile:
    """Numbers of 8 bits as signed bytes, which tensor cores multiply and other operators widen:
    unsigned numbers less 128, which flips the highest bit. Their sums, of int32, are unchanged."""
    if x.stored == "int32":
        return x
    if x.stored == "int8":
        return replace(x, dtype="int32")
    code = xp.lines.let(x.stage, f"{x.code}_signed", (v[x.code] ^ SIGN).to(tl.int8, bitcast=True))
    return replace(x, code=code, dtype="int32", stored="int8", zero=False)


def vector_dot(xp: Tiles, node: Node, a: Tile, b: Tile) -> Tile:
    """The sum `node` of a product of two tiles, as a dot."""
    rank, axes = max(len(a.shape), len(b.shape)), node.attr("axes")
    letters = [chr(ord("a") + i) for i in range(rank)]
    kept = "".join(c for i, c in enumerate(letters) if i not in axes and i - rank not in axes)
    left, right = ("".join(letters[rank - len(x.shape) :]) for x in (a, b))
    return xp.reshape(tile_product(xp, a, b, left, right, kept, _vector_dot), node.shape)


def tile_product(
    xp: Tiles, a: Tile, b: Tile, letters_a: str, letters_b: str, result: str, of_vector: Make | None = None
) -> Tile:
    """The einsum of two tiles, by `of_vector` if one is a vector.

    A letter along which all elements of an operand are equal (or that has size 1) is no letter of
    it.
    """
    sizes = dict(zip(letters_a, a.shape, strict=True))
    for letter, n in zip(letters_b, b.shape, strict=True):
        sizes[letter] = n if sizes.get(letter, 1) == 1 else sizes[letter]
    left, right = _letters(a, letters_a), _letters(b, letters_b)
    equal = known_count([n for c, n in sizes.items() if c not in result and c not in left and c not in right])
    a, left = _alone(xp, a, letters_a, left, right, result)
    b, right = _alone(xp, b, letters_b, right, left, result)
    for letter in left.keys() & right.keys():
        xp.axes_of.join(left[letter], right[letter])
    inner = [c for c in left if c in right and c not in result]
    rows, columns = left.keys() - right.keys(), right.keys() - left.keys()
    make = _dot if inner and rows and columns else of_vector or _multiplied
    if (
        next((c for c in result if c in rows or c in columns), None) in columns
    ):  # so that the result need not be transposed
        a, b, left, right = b, a, right, left
    found, order = make(xp, a, b, left, right, inner)
    found = _laid_out(xp, found, order, sizes, result)
    return xp.map(np.multiply, found, xp.literal(equal, found)) if equal > 1 else found


def _letters(x: Tile, letters: str) -> Letters:
    return {c: axis for c, axis in zip(letters, x.axes, strict=True) if axis is not None}


def _alone(xp: Tiles, x: Tile, letters: str, own: Letters, others: Letters, result: str) -> tuple[Tile, Letters]:
    """x without the letters that only x has: they are summed first."""
    over = [letters.index(c) for c in own if c not in others and c not in result]
    if not over:
        return x, own
    return xp.ready(xp.reduce(np.add, x, over)), {c: a for c, a in own.items() if letters.index(c) not in over}


def _laid_out(xp: Tiles, found: Tile, order: Sequence[str], sizes: Mapping[str, Dim], result: str) -> Tile:
    """A tile whose axes have the letters `order`, as the dims of the result."""
    axes = dict(zip(order, found.present, strict=True))
    wanted = [c for c in result if c in axes]
    if wanted != list(order):
        found = xp.ready(found)
        found = replace(found, code=xp.permuted(found, [axes[c] for c in wanted]))
    return replace(found, shape=tuple(sizes[c] for c in result), axes=tuple(axes.get(c) for c in result))


def _arranged(xp: Tiles, x: Tile, own: Letters, wanted: Sequence[str]) -> Expression:
    """The value of x with its axes in the order of `wanted`, and None where it lacks a letter."""
    x = replace(x, axes=tuple(own.values()))
    code = xp.permuted(x, [own[c] for c in wanted if c in own])
    return marked(code, [c in own for c in wanted if own])


def _multiplied(
    xp: Tiles, a: Tile, b: Tile, left: Letters, right: Letters, inner: Sequence[str]
) -> tuple[Tile, list[str]]:
    """The product without tensor cores, if one operand is a vector or nothing is summed.

    The sum may wait for an accumulator.
    """
    a, b = xp.computed(a), xp.computed(b)
    big, small = (left, right) if len(left) >= len(right) else (right, left)
    order = [*big, *(c for c in small if c not in big)]
    both = {**small, **big}
    code = _arranged(xp, a, left, order) * _arranged(xp, b, right, order)
    stage = max(a.stage, b.stage)
    axes = tuple(both[c] for c in order)
    zero, together = a.zero and b.zero, a.together or b.together
    shape = tuple(xp.axes_of.size(x) for x in axes)
    made = replace(a, code=xp.lines.let(stage, xp.hint, code), shape=shape, axes=axes, stage=stage)
    found = replace(made, zero=zero, number=None, together=together)
    if inner:
        xp.notes.append(f"{xp.hint}: multiplied and summed in fp32; one operand is a vector.")
    left_over = [c for c in order if c not in inner]
    return xp.reduce(np.add, found, [order.index(c) for c in inner], keepdims=False) if inner else found, left_over


def _dot(xp: Tiles, a: Tile, b: Tile, left: Letters, right: Letters, inner: Sequence[str]) -> tuple[Tile, list[str]]:
    batch = [c for c in left if c in right and c not in inner]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    axes = {**left, **right}
    wanted = _multiplied_as(xp, a, b, {left[inner[-1]], right[inner[-1]]})
    for group in (rows, columns, inner):
        others = math.prod(power_of_two(xp.axes_of.largest(axes[c])) for c in group[:-1])
        least = 2 * LEAST if group is inner and wanted in (*SMALL_FLOATS, "int8") else LEAST
        xp.axes_of.demand(axes[group[-1]], least // others)
    lanes = [math.prod(xp.axes_of.lanes(axes[c]) for c in group) for group in (rows, inner, columns)]
    xp.narrow = xp.narrow or min(lanes[0], lanes[2]) == LEAST
    sides = " x ".join(map(str, lanes))
    summed = "int32" if wanted == "int8" else "float32"
    shown = f"{wanted} operands, {summed} sums".replace("float32", "fp32")
    xp.notes.append(f"{xp.hint}: a dot of {sides} lanes, {shown}.")
    codes = []
    for x, own, groups in ((a, left, (batch, rows, inner)), (b, right, (batch, inner, columns))):
        x = xp.masked(x, [own[c] for c in inner], 0.0)
        x = replace(x, code=_as(xp, x, wanted))
        side = _arranged(xp, x, own, [c for group in groups for c in group])
        codes.append(_grouped(xp, x, side, [[axes[c] for c in group] for group in groups if group]))
    stage = max(a.stage, b.stage)
    precision = {"input_precision": "PRECISION"} if wanted == "float32" else {}
    if wanted == "float32":
        along = _along(xp, (a, b), {left[inner[-1]], right[inner[-1]]})
        xp.single = TF32_PARTS if along and xp.single in ("", TF32_PARTS) else BF16_PARTS
    code = xp.lines.let(stage, xp.hint, tl.dot(*codes, **precision))
    _keep_apart(xp, code, stage, math.prod(xp.axes_of.lanes(axes[c]) for c in rows) if summed == "float32" else 0)
    order = [*batch, *rows, *columns]
    found = tuple(axes[c] for c in order)
    if len(batch) > 1 or len(rows) > 1 or len(columns) > 1:
        code = xp.lines.let(stage, xp.hint, tl.reshape(code, xp.axes_of.all_lanes(found)))
    shape = tuple(xp.axes_of.size(x) for x in found)
    zero = a.zero and b.zero
    return replace(a, code=code, shape=shape, axes=found, stored=summed, stage=stage, zero=zero, number=None), order


def _keep_apart(xp: Tiles, code: str, stage: LoopPhase, rows: int) -> None:
    """Let warps share a product whose result another product reads, if there are more warps than
    its rows need."""
    if xp.goes_on and rows >= GROUP_ROWS:
        shared = let(code, expression(code) + 0.0)
        xp.lines.write(stage, when("APART and tl.num_programs(0) > 0", shared, why=APART))
        xp.rows = min(xp.rows or rows, rows)


def _multiplied_as(xp: Tiles, a: Tile, b: Tile, inner: Collection[int]) -> str:
    """The dtype of a dot's operands: the model's, in single precision their own.

    Numbers of 8 bits stay unchanged in a model of half precision if both are contiguous along the
    sum: tensor cores take no others, and on an H100 they sum such products to about 14 bits.
    Otherwise halves, which hold them exactly, are as good as any floats.
    """
    if a.dtype == b.dtype == "int32":
        if {a.stored, b.stored} != {"int8"}:
            raise Unsupported("a product of integers of more than 8 bits, which tensor cores do not have")
        return "int8"
    if a.stored in SMALL_FLOATS and b.stored in SMALL_FLOATS:
        return a.stored if _along(xp, (a, b), inner) and a.stored == b.stored and a.dtype in HALF_FLOATS else "float16"
    return a.dtype if a.dtype == b.dtype and a.dtype in HALF_FLOATS else "float32"


def _along(xp: Tiles, operands: Sequence[Tile], inner: Collection[int]) -> bool:
    """Whether operands are contiguous along some axes."""
    roots = {xp.axes_of.find(x) for x in inner}
    return all(x.innermost is not None and xp.axes_of.find(x.innermost) in roots for x in operands)


def _vector_dot(
    xp: Tiles, a: Tile, b: Tile, left: Letters, right: Letters, inner: Sequence[str]
) -> tuple[Tile, list[str]]:
    """A dot in which every row is the vector; any row of it is the result."""
    (matrix, own), (vector, alone) = ((a, left), (b, right)) if len(left) > len(right) else ((b, right), (a, left))
    axis = xp.axes_of.fresh(LEAST)
    lanes = [LEAST, *(xp.axes_of.lanes(x) for x in alone.values())]
    row = marked(vector.code, [False, *(True for _ in alone)])
    code = xp.lines.let(vector.stage, f"{vector.code}_rows", tl.broadcast_to(row, lanes))
    rows = replace(
        vector, code=code, axes=(axis, *alone.values()), shape=(LEAST, *map(xp.axes_of.size, alone.values()))
    )
    found, order = _dot(xp, rows, matrix, {"row": axis, **alone}, own, inner)
    return xp.ready(xp.reduce(np.maximum, found, [0], keepdims=False)), order[1:]


def _as(xp: Tiles, x: Tile, dtype: str) -> str:
    return x.code if x.stored == dtype else xp.lines.let(x.stage, f"{x.code}_d", v[x.code].to(tl[dtype]))


def _grouped(xp: Tiles, x: Tile, code: Expression, groups: Sequence[Sequence[int]]) -> ExpressionLike:
    """The axes of each group as one axis."""
    if all(len(group) == 1 for group in groups):
        return code
    sizes = [math.prod(xp.axes_of.all_lanes(group)) for group in groups]
    return xp.lines.let(x.stage, f"{x.code}_g", tl.reshape(code, sizes))
