"""The interface of a back end to goals with hand-written kernels over prepacked weights:
`cpu/prepared.py`, `gpu/convolutions.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from taso_mirage.ir.terms import Graph, Node
from taso_mirage.kernels.search import FoundMuGraph
from taso_mirage.targets.device import Device

Users = Callable[[Node], Sequence[Node]]
"""The terms of a model that read one."""
CandidateSites = Callable[[Sequence[Node], Users, Callable[[Node], bool], Mapping[str, int]], Iterator[list[Node]]]


class PreparedGoal(Protocol):
    """A goal of such a kernel."""

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""

    @property
    def slack(self) -> float:
        """How many times as slow as the runtime's its kernel may be alone."""

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of the goal `graph`, which this is, by the model the fastest
        first."""

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save."""


@dataclass(frozen=True, slots=True)
class PreparedKinds:
    """The kinds of goals of a back end.

    `candidates`: the terms of a model, in their order, that may be regions with such kernels at
    these sizes of its symbols, each with its epilogue. `read`: such a goal as the back end has it;
    None for others. `prepared`: the same of a goal whose inputs are these terms of a model, of
    which the weights are known. `convolutions`: whether a model's are to be as its kernels take
    them.
    """

    candidates: CandidateSites
    read: Callable[[Graph], PreparedGoal | None]
    prepared: Callable[[Graph, Sequence[Node]], PreparedGoal | None]
    convolutions: bool = False
