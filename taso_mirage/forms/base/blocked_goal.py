"""Goals that are one term of a form for a GPU, whose muGraphs are the same term in other blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from taso_mirage.devices.device import Device
from taso_mirage.emit import triton
from taso_mirage.emit.estimates import ranked
from taso_mirage.emit.gpu.forms import GpuProgram
from taso_mirage.errors import Unsupported
from taso_mirage.forms.base.form import Form, ModelTerms, own_terms
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.ops import term
from taso_mirage.verdicts import Evidence, Failure

BEST = 12
"""The number of muGraphs that are compiled and run."""


@dataclass(frozen=True, slots=True)
class BlockedGoal(ABC):
    """A goal that is such a term (`base.form.PreparedGoal`)."""

    node: Node
    slack = 1.0
    large, once, joins, by_values = True, True, False, False

    @property
    def together(self) -> str:
        """A name for goals that are tried in a model together: its operator."""
        return self.node.op

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return []

    def mugraph(self, block: tuple[int, ...]) -> Node:
        """The term with blocks of this size."""
        return term(self.node.op, *self.node.args, **{**dict(self.node.attrs), "block": block})

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of `graph`, from which this goal was read; the fastest by the model
        of the device first."""
        evidence = _evidence(*self.small())
        if not isinstance(evidence, Evidence):
            return []
        return ranked_mugraphs(((self.mugraph(block), evidence) for block in self.blocks()), graph, device)

    @abstractmethod
    def small(self) -> tuple[BlockedGoal, Graph]:
        """A term of a few elements, and its goal, in operators of ONNX."""

    @abstractmethod
    def operators(self) -> Node:
        """The term in operators of ONNX."""

    @abstractmethod
    def blocks(self) -> Iterable[tuple[int, ...]]:
        """Sizes of blocks that may be fast."""

    @abstractmethod
    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save."""


@lru_cache(maxsize=256)
def _evidence(small: BlockedGoal, goal: Graph) -> Evidence | Failure:
    (block, *_) = small.blocks()
    return verified_mugraph(Graph(goal.inputs, (small.mugraph(block),)), goal)


def ranked_mugraphs(
    verified: Iterable[tuple[Node, Evidence]], goal: Graph, device: Device, most: int = BEST
) -> list[FoundMuGraph]:
    """At most `most` of the muGraphs of one term that have a form in Triton, the fastest by the
    model of the device first."""
    found: list[FoundMuGraph] = []
    for node, evidence in verified:
        made = Graph(goal.inputs, (node,))
        try:
            ((seconds, _),) = ranked([triton.program(made)], device)
        except Unsupported:
            continue
        found.append(FoundMuGraph(made, goal, seconds, device.name, evidence))
    return sorted(found, key=lambda each: each.seconds)[:most]


def blocked_form(
    goal: type[BlockedGoal],
    program: GpuProgram,
    terms: ModelTerms,
    alone: Callable[[Node], Node] | None = None,
    in_parts: bool = False,
) -> Form:
    """The form whose goals are of this class; see `Form`."""

    def read(graph: Graph) -> BlockedGoal | None:
        one = len(graph.outputs) == 1 and graph.outputs[0].op == program.op
        return goal(graph.outputs[0]) if one else None

    return Form(
        program,
        read,
        own_terms(program.op),
        operators=lambda node: goal(node).operators(),
        terms=terms,
        alone=alone,
        in_parts=in_parts,
    )
