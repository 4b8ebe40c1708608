"""The axes of tiles in the blocks of a kernel, and the operands that the blocks read.

A tile has one axis for each of its labels, in one order for all classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from taso_mirage.ir.dims import Dim, Shape, dim_product
from taso_mirage.ir.mugraph import part_of, tile_count
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.kind import Written
from taso_mirage.mugraph.goal import BYTES, in_a_byte, is_packed, stored_leaf
from taso_mirage.mugraph.stored import Labels, Stored, axes_order, converted_float
from taso_mirage.mugraph.structures import PlannedKernel
from taso_mirage.operators.ops import term


@dataclass(frozen=True, slots=True)
class BlockAxes:
    """The labels of a kernel: their order, their sizes, and those of their tiles.

    `hidden` labels have one element in a block, and no axis. `grid`: the number of tiles of each
    label that blocks divide; the last one is that of a cluster.
    """

    order: Sequence[str]
    sizes: Mapping[str, Dim]
    tiles: Mapping[str, Dim]
    hidden: frozenset[str]
    grid: Mapping[str, Dim]
    loop: str | None

    def of(self, labels: Iterable[str]) -> list[str]:
        """The labels of a tile's axes, in order."""
        have = set(labels) - self.hidden
        return [label for label in self.order if label in have]

    def size(self, label: str) -> Dim:
        """The elements of a label in a block."""
        return self.tiles.get(label, self.sizes[label])

    def uneven(self, label: str) -> bool:
        """Whether not all of its tiles are next to each other and have one size."""
        size, tile = self.sizes[label], self.size(label)
        whole = isinstance(size, int) and isinstance(tile, int) and size % tile != 0
        return whole or part_of(tile) is not None

    def contiguous(self, labels: Labels) -> bool:
        """Whether a block's part of every axis is in one piece: dims outside of a label that is cut
        are cut to 1; and a label whose tiles overlap has axes of its own."""
        cut = {*self.grid, self.loop}
        overlapping = {x for x in cut if x is not None and self.uneven(x)}
        return all(
            self.size(outer) == 1 for axis in labels for i, x in enumerate(axis) if x in cut for outer in axis[:i]
        ) and all(len(axis) == 1 or overlapping.isdisjoint(axis) for axis in labels)

    def stored(self, labels: Iterable[str]) -> Labels:
        """The labels of the axes of a tensor that a kernel stores."""
        have = set(labels)
        return tuple((label,) for label in self.order if label in have)

    def laid_out(self, value: Node, labels: Labels) -> Node:
        """A result's tile with the axes that its tensor has."""
        axes = [x for axis in labels for x in axis if x not in self.hidden]
        value = transposed(value, self.of(axes), axes)
        return reshaped(value, [dim_product(self.size(x) for x in axis) for axis in labels])

    def spread(self, value: Node, labels: Iterable[str], to: Iterable[str]) -> Node:
        """A value with axes of size 1 where it lacks a label of another."""
        have, wanted = self.of(labels), self.of(to)
        return reshaped(value, [self.size(x) if x in have else 1 for x in wanted]) if have else value


def block_axes(
    kernel: PlannedKernel, tiles: Mapping[str, Dim], closure: Closure, sizes: Mapping[str, Dim]
) -> BlockAxes:
    """The axes of a kernel with these tiles."""
    body, order = kernel.body, axes_order(closure)
    reads = {label for c, e in body.chosen if e.kind.reads is not None for label in closure.classes[c]}
    hidden = frozenset(outer for outer, _ in closure.goal.split.values() if outer in body.grid and outer in reads)
    counts = {x: count_of_tiles(sizes[x], tiles[x]) for x in body.grid if x in tiles}
    grid = {x: counts[x] for x in sorted(order, key=lambda label: label == body.cluster) if counts.get(x, 1) != 1}
    return BlockAxes(order, sizes, tiles, hidden, grid, kernel.loop)


def count_of_tiles(size: Dim, tile: Dim) -> Dim:
    """How many tiles a label has."""
    return -(-size // tile) if isinstance(size, int) else tile_count(size, tile)


def axis_of(labels: Labels, label: str | None) -> int:
    """The axis that a label cuts, -1 if none."""
    return next((i for i, axis in enumerate(labels) if label in axis), -1)


def transposed(value: Node, axes: Sequence[str], wanted: Sequence[str]) -> Node:
    """A value whose axes have these labels, with them in another order."""
    perm = tuple(axes.index(x) for x in wanted)
    return value if perm == tuple(range(len(perm))) else term("transpose", value, perm=perm)


def reshaped(value: Node, shape: Sequence[Dim]) -> Node:
    """A value in a shape."""
    return value if tuple(value.shape) == tuple(shape) else term("reshape", value, shape=tuple(shape))


@dataclass(slots=True)
class Operands:
    """The tensors that a kernel reads, each with the leaf of its tile. `dtype`: that of all floats
    of the body."""

    axes: BlockAxes
    dtype: str
    found: list[tuple[Stored, Node]] = field(default_factory=list)

    def tile(self, name: str, tensor: Stored) -> Written:
        """A tile of an operand with the labels of its axes, in their own order."""
        size, hidden = self.axes.size, self.axes.hidden
        tile = tuple(dim_product(size(x) for x in axis) for axis in tensor.labels)
        node, packed = tensor.node, in_a_byte(tensor.node)
        tile = (*tile[:-1], tile[-1] // packed) if packed > 1 else tile
        tensor = replace(tensor, node=stored_leaf(node)) if is_packed(node) else tensor
        value = leaf = self._leaf(name, tensor, tile)
        if is_packed(node):
            value = term(node.op, leaf, **dict(node.attrs))
        if node.dtype in BYTES:
            value = term("cast", value, to=self.dtype)
        axes = [x for axis in tensor.labels for x in axis if x not in hidden]
        return converted_float(reshaped(value, [size(x) for x in axes]), self.dtype), axes

    def _leaf(self, name: str, tensor: Stored, tile: Shape) -> Node:
        """The leaf of a tile; two views of a tensor that are cut alike are one."""
        cuts = self._cuts(tensor)
        for known, leaf in self.found:
            if known.node is tensor.node and tuple(leaf.shape) == tile and self._cuts(known) == cuts:
                return leaf
        leaf = variable(name, Tensor(tensor.node.dtype, tile))
        self.found.append((tensor, leaf))
        return leaf

    def _cuts(self, tensor: Stored) -> list[int]:
        return [axis_of(tensor.labels, x) for x in (*self.axes.grid, self.axes.loop)]
