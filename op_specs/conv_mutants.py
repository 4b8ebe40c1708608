"""Mutants of convolutions (PET, OSDI'21, sections 3 and 4): compound steps around one.

Mutants claim no equality; `taso_mirage.search.partial` determines where they are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from op_specs.concat import concat
from op_specs.conv import conv as convolution
from taso_mirage.ir.terms import LEAVES, Node, constant
from taso_mirage.operators.ops import term
from taso_mirage.operators.slicing import cut, join, padded_term, sizes, whole


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution of fixed sizes, its parts named."""

    x: Node
    w: Node
    bias: tuple[Node, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int
    out: tuple[int, ...]

    @staticmethod
    def of(node: Node) -> Conv | None:
        if node.op != convolution.name or not all(isinstance(n, int) for a in node.args for n in a.shape):
            return None
        x, w, *bias = node.args
        return Conv(x, w, tuple(bias), **dict(node.attrs), out=sizes(node))

    def on(self, x: Node, w: Node | None = None, **changes: Any) -> Node:
        """The convolution of another image, with some attributes changed."""
        attrs = {"strides": self.strides, "pads": self.pads, "dilations": self.dilations, "group": self.group}
        return convolution.term(x, w or self.w, *self.bias, **{**attrs, **changes})

    @property
    def kernel(self) -> tuple[int, ...]:
        return sizes(self.w)[2:]

    @property
    def low(self) -> tuple[int, ...]:
        return self.pads[: len(self.kernel)]

    @property
    def high(self) -> tuple[int, ...]:
        return self.pads[len(self.kernel) :]


def _convs(node: Node, axes: int | None = None) -> Iterator[Conv]:
    """The convolution that a term is, if it is one (over so many axes)."""
    conv = Conv.of(node)
    if conv is not None and axes in (None, len(conv.kernel)):
        yield conv


def _first(node: Node, shape: Sequence[int]) -> Node:
    """`node` cut to a shape from the front, or padded to it at the end."""
    own = sizes(node)
    kept = cut(node, tuple((0, min(a, b)) for a, b in zip(own, shape, strict=True)))
    return padded_term(kept, (0,) * len(own), [max(b - a, 0) for a, b in zip(own, shape, strict=True)])


def _turned(node: Node, before: Sequence[int], perm: Sequence[int], after: Sequence[int]) -> Node:
    """PET's compound step: a reshape, a transpose and a reshape."""
    return term("reshape", term("transpose", term("reshape", node, shape=before), perm=perm), shape=after)


def _with(shape: Sequence[int], axis: int, *sizes: int) -> tuple[int, ...]:
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def _into_space(x: Node, f: int, axis: int) -> Node:
    """(n f, ..., w, ...) -> (n, ..., f w, ...): images beside each other."""
    n, *rest = sizes(x)
    perm = (0, *range(2, axis + 1), 1, *range(axis + 1, len(rest) + 2))
    merged = _with((n // f, *rest), axis, f * rest[axis - 1])
    return _turned(x, (n // f, f, *rest), perm, merged)


def _into_batch(x: Node, f: int, axis: int) -> Node:
    """(n, ..., f w, ...) -> (n f, ..., w, ...): an image as tiles."""
    shape = sizes(x)
    tile = shape[axis] // f
    perm = (0, axis, *range(1, axis), *range(axis + 1, len(shape) + 1))
    return _turned(x, _with(shape, axis, f, tile), perm, _with((shape[0] * f, *shape[1:]), axis, tile))


def _batch_into_space(axis: int, node: Node) -> Iterator[Node]:
    """The images of a batch side by side along an axis, all or in pairs.

    The result is wrong at the seams if a window extends over them, unless there are zeros between
    the images.
    """
    for conv in _convs(node):
        n, at = conv.out[0], axis - 2
        if at >= len(conv.kernel):
            return
        size, stride = sizes(conv.x)[axis], conv.strides[at]
        gap = max(conv.low[at], conv.high[at])
        wide = {size + each + -(size + each) % stride for each in (0, gap)}
        for f in dict.fromkeys((n, 2)):
            for w in sorted(wide if f > 1 and n % f == 0 else ()):
                merged = conv.on(_into_space(_first(conv.x, _with(sizes(conv.x), axis, w)), f, axis))
                even = _first(merged, _with(sizes(merged), axis, f * w // stride))
                yield _first(_into_batch(even, f, axis), conv.out)


def _space_into_batch(axis: int, node: Node) -> Iterator[Node]:
    """An image as two or four tiles. Tiles with their own pads are wrong at the seams; tiles that
    include all rows that their windows read overlap."""
    for conv in _convs(node):
        at = axis - 2
        for f in (2, 4) if at < len(conv.kernel) else ():
            if conv.out[axis] % f == 0:
                yield _overlapping(conv, f, axis)
            if conv.out[axis] % f == 0 and sizes(conv.x)[axis] % (f * conv.strides[at]) == 0:
                yield _into_space(conv.on(_into_batch(conv.x, f, axis)), f, axis)


def _overlapping(conv: Conv, f: int, axis: int) -> Node:
    at, n, tile = axis - 2, len(conv.kernel), conv.out[axis] // f
    low, high = (_with((0,) * (n + 2), axis, side[at]) for side in (conv.low, conv.high))
    x = padded_term(conv.x, low, high)
    step, span = tile * conv.strides[at], (conv.kernel[at] - 1) * conv.dilations[at] + 1
    ends = [(i * step, i * step + (tile - 1) * conv.strides[at] + span) for i in range(f)]
    tiles = join([cut(x, tuple(e if k == axis else own for k, own in enumerate(whole(x)))) for e in ends], 0)
    result = conv.on(tiles, pads=(*_with(conv.low, at, 0), *_with(conv.high, at, 0)))
    each = (conv.out[0], *_with(conv.out[1:], axis - 1, tile))
    perm = (*range(1, axis + 1), 0, *range(axis + 1, len(each) + 1))
    return _turned(result, (f, *each), perm, conv.out)


for _axis in (2, 3, 4):
    convolution.traits.mutant(f"batch into axis {_axis}")(partial(_batch_into_space, _axis))
for _axis in (2, 3, 4):
    convolution.traits.mutant(f"axis {_axis} into batch")(partial(_space_into_batch, _axis))


@convolution.traits.mutant("dilated to dense")
def _(node: Node) -> Iterator[Node]:
    """A dilated convolution as dense ones: every d-th row and column form an image."""
    conv = next(_convs(node, 2), None)
    if conv is None or conv.dilations == (1, 1) or conv.strides != (1, 1):
        return
    (d, e), low, high = conv.dilations, conv.low, conv.high
    n, c, h, w = sizes(conv.x)
    inside = (n, c, h + low[0] + high[0], w + low[1] + high[1])
    even = (n, c, inside[2] + -inside[2] % d, inside[3] + -inside[3] % e)
    x, pads = _first(padded_term(conv.x, (0, 0, *low), (0, 0, *high)), even), (0, 0, 0, 0)
    if not any(p % q for p, q in zip((*conv.pads, h, w), (d, e) * 3, strict=True)):
        x, even, pads = conv.x, (n, c, h, w), (low[0] // d, low[1] // e, high[0] // d, high[1] // e)
    i, j = even[2] // d, even[3] // e
    images = _turned(x, (n, c, i, d, j, e), (3, 5, 0, 1, 2, 4), (d * e * n, c, i, j))
    result = conv.on(images, pads=pads, dilations=(1, 1))
    _, o, i, j = sizes(result)
    yield _first(_turned(result, (d, e, n, o, i, j), (2, 3, 4, 0, 5, 1), (n, o, i * d, j * e)), conv.out)


@convolution.traits.mutant("strided to dense")
def _(node: Node) -> Iterator[Node]:
    """A strided convolution as a dense one at every position, followed by a slice; with a kernel of
    1 the slice comes first."""
    for conv in _convs(node):
        ones = (1,) * len(conv.strides)
        if conv.kernel == ones and not any(conv.pads):
            yield conv.on(_every(conv.x, conv.strides), strides=ones)
        yield _every(conv.on(conv.x, strides=ones), conv.strides)


def _every(x: Node, steps: Sequence[int]) -> Node:
    """Some positions of each axis after the second."""
    taken = [i for i, step in enumerate(steps) if step > 1]
    ends, axes = [sizes(x)[2 + i] for i in taken], [2 + i for i in taken]
    starts, by = (0,) * len(taken), [steps[i] for i in taken]
    return term("slice", x, starts=starts, ends=ends, axes=axes, steps=by) if taken else x


@convolution.traits.mutant("space to depth")
def _(node: Node) -> Iterator[Node]:
    """A strided convolution as a dense one over as many channels as a step has positions; odd sizes
    are padded."""
    conv = next(_convs(node, 2), None)
    if conv is None or conv.strides == (1, 1) or conv.dilations != (1, 1):
        return
    (s, t), (n, c, *_), (o, own, k, m) = conv.strides, sizes(conv.x), sizes(conv.w)
    a, b = -(-k // s), -(-m // t)
    h, w = conv.out[2] + a - 1, conv.out[3] + b - 1
    image = _first(padded_term(conv.x, (0, 0, *conv.pads[:2]), (0, 0, 0, 0)), (n, c, h * s, w * t))
    kernel = _first(conv.w, (o, own, a * s, b * t))
    deep = _turned(image, (n, c, h, s, w, t), (0, 1, 3, 5, 2, 4), (n, c * s * t, h, w))
    thick = _turned(kernel, (o, own, a, s, b, t), (0, 1, 3, 5, 2, 4), (o, own * s * t, a, b))
    yield conv.on(deep, thick, strides=(1, 1), pads=(0, 0, 0, 0))


@convolution.traits.mutant("fewer groups")
def _(node: Node) -> Iterator[Node]:
    """Neighbouring groups merged in pairs, in fours, or all, with zero weights across groups."""
    conv = Conv.of(node)
    for m in dict.fromkeys((2, 4, conv.group if conv else 1)):
        if conv is None or m == 1 or conv.group % m:
            continue
        o, c, *kernel = sizes(conv.w)
        rows = term("reshape", conv.w, shape=(conv.group // m, m, o // conv.group, 1, c, *kernel))
        blocks = term("mul", rows, _diagonal(m, conv))
        yield conv.on(conv.x, term("reshape", blocks, shape=(o, m * c, *kernel)), group=conv.group // m)


@convolution.traits.mutant("more groups")
def _(node: Node) -> Iterator[Node]:
    """The diagonal blocks of weights, for computed weights that are zero elsewhere."""
    conv = Conv.of(node)
    for m in (2, 4, 8, 16, 32):
        if conv is None or conv.w.op in (*LEAVES, "constant") or sizes(conv.w)[1] % m or sizes(conv.w)[0] % m:
            continue
        o, c, *kernel = sizes(conv.w)
        if o % (conv.group * m):
            continue
        split = (conv.group, m, o // (conv.group * m), m, c // m, *kernel)
        blocks = term("mul", term("reshape", conv.w, shape=split), _diagonal(m, conv))
        kept = term("reshape", term("reduce_sum", blocks, axes=(3,), keepdims=0), shape=(o, c // m, *kernel))
        yield conv.on(conv.x, kept, group=conv.group * m)


def _diagonal(m: int, conv: Conv) -> Node:
    """1 where a group meets itself, beside (groups, m, rows, m, channels, *kernel)."""
    return constant(np.eye(m).reshape(1, m, 1, m, 1, *(1 for _ in conv.kernel)), conv.w.dtype)


@convolution.traits.mutant("axes exchanged")
def _(node: Node) -> Iterator[Node]:
    """Height and width exchanged: 1 x k becomes k x 1."""
    conv = next(_convs(node, 2), None)
    if conv is None:
        return
    x, w = (term("transpose", each, perm=(0, 1, 3, 2)) for each in (conv.x, conv.w))
    a, b, c, d = conv.pads
    result = conv.on(x, w, strides=conv.strides[::-1], pads=(b, a, d, c), dilations=conv.dilations[::-1])
    yield term("transpose", result, perm=(0, 1, 3, 2))


@concat.traits.mutant("parallel to grouped", of=convolution.name)
def _(node: Node) -> Iterator[Node]:
    """Parallel convolutions as one with groups, or as a dense one over one input; smaller kernels
    are padded with zeros."""
    if node.attr("axis") != 1:
        return
    convs = [c for c in map(Conv.of, node.args) if c is not None]
    if len(convs) < 2 or len(convs) < len(node.args) or len({len(c.bias) for c in convs}) > 1:
        return
    largest = max(convs, key=lambda c: c.kernel)
    kernels = [k for k in (_widened(c, largest) for c in convs) if k is not None]
    if len(kernels) < len(convs) or any(c.group != 1 or c.strides != largest.strides for c in convs):
        return
    weights = join(kernels, 0)
    largest = replace(largest, bias=tuple([join([b for c in convs for b in c.bias], 0)] if largest.bias else []))
    if len({c.x for c in convs}) == 1:
        yield largest.on(largest.x, weights)
    if len({sizes(c.w)[:2] for c in convs}) == 1:
        yield largest.on(join([c.x for c in convs], 1), weights, group=len(convs))


def _widened(conv: Conv, other: Conv) -> Node | None:
    """The kernel padded with zeros to the size and pads of another one; None if that is not
    possible."""
    around = [q - p for p, q in zip(conv.pads, other.pads, strict=True)]
    fits = all(k + a + b == m for k, a, b, m in zip(conv.kernel, around[:2], around[2:], other.kernel, strict=True))
    if min(around) < 0 or not fits or conv.dilations != other.dilations:
        return None
    return padded_term(conv.w, (0, 0, *around[:2]), (0, 0, *around[2:]))
