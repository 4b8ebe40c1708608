"""Where two multi-linear programs agree, box by box, by random tests in a finite field (PET,
OSDI'21, section 5, Theorems 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import LEAVES, Graph, Node, Tensor, is_float, topological
from taso_mirage.meanings.boxes import BOXES
from taso_mirage.meanings.degree import DEGREE
from taso_mirage.meanings.field import Field, Residues
from taso_mirage.meanings.residues import MODULI, P
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.slicing import sizes, slice_source, whole
from taso_mirage.operators.traits import Box
from taso_mirage.operators.work import count, work
from taso_mirage.search.partial.cells import boxes, splits
from taso_mirage.search.partial.restrict import Restriction

WHOLE = 2 * 10**8
"""The largest number of operations in the field with which all elements are compared (tenths of a
second)."""
BOX = 1 / 200
"""The share of that number which the comparison of a box at points takes. If there are many boxes,
comparing all elements may take more operations."""
MANY = 2000
"""The largest number of boxes that are compared at points (seconds)."""
LONGEST = 2 * 10**10
"""The largest number of operations in the field with which all elements are compared if there are
no points (about ten seconds)."""
WIDE = 2 * 10**9
"""The largest number of operations of trials that run side by side; it bounds the memory."""
ELEMENTS = 2**26
"""Elements of a term in the trials that are run side by side, at most: 1 GiB.

