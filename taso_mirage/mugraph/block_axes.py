"""The axes of one kernel's blocks: which labels have one, their tiles, and the labels that the grid
and the loop cut; and the values that a kernel stores for the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.ir.mugraph import part_of, tile_count
from taso_mirage.ir.terms import Node, is_float
from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.kernel_bodies import KernelBody, PlannedKernel, class_phases
from taso_mirage.mugraph.stabilised import Stabiliser
from taso_mirage.operators.ops import term

LOWEST = float(np.finfo(np.float32).min)
"""The maximum of a tile that is masked whole: the number that exporters mask with, so that a row of
it is uniform."""
Labels = tuple[tuple[str, ...], ...]
"""The labels of every axis, outermost first: none where its size is 1, several where it is a
product."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that a kernel reads: the model's, or an earlier kernel's, with the label of every
    axis. `weight`: the class that it was divided by."""

    node: Node
    labels: Labels
    weight: int | None = None


def axes_order(closure: Closure) -> list[str]:
    """All labels in one order: as the results have them, then as the inputs do; the parts of a
    split one after the other."""
    goal = closure.goal
    found: dict[str, None] = {}
    for labels in (*goal.outputs, *goal.inputs.values()):
        for axis in labels:
            found |= dict.fromkeys(axis)
    return list(found)


def converted_float(value: Node, dtype: str) -> Node:
    """A float in another float type."""
    return value if value.dtype == dtype or not is_float(value.dtype) else term("cast", value, to=dtype)


@dataclass(frozen=True)
class BlockAxes:
    """The labels of a kernel with these `tiles`; axes are in one order for all classes."""

    kernel: PlannedKernel
    closure: Closure
    tiles: Mapping[str, Dim]
    sizes: Mapping[str, Dim]

    @property
    def body(self) -> KernelBody:
        return self.kernel.body

    @property
    def loop(self) -> str | None:
        """The label that the loop cuts."""
        return self.kernel.loop

    @cached_property
    def cluster(self) -> str | None:
        """The label along which blocks are a cluster."""
        return self.body.cluster

    @cached_property
    def order(self) -> Sequence[str]:
        """Every label, in the order of axes."""
        return axes_order(self.closure)

    @cached_property
    def phases(self) -> Mapping[int, int]:
        """Whether each class is known before, in or after the loop; see `class_phases`."""
        return (class_phases(self.body, self.closure, self.loop) if self.loop is not None else None) or {}

    @cached_property
    def hidden(self) -> set[str]:
        """The labels with one element in a block, and no axis."""
        reads = {label for c, e in self.body.chosen if e.kind.reads is not None for label in self.closure.classes[c]}
        return {outer for outer, _ in self.closure.goal.split.values() if outer in self.body.grid and outer in reads}

    @cached_property
    def grid(self) -> dict[str, Dim]:
        """How many blocks there are along each label that the grid cuts, a cluster's last."""
        counts = {x: self.count(x) for x in self.body.grid if x in self.tiles}
        order = sorted(self.order, key=lambda label: label == self.cluster)
        return {label: counts[label] for label in order if counts.get(label, 1) != 1}

    def size(self, label: str) -> Dim:
        """The elements of a block along a label."""
        return self.tiles.get(label, self.sizes[label])

    def count(self, label: str) -> Dim:
        """How many tiles a label has."""
        size, tile = self.sizes[label], self.tiles[label]
        return -(-size // tile) if isinstance(size, int) and isinstance(tile, int) else tile_count(size, tile)

    def of(self, labels: Iterable[str]) -> list[str]:
        """The axes of a value that has these labels."""
        have = set(labels) - self.hidden
        return [label for label in self.order if label in have]

    def stored(self, labels: Iterable[str]) -> Labels:
        """The axes of a tensor that a kernel stores for another."""
        have = set(labels)
        return tuple((label,) for label in self.order if label in have)

    def contiguous(self, labels: Labels) -> bool:
        """Whether a block's part of every axis of a tensor is in one piece: dims outside of a label
        that is cut are cut to 1; and a label whose tiles overlap has axes of its own."""
        cut = {*self.grid, self.loop}
        overlapping = {x for x in cut if x is not None and self._uneven(x)}
        return all(
            self.size(outer) == 1 for axis in labels for i, x in enumerate(axis) if x in cut for outer in axis[:i]
        ) and all(len(axis) == 1 or overlapping.isdisjoint(axis) for axis in labels)

    def _uneven(self, label: str) -> bool:
        """Whether not all tiles of a label are next to each other and have one size."""
        size, tile = self.sizes[label], self.size(label)
        whole = isinstance(size, int) and isinstance(tile, int) and size % tile != 0
        return whole or part_of(tile) is not None

    def aligned(self, value: Node, labels: Iterable[str], to: Iterable[str]) -> Node:
        """A value with axes of size 1 where it lacks a label of another."""
        have, wanted = self.of(labels), self.of(to)
        return with_shape(value, [self.size(x) if x in have else 1 for x in wanted]) if have else value

    def laid_out(self, value: Node, labels: Labels) -> Node:
        """A result's tile with the axes that its tensor has."""
        axes = [x for axis in labels for x in axis if x not in self.hidden]
        value = transposed(value, self.of(axes), axes)
        return with_shape(value, [dim_product(self.size(x) for x in axis) for axis in labels])


def axis_of(labels: Labels, label: str | None) -> int:
    """The axis of a tensor that a label cuts, -1 if none."""
    return next((i for i, axis in enumerate(labels) if label in axis), -1)


def transposed(value: Node, axes: Sequence[str], wanted: Sequence[str]) -> Node:
    """A value with its axes in the wanted order."""
    perm = tuple(axes.index(x) for x in wanted)
    return value if perm == tuple(range(len(perm))) else term("transpose", value, perm=perm)


def with_shape(value: Node, shape: Sequence[Dim]) -> Node:
    """A value of this shape."""
    return value if tuple(value.shape) == tuple(shape) else term("reshape", value, shape=tuple(shape))


@dataclass
class BlockMaxima:
    """The maxima that values of a block are relative to, by their classes: of this iteration and
    those before (`largest`), and of all (`final`). `least` is below every number."""

    block: BlockAxes
    stabilisers: Mapping[int, Stabiliser]
    least: Node
    largest: dict[int, Node] = field(default_factory=dict)
    final: dict[int, Node] = field(default_factory=dict)

    def add(self, key: int, value: Node) -> None:
        """Take the maximum of a class that is exponentiated, from its value."""
        largest = self._reduced(key, value, self.block.closure.classes[key])
        self.largest[key] = term("max", largest, self.least)  # of a tile that is masked whole it is -inf
        looped = self.block.loop in self.stabilisers[key].over
        self.final[key] = term("accumulate", self.largest[key], over="max") if looped else self.largest[key]

    def combine(self, key: int, value: Node, labels: Iterable[str]) -> Node:
        """The largest of the maxima that the blocks of an earlier kernel stored."""
        self.largest[key] = self.final[key] = largest = self._reduced(key, value, labels)
        return largest

    def of(self, key: int, labels: Iterable[str], known: bool = False, joint: bool = False) -> Node:
        """The maximum so far, or, where it is `known`, of all iterations, or a `joint` one, of all
        blocks of a cluster, with the axes of some labels."""
        stabiliser = self.stabilisers[key]
        own = (self.final if known or joint else self.largest)[key]
        own = term("combine", own, over="max") if joint else own
        m = self.block.aligned(own, stabiliser.labels, labels)
        return term("running_max", m) if self.block.loop in stabiliser.over and not (known or joint) else m

    def _reduced(self, key: int, value: Node, labels: Iterable[str]) -> Node:
        over = self.stabilisers[key].over
        axes = tuple(i for i, x in enumerate(self.block.of(labels)) if x in over)
        return term("reduce_max", value, axes=axes, keepdims=0) if axes else value
