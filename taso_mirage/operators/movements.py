"""Terms that only move elements, and the elements that they move (`meanings/index_maps.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.ir.dims import Dim, evaluate
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node, Tensor, is_constant, numpy_dtype, topological
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.conditions import Conditions
from taso_mirage.meanings.index_maps import IndexMap, IndexMapMeaning, position, row_numbers
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret, interpret_term
from taso_mirage.operators.ops import traits


def is_moved(node: Node) -> bool:
    """Whether a term moves elements of inputs, weights and constants, and computes none. A leaf
    alone is no such term."""
    try:
        return bool(node.args) and index_map(node) is not None
    except Unsupported:
        return False


@lru_cache(maxsize=4096)
def index_map(node: Node) -> IndexMap:
    """The index map of a term of movements over inputs, weights and constants.

    Raises Unsupported, which names the operator, where the term computes elements.
    """
    meaning, values = IndexMapMeaning(), dict[Node, IndexMap]()
    for each in topological([node]):
        if not isinstance(each.type, Tensor):
            raise Unsupported(f"{each.op} has several results")
        if traits(each).lowering is Lowering.KERNEL:
            raise Unsupported("a kernel, whose result is a tensor in memory, also if it only copies")
        if not each.args:
            values[each] = meaning.leaf(each)
            continue
        try:
            values[each] = interpret_term(each, meaning, [values[arg] for arg in each.args])
        except TasoMirageError as error:
            raise Unsupported(f"{each.op} {each.type} moves no elements alone: {error}") from None
    return values[node]


def moved_elements(found: IndexMap, arrays: Mapping[Node, Array]) -> Array:
    """The tensor of an index map of fixed sizes, computed by numpy from its sources.

    Raises ValueError where two pieces have the same position, where no piece has it and there is no
    fill, and where an index is outside of its source.
    """
    shape = tuple([int(n) for n in found.shape])
    names: dict[str, Any] = {position(i): each for i, each in enumerate(np.indices(shape, sparse=True))}

    def numbers(e: Dim) -> Array:
        return np.broadcast_to(evaluate(e, names), shape)

    def here(conditions: Conditions) -> Array:
        holds = np.ones(shape, bool)
        for condition in conditions:
            holds &= numbers(condition) >= 0
        return holds

    def read(source: Node, index: Sequence[Dim], at: Array) -> Array:
        places = [numbers(e)[at] for e in index]
        if any(((i < 0) | (i >= n)).any() for i, n in zip(places, arrays[source].shape, strict=True)):
            raise ValueError("an index map reads outside of a source")
        return np.asarray(arrays[source][tuple(places)])

    for name, row in found.rows:
        rows, at = np.zeros(shape, np.int64), here(row.conditions)
        rows[at] = read(row.source, row.index, at)
        names[name] = row_numbers(rows, int(row.count))
    made = np.full(shape, 0 if found.fill is None else found.fill, numpy_dtype(found.dtype))
    times = np.zeros(shape, np.int64)
    for piece in found.pieces:
        at = here(piece.conditions)
        made[at] = read(piece.source, piece.index, at)
        times += at
    if times.max(initial=0) > 1 or (found.fill is None and times.min(initial=1) < 1):
        raise ValueError("the pieces of an index map are no partition of its positions")
    return made


def is_index_map(node: Node, found: IndexMap) -> bool:
    """Whether an index map of fixed sizes gives the elements of a term at every position, where
    each element of its leaves is a number of its own and rows are random."""
    rng = np.random.default_rng(0)
    below = topological([node])
    arrays: dict[Node, Array] = {n: n.attr("value").numpy() for n in below if is_constant(n)}
    gathers = [n for n in below if traits(n).lowering in (Lowering.GATHER, Lowering.PICK)]
    for gather in gathers:
        count = int(gather.args[0].shape[gather.attr("axis")])
        rows = [n for n in topological([gather.args[1]]) if not n.args and n not in arrays]
        arrays |= {n: rng.integers(-count, count, n.shape) for n in rows}
    indices = {n for gather in gathers for n in topological([gather.args[1]])}
    first = 1.0
    for leaf in [n for n in below if not n.args and n not in indices]:
        arrays[leaf] = first + np.arange(prod(map(int, leaf.shape)), dtype=np.float64).reshape(leaf.shape)
        first += arrays[leaf].size
    try:
        made = moved_elements(replace(found, dtype="float64"), arrays)
    except ValueError:
        return False
    return np.array_equal(made, interpret([node], EXACT, arrays)[node], equal_nan=True)
