"""muGraphs without sizes: the derivations that each kernel computes, and the role of every axis in
it (Mirage, OSDI'25, section 4).

A body is a choice of one derivation for every class that a kernel needs; the grid takes labels that
a result has (one without it is the same in all blocks along it), the for-loop one that none has.
The grid part of a split reduction may be folded in a cluster, whose blocks combine their parts.
Bodies come in the order of their length, so that a cap keeps the simplest ones, and some for each
loop.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, islice

from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.kind import DerivationEdge
from taso_mirage.mugraph.derivations.reductions import DOT

STEPS = 6_000
"""The largest number of partial bodies that are tried for one kernel."""
UNDERIVED = 10**6
CUT = 5
"""The largest number of classes that one kernel may pass to the next."""
LOOPED = 4
"""The number of bodies that are considered for each label that a first kernel may loop over."""
COMBINING = 6
"""The further operators that a body may have whose blocks are a cluster: two kernels in one."""
ALIKE = 2
"""The number of bodies that are considered for the same classes of earlier kernels."""
TURN = 16
"""The number of muGraphs of two kernels that come with one second kernel before those with the
next."""
_Choice = tuple[Mapping[int, DerivationEdge], tuple[int, ...]]
"""One derivation for each class of a body, and the classes that earlier kernels store."""


@dataclass(frozen=True, slots=True)
class KernelBody:
    """The computation of one kernel: `targets`, from the model's inputs and from `leaves`, which
    earlier kernels store.

    `chosen` has a derivation for every other class, operands first. `grid` are the labels that its
    grid may cut.
    """

    targets: tuple[int, ...]
    leaves: tuple[int, ...]
    chosen: tuple[tuple[int, DerivationEdge], ...]
    grid: frozenset[str]

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the inputs and constants that it reads."""
        return tuple(e.kind.reads for _, e in self.chosen if e.kind.reads is not None)

    @property
    def reduced(self) -> frozenset[str]:
        """The labels that it sums over, or takes the maximum of."""
        return frozenset(e.label for _, e in self.chosen if e.label is not None)

    @property
    def cluster(self) -> str | None:
        """The label that its grid cuts and that it folds: blocks along it are a cluster, and
        combine."""
        return next(iter(self.grid & self.reduced), None)

    def joint(self) -> frozenset[int]:
        """The classes that are known once a cluster has combined."""
        found, cluster = set[int](), self.cluster
        for made, edge in self.chosen if cluster is not None else ():
            if edge.label == cluster or not found.isdisjoint(edge.args):
                found.add(made)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """A body with the label that its for-loop cuts, or None."""

    body: KernelBody
    loop: str | None


Plan = tuple[PlannedKernel, ...]
"""The kernels of a muGraph, in the order of their runs; the last one gives the results."""


def bodies(
    space: Space, targets: Sequence[int], limit: int, whole: int, cut: frozenset[str] = frozenset()
) -> list[KernelBody]:
    """The shortest `limit` bodies that compute `targets`, of at most `whole` operators, and some
    more for each loop of a first kernel; those whose grid or loop may cut the labels `cut`."""
    closure = space.closure
    choices = [_varied(space, targets, limit, whole, cut)]
    for loop in () if space.stored else _reduced(closure, targets):
        looped = (_body(space, targets, *each) for each in _chosen(space.looped(loop), targets, whole))
        choices.append(islice((body for body in looped if cuts_all(body, closure, cut)), LOOPED))
    return list(dict.fromkeys(chain(*choices)))


def _body(
    space: Space, targets: Sequence[int], chosen: Mapping[int, DerivationEdge], leaves: tuple[int, ...]
) -> KernelBody:
    order = _ordered(targets, chosen, leaves)
    reduced = {e.label for _, e in order if e.label is not None}
    labels = frozenset[str]().union(*[space.closure.classes[t] for t in targets])
    return KernelBody(tuple(targets), leaves, order, labels - reduced | space.clusters & reduced)


def _varied(space: Space, targets: Sequence[int], limit: int, whole: int, cut: frozenset[str]) -> Iterator[KernelBody]:
    """`limit` bodies, some for each set of classes that earlier kernels store."""
    counts: Counter[tuple[int, ...]] = Counter()
    for chosen, leaves in _chosen(space, targets, whole):
        if leaves and counts[leaves] == ALIKE:
            continue
        body = _body(space, targets, chosen, leaves)
        if not cut or cuts_all(body, space.closure, cut):
            counts[leaves] += 1
            yield body
            limit -= 1
            if limit == 0:
                return


def cuts_all(body: KernelBody, closure: Closure, cut: frozenset[str]) -> bool:
    """Whether the grid or a loop can cut all of the given labels that a body has."""
    rest = labels_of(body, closure) & cut - body.grid if cut else cut
    return not rest or (len(rest) == 1 and rest <= {*loops(body, closure)})


