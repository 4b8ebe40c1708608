"""Minimising: an equation is kept only if the smaller kept ones do not derive it, by rewriting from
both sides until they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from taso_mirage.generate.equations import Tree, tree_variables

Id = int
Substitution = dict[int, Id]


@dataclass
class Bank:
    """Trees as numbers: equal trees have one number.

    Operands of commutative symbols are ordered by their numbers.
    """

    commutative: set[str]
    nodes: list[tuple[object, ...]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _numbers: dict[tuple[object, ...], Id] = field(default_factory=dict)

    def add(self, tree: Tree) -> Id:
        """The number of a tree."""
        if isinstance(tree, int):
            return self.make(("?", tree))
        return self.make((tree[0], *[self.add(a) for a in tree[1:]]))  # type: ignore[arg-type]

    def make(self, node: tuple[object, ...]) -> Id:
        if node[0] in self.commutative and node[1] > node[2]:  # type: ignore[operator]
            node = (node[0], node[2], node[1])
        found = self._numbers.get(node)
        if found is None:
            found = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
            below: list[Id] = [] if node[0] == "?" else list(node[1:])  # type: ignore[arg-type]
            self.sizes.append(0 if node[0] == "?" else 1 + sum(self.sizes[a] for a in below))
        return found


@dataclass(frozen=True)
class KeptDirection:
    """One direction of a kept equation."""

    pattern: Id
    result: Id


class Derivation:
    """The equations that a growing set of rewrites derives.

    Rewrites of a tree are remembered; new rules are tried on old trees once.
    """

    def __init__(self, commutative: set[str], depth: int = 2, width: int = 200, slack: int = 1) -> None:
        self.bank = Bank(commutative)
        self.depth, self.width, self.slack = depth, width, slack
        self._rules: dict[object, list[KeptDirection]] = {}
        self._count = 0
        self._steps: dict[Id, tuple[int, list[Id]]] = {}
        self._roots: dict[Id, tuple[int, list[Id]]] = {}

    def learn(self, left: Tree, right: Tree) -> None:
        """Turn both directions of an equation into rewrites, except a direction whose result has a
        variable of its own."""
        for a, b in ((left, right), (right, left)):
            if not isinstance(a, int) and tree_variables(b).keys() <= tree_variables(a).keys():
                self._rules.setdefault(a[0], []).append(KeptDirection(self.bank.add(a), self.bank.add(b)))
        self._count += 1

    def derives(self, left: Tree, right: Tree, steps: int | None = None) -> bool:
        """Whether rewriting meets within the depth, from both sides; or within so many steps from
        the left."""
        a, b = self.bank.add(left), self.bank.add(right)
        limit = max(self.bank.sizes[a], self.bank.sizes[b]) + self.slack
        seen, front = [{a: None}, {b: None}], [[a], [b]]
        if a == b:
            return True
        for round in range(self.depth if steps is None else steps):
            for side in (0, 1) if steps is None else (round % 2,):
                new: list[Id] = []
                for tree in front[side]:
                    for other in self.steps(tree):
                        if other in seen[side] or self.bank.sizes[other] > limit:
                            continue
                        if other in seen[1 - side]:
                            return True
                        seen[side][other] = None
                        new.append(other)
                    if len(seen[side]) > self.width:
                        break
                front[side] = new
        return False

    def steps(self, tree: Id) -> list[Id]:
        """Every tree one rewrite away, at the root or below."""
        known = self._steps.get(tree)
        if known is not None and known[0] == self._count:
            return known[1]
        node = self.bank.nodes[tree]
        found = dict.fromkeys(self._at_root(tree))
        if node[0] != "?":
            for i in range(1, len(node)):
                for other in self.steps(node[i]):  # type: ignore[arg-type]
                    found.setdefault(self.bank.make((*node[:i], other, *node[i + 1 :])))
        found.pop(tree, None)
        result = list(found)
        self._steps[tree] = (self._count, result)
        return result

    def _at_root(self, tree: Id) -> list[Id]:
        rules = self._rules.get(self.bank.nodes[tree][0], [])
        done, found = self._roots.get(tree, (0, []))
        for rule in rules[done:]:
            found = found + [self._result(rule.result, s) for s in self._matches(rule.pattern, tree, {})]
        self._roots[tree] = (len(rules), found)
        return found

    def _matches(self, pattern: Id, tree: Id, known: Substitution) -> Iterator[Substitution]:
        p, t = self.bank.nodes[pattern], self.bank.nodes[tree]
        if p[0] == "?":
            bound = known.get(p[1])  # type: ignore[call-overload]
            if bound is None:
                yield {**known, p[1]: tree}  # type: ignore[dict-item]
            elif bound == tree:
                yield known
            return
        if p[0] != t[0] or len(p) != len(t):
            return
        yield from self._match_all(p[1:], t[1:], known)  # type: ignore[arg-type]
        if p[0] in self.bank.commutative and t[1] != t[2]:
            yield from self._match_all(p[1:], (t[2], t[1]), known)  # type: ignore[arg-type]

    def _match_all(self, patterns: Sequence[Id], trees: Sequence[Id], known: Substitution) -> Iterator[Substitution]:
        if not patterns:
            yield known
            return
        for found in self._matches(patterns[0], trees[0], known):
            yield from self._match_all(patterns[1:], trees[1:], found)

    def _result(self, pattern: Id, known: Substitution) -> Id:
        node = self.bank.nodes[pattern]
        if node[0] == "?":
            return known[node[1]]  # type: ignore[index]
        return self.bank.make((node[0], *[self._result(a, known) for a in node[1:]]))  # type: ignore[arg-type]


Equality = tuple[Tree, Tree]
OperatorCount = Callable[..., int]
"""How many operators some trees have together (`Trees.operators`)."""


SMALL = 2
"""Operators of a side up to which an equation is derived by one step alone."""


def minimise(
    equations: Iterable[Equality], derivation: Derivation, operators: OperatorCount
) -> tuple[list[Equality], Derivation]:
    """The equations that smaller kept ones do not derive, and the derivation by them.

    Those of up to `always` operators are kept unless one rule alone gives them: longer derivations
    drop short useful rules in favour of detours.
    """
    kept: list[Equality] = []
    for left, right in sorted(equations, key=partial(order, operators)):
        small = max(operators(left), operators(right)) <= SMALL
        if not derivation.derives(left, right, 1 if small else None):
            kept.append((left, right))
            derivation.learn(left, right)
    return kept, derivation


def order(operators: OperatorCount, equation: Equality) -> tuple[int, int, int, str]:
    """Small ones first; among those the general ones, with many variables."""
    left, right = equation
    sizes = operators(left), operators(right)
    several = len({**tree_variables(left), **tree_variables(right)})
    return max(sizes), sum(sizes), -several, repr(equation)
