"""Kernels of neighbouring regions as one: a norm, the products with weights that read it, and the
gate or sum behind them.

Each part keeps the muGraph that was found for it and reads the results of the others, so the whole
is right because its parts are. Values between parts stay in scratch memory, and the runtime starts
one node in place of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from taso_mirage.ir.dims import Dim, Symbolic
from taso_mirage.ir.model import Model
from taso_mirage.ir.mugraph import size_names
from taso_mirage.ir.terms import Graph, Node, substitute, users, variable
from taso_mirage.lowering.backend import Backend, Record
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel
from taso_mirage.regions.batches import region_members
from taso_mirage.regions.fragments import PRODUCTS, RegionSite

MOST = 24
"""The largest number of inputs of such a kernel."""


@dataclass(slots=True)
class Neighbours:
    """The regions of a model that have kernels, and which of them are neighbours."""

    model: Model
    kinds: Sequence[RegionKernel]
    kind: dict[RegionSite, RegionKernel] = field(init=False)
    """The kind of each place."""
    graphs: dict[RegionSite, Graph] = field(init=False)
    """The muGraph of each place."""
    order: dict[Node, int] = field(init=False)
    readers: Mapping[Node, Sequence[Node]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.model.nodes()
        self.order, self.readers = {node: i for i, node in enumerate(nodes)}, users(nodes)
        self.kind = {site: kind for kind in self.kinds for site in kind.sites}
        graphs = [from_json(kind.record["mugraph"]) for kind in self.kinds]
        self.graphs = {site: graph for kind, graph in zip(self.kinds, graphs, strict=True) for site in kind.sites}

    def together(self, backend: Backend) -> list[tuple[RegionKernel, list[RegionSite]]]:
        """The kinds that products with weights form with their neighbours, each with its places:
        the operands of such products first, then their readers."""
        found: dict[str, tuple[Record, list[RegionSite], list[RegionSite]]] = {}
        for parts in self._units():
            whole = self._whole(parts)
            record = join_records([(self.kind[each].record, each) for each in parts], whole)
            _, wholes, places = found.setdefault(repr(record), (record, [], []))
            wholes.append(whole)
            places += parts
        return [(self._kind(record, wholes, places, backend), places) for record, wholes, places in found.values()]

    def _units(self) -> list[list[RegionSite]]:
        """Groups of neighbouring places, in the order in which they run; each place is in one
        group."""
        units = {site: [site] for site in sorted(self.kind, key=self._place) if self._multiplies(site)}
        taken = set(units)
        for around in (self._before, self._after):
            for site, parts in units.items():
                for each in around(site):
                    if each not in taken and self._fits([*parts, each]):
                        parts.append(each)
                        taken.add(each)
        made: list[list[RegionSite]] = []
        for parts in units.values():
            last = next((each for each in made if self._reads(parts, each) and self._fits([*each, *parts])), None)
            if last is None:
                made.append(parts)
            else:
                last += parts
        return [sorted(parts, key=self._place) for parts in made if len(parts) > 1]

    def _place(self, site: RegionSite) -> int:
        return self.order[site.outputs[0]]

    def _multiplies(self, site: RegionSite) -> bool:
        goal = self.kind[site].prepares
        return goal is not None and goal.joins

    def _reads(self, parts: Sequence[RegionSite], others: Sequence[RegionSite]) -> bool:
        given = {o for each in others for o in each.outputs}
        return any(x in given for each in parts for x in each.inputs)

    def _before(self, site: RegionSite) -> list[RegionSite]:
        return [each for each in self.kind if self._reads([site], [each])]

    def _after(self, site: RegionSite) -> list[RegionSite]:
        return [each for each in self.kind if self._reads([each], [site])]

    def _fits(self, parts: Sequence[RegionSite]) -> bool:
        """Whether places can be one: they are few, with few inputs, agree on sizes, and read
        nothing that depends on their results."""
        given = {o for each in parts for o in each.outputs}
        read = dict.fromkeys(x for each in parts for x in each.inputs if x not in given)
        few = sum(map(self._multiplies, parts)) <= PRODUCTS and len(read) <= MOST
        return few and self._agree(parts) and not self._hangs(read, given)

    def _hangs(self, read: Iterable[Node], given: Set[Node]) -> bool:
        """Whether one of these terms depends on the results of parts; terms before all parts do
        not."""
        first = min(self.order[node] for node in given)
        left, seen = [node for node in read if self.order[node] >= first], set[Node]()
        while left:
            node = left.pop()
            if node in given:
                return True
            if node not in seen:
                seen.add(node)
                left += [arg for arg in node.args if self.order[arg] >= first]
        return False

    def _agree(self, parts: Sequence[RegionSite]) -> bool:
        """Whether each value has the same type in all kernels, each name is one size of the model,
        and, if one kernel has programs for several sizes, all have the same names."""
        types: dict[Node, object] = {}
        dims: dict[Dim, Dim] = {}
        names = set[tuple[str, ...]]()
        for site in parts:
            graph = self.graphs[site]
            names.add(tuple(sorted(size_names([x.shape for x in graph.inputs]))))
            for leaf, node in zip((*graph.inputs, *graph.outputs), (*site.inputs, *site.outputs), strict=True):
                if types.setdefault(node, leaf.type) != leaf.type:
                    return False
                pairs = [(n, dim) for n, dim in zip(leaf.shape, node.shape, strict=True) if isinstance(n, Symbolic)]
                if any(dims.setdefault(n, dim) != dim for n, dim in pairs):
                    return False
        return len(names) == 1 or not any(self.kind[each].record.get("before") for each in parts)

    def _whole(self, parts: Sequence[RegionSite]) -> RegionSite:
        """All parts as one place, whose results are those used outside."""
        inside = {node for each in parts for node in region_members(each)}
        given = [o for each in parts for o in each.outputs]
        read = dict.fromkeys(x for each in parts for x in each.inputs if x not in given)
        wanted = [o for o in given if o in self.model.graph.outputs or not inside.issuperset(self.readers.get(o, ()))]
        return RegionSite(tuple(read), tuple(wanted), tuple([name for each in parts for name in each.names]))

    def _kind(
        self, record: Record, wholes: Sequence[RegionSite], places: Sequence[RegionSite], backend: Backend
    ) -> RegionKernel:
        parts = [self.kind[each] for each in places[: len(places) // len(wholes)]]
        operators = tuple([name for part in parts for name in part.operators])
        goal = next((part.prepares for part in parts if part.prepares is not None), None)
        return RegionKernel(operators, tuple(wholes), record, backend.kernel(record), 0.0, goal)


def without(kinds: Sequence[RegionKernel], places: Sequence[RegionSite]) -> list[RegionKernel]:
    """The kinds without these places."""
    gone = set(places)
    left = [replace(kind, sites=tuple([s for s in kind.sites if s not in gone])) for kind in kinds]
    return [kind for kind in left if kind.sites]


# ---------------------------------------------------------------- muGraphs


def join_records(parts: Sequence[tuple[Record, RegionSite]], whole: RegionSite) -> Record:
    """The choices for some parts, operands first, as one choice for their joint place."""
    graphs = [from_json(record["mugraph"]) for record, _ in parts]
    sites = [site for _, site in parts]
    ranged = [{each["most"]: from_json(each["mugraph"]) for each in record.get("before", ())} for record, _ in parts]
    before = []
    for most in sorted({most for each in ranged for most in each}):
        own = [
            next((each[m] for m in sorted(each) if m >= most), last) for each, last in zip(ranged, graphs, strict=True)
        ]
        before.append({"mugraph": to_json(join_mugraphs(own, sites, whole)), "most": most})
    return {"mugraph": to_json(join_mugraphs(graphs, sites, whole)), "before": before}


def join_mugraphs(graphs: Sequence[Graph], sites: Sequence[RegionSite], whole: RegionSite) -> Graph:
    """muGraphs, each for its place in a model, as one muGraph for their joint place."""
    known: dict[Node, Node] = {}
    for graph, site in zip(graphs, sites, strict=True):
        for leaf, node in zip(graph.inputs, site.inputs, strict=True):
            known.setdefault(node, variable(f"i{len(known)}", leaf.tensor))
        mapping = {leaf: known[node] for leaf, node in zip(graph.inputs, site.inputs, strict=True)}
        known.update(zip(site.outputs, substitute(graph.outputs, mapping), strict=True))
    return Graph(tuple([known[x] for x in whole.inputs]), tuple([known[o] for o in whole.outputs]))
