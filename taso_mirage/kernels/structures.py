"""muGraphs before sizes: which derivations each kernel computes, and the role of every axis in it (Mirage, OSDI'25, section 4).

A body is a choice of one derivation for every class that a kernel needs; the grid takes labels that all of its results have, the
for-loop one that none of them has. Bodies come in the order of their length, so that a cap keeps the simplest ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice

from taso_mirage.kernels.closure import Closure, Edge

LEAF = 2
"""What a class costs, in operators, that an earlier kernel stores and this one reads."""
STEPS = 20_000
"""Partial bodies looked at for one kernel, at most."""
UNDERIVED = 10**6
CUT = 3
"""Classes that one kernel may hand to the next."""


@dataclass(frozen=True, slots=True)
class Body:
    """What one kernel computes: `targets`, from the model's inputs and from `leaves`, which earlier kernels store.

    `chosen` has a derivation for every other class, operands first. `grid` are the labels that its grid may cut.
    """

    targets: tuple[int, ...]
    leaves: tuple[int, ...]
    chosen: tuple[tuple[int, Edge], ...]
    grid: frozenset[str]

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the inputs and constants that it reads."""
        return tuple(e.name for _, e in self.chosen if e.op == "input")

    @property
    def reduced(self) -> frozenset[str]:
        """The labels that it sums over, or takes the maximum of."""
        return frozenset(e.label for _, e in self.chosen if e.label is not None)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A body with the label that its for-loop cuts, or None."""

    body: Body
    loop: str | None


Plan = tuple[Kernel, ...]
"""The kernels of a muGraph, in the order of their runs; the last one gives the results."""


def bodies(closure: Closure, targets: Sequence[int], limit: int, stored: bool, whole: int) -> list[Body]:
    """The shortest `limit` bodies that compute `targets`, of at most `whole` operators. With `stored` each reads 1 to CUT classes of an
    earlier kernel, without it none."""
    found: list[Body] = []
    for chosen, leaves in islice(_chosen(closure, targets, stored, whole), limit):
        order = _ordered(targets, chosen, leaves)
        reduced = {e.label for _, e in order if e.label is not None}
        common = frozenset.intersection(*[closure.classes[t] for t in targets])
        found.append(Body(tuple(targets), leaves, order, common - reduced))
    return found


def loops(body: Body, closure: Closure) -> list[str | None]:
    """None, and every label that a for-loop over this body may cut: one that no result has, and of which nothing after the loop
    meets a value within it."""
    labels = {x for c, _ in body.chosen for x in closure.classes[c]} | {
        x for c in body.leaves for x in closure.classes[c]
    }
    free = labels.difference(*[closure.classes[t] for t in body.targets])
    return [None, *(x for x in sorted(free) if stages(body, closure, x) is not None)]


INVARIANT, INSIDE, AFTER = range(3)


def stages(body: Body, closure: Closure, loop: str) -> dict[int, int] | None:
    """Whether each class is invariant, within the loop over a label, or known after it; None where the two meet."""
    found = {leaf: INSIDE if loop in closure.classes[leaf] else INVARIANT for leaf in body.leaves}
    for made, edge in body.chosen:
        below = {found[a] for a in edge.args}
        if edge.op == "input":
            found[made] = INSIDE if loop in closure.classes[made] else INVARIANT
        elif edge.label == loop:
            if AFTER in below:
                return None
            found[made] = AFTER
        elif below >= {INSIDE, AFTER}:
            return None
        else:
            found[made] = max(below)
    if AFTER not in found.values() or any(found[t] == INSIDE for t in body.targets):
        return None
    return found


def plans(
    closure: Closure, kernels: int, limit: int, whole: int, keep: Callable[[Body], bool] = lambda body: True
) -> Iterator[Plan]:
    """muGraphs of 1 to `kernels` kernels, those of fewer kernels first. `limit` bounds the bodies looked at for each kernel; `keep`
    tells which are wanted for a first one.

    A split reduction (KERNELS.md: split-K, split-KV) takes two kernels or more, whose last one combines partial results.
    """
    memo: dict[tuple[tuple[int, ...], bool], list[Body]] = {}

    def known(targets: tuple[int, ...], stored: bool) -> list[Body]:
        key = targets, stored
        if key not in memo:
            found = bodies(closure, targets, limit, stored, whole)
            memo[key] = [b for b in found if _splits_well(b, closure, stored) and (stored or keep(b))]
        return memo[key]

    def ending(targets: tuple[int, ...], left: int) -> Iterator[Plan]:
        for body in known(targets, left > 1):
            before: Iterator[Plan] = ending(body.leaves, left - 1) if left > 1 else iter(((),))
            for plan in before:
                for loop in loops(body, closure):
                    if loop not in _outer(closure):
                        yield (*plan, Kernel(body, loop))

    for number in range(2 if closure.goal.split else 1, kernels + 1):
        yield from ending(closure.targets, number)


def _outer(closure: Closure) -> set[str | None]:
    return {outer for outer, _ in closure.goal.split.values()}


def _splits_well(body: Body, closure: Closure, combines: bool) -> bool:
    """Whether every block has one part of a split label, or none has: what reads inputs that are split has it on its grid."""
    reads = {x for c, e in body.chosen if e.op == "input" for x in closure.classes[c]}
    outer = _outer(closure)
    return not (reads & outer) if combines else reads & outer <= body.grid


def _storable(closure: Closure) -> list[bool]:
    """Which classes an earlier kernel may store: of a split reduction what is partial, and no longer has the inner label."""
    split = list(closure.goal.split.values())
    plain = [not any(e.op == "input" for e in made) for made in closure.edges]
    return [
        p and all(outer in labels and inner not in labels for outer, inner in split)
        for p, labels in zip(plain, closure.classes, strict=True)
    ]


def _chosen(
    closure: Closure, targets: Sequence[int], stored: bool, whole: int
) -> Iterator[tuple[Mapping[int, Edge], tuple[int, ...]]]:
    """Consistent choices of derivations, short ones first: best-first by what is chosen and what the classes that wait need at
    least, each for itself. Classes that several share are counted several times, so the order is nearly that of the lengths."""
    numbers, needs, storable = count(), _needs(closure), _storable(closure)
    split = _outer(closure) if stored else set()
    start = tuple(dict.fromkeys(targets))
    queue: list[tuple[int, int, int, dict[int, Edge], tuple[int, ...], tuple[int, ...]]] = []
    heapq.heappush(queue, (sum(needs[t] for t in start), next(numbers), 0, {}, (), start))
    for _ in range(STEPS):
        if not queue:
            return
        _, _, length, chosen, leaves, waiting = heapq.heappop(queue)
        if not waiting:
            if bool(leaves) == stored:
                yield chosen, tuple(sorted(leaves))
            continue
        made, rest = waiting[-1], waiting[:-1]
        ahead = sum(needs[w] for w in rest)
        if stored and storable[made] and made not in targets and len(leaves) < CUT:
            heapq.heappush(queue, (length + LEAF + ahead, next(numbers), length + LEAF, chosen, (*leaves, made), rest))
        for edge in closure.edges[made]:
            if edge.op == "input" and closure.classes[made] & split:
                continue  # partial results are combined without what they are of
            longer = length + (edge.op != "input")
            if longer > whole + LEAF * len(leaves) or _circular(made, edge, chosen):
                continue
            new = [a for a in dict.fromkeys(edge.args) if a not in chosen and a not in leaves and a not in rest]
            price = longer + ahead + sum(needs[a] for a in new)
            heapq.heappush(queue, (price, next(numbers), longer, {**chosen, made: edge}, leaves, (*rest, *new)))


def _needs(closure: Closure) -> list[int]:
    """How many operators derive each class at least, if none is shared."""
    found = [0 if any(e.op == "input" for e in made) else UNDERIVED for made in closure.edges]
    changed = True
    while changed:
        changed = False
        for made, edges in enumerate(closure.edges):
            least = min((1 + sum(found[a] for a in e.args) for e in edges if e.op != "input"), default=UNDERIVED)
            if least < found[made]:
                found[made], changed = least, True
    return found


def _circular(made: int, edge: Edge, chosen: Mapping[int, Edge]) -> bool:
    """Whether a derivation would rest on what it derives."""
    stack, seen = list(edge.args), set[int]()
    while stack:
        below = stack.pop()
        if below == made:
            return True
        if below not in seen and below in chosen:
            seen.add(below)
            stack += chosen[below].args
    return False


def _ordered(targets: Sequence[int], chosen: Mapping[int, Edge], leaves: Sequence[int]) -> tuple[tuple[int, Edge], ...]:
    """The chosen derivations, operands first."""
    order: dict[int, Edge] = {}
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
