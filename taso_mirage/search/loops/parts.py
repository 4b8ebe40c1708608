"""Terms that are the successive parts of one term: the elements of a sequence, written out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import symbols
from taso_mirage.ir.terms import ABSENT, Node, Tensor, constant, is_constant, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.expressions import is_weight, uniform_value
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.derived_traits import selects

SIZE = 2
"""The size of a dim that has a name, in a comparison by numbers."""
LARGEST = 1 << 22
"""The most elements of a term of which parts are found."""


GROUP = 8
"""The most terms of a stack that a proof is about."""
RowEquality = tuple[Node, Node, tuple[Node, ...]]
"""Two terms, and those for all values of which they are equal."""


@dataclass(frozen=True, slots=True)
class SuccessiveParts:
    """Parts of a term along an axis, one after the other; with `backward` one before the other.
    `sequence` has their axis first, in the order of the term. Constants and weights are parts in
    both directions. `rows`: equalities that together say which elements stacked weights have."""

    source: Node
    sequence: Node
    type: Tensor
    count: int
    backward: bool
    rows: tuple[RowEquality, ...] = ()

    @property
    def element(self) -> Tensor:
        """The type of an element of the sequence."""
        return Tensor(self.sequence.dtype, self.sequence.shape[1:])

    def view(self, element: Node) -> Node:
        """A part, by the element of the sequence."""
        if element.type == self.type:
            return element
        return term("expand" if is_constant(self.source) else "reshape", element, shape=self.type.shape)

    def at(self, step: int) -> Node:
        """The part in a step."""
        place = self.count - 1 - step if self.backward else step
        return self.view(_row(self.sequence, place))


def known_parts(nodes: Sequence[Node], backward: bool = False) -> SuccessiveParts | None:
    """Constants or weights of one type as the elements of another one, for example the places of
    steps, or their embeddings; None for other terms, for those of several types, and for weights
    most of which are the same one, which would be stored as often."""
    first = nodes[0]
    if not all(map(is_weight, nodes)) or not isinstance(first.type, Tensor) or len({n.type for n in nodes}) > 1:
        return None
    order, rows = [*reversed(nodes)] if backward else [*nodes], list[RowEquality]()
    if all(map(is_constant, order)):
        values = [each.attr("value").numpy() for each in order]
        if all(uniform_value(each) is not None for each in order):
            values = [each[tuple(slice(0, 1) for _ in each.shape)] for each in values]
        whole = constant(np.stack(values))
    elif 2 * len({*order}) < len(order):
        return None
    else:
        whole, rows = _stacked(order)
    return SuccessiveParts(whole, whole, first.tensor, len(order), backward, tuple(rows))


def _stacked(nodes: Sequence[Node]) -> tuple[Node, list[RowEquality]]:
    """Terms one above the other, in groups and groups of groups, so that an equality is about
    few."""
    rows, parts = list[RowEquality](), [(each, 0) for each in nodes]
    while len(parts) > 1:
        made = list[tuple[Node, int]]()
        for group in (parts[i : i + GROUP] for i in range(0, len(parts), GROUP)):
            below = tuple([each for each, _ in group])
            stacks = [each if count else term("unsqueeze", each, axes=(0,)) for each, count in group]
            whole = stacks[0] if len(stacks) == 1 else term("concat", *stacks, axis=0)
            olds = [_row(each, i) if count else each for each, count in group for i in range(count or 1)]
            rows += [(old, _row(whole, i), below) for i, old in enumerate(olds)]
            made.append((whole, len(olds)))
        parts = made
    return parts[0][0], rows


def _row(whole: Node, place: int) -> Node:
    return term("gather", whole, constant(place), axis=0)


def successive_parts(nodes: tuple[Node, ...]) -> SuccessiveParts | None:
    """The highest term of which other terms are successive parts, by numbers; None where there is
    none."""
    first, *others = map(_terms_of_parts, nodes)
    common = [each for each in first if all(each in other for other in others)]
    return next((found for source in common if (found := _parts_of(source, nodes)) is not None), None)


def _parts_of(source: Node, nodes: Sequence[Node]) -> SuccessiveParts | None:
    if source in nodes or is_weight(source) or not isinstance(source.type, Tensor) or source.tensor.shape is None:
        return None
    sizes = {name: SIZE for n in source.shape for name in symbols(n)}
    shape = [n if isinstance(n, int) else SIZE for n in source.shape]
    places = np.arange(int(np.prod(shape))).reshape(shape)
    if not 0 < places.size <= LARGEST or not isinstance(nodes[0].type, Tensor):
        return None
    leaf = variable("source", Tensor("int64", source.shape))
    try:
        terms = [_over(each, source, leaf) for each in nodes]
        values = interpret(terms, EXACT, {leaf: EXACT.load(places)}, sizes=dict(sizes))
        found = [np.asarray(values[each], np.int64).ravel() for each in terms]
    except (ArithmeticError, LookupError, TypeError, ValueError, TasoMirageError):  # or beside other floats
        return None
    for axis in range(len(shape)):
        at = [int(np.unravel_index(each[0], shape)[axis]) if each.size else -1 for each in found]
        step = at[1] - at[0]
        same = all(np.array_equal(np.take(places, i, axis).ravel(), each) for i, each in zip(at, found, strict=True))
        if same and abs(step) == 1 and at == [at[0] + step * i for i in range(len(at))]:
            return _along(source, axis, min(at), nodes, step < 0)
    return None


def _along(source: Node, axis: int, start: int, nodes: Sequence[Node], backward: bool) -> SuccessiveParts:
    order = (axis, *[i for i in range(len(source.shape)) if i != axis])
    moved = source if axis == 0 else term("transpose", source, perm=order)
    end = start + len(nodes)
    if (start, end) != (0, source.shape[axis]):
        moved = term("slice", moved, starts=(start,), ends=(end,), axes=(0,), steps=(1,))
    return SuccessiveParts(source, moved, nodes[0].tensor, len(nodes), backward)


def _over(node: Node, source: Node, leaf: Node) -> Node:
    """A part of a term, as one of a leaf of integers."""
    if node is source:
        return leaf
    below = _over(node.args[0], source, leaf)
    return term(node.op, below, *node.args[1:], **dict(node.attrs))


def term_of_parts(node: Node) -> Node:
    """The lowest term whose elements alone a term has, by what is known before the model runs."""
    return _terms_of_parts(node)[-1]


def _terms_of_parts(node: Node) -> list[Node]:
    """A term and those below it whose elements alone it has, by what is known before the model
    runs."""
    found = [node]
    while node.args and selects(node.op) and node.op != "opaque" and not is_weight(node):
        if not all(a is ABSENT or is_weight(a) for a in node.args[1:]):
            break
        node = node.args[0]
        found.append(node)
    return found
