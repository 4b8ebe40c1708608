"""Pixels of images with channels last: the pixels of the data that those of the result read through
a kernel which moves along rows and columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from taso_mirage.emit.statements import Statement, group, let, v
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.mugraph import product_factor, usual_size
from taso_mirage.ir.terms import Node


def first_seen(node: Node) -> Iterator[Statement]:
    """Statements for the image of each `pixel` of the result, and for the row `top` and the column
    `left` of the data that the kernel's first element reads."""
    high, wide = (product_factor(n) for n in node.shape[1:3])
    (down, right), (above, before, *_) = node.attr("strides"), node.attr("pads")
    yield let("image", v.pixel // group(dim_product(node.shape[1:3])))
    yield let("top", v.pixel // wide % high * down - above)
    yield let("left", v.pixel % wide * right - before)


def seen_pixels(node: Node, kernel: Sequence[int], pixels: int) -> int:
    """The number of pixels of the data that so many neighbours of the result read, each counted
    once where rows of the kernel overlap."""
    wide = min(pixels, usual_size(node.shape[2]))
    (down, right), (i, j) = node.attr("strides"), node.attr("dilations")
    lines = -(-pixels // wide) * down + (kernel[0] - 1) * i
    return min(prod(kernel) * pixels, int(lines * (wide * right + (kernel[1] - 1) * j)))
