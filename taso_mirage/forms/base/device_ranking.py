"""MuGraphs of one term, ranked by the model of a device."""

from __future__ import annotations

from collections.abc import Iterable

from taso_mirage.devices.device import Device
from taso_mirage.emit import triton
from taso_mirage.emit.estimates import ranked
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.mugraph.search import FoundMuGraph
from taso_mirage.verdicts import Evidence


def ranked_mugraphs(
    verified: Iterable[tuple[Node, Evidence]], goal: Graph, device: Device, most: int
) -> list[FoundMuGraph]:
    """At most `most` of the muGraphs that have a form in Triton, the fastest first."""
    found: list[FoundMuGraph] = []
    for node, evidence in verified:
        made = Graph(goal.inputs, (node,))
        try:
            ((seconds, _),) = ranked([triton.program(made)], device)
        except Unsupported:
            continue
        found.append(FoundMuGraph(made, goal, seconds, device.name, evidence))
    return sorted(found, key=lambda each: each.seconds)[:most]
