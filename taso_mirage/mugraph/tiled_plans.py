"""A plan with its tiles: the muGraph at the goal's own sizes, at small ones, and with names for
sizes that are known only at run time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.mugraph.assemble import assembled
from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.reductions import DOT
from taso_mirage.mugraph.free import free_goal, free_tiles
from taso_mirage.mugraph.kernel_bodies import PlannedKernel
from taso_mirage.mugraph.shrink import cuts, resized_goal, shrunk, shrunk_sizes
from taso_mirage.mugraph.stabilised import Stabilisation
from taso_mirage.mugraph.tile_work import TileSizes
from taso_mirage.mugraph.tilings import ITERATION, Tiled, predicted

SOON, COMPETITIVE = 8, 2.0
"""Among the first SOON candidates are some of each form that takes at most COMPETITIVE times as
long as the first by the model."""

ASSEMBLED = 64
"""The largest number of candidates with a product of matrices that are put together to find one
that can be."""


@dataclass(frozen=True, slots=True)
class TiledPlan:
    """A plan with its tiles; the sizes tell into how many parts a reduction is split."""

    plan: tuple[Tiled, ...]
    closure: Closure
    safe: tuple[Stabilisation, ...]
    sizes: TileSizes
    tiled: frozenset[str] = frozenset()
    """Labels that no kernel has as a whole tile, independent of their size."""
    narrow: bool = True  # whether kernels hand over means in half precision

    @property
    def seconds(self) -> float:
        return predicted(self.plan)

    @property
    def multiplies(self) -> bool:
        """Whether a kernel has a product of matrices."""
        return any(_multiplies(each, self.closure) for each in self.plan)

    def graph(self) -> Graph | None:
        """The muGraph at the goal's own sizes; None where it cannot be put together."""
        goal = self.closure.goal
        return self._assembled(self.plan, self.sizes, goal.graph, goal.leaves)

    def free(self, names: Mapping[str, Dim]) -> Graph | None:
        """The muGraph with these sizes of some labels, which only a run knows, cut alike; None
        where it depends on the sizes that the search had."""
        found = free_goal(self.closure.goal, self.sizes, names)
        try:
            plan = [(each.kernel, free_tiles(each.tiles, self.sizes, names, self._open(each))) for each in self.plan]
        except Undecidable:  # a part of a quotient
            return None
        if any(tiles.get(label) == names[label] for _, tiles in plan for label in self.tiled):
            return None
        varied = any(e.kind.one_pass and e.label in names for each in self.plan for _, e in each.kernel.body.chosen)
        if found is None or varied or not names.keys().isdisjoint(self.closure.goal.split):
            return None
        sizes = {**self.sizes, **names}
        try:
            return assembled(plan, self.closure, self.safe, sizes, *found, self.narrow)
        except (IllTyped, Undecidable, Unsupported):  # a mean over a free size has it as a number
            return None

    def graphs(self, names: Mapping[str, Dim] | None) -> tuple[Graph, Graph | None] | None:
        """The muGraph at the goal's own sizes, and the one of free sizes if `names` are given; None
        where one of them cannot be put together."""
        graph, free = self.graph(), None if names is None else self.free(names)
        return None if graph is None or (free is None and names is not None) else (graph, free)

    def _assembled(
        self, plan: Sequence[Tiled], sizes: TileSizes, goal: Graph, leaves: Mapping[str, Node]
    ) -> Graph | None:
        kernels, results = [(each.kernel, each.tiles) for each in plan], [o.shape for o in goal.outputs]
        try:
            return assembled(kernels, self.closure, self.safe, sizes, goal.inputs, leaves, results, self.narrow)
        except IllTyped:  # a result of rank 0 has no dim for the blocks to stand along
            return None

    def shrunk(self) -> tuple[Graph | None, Graph]:
        """The muGraph with the same roles, and the goal, at small sizes that tell labels apart."""
        kernels = self._cuts()
        sizes = shrunk_sizes(self.closure.goal, kernels)
        goal, leaves = resized_goal(self.closure.goal, sizes)
        plan = shrunk(self.plan, kernels, sizes)
        return self._assembled(plan, sizes, goal, leaves), goal

    def roles(self) -> tuple[object, ...]:
        """A key of the muGraph without its sizes: bodies, loops, and how labels are cut."""
        kernels = zip(self.plan, self._cuts(), strict=True)
        return tuple(self.closure.goal.split), tuple((t.kernel, tuple(sorted(own.items()))) for t, own in kernels)

    def _cuts(self) -> list[dict[str, int]]:
        return [cuts(each, self.sizes, self._open(each)) for each in self.plan]

    def _open(self, each: Tiled) -> dict[str, int]:
        """The least tiles of such labels that the kernel cuts."""
        found = {label: 1 for label in each.kernel.body.grid if label in self.tiled}
        return found | {label: ITERATION[0] for label in self.tiled if label == each.kernel.loop}


def varied(candidates: Sequence[TiledPlan]) -> list[TiledPlan]:
    """Reorder plans so that a second plan with the same slowest kernel comes only after all other
    slowest kernels. A tuner that measures the first few plans then measures as many different
    kernels."""
    seen: Counter[tuple[object, ...]] = Counter()
    times = []
    for each in candidates:
        slowest = max(each.plan, key=lambda tiled: tiled.seconds)
        main = _made(slowest, each.sizes), tuple(sorted(slowest.tiles.items())), tuple(sorted(each.sizes.items()))
        times.append(seen[main])
        seen[main] += 1
    return [candidates[i] for i in sorted(range(len(candidates)), key=lambda i: times[i])]


def with_forms(
    candidates: Sequence[TiledPlan], possible: Callable[[TiledPlan], bool] = lambda _: True
) -> list[TiledPlan]:
    """Move the best plan of each other form behind the first one, the simplest form first: with or
    without clusters, and by the number of kernels. The model is least accurate between forms, so
    the first measured candidates include some of each.

    Where the first one has no product of matrices, which tensor cores compute, the best that has
    one and is `possible` is the second, however far behind.
    """
    best: dict[tuple[bool, int], TiledPlan] = {}
    for each in candidates:
        best.setdefault((any(t.kernel.body.cluster for t in each.plan), len(each.plan)), each)
    first = candidates[:1]
    near = [best[form] for form in sorted(best) if best[form].seconds <= COMPETITIVE * candidates[0].seconds]
    if not any(each.multiplies and possible(each) for each in first):
        products = islice((each for each in candidates if each.multiplies), ASSEMBLED)
        near = [*islice(filter(possible, products), 1), *near]
    early = list({id(each): each for each in [*first, *near]}.values())[: SOON // 2]
    moved = {id(each) for each in early}
    return [*early, *(each for each in candidates if id(each) not in moved)]


def _multiplies(each: Tiled, closure: Closure) -> bool:
    """Whether a block has a product of matrices, which tensor cores compute: with several elements
    along the labels that each operand alone has, and along the sum."""
    classes = closure.classes
    products = [(made, *edge.args) for made, edge in each.kernel.body.chosen if edge.kind is DOT]
    sides = [
        (classes[a] - classes[b], classes[b] - classes[a], classes[a] & classes[b] - classes[made])
        for made, a, b in products
    ]
    return any(all(any(each.tiles[x] > 1 for x in side) for side in own) for own in sides)


def _made(each: Tiled, sizes: TileSizes) -> PlannedKernel:
    """The kernel, which has no loop where that has one iteration: the code is the same."""
    loop = each.kernel.loop
    return replace(each.kernel, loop=None) if loop is not None and each.tiles[loop] == sizes[loop] else each.kernel
