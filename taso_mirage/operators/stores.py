"""Results that consist of parts, which kernels store side by side: the place of each part.

A result is a term of concatenations, scatters, reshapes and transposes over its parts. The place of
a part is the opposite movement: a term of slices, gathers, reshapes and transposes that gives the
part of the whole. Its index map (`meanings/index_maps.py`) is then the map of a store. Updates are
stored after what they are written over, so their places come behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, dim_product, evaluate, symbol
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, Tensor, is_float, is_part, topological, variable
from taso_mirage.meanings.conditions import index_names, linear
from taso_mirage.meanings.index_maps import IndexMap, IndexPiece, ReadRow, position, row_numbers
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.movements import index_map
from taso_mirage.operators.ops import term, traits

LAYOUTS = frozenset((Lowering.RESHAPE, Lowering.TRANSPOSE))


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A `value` that is a part of a result, and its `place`: a movement of the variable `PLACED_IN`
    that gives it. If it is `over` others, it is stored after them."""

    value: Node
    place: Node
    over: bool = False


@dataclass(frozen=True, slots=True)
class PartLayout:
    """The element of a part at a position is at `start` plus the positions times `strides`, in
    elements of the result. `rows` are the variables of `start` that are read first; they may depend
    on the positions."""

    start: Dim
    strides: Shape
    rows: tuple[tuple[str, ReadRow], ...] = ()

    def map(self, part: Tensor) -> IndexMap:
        """The map from a part to its elements in the memory of the result."""
        flat = self.start + sum([symbol(position(axis)) * stride for axis, stride in enumerate(self.strides)])
        return IndexMap(part.dtype, part.shape or (), (IndexPiece(FLAT, (flat,)),), None, self.rows)

    @property
    def varying(self) -> frozenset[int]:
        """The axes on which rows depend."""
        names = frozenset[str]().union(*[index_names(e) for _, row in self.rows for e in row.index])
        return frozenset(axis for axis in range(len(self.strides)) if position(axis) in names)


PLACED_IN = "whole"
"""The name of the result in the places of its parts."""
FLAT = variable(PLACED_IN, Tensor("float32", (symbol("count"),)))
"""The memory of a result, element by element."""


def has_parts(node: Node) -> bool:
    """Whether a term is a concatenation or a scatter, or another layout of one."""
    while traits(node).lowering in LAYOUTS:
        node = node.args[0]
    return traits(node).lowering is Lowering.CONCAT or is_scatter(node)


def is_scatter(node: Node) -> bool:
    """Whether a term writes updates over elements of its first operand, at places of which each is
    known by a movement."""
    found = traits(node)
    return found.stored_at is not None and found.stored_at(node, variable(PLACED_IN, node.tensor)) is not None


def part_args(node: Node) -> tuple[int, ...]:
    """The operands of a term of parts that are parts, or consist of some."""
    updates = traits(node).updates
    return tuple(range(len(node.args))) if updates is None else (0, updates)


def with_parts(node: Node, values: Iterator[Node]) -> Node:
    """A result with other values for its parts, in their order."""
    if not has_parts(node):
        return next(values)
    args = [with_parts(x, values) if i in part_args(node) else x for i, x in enumerate(node.args)]
    return term(node.op, *args, **dict(node.attrs))


def writes_over(node: Node) -> bool:
    """Whether a result of parts has scatters: some parts are stored over others."""
    return has_parts(node) and (is_scatter(node) or any(writes_over(node.args[i]) for i in part_args(node)))


def launch_order(graph: Graph) -> list[Node]:
    """The terms of a muGraph, operands first. Those that store the parts of a result with scatters
    are behind all others, and last those that store over other parts: nothing reads any more what
    may be in the memory of these.

    Raises Unsupported if one of them gives another result, too.
    """
    written = dict.fromkeys(filter(writes_over, graph.outputs))
    parts = sorted([part for output in written for part in stored_parts(output)], key=lambda part: part.over)
    last = [part.value for part in parts]
    if any(map(is_part, last)) or len({*last}) < len(last):
        raise Unsupported("a kernel that gives another result than a part below or over others")
    return [*(n for n in graph if n not in last), *last]


