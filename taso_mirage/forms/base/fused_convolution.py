"""Goals of one convolution in single precision, with channels first as in models, and an
elementwise epilogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from taso_mirage.devices.device import Device
from taso_mirage.emit.gpu.forms import GpuProgram
from taso_mirage.forms.base.device_ranking import ranked_mugraphs
from taso_mirage.forms.base.form import Form, ModelTerms, own_terms
from taso_mirage.forms.base.single_precision import FusedKind
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.mugraph.search import FoundMuGraph
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import retyped
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size
from taso_mirage.verdicts import Evidence, Failure

BEST = 12
"""The number of muGraphs that are compiled and run."""


@dataclass(frozen=True, slots=True)
class FusedConvolution(ABC):
    """A goal of such a term; its muGraphs differ only in block sizes."""

    node: Node
    slack = 1.0
    """The largest slow-down of the kernel alone, relative to the runtime."""
    large, once, joins = True, True, False

    @property
    def together(self) -> str:
        """A name for goals that are tried in a model together: its operator."""
        return self.node.op

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [self.node.args[1], *[each for each in self.node.args[2:] if is_of_channels(each, self.node)]]

    def mugraph(self, block: tuple[int, ...]) -> Node:
        """The term with blocks of this size."""
        return term(self.node.op, *self.node.args, **{**dict(self.node.attrs), "block": block})

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

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of `graph`, from which this goal was read; the fastest by the model
        of the device first."""
        evidence = _evidence(*self.small())
        if not isinstance(evidence, Evidence):
            return []
        return ranked_mugraphs(((self.mugraph(block), evidence) for block in self.blocks()), graph, device, BEST)

    @staticmethod
    @abstractmethod
    def alone(x: Node, w: Node, attrs: Mapping[str, Any]) -> Node:
        """The convolution of a term with these attributes in operators of ONNX, without its
        epilogue."""

    @abstractmethod
    def blocks(self) -> Iterable[tuple[int, ...]]:
        """Block sizes that may be fast."""

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

    def read(graph: Graph) -> FusedConvolution | None:
        one = len(graph.outputs) == 1 and graph.outputs[0].op == program.op
        return goal(graph.outputs[0]) if one else None

    return Form(
        program,
        read,
        own_terms(program.op),
        operators=lambda node: goal(node).operators(),
        terms=ModelTerms(kind.members, partial(kind.term, program.op)),
        alone=lambda node: goal.alone(node.args[0], node.args[1], dict(node.attrs)),
        in_parts=in_parts,
    )


def is_of_channels(x: Node, conv: Node) -> bool:
    """Whether an operand has a number for each channel of a result."""
    spatial = len(conv.shape) - 2
    return x.shape != conv.shape and x.shape[-spatial:] == (1,) * spatial


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


@lru_cache(maxsize=256)
def _evidence(small: FusedConvolution, goal: Graph) -> Evidence | Failure:
    (block, *_) = small.blocks()
    return verified_mugraph(Graph(goal.inputs, (small.mugraph(block),)), goal)
