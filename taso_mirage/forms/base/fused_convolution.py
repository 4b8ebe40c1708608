"""Goals of one convolution in single precision, with channels first as in models, and an
elementwise epilogue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from taso_mirage.devices.device import Device
from taso_mirage.emit.gpu.forms import GpuProgram
from taso_mirage.forms.base.blocked_goal import BlockedGoal, blocked_form
from taso_mirage.forms.base.form import Form, ModelTerms
from taso_mirage.forms.base.single_precision import FusedKind
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.operators.interpret import retyped
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size


@dataclass(frozen=True, slots=True)
class FusedConvolution(BlockedGoal):
    """A goal that is such a term, whose muGraphs are the same in other blocks."""

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [self.node.args[1]]

    def small(self) -> tuple[FusedConvolution, Graph]:
        """The convolution alone, with few channels and pixels, and its goal, in operators of ONNX:
        the epilogue is the same terms in both."""
        x, w = self._small_operands()
        attrs: dict[str, Any] = dict(self.node.attrs)
        y = variable("y", Tensor("float32", (1, *self.alone(x, w, attrs).shape[1:])))
        found = type(self)(term(self.node.op, x, w, **{**attrs, "body": Graph((y,), (y,))}))
        return found, Graph((x, w), (found.operators(),))

    def operators(self) -> Node:
        """The convolution and its epilogue in operators of ONNX."""
        x, w, *others = self.node.args
        y, body = self.alone(x, w, dict(self.node.attrs)), self.node.attr("body")
        return retyped(body.outputs, dict(zip(body.inputs, (y, *others), strict=True)))[0]

    @staticmethod
    @abstractmethod
    def alone(x: Node, w: Node, attrs: Mapping[str, Any]) -> Node:
        """The convolution of a term with these attributes in operators of ONNX, without its
        epilogue."""

    @abstractmethod
    def _small_operands(self) -> tuple[Node, Node]:
        """An image and weights of few channels and pixels, with the kernel as it is."""

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: the bytes of the image that libraries move more than
        once, and those that pass between operators."""
        x, result = self.node.args[0], size(self.node.type)
        following = sum(1 for each in self.node.attr("body") if each.args)
        return float(2 * size(x.type) + 2 * result * (1 + following)) / device.bandwidth


def fused_form(goal: type[FusedConvolution], program: GpuProgram, kind: FusedKind, in_parts: bool = False) -> Form:
    """The form of convolutions with an epilogue, whose goals and operators are of these kinds."""

    return blocked_form(
        goal,
        program,
        ModelTerms(kind.members, partial(kind.term, program.op)),
        lambda node: goal.alone(node.args[0], node.args[1], dict(node.attrs)),
        in_parts,
    )


def small_sides(node: Node, kernel: tuple[int, ...]) -> list[int]:
    """Sizes of an image of which a convolution like this one has two pixels along each axis."""
    count, strides, dilations = len(kernel), node.attr("strides"), node.attr("dilations")
    pads = [a + b for a, b in zip(node.attr("pads")[:count], node.attr("pads")[count:], strict=True)]
    rows = zip(kernel, dilations, pads, strides, strict=True)
    return [max((k - 1) * d + 1 + s - p, 1) for k, d, p, s in rows]


def small_transposed(node: Node, kernel: tuple[int, ...]) -> list[int]:
    """Sizes of an image of which a transposed convolution like this one has a few results."""
    pads = node.attr("pads")
    around = [a + b for a, b in zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)]
    rows = zip(kernel, around, node.attr("strides"), node.attr("dilations"), strict=True)
    return [max(-(((k - 1) * d - p - 1) // s) + 1, 3) for k, p, s, d in rows]