def labels_of(body: KernelBody, closure: Closure) -> set[str]:
    """The labels of all classes that a kernel reads and computes."""
    return {label for c in (*body.leaves, *(c for c, _ in body.chosen)) for label in closure.classes[c]}


def _reduced(closure: Closure, targets: Sequence[int]) -> list[str]:
    """The labels that none of the targets has, and that are summed over on the way to them."""
    have = frozenset().union(*[closure.classes[t] for t in targets])
    return sorted({e.label for edges in closure.edges for e in edges if e.label is not None} - have)


def loops(body: KernelBody, closure: Closure) -> list[str | None]:
    """None, and every label that a for-loop over this body may cut: one that no result has, and of
    which nothing after the loop meets a value within it. A derivation that takes one pass for the
    sake of a loop, and has other derivations as well, has that loop."""
    labels = {x for c, _ in body.chosen for x in closure.classes[c]} | {
        x for c in body.leaves for x in closure.classes[c]
    }
    free = labels.difference(*[closure.classes[t] for t in body.targets])
    one_pass = {e.label for c, e in body.chosen if e.kind.one_pass and len(closure.edges[c]) > 1}
    found: list[str | None] = [None, *(x for x in sorted(free) if class_phases(body, closure, x) is not None)]
    return [loop for loop in found if one_pass <= {loop}]


INVARIANT, INSIDE, AFTER = range(3)


def class_phases(body: KernelBody, closure: Closure, loop: str) -> dict[int, int] | None:
    """Whether each class is invariant, within the loop over a label, or known after it; None where
    the two meet, or a cluster would combine in every iteration."""
    found = {leaf: INSIDE if loop in closure.classes[leaf] else INVARIANT for leaf in body.leaves}
    for made, edge in body.chosen:
        below = {found[a] for a in edge.args}
        if edge.kind.reads is not None:
            found[made] = INSIDE if loop in closure.classes[made] else INVARIANT
        elif edge.label == loop:
            if AFTER in below or not edge.kind.accumulates:
                return None
            found[made] = AFTER
        elif below >= {INSIDE, AFTER} or (INSIDE in below and edge.label is not None and edge.label == body.cluster):
            return None
        else:
            found[made] = max(below)
    if AFTER not in found.values() or any(found[t] == INSIDE for t in body.targets):
        return None
    return found


@dataclass(frozen=True, slots=True)
class Limits:
    """How many `kernels` of a muGraph; bodies tried for each of them in muGraphs of up to two
    kernels and in longer ones; the operators of a body; muGraphs that are tried, of up to two
    kernels and of each longer length. `clusters`: whether a single kernel may fold a split
    reduction in a cluster. `folded`: whether, without products, kernels hand over values that folds
    alone derive. `cut`: the labels of which no kernel has a tile as long as they are."""

    kernels: range = range(1, 3)
    operators: int = 18
    bodies: int = 24
    longer: int = 8
    plans: int = 4000
    clusters: bool = False
    folded: bool = False
    cut: frozenset[str] = frozenset()


def plans(closure: Closure, limits: Limits, keep: Callable[[KernelBody], bool] = lambda body: True) -> Iterator[Plan]:
    """muGraphs, those of fewer kernels first; `keep` tells which bodies are wanted for a first
    kernel.

    A reduction that is split over the grid (split-K of a product, split-KV of attention) takes two
    kernels or more: some compute one part in each block, and a later one combines the parts.
    """
    made = _Plans(closure, limits, keep)
    short = [made.ending(closure.targets, 1)] if 1 in limits.kernels else []
    short += [made.two(closure.targets)] if 2 in limits.kernels else []
    yield from islice(chain(*short), limits.plans)
    for number in (n for n in limits.kernels if n > 2):
        yield from islice(made.ending(closure.targets, number, limits.longer), limits.plans)


