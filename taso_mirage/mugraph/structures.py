"""muGraphs without sizes: the derivations that each kernel computes, and the role of every axis in
it (Mirage, OSDI'25, section 4).

A body is a choice of one derivation for every class that a kernel needs; the grid takes labels that
a result has (one without it is the same in all blocks along it), the for-loop one that none has.
The grid part of a split reduction may be folded in a cluster, whose blocks combine their parts.
Bodies come in the order of their length, so that a cap keeps the simplest ones, and some for each
loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivation_space import Space, cluster_space, derivation_choices, space
from taso_mirage.mugraph.derivations.kind import DerivationEdge
from taso_mirage.mugraph.kernel_bodies import KernelBody, Plan, PlannedKernel, cuts_all, labels_of, loops

LOOPED = 4
"""The number of bodies that are considered for each label that a first kernel may loop over."""
COMBINING = 6
"""The further operators that a body may have whose blocks are a cluster: two kernels in one."""
ALIKE = 2
"""The number of bodies that are considered for the same classes of earlier kernels."""
TURN = 16
"""The number of muGraphs of two kernels that come with one second kernel before those with the
next."""


def bodies(
    space: Space, targets: Sequence[int], limit: int, whole: int, cut: frozenset[str] = frozenset()
) -> list[KernelBody]:
    """The shortest `limit` bodies that compute `targets`, of at most `whole` operators, and some
    more for each loop of a first kernel; those whose grid or loop may cut the labels `cut`."""
    closure = space.closure
    found = [_varied(space, targets, limit, whole, cut)]
    for loop in () if space.stored else _reduced(closure, targets):
        looped = (_body(space, targets, *each) for each in derivation_choices(space.looped(loop), targets, whole))
        found.append(islice((body for body in looped if cuts_all(body, closure, cut)), LOOPED))
    return list(dict.fromkeys(chain(*found)))


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
    for chosen, leaves in derivation_choices(space, targets, whole):
        if leaves and counts[leaves] == ALIKE:
            continue
        body = _body(space, targets, chosen, leaves)
        if not cut or cuts_all(body, space.closure, cut):
            counts[leaves] += 1
            yield body
            limit -= 1
            if limit == 0:
                return


def _reduced(closure: Closure, targets: Sequence[int]) -> list[str]:
    """The labels that none of the targets has, and that are summed over on the way to them."""
    have = frozenset().union(*[closure.classes[t] for t in targets])
    return sorted({e.label for edges in closure.edges for e in edges if e.label is not None} - have)


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
