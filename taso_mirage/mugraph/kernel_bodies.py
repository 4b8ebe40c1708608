"""The computation of one kernel, before sizes: its body, the labels that its grid and its loop may
cut, and when each class is known."""

from __future__ import annotations

from dataclasses import dataclass

from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.kind import DerivationEdge


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


def cuts_all(body: KernelBody, closure: Closure, cut: frozenset[str]) -> bool:
    """Whether the grid or a loop can cut all of the given labels that a body has."""
    rest = labels_of(body, closure) & cut - body.grid if cut else cut
    return not rest or (len(rest) == 1 and rest <= {*loops(body, closure)})


def labels_of(body: KernelBody, closure: Closure) -> set[str]:
    """The labels of all classes that a kernel reads and computes."""
    return {label for c in (*body.leaves, *(c for c, _ in body.chosen)) for label in closure.classes[c]}


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