@lru_cache(maxsize=1024)
def stored_parts(result: Node) -> tuple[StoredPart, ...]:
    """The parts of a result, in their order, none of them a reshape or a transpose; a value that is
    there twice is two parts."""
    return tuple(_placed(result, variable(PLACED_IN, result.tensor)))


def _placed(node: Node, place: Node) -> list[StoredPart]:
    """The parts of a term whose own place is given."""
    kind = traits(node).lowering
    if kind is Lowering.RESHAPE:
        return _placed(node.args[0], term("reshape", place, shape=node.args[0].shape))
    if kind is Lowering.TRANSPOSE:
        perm = list(node.attr("perm"))
        return _placed(node.args[0], term("transpose", place, perm=tuple([perm.index(i) for i in range(len(perm))])))
    if not has_parts(node):
        return [StoredPart(node, place)]
    x = node.args[0]
    if (stored_at := traits(node).stored_at) is not None:
        updates = stored_at(node, place)
        assert updates is not None
        over = [replace(part, over=True) for part in _placed(node.args[part_args(node)[1]], updates)]
        return [*_placed(x, place), *over]
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
    return PartLayout(at, tuple(strides), found.rows)


def stores_elements(result: Node, parts: Sequence[StoredPart], seed: int = 0) -> bool:
    """Whether storing parts of fixed sizes at their places in memory, one after the other, gives
    the result: computed with a number for each element, and with random rows, the first of which
    is -1 or 0."""
    rng, layouts = np.random.default_rng(seed), [part_layout(part) for part in parts]
    leaves = [n for n in topological([result, *(part.value for part in parts)]) if n.op == "input"]
    counts = {row.source: int(row.count) for layout in layouts for _, row in layout.rows}
    given: dict[Node, Any] = {}
    for n in leaves:
        if is_float(n.dtype) or n.dtype == "bool":
            given[n] = rng.permutation(prod(map(int, n.shape))).reshape(n.shape).astype(float)
        else:
            given[n] = rng.integers(-(count := counts.get(n, 1)), count, n.shape)
            given[n].flat[:1] = -(seed % 2)
    values = interpret([result, *(part.value for part in parts)], EXACT, given)
    memory = np.full(prod(map(int, result.shape)), np.nan)
    for part, layout in zip(parts, layouts, strict=True):
        at = _addresses(part.value.shape, layout, given)
        if at.size and not (at.min() >= 0 and at.max() < memory.size):
            return False
        memory[at.reshape(-1)] = values[part.value].reshape(-1)
    return np.array_equal(memory, values[result].reshape(-1))


def _addresses(shape: Shape, layout: PartLayout, given: Mapping[Node, Any]) -> NDArray[Any]:
    """The place of each element of a part of fixed sizes, with these numbers of rows."""
    sizes = [int(n) for n in shape]
    names: dict[str, Any] = {position(i): x for i, x in enumerate(np.indices(sizes, sparse=True))}
    for name, row in layout.rows:
        read = given[row.source] if row.source in given else row.source.attr("value").numpy()
        names[name] = row_numbers(read[tuple([evaluate(e, names) for e in row.index])], int(row.count))
    at = evaluate(layout.start, names)
    for axis, stride in enumerate(layout.strides):
        at = at + names[position(axis)] * evaluate(stride, {})
    return np.broadcast_to(at, sizes)


def fill_once(count: int, parts: Sequence[tuple[Shape, PartLayout]]) -> bool:
    """Whether parts of these shapes are stored to each of `count` places once."""
    times = np.zeros(count, np.int64)
    for shape, layout in parts:
        at = _addresses(shape, layout, {})
        if at.size and not (at.min() >= 0 and at.max() < count):
            return False
        np.add.at(times, at.reshape(-1), 1)
    return bool((times == 1).all()) and count == sum(prod(map(int, shape)) for shape, _ in parts)
