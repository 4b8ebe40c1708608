"""The regions of a model for which a kernel search is worthwhile: norms with their linear layers,
attention, gates, elementwise chains.

A region grows from a product, then from the folds and chains that are left, over operators that
have labels (`labels.label`). It is convex, also once the other regions are one term each, so that
all can be replaced. A linear layer of many rows stays outside, because it is bound by operations,
and libraries compute it best. A fold after a linear layer waits for all of its columns, so a region
ends there, unless the fold is another linear layer (LoRA, a gated MLP). All results of a region
have the same labels, which its grid can cut; where kernels can run beside each other, results of
other labels are lanes (`horizontal.py`), of which no two compute the same product. Regions are
judged by the work of their operators, not by their number: a fused operator of a runtime is a
region alone, and one of several results is in it with all that reads them. A result that is mostly
an input, such as a cache with new rows, is copied beside the lanes. A term with kernels that
prepare weights is a region first, where a back end has those (`forms.base.form`). An operator that
only repeats elements (the heads that queries share) is in it where something depends on all of
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.form import PreparedKinds
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import (
    ABSENT,
    Graph,
    Node,
    Tensor,
    is_computed,
    is_part,
    topological,
    users,
    variable,
)
from taso_mirage.mugraph.free_moves import moves_free_axis
from taso_mirage.mugraph.goal import MADE
from taso_mirage.mugraph.horizontal import groups
from taso_mirage.mugraph.labels import Labelled
from taso_mirage.mugraph.opaque_functions import is_defined
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.movements import is_moved
from taso_mirage.operators.ops import term, traits
from taso_mirage.operators.stores import is_scatter, part_args
from taso_mirage.regions.canonical import SymbolSizes, canonical_region
from taso_mirage.regions.contained import ErrorReport, contained, operators_of, raised
from taso_mirage.regions.region_kinds import (
    RegionKind,
    caches,
    has_weights,
    is_copied,
    kind_by_labels,
    of_integers,
    operands_read,
    successive_products,
    sums_integers,
    turned,
    unpacks,
)
from taso_mirage.regions.region_labels import has_every_size, is_loaded, region_labels
from taso_mirage.regions.region_ranks import RegionRanks

OPERATORS, INPUTS = 24, 8
"""The largest number of operators of a region that compute elements, and of inputs of one of its
lanes."""
BETWEEN = 512
"""The largest number of terms among which those between the terms of a region are looked for: an
operand that all layers read is far from the last layer."""
ROWS = 64
"""A linear layer of floats of more rows is bound by operations, which libraries are good at; but in
single precision on a GPU, where they leave the tensor cores alone."""
PIXELS = 4
"""The largest number of pixels of a convolution that is like a linear layer."""
PRODUCTS = 2
"""The largest number of successive products of a region. On a GPU a product with packed or gathered
weights counts as so many: the search for two of them takes a minute, and both are bound by weights,
so two kernels take no longer."""
FEW = 16
"""The largest number of elements of a fold that a region may have after a linear layer with packed
or gathered weights on a GPU: one block has all of them. An example is the sum over the experts of a
token."""


@dataclass(frozen=True, slots=True)
class RegionSite:
    """One place of a region: the model's terms that are its inputs, and those that it gives, in the
    order of its graph, and the names of its operators. An input may be a weight that is stored
    otherwise (see `arranged`)."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    names: tuple[str, ...]


def fragments(
    model: Model,
    sizes: SymbolSizes,
    lanes: int = 1,
    batched: bool = False,
    prepared: PreparedKinds | None = None,
    late: Callable[[], bool] = lambda: False,
    report: ErrorReport = raised,
    among: Collection[Node] | None = None,
) -> dict[Graph, list[RegionSite]]:
    """The graphs of all regions, of at most `lanes` lanes, in the order of their first places, each
    with its places; once it is `late`, the search ends. With `batched` a linear layer of a free
    number of rows is in none, as it may get many, unless it is in single precision. A term that
    `prepared` has kernels for is a region first. With `among` only these terms are in regions.
    Errors are reported."""
    growing = _Growing(model.graph.outputs, sizes, lanes, batched, report, among)
    if prepared is not None:
        with contained("prepared weights", report):
            growing.prepare(prepared)
    found: dict[Graph, list[RegionSite]] = {}
    growing.run(late)
    for members in sorted(growing.found, key=lambda m: growing.position[m[0]]):
        with contained(operators_of(members), report):
            graph, site = _site(model, members, growing.results(members), sizes)
            found.setdefault(graph, []).append(site)
    return found


