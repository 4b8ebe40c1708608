"""The order of the dims of a tensor between kernels: the one that touches the fewest memory sectors
(Mirage, OSDI'25, section 6).

Only the kernels use such a tensor, so all orders of its dims are compared. Inputs and outputs stay
in row order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.mugraph import Lowering, usual_size
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.operators.ops import traits

SECTOR = 32
"""Bytes that memory moves at a time."""
Access = tuple[tuple[int, ...], int]
"""The tile of one access, and the number of accesses."""


def accesses(graph: Graph, tensor: Node) -> list[Access]:
    """How the kernels of a muGraph touch a tensor that one of them makes."""
    maker, place = (tensor.args[0], tensor.attr("index")) if tensor.op == "item" else (tensor, 0)
    found = [(usual_shape(maker.attr("body").outputs[place].shape), _times(maker.attr("grid")))]
    for node in graph:
        for i, operand in enumerate(node.args if traits(node).lowering is Lowering.KERNEL else ()):
            if operand is tensor:
                loop = [node.attr("loop")] if node.attr("fmap")[i] >= 0 else []
                found.append((usual_shape(node.attr("body").inputs[i].shape), _times([*node.attr("grid"), *loop])))
    return found


def best_order(shape: Sequence[int], touched: Sequence[Access], itemsize: int) -> tuple[int, ...]:
    """The dims from the outermost to the innermost; row order if no other order is better."""
    return min(permutations(range(len(shape))), key=lambda order: touched_sectors(shape, touched, itemsize, order))


def touched_sectors(shape: Sequence[int], touched: Sequence[Access], itemsize: int, order: Sequence[int]) -> int:
    """The number of sectors that all accesses touch: each dense run of a tile in this order begins
    one."""
    total = 0
    for tile, times in touched:
        run = 1
        for dim in reversed(order):
            run *= tile[dim]
            if tile[dim] != shape[dim]:
                break
        total += times * (math.prod(tile) // run) * math.ceil(run * itemsize / SECTOR)
    return total


def strides(shape: Shape, order: Sequence[int]) -> Shape:
    """The stride of each dim in elements."""
    found: list[Dim] = [0] * len(shape)
    step: Dim = 1
    for dim in reversed(order):
        found[dim] = step
        step = step * shape[dim]
    return tuple(found)


def usual_shape(shape: Shape) -> tuple[int, ...]:
    """A shape with numbers for sizes that only a run knows, tiles at their largest."""
    return tuple([usual_size(n) for n in shape])


def _times(counts: Sequence[Dim]) -> int:
    return math.prod(map(usual_size, counts))
