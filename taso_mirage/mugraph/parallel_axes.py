"""Axes along which a loop's step is the same function of each element, so that parts of them are
loops of their own.

Such an axis goes through a step: an operand has it at one place or not at all, and so has every
value. No value is folded over it, and none mixes its elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor
from taso_mirage.meanings.base import contraction
from taso_mirage.meanings.typed import Typed
from taso_mirage.operators.interpret import interpret_term

AxisPlace = int | None
"""The place of the axis in a tensor; None in one that does not have it."""
TRIALS = 4096
"""The largest number of terms that are tried with places of their operands' axes."""


class AxisPlaces(Typed[AxisPlace]):
    """A meaning whose note is the place of one axis. Raises Unsupported where the axis is folded,
    cut or mixed with another one."""

    def note(
        self, primitive: str, fn: Any, notes: Sequence[AxisPlace], operands: Sequence[Tensor], result: Tensor
    ) -> AxisPlace:
        if all(place is None for place in notes):
            return None
        raise Unsupported(f"{primitive} of an axis whose parts are apart")

    def map(self, fn: Any, *xs: tuple[Tensor, AxisPlace]) -> Any:
        made, _ = super().map(fn, *[(t, None) for t, _ in xs])
        return made, _aligned([(p, t.rank) for t, p in xs], [t for t, _ in xs], made)

    def cast(self, a: tuple[Tensor, AxisPlace], dtype: str) -> Any:
        made, _ = super().cast((a[0], None), dtype)
        return made, a[1]

    def contract(self, equation: str, a: tuple[Tensor, AxisPlace], b: tuple[Tensor, AxisPlace]) -> Any:
        made, _ = super().contract(equation, (a[0], None), (b[0], None))
        return made, _contracted(equation, (a[1], b[1]), (a[0], b[0]))

    def reduce(self, fn: Any, a: tuple[Tensor, AxisPlace], axes: Sequence[int], keepdims: bool = True) -> Any:
        made, _ = super().reduce(fn, (a[0], None), axes, keepdims)
        return made, _kept(a[1], axes, keepdims)

    def cumulate(self, fn: Any, a: tuple[Tensor, AxisPlace], axis: int) -> Any:
        made, _ = super().cumulate(fn, (a[0], None), axis)
        return made, _kept(a[1], [axis], True)

    def transpose(self, a: tuple[Tensor, AxisPlace], perm: Sequence[int]) -> Any:
        made, _ = super().transpose((a[0], None), perm)
        return made, None if a[1] is None else list(perm).index(a[1])

    def reshape(self, a: tuple[Tensor, AxisPlace], shape: Sequence[Any]) -> Any:
        made, _ = super().reshape((a[0], None), shape)
        if a[1] is None:
            return made, None
        before, size = dim_product((a[0].shape or ())[: a[1]]), (a[0].shape or ())[a[1]]
        for place, n in enumerate(shape):
            if n == size and dim_product(shape[:place]) == before:
                return made, place
        raise Unsupported("a reshape that merges an axis whose parts are apart")

    def expand(self, a: tuple[Tensor, AxisPlace], shape: Sequence[Any]) -> Any:
        made, _ = super().expand((a[0], None), shape)
        return made, None if a[1] is None else a[1] + len(shape) - a[0].rank

    def slice(self, a: tuple[Tensor, AxisPlace], axis: int, start: Any, stop: Any, step: int = 1) -> Any:
        made, _ = super().slice((a[0], None), axis, start, stop, step)
        return made, _kept(a[1], [axis], True)

    def concat(self, xs: Sequence[tuple[Tensor, AxisPlace]], axis: int) -> Any:
        made, _ = super().concat([(t, None) for t, _ in xs], axis)
        places = {p for _, p in xs}
        if len(places) > 1 or axis in places:
            raise Unsupported("tensors side by side along an axis whose parts are apart")
        return made, places.pop()


def _kept(place: AxisPlace, axes: Sequence[int], keepdims: bool) -> AxisPlace:
    if place in axes:
        raise Unsupported("a fold over an axis whose parts are apart")
    return place if place is None or keepdims else place - sum(axis < place for axis in axes)


def _aligned(places: Sequence[tuple[AxisPlace, int]], operands: Sequence[Tensor], result: Tensor) -> AxisPlace:
    """The place in the result of a function of elements: operands are aligned at the right, and one
    without the axis has one element there."""
    found = {result.rank - rank + place for place, rank in places if place is not None}
    if len(found) > 1:
        raise Unsupported("an axis whose parts are apart, at two places")
    if not found:
        return None
    place = found.pop()
    for (own, rank), type in zip(places, operands, strict=True):
        inner = place - (result.rank - rank)
        if own is None and inner >= 0 and (type.shape or ())[inner] != 1:
            raise Unsupported("all elements of another axis beside parts of one")
    return place


def _contracted(equation: str, notes: Sequence[AxisPlace], operands: Sequence[Tensor]) -> AxisPlace:
    left, right, result = contraction(equation, operands[0].rank, operands[1].rank)
    letters = {own[p] for own, p in zip((left, right), notes, strict=True) if p is not None}
    if len(letters) > 1 or not letters <= set(result):
        raise Unsupported("a product over an axis whose parts are apart")
    if not letters:
        return None
    letter = letters.pop()
    for own, place, type in zip((left, right), notes, operands, strict=True):
        if place is None and letter in own and (type.shape or ())[own.index(letter)] != 1:
            raise Unsupported("all elements of another axis beside parts of one")
    return result.index(letter)


def parallel_axes(body: Graph, states: int) -> Iterator[tuple[list[AxisPlace], list[AxisPlace]]]:
    """The axes of a step along which a loop's parts are apart: the place of each in every input of
    the body and in every output; all outputs, and all states at the same place as before, have it.
    """
    order, trials = list(body), [TRIALS]
    for place, size in enumerate(body.inputs[0].shape if states else ()):
        if size == 1:
            continue
        values: dict[Node, Any] = {ABSENT: None, body.inputs[0]: (body.inputs[0].tensor, place)}
        found = _places(body, states, order, values, size, trials)
        if found is not None:
            yield found


def _places(
    body: Graph, states: int, order: Sequence[Node], values: dict[Node, Any], size: Any, trials: list[int], at: int = 0
) -> tuple[list[AxisPlace], list[AxisPlace]] | None:
    """Places of the axis in the other inputs, each tried where it is first read."""
    for i in range(at, len(order)):
        node = order[i]
        if node in values:
            continue
        if node in body.inputs:
            for place in [*(p for p, n in enumerate(node.shape) if n == size), None]:
                own = {**values, node: (node.tensor, place)}
                found = _places(body, states, order, own, size, trials, i + 1)
                if found is not None:
                    return found
            return None
        trials[0] -= 1
        try:
            values[node] = interpret_term(node, AxisPlaces(), [values[a] for a in node.args])
        except (TasoMirageError, IndexError, ValueError, TypeError):
            return None
        if trials[0] < 0:
            return None
    unread = {x: (x.tensor, None) for x in body.inputs if x not in values}
    inputs = [{**values, **unread}[x][1] for x in body.inputs]
    outputs = [{**values, **unread}[o][1] for o in body.outputs]
    return (inputs, outputs) if None not in outputs and inputs[:states] == outputs[:states] else None
