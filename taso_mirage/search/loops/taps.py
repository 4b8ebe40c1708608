"""Sums over the shifted parts of a sequence, each times a weight, and convolutions of them in each
step, as convolutions over the sequence.

The parts are those of a shift register (`search/loops/values.py`). The equality is proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Node, is_constant, substitute, topological
from taso_mirage.operators.ops import term, traits
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.search.loops.behind import LighterLoop
from taso_mirage.search.loops.inductions import INDUCTION, is_equal
from taso_mirage.search.loops.values import sliced, with_axis
from taso_mirage.search.steps import RewriteStep


@dataclass(frozen=True, slots=True)
class _Window:
    """Parts of one sequence side by side along an axis of a term: rows from `start` on, each one
    row later, or earlier with `flipped`. `columns`: the parts with that axis."""

    term: Node
    axis: int
    columns: tuple[Node, ...]
    whole: Node
    start: int
    flipped: bool

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.columns)

    @property
    def steps(self) -> Dim:
        """The rows of a part."""
        return self.term.shape[0]

    @property
    def pads(self) -> tuple[int, int]:
        """The rows of zeros before and behind all: one behind a number of rows that a run tells, so
        that a convolution has a result also of none."""
        return 0, int(not isinstance(self.steps, int))

    def convolved(self, op: str, *others: Node, **attrs: Any) -> Node:
        """An operator that convolves all rows, by its kernel and the others: (steps, samples,
        channels)."""
        shape = self.term.shape
        beside = [n for i, n in enumerate(shape) if i not in (0, self.axis)]
        rows = _shaped(self.rows, (self.rows.shape[0], dim_product(beside[:-1]), beside[-1]))
        attrs |= {"strides": (1,), "pads": self.pads}
        made = term(op, term("transpose", rows, perm=(1, 2, 0)), *others, **attrs)
        made = term("transpose", made, perm=(2, 0, 1))
        return sliced(made, 0, self.steps) if any(self.pads) else made

    @property
    def rows(self) -> Node:
        """The rows of all parts."""
        count = self.steps + self.count - 1
        return self.whole if self.whole.shape[0] == count else sliced(self.whole, self.start, self.start + count)

    def shifted(self) -> dict[Node, Node]:
        """Each column as a part of the sequence."""
        places = list(range(self.start, self.start + self.count))
        parts = [sliced(self.whole, at, at + self.steps) for at in (places[::-1] if self.flipped else places)]
        flat = [_without(column, self.axis) for column in self.columns]
        return {
            column: column if old is new else with_axis(new, self.axis)
            for column, old, new in zip(self.columns, flat, parts, strict=True)
        }


def with_convolutions(form: LighterLoop, proofs: Proofs) -> LighterLoop | None:
    """The results with convolutions over sequences in the place of those over shifted parts; None
    where there is none."""
    terms = form.results if form.term is None else (*form.results, form.term)
    steps, seen = list[RewriteStep](), set[Node]()
    while (found := _first(terms, seen, proofs)) is not None:
        steps += found
        terms = substitute(terms, {found[0].old[0]: found[-1].new[0]})
    if not steps:
        return None
    results, loop = terms[: len(form.results)], terms[-1] if form.term is not None else None
    return replace(form, term=loop, results=results, obligations=(*form.obligations, *steps))


def _first(results: Sequence[Node], seen: set[Node], proofs: Proofs) -> list[RewriteStep] | None:
    """The equalities of the first term that becomes another convolution, besides those `seen`."""
    for node in topological(results):
        if node in seen or not node.args:
            continue
        seen.add(node)
        with suppress(TasoMirageError):
            found = _convolution(node, proofs)
            if found:
                return found
    return None


def _convolution(node: Node, proofs: Proofs) -> list[RewriteStep] | None:
    """The equalities from a term over shifted parts to a convolution."""
    for window, new, beside in (*_of_sums(node), *_of_convolutions(node)):
        moved = window.shifted()
        (middle,) = substitute((node,), moved, topological((node,), stop=window.columns))
        operands = [each.args[0] if each.args and each.args[0] in moved else each for each in _operands(window.whole)]
        same = [column for column, part in moved.items() if column is part]
        return _proved([(node, middle, [*same, *operands, *beside]), (middle, new, [window.whole, *beside])], proofs)
    return None


def _of_sums(node: Node) -> Iterator[tuple[_Window, Node, Sequence[Node]]]:
    """A sum of products of shifted parts with weights, as a convolution."""
    products = node.args[0]
    axis = _summed_axis(node, products)
    if axis is None:
        return
    left, right = products.args
    for inner, weight in ((left, right), (right, left)):
        window = _window(inner, axis) if inner.type == products.type else None
        if window is not None:
            new = _depthwise(window, weight)
            yield window, new if new.type == node.type else with_axis(new, axis), (weight,)


def _of_convolutions(node: Node) -> Iterator[tuple[_Window, Node, Sequence[Node]]]:
    """A convolution of the window of each step, as one over the sequence."""
    if not traits(node).windowed or traits(node).kernel != 1 or node.tensor.rank != 3 or any(node.attr("pads")):
        return
    data = node.args[0]
    inner = data.args[0] if len(data.args) == 1 and data.shape[1:] == data.args[0].shape[-2:] else data
    window = _window(inner, inner.tensor.rank - 1)
    if window is None or window.flipped or node.shape[-1] != 1:
        return
    made = window.convolved(node.op, *node.args[1:], **dict(node.attrs))
    yield window, _shaped(made, node.shape), node.args[1:]


def _summed_axis(node: Node, products: Node) -> int | None:
    """The axis over which a term sums products of two terms, if it is such a sum."""
    attrs: dict[str, Any] = dict(node.attrs)
    axes: Sequence[int] = attrs.get("axes") or ()
    if len(axes) != 1 or len(products.args) != 2:
        return None
    if products is not term("mul", *products.args):
        return None
    made = term("reduce_sum", products, axes=axes, keepdims=attrs.get("keepdims", 1))
    return int(axes[0]) if node is made else None


def _proved(claims: Sequence[tuple[Node, Node, Sequence[Node]]], proofs: Proofs) -> list[RewriteStep] | None:
    steps = []
    for old, new, leaves in claims:
        over = [a for a in dict.fromkeys(leaves) if a is not ABSENT and not is_constant(a)]
        if old is not new and not is_equal(old, new, over, proofs):
            return None
        steps += [RewriteStep((INDUCTION,), (old,), (new,), over=frozenset(over))] if old is not new else []
    return steps


def _window(node: Node, axis: int) -> _Window | None:
    """A term as consecutive rows of one sequence along an axis."""
    columns = tuple(_columns(node, axis))
    flat = [_without(column, axis) for column in columns]
    wholes = {place[0]: None for place in map(_place, flat) if place is not None}
    for whole in wholes if len(columns) > 1 else ():
        starts = [at for at in (_place_in(whole, part) for part in flat) if at is not None]
        for step in (1, -1):
            if len(starts) == len(flat) and starts == list(range(starts[0], starts[0] + step * len(starts), step)):
                return _Window(node, axis, columns, whole, min(starts), step < 0)
    return None


def _columns(node: Node, axis: int) -> list[Node]:
    """The terms of one element along an axis that are side by side in a term."""
    joins = traits(node).joins
    if joins is not None and node.attr(joins) == axis:
        found = [_columns(each, axis) for each in node.args]
        return [part for parts in found for part in parts] if all(found) else []
    return [node] if node.shape[axis] == 1 else []


def _without(column: Node, axis: int) -> Node:
    """A term of one element along an axis, without it."""
    if len(column.args) == 1 and column is term("unsqueeze", column.args[0], axes=(axis,)):
        return column.args[0]
    return term("reshape", column, shape=(*column.shape[:axis], *column.shape[axis + 1 :]))


def _place(part: Node) -> tuple[Node, int] | None:
    """The sequence of which a term is some rows, and the first of them."""
    if traits(part).lowering is not Lowering.SLICE or part.attr("axes") != (0,) or part.attr("steps") != (1,):
        return None
    (start,) = part.attr("starts")
    return (part.args[0], start) if isinstance(start, int) and start >= 0 else None


def _place_in(whole: Node, part: Node) -> int | None:
    """The first row of a term in a sequence, of which it may be an operand."""
    place, start = _place(part), 0
    if place is not None and place[0] is whole:
        return place[1]
    for each in _operands(whole):
        if each is part:
            return start
        if not isinstance(each.shape[0], int):
            return None
        start += each.shape[0]
    return None


def _operands(whole: Node) -> tuple[Node, ...]:
    """The terms one after the other in a sequence."""
    joins = traits(whole).joins
    return whole.args if joins is not None and whole.attr(joins) == 0 else ()


def _depthwise(window: _Window, weight: Node) -> Node:
    """The convolution of each channel, the last axis beside the window's, over all rows."""
    shape, rank, axis = window.term.shape, window.term.tensor.rank, window.axis
    beside = [i for i in range(1, rank) if i != axis]
    channel, samples = beside[-1], [shape[i] for i in beside[:-1]]
    aligned = _shaped(weight, (*(1,) * (rank - weight.tensor.rank), *weight.shape))
    kernel = term("unsqueeze", _kernel(window, aligned, channel), axes=(1,))
    made = window.convolved("conv", kernel, dilations=(1,), group=shape[channel])
    return _shaped(made, (window.steps, *samples, shape[channel]))


def _kernel(window: _Window, weight: Node, channel: int) -> Node:
    """The weights of the parts for each channel, or for all, in the order of the rows."""
    places = (window.axis, channel)
    if any(n != 1 for i, n in enumerate(weight.shape) if i not in places):
        raise TasoMirageError("a weight for each step, or for each sample")
    kernel = _shaped(weight, tuple(weight.shape[i] for i in sorted(places)))
    kernel = term("transpose", kernel, perm=(1, 0)) if places[0] < places[1] else kernel
    shape = (window.term.shape[channel], window.count)
    kernel = kernel if kernel.shape == shape else term("expand", kernel, shape=shape)
    if window.flipped:
        kernel = term("slice", kernel, starts=(window.count - 1,), ends=(-1,), axes=(1,), steps=(-1,))
    return kernel


def _shaped(x: Node, shape: tuple[Dim, ...]) -> Node:
    return x if x.shape == shape else term("reshape", x, shape=shape)