def _site(
    model: Model, members: Sequence[Node], results: Sequence[Node], sizes: SymbolSizes
) -> tuple[Graph, RegionSite]:
    graph, leaves = canonical_region(members, results, sizes)
    terms = {leaf: term for term, leaf in leaves.items()}
    names = [_name(model, n) for n in members if not is_part(n)]
    return graph, RegionSite(tuple([terms[leaf] for leaf in graph.inputs]), tuple(results), tuple(names))


def _name(model: Model, node: Node) -> str:
    origin = model.origins.get(node)
    return (origin.name if origin is not None else None) or model.names.get(node) or node.op


class _Growing:
    """Regions as they grow, each a list of terms in the model's order."""

    def __init__(
        self,
        outputs: Sequence[Node],
        sizes: SymbolSizes,
        lanes: int,
        batched: bool,
        report: ErrorReport = raised,
        among: Collection[Node] | None = None,
    ) -> None:
        self.order, self.wanted, self.sizes, self.lanes = topological(outputs), set(outputs), sizes, lanes
        self.batched, self.report = batched, report
        self.position = {node: i for i, node in enumerate(self.order)}
        self.users = users(self.order)
        self.region: dict[Node, list[Node]] = {}
        self.found: list[list[Node]] = []
        self.ranks = RegionRanks(self.order, self.users, self.region)
        self.labels: dict[Graph, Labelled | None] = {}
        self.computing: dict[Node, bool] = {}
        self.accepted: dict[tuple[Graph, tuple[RegionKind, ...]], bool] = {}
        """Whether terms of these kinds with this graph are a region: equal layers ask again."""
        self.items = {n: tuple([u for u in self.users.get(n, ()) if is_part(u)]) for n in self.order}
        self.kinds: dict[Node, RegionKind] = {}
        self.moving: set[Node] = set()
        """Terms that only move elements, or have another shape."""
        self.folded: dict[Node, float] = {}
        """The number of elements that become one in a term that folds."""
        for node in self.order if among is None else [n for n in self.order if n in among]:
            with contained(node.op, report):
                kind = self._kind(node)
                if kind is not None:
                    self.kinds[node] = kind
        self.caches = caches(self.kinds, self.users, sizes)
        self.turned = turned(self.kinds, self.caches)

    def prepare(self, kinds: PreparedKinds) -> None:
        """Take the parts of the model that have kernels with prepacked weights, each with its fused
        epilogue."""
        for each in kinds.candidates(self.order, lambda n: self.users.get(n, ()), self.wanted.__contains__, self.sizes):
            members = list(takewhile(lambda n: n not in self.region, each))
            if members and self.ranks.convex(set(members)) and self._prepares(members, kinds):
                self._take(members[::-1])

    def _prepares(self, members: Sequence[Node], kinds: PreparedKinds) -> bool:
        """Whether terms are a goal of such a kernel, at fixed sizes: some depend on the data."""
        try:
            goal = self.fragment(members)
            shapes = [x.shape for x in goal if isinstance(x.type, Tensor)]  # else it has several results
            return kinds.read(goal) is not None and all(isinstance(n, int) for shape in shapes for n in shape)
        except (LookupError, TypeError, TasoMirageError):
            return False

    def run(self, late: Callable[[], bool]) -> None:
        """All other regions."""
        for kinds in ({RegionKind.PRODUCT, RegionKind.LINEAR}, {RegionKind.FOLD}, {RegionKind.CHAIN}):
            for node in self.order:
                if self.kinds.get(node) in kinds and node not in self.region and not late():
                    with contained(node.op, self.report):
                        members = self._largest(node)
                        if self._accepted(members) and self._worth(members):
                            self._take(members)

    def _take(self, members: list[Node]) -> None:
        self.found.append(members)
        self.ranks.merge(members)
        self.region |= dict.fromkeys(members, members)

    def _worth(self, members: Sequence[Node]) -> bool:
        """Whether more than one value is computed; or, on a GPU, a term at which libraries are
        slow: a product with a weight for few rows or in single precision, a fold along another axis
        than the last."""
        kinds = [(self.kinds[n], n) for n in members if self.kinds[n] is not RegionKind.CHAIN]
        slow = self.lanes > 1 and any(kind is not RegionKind.PRODUCT or self._single(n) for kind, n in kinds)
        return self._computes(self.fragment(members)) > (0 if slow else 1)

    def _single(self, node: Node) -> bool:
        """Whether a GPU computes a term in single precision."""
        return self.lanes > 1 and isinstance(node.type, Tensor) and node.dtype == "float32"

    def fragment(self, members: Sequence[Node]) -> Graph:
        """Terms of the model over canonical inputs; the results are those used outside."""
        return canonical_region(members, self.results(members), self.sizes)[0]

    def results(self, members: Sequence[Node]) -> list[Node]:
        inside = set(members)
        return [n for n in members if n in self.wanted or not inside.issuperset(self.users.get(n, ()))]

    # ------------------------------------------------------------ operators

    def _kind(self, node: Node) -> RegionKind | None:
        """None for a term in no region, also for one that has no type at these sizes.

        A term that reads a result of several has the kind of a view.
        """
        if not node.args or is_weight(node) or not is_defined(node) or of_integers(node, self.lanes > 1):
            return None
        if is_part(node):
            return RegionKind.CHAIN if node.args[0] in self.kinds else None
        members = self._whole(node)
        results = members[1:] or members
        try:
            graph, leaves = canonical_region(members, results, self.sizes)
            if any(not isinstance(o.type, Tensor) or o.dtype not in MADE for o in graph.outputs):
                return None
            found = self._labelled(graph) or self._repeating(graph) or self._writing(node, graph)
        except (LookupError, TypeError, ValueError, TasoMirageError):
            return None
        if found is None or not has_every_size(members, results, self.sizes) or successive_products(found) > PRODUCTS:
            return None
        if all(map(is_moved, graph.outputs)):
            self.moving.update(members)
        weights = {leaves[a] for a in node.args if has_weights(a, self.moving if self.lanes > 1 else ())}
        self.folded[node] = math.prod(found.sizes[x] for x in found.reduced)
        if traits(node).windowed:  # only few pixels are a linear layer: libraries are best at windows
            kind = kind_by_labels(found, weights, PIXELS)
            return kind if kind is RegionKind.LINEAR else None
        whole = sums_integers(node) or self._single(node)
        kind = kind_by_labels(found, weights, math.inf if whole else ROWS)
        free = any(not isinstance(n, int) for result in results for n in result.shape)
        return None if kind is RegionKind.LINEAR and self.batched and free and not whole else kind

    def _whole(self, node: Node) -> tuple[Node, ...]:
        """The terms that a region takes together with a term: if it has several results, the term
        and all its parts."""
        made = node.args[0] if is_part(node) else node
        return made, *self.items[made]

    def _computes(self, graph: Graph) -> int:
        """How many values are computed, operators unfolded; one that only has another shape or
        order of its axes is the same."""
        found = self._labelled(graph)
        return 0 if found is None else len({each.sketch for each in found.known} - {*found.views.values()})

    def _computes_by_itself(self, node: Node) -> bool:
        if node not in self.computing:
            self.computing[node] = self._computes(self.fragment(list(self._whole(node)))) > 0
        return self.computing[node]

    def _repeating(self, graph: Graph) -> Labelled | None:
        """The labels of one that only repeats elements, which its result has where something else
        depends on all of them."""
        result, *more = graph.outputs
        other = term("mul", result, variable("other", result.tensor)) if is_computed(result.dtype) else None
        return None if more or other is None else self._labelled(Graph(graph.inputs, (other,)))

    def _writing(self, node: Node, graph: Graph) -> Labelled | None:
        """The labels of the updates of one that writes them over other data, of fixed sizes."""
        fixed = all(isinstance(n, int) for x in (node, *node.args) if x is not ABSENT for n in x.shape)
        written = graph.outputs[0]
        if not fixed or not is_scatter(written):
            return None
        return self._repeating(Graph(graph.inputs, (written.args[part_args(written)[1]],)))

    def _labelled(self, graph: Graph) -> Labelled | None:
        if graph not in self.labels:
            self.labels[graph] = region_labels(graph)
        return self.labels[graph]

    # ------------------------------------------------------------ growth

    def _is_free(self, members: Sequence[Node]) -> bool:
        """Whether a region that moves elements along axes of free sizes has a form for every
        size."""
        return not any(map(moves_free_axis, members)) or has_every_size(members, self.results(members), self.sizes)

    def _largest(self, seed: Node) -> list[Node]:
        """The largest region around a term that has a form for every size. Beside a cache, rotary
        embeddings are the work of kernels before: the search takes many times as long with both. On
        a GPU they are in no region of a product: a kernel of both would load parts of operands
        several times, of a weight's rows narrow ones."""
        product = self.kinds[seed] in (RegionKind.LINEAR, RegionKind.PRODUCT)
        if product and (self.lanes > 1 or (self.caches and self.kinds[seed] is RegionKind.PRODUCT)):
            members = self._grown(seed, self.turned)
            apart = self.lanes > 1 or not self.caches.isdisjoint(members)
            if apart and self._is_free(members) and self._worth(members):
                return members
        members = self._grown(seed)
        return members if self._is_free(members) else self._grown(seed, {n for n in self.kinds if moves_free_axis(n)})

    def _grown(self, seed: Node, without: Collection[Node] = ()) -> list[Node]:
        """The largest region around `seed`, `without` some terms; users are added before
        operands."""
        members = list(self._whole(seed))
        growing = True
        while growing:
            growing = False
            for each in self._around(members):
                if (wider := self._wider(members, each, without)) is not None:
                    members, growing = wider, True
                    break
        return self._trimmed(members)

    def _wider(self, members: list[Node], each: Node, without: Collection[Node]) -> list[Node] | None:
        """A region with one term more, `without` some; with its operands too where it is an operand
        that computes nothing, which is no lane alone. None if there is no such region."""
        steps = [{*self._whole(each), *self._converted(each)}]
        if self.lanes > 1 and not self._computes_by_itself(each) and any(each in n.args for n in members):
            below = [a for a in each.args if a in self.kinds and a not in self.region]
            steps += [steps[0].union(*map(self._whole, below))] if below else []
        for whole in steps:
            hull = self._hull({*members, *whole})
            wider = sorted(hull or (), key=self.position.__getitem__)
            if wider and self._accepted(wider) and not any(n in without for n in wider):
                return wider
        return None

    def _converted(self, node: Node) -> list[Node]:
        """The integers that a term converts: no kernel loads these, so a region has both."""
        return [a for a in node.args if a in self.kinds and isinstance(a.type, Tensor) and a.dtype == "int32"]

    def _trimmed(self, members: list[Node]) -> list[Node]:
        """Without the last terms of chains, and the lanes, that only add a result: their users can
        compute them."""
        for each in members[::-1]:
            rest = [n for n in members if n is not each]
            last = self.kinds[each] is RegionKind.CHAIN and not any(each in n.args for n in rest)
            if last and rest and len(self.results(rest)) < len(self.results(members)):
                members = rest
        for lane, graph in self._lanes(members):
            rest = [n for n in members if n not in lane]
            chain = all(self.kinds[n] is RegionKind.CHAIN for n in lane) and not is_copied(graph)
            if rest and chain and self._accepted(rest):
                members = rest  # a chain that others read too is no lane: it is computed before
        return members

    def _lanes(self, members: Sequence[Node]) -> list[tuple[list[Node], Graph]]:
        """For each lane, its terms in the model's order, and its graph; terms that several lanes
        share are in all of them."""
        found, results = self._labelled(self.fragment(members)), self.results(members)
        outside = {a for n in members for a in n.args}.difference(members)
        made = []
        for places in [] if found is None else groups(found):
            own = [results[i] for i in places]
            inside = topological(own, stop=outside)
            made.append((inside, canonical_region(inside, own, self.sizes)[0]))
        return made

    def _around(self, members: Sequence[Node]) -> list[Node]:
        above = [u for n in members for u in self.users.get(n, ())]
        below = [a for n in members for a in n.args]
        free = [n for n in (*above, *below) if n in self.kinds and n not in members and n not in self.region]
        return list(dict.fromkeys(free))

    def _hull(self, inside: set[Node]) -> set[Node] | None:
        """The terms and those that lie between them, whole; None where those that may lie there are
        more than BETWEEN."""
        first, last = min(self.position[n] for n in inside), max(self.position[n] for n in inside)
        below, above = set[Node](), set[Node]()
        for found, next_ in ((below, lambda n: n.args), (above, lambda n: self.users.get(n, ()))):
            stack = list(inside)
            while stack:
                new = [n for n in next_(stack.pop()) if n not in found and first < self.position.get(n, -1) < last]
                found.update(new)
                stack += new
                if len(found) > BETWEEN:
                    return None
        return inside | {each for n in below & above for each in self._whole(n)}

    def _accepted(self, members: Sequence[Node]) -> bool:
        inside = set(members)
        if not all(n in self.kinds and n not in self.region and inside.issuperset(self._whole(n)) for n in members):
            return False
        if len(inside - self.moving) > OPERATORS or not self._runs_through(members) or not self.ranks.convex(inside):
            return False
        graph = self.fragment(members)
        key = graph, tuple([self.kinds[n] for n in members])
        if key not in self.accepted:
            given = all(is_computed(o.dtype) for o in graph.outputs) and is_loaded(graph)
            few = given and operands_read(graph) <= INPUTS * self.lanes
            self.accepted[key] = few and self._labelled(graph) is not None and self._beside(self._lanes(members))
        return self.accepted[key]

    def _beside(self, lanes: Sequence[tuple[Sequence[Node], Graph]]) -> bool:
        """Whether there are few lanes, each with few inputs and with an operator that computes, and
        no product is in two of them; results that are mostly inputs do not count, if there are
        others."""
        copied = [is_copied(graph) for _, graph in lanes]
        copied = copied if not all(copied) else [False] * len(lanes)
        if len(lanes) - sum(copied) > self.lanes:
            return False
        products: set[Node] = set()
        for (lane, graph), only in zip(lanes, copied, strict=True):
            own = {n for n in lane if self.kinds[n] in (RegionKind.PRODUCT, RegionKind.LINEAR)}
            if operands_read(graph) > INPUTS or not own.isdisjoint(products):
                return False
            if len(lanes) > 1 and not only and self._computes(graph) < 1:
                return False
            products |= own
        return True

    def _runs_through(self, members: Sequence[Node]) -> bool:
        """Whether no path has too many products, or a fold that waits for a linear layer."""
        products: dict[Node, int] = {}
        linear: dict[Node, bool] = {}
        gathered: dict[Node, bool] = {}
        for node in members:
            kind = self.kinds[node]
            waits = any(linear.get(a, False) for a in node.args)
            unpacked = self.lanes > 1 and unpacks(node, kind)
            gathered[node] = unpacked or any(gathered.get(a, False) for a in node.args)
            folds = kind is RegionKind.FOLD and (not gathered[node] or self.folded[node] > FEW)
            if waits and (folds or kind is RegionKind.PRODUCT or node in self.caches):
                return False
            product = kind in (RegionKind.PRODUCT, RegionKind.LINEAR)
            products[node] = max(products.get(a, 0) for a in node.args) + product * (PRODUCTS if unpacked else 1)
            linear[node] = waits or kind is RegionKind.LINEAR
        return max(products.values()) <= PRODUCTS
