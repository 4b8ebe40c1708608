"""The step of a recurrent cell as a function of elements over sums of products with weights.

Sums are taken apart, and parts of columns are taken of the weights. What is left is the *skeleton*:
a function of elements of the states and of the sums. Two cells whose skeletons give the same
numbers may be equal; the prover says whether they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node, Tensor, constant, is_constant, is_part, topological, variable
from taso_mirage.operators.expressions import uniform_value
from taso_mirage.operators.interpret import definition
from taso_mirage.operators.ops import term, traits
from taso_mirage.rewriting.derived_traits import elementwise

ColumnRange = tuple[int, int]
"""The first column, and the one after the last."""


class NoCell(TasoMirageError):
    """A step that is no cell's."""


@dataclass(frozen=True, slots=True)
class CellSum:
    """A sum of products of a leaf (n, k) with a matrix (k, m), one for each leaf, and of vectors
    (m,)."""

    products: tuple[tuple[Node, Node], ...]
    vectors: tuple[Node, ...]

    @property
    def factors(self) -> tuple[Node, ...]:
        """The leaves."""
        return tuple(leaf for leaf, _ in self.products)


@dataclass
class Cell:
    """A step: its outputs, of which the new states are first, over variables for the states, and
    elements of sequences: variables, or `gather(sequence, step)`.

    `skeleton`: the new states over the states and a variable for each of `sums`. A product of
    another leaf than a state or an element is the leaf times a variable there. `fixed`: the terms
    of all steps that were met, in their order.
    """

    outputs: Sequence[Node]
    states: Sequence[Node]
    elements: Sequence[Node] = ()
    step: Node | None = None
    sums: dict[Node, CellSum] = field(default_factory=dict)
    fixed: dict[Node, None] = field(default_factory=dict)
    skeleton: tuple[Node, ...] = ()

    def __post_init__(self) -> None:
        self._varying = dict.fromkeys((*self.states, *self.elements), True)
        self._varying |= {} if self.step is None else {self.step: True}
        self._made: dict[tuple[Node, ColumnRange], Node] = {}
        self.skeleton = tuple(self._read(new, (0, _width(new))) for new in self.outputs[: len(self.states)])

    @property
    def sequences(self) -> list[Node]:
        """The elements in the sums, in the order in which they are met."""
        met = (leaf for each in self.sums.values() for leaf in each.factors)
        return [leaf for leaf in dict.fromkeys(met) if self.is_element(leaf)]

    def is_element(self, node: Node) -> bool:
        """Whether a term is the element of a sequence."""
        if node in self.elements or self.step is None or traits(node).lowering is not Lowering.GATHER:
            return node in self.elements
        return node.args[1] is self.step and node.attr("axis") == 0 and not self._varies(node.args[0])

    def _varies(self, node: Node) -> bool:
        """Whether a term may differ between steps."""
        for each in topological([node], stop=self._varying):
            self._varying[each] = any(self._varying[a] for a in each.args)
        return self._varying[node]

    def _read(self, node: Node, columns: ColumnRange) -> Node:
        """ColumnRange of a function of elements."""
        key = node, columns
        if key not in self._made:
            self._made[key] = self._reading(node, columns)
        return self._made[key]

    def _reading(self, node: Node, columns: ColumnRange) -> Node:
        inner = _sliced(node, columns)
        if inner is not None:
            return self._read(*inner)
        if node in self.states:
            if columns != (0, _width(node)):
                raise NoCell("a part of a state")
            return node
        if is_constant(node) and uniform_value(node) is not None:
            return constant(uniform_value(node) or 0.0, node.dtype)
        if self._varies(node) and elementwise(node.op) and not traits(node).sums:
            args = [self._read(a, _fitting(a, columns)) for a in node.args]
            return term(node.op, *args, **dict(node.attrs))
        parts = _Parts()
        self._take_apart(node, columns, parts)
        return self._total(parts, node, columns)

    # ------------------------------------------------------------ sums

    def _total(self, parts: _Parts, like: Node, columns: ColumnRange) -> Node:
        if len(dict(parts.products)) < len(parts.products):
            raise NoCell("two products of one term")
        plain = tuple(each for each in parts.products if each[0] in self.states or self.is_element(each[0]))
        found = [self._read(*each) for each in parts.others]
        for leaf, matrix in parts.products:
            if (leaf, matrix) not in plain:
                factor = self._variable(CellSum(((leaf, matrix),), ()), like, columns)
                found.append(term("mul", self._read(leaf, (0, _width(leaf))), factor))
        if plain or parts.vectors:
            found.append(self._variable(CellSum(plain, tuple(parts.vectors)), like, columns))
        return reduce(lambda a, b: term("add", a, b), found)

    def _variable(self, found: CellSum, like: Node, columns: ColumnRange) -> Node:
        for made, each in self.sums.items():
            if each == found:
                return made
        made = variable(f"sum {len(self.sums)}", Tensor(like.dtype, (*like.shape[:-1], columns[1] - columns[0])))
        self.sums[made] = found
        return made

    def _take_apart(self, node: Node, columns: ColumnRange, parts: _Parts) -> None:
        inner = _sliced(node, columns)
        if not self._varies(node):
            parts.vectors.append(self._vector(node, columns))
        elif inner is not None:
            self._take_apart(*inner, parts)
        elif traits(node).sums:
            for each in node.args:
                self._take_apart(each, _fitting(each, columns), parts)
        elif self._is_product(node):
            self._multiply(node, columns, parts)
        elif node in self.states or elementwise(node.op):
            parts.others.append((node, columns))
        else:
            other = self._of_elements(node) if self.is_element(node) else definition(node, parts=True)
            if other is None:
                raise NoCell(f"the operator {node.op}")
            self._take_apart(other, columns, parts)

    def _is_product(self, node: Node) -> bool:
        """Whether a term is a product with a matrix."""
        if len(node.args) != 2 or self._varies(node.args[1]) or node.args[1].tensor.rank != 2:
            return False
        return node is term("matmul", *node.args)

    def _multiply(self, node: Node, columns: ColumnRange, parts: _Parts) -> None:
        left, matrix = node.args
        self.fixed[matrix] = None
        start, joins = 0, traits(left).joins
        beside = left.args if joins is not None and left.attr(joins) == left.tensor.rank - 1 else (left,)
        for leaf in beside:
            rows = _part(matrix, 0, (start, start + _width(leaf)))
            parts.products.append((leaf, _part(rows, 1, columns)))
            start += _width(leaf)

    def _vector(self, node: Node, columns: ColumnRange) -> Node:
        """ColumnRange of a term that is the same for all rows."""
        width = _width(node)
        number = uniform_value(node) if is_constant(node) else None
        if number is not None:
            return constant(np.full(columns[1] - columns[0], number), node.dtype)
        self.fixed[node] = None
        if any(n != 1 for n in node.shape[:-1]):
            raise NoCell("a sum with a matrix")
        flat = node if len(node.shape) == 1 else term("reshape", node, shape=(width,))
        return term("expand", flat, shape=(columns[1] - columns[0],)) if width == 1 else _part(flat, 0, columns)

    def _of_elements(self, node: Node) -> Node | None:
        """The element of a sum or of a product of whole sequences, as one of elements."""
        whole, step = node.args
        if not (traits(whole).sums or (self.step is not None and self._is_product(whole))):
            return None
        count, rank = whole.shape[0], whole.tensor.rank
        args = []
        for each in whole.args:
            along = each.tensor.rank == rank and each.shape[0] == count
            if each.tensor.rank == rank and not along:
                return None
            args.append(term("gather", each, step, axis=0) if along else each)
        return term(whole.op, *args)


