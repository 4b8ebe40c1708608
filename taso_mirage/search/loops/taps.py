"""Sums over the shifted parts of a sequence, each times a weight, as convolutions.

The parts are those of a shift register (`search/loops/values.py`). The equality of the sum and of
the convolution is proved.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from taso_mirage.search.loops.values import sliced
from taso_mirage.search.steps import RewriteStep


@dataclass(frozen=True, slots=True)
class _Shifted:
    """Parts of one sequence along an axis of a term: rows from `start` on, each one row later, or
    earlier with `flipped`."""

    whole: Node
    start: int
    count: int
    flipped: bool


def with_convolutions(form: LighterLoop, proofs: Proofs) -> LighterLoop | None:
    """The results with convolutions in the place of sums over shifted parts; None where there is
    none."""
    table, steps = dict[Node, Node](), list[RewriteStep]()
    for node in topological(form.results):
        try:
            found = _convolution(node, proofs)
        except TasoMirageError:
            continue
        if found is not None:
            table[node] = found[-1].new[0]
            steps += found
    if not table:
        return None
    obligations = (*form.obligations, *steps)
    return replace(form, results=substitute(form.results, table), obligations=obligations)


def _convolution(node: Node, proofs: Proofs) -> list[RewriteStep] | None:
    """The equalities from a sum over shifted parts to a convolution."""
    products = node.args[0] if node.args else node
    axis = _summed_axis(node, products)
    if axis is None:
        return None
    left, right = products.args
    for window, weight in ((left, right), (right, left)):
        parts = _parts(window, axis) if window.type == products.type else []
        found = _shifted(parts)
        if found is None or not isinstance(window.shape[0], int):
            continue
        same = [sliced(found.whole, at, at + window.shape[0]) for at in _offsets(found)]
        moved = dict(zip(parts, same, strict=True))
        (middle,) = substitute((node,), moved, topological((node,), stop=parts))
        new = _convolved(found, window, weight, axis)
        new = new if new.type == node.type else term("unsqueeze", new, axes=(axis,))
        beside = [a for a, b in moved.items() if a is b]
        claims = [(node, middle, [*beside, *_operands(found.whole), weight]), (middle, new, [found.whole, weight])]
        return _proved(claims, proofs)
    return None


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


def _parts(window: Node, axis: int) -> list[Node]:
    """The terms that are side by side along an axis of a term; none where one has another axis."""
    if len(window.args) == 1 and dict(window.attrs).get("axes") == (axis,):
        return [window.args[0]] if window is term("unsqueeze", window.args[0], axes=(axis,)) else []
    joins = traits(window).joins
    if joins is None or window.attr(joins) != axis:
        return []
    found = [_parts(each, axis) for each in window.args]
    return [part for parts in found for part in parts] if all(found) else []


def _shifted(parts: Sequence[Node]) -> _Shifted | None:
    """Parts that are consecutive rows of one sequence."""
    places = [_place(part) for part in parts]
    wholes = {place[0] for place in places if place is not None}
    for whole in wholes if len(parts) > 1 else ():
        starts = [_place_in(whole, part) for part in parts]
        if None in starts:
            continue
        known = [int(at) for at in starts if at is not None]
        for step in (1, -1):
            if known == list(range(known[0], known[0] + step * len(known), step)):
                return _Shifted(whole, min(known), len(known), step < 0)
    return None


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


def _offsets(found: _Shifted) -> list[int]:
    places = list(range(found.start, found.start + found.count))
    return places[::-1] if found.flipped else places


def _convolved(found: _Shifted, window: Node, weight: Node, axis: int) -> Node:
    """The convolution of each channel, the last axis beside the window's, over all rows."""
    steps, rank = window.shape[0], window.tensor.rank
    beside = [i for i in range(1, rank) if i != axis]
    channel, samples = beside[-1], [window.shape[i] for i in beside[:-1]]
    channels = window.shape[channel]
    kernel = _kernel(
        found, _shaped(weight, (*(1,) * (rank - weight.tensor.rank), *weight.shape)), (axis, channel), channels
    )
    rows = steps + found.count - 1
    data = found.whole if found.whole.shape[0] == rows else sliced(found.whole, found.start, found.start + rows)
    data = term("transpose", _shaped(data, (rows, dim_product(samples), channels)), perm=(1, 2, 0))
    attrs = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "group": channels}
    made = term("conv", data, term("unsqueeze", kernel, axes=(1,)), **attrs)
    return _shaped(term("transpose", made, perm=(2, 0, 1)), (steps, *samples, channels))


def _kernel(found: _Shifted, weight: Node, places: tuple[int, int], channels: Dim) -> Node:
    """The weights of the parts for each channel, or for all, in the order of the rows."""
    if any(n != 1 for i, n in enumerate(weight.shape) if i not in places):
        raise TasoMirageError("a weight for each step, or for each sample")
    kernel = _shaped(weight, tuple(weight.shape[i] for i in sorted(places)))
    kernel = term("transpose", kernel, perm=(1, 0)) if places[0] < places[1] else kernel
    shape = (channels, found.count)
    kernel = kernel if kernel.shape == shape else term("expand", kernel, shape=shape)
    if found.flipped:
        kernel = term("slice", kernel, starts=(found.count - 1,), ends=(-1,), axes=(1,), steps=(-1,))
    return kernel


def _shaped(x: Node, shape: tuple[Dim, ...]) -> Node:
    return x if x.shape == shape else term("reshape", x, shape=shape)
