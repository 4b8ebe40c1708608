"""Convolutions in single precision as kernels for a GPU: with channels first, as models have them,
and what follows element by element.

A goal is one term, `shifted_conv`, whose muGraphs are the same in other blocks. Libraries multiply
in the layout with channels last, which an image takes two copies more to be in, and leave what
follows to a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.kernels.gpu.in_operators import in_operators, written
from taso_mirage.kernels.gpu.ranking import ranked_mugraphs
from taso_mirage.kernels.search import FoundMuGraph
from taso_mirage.kernels.verify import verified_mugraph
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size
from taso_mirage.targets.device import Device
from taso_mirage.verdicts import Evidence, Failure

BLOCK = (128, 64, 16, 1)
"""Of a goal, which is launched with none."""
TILES = ((128, 64, 16), (128, 64, 32), (128, 32, 16), (128, 128, 32), (256, 32, 16))
"""Pixels, columns and depth of a block."""
SHARED = 3
"""Elements of the kernel's row for one load, at most; with one for each load sums are wider."""
SUMS = 256 * 192
"""Elements of the sums of a block, at most."""
BEST = 12
"""So many muGraphs are compiled and run."""


@dataclass(frozen=True, slots=True)
class ShiftedConvolution:
    """A goal that is a `shifted_conv`: (n,c,h,w), (p,j,o,i,c), and what follows."""

    node: Node
    slack = 1.0
    """How many times as slow as the runtime's its kernel may be alone."""

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [self.node.args[1], *[each for each in self.node.args[2:] if is_of_channels(each, self.node)]]

    def mugraph(self, block: tuple[int, ...]) -> Node:
        """With blocks of this size."""
        return term("shifted_conv", *self.node.args, **{**dict(self.node.attrs), "block": block})

    def small(self) -> tuple[ShiftedConvolution, Graph]:
        """The convolution alone, with few channels and pixels, and its goal, in operators of ONNX:
        what follows is the same terms in both."""
        x, w, *_ = self.node.args
        attrs: dict[str, Any] = dict(self.node.attrs)
        count, strides, dilations = len(x.shape) - 2, attrs["strides"], attrs["dilations"]
        pads = [a + b for a, b in zip(attrs["pads"][:count], attrs["pads"][count:], strict=True)]
        rows = list(zip(map(int, (*w.shape[3:-1], w.shape[1])), dilations, pads, strides, strict=True))
        sides = [max((k - 1) * d + 1 + s - p, 1) for k, d, p, s in rows]
        sides = [max(-((k - p - 2) // s) + 1, 3) for k, _, p, s in rows] if attrs["extra"] else sides
        channels, columns = min(int(x.shape[1]), 2), min(int(w.shape[2]), 3)
        small_x = variable("x", Tensor("float32", (2, channels, *sides)))
        small_w = variable("w", Tensor("float32", (*w.shape[:2], columns, *w.shape[3:-1], channels)))
        y = variable("y", Tensor("float32", (1, *written(small_x, small_w, attrs).shape[1:])))
        found = ShiftedConvolution(term("shifted_conv", small_x, small_w, **{**attrs, "body": Graph((y,), (y,))}))
        return found, Graph((small_x, small_w), (*in_operators([found.node]),))

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of the goal `graph`, which this is; by the model the fastest
        first."""
        evidence = _evidence(*self.small())
        if not isinstance(evidence, Evidence):
            return []
        return ranked_mugraphs(((self.mugraph(block), evidence) for block in self._blocks()), graph, device, BEST)

    def _blocks(self) -> Iterator[tuple[int, ...]]:
        """Blocks whose sums fit, of no more columns than there are."""
        row, columns = int(self.node.args[1].shape[1]), int(self.node.args[1].shape[2])
        alone = bool(self.node.attr("strides")[-1] != 1)
        shared = (row,) if self.node.attr("extra") else (1,) if alone else (min(row, SHARED), 1)
        for (pixels, width, depth), together in product(TILES, dict.fromkeys(shared)):
            narrow = width == 32 or width < 2 * columns
            if narrow and pixels * width * together <= SUMS and not (width == 32 and columns > 64 and together < 4):
                yield pixels, width, depth, together

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: two copies of the image, and what passes between
        operators."""
        x, result = self.node.args[0], size(self.node.type)
        following = sum(1 for each in self.node.attr("body") if each.args)
        return float(2 * size(x.type) + 2 * result * (1 + following)) / device.bandwidth


def is_of_channels(x: Node, conv: Node) -> bool:
    """Whether an operand has a number for each channel of a result."""
    spatial = len(conv.shape) - 2
    return x.shape != conv.shape and x.shape[-spatial:] == (1,) * spatial


@lru_cache(maxsize=256)
def _evidence(small: ShiftedConvolution, goal: Graph) -> Evidence | Failure:
    return verified_mugraph(Graph(goal.inputs, (small.mugraph(BLOCK),)), goal)
