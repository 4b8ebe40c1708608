"""Single equations: pairs of one fingerprint class, pruned of common subgraphs and supergraphs,
re-checked, canonical."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, permutations, product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from taso_mirage.generate.enumeration import INPUT, Group, Table
from taso_mirage.generate.family import Assignment, TermKind
from taso_mirage.generate.values import TermValues
from taso_mirage.ir.terms import topological
from taso_mirage.operators.expressions import Expr

_Ints = NDArray[np.int64]
Tree: TypeAlias = "tuple[object, ...] | int"
"""A pattern without kinds: (symbol, operand, ...), or the number of a variable."""


@dataclass(frozen=True)
class EquationPairs:
    """Equations between candidates, by number; `left` has no more operators than `right`."""

    left: _Ints
    right: _Ints

    def __len__(self) -> int:
        return len(self.left)

    def where(self, chosen: NDArray[np.bool_]) -> EquationPairs:
        return EquationPairs(self.left[chosen], self.right[chosen])


@dataclass(frozen=True)
class Classes:
    """Candidates that are equal to another one, sorted by class, then by size; where each class
    starts; their node sets."""

    members: _Ints
    starts: _Ints
    nodes: NDArray[np.int32]

    @staticmethod
    def of(table: Table) -> Classes:
        columns = table.all
        order = np.lexsort((np.arange(len(columns)), columns.size, columns.hash))
        starts = _starts(columns.hash[order])
        length = np.diff(starts, append=len(order))
        members = order[np.repeat(length > 1, length)]
        kept = columns.kept[members]
        nodes = table.node_sets(columns, members)
        nodes[kept >= 0] = table.nodes[kept[kept >= 0]]
        return Classes(members, _starts(columns.hash[members]), nodes)

    @property
    def lengths(self) -> _Ints:
        return np.diff(self.starts, append=len(self.members))

    def equations(self) -> tuple[EquationPairs, int]:
        """Every member with the first member of its class that shares no node with it, and the
        number of members without one. With a common subgraph, replaced by a variable, they would be
        a smaller equation."""
        lengths = self.lengths
        first = np.repeat(self.starts, lengths)
        place = np.arange(len(self.members))
        other = np.full(len(place), -1)
        for step in range(FIRST):
            candidate = first + step
            ok = (other < 0) & (candidate < place)
            at = np.flatnonzero(ok)
            apart = ~sharing(self.nodes[candidate[at]], self.nodes[at])
            other[at[apart]] = candidate[at[apart]]
        right = np.flatnonzero(other >= 0)
        left = other[right]
        several = int((place != first).sum())
        return EquationPairs(self.members[left], self.members[right]), several - len(right)


FIRST = 8
"""How many of the first members of a class are tried as the other side of an equation."""


def _starts(hashes: NDArray[np.uint64]) -> _Ints:
    return np.flatnonzero(np.concatenate([np.ones(min(len(hashes), 1), bool), hashes[1:] != hashes[:-1]]))


def sharing(a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether two node sets meet, row by row: a common subgraph."""
    found = np.zeros(len(a), bool)
    for i, j in product(range(a.shape[1]), range(b.shape[1])):
        found |= (a[:, i] == b[:, j]) & (a[:, i] >= 0)
    return found


def common_supergraph(table: Table, pairs: EquationPairs) -> NDArray[np.bool_]:
    """Whether both sides are one operator on operands that are pairwise equal already."""
    columns = table.all
    left, right = columns.args[pairs.left], columns.args[pairs.right]
    hashes = np.append(columns.hash[table.candidate], np.uint64(0))
    a, b = hashes[left], hashes[right]
    same = (columns.op[pairs.left] == columns.op[pairs.right]) & (columns.op[pairs.left] != INPUT)
    commutative = np.array([o.commutative for o in table.family.operators])[columns.op[pairs.left]]
    swapped = commutative & (a[:, 0] == b[:, 1]) & (a[:, 1] == b[:, 0])
    found: NDArray[np.bool_] = same & ((a == b).all(axis=1) | swapped)
    return found


def recheck_equations(
    table: Table, pairs: EquationPairs, assignments: Sequence[Assignment], seed: int
) -> NDArray[np.bool_]:
    """For each equation, whether it holds at other sizes and values. In eight trials, order
    statistics can agree by chance (max_pool of relu)."""
    ok = np.ones(len(pairs), bool)
    for i, assignment in enumerate(assignments):
        again = _Again(table, TermValues(table.family, assignment, seed + i))
        left, right = again.hashes(pairs.left), again.hashes(pairs.right)
        ok &= left == right
    return ok


