"""A program restricted to a box of its output (PET, OSDI'21, section 6.1): every operator over the box of its operands that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from taso_mirage.errors import Unsupported
from taso_mirage.expressions import is_weight
from taso_mirage.ir import ABSENT, LEAVES, Node
from taso_mirage.meanings.boxes import regrouped_runs
from taso_mirage.ops import definition, get, term
from taso_mirage.partial.cells import Box
from taso_mirage.partial.copies import cut, join, padded, sizes, whole

Interval = tuple[int, int]


class Restriction:
    """Restricted terms; equal ones are made once."""

    def __init__(self) -> None:
        self._done: dict[tuple[Node, Box], Node] = {}

    def __call__(self, node: Node, box: Box) -> Node:
        """The term of the elements of `node` within `box`. Raises Unsupported where an operator has no rule below."""
        if box == whole(node):
            return node
        if node.op in (*LEAVES, "constant"):
            return cut(node, box)
        key = (node, box)
        if key not in self._done:
            try:
                self._done[key] = self._restricted(node, box)
            except Unsupported:
                if not is_weight(node):
                    raise
                self._done[key] = cut(node, box)  # computed before the run, be it whole
        return self._done[key]

    def _restricted(self, node: Node, box: Box) -> Node:
        rule = RULES.get(node.op)
        if rule is not None:
            return rule(self, node, box)
        defined = definition(node)
        if defined is None:
            raise Unsupported(f"{node.op} has no restriction to a part of its output; add one to {__name__}")
        return self(defined, box)


def _elementwise(inner: Restriction, node: Node, box: Box) -> Node:
    """A dim of 1 that is broadcast stays."""
    args = [a if a is ABSENT else inner(a, _under(a, box)) for a in node.args]
    return get(node.op).term(*args, **dict(node.attrs))


def _under(operand: Node, box: Box) -> Box:
    """The part of an operand, aligned at the right, that is broadcast to `box`."""
    own = sizes(operand)
    return tuple((0, 1) if n == 1 else interval for n, interval in zip(own, box[len(box) - len(own) :], strict=True))


def _expand(inner: Restriction, node: Node, box: Box) -> Node:
    (x,) = node.args
    part = inner(x, _under(x, box))
    shape = [b - a for a, b in box]
    return part if list(sizes(part)) == shape else term("expand", part, shape=shape)


# ---------------------------------------------------------------- windows


def _needed(n: int, interval: Interval, size: int, stride: int, dilation: int, low: int) -> tuple[Interval, int, int]:
    """Which of `n` positions the windows of an interval see, and how much padding before and after. With nothing but padding, one
    position is cropped away again by negative pads."""
    first = interval[0] * stride - low
    last = (interval[1] - 1) * stride - low + (size - 1) * dilation + 1
    start, stop = min(max(first, 0), n - 1), max(min(last, n), 1)
    return (start, stop), start - first, last - stop


def _windows(
    node: Node, box: Box, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> tuple[list[Interval], list[int], list[int]]:
    rows = zip(sizes(node.args[0])[2:], box[2:], kernel, strides, node.attr("dilations"), pads, strict=False)
    found = [_needed(*row) for row in rows]
    return [f[0] for f in found], [f[1] for f in found], [f[2] for f in found]


def _conv(inner: Restriction, node: Node, box: Box) -> Node:
    """Pads become an explicit `pad` of what is cut, so that corrections at different borders have one shape."""
    x, w, *bias = node.args
    groups, rows = node.attr("group"), box[1]
    out, each = sizes(w)[0] // groups, sizes(w)[1]
    first, last = rows[0] // out, -(-rows[1] // out)
    if last - first > 1 and (rows[0] % out or rows[1] % out):
        aligned = (first * out, last * out)
        return cut(inner(node, (box[0], aligned, *box[2:])), _within(box, 1, aligned))
    around, low, high = _windows(node, box, sizes(w)[2:], node.attr("strides"), node.attr("pads"))
    part = padded(inner(x, (box[0], (first * each, last * each), *around)), (0, 0, *low), (0, 0, *high))
    kernel = inner(w, (rows, *whole(w)[1:]))
    shift = [inner(b, (rows,)) for b in bias]
    attrs = {**dict(node.attrs), "pads": (0,) * (2 * len(low)), "group": last - first}
    return term("conv", part, kernel, *shift, **attrs)


def _within(box: Box, axis: int, around: Interval) -> Box:
    """`box` seen from a box that is `around` along one axis and the same along the others."""
    moved = [(0, b - a) for a, b in box]
    moved[axis] = (box[axis][0] - around[0], box[axis][1] - around[0])
    return tuple(moved)


def _average_pool(inner: Restriction, node: Node, box: Box) -> Node:
    """Pads stay pads: whether they count is the operator's affair. What was `extra` stays that."""
    attrs: dict[str, Any] = dict(node.attrs)
    n = len(attrs["kernel"])
    around, low, high = _windows(node, box, attrs["kernel"], attrs["strides"], attrs["pads"])
    if min(low + high) < 0:
        raise Unsupported("average_pool over nothing but padding has no restriction")
    padding = [min(h, p) for h, p in zip(high, attrs["pads"][n:], strict=True)]
    extra = [h - p for h, p in zip(high, padding, strict=True)]
    part = inner(node.args[0], (*box[:2], *around))
    return term("average_pool", part, **{**attrs, "pads": (*low, *padding), "extra": extra})


