"""Results that consist of parts, which kernels store side by side: the place of each part.

A result is a term of concatenations, reshapes and transposes over its parts. The place of a part is
the opposite movement: a term of slices, reshapes and transposes that gives the part of the whole.
Its index map (`meanings/index_maps.py`) is then the map of a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod

import numpy as np

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, dim_product, evaluate
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node, variable
from taso_mirage.meanings.conditions import index_names, linear
from taso_mirage.meanings.index_maps import position
from taso_mirage.operators.movements import index_map
from taso_mirage.operators.ops import term, traits

LAYOUTS = frozenset((Lowering.RESHAPE, Lowering.TRANSPOSE))


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A `value` that is a part of a result, and its `place`: a movement of the variable `PLACED_IN`
    that gives it."""

    value: Node
    place: Node


@dataclass(frozen=True, slots=True)
class PartLayout:
    """The element of a part at a position is at `start` plus the positions times `strides`, in
    elements of the result."""

    start: Dim
    strides: Shape


PLACED_IN = "whole"
"""The name of the result in the places of its parts."""


def has_parts(node: Node) -> bool:
    """Whether a term is a concatenation, or another layout of one."""
    while traits(node).lowering in LAYOUTS:
        node = node.args[0]
    return traits(node).lowering is Lowering.CONCAT


@lru_cache(maxsize=1024)
def stored_parts(result: Node) -> tuple[StoredPart, ...]:
    """The parts of a result, in their order, none of them a reshape; a value that is there twice is
    two parts."""
    return tuple(_placed(result, variable(PLACED_IN, result.tensor)))


def _placed(node: Node, place: Node) -> list[StoredPart]:
    """The parts of a term whose own place is given."""
    if traits(node).lowering is Lowering.RESHAPE:
        return _placed(node.args[0], term("reshape", place, shape=node.args[0].shape))
    if not has_parts(node):
        return [StoredPart(node, place)]
    x = node.args[0]
    match traits(node).lowering:
        case Lowering.TRANSPOSE:
            perm = list(node.attr("perm"))
            return _placed(x, term("transpose", place, perm=tuple([perm.index(i) for i in range(len(perm))])))
    axis = node.attr("axis")
    sizes = [x.shape[axis] for x in node.args]
    found: list[StoredPart] = []
    for x, size, end in zip(node.args, sizes, accumulate(sizes, lambda a, b: a + b), strict=True):
        found += _placed(x, term("slice", place, axes=(axis,), starts=(end - size,), ends=(end,), steps=(1,)))
    return found


def part_layout(part: StoredPart) -> PartLayout:
    """The place of a part in the memory of a dense result.

    Raises Unsupported where it is no box with strides.
    """
    found = index_map(part.place)
    (piece,) = found.pieces
    shape = piece.source.shape
    at: Dim = 0
    for i, index in enumerate(piece.index):
        at = at + index * dim_product(shape[i + 1 :])
    names = {position(axis) for axis in range(len(found.shape))}
    strides: list[Dim] = []
    for axis, n in enumerate(found.shape):
        slope = linear(at, position(axis)) if n != 1 else (0, at)
        if slope is None or index_names(slope[0]) & names:
            raise Unsupported(
                f"a part {part.value.type} of a result {shape} that is not stored with one stride an axis"
            )
        strides.append(slope[0])
        at = slope[1]
    if piece.conditions or index_names(at) & names:
        raise Unsupported(f"a part {part.value.type} of a result {shape} that is no box of it")
    return PartLayout(at, tuple(strides))


def fill_once(count: int, parts: Sequence[tuple[Shape, PartLayout]]) -> bool:
    """Whether parts of these shapes are stored to each of `count` places once."""
    times = np.zeros(count, np.int64)
    for shape, layout in parts:
        at = np.full([int(n) for n in shape], evaluate(layout.start, {}))
        for axis, stride in enumerate(layout.strides):
            at = at + np.indices(at.shape, sparse=True)[axis] * evaluate(stride, {})
        if at.size and not (at.min() >= 0 and at.max() < count):
            return False
        np.add.at(times, at.reshape(-1), 1)
    return bool((times == 1).all()) and count == sum(prod(map(int, shape)) for shape, _ in parts)
