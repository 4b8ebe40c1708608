"""The axes of a convolution: how the kernel moves along them, and which of its elements a result
uses; and, of images with channels last, the pixels that those of the result read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod

from taso_mirage.emit.statements import Expression, ExpressionLike, Statement, expression, group, let, tl, v
from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.ir.mugraph import product_factor, usual_size
from taso_mirage.ir.terms import Node


@dataclass(frozen=True, slots=True)
class ConvolvedAxis:
    """One axis of an image: sizes of the data, of the result and of the kernel, and how the kernel
    moves along it."""

    size: int
    result: int
    kernel: int
    stride: int
    pad: int
    dilation: int
    transposed: bool = False

    @property
    def phases(self) -> int:
        """The number of kinds of results, by the elements of the kernel that they use."""
        return self.stride if self.transposed else 1

    @property
    def products(self) -> list[list[tuple[int, int]]]:
        """For each phase of a transposed convolution the elements of the kernel that its results
        use, and the positions in the data, counted back; none for phases that the dilation leaves
        out."""
        rows = [[(k, k * self.dilation - phase) for k in range(self.kernel)] for phase in range(self.phases)]
        return [[(k, n // self.stride) for k, n in row if n % self.stride == 0] for row in rows]

    @property
    def taps(self) -> int:
        """The largest number of elements of the kernel that a result uses."""
        return max(map(len, self.products)) if self.transposed else self.kernel

    @property
    def origin(self) -> int:
        """The largest distance back in the data to which a result reads."""
        return max(back for row in self.products for _, back in row) if self.transposed else self.pad

    @property
    def positions(self) -> int:
        """The largest number of results of a phase."""
        return (self.result - 1 + self.pad) // self.stride + 1 if self.transposed else self.result

    def seen(self, at: Expression, tap: ExpressionLike, phase: ExpressionLike = 0) -> Expression:
        """The place in the data that a position reads for an element of the kernel; in a transposed
        convolution the elements of its phase are counted back."""
        if not self.transposed:
            return (at * self.stride if self.stride != 1 else at) - self.pad + expression(tap) * self.dilation
        if self.dilation == 1:
            return at - tap
        first = (self._first(phase) * self.dilation - phase) // self.stride
        return at - first - expression(tap) * (self.dilation // self._common)

    def element(self, phase: ExpressionLike, tap: ExpressionLike) -> Expression:
        """The element of the kernel."""
        if self.phases == 1:
            return expression(tap)
        first = phase if self.dilation == 1 else self._first(phase)
        return group(expression(first) + expression(tap) * (self.stride // self._common))

    def taps_of(self, phase: ExpressionLike) -> Expression:
        """The number of elements of the kernel that a phase uses."""
        if not self.transposed or all(len(row) == self.taps for row in self.products):
            return expression(self.taps)
        apart = self.stride // self._common
        last = self.kernel + apart - 1
        if self.dilation == 1:
            return group((last - expression(phase)) // apart)
        there = (last - self._first(phase)) // apart
        return tl.where((expression(phase) % self._common).equals(0), there, 0)

    @property
    def _common(self) -> int:
        """The common divisor of stride and dilation: one phase in so many has products."""
        return gcd(self.stride, self.dilation)

    def _first(self, phase: ExpressionLike) -> Expression:
        """The first element k of the kernel that a phase uses: k * dilation is the phase, modulo
        the stride."""
        apart = self.stride // self._common
        inverse = pow(self.dilation // self._common, -1, apart) if apart > 1 else 0
        return group(expression(phase) // self._common * inverse % apart)

    def shifts(self, shared: int) -> list[list[tuple[int, int]]]:
        """For each phase of a row its products with the elements of the kernel, by their numbers,
        with the positions by which they are shifted."""
        if not self.transposed:
            return [[(j, j * self.dilation) for j in range(shared)]]
        return [[(k, self.origin - back) for k, back in row] for row in self.products]

    def made(self, at: ExpressionLike, phase: ExpressionLike) -> Expression:
        """The place in the result."""
        return expression(at) * self.stride + phase - self.pad if self.transposed else expression(at)


def convolved_axes(node: Node, kernel: Sequence[Dim], transposed: bool = False) -> list[ConvolvedAxis]:
    """The three axes of a convolution with this kernel; missing axes have size 1."""
    x, pads = node.args[0], node.attr("pads")[: len(kernel)]
    rows = zip(*(x.shape[2:], node.shape[2:], kernel, node.attr("strides"), pads, node.attr("dilations")), strict=True)
    found = [ConvolvedAxis(int(n), int(m), int(k), s, p, d, transposed) for n, m, k, s, p, d in rows]
    return [*[ConvolvedAxis(1, 1, 1, 1, 0, 1)] * (3 - len(kernel)), *found]


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
