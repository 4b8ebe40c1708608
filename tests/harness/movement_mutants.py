"""Wrong movements: mutants of the operands of a goal's core, of its selections, of index maps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph, Node, constant, is_constant, substitute, topological
from taso_mirage.meanings.index_maps import IndexMap, IndexPiece
from taso_mirage.mugraph.moved_goal import MovedGoal
from taso_mirage.operators.ops import term

WrongTerm: TypeAlias = tuple[str, Node]
"""A kind of mutant, and a term of the same type."""


def wrong_goals(moved: MovedGoal) -> Iterator[tuple[str, MovedGoal]]:
    """Mutants of the movements of a goal, and of the selections among parts."""
    for i, operand in enumerate(moved.operands):
        for kind, other in _within(operand):
            operands = (*moved.operands[:i], other, *moved.operands[i + 1 :])
            yield kind, replace(moved, operands=operands)
        for j in range(i):
            if operand.type == moved.operands[j].type:
                operands = list(moved.operands)
                operands[i], operands[j] = operands[j], operands[i]
                yield "other operand", replace(moved, operands=tuple(operands))
    for node in topological(moved.core.outputs):
        if node.op == "where":
            mask, own, other = node.args
            for kind, made in (("missing mask", own), ("missing mask", other), ("exchanged parts", (other, own))):
                new = term("where", mask, *made) if isinstance(made, tuple) else made
                if new.type == node.type:
                    outputs = substitute(moved.core.outputs, {node: new})
                    yield kind, replace(moved, core=Graph(moved.core.inputs, outputs))


def _within(operand: Node) -> Iterator[WrongTerm]:
    """The operand with one of its movements made otherwise."""
    for node in topological([operand]):
        if node.args and node.op in WRONG:
            for kind, other in WRONG[node.op](node):
                if other.type == node.type and other is not node:
                    (made,) = substitute([operand], {node: other})
                    yield kind, made


def _with(node: Node, **attrs: Any) -> list[Node]:
    """The term with other attributes, if it has a type."""
    try:
        return [term(node.op, *node.args, **{**dict(node.attrs), **attrs})]
    except TasoMirageError:
        return []


def _changed(values: tuple[int, ...], i: int, by: int) -> tuple[int, ...]:
    return (*values[:i], values[i] + by, *values[i + 1 :])


def _slices(node: Node) -> Iterator[WrongTerm]:
    starts, ends, axes = (node.attr(name) for name in ("starts", "ends", "axes"))
    for i, axis in enumerate(axes):
        n, size = node.shape[axis], node.args[0].shape[axis]
        for by in (-1, 1, -n, n):
            low, high = sorted((starts[i] + by, ends[i] + by))
            if low >= 0 and high <= size:
                kind = "off by one" if abs(by) == 1 else "other part"
                yield from ((kind, x) for x in _with(node, starts=_changed(starts, i, by), ends=_changed(ends, i, by)))
        turned = constant(np.arange(n - 1, -1, -1))
        yield "reversed", term("gather", node, turned, axis=axis)


def _parts(node: Node) -> Iterator[WrongTerm]:
    args = node.args
    for i in range(1, len(args)):
        yield "exchanged parts", term("concat", *args[i:], *args[:i], axis=node.attr("axis"))
    for i, j in permutations(range(len(args)), 2):
        if args[i].type == args[j].type:
            yield "other part", term("concat", *args[:i], args[j], *args[i + 1 :], axis=node.attr("axis"))


def _pads(node: Node) -> Iterator[WrongTerm]:
    pads, rank = node.attr("pads"), node.args[0].tensor.rank
    for axis in range(rank):
        for by in (-1, 1):
            moved = _changed(_changed(pads, axis, by), rank + axis, -by)
            if min(moved) >= 0:
                yield from (("wrong pad", x) for x in _with(node, pads=moved))
    yield from (("wrong fill", x) for x in _with(node, value=node.attr("value") + 1))


def _rows(node: Node) -> Iterator[WrongTerm]:
    x, indices = node.args
    count = x.shape[node.attr("axis")]
    if not is_constant(indices):
        return
    rows = indices.attr("value").numpy().astype(np.int64)
    for place in np.ndindex(rows.shape):
        for by in (-1, 1):
            other = rows.copy()
            other[place] = (other[place] + by) % count
            yield "wrong row", term("gather", x, constant(other), axis=node.attr("axis"))
    yield "wrong rows", term("gather", x, constant(rows[::-1].copy()), axis=node.attr("axis"))


def _orders(node: Node) -> Iterator[WrongTerm]:
    for perm in permutations(range(node.tensor.rank)):
        yield from (("wrong order", x) for x in _with(node, perm=perm))


WRONG = {"slice": _slices, "concat": _parts, "pad": _pads, "gather": _rows, "transpose": _orders}
"""The mutants of each movement."""


# ---------------------------------------------------------------- index maps


def wrong_maps(found: IndexMap) -> Iterator[tuple[str, IndexMap]]:
    """Mutants of an index map."""
    for i, piece in enumerate(found.pieces):
        for kind, other in _wrong_pieces(piece, found):
            yield kind, replace(found, pieces=(*found.pieces[:i], *other, *found.pieces[i + 1 :]))
    for i, (name, row) in enumerate(found.rows):
        for axis, at in enumerate(row.index):
            index = (*row.index[:axis], at + 1, *row.index[axis + 1 :])
            rows = (*found.rows[:i], (name, replace(row, index=index)), *found.rows[i + 1 :])
            yield "wrong row", replace(found, rows=rows)
        rows = (*found.rows[:i], (name, replace(row, count=row.count - 1)), *found.rows[i + 1 :])
        yield "wrong count of rows", replace(found, rows=rows)
    if found.fill is not None:
        yield "wrong fill", replace(found, fill=found.fill + 1)
        yield "missing fill", replace(found, fill=None)


def _wrong_pieces(piece: IndexPiece, found: IndexMap) -> Iterator[tuple[str, tuple[IndexPiece, ...]]]:
    for axis, at in enumerate(piece.index):
        for by in (-1, 1):
            index = (*piece.index[:axis], at + by, *piece.index[axis + 1 :])
            yield "off by one", (replace(piece, index=index),)
    for i, condition in enumerate(piece.conditions):
        others = (*piece.conditions[:i], *piece.conditions[i + 1 :])
        yield "missing mask", (replace(piece, conditions=others),)
        for by in (-1, 1):
            yield "mask off by one", (replace(piece, conditions=(condition + by, *others)),)
    for other in found.sources:
        if other is not piece.source and other.shape == piece.source.shape:
            yield "other part", (replace(piece, source=other),)
    for axis in range(1, len(piece.index)):
        index = list(piece.index)
        index[axis - 1], index[axis] = index[axis], index[axis - 1]
        yield "exchanged axes", (replace(piece, index=tuple(index)),)
    yield "missing part", ()
