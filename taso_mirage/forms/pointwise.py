"""Convolutions with a kernel of one element as kernels for a CPU with a matrix unit, with the
elementwise operators before and behind them.

The image stays as a model has it, with channels first: weights times pixels are a product whose
columns are pixels. So two such convolutions, or one and a convolution by minimal filtering
(`winograd.py`), need no layout changes between them, and an elementwise function of the data takes
no memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from taso_mirage.devices.device import Device
from taso_mirage.devices.machine import cores, has_matrix_unit
from taso_mirage.emit.cpu.elementwise import has_cpp
from taso_mirage.emit.cpu.prepared import CpuProgram, TemplateInstance
from taso_mirage.forms.base.convolution_goal import ConvolutionGoal, convolution_operands, read_convolution_goal
from taso_mirage.forms.base.epilogues import around, of_results_or_channels
from taso_mirage.forms.base.form import Form, IsWanted, Users
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.work import size
from taso_mirage.verdicts import Evidence, Failure

OPERATOR = "pointwise"
SIDE = 32
"""The channels and the pixels of two tiles of the matrix unit by two."""
PIXELS = 64, 256
"""The numbers of pixels of a block: with few, their parts stay in a near cache; with many, the
weights are read less often."""
TASKS = 4
"""The smallest number of blocks for every core, if the channels can be cut."""


@dataclass(frozen=True, slots=True)
class PointwiseConvolution(ConvolutionGoal):
    """A goal that is such a convolution."""

    slack = 0.8
    """The largest time of the kernel alone, as a multiple of the runtime's time. Alone, the
    runtime's convolution changes the layout of its data and of its results, which it does not in a
    model between two of them."""
    large, once, joins, by_values = True, False, False, False
    together = "pointwise"

    def mugraph(self, block: tuple[int, int]) -> Node:
        """The term with this block size."""
        return self.operator(OPERATOR, block=block)

    def small(self) -> tuple[PointwiseConvolution, tuple[Node, ...]]:
        """This convolution with few channels and pixels, without the functions around it, which are
        the same terms in the goal; and its leaves."""
        shapes = {"x": (2, 3, 2, 3), "w": (4, 3, 1, 1), "b": (4,), "z": (2, 4, 2, 3)}
        x, w, b, z = (
            ABSENT if getattr(self, name) is ABSENT else variable(name, Tensor("float32", shape))
            for name, shape in shapes.items()
        )
        leaves = tuple([leaf for leaf in (x, w, b, z) if leaf is not ABSENT])
        return PointwiseConvolution(x, w, b, z, self.pads, self.relu), leaves

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of `graph`, from which this goal was read; the model of the device
        gives all of them the same time."""
        evidence = _evidence(*self.small())
        if not isinstance(evidence, Evidence) or not has_matrix_unit():
            return []
        made = [Graph(graph.inputs, (self.mugraph(block),)) for block in self._blocks()]
        return [FoundMuGraph(each, graph, self.flops / device.flops, device.name, evidence) for each in made]

    def _blocks(self) -> Iterator[tuple[int, int]]:
        images, pixels = self.x.shape[0], prod(map(int, self.x.shape[2:]))
        for each in [n for n in PIXELS if n < 2 * pixels] or PIXELS[:1]:
            blocks, parts = int(images) * -(-pixels // each), 1
            while blocks * parts < TASKS * cores() and 2 * parts * SIDE <= int(self.w.shape[0]):
                parts *= 2
            yield each, parts

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: a third of those of the arithmetic, and the movement of
        the data of a function before it."""
        before = 0.0 if self.precedes is None else 2 * size(self.x.type) / device.bandwidth
        return self.flops / 3 / device.flops + before


def is_pointwise(node: Node) -> bool:
    """Whether a term of a model is one that there are kernels for on this machine: its weights are
    known, and its channels and pixels fill tiles."""
    if not isinstance(node.type, Tensor) or node.dtype != "float32" or len(node.tensor.shape or ()) != 4:
        return False
    found = _pointwise(node) if has_matrix_unit() else None
    if found is None or not all(isinstance(n, int) for n in found.x.shape[1:]):
        return False
    sides = min(map(int, found.w.shape[:2])), prod(map(int, found.x.shape[2:]))
    return min(sides) >= SIDE and all(is_weight(a) for a in node.args[1:])


def _pointwise(node: Node) -> PointwiseConvolution | None:
    """A convolution of one group with a kernel of one element and without pads; None for others."""
    names = convolution_operands(node)
    if names is None or names["w"].shape[2:] != (1, 1) or any(names["pads"]) or names["group"] != 1:
        return None
    operands = names["x"], names["w"], names.get("b", ABSENT), ABSENT
    return PointwiseConvolution(*operands, names["pads"], False)


def pointwise_convolution(goal: Graph) -> PointwiseConvolution | None:
    """Read a goal of such a convolution and its epilogue; None for other goals."""
    return read_convolution_goal(goal, _pointwise)


@lru_cache(maxsize=64)
def _evidence(made: PointwiseConvolution, leaves: tuple[Node, ...]) -> Evidence | Failure:
    """At small sizes: the algebra depends on none of them."""
    return verified_mugraph(Graph(leaves, (made.mugraph((SIDE, 1)),)), Graph(leaves, (made.goal(),)))


# ---------------------------------------------------------------- the program


def _instance(node: Node) -> TemplateInstance:
    x, w = node.args[:2]
    pixels, parts = node.attr("block")
    images, channels, *sides = x.shape
    free = isinstance(images, Symbolic)
    return TemplateInstance(
        headers=("room.h", "matrix_unit.h", "pointwise.h"),
        name="Pointwise",
        block=pixels,
        sizes=(1 if free else images, channels, prod(map(int, sides)), w.shape[0], pixels, parts),
        layout=(),
        switches=(bool(node.attr("relu")),),
        fixed=x.shape[1:],
        columns=2,
        results=f"Pixels<{w.shape[0]}>",
        times=images if free else 1,
        takes_prologue=True,
    )


def _members(node: Node, users: Users, wanted: IsWanted, sizes: Mapping[str, int]) -> list[Node]:
    if not is_pointwise(node):
        return []
    return around(node, users, wanted, of_results_or_channels, has_cpp, is_pointwise)


FORM = Form(CpuProgram(OPERATOR, _instance), pointwise_convolution, _members)
