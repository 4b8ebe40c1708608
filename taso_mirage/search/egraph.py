"""An e-graph over terms: classes of equal terms, closed under congruence, with proofs (Willsey et
al., POPL'21, section 3).

Proofs are paths in a forest of unions (Nieuwenhuis and Oliveras, RTA'05). Each class has one
representative term: a constant if it contains one, otherwise a term over weights only, otherwise
the first term. Guards and costs read this term.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from taso_mirage.ir.terms import LEAVES, Attributes, Node, Type, topological
from taso_mirage.operators.expressions import is_weight
from taso_mirage.rewriting.folding import fold_constants
from taso_mirage.search.steps import FOLDING

ENode: TypeAlias = tuple[str, Attributes, tuple[int, ...], Type]
"""An e-node: operator, attributes, the classes of its operands, and, for a named leaf, its type."""
_Reason = tuple[str, ...]
"""The equations by which two terms are equal."""
CONGRUENCE: _Reason = ()


class EGraph:
    """Terms are added with `add`, made equal with `union`; `rebuild` restores congruence and must
    come before reading."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._class_of: dict[Node, int] = {}
        self._table: dict[ENode, int] = {}
        self._terms: dict[ENode, Node] = {}
        self._members: dict[int, dict[str, dict[ENode, None]]] = {}
        self._users: dict[int, dict[ENode, None]] = {}
        self._best: dict[int, Node] = {}
        self._merged: list[int] = []
        self._improved: list[int] = []
        self._proof: dict[Node, tuple[Node, _Reason]] = {}

    def __len__(self) -> int:
        """The number of e-nodes."""
        return len(self._table)

    # ------------------------------------------------------------ reading

    def __contains__(self, node: Node) -> bool:
        """Whether exactly this term was added."""
        return node in self._class_of

    def find(self, of: Node | int) -> int:
        """The class of a term that was added, or the class that a class is part of now."""
        each = self._class_of[of] if isinstance(of, Node) else of
        parent = self._parent
        while parent[each] != each:
            parent[each] = parent[parent[each]]
            each = parent[each]
        return each

    def classes(self) -> list[int]:
        """All classes, in the order of their making."""
        return sorted(self._members)

    def members(self, of: int, op: str | None = None) -> Iterator[ENode]:
        """The e-nodes of a class, of one operator if it is given."""
        by_op = self._members[of]
        for name in by_op if op is None else (op,):
            yield from by_op.get(name, ())

    def forms(self, of: int, op: str) -> Iterator[tuple[Attributes, tuple[int, ...]]]:
        """The attributes and operands of a class's e-nodes of one operator, for matching
        patterns."""
        return ((attrs, args) for _, attrs, args, _ in self.members(of, op))

    def built(self, of: int, op: str, attrs: Attributes, args: tuple[Node, ...]) -> Node:
        """The term of an e-node of a class, over terms of the classes of its operands."""
        return Node(op, args, attrs, self._best[of].type)

    def operators(self, of: int) -> list[str]:
        """The operators of the e-nodes of a class."""
        return [op for op, keys in self._members[of].items() if keys]

    def users(self, of: int, op: str | None = None) -> dict[int, None]:
        """The classes that have an e-node over this class, of one operator if it is given."""
        keys = (self._canonical(k) for k in self._users[of] if op is None or k[0] == op)
        return dict.fromkeys(self.find(self._table[k]) for k in keys)

    def best(self, of: int) -> Node:
        """The term that stands for a class."""
        return self._best[of]

    def key(self, node: Node) -> ENode:
        """The e-node of a term whose operands were added."""
        args = tuple([self.find(a) for a in node.args])
        return node.op, node.attrs, args, node.type if node.op in LEAVES else None

    def term(self, key: ENode) -> Node:
        """An e-node as a term over those that stand for its operands."""
        op, attrs, args, _ = key
        return Node(op, tuple([self._best[self.find(a)] for a in args]), attrs, self._terms[key].type)

    # ------------------------------------------------------------ writing

    def add(self, node: Node) -> int:
        """Return the class of a term; create one if no equal e-node is known."""
        for each in topological([node], stop=self._class_of):
            self._insert(each)
            folded = fold_constants(each)
            if folded is not each:
                for below in topological([folded], stop=self._class_of):
                    self._insert(below)
                self.union(each, folded, FOLDING)
        return self.find(node)

    def _insert(self, node: Node) -> None:
        if node in self._class_of:
            return
        key = self.key(node)
        known = self._table.get(key)
        if known is not None:
            self._class_of[node] = known
            self._connect(node, self._terms[key], CONGRUENCE)
            self._offer(self.find(known), node)
            return
        new = len(self._parent)
        self._parent.append(new)
        self._class_of[node] = self._table[key] = new
        self._terms[key], self._best[new] = node, node
        self._members[new], self._users[new] = {node.op: {key: None}}, {}
        for arg in key[2]:
            self._users[arg][key] = None

    def union(self, a: Node, b: Node, *reasons: str) -> bool:
        """Make two added terms equal by the named equations. Returns whether this is new.

        Raises TypeError if their types differ.
        """
        if a.type != b.type:
            raise TypeError(
                f"{a.op} of type {a.type} cannot equal {b.op} of type {b.type}; see the equation {', '.join(reasons)!r}"
            )
        kept, gone = self.find(a), self.find(b)
        if kept == gone:
            return False
        self._connect(a, b, reasons)
        if len(self._users[kept]) < len(self._users[gone]):
            kept, gone = gone, kept
        self._parent[gone] = kept
        for op, keys in self._members.pop(gone).items():
            self._members[kept].setdefault(op, {}).update(keys)
        self._users[kept].update(self._users.pop(gone))
        before = _rank(self._best[kept]), _rank(self._best[gone])
        self._best[kept] = min(self._best[kept], self._best.pop(gone), key=_preference)
        if before[0] != before[1]:
            self._improved.append(kept)
        self._merged.append(kept)
        return True

    def rebuild(self) -> None:
        """Close the classes under congruence, and mark a class as a constant or weight if all of
        its operands are."""
        while self._merged or self._improved:
            while self._merged:
                merged, self._merged = dict.fromkeys(map(self.find, self._merged)), []
                for each in merged:
                    self._repair(self.find(each))
            improved, self._improved = dict.fromkeys(map(self.find, self._improved)), []
            for each in improved:
                self._spread(self.find(each))

    def _repair(self, changed: int) -> None:
        stale, fresh = list(self._users[changed]), dict[ENode, None]()
        for key in stale:
            new = self._canonical(key)
            fresh[new] = None
            owner = self._table.pop(key, None) if new != key else None
            if owner is None:
                continue  # it did not change, or it was moved when another of its operands was
            owner, term = self.find(owner), self._terms.pop(key)
            del self._members[owner][key[0]][key]
            if new in self._table:
                self.union(term, self._terms[new], *CONGRUENCE)
            else:
                self._table[new], self._terms[new] = owner, term
                self._members[owner][key[0]][new] = None
                for arg in new[2]:
                    self._users[arg][new] = None
        kept = self._users[self.find(changed)]
        for key in stale:
            kept.pop(key, None)
        kept.update(fresh)

    def _spread(self, improved: int) -> None:
        for key in list(map(self._canonical, self._users[improved])):
            term = self.term(key)
            if _rank(term) < _rank(self._best[self.find(self._table[key])]):
                self.add(term)

    def _offer(self, to: int, node: Node) -> None:
        before = _rank(self._best[to])
        if _preference(node) < _preference(self._best[to]):
            self._best[to] = node
            if _rank(node) < before:
                self._improved.append(to)

    def _canonical(self, key: ENode) -> ENode:
        op, attrs, args, type = key
        return op, attrs, tuple([self.find(a) for a in args]), type

    # ------------------------------------------------------------ proofs

    def _connect(self, a: Node, b: Node, reason: _Reason) -> None:
        """A new edge of the forest: the tree of `a` is hung below `b`."""
        below: tuple[Node, _Reason] = b, reason
        while True:
            above = self._proof.get(a)
            self._proof[a] = below
            if above is None:
                return
            below = a, above[1]
            a = above[0]

    def explain(self, pairs: Iterable[tuple[Node, Node]]) -> tuple[str, ...]:
        """The equations by which each pair of terms, added and of one class, is equal; each once,
        in the order of use."""
        names: dict[str, None] = {}
        waiting, seen = list(pairs)[::-1], set[tuple[Node, Node]]()
        while waiting:
            pair = waiting.pop()
            if pair[0] is pair[1] or pair in seen:
                continue
            seen.add(pair)
            for left, right, reason in self._steps(*pair):
                if reason != CONGRUENCE:
                    names.update(dict.fromkeys(reason))
                else:
                    waiting += zip(left.args, right.args, strict=True)
        return tuple(names)

    def _steps(self, a: Node, b: Node) -> list[tuple[Node, Node, _Reason]]:
        """The edges on the path between two terms of one tree."""
        up, down = self._to_root(a), self._to_root(b)
        while up and down and up[-1] == down[-1]:
            up.pop()
            down.pop()
        return up + [(above, below, reason) for below, above, reason in reversed(down)]

    def _to_root(self, node: Node) -> list[tuple[Node, Node, _Reason]]:
        path = []
        while node in self._proof:
            above, reason = self._proof[node]
            path.append((node, above, reason))
            node = above
        return path


def _rank(node: Node) -> int:
    return 0 if node.op in ("constant", "extents") else 1 if is_weight(node) else 2


def _preference(node: Node) -> tuple[int, int]:
    """A sort key of terms; the smallest term represents its class. Among terms that run, the first
    one stays the representative."""
    rank = _rank(node)
    return rank, len(topological([node])) if rank == 1 else 0
