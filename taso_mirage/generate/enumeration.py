"""Bottom-up enumeration of the terms of a family, in columns, with one fingerprint class a hash
(TASO, SOSP'19, section 2).

A *term* is a directed graph over inputs with one output; its size counts distinct operator nodes
(both halves of a split are one). Terms of the smallest size of their class are *kept*: all of them
are extended, in all namings of the inputs. The others are only *candidates*. The last level keeps
no terms and contains only terms whose inputs are a prefix of every group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from taso_mirage.generate.family import Family, Operator, TermKind
from taso_mirage.generate.pairs import uniting
from taso_mirage.generate.values import CHUNK, TermValues
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Node, Tensor

_Ints = NDArray[np.int64]
NODES = 4
INPUT = -1


@dataclass(frozen=True)
class Group:
    """Candidates of one operator on operands of the same kinds."""

    operator: int
    term: Node
    kinds: tuple[int, ...]
    result: int
    args: NDArray[np.int32]
    cuts: NDArray[np.uint8]


@dataclass
class Columns:
    """Candidates by number: operator, operands (numbers of kept terms), kind, size, inputs as a
    mask, cut axes as bits, fingerprint, and the kept term that it is (or -1)."""

    op: NDArray[np.int16]
    args: NDArray[np.int32]
    kind: NDArray[np.int16]
    size: NDArray[np.int8]
    mask: NDArray[np.uint64]
    cuts: NDArray[np.uint8]
    hash: NDArray[np.uint64]
    kept: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.op)

    @staticmethod
    def joined(parts: list[Columns]) -> Columns:
        names = Columns.__dataclass_fields__
        return Columns(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})


@dataclass
class LevelCounts:
    """Counts of the operators, candidates and terms of one level of the enumeration."""

    operators: int
    pairs: int = 0
    candidates: int = 0
    classes: int = 0
    terms: int = 0


Evaluate = Callable[["Table", list[Group]], list[NDArray[np.uint64]]]


@dataclass
class Table:
    """The terms of a family up to some size.

    `candidate` gives the number of a kept term among all candidates.
    """

    family: Family
    values: list[TermValues]
    kinds: list[TermKind] = field(default_factory=list)
    all: Columns = field(default_factory=lambda: _no_columns(2))
    candidate: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    nodes: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, NODES), np.int32))
    rows: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    counts: list[LevelCounts] = field(default_factory=list)
    _kind_numbers: dict[TermKind, int] = field(default_factory=dict)
    _terms: dict[tuple[int, tuple[int, ...]], tuple[Node, int] | None] = field(default_factory=dict)
    _sources: dict[tuple[int, tuple[int, ...]], list[list[tuple[int, int]]]] = field(default_factory=dict)
    _parts: dict[tuple[int, int], int] = field(default_factory=dict)
    _next_node: int = 0

    @staticmethod
    def start(family: Family, seed: int) -> Table:
        """The table of the inputs alone."""
        table = Table(family, [TermValues(family, a, seed + i) for i, a in enumerate(family.assignments)])
        width = max([2, *(len(o.operands) for o in family.operators)])
        kinds = [table.kind(k) for _, _, k in family.inputs]
        n = len(kinds)
        rows = np.array([table._fresh(k) for k in kinds], np.int32)
        hashes = table._input_hashes(kinds, rows)
        table.all = Columns(
            np.full(n, INPUT, np.int16), np.full((n, width), -1, np.int32), np.array(kinds, np.int16), np.zeros(n, np.int8),
            np.uint64(1) << np.arange(n, dtype=np.uint64), np.zeros(n, np.uint8), hashes, np.arange(n, dtype=np.int32),
        )  # fmt: skip
        table.candidate, table.rows = np.arange(n, dtype=np.int32), rows
        table.nodes = np.full((n, NODES), -1, np.int32)
        return table

    def kind(self, kind: TermKind) -> int:
        """The number of a kind."""
        if kind not in self._kind_numbers:
            self._kind_numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
        return self._kind_numbers[kind]

    def _fresh(self, kind: int) -> int:
        rows = [v.keep(self.kinds[kind], v.fresh(self.kinds[kind])) for v in self.values]
        return rows[0]

    def _input_hashes(self, kinds: list[int], rows: NDArray[np.int32]) -> NDArray[np.uint64]:
        parts = []
        for kind, row in zip(kinds, rows, strict=True):
            each = [v.hashes(self.kinds[kind], v.store[self.kinds[kind]][:, [row]]) for v in self.values]
            parts.append(combined(each, kind))
        return np.concatenate(parts)

    # ------------------------------------------------------------ types

    def applied(self, operator: int, kinds: tuple[int, ...]) -> tuple[Node, int] | None:
        """The typed term of an operator on kinds, and the kind of its result; None where it does
        not fit or is too large."""
        key = (operator, kinds)
        if key not in self._terms:
            self._terms[key] = self._apply(self.family.operators[operator], [self.kinds[k] for k in kinds])
        return self._terms[key]

    def _apply(self, operator: Operator, kinds: list[TermKind]) -> tuple[Node, int] | None:
        found = operator.apply(kinds)
        if found is None or np.prod(self.values[0].shape(found[1].tensor)) > self.family.elements:
            return None
        term, kind = found
        full = self.values[0].full(term, dict(zip(operator.operands, kinds, strict=True)))
        return term, self.kind(replace(kind, full=full))

    def sources(self, operator: int, kinds: tuple[int, ...]) -> list[list[tuple[int, int]]]:
        """For every axis of the result, the (operand, axis) pairs from which its dim comes, found
        by typing the term with an unusual dim."""
        key = (operator, kinds)
        if key not in self._sources:
            self._sources[key] = _sources(self.family.operators[operator], [self.kinds[k] for k in kinds])
        return self._sources[key]

    # ------------------------------------------------------------ growing

    def grow(self, last: bool, evaluate: Evaluate) -> None:
        """All terms of one more operator. The last level keeps no terms."""
        size = int(self.all.size.max(initial=0)) + 1
        counts = LevelCounts(size)
        groups = list(self._groups(size, last, counts))
        hashes = evaluate(self, groups)
        new = self._columns(size, groups, hashes)
        counts.candidates = len(new)
        fresh = ~np.isin(new.hash, self.all.hash[self.candidate])
        counts.classes = len(np.unique(new.hash[fresh]))
        if not last:
            self._keep(groups, new, fresh)
        counts.terms = len(self.candidate)
        self.all = Columns.joined([self.all, new])
        self.counts.append(counts)

    def _columns(self, size: int, groups: list[Group], hashes: list[NDArray[np.uint64]]) -> Columns:
        width = self.all.args.shape[1]
        parts = [_no_columns(width)]
        for group, hash in zip(groups, hashes, strict=True):
            n = len(group.args)
            args = np.full((n, width), -1, np.int32)
            args[:, : group.args.shape[1]] = group.args
            parts.append(Columns(
                np.full(n, group.operator, np.int16), args, np.full(n, group.result, np.int16), np.full(n, size, np.int8),
                self.masks(group.args), group.cuts, hash, np.full(n, -1, np.int32),
            ))  # fmt: skip
        return Columns.joined(parts)

    def masks(self, args: NDArray[np.int32]) -> NDArray[np.uint64]:
        """For each row of operands, the bit mask of the inputs that occur below them."""
        mask = np.zeros(len(args), np.uint64)
        for column in args.T:
            mask |= np.where(column >= 0, self.all.mask[self.candidate[column]], np.uint64(0))
        return mask

    def _keep(self, groups: list[Group], new: Columns, fresh: NDArray[np.bool_]) -> None:
        start, offset, first = len(self.all), 0, len(self.candidate)
        candidates, rows = [self.candidate], [self.rows]
        for group in groups:
            chosen = np.flatnonzero(fresh[offset : offset + len(group.args)])
            rows.append(self._store(group, chosen))
            candidates.append((start + offset + chosen).astype(np.int32))
            offset += len(group.args)
        self.candidate, self.rows = np.concatenate(candidates), np.concatenate(rows)
        ours = self.candidate[first:] - start
        new.kept[ours] = np.arange(first, len(self.candidate), dtype=np.int32)
        self.nodes = np.concatenate([self.nodes, self.node_sets(new, ours)])

    def _store(self, group: Group, chosen: _Ints) -> NDArray[np.int32]:
        first = 0
        for values in self.values:
            for part in self.chunks(group, len(chosen)):
                data = self.compute(values, group, group.args[chosen[part]])
                row = values.keep(self.kinds[group.result], data)
                first = row if part.start == 0 else first
        return np.arange(first, first + len(chosen), dtype=np.int32)

    def chunks(self, group: Group, n: int) -> Iterator[slice]:
        """Slices of a group small enough to compute at once."""
        elements = max(int(np.prod(v.shape(self.kinds[group.result].tensor))) * v.trials for v in self.values)
        step = max(1, CHUNK // (2 * elements))
        return (slice(i, min(i + step, n)) for i in range(0, n, step))

    def compute(self, values: TermValues, group: Group, args: NDArray[np.int32]) -> NDArray[np.integer]:
        """The residues of some candidates of a group."""
        operator = self.family.operators[group.operator]
        kinds = {name: self.kinds[k] for name, k in zip(operator.operands, group.kinds, strict=True)}
        return values.compute(group.term, kinds, [self.rows[column] for column in args.T])

    def node_sets(self, columns: Columns, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        """The operator nodes of candidates, descending, at most four; -1 for none.

        FunctionalSplit of one split are one node.
        """
        below = columns.args[chosen]
        sets = [self.nodes[column] * (column >= 0)[:, None] - (column < 0)[:, None] for column in below.T]
        own = self._own_nodes(columns, chosen)
        return _distinct(np.concatenate([*sets, own[:, None]], axis=1))

    def _own_nodes(self, columns: Columns, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        own = np.arange(self._next_node, self._next_node + len(chosen), dtype=np.int32)
        self._next_node += len(chosen)
        halved = np.array([-1 if o.part_of is None else o.part_of for o in self.family.operators])[columns.op[chosen]]
        for i in np.flatnonzero(halved >= 0):
            key = (int(columns.args[chosen[i], 0]), int(halved[i]))
            own[i] = self._parts.setdefault(key, int(own[i]))
        return own

    # ------------------------------------------------------------ candidates

    def _groups(self, size: int, last: bool, counts: LevelCounts) -> Iterator[Group]:
        below = np.flatnonzero(self.all.size[self.candidate] == size - 1).astype(np.int32)
        a, b = uniting(self.all.size[self.candidate], self.nodes, size - 1)
        counts.pairs = len(a)
        if last:
            below = below[self.prefix(self.all.mask[self.candidate[below]])]
            ok = self.prefix(self.all.mask[self.candidate[a]] | self.all.mask[self.candidate[b]])
            a, b = a[ok], b[ok]
        if size == 1:
            yield from self._over(0, np.zeros((1, 0), np.int32))
        yield from self._over(1, below[:, None])
        both = np.stack([a, b], axis=1)
        yield from self._over(2, both, swap=True)
        for number, operator in enumerate(self.family.operators):
            if len(operator.operands) > 2:
                yield from self._over(len(operator.operands), self._wide(operator, both, last), only=number)

    def _wide(self, operator: Operator, pairs: NDArray[np.int32], last: bool) -> NDArray[np.int32]:
        """Operands of a wider operator, by its labels: any pair in both orders, and inputs for the
        rest."""
        labels = np.array([k.label for k in self.kinds])[self.all.kind[self.candidate]]
        size = self.all.size[self.candidate]
        first, second, *rest = [labels == operator.kinds.get(name, "") for name in operator.operands]
        heads = np.concatenate([pairs, pairs[:, ::-1]])
        heads = heads[first[heads[:, 0]] & second[heads[:, 1]]]
        if operator.inputs_only:
            heads = heads[(size[heads] == 0).all(axis=1)]
        tails = list(product(*[np.flatnonzero(fits & (size == 0)).tolist() for fits in rest]))
        tails = [t for t in tails if len(set(t)) == len(t)]
        if not tails or not len(heads):
            return np.zeros((0, len(operator.operands)), np.int32)
        wide = np.concatenate([np.repeat(heads, len(tails), 0), np.tile(np.array(tails), (len(heads), 1))], axis=1)
        wide = wide.astype(np.int32)
        return wide[self.prefix(self.masks(wide))] if last else wide

    def _over(
        self, arity: int, args: NDArray[np.int32], swap: bool = False, only: int | None = None
    ) -> Iterator[Group]:
        """Groups of all operators of that arity (or of one) on rows of operands; with `swap` in
        both orders."""
        operators = [(i, o) for i, o in enumerate(self.family.operators) if len(o.operands) == arity]
        operators = [row for row in operators if only in (None, row[0])]
        if not operators or not len(args):
            return
        kinds = self.all.kind[self.candidate[args]].astype(np.int64)
        code = kinds @ (1000 ** np.arange(arity, dtype=np.int64)) if arity else np.zeros(len(args), np.int64)
        order = np.argsort(code, kind="stable")
        starts = np.flatnonzero(np.diff(code[order], prepend=-1))
        for rows in np.split(order, starts[1:]):
            row_kinds = tuple(int(k) for k in kinds[rows[0]])
            for number, operator in operators:
                yield from self._group(number, operator, row_kinds, args[rows])
                if (swap and not operator.commutative) or (swap and row_kinds[0] != row_kinds[1] and operator.kinds):
                    yield from self._group(number, operator, row_kinds[::-1], args[rows][:, ::-1])

    def _group(
        self, number: int, operator: Operator, kinds: tuple[int, ...], args: NDArray[np.int32]
    ) -> Iterator[Group]:
        found = self.applied(number, kinds)
        if found is None:
            return
        columns = self.candidate[args]
        ok = np.ones(len(args), bool)
        if operator.inputs_only:
            ok &= (self.all.size[columns] == 0).all(axis=1)
        if operator.part_of is not None:
            ok &= (self.all.cuts[columns[:, 0]] >> operator.part_of & 1).astype(bool)
        if ok.any():
            args, columns = args[ok], columns[ok]
            if operator.commutative:
                args = np.sort(args, axis=1) if kinds[0] == kinds[1] else args
                columns = self.candidate[args]
            yield Group(number, found[0], kinds, found[1], args, self._cuts(number, operator, kinds, columns))

    def _cuts(
        self, number: int, operator: Operator, kinds: tuple[int, ...], columns: NDArray[np.int32]
    ) -> NDArray[np.uint8]:
        cuts = np.zeros(len(columns), np.uint8)
        for axis, sources in enumerate(self.sources(number, kinds)):
            for operand, from_axis in sources:
                cuts |= (self.all.cuts[columns[:, operand]] >> from_axis & 1) << axis
        if operator.part_of is not None:
            cuts &= np.uint8(255 - (1 << operator.part_of))
        if operator.cut is not None and kinds[0] == kinds[1]:
            cuts |= np.uint8(1 << operator.cut)
        return cuts

    def prefix(self, mask: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether the inputs used of every group of interchangeable ones are its first ones."""
        ok = np.ones(len(mask), bool)
        for bits in self.family.groups:
            low = np.uint64((bits & -bits).bit_length() - 1)
            used = (mask & np.uint64(bits)) >> low
            ok &= (used & (used + np.uint64(1))) == 0
        return ok


