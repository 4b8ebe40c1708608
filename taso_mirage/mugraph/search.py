"""`superoptimize`: the muGraphs that compute a graph, the fastest by the model first (Mirage,
OSDI'25).

The search closes over the goal's sub-expressions once, verifies every derivation, chooses
derivations and the role of every axis, and then sizes. Every returned muGraph is verified as a
whole.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

from taso_mirage.devices.cuda.device import H100
from taso_mirage.devices.device import Device
from taso_mirage.errors import InvalidOption, TasoMirageError, Unsupported
from taso_mirage.ir.mugraph import kernels
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.mugraph.checkpoint import Checkpoint, to_json
from taso_mirage.mugraph.closure import Closure, close
from taso_mirage.mugraph.collapsed import runs_without, same_results
from taso_mirage.mugraph.field_check import sizes_apart
from taso_mirage.mugraph.found import FoundMuGraph, KernelSearchStatistics
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.mugraph.free_moves import free_moves
from taso_mirage.mugraph.horizontal import fused_goals, joined_found, ranked_found
from taso_mirage.mugraph.kernel_bodies import KernelBody, Plan
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.masked_tiles import MaskedGoal, has_rests, masked_goal
from taso_mirage.mugraph.moved_goal import labelled_goal
from taso_mirage.mugraph.refusals import results
from taso_mirage.mugraph.shrink import resized_goal
from taso_mirage.mugraph.stabilised import Stabilisation, stabilisation, storable
from taso_mirage.mugraph.stored_goal import stored_goal
from taso_mirage.mugraph.structures import Limits, plans
from taso_mirage.mugraph.tile_work import TileSizes
from taso_mirage.mugraph.tiled_plans import TiledPlan, varied, with_forms
from taso_mirage.mugraph.tilings import LONG, NEAR, Tiled, fastest, rank
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.work import size
from taso_mirage.rewriting.derived_traits import multiplies
from taso_mirage.verdicts import Evidence, Failure, FailureKind

_Ints = tuple[int, ...]
_Progress = Callable[[str, int, int], None]
PLANS = 400
"""The number of muGraphs of a closure that get sizes: of up to two kernels, and of each longer
length."""
TILINGS = 20
"""The number of tilings of a muGraph that are kept."""
TESTED = 32
"""The smallest number of muGraphs that are tested, even if that takes longer than the budget."""
USUAL, FAR = 2, 1.5
"""The usual number of kernels of a muGraph; one more is tried if these take FAR times as long as
moving the bytes."""
SPLITS = (2, 4, 8, 16, 32, 64)
"""The numbers of parts into which a reduction may be split over the grid."""
DOUBT = 0.05
"""The share by which the model may underestimate the seconds of a cluster."""
SPLITS_OF_LONG = (256, 1024)
"""Splits of a label that no block holds whole (`tilings.LONG`), if nothing else is for the grid."""
MASKED = 3
"""One of so many muGraphs has a masked last tile, where no tiles divide a label."""
SPLIT_FROM = 256
"""The smallest size of a reduction that is split."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Restrictions of the search space; None leaves a choice to the search.

    `griddims`: the grids (up to three block counts); `blockdims`: the threads of a block (up to
    three counts); `franges`: the for-loop ranges; `imaps`: the possible rows of `imap`, `omaps`:
    those of `omap` (for each grid dim the dim that it cuts, or -1); `fmaps`: the dims that the
    for-loop may cut, or -1. `max_block_ops`: operators of a body, without scales of weights (11 in
    Mirage's own search). `max_kernels`: two if left out, and three where no product is computed and
    those of two take far longer than to read and write once.
    """

    griddims: Sequence[_Ints] | None = None
    blockdims: Sequence[_Ints] | None = None
    imaps: Sequence[_Ints] | None = None
    omaps: Sequence[_Ints] | None = None
    fmaps: Sequence[int] | None = None
    franges: Sequence[int] | None = None
    max_block_ops: int = 18
    max_kernels: int | None = None

    def counts(self) -> tuple[Sequence[int] | None, Sequence[int] | None]:
        """How many blocks and iterations a kernel may have."""
        return None if self.griddims is None else [prod(g) for g in self.griddims], self.franges

    def allows(self, graph: Graph) -> bool:
        """Whether every kernel of a muGraph is within the restrictions."""
        return all(map(self._allows, kernels(graph.outputs)))

    def _allows(self, kernel: Node) -> bool:
        within = (
            (self.griddims, [kernel.attr("grid")]),
            (self.franges, [kernel.attr("loop")]),
            (self.imaps, kernel.attr("imap")),
            (self.omaps, kernel.attr("omap")),
            (self.fmaps, kernel.attr("fmap")),
        )
        return all(allowed is None or all(v in allowed for v in values) for allowed, values in within)


class _Late(Exception):
    """Raised when the time for enumeration is over."""


class Search:
    """One search; `statistics` has its counts so far."""

    def __init__(
        self,
        goal: Graph,
        options: SearchOptions,
        device: Device = H100,
        seed: int = 0,
        free: FreeSizes | None = None,
        masked: MaskedGoal | None = None,
        whole: Graph | None = None,
    ) -> None:
        """`masked`: the goal is larger than the `whole` one, whose sizes its muGraphs get."""
        if options.max_kernels is not None and options.max_kernels < 1:
            raise InvalidOption(f"max_kernels is {options.max_kernels}; a muGraph has at least one kernel")
        self.goal, self.options, self.device, self.seed = goal, options, device, seed
        self.moved, self.labelled = labelled_goal(goal)
        if self.moved.moves and not self.moved.is_equal():
            raise Unsupported(f"{results(goal)}: its movements are not proved equal at its operands")
        self.core = self.moved.core
        self.statistics = KernelSearchStatistics()
        self.unsafe = self.refused = ""
        self.known: dict[tuple[object, ...], Evidence | Failure] = {}
        self.closures: dict[str | None, Closure] = {}
        self._ordered: list[TiledPlan] | None = None
        self.folded = not device.general
        if device.general and self.labelled.integers:
            raise Unsupported(f"{results(goal)}: sums of integers on {device.name}; only kernels on a GPU have them")
        self.moves = None if free is None else free_moves(self.moved, free)
        self.named = None if free is None or not self.moved.moves else free.goal
        self.free = None if self.moves is None else self.moves.sizes.labels(self.labelled)
        self.whole = whole
        if masked is not None:
            self.free = dict(masked.sizes)
        self.apart = self.labelled
        self.runs = () if device.general else runs_without(self.labelled.runs, (self.free or {}).keys())
        if self.runs:
            self._join()

    def _masked(self) -> Search | None:
        """The search for muGraphs with a masked last tile of labels that no tiles divide."""
        plain = not self.device.general and self.free is None and not self.moved.moves
        found = masked_goal(self.apart) if plain else None
        if found is None:
            return None
        try:
            made = Search(found.goal, self.options, self.device, self.seed, masked=found, whole=self.goal)
        except TasoMirageError:
            return None
        same = {x: n for x, n in made.apart.sizes.items() if x not in found.sizes}
        return made if {**same, **found.sizes} == self.apart.sizes and not made.moved.moves else None

    def _join(self) -> None:
        """Dims that lie side by side as one, if the goal is the same so at small sizes."""
        before, joined = self.labelled, label(self.core, None, self.runs)
        sizes = sizes_apart(before, 0)
        wanted, _ = resized_goal(before, sizes)
        whole = {run[0]: prod(sizes[x] for x in run) for run in self.runs}
        if same_results(resized_goal(joined, {**sizes, **whole})[0], wanted):
            self.labelled = joined
        else:
            self.runs = ()

    def run(
        self,
        best: int,
        budget: float,
        progress: _Progress = lambda stage, done, total: None,
        checkpoint: Path | None = None,
        rests: bool = True,
    ) -> list[FoundMuGraph]:
        """The `best` fastest muGraphs by the model that are verified, after at most about `budget`
        seconds. With `checkpoint`, a JSON file, an interrupted search goes on where it was. With
        `rests` tiles may have a masked rest; such a muGraph cannot be verified at its own sizes.
        Raises Unsupported where every muGraph overflows or rounds too much."""
        if (masked := self._masked() if rests else None) is None:
            return self._run(best, budget, progress, checkpoint)
        found, more = [], list[FoundMuGraph]()
        with suppress(Unsupported):
            more = masked._run(max(best // MASKED, 1), budget / MASKED, progress)
        try:
            found = self._run(best, budget * (MASKED - 1) / MASKED, progress, checkpoint)
        except Unsupported:
            if not more:
                raise
        kept = found[: max(best - len(more), 1)]
        return sorted([*kept, *more], key=lambda each: each.seconds)[:best]

    def _run(self, best: int, budget: float, progress: _Progress, checkpoint: Path | None = None) -> list[FoundMuGraph]:
        end = time.monotonic() + budget
        state = Checkpoint(checkpoint, self._key())
        found = [FoundMuGraph.of_json(value, self.goal) for value in state.found]
        for i, each in enumerate(self.candidates(end, progress)):
            progress("verify", len(found), best)
            late = time.monotonic() > end
            if len(found) >= best or (late and (found or self.statistics.tested >= TESTED)):
                break
            if i < state.next:
                continue
            accepted = self.accepted(each)
            state.next = i + 1
            if accepted is not None:
                found.append(accepted)
                state.found.append(accepted.as_json())
                state.save()
        if not found:
            self._explain(time.monotonic() > end)
        return found[:best]

    def _explain(self, late: bool) -> None:
        """Raise Unsupported where there are muGraphs, and none is right in floats."""
        if self.refused:
            raise Unsupported(f"{results(self.goal)}: no muGraph was accepted: {self.refused}")
        if self.unsafe and not late and self.statistics.plans == self.statistics.unstable:
            raise Unsupported(f"{results(self.goal)}: no muGraph is safe: {self.unsafe}")

    def _key(self) -> dict[str, object]:
        return {
            "goal": to_json(self.goal),
            "options": asdict(self.options),
            "device": self.device.name,
            "seed": self.seed,
        }

    def candidates(
        self, end: float = math.inf, progress: _Progress = lambda stage, done, total: None
    ) -> list[TiledPlan]:
        """Plans with sizes, the fastest by the model first (modified by `varied` and `with_forms`),
        of the closures that are complete by the monotonic time `end`. If all are, another call
        returns the same list."""
        if self._ordered is not None:
            return self._ordered
        splits, kernels = self._splits(), self.options.max_kernels
        found = self._enumerated([None, *splits], range(1, (kernels or USUAL) + 1), end, progress)
        if not found and self.folded:
            self.folded = False  # kernels may hand over anything
            found = self._enumerated([None, *splits], range(1, (kernels or USUAL) + 1), end, progress)
        if kernels is None and self._far(found):
            found += self._enumerated([None, *splits], range(USUAL + 1, USUAL + 2), end, progress)
        ordered = varied(sorted(found, key=self.order))
        if not self.device.general:
            ordered = with_forms(ordered, lambda each: each.graphs(self.free) is not None)
        if time.monotonic() < end:
            self._ordered = ordered
        return ordered

    def _enumerated(
        self, splits: Sequence[str | None], kernels: range, end: float, progress: _Progress
    ) -> list[TiledPlan]:
        """The plans of a number of kernels, for the closures of the goal and of its splits."""
        found: list[TiledPlan] = []
        for i, split in enumerate(splits):
            progress("enumerate", i, len(splits))
            try:
                found += self._candidates(split, kernels, end, progress)
            except _Late:
                break
            except Unsupported:  # a number that is a part of each half of a split sum has no derivation
                if split is None:
                    raise
        return found

    def _far(self, found: Sequence[TiledPlan]) -> bool:
        """Whether a goal that only moves bytes takes far longer than its inputs and results do."""
        if any(multiplies(each.node.op) for each in self.labelled.known) or self.device.general:
            return False
        least = sum(size(x.type) for x in (*self.goal.inputs, *self.goal.outputs)) / self.device.bandwidth
        return min((each.seconds for each in found), default=math.inf) > FAR * (
            least + (USUAL + 1) * self.device.launch
        )

    def order(self, candidate: TiledPlan) -> tuple[int, float, float]:
        """The key of a candidate's order: the smallest comes first.

        With few threads, a split must promise more than the error of the model, because it never
        fills the machine better. So must a cluster, for which the model is less accurate.
        """
        split = NEAR if self.device.general and candidate.closure.goal.split else 0.0
        doubt = DOUBT if any(each.kernel.body.cluster for each in candidate.plan) else split
        return rank(candidate.seconds * (1 + doubt), sum(each.held for each in candidate.plan))

    def accepted(self, candidate: TiledPlan) -> FoundMuGraph | None:
        """The muGraph of a candidate, if it is within the restrictions and verified; equal roles
        are verified once."""
        graphs = candidate.graphs(self.free)
        if graphs is None or not self.options.allows(graphs[0]):
            return None
        graph, free = graphs
        if self.whole is not None and not (free is not None and has_rests(free)):
            return None
        roles = candidate.roles()
        if roles not in self.known:
            self.statistics.tested += 1
            small, goal = candidate.shrunk()
            refused = Failure(FailureKind.EXCLUDED, "it cannot be put together at small sizes")
            self.known[roles] = refused if small is None else verified_mugraph(small, goal, seed=self.seed)
        evidence = self.known[roles]
        if not isinstance(evidence, Evidence):
            self.refused = evidence.reason
            return None
        self.statistics.verified += 1
        warps = tuple(max(prod(threads) // 32, 1) for threads in self.options.blockdims or ())
        if self.whole is not None and free is not None:
            return FoundMuGraph(free, self.whole, candidate.seconds, self.device.name, evidence, warps)
        whole = self.moved.restored(graph)
        named = None if free is None or self.moves is None else self.moves.restored(free)
        return FoundMuGraph(
            whole,
            self.goal,
            candidate.seconds,
            self.device.name,
            evidence,
            warps,
            named,
            None if named is None else self.named,
        )

    def _splits(self) -> list[str]:
        """The reduced labels that are long enough to be split over the grid."""
        if self.options.max_kernels == 1:
            return []
        free = self.free or {}
        goal = self.labelled
        return sorted(x for x in goal.reduced if goal.sizes[x] * goal.within(x) >= SPLIT_FROM and x not in free)

    def _candidates(self, split: str | None, kernels: range, end: float, progress: _Progress) -> Iterator[TiledPlan]:
        def closing(classes: int, waiting: int) -> None:
            progress("close", classes - waiting, classes)
            if time.monotonic() > end:
                raise _Late

        closure = self.closures.get(split)
        if closure is None:
            goal = self.labelled if split is None else label(self.core, split, self.runs)
            closure = self.closures[split] = close(goal, seed=self.seed, progress=closing)
            self.statistics.classes += len(closure.classes)
            self.statistics.edges += sum(map(len, closure.edges))
            self.statistics.wrong_edges += int(closure.statistics["wrong"])
        memo: dict[tuple[object, ...], list[Tiled]] = {}
        tiled_labels = frozenset(self.free or ()) if not self.device.general else frozenset[str]()
        width = self.width
        for plan, stable in self._stable(closure, kernels, end):
            clusters = {k.body.cluster for k in plan} - {None}
            for sizes in self._sizes(closure, split):
                if any(sizes[x or ""] > self.device.cluster for x in clusters):
                    continue
                for tiled in fastest(plan, closure, sizes, width, self.device, TILINGS, self.options.counts(), memo):
                    self.statistics.tilings += 1
                    yield TiledPlan(tiled, closure, stable, sizes, tiled_labels, not self.device.general)

    def _stable(self, closure: Closure, kernels: range, end: float) -> Iterator[tuple[Plan, tuple[Stabilisation, ...]]]:
        """The plans that can be stabilised; of the kernels before the last one only those are
        enumerated that may be."""
        finals, options = set(closure.targets), self.options
        clusters = self.device.cluster > 1 and not closure.goal.integers
        most, cut = options.max_block_ops + closure.goal.scaled, self._cut(closure)
        limits = Limits(kernels, most, clusters=clusters, folded=self.folded, cut=cut)
        counts: Counter[int] = Counter()

        def wanted(body: KernelBody) -> bool:
            if time.monotonic() > end:
                raise _Late
            return bool(finals & {*body.targets}) or storable(body, closure)

        for plan in plans(closure, limits, wanted):
            length = max(len(plan), 2)
            if counts[length] == PLANS:
                continue
            self.statistics.plans += 1
            stable = stabilisation(plan, closure)
            if isinstance(stable, Failure):
                self.statistics.unstable += 1
                self.unsafe = self.unsafe or stable.reason
            else:
                counts[length] += 1
                yield plan, stable

    def _cut(self, closure: Closure) -> frozenset[str]:
        """The labels of which a GPU holds no tile as long: free ones, and those of more bytes than
        shared memory has."""
        if self.device.general:
            return frozenset()
        goal, width = closure.goal, self.width
        least = min([width, *(n for view in goal.inputs if (n := goal.stored(view)) is not None)])
        sizes = {**goal.sizes} | {
            inner: goal.sizes[whole] // SPLITS_OF_LONG[-1] for whole, (_, inner) in goal.split.items()
        }
        return frozenset(x for x, n in sizes.items() if n * least > self.device.shared).union(self.free or ())

    @property
    def width(self) -> int:
        """Bytes of a float of the goal."""
        return 2 if self.goal.outputs[0].dtype in ("float16", "bfloat16") else 4

    def _sizes(self, closure: Closure, split: str | None) -> Iterator[TileSizes]:
        sizes = dict(closure.goal.sizes)
        if split is None:
            yield sizes
            return
        outer, inner = closure.goal.split[split]
        for parts in (*SPLITS, *(SPLITS_OF_LONG if sizes[split] > LONG and not self.device.general else ())):
            if sizes[split] % parts == 0:
                yield {**sizes, outer: parts, inner: sizes[split] // parts}


def superoptimize(
    graph: Graph,
    *,
    best: int = 8,
    budget: float = 60.0,
    device: Device = H100,
    seed: int = 0,
    progress: _Progress = lambda stage, done, total: None,
    checkpoint: Path | None = None,
    **restrictions: object,
) -> list[FoundMuGraph]:
    """The `best` muGraphs for a graph of fixed sizes, the fastest by the device's model first; each
    is verified.

    `budget` is about how many seconds the search may take; with the file `checkpoint` it can be
    resumed. `restrictions` are the fields of Options. Raises Unsupported, which names the term,
    where an operator moves elements between axes, or which says why every muGraph would overflow.
    """
    options = SearchOptions(**restrictions)  # type: ignore[arg-type]
    lanes = fused_goals(graph) if stored_goal(graph).stores else []
    if not lanes or lanes[0].stored is None:
        return Search(graph, options, device, seed).run(best, budget, progress, checkpoint)
    found = list[list[FoundMuGraph]]()
    for i, lane in enumerate(lanes):
        own = None if checkpoint is None else checkpoint.with_stem(f"{checkpoint.stem}-{i}")
        found.append(Search(lane.graph, options, device, seed).run(best, budget / len(lanes), progress, own))
    return [joined_found(graph, lanes, each) for each in ranked_found(found)][:best]
