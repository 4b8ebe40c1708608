"""The derivations that a kernel may use, and the consistent choices of them, short ones first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.kind import DerivationEdge
from taso_mirage.mugraph.derivations.reductions import DOT

STEPS = 6_000
"""The largest number of partial bodies that are tried for one kernel."""
UNDERIVED = 10**6
CUT = 5
"""The largest number of classes that one kernel may pass to the next."""
_Choice = tuple[Mapping[int, DerivationEdge], tuple[int, ...]]
"""One derivation for each class of a body, and the classes that earlier kernels store."""


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


def derivation_choices(space: Space, targets: Sequence[int], whole: int) -> Iterator[_Choice]:
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