def combined(hashes: list[NDArray[np.uint64]], kind: int) -> NDArray[np.uint64]:
    """One fingerprint of the fingerprints at every assignment, and of the kind."""
    total = np.full(len(hashes[0]), kind * 0x9E3779B97F4A7C15 & (1 << 64) - 1, np.uint64)
    with np.errstate(over="ignore"):
        for each in hashes:
            total = (total ^ each) * np.uint64(0xBF58476D1CE4E5B9) + (total >> np.uint64(29))
    return total


def evaluate_here(table: Table, groups: list[Group]) -> list[NDArray[np.uint64]]:
    """The fingerprints of all candidates, in this process."""
    return [evaluate_group(table, group) for group in groups]


def evaluate_group(table: Table, group: Group) -> NDArray[np.uint64]:
    """The fingerprints of one group's candidates."""
    kind = table.kinds[group.result]
    hashes = np.empty(len(group.args), np.uint64)
    for part in table.chunks(group, len(group.args)):
        each = [v.hashes(kind, table.compute(v, group, group.args[part])) for v in table.values]
        hashes[part] = combined(each, group.result)
    return hashes


def _sources(operator: Operator, kinds: list[TermKind]) -> list[list[tuple[int, int]]]:
    found = operator.apply(kinds)
    rank = found[1].tensor.rank if found else 0
    result: list[list[tuple[int, int]]] = [[] for _ in range(rank)]
    strange = symbol("cut_")
    places = [(i, axis) for i, k in enumerate(kinds) for axis in range(k.tensor.rank)]
    tries: list[tuple[tuple[int, int], ...]] = [(p,) for p in places]
    tries += [pair for pair in combinations(places, 2) if pair[0][0] != pair[1][0] and pair[0][1] == pair[1][1]]
    for places_now in tries:
        changed = list(kinds)
        for i, axis in places_now:
            shape = list(changed[i].tensor.shape or ())
            shape[axis] = strange
            changed[i] = TermKind(changed[i].label, Tensor(changed[i].tensor.dtype, tuple(shape)), changed[i].full)
        typed = operator.apply(changed)
        for axis, dim in enumerate(typed[1].tensor.shape or () if typed else ()):
            if dim == strange:
                result[axis] += [p for p in places_now if p not in result[axis]]
    return result


def _no_columns(width: int) -> Columns:
    kinds = (np.int16, np.int32, np.int16, np.int8, np.uint64, np.uint8, np.uint64, np.int32)
    return Columns(*[np.zeros((0, width) if i == 1 else 0, kind) for i, kind in enumerate(kinds)])


def _distinct(nodes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Rows sorted descending without repetitions, four columns."""
    rows = -np.sort(-nodes, axis=1)
    rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = -1
    return -np.sort(-rows, axis=1)[:, :NODES]
