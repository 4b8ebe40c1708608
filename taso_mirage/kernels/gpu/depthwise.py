"""Convolutions of each channel alone, in single precision, as kernels for a GPU.

Nothing in them is a product of matrices, and memory bounds them: a kernel of their own reads an
image once, has several results for each load, and computes the epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.kernels.codegen.gpu.axes import power_of_two
from taso_mirage.kernels.gpu.followed import FollowedConvolution, small_sides

LANES = (128, 256, 512, 1024)
"""Channels times positions of a block."""
ROWS = (1, 2, 4, 8)
"""Results of a position, one below the other."""


@dataclass(frozen=True, slots=True)
class DepthwiseConvolution(FollowedConvolution):
    """A goal that is a `depthwise_conv`: (n,c,h,w), (m*c,1,i,j), and its epilogue."""

    def blocks(self) -> Iterator[tuple[int, ...]]:
        """The block sizes with few lanes beyond a plane; of small planes a block has several
        channels."""
        *outer, row = map(int, self.node.shape[2:])
        high, channels = outer[-1] if outer else 1, int(self.node.shape[1])
        for rows, lanes in product(ROWS, LANES):
            if rows > 1 and rows >= 2 * high:
                continue
            positions = min(power_of_two(-(-high // rows) * row), lanes)
            yield min(lanes // positions, power_of_two(channels)), positions, rows

    def _small_operands(self) -> tuple[Node, Node]:
        x, w = self.node.args[:2]
        kernel = tuple(map(int, w.shape[2:]))
        channels, each = min(int(x.shape[1]), 2), int(w.shape[0]) // int(x.shape[1])
        image = variable("x", Tensor("float32", (2, channels, *small_sides(self.node, kernel))))
        return image, variable("w", Tensor("float32", (channels * each, *w.shape[1:])))