A program with a larger term is not compared.
"""
APART = 1000
"""A number larger than the number of trials, so that two seeds share no trial."""


@dataclass(frozen=True, eq=False, slots=True)
class AgreementRegion:
    """The boxes of one output: the ends of the intervals of each dim, and in how many trials each
    box agreed."""

    edges: tuple[tuple[int, ...], ...]
    passed: NDArray[np.int64]
    trials: int

    @property
    def same(self) -> NDArray[np.bool_]:
        """For each box whether it agreed in every trial."""
        found: NDArray[np.bool_] = self.passed == self.trials
        return found

    def boxes(self, agree: bool) -> Iterator[Box]:
        """Every box that agrees, or every one that does not."""
        for index in np.argwhere(self.same == agree):
            yield tuple((e[i], e[i + 1]) for e, i in zip(self.edges, index.tolist(), strict=True))

    @property
    def share(self) -> float:
        """The part of the elements that lie in boxes that agree."""
        found = self.same.astype(np.int64)
        for own in reversed(self.edges):
            found = found @ np.diff(own)
        return int(found) / prod(own[-1] for own in self.edges)


@dataclass(frozen=True, eq=False, slots=True)
class Agreement:
    """The region of each output; a box that does not agree passed as one that does with a
    probability of at most `bound`.

    `whole`: all elements were compared. Else 2^m neighbouring elements of each box were, among them
    the m + 1 of Theorem 1, which takes for granted that all summands of an element move alike
    within a box; so a program that is kept is compared whole.
    """

    regions: tuple[AgreementRegion, ...]
    trials: int
    leaves: int
    whole: bool

    @property
    def bound(self) -> float:
        """(n / p)^t with n inputs and t trials: Theorem 2."""
        return float((self.leaves / P) ** self.trials)

    @property
    def total(self) -> bool:
        """Whether the programs agree everywhere."""
        return all(r.same.all() for r in self.regions)


def agreement(original: Graph, mutant: Graph, trials: int = 8, seed: int = 0, limit: int = WHOLE) -> Agreement:
    """Compare two programs of fixed sizes over the same leaves; constants keep their values.

    All elements are compared if that takes at most `limit` operations (more if there are many
    boxes), otherwise a few of each box. Raises Unsupported where a program is not linear in each
    leaf or reads a leaf that the original does not, where types differ, and where comparing takes
    too long.
    """
    leaves = _checked(original, mutant)
    refined = _refined(original, mutant)
    flops = trials * field_work((*original.outputs, *mutant.outputs))
    cells = sum(prod(len(own) - 1 for own in edges) for edges in refined)
    if flops > limit * max(1.0, BOX * cells):
        if cells > MANY:
            raise Unsupported(
                f"{cells} boxes are too many to compare ({MANY} at most, where all of them take {flops:.0e} operations)"
            )
        try:
            passed = _points(original, mutant, leaves, refined, trials, seed)
            return Agreement(_regions(refined, passed, trials), trials, len(leaves), False)
        except Unsupported as error:  # no restriction to points: all of it, then
            if flops > LONGEST:
                raise Unsupported(f"comparing takes {flops:.0e} operations ({LONGEST:.0e} at most): {error}") from None
    passed = _everywhere(original, mutant, leaves, refined, trials, seed)
    return Agreement(_regions(refined, passed, trials), trials, len(leaves), True)


def program_leaves(outputs: Sequence[Node]) -> list[Node]:
    return [n for n in topological(outputs) if n.op in LEAVES]


def field_work(outputs: Sequence[Node]) -> int:
    """Operations of one trial, which computes modulo two primes; a copied element counts as one."""
    return 2 * sum(work(n, {}).flops + count(n.tensor) for n in topological(outputs) if n.args and _one(n))


def widest(outputs: Sequence[Node]) -> int:
    """Elements of the largest term."""
    return max(1, *(count(n.tensor) for n in topological(outputs) if isinstance(n.type, Tensor)))


def _one(node: Node) -> bool:
    return not isinstance(node.type, tuple) and all(not isinstance(a.type, tuple) for a in node.args)


def _checked(original: Graph, mutant: Graph) -> list[Node]:
    leaves = program_leaves(original.outputs)
    if strange := [n for n in program_leaves(mutant.outputs) if n not in leaves]:
        raise Unsupported(f"the mutant reads {strange[0].attr('name')}, which the original does not")
    for node in (*leaves, *original.outputs):
        if not all(isinstance(n, int) and n > 0 for n in node.shape):
            raise Unsupported(f"{node.op} of {node.type}: every size must be fixed, and at least 1")
    if counted := [n for n in leaves if not is_float(n.dtype)]:
        raise Unsupported(f"{counted[0].attr('name')} is {counted[0].dtype}; a program of floats is asked for")
    if (n := widest([*original.outputs, *mutant.outputs])) > ELEMENTS:
        raise Unsupported(f"a term has {n} elements, {ELEMENTS} at most are compared")
    for i, (a, b) in enumerate(zip(original.outputs, mutant.outputs, strict=True)):
        if a.type != b.type:
            raise Unsupported(f"output {i} has the type {a.type}, the mutant's {b.type}; a mutant keeps types")
    for graph in (original, mutant):
        notes = {n: (n.tensor, {str(n.attr("name")): 1.0}) for n in leaves}
        for output, (_, degrees) in interpret(graph.outputs, DEGREE, notes).items():
            if high := [name for name, degree in degrees.items() if degree > 1]:
                raise Unsupported(f"{output.op} has degree {degrees[high[0]]:g} in {high[0]}; 1 is the most")
    return leaves


def _refined(original: Graph, mutant: Graph) -> list[tuple[tuple[int, ...], ...]]:
    """For each output and dim the ends of the intervals of the boxes of both programs."""
    env = {n: BOXES.leaf(n.tensor) for n in program_leaves([*original.outputs, *mutant.outputs])}
    both = zip(original.outputs, splits(original.outputs, env), splits(mutant.outputs, env), strict=True)
    return [
        tuple((0, *sorted(a | b), int(n)) for n, a, b in zip(node.shape, left, right, strict=True))
        for node, left, right in both
    ]


def _regions(
    refined: list[tuple[tuple[int, ...], ...]], passed: list[NDArray[np.int64]], n: int
) -> tuple[AgreementRegion, ...]:
    return tuple(AgreementRegion(edges, counts, n) for edges, counts in zip(refined, passed, strict=True))


def _everywhere(
    original: Graph,
    mutant: Graph,
    leaves: list[Node],
    refined: list[tuple[tuple[int, ...], ...]],
    trials: int,
    seed: int,
) -> list[NDArray[np.int64]]:
    passed = [np.zeros([len(e) - 1 for e in edges], np.int64) for edges in refined]
    for i, wrong in differing_elements(original.outputs, mutant.outputs, leaves, trials, seed):
        for axis, own in enumerate(refined[i]):
            wrong = np.logical_or.reduceat(wrong, own[:-1], axis + 1)
        passed[i] += (~wrong).sum(axis=0)
    return passed


def differing_elements(
    left: Sequence[Node], right: Sequence[Node], leaves: Sequence[Node], trials: int, seed: int
) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """For each output and some of the trials, until all were run: which elements differ, (trials,
    *shape)."""
    nodes = [*left, *right]
    wide = max(1, min(trials, WIDE // max(1, field_work(nodes)), ELEMENTS // widest(nodes)))
    for start in range(0, trials, wide):
        xp = Field(min(wide, trials - start), seed * APART + start)
        values = interpret(nodes, xp, {n: xp.fresh(n.tensor) for n in leaves})
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            yield i, differing(values[a], values[b])


def differing(a: Residues, b: Residues) -> NDArray[np.bool_]:
    """For each trial which elements differ, modulo either prime.

    Raises Unsupported where a trial does not decide.
    """
    if not (a.valid & b.valid).all():
        raise Unsupported(f"a constant divisor is 0 modulo one of {MODULI.tolist()}")
    found: NDArray[np.bool_] = (a.data != b.data).any(axis=0)
    return found


def _points(
    original: Graph,
    mutant: Graph,
    leaves: list[Node],
    refined: list[tuple[tuple[int, ...], ...]],
    trials: int,
    seed: int,
) -> list[NDArray[np.int64]]:
    """The two programs restricted to the first two positions of each interval of a box."""
    restrict, pairs = Restriction(), []
    for edges, a, b in zip(refined, original.outputs, mutant.outputs, strict=True):
        cells = boxes([e[-1] for e in edges], tuple(frozenset(e[1:-1]) for e in edges))
        corners = [tuple((low, min(low + 2, high)) for low, high in cell) for cell in cells]
        pairs.append([(restrict(a, c), restrict(b, c)) for c in corners])
    nodes = [n for own in pairs for pair in own for n in pair]
    wide, read = max(1, min(trials, ELEMENTS // widest([*nodes, *leaves]))), _read(nodes, leaves)
    found = [np.zeros([len(e) - 1 for e in edges], np.int64) for edges in refined]
    for start in range(0, trials, wide):
        xp = Field(min(wide, trials - start), seed * APART + start)
        values = interpret(nodes, xp, {n: _drawn(xp, n, parts) for n, parts in read.items()})
        for passed, own in zip(found, pairs, strict=True):
            wrong = [differing(values[a], values[b]).reshape(xp.trials, -1).any(axis=1) for a, b in own]
            passed += (~np.array(wrong)).sum(axis=1).reshape(passed.shape)
    return found


def _read(nodes: Sequence[Node], leaves: Sequence[Node]) -> dict[Node, set[Box]]:
    """For each leaf the boxes of it that are read."""
    found: dict[Node, set[Box]] = {n: {whole(n)} if n in nodes else set() for n in leaves}
    for node in topological(nodes):
        base, part = slice_source(node)
        for x, box in [(a, whole(a)) for a in node.args] if base is node else [(base, part)]:
            if x in found:
                found[x].add(box)
    return found


def _drawn(xp: Field, leaf: Node, read: Iterable[Box]) -> Residues:
    """Random residues where a leaf is read; the rest of a large one costs neither time nor memory
    (zeros are not touched)."""
    there = np.zeros(sizes(leaf), bool)
    for box in read:
        there[tuple(slice(*interval) for interval in box)] = True
    places = np.nonzero(there.reshape(-1))[0]
    part = xp.fresh(Tensor(leaf.dtype, (len(places),)))
    data = np.zeros((2, xp.trials, there.size), np.int64)
    data[:, :, places] = part.data
    return replace(part, data=data.reshape(2, xp.trials, *there.shape))