class _Again:
    """Fingerprints of chosen candidates at one more assignment; only the terms that they depend on
    are computed."""

    def __init__(self, table: Table, values: TermValues) -> None:
        self.table, self.values = table, values
        self.rows = np.full(len(table.candidate), -1, np.int64)

    def hashes(self, candidates: _Ints) -> NDArray[np.uint64]:
        unique, back = np.unique(candidates, return_inverse=True)
        needed = self._below(unique)
        needed = np.union1d(needed, self.table.all.kept[unique[self.table.all.op[unique] == INPUT]])
        for size in range(5):
            level = needed[(self.table.all.size[self.table.candidate[needed]] == size) & (self.rows[needed] < 0)]
            for group, chosen in self._groups(self.table.candidate[level]):
                first = self._keep(group, chosen)
                self.rows[self.table.all.kept[chosen]] = np.arange(first, first + len(chosen))
        result = np.empty(len(unique), np.uint64)
        place = {int(c): i for i, c in enumerate(unique)}
        for group, chosen in self._groups(unique):
            at = np.array([place[int(c)] for c in chosen])
            for part in self.table.chunks(group, len(chosen)) if group else [slice(None)]:
                result[at[part]] = self.values.hashes(self._kind(chosen), self._value(group, chosen[part]))
        return result[back]

    def _value(self, group: Group | None, chosen: _Ints) -> NDArray[np.integer]:
        """Inputs that others depend on have their residues already."""
        rows = self.rows[self.table.all.kept[chosen]]
        if group is not None or (rows < 0).any():
            return self._compute(group, chosen)
        return self.values.store[self._kind(chosen)][:, rows]

    def _kind(self, chosen: _Ints) -> TermKind:
        return self.table.kinds[int(self.table.all.kind[chosen[0]])]

    def _below(self, candidates: _Ints) -> _Ints:
        """The kept terms that candidates depend on."""
        found = np.zeros(len(self.table.candidate), bool)
        front = candidates
        while len(front):
            args = self.table.all.args[front]
            args = np.unique(args[args >= 0])
            args = args[~found[args]]
            found[args] = True
            front = self.table.candidate[args].astype(np.int64)
        return np.flatnonzero(found)

    def _groups(self, candidates: _Ints) -> list[tuple[Group | None, _Ints]]:
        """Candidates by operator and kinds of operands; inputs have no group."""
        columns, table = self.table.all, self.table
        below = columns.args[candidates]
        kinds = np.where(below >= 0, columns.kind[table.candidate[below]], -1).astype(np.int64) + 1
        code = columns.op[candidates].astype(np.int64) + 1
        for column in kinds.T:
            code = code * 1000 + column
        code = np.where(columns.op[candidates] == INPUT, -1 - columns.kind[candidates], code)
        order = np.argsort(code, kind="stable")
        cuts = np.flatnonzero(np.diff(code[order])) + 1
        return [(self._group(rows), rows) for rows in np.split(candidates[order], cuts) if len(rows)]

    def _group(self, rows: _Ints) -> Group | None:
        columns, table = self.table.all, self.table
        number = int(columns.op[rows[0]])
        if number == INPUT:
            return None
        arity = len(table.family.operators[number].operands)
        args = columns.args[rows, :arity]
        kinds = tuple(int(k) for k in columns.kind[table.candidate[args[0]]])
        found = table.applied(number, kinds)
        assert found is not None
        return Group(number, found[0], kinds, found[1], args, columns.cuts[rows])

    def _compute(self, group: Group | None, chosen: _Ints) -> NDArray[np.integer]:
        if group is None:
            return np.concatenate([self.values.fresh(self._kind(chosen)) for _ in chosen], axis=1)
        operator = self.table.family.operators[group.operator]
        kinds = {name: self.table.kinds[k] for name, k in zip(operator.operands, group.kinds, strict=True)}
        args = self.table.all.args[chosen, : len(operator.operands)]
        return self.values.compute(group.term, kinds, [self.rows[column] for column in args.T])

    def _keep(self, group: Group | None, chosen: _Ints) -> int:
        kind = self._kind(chosen)
        data = [
            self._compute(group, chosen[part])
            for part in (self.table.chunks(group, len(chosen)) if group else [slice(None)])
        ]
        return self.values.keep(kind, np.concatenate(data, axis=1))


# ---------------------------------------------------------------- canonical forms