# ---------------------------------------------------------------- products and folds


def _matmul(inner: Restriction, node: Node, box: Box) -> Node:
    a, b = node.args
    if min(len(sizes(a)), len(sizes(b))) < 2:
        raise Unsupported("a product with a vector has no restriction; make it a matrix")
    *batch, rows, columns = box
    left, right = (_under(x, (*batch, (0, 1), (0, 1)))[:-2] for x in (a, b))
    return term("matmul", inner(a, (*left, rows, whole(a)[-1])), inner(b, (*right, whole(b)[-2], columns)))


def _reduce(inner: Restriction, node: Node, box: Box) -> Node:
    (x,) = node.args
    axes, kept = node.attr("axes"), list(box)
    around = []
    for i, n in enumerate(sizes(x)):
        own = kept.pop(0) if node.attr("keepdims") or i not in axes else (0, n)
        around.append((0, n) if i in axes else own)
    return get(node.op).term(inner(x, tuple(around)), **dict(node.attrs))


# ---------------------------------------------------------------- positions


def _slice(inner: Restriction, node: Node, box: Box) -> Node:
    (x,) = node.args
    around, starts, ends = list(box), [], []
    axes, steps = node.attr("axes"), node.attr("steps")
    for axis, start, step in zip(axes, node.attr("starts"), steps, strict=True):
        first, last = (int(start) + i * step for i in (box[axis][0], box[axis][1] - 1))
        low, high = min(first, last), max(first, last) + 1
        around[axis] = (low, high)
        starts.append(0 if step > 0 else high - low - 1)
        ends.append(high - low if step > 0 else -1)
    part = inner(x, tuple(around))
    return part if set(steps) <= {1} else term("slice", part, starts=starts, ends=ends, axes=axes, steps=steps)


def _pad(inner: Restriction, node: Node, box: Box) -> Node:
    (x,), pads = node.args, [int(p) for p in node.attr("pads")]
    if node.attr("mode") != "constant":
        raise Unsupported(f"pad of mode {node.attr('mode')} has no restriction")
    found = [_needed(n, interval, 1, 1, 1, low) for n, interval, low in zip(sizes(x), box, pads, strict=False)]
    part = inner(x, tuple(f[0] for f in found))
    return padded(part, [f[1] for f in found], [f[2] for f in found], node.attr("value"))


def _concat(inner: Restriction, node: Node, box: Box) -> Node:
    axis, start, parts = node.attr("axis"), 0, []
    for x in node.args:
        n = sizes(x)[axis]
        low, high = max(box[axis][0] - start, 0), min(box[axis][1] - start, n)
        if low < high:
            parts.append(inner(x, (*box[:axis], (low, high), *box[axis + 1 :])))
        start += n
    return join(parts, axis)