class _Plans:
    """The known bodies, by their results and by how many kernels may run before them (2 for
    more)."""

    def __init__(self, closure: Closure, limits: Limits, keep: Callable[[KernelBody], bool]) -> None:
        self.closure, self.limits, self.keep = closure, limits, keep
        self.outer = {outer for outer, _ in closure.goal.split.values()}
        combining = (False, True) if self.outer else (False,)
        self.spaces = [[space(closure, before, each, limits.folded) for each in combining] for before in range(3)]
        self.known: dict[tuple[tuple[int, ...], int], list[KernelBody]] = {}

    def ending(self, targets: tuple[int, ...], number: int, limit: int | None = None) -> Iterator[Plan]:
        """The muGraphs of `number` kernels that give some classes; `limit` bodies of each kernel
        that lead to any."""
        leading = 0
        for body in self.bodies(targets, min(number - 1, 2)):
            if leading == limit:
                return
            plan = None
            for plan in self._before(body, number, limit):
                yield plan
            leading += plan is not None

    def _before(self, body: KernelBody, number: int, limit: int | None) -> Iterator[Plan]:
        """The muGraphs of `number` kernels of which this is the last."""
        before: Iterator[Plan] = self.ending(body.leaves, number - 1, limit) if number > 1 else iter(((),))
        here = [x for x in loops(body, self.closure) if x not in self.outer and self._cuts(body, x)]
        for plan in before:
            yield from ((*plan, PlannedKernel(body, loop)) for loop in here)

    def _cuts(self, body: KernelBody, loop: str | None) -> bool:
        """Whether a kernel cuts all labels of which it may have no tile as long."""
        cut = self.limits.cut - body.grid - {loop or ""}
        return not cut or cut.isdisjoint(labels_of(body, self.closure))

    def two(self, targets: tuple[int, ...]) -> Iterator[Plan]:
        """The muGraphs of two kernels, some for each second one before more of any: a cap then
        leaves no hand-over out."""
        left = [self._before(each, 2, None) for each in self.bodies(targets, 1)]
        while left:
            for each in tuple(left):
                found = list(islice(each, TURN))
                yield from found
                if len(found) < TURN:
                    left.remove(each)

    def bodies(self, targets: tuple[int, ...], before: int) -> list[KernelBody]:
        key = targets, before
        if key not in self.known:
            limits = self.limits
            sizes = limits.bodies, limits.operators, limits.cut
            found = [b for each in self.spaces[before] for b in bodies(each, targets, *sizes)]
            if limits.clusters and self.outer and not before and targets == self.closure.targets:
                longer = limits.operators + COMBINING
                found += bodies(cluster_space(self.closure), targets, limits.bodies, longer, limits.cut)
            found = [b for b in dict.fromkeys(found) if self._splits_well(b) and (before or self.keep(b))]
            self.known[key] = found
        return self.known[key]

    def _splits_well(self, body: KernelBody) -> bool:
        """Whether every block has one part of a split label, or none has: readers of parts have
        them on their grid, or combine them."""
        reads = {c for c, e in body.chosen if e.kind.reads is not None} | {*body.leaves}
        labels = {x for c in reads for x in self.closure.classes[c]} & self.outer
        return labels <= body.grid or not self.outer.isdisjoint(body.reduced)


@dataclass(frozen=True)
class Space:
    """The derivations that a kernel may use, and the classes that an earlier one may store for it:
    none for a first one. The labels of `clusters` it may both cut and fold."""

    closure: Closure
    edges: Sequence[Sequence[DerivationEdge]]
    storable: frozenset[int]
    stored: bool
    clusters: frozenset[str] = frozenset()

    @cached_property
    def needs(self) -> list[int]:
        """The number of operators that derive each class, if none is shared."""
        return self._least(sum, self.leaf)

    @cached_property
    def depths(self) -> list[int]:
        """The smallest number of operators that derive each class if all is shared: the length of
        the shortest chain; 0 for an input."""
        return self._least(max, lambda c: 0)

    def _least(self, joined: Callable[[Iterable[int]], int], leaf: Callable[[int], int]) -> list[int]:
        found = [UNDERIVED] * len(self.edges)
        for c, edges in enumerate(self.edges):
            if any(e.kind.reads is not None for e in edges):
                found[c] = 0
            elif c in self.storable:
                found[c] = leaf(c)
        changed = True
        while changed:
            changed = False
            for c, edges in enumerate(self.edges):
                costs = [1 + joined([found[a] for a in e.args]) for e in edges if e.kind.reads is None]
                least = min(costs, default=UNDERIVED)
                if least < found[c]:
                    found[c], changed = least, True
        return found

    def leaf(self, c: int) -> int:
        """The cost, in operators, of a class that an earlier kernel stores and this one reads: it
        grows with the number of axes."""
        return max(len(self.closure.classes[c]), 1)

    def looped(self, loop: str) -> Space:
        """The derivations inside a loop over a label: classes that have the label use no class that
        is known only after the loop."""
        classes = self.closure.classes
        known = _derived(self.edges, lambda c, edge: loop not in classes[c] and edge.label != loop)
        have = {c for c, labels in enumerate(classes) if loop in labels} | known
        edges = [
            [e for e in made if loop not in classes[c] or have.issuperset(e.args)] for c, made in enumerate(self.edges)
        ]
        return replace(self, edges=edges)


def cluster_space(closure: Closure) -> Space:
    """A single kernel whose blocks combine the parts of a split reduction, each once it has the
    whole of its own."""
    inner = dict(closure.goal.split.values())

    def early(edge: DerivationEdge) -> bool:
        part = inner.get(edge.label or "")
        return part is not None and not (edge.kind.combines and all(part not in closure.classes[a] for a in edge.args))

    edges = [[e for e in made if not early(e)] for made in closure.edges]
    return Space(closure, edges, frozenset(), False, frozenset(inner))


