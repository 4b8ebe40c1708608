"""Kernels of neighbouring regions as one: a norm, the products with weights that read it, and the
gate or sum behind them.

Each part keeps the muGraph that was found for it, and one reads what the other gives: so the whole
is right because its parts are. What lies between them stays in scratch memory, and the runtime
starts one node in place of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from taso_mirage.ir.dims import Dim
from taso_mirage.ir.model import Model
from taso_mirage.ir.mugraph import size_names
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, topological, users, variable
from taso_mirage.kernels.batches import region_members
from taso_mirage.kernels.checkpoint import from_json, to_json
from taso_mirage.kernels.cpu.linear import WeightProducts
from taso_mirage.kernels.regions import PRODUCTS, RegionSite
from taso_mirage.pipeline.fuse.trials import Fused
from taso_mirage.targets.lowering import Backend, Record

MOST = 24
"""Inputs of such a kernel, at most."""


@dataclass(slots=True)
class Neighbours:
    """The regions of a model that have kernels, and which of them lie beside each other."""

    model: Model
    kinds: Sequence[Fused]
    kind: dict[RegionSite, Fused] = field(init=False)
    """That of each place."""
    order: dict[Node, int] = field(init=False)
    readers: Mapping[Node, Sequence[Node]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.model.nodes()
        self.order, self.readers = {node: i for i, node in enumerate(nodes)}, users(nodes)
        self.kind = {spot: kind for kind in self.kinds for spot in kind.spots}

    def together(self, backend: Backend) -> list[tuple[Fused, list[RegionSite]]]:
        """The kinds that products with weights become with their neighbours, each with the places
        that it is made of: what such products read comes first, then what reads them."""
        found: dict[str, tuple[Record, list[RegionSite], list[RegionSite]]] = {}
        for parts in self._units():
            whole = self._whole(parts)
            record = joined_record([(self.kind[each].record, each) for each in parts], whole)
            if record is not None:
                _, wholes, places = found.setdefault(repr(record), (record, [], []))
                wholes.append(whole)
                places += parts
        return [(self._kind(record, wholes, places, backend), places) for record, wholes, places in found.values()]

    def _units(self) -> list[list[RegionSite]]:
        """Places that lie beside each other, in the order in which they run; each is in one."""
        units = {spot: [spot] for spot in sorted(self.kind, key=self._place) if self._multiplies(spot)}
        taken = set(units)
        for around in (self._before, self._after):
            for spot, parts in units.items():
                for each in around(spot):
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

    def _place(self, spot: RegionSite) -> int:
        return self.order[spot.outputs[0]]

    def _multiplies(self, spot: RegionSite) -> bool:
        return self.kind[spot].prepares is WeightProducts

    def _reads(self, parts: Sequence[RegionSite], others: Sequence[RegionSite]) -> bool:
        given = {o for each in others for o in each.outputs}
        return any(x in given for each in parts for x in each.inputs)

    def _fits(self, parts: Sequence[RegionSite]) -> bool:
        """Whether they are few, with few inputs, and nothing that they read hangs on what they
        give."""
        given = {o for each in parts for o in each.outputs}
        read = dict.fromkeys(x for each in parts for x in each.inputs if x not in given)
        few = sum(map(self._multiplies, parts)) <= PRODUCTS and len(read) <= MOST
        return few and given.isdisjoint(topological(list(read)))

    def _before(self, spot: RegionSite) -> list[RegionSite]:
        return [each for each in self.kind if not set(spot.inputs).isdisjoint(each.outputs)]

    def _after(self, spot: RegionSite) -> list[RegionSite]:
        return [each for each in self.kind if not set(spot.outputs).isdisjoint(each.inputs)]

    def _whole(self, parts: Sequence[RegionSite]) -> RegionSite:
        """All parts as one place: its results are what is used outside."""
        inside = {node for each in parts for node in region_members(each)}
        given = [o for each in parts for o in each.outputs]
        read = dict.fromkeys(x for each in parts for x in each.inputs if x not in given)
        wanted = [o for o in given if o in self.model.graph.outputs or not inside.issuperset(self.readers.get(o, ()))]
        return RegionSite(tuple(read), tuple(wanted), tuple([name for each in parts for name in each.names]))

    def _kind(
        self, record: Record, wholes: Sequence[RegionSite], places: Sequence[RegionSite], backend: Backend
    ) -> Fused:
        parts = [self.kind[each] for each in places[: len(places) // len(wholes)]]
        operators = tuple([name for part in parts for name in part.operators])
        return Fused(operators, tuple(wholes), record, backend.kernel(record), 0.0, WeightProducts)


def without(kinds: Sequence[Fused], places: Sequence[RegionSite]) -> list[Fused]:
    """The kinds where they have other places than these."""
    gone = set(places)
    left = [replace(kind, spots=tuple([s for s in kind.spots if s not in gone])) for kind in kinds]
    return [kind for kind in left if kind.spots]


# ---------------------------------------------------------------- muGraphs


def joined_record(parts: Sequence[tuple[Record, RegionSite]], spot: RegionSite) -> Record | None:
    """The choices for some parts, operands first, as one for the place that they are together; None
    where they do not agree on sizes that a run gives."""
    graphs = [from_json(record["mugraph"]) for record, _ in parts]
    spots = [own for _, own in parts]
    whole = joined_mugraph(graphs, spots, spot)
    before = [{each["most"]: from_json(each["mugraph"]) for each in record.get("before", ())} for record, _ in parts]
    names = {tuple(sorted(size_names([x.shape for x in graph.inputs]))) for graph in graphs}
    if whole is None or (any(before) and len(names) > 1):
        return None
    made = []
    for most in sorted({most for each in before for most in each}):
        own = [
            next((each[m] for m in sorted(each) if m >= most), last) for each, last in zip(before, graphs, strict=True)
        ]
        if (ranged := joined_mugraph(own, spots, spot)) is None:
            return None
        made.append({"mugraph": to_json(ranged), "most": most})
    return {"mugraph": to_json(whole), "before": made}


def joined_mugraph(graphs: Sequence[Graph], spots: Sequence[RegionSite], whole: RegionSite) -> Graph | None:
    """muGraphs, each for its place in a model, as the one for the place that they are together; None
    where a name means two sizes, or one has a name for what is a number in the other."""
    names: dict[Dim, Dim] = {}
    known: dict[Node, Node] = {}
    leaves: list[Node] = []
    for graph, spot in zip(graphs, spots, strict=True):
        mapping: dict[Node, Node] = {}
        for leaf, node in zip(graph.inputs, spot.inputs, strict=True):
            if node not in known:
                known[node] = variable(f"i{len(leaves)}", leaf.tensor)
                leaves.append(known[node])
            if known[node].type != leaf.type or not _agree(names, leaf.tensor, node):
                return None
            mapping[leaf] = known[node]
        known.update(zip(spot.outputs, substitute(graph.outputs, mapping), strict=True))
    return Graph(tuple([known[x] for x in whole.inputs]), tuple([known[o] for o in whole.outputs]))


def _agree(names: dict[Dim, Dim], type: Tensor, node: Node) -> bool:
    """Whether each name stands for one size of the model."""
    pairs = zip(type.shape or (), node.shape, strict=True)
    return all(isinstance(name, int) or names.setdefault(name, dim) == dim for name, dim in pairs)