class Trees:
    """Candidates as trees of symbols, and canonical forms of equations under renaming of variables
    and commuting."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.commutative = {o.symbol for o in table.family.operators if o.commutative}
        self._halves = table.family.halves
        self._symbols: dict[tuple[int, tuple[int, ...]], str] = {}
        self._known: dict[int, Tree] = {}

    def tree(self, candidate: int) -> Tree:
        """The tree of a candidate; variables are the numbers of inputs."""
        columns = self.table.all
        number = int(columns.op[candidate])
        if number == INPUT:
            return int(columns.kept[candidate])
        args = [int(a) for a in columns.args[candidate] if a >= 0]
        kinds = tuple(int(columns.kind[self.table.candidate[a]]) for a in args)
        return (self.symbol(number, kinds), *[self._kept(a) for a in args])

    def _kept(self, term: int) -> Tree:
        if term not in self._known:
            self._known[term] = self.tree(int(self.table.candidate[term]))
        return self._known[term]

    def symbol(self, number: int, kinds: tuple[int, ...]) -> str:
        """The operator's symbol, with the values of attributes that its operands decide (the group
        of a convolution)."""
        key = (number, kinds)
        if key not in self._symbols:
            self._symbols[key] = _symbol(self.table, number, kinds)
        return self._symbols[key]

    def canonical(self, *sides: Tree) -> tuple[Tree, ...]:
        """The least form of several trees under joint renaming; sides in the given order."""
        groups = _signatures(sides, self.commutative)
        best: tuple[str, tuple[Tree, ...]] | None = None
        for naming in _namings(groups):
            renamed = tuple(self._renamed(s, naming) for s in sides)
            key = repr(renamed)
            if best is None or key < best[0]:
                best = (key, renamed)
        assert best is not None
        return best[1]

    def equation(self, left: int, right: int) -> tuple[Tree, Tree]:
        """The canonical form of an equation of two candidates, the smaller side first."""
        a, b = self.tree(left), self.tree(right)
        forms = [self.canonical(a, b)] if self.operators(a) <= self.operators(b) else []
        forms += [self.canonical(b, a)] if self.operators(b) <= self.operators(a) else []
        first, second = min(forms, key=repr)
        return first, second

    def operators(self, *trees: Tree) -> int:
        """How many operator nodes some trees have together; both halves of a split are one."""
        found: set[Tree] = set()

        def visit(tree: Tree) -> None:
            if not isinstance(tree, int):
                axis = self._halves.get(str(tree[0]))
                found.add(tree if axis is None else (axis, *tree[1:]))
                for arg in tree[1:]:
                    visit(arg)  # type: ignore[arg-type]

        for tree in trees:
            visit(tree)
        return len(found)

    def _renamed(self, tree: Tree, naming: dict[int, int]) -> Tree:
        if isinstance(tree, int):
            return naming[tree]
        return ordered((tree[0], *[self._renamed(a, naming) for a in tree[1:]]), self.commutative)  # type: ignore[arg-type]


def ordered(tree: tuple[object, ...], commutative: set[str]) -> Tree:
    """Operands of a commutative operator in order."""
    if tree[0] in commutative and repr(tree[1]) > repr(tree[2]):
        return (tree[0], tree[2], tree[1])
    return tree


def _symbol(table: Table, number: int, kinds: tuple[int, ...]) -> str:
    operator = table.family.operators[number]
    found = table.applied(number, kinds)
    if operator.part_of is not None or found is None:
        return operator.symbol
    computed = {(n.op, k) for n in topological(operator.pattern.outputs) for k, v in n.attrs if isinstance(v, Expr)}
    values = [f"{k}={v}" for n in topological([found[0]]) for k, v in n.attrs if (n.op, k) in computed and v != 1]
    return ":".join([operator.symbol, *values])


def tree_variables(tree: Tree, found: dict[int, None] | None = None) -> dict[int, None]:
    """The variables of a tree, in order of occurrence."""
    found = {} if found is None else found
    if isinstance(tree, int):
        found.setdefault(tree)
    else:
        for arg in tree[1:]:
            tree_variables(arg, found)  # type: ignore[arg-type]
    return found


def _signatures(sides: Sequence[Tree], commutative: set[str]) -> list[list[int]]:
    """Groups of variables whose occurrences do not distinguish them, so that all orders must be
    tried."""
    places: dict[int, list[str]] = {}

    def visit(tree: Tree, path: str) -> None:
        if isinstance(tree, int):
            places.setdefault(tree, []).append(path)
            return
        for i, arg in enumerate(tree[1:]):
            visit(arg, f"{path}/{tree[0]}{'' if tree[0] in commutative else i}")  # type: ignore[arg-type]

    for i, side in enumerate(sides):
        visit(side, str(i))
    groups: dict[tuple[str, ...], list[int]] = {}
    for variable, where in places.items():
        groups.setdefault(tuple(sorted(where)), []).append(variable)
    return [groups[key] for key in sorted(groups)]


def _namings(groups: list[list[int]]) -> list[dict[int, int]]:
    choices = product(*[permutations(g) for g in groups])
    return [{v: i for i, v in enumerate(chain.from_iterable(choice))} for choice in choices]
