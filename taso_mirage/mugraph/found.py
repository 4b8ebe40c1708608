"""A muGraph that a search found, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.terms import Graph
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.verification import AGAIN, read_tests, tests_json, verified_mugraph
from taso_mirage.system.files import write_file
from taso_mirage.verdicts import Evidence, Failure

if TYPE_CHECKING:
    from taso_mirage.emit.gpu.program import TritonProgram


@dataclass(frozen=True, slots=True)
class FoundMuGraph:
    """A muGraph that computes `goal`: its predicted seconds on `device`, and the evidence that it
    does."""

    graph: Graph
    goal: Graph
    seconds: float
    device: str
    evidence: Evidence
    warps: tuple[int, ...] = ()
    """The permitted numbers of warps of 32 threads in a block; empty for any."""
    free: Graph | None = None
    """The muGraph where some sizes are known only in a run."""
    named: Graph | None = None
    """The goal of `free`, if it moves elements; otherwise its labels give it at every size."""

    def as_json(self) -> dict[str, Any]:
        """A value for a checkpoint or a report, from which `of_json` makes the same."""
        found = {"graph": to_json(self.graph), "seconds": self.seconds, "device": self.device, "warps": self.warps}
        found |= {key: to_json(made) for key, made in (("free", self.free), ("named", self.named)) if made is not None}
        return found | {"evidence": tests_json(self.evidence)}

    @staticmethod
    def of_json(value: Mapping[str, Any], goal: Graph, own: bool = False) -> FoundMuGraph:
        """The muGraph of `as_json`; its inputs are the goal's. It is verified again, unless a
        process of this command has verified it just now (`own`).

        Raises InvalidOption where it computes something else.
        """
        evidence, graph = read_tests(value["evidence"]), from_json(value["graph"])
        if not own and isinstance(verified_mugraph(graph, goal, AGAIN), Failure):
            raise InvalidOption(
                "the checkpoint has a muGraph that does not compute the goal; name another file, or remove it"
            )
        return FoundMuGraph(
            graph,
            goal,
            value["seconds"],
            value["device"],
            evidence,
            tuple(value["warps"]),
            *[from_json(value[key]) if key in value else None for key in ("free", "named")],
        )

    def program(self) -> TritonProgram:
        """The Triton kernels with the warps asked for."""
        from taso_mirage.emit import triton

        made = triton.program(self.graph)
        if not self.warps:
            return made
        chosen = [min(self.warps, key=lambda w: abs(w - each.schedule.warps)) for each in made.launches]
        pairs = zip(made.launches, chosen, strict=True)
        return triton.program(self.graph, [replace(each.schedule, warps=warps) for each, warps in pairs])

    def generate_triton_program(self, path: Path | str) -> None:
        """Write a Python module with the Triton kernels and a function `launch` for torch
        tensors."""
        write_file(Path(path), self.program().source)


@dataclass
class KernelSearchStatistics:
    """Counts of the graphs and plans that a search considered."""

    classes: int = 0
    edges: int = 0
    wrong_edges: int = 0
    plans: int = 0
    unstable: int = 0
    tilings: int = 0
    tested: int = 0
    verified: int = 0
