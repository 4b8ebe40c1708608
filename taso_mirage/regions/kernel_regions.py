"""The regions of a model at given sizes, with their work: the list that `kernels` prints."""

from __future__ import annotations

from dataclasses import dataclass

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, is_part
from taso_mirage.operators.work import size, work
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.regions.fragments import fragments


@dataclass(frozen=True, slots=True)
class KernelRegion:
    """Equal pieces of a model: `graph` has canonical inputs and fixed sizes, `places` the names of
    the operators of each.

    `flops`, and the `bytes` that are moved where every operator runs alone, of one place; `least`:
    its inputs and outputs once.
    """

    graph: Graph
    places: tuple[tuple[str, ...], ...]
    flops: int
    bytes: int
    least: int

    @property
    def operators(self) -> list[Node]:
        """The region's terms, operands first; a term of several results is one."""
        return [n for n in self.graph if n.args and not is_part(n)]


def kernel_regions(model: Model, sizes: SymbolSizes) -> list[KernelRegion]:
    """The regions of a model with every symbol at its size, in the order of their first places;
    equal ones are one."""
    found = fragments(model, sizes).items()
    return [_region(graph, tuple([s.names for s in sites])) for graph, sites in found]


def _region(graph: Graph, places: tuple[tuple[str, ...], ...]) -> KernelRegion:
    counted = [work(n, {}) for n in graph if n.args and not is_part(n)]
    least = sum(size(n.type) for n in (*graph.inputs, *graph.outputs))
    return KernelRegion(graph, places, sum(w.flops for w in counted), sum(w.bytes for w in counted), least)
