"""Slices, concatenations and pads that are simplified when they are made (PET, OSDI'21, section
6.2): pairs that cancel are omitted."""

from __future__ import annotations

from collections.abc import Sequence

from taso_mirage.ir.terms import Node, constant
from taso_mirage.operators.ops import term, traits
from taso_mirage.operators.traits import Box, Margin, TraitInterval


def sizes(node: Node) -> tuple[int, ...]:
    """The dims of a term of fixed sizes."""
    return tuple(int(n) for n in node.shape)


def whole(node: Node) -> Box:
    return tuple((0, n) for n in sizes(node))


def cut(node: Node, box: Box) -> Node:
    """The elements of `node` within `box`, taken from the operand of a slice or from the parts of a
    concatenation."""
    if box == whole(node):
        return node
    if node.op == "constant":
        return constant(node.attr("value").numpy()[tuple(slice(*interval) for interval in box)])
    if (axis := joined(node)) is not None:
        return join(_parts(node, box, axis), axis)
    base, own = slice_source(node)
    if base is not node:
        return cut(base, tuple((a + low, b + low) for (a, b), (low, _) in zip(box, own, strict=True)))
    axes = [i for i, n in enumerate(sizes(node)) if box[i] != (0, n)]
    starts, ends = ([box[i][side] for i in axes] for side in (0, 1))
    return term("slice", node, starts=starts, ends=ends, axes=axes, steps=[1] * len(axes))


def _parts(node: Node, box: Box, axis: int) -> list[Node]:
    start, found = 0, []
    first, last = box[axis]
    for part in node.args:
        n = sizes(part)[axis]
        low, high = max(first - start, 0), min(last - start, n)
        if low < high:
            found.append(cut(part, (*box[:axis], (low, high), *box[axis + 1 :])))
        start += n
    return found


def slice_source(node: Node) -> tuple[Node, Box]:
    """The operand of a slice with steps of 1, and the box in it; for any other term, the term
    itself and the whole box."""
    place = traits(node).place
    own = None if place is None else place(node)
    return (node, whole(node)) if own is None else (node.args[0], own)


def joined(node: Node) -> int | None:
    """The axis along which a term concatenates its operands; None where it does not."""
    name = traits(node).joins
    return None if name is None else int(node.attr(name))


def margin(node: Node) -> Margin | None:
    """The padding that a term puts around its operand; None where it puts none, or several
    values."""
    hook = traits(node).margin
    return None if hook is None else hook(node)


def join(parts: Sequence[Node], axis: int) -> Node:
    """The concatenation of `parts`; neighbours that are slices of one tensor are one slice, and one
    part is itself."""
    found: list[Node] = []
    for part in [p for each in parts for p in (each.args if joined(each) == axis else [each])]:
        if found and (merged := _merged(found[-1], part, axis)) is not None:
            found[-1] = merged
        else:
            found.append(part)
    return found[0] if len(found) == 1 else term("concat", *found, axis=axis)


def _merged(left: Node, right: Node, axis: int) -> Node | None:
    (base, first), (other, second) = slice_source(left), slice_source(right)
    same = all(i == axis or a == b for i, (a, b) in enumerate(zip(first, second, strict=True)))
    if base is not other or not same or first[axis][1] != second[axis][0]:
        return None
    return cut(base, (*first[:axis], (first[axis][0], second[axis][1]), *first[axis + 1 :]))


def padded_term(node: Node, low: Sequence[int], high: Sequence[int], value: float = 0.0) -> Node:
    """`value` around `node`; a negative pad crops."""
    return term("pad", node, pads=(*low, *high), value=value) if any((*low, *high)) else node


def under(operand: Node, box: Box) -> Box:
    """The part of an operand, aligned at the right, that is broadcast to `box`."""
    own = sizes(operand)
    return tuple((0, 1) if n == 1 else interval for n, interval in zip(own, box[len(box) - len(own) :], strict=True))


def needed(
    n: int, interval: TraitInterval, size: int, stride: int, dilation: int, low: int
) -> tuple[TraitInterval, int, int]:
    """The interval of `n` positions that the windows of an interval read, and the padding before
    and after it.

    If the interval reads only padding, one position is read and removed again by negative pads.
    """
    first = interval[0] * stride - low
    last = (interval[1] - 1) * stride - low + (size - 1) * dilation + 1
    start, stop = min(max(first, 0), n - 1), max(min(last, n), 1)
    return (start, stop), start - first, last - stop
