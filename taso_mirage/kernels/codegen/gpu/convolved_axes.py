"""The axes of a convolution: how the kernel goes along them, and which of its elements a result
sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import Node


@dataclass(frozen=True, slots=True)
class ConvolvedAxis:
    """One axis of an image: sizes of the data, of the result and of the kernel, and how the kernel
    goes along it."""

    size: int
    result: int
    kernel: int
    stride: int
    pad: int
    dilation: int
    transposed: bool = False

    @property
    def phases(self) -> int:
        """Kinds of results, by the elements of the kernel that they see."""
        return self.stride if self.transposed else 1

    @property
    def taps(self) -> int:
        """Elements of the kernel that a result sees, at most."""
        return -(-self.kernel // self.phases)

    @property
    def positions(self) -> int:
        """Results of a phase, at most."""
        return (self.result - 1 + self.pad) // self.stride + 1 if self.transposed else self.result

    def seen(self, at: str, tap: str) -> str:
        """The place in the data that a position sees through an element of the kernel: of a
        transposed convolution the elements of its phase are counted back."""
        if self.transposed:
            return f"{at} - {tap}"
        scaled = f"{at} * {self.stride}" if self.stride != 1 else at
        return f"{scaled} - {self.pad} + {tap} * {self.dilation}"

    def element(self, phase: str, tap: str) -> str:
        """The element of the kernel."""
        return f"({phase} + {tap} * {self.stride})" if self.phases > 1 else tap

    def shifts(self, shared: int) -> list[list[tuple[int, int]]]:
        """For each phase of a row its products with so many elements of the kernel, by their
        numbers, with the positions by which they are shifted."""
        if not self.transposed:
            return [[(j, j * self.dilation) for j in range(shared)]]
        return [
            [(k, self.taps - 1 - m) for m, k in enumerate(range(phase, self.kernel, self.stride))]
            for phase in range(self.phases)
        ]

    def made(self, at: str, phase: str) -> str:
        """The place in the result."""
        return f"{at} * {self.stride} + {phase} - {self.pad}" if self.transposed else at


def convolved_axes(node: Node, kernel: Sequence[Dim], transposed: bool = False) -> list[ConvolvedAxis]:
    """The three axes of a convolution with this kernel; those that it lacks are of size 1."""
    x, pads = node.args[0], node.attr("pads")[: len(kernel)]
    rows = zip(*(x.shape[2:], node.shape[2:], kernel, node.attr("strides"), pads, node.attr("dilations")), strict=True)
    found = [ConvolvedAxis(int(n), int(m), int(k), s, p, d, transposed) for n, m, k, s, p, d in rows]
    if transposed and any(each.dilation != 1 for each in found):
        raise Unsupported("a transposed convolution with dilations")
    return [*[ConvolvedAxis(1, 1, 1, 1, 0, 1)] * (3 - len(kernel)), *found]
