"""Convolutions in single precision as kernels for a GPU: with channels first, as models have them,
and an epilogue element by element.

A goal is one term, `shifted_conv`, whose muGraphs are the same in other blocks. Libraries multiply
in the layout with channels last, for which an image takes two copies more, and leave the epilogue
to a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.kernels.gpu.followed import FollowedConvolution, small_sides

BLOCK = (128, 64, 16, 1)
"""The block of a goal, which is launched with none."""
TILES = ((128, 64, 16), (128, 64, 32), (128, 32, 16), (128, 128, 32), (256, 32, 16))
"""Pixels, columns and depth of a block."""
SHARED = 3
"""Elements of the kernel's row for one load, at most; with one for each load sums are wider."""
SUMS = 256 * 192
"""Elements of the sums of a block, at most."""


@dataclass(frozen=True, slots=True)
class ShiftedConvolution(FollowedConvolution):
    """A goal that is a `shifted_conv`: (n,c,h,w), (p,j,o,i,c), and its epilogue."""

    def blocks(self) -> Iterator[tuple[int, ...]]:
        """Blocks whose sums fit, of no more columns than there are."""
        row, columns = int(self.node.args[1].shape[1]), int(self.node.args[1].shape[2])
        alone = bool(self.node.attr("strides")[-1] != 1)
        shared = (row,) if self.node.attr("extra") else (1,) if alone else (min(row, SHARED), 1)
        for (pixels, width, depth), together in product(TILES, dict.fromkeys(shared)):
            narrow = width == 32 or width < 2 * columns
            if narrow and pixels * width * together <= SUMS and not (width == 32 and columns > 64 and together < 4):
                yield pixels, width, depth, together

    def _small_operands(self) -> tuple[Node, Node]:
        x, w, *_ = self.node.args
        kernel = tuple(map(int, (*w.shape[3:-1], w.shape[1])))
        sides = self._small_transposed(kernel) if self.node.attr("extra") else small_sides(self.node, kernel)
        channels, columns = min(int(x.shape[1]), 2), min(int(w.shape[2]), 3)
        image = variable("x", Tensor("float32", (2, channels, *sides)))
        return image, variable("w", Tensor("float32", (*w.shape[:2], columns, *w.shape[3:-1], channels)))

    def _small_transposed(self, kernel: tuple[int, ...]) -> list[int]:
        pads = self.node.attr("pads")
        around = [a + b for a, b in zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)]
        rows = zip(kernel, around, self.node.attr("strides"), self.node.attr("dilations"), strict=True)
        return [max(-(((k - 1) * d - p - 1) // s) + 1, 3) for k, p, s, d in rows]