def space(closure: Closure, before: int, combines: bool, folded: bool = False) -> Space:
    """A kernel with no, one or more kernels `before` it.

    A split reduction either `combines` partial results, without their operands, or computes parts:
    it does not sum over them. Where it is `folded`, and nothing is multiplied as matrices are, a
    kernel hands over values that only folds derive: computing the rest again costs less than
    storing it.
    """
    any_ = not folded or any(e.kind is DOT for made in closure.edges for e in made)
    outer, inner = (frozenset(pair[i] for pair in closure.goal.split.values()) for i in (0, 1))
    partial = _derived(closure.edges, lambda c, edge: edge.label not in outer)
    edges: list[list[DerivationEdge]] = []
    kept = set[int]()
    for c, (made, labels) in enumerate(zip(closure.edges, closure.classes, strict=True)):
        parts, whole = labels & outer, outer.isdisjoint(labels) and inner.isdisjoint(labels)
        edges.append([e for e in made if (not parts or e.kind.reads is None if combines else e.label not in outer)])
        ready = inner.isdisjoint(labels) and c in partial if combines else inner <= labels
        computed = (any_ or all(e.label is not None for e in made)) and not any(e.kind.reads is not None for e in made)
        if (whole or ready) and (before > 1 or c in partial) and computed:
            kept.add(c)
    return Space(closure, edges, frozenset(kept if before else ()), before > 0)


def _derived(edges: Sequence[Sequence[DerivationEdge]], allowed: Callable[[int, DerivationEdge], bool]) -> set[int]:
    """The classes that are derived by allowed edges alone."""
    found = set[int]()
    before = -1
    while len(found) > before:
        before = len(found)
        found |= {c for c, made in enumerate(edges) if any(allowed(c, e) and found.issuperset(e.args) for e in made)}
    return found


def _chosen(space: Space, targets: Sequence[int], whole: int) -> Iterator[_Choice]:
    """Consistent choices of derivations, short ones first: a best-first search by the cost of the
    choices plus the smallest cost of each waiting class. Shared classes are counted several times,
    so the order is only approximately that of the lengths."""
    numbers, needs, depths = count(), space.needs, space.depths
    start = tuple(dict.fromkeys(targets))
    queue: list[tuple[int, int, int, dict[int, DerivationEdge], tuple[int, ...], tuple[int, ...]]] = []
    heapq.heappush(queue, (sum(needs[t] for t in start), next(numbers), 0, {}, (), start))
    for _ in range(STEPS):
        if not queue or queue[0][0] >= UNDERIVED:
            return
        _, _, length, chosen, leaves, waiting = heapq.heappop(queue)
        if not waiting:
            if bool(leaves) == space.stored:
                yield chosen, tuple(sorted(leaves))
            continue
        made, rest = waiting[-1], waiting[:-1]
        ahead = sum(needs[w] for w in rest)
        if made in space.storable and made not in targets and len(leaves) < CUT:
            longer = length + space.leaf(made)
            heapq.heappush(queue, (longer + ahead, next(numbers), longer, chosen, (*leaves, made), rest))
        for edge in space.edges[made]:
            longer = length + edge.kind.operators
            new = [a for a in dict.fromkeys(edge.args) if a not in chosen and a not in leaves and a not in rest]
            least = max([len([w for w in (*rest, *new) if depths[w]]), *[depths[w] for w in (*rest, *new)]])
            if longer + least > whole + sum(map(space.leaf, leaves)) or _circular(made, edge, chosen):
                continue
            price = longer + ahead + sum(needs[a] for a in new)
            heapq.heappush(queue, (price, next(numbers), longer, {**chosen, made: edge}, leaves, (*rest, *new)))


def _circular(made: int, edge: DerivationEdge, chosen: Mapping[int, DerivationEdge]) -> bool:
    """Whether a derivation would rest on its own result."""
    stack, seen = list(edge.args), set[int]()
    while stack:
        below = stack.pop()
        if below == made:
            return True
        if below not in seen and below in chosen:
            seen.add(below)
            stack += chosen[below].args
    return False


def _ordered(
    targets: Sequence[int], chosen: Mapping[int, DerivationEdge], leaves: Sequence[int]
) -> tuple[tuple[int, DerivationEdge], ...]:
    """The chosen derivations, operands first."""
    order: dict[int, DerivationEdge] = {}
    stack = list(targets)[::-1]
    while stack:
        made = stack[-1]
        waiting = (
            []
            if made in order or made in leaves
            else [a for a in chosen[made].args if a not in order and a not in leaves]
        )
        if waiting:
            stack += waiting[::-1]
            continue
        stack.pop()
        if made not in order and made not in leaves:
            order[made] = chosen[made]
    return tuple(order.items())