def _item(inner: Restriction, node: Node, box: Box) -> Node:
    (parts,) = node.args
    if parts.op != "split":
        raise Unsupported(f"a part of {parts.op} has no restriction")
    axis = parts.attr("axis")
    start = sum(int(n) for n in parts.attr("split")[: node.attr("index")])
    return inner(parts.args[0], (*box[:axis], (box[axis][0] + start, box[axis][1] + start), *box[axis + 1 :]))


def _transpose(inner: Restriction, node: Node, box: Box) -> Node:
    perm = node.attr("perm")
    around = tuple(box[perm.index(i)] for i in range(len(perm)))
    return term("transpose", inner(node.args[0], around), perm=perm)


def _reshape(inner: Restriction, node: Node, box: Box) -> Node:
    """The smallest boxes of both shapes that hold the same elements; what is too much is cut away from the result. A range that crosses
    rows of the operand is its first row, whole rows and its last row, beside each other."""
    (x,) = node.args
    around, result = list(whole(x)), list(box)
    for old, new in regrouped_runs(sizes(x), sizes(node)):
        shapes = [sizes(x)[i] for i in old], [sizes(node)[i] for i in new]
        left, right = _matching(*shapes, [box[i] for i in new])
        if right != tuple(box[i] for i in new):
            for at, cuts in _rows(*shapes, [box[i] for i in new]):
                ends = pairwise((box[new[at]][0], *cuts, box[new[at]][1]))
                return join([inner(node, (*box[: new[at]], e, *box[new[at] + 1 :])) for e in ends], new[at])
        for i, interval in zip(old, left, strict=True):
            around[i] = interval
        for i, interval in zip(new, right, strict=True):
            result[i] = interval
    part = term("reshape", inner(x, tuple(around)), shape=[b - a for a, b in result])
    return cut(part, tuple((a - c, b - c) for (a, b), (c, _) in zip(box, result, strict=True)))


def _rows(old: Sequence[int], new: Sequence[int], box: Sequence[Interval]) -> Iterator[tuple[int, list[int]]]:
    """For dims whose interval crosses rows of the other shape, the longest rows first: where the first ends and the last begins."""
    for row in (prod(old[i:]) for i in range(1, len(old))):
        for at, (a, b) in enumerate(box):
            step, rest = divmod(row, prod(new[at + 1 :]))
            if rest or step <= 1:
                continue
            first, last = a + -a % step, b - b % step
            if cuts := sorted({c for c in (first, last) if a < c < b}):
                yield at, cuts


def _matching(old: Sequence[int], new: Sequence[int], box: Sequence[Interval]) -> tuple[Box, Box]:
    right: Box = tuple(box)
    while True:
        left = _enclosing(new, right, old)
        if prod(b - a for a, b in left) == prod(b - a for a, b in right):
            return left, right
        right = _enclosing(old, left, new)


def _enclosing(shape: Sequence[int], box: Box, other: Sequence[int]) -> Box:
    """The smallest box of another shape that has all elements of a box of `shape`."""
    flat = np.zeros([1] * len(shape), np.int64)
    for axis, (a, b) in enumerate(box):
        at = np.arange(a, b) * prod(shape[axis + 1 :])
        flat = flat + at.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    places = np.unravel_index(flat.reshape(-1), tuple(other)) if other else ()
    return tuple((int(p.min()), int(p.max()) + 1) for p in places)


Rule = Callable[[Restriction, Node, Box], Node]
RULES: dict[str, Rule] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "neg", "cast"), _elementwise),
    **dict.fromkeys(("reduce_sum", "reduce_mean"), _reduce),
    "expand": _expand,
    "conv": _conv,
    "average_pool": _average_pool,
    "matmul": _matmul,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "item": _item,
    "transpose": _transpose,
    "reshape": _reshape,
}
