"""Parts of a result: the rewrites that depend on each other, and the result without some of
them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from taso_mirage.ir.terms import Node, topological, with_args
from taso_mirage.operators.expressions import is_weight
from taso_mirage.search.steps import RewriteStep, replay, used

INSIDE = 64
"""The largest number of visited terms of a step; a deeper term counts as an operand."""
SINGLE = 400_000
"""The largest product of terms and steps for which steps of several equations are split into single
ones."""


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """Rewrites that depend on each other, at all places with equal rewrites: the names of their
    equations, the number of places, and the numbers of the steps."""

    equations: tuple[str, ...]
    places: int
    steps: tuple[int, ...]

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in dict.fromkeys(self.equations))
        return f"{names} in {self.places} place{'s' if self.places > 1 else ''}"


def single_steps(outputs: Sequence[Node], steps: Sequence[RewriteStep]) -> list[RewriteStep]:
    """The steps, those of several equations as single ones where these lead to the same terms."""
    flat = [each for step in steps for each in (step.details or (step,))]
    if len(flat) * len(topological(outputs)) > SINGLE or replay(outputs, flat) != replay(outputs, steps):
        return list(steps)
    return flat


def change_kinds(outputs: Sequence[Node], steps: Sequence[RewriteStep]) -> list[ChangeKind]:
    """The kinds of changes of some steps.

    Two steps depend on each other if one replaces a term that the other made. A step that only
    removes terms, or computes weights in advance, has no kind, because it cannot be slower.
    """
    chains = _Chains(outputs)
    for group in _groups(steps):
        chains.add([steps[i] for i in group], group)
    found: dict[tuple[str, ...], list[list[int]]] = {}
    for chain in chains.found():
        if any(i in chains.making for i in chain):
            found.setdefault(tuple(sorted(e for i in chain for e in steps[i].equations)), []).append(chain)
    return [
        ChangeKind(
            tuple(e for i in chains[0] for e in steps[i].equations),
            len(chains),
            tuple(sorted(i for chain in chains for i in chain)),
        )
        for chains in found.values()
    ]


def steps_without(
    outputs: Sequence[Node], steps: Sequence[RewriteStep], left_out: Container[int]
) -> tuple[RewriteStep, ...]:
    """The steps without some, given by number, over the terms that then exist.

    Each step states that two terms are equal, and this remains true for other operands: a term that
    an omitted step would have made is the term that the step would have replaced. Steps that then
    replace nothing are omitted, too.
    """
    rebased = _Rebased(outputs)
    for group in _groups(steps):
        rebased.add([steps[i] for i in group], [i in left_out for i in group])
    return tuple(rebased.steps)


def _groups(steps: Sequence[RewriteStep]) -> Iterator[list[int]]:
    """Groups of numbers of steps that are applied at once: the steps of each sweep, and every other
    step alone."""
    for sweep, numbers in groupby(range(len(steps)), key=lambda i: steps[i].sweep):
        group = list(numbers)
        yield from [group] if sweep else ([i] for i in group)


class _Chains:
    """Sets of steps that depend on each other."""

    def __init__(self, outputs: Sequence[Node]) -> None:
        self.current = tuple(outputs)
        self.seen = set(topological(outputs))
        self.makers: dict[Node, int] = {}
        self.parents: list[int] = []
        self.making: set[int] = set()
        """The steps that made terms which were not there before."""

    def add(self, group: Sequence[RewriteStep], numbers: Sequence[int]) -> None:
        for number, step in zip(numbers, group, strict=True):
            self.parents.append(number)
            self._link(number, step)
        moved = replay((*self.current, *self.makers), group)
        self.current, made = moved[: len(self.current)], moved[len(self.current) :]
        alive = topological(self.current)
        self.seen.update(alive)
        makers = {**self.makers, **dict(zip(made, self.makers.values(), strict=True))}
        self.makers = {node: makers[node] for node in alive if node in makers}

    def _link(self, number: int, step: RewriteStep) -> None:
        self.seen.update(topological(step.old, stop=self.seen))
        fresh = topological(step.new, stop=self.seen)
        operands = {a for n in fresh for a in n.args}.union(step.new).difference(fresh)
        for node in _inside(step.old, operands):
            if node in self.makers:
                self.parents[self._root(number)] = self._root(self.makers[node])
        made = [n for n in fresh if not is_weight(n)]
        self.makers.update(dict.fromkeys(made, number))
        self.seen.update(fresh)
        if not set(made).isdisjoint(step.new):
            self.making.add(number)

    def _root(self, number: int) -> int:
        while self.parents[number] != number:
            number = self.parents[number]
        return number

    def found(self) -> Iterable[list[int]]:
        chains: dict[int, list[int]] = {}
        for number in range(len(self.parents)):
            chains.setdefault(self._root(number), []).append(number)
        return chains.values()


def _inside(outputs: Sequence[Node], operands: Container[Node]) -> list[Node]:
    """The terms of a replaced side above its operands."""
    found: dict[Node, None] = {}
    pending = list(outputs)
    while pending and len(found) < INSIDE:
        node = pending.pop(0)
        if node not in found and node not in operands and node.args and not is_weight(node):
            found[node] = None
            pending += node.args
    return list(found)


class _Rebased:
    """A replay of steps from which some are left out."""

    def __init__(self, outputs: Sequence[Node]) -> None:
        self.full = self.partial = tuple(outputs)
        self.steps: list[RewriteStep] = []
        self.done: dict[Node, Node] = {}
        """For each term, the term that stands in its place; terms over such operands follow."""
        self.kept: dict[Node, Node] = {}
        """The terms that left-out steps would have made, with the terms in their place."""
        self._images(outputs)

    def add(self, group: Sequence[RewriteStep], left_out: Sequence[bool]) -> None:
        taken = []
        for step, out in zip(group, left_out, strict=True):
            old = self._images(step.old)
            if out:
                kept = {new: each for new, each in zip(step.new, old, strict=True) if new not in self.done}
                self.done |= kept
                self.kept |= kept
            new = self._images(step.new)
            if old != new:
                taken.append(replace(step, old=old, new=new, details=()))
        self._take(taken)
        self._carry(group, taken)

    def _take(self, taken: Sequence[RewriteStep]) -> None:
        """The steps that replace something."""
        found = used(self.partial, taken)
        self.steps += [step for step in taken if not found.isdisjoint(step.old)]
        self.partial = replay(self.partial, taken)

    def _carry(self, group: Sequence[RewriteStep], taken: Sequence[RewriteStep]) -> None:
        """Replay a group of steps on the keys of `kept`, so that it also has terms over operands
        that the group rewrote."""
        moved = replay((*self.full, *self.kept), group)
        values = replay(tuple(self.kept.values()), taken)
        self.full = moved[: len(self.full)]
        kept = dict(zip(moved[len(self.full) :], values, strict=True))
        alive = set(topological(self.full))
        known = self.done.keys() - self.kept.keys()
        self.kept = {node: value for node, value in kept.items() if node in alive and node not in known}
        self.done |= self.kept
        self._images(self.full)

    def _images(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        for node in topological(nodes, stop=self.done):
            self.done[node] = with_args(node, tuple([self.done[a] for a in node.args]))
        return tuple([self.done[node] for node in nodes])