@dataclass
class _Parts:
    """The parts of a sum: products of a leaf with a matrix, vectors, and columns of others."""

    products: list[tuple[Node, Node]] = field(default_factory=list)
    vectors: list[Node] = field(default_factory=list)
    others: list[tuple[Node, ColumnRange]] = field(default_factory=list)


def _width(node: Node) -> int:
    width = node.shape[-1] if isinstance(node.type, Tensor) and node.shape else 1
    if not isinstance(width, int):
        raise NoCell(f"{node} of free width")
    return width


def _fitting(node: Node, columns: ColumnRange) -> ColumnRange:
    """The columns of an operand that is broadcast."""
    return (0, 1) if _width(node) == 1 else columns


def _sliced(node: Node, columns: ColumnRange) -> tuple[Node, ColumnRange] | None:
    """The operand of which a term is some columns, and those that belong to `columns`."""
    last = node.tensor.rank - 1
    if is_part(node):
        whole = node.args[0]
        sizes = traits(whole).parts
        if sizes is None or whole.attr("axis") != last:
            return None
        start = sum(whole.attr(sizes)[: node.attr("index")])
        return whole.args[0], (start + columns[0], start + columns[1])
    if traits(node).lowering is not Lowering.SLICE or node.attr("axes") != (last,) or node.attr("steps") != (1,):
        return None
    (start,) = node.attr("starts")
    return node.args[0], (start + columns[0], start + columns[1])


def _part(node: Node, axis: int, columns: ColumnRange) -> Node:
    if columns == (0, node.shape[axis]):
        return node
    return term("slice", node, starts=columns[:1], ends=columns[1:], axes=(axis,), steps=(1,))
