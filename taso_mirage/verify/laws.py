"""Proofs by the operators' laws: their ground instances on the typed terms of both sides, and congruence, decided by Z3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir import ABSENT, Node, topological
from taso_mirage.ops import definition
from taso_mirage.rules import Rules
from taso_mirage.text import laws
from taso_mirage.verify.symbolic import Proved, Unproved

BUDGET = 400
"""So many terms at most."""
ROUNDS = 4
RLIMIT = 2_000_000


@cache
def operator_laws() -> Rules:
    """Every law in both directions, as far as a direction determines the other side."""
    both = [e for law in laws() for e in (law, law.reverse()) if e is not None]
    return Rules(both)


def prove_by_laws(
    lhs: Sequence[Node], rhs: Sequence[Node], rules: Rules | None = None, budget: int = BUDGET
) -> Proved | Unproved:
    """Whether lhs = rhs follows from instances of `rules` and definitions of fused operators on their terms. Sizes may be symbols."""
    if any(a.type != b.type for a, b in zip(lhs, rhs, strict=True)):
        return Unproved("the types differ")
    rules = operator_laws() if rules is None else rules
    known = dict.fromkeys(n for n in topological([*lhs, *rhs]) if n is not ABSENT)
    closure = _Closure(lhs, rhs)
    frontier = list(known)
    for _ in range(ROUNDS):
        grown: list[Node] = []
        for node in frontier:
            for other in _equals(node, rules):
                closure.equate(node, other)
                fresh = [n for n in topological([other]) if n not in known and n is not ABSENT]
                known.update(dict.fromkeys(fresh))
                grown += fresh
            if len(known) > budget:
                break
        if closure.proved():
            return Proved(closure.steps)
        if not grown or len(known) > budget:
            break
        frontier = grown
    return Unproved(f"{closure.steps} equalities over {len(known)} terms do not give it")


def _equals(node: Node, rules: Rules) -> Iterator[Node]:
    """Terms of the same type that a law or the definition says are equal."""
    if not node.args:
        return
    for application in rules.applications(node):
        yield application.results[0]
    try:
        defined = definition(node)
    except (TasoMirageError, LookupError, TypeError, ValueError):
        return
    if defined is not None and defined.type == node.type:
        yield defined


class _Closure:
    """Z3's congruence closure over terms: one sort, one function an operator with its attributes."""

    def __init__(self, lhs: Sequence[Node], rhs: Sequence[Node]) -> None:
        import z3

        self.context = z3.Context()
        self.sort = z3.DeclareSort("Term", self.context)
        self.solver = z3.SolverFor("QF_UF", ctx=self.context)
        self.solver.set("rlimit", RLIMIT)
        self.terms: dict[Node, Any] = {}
        self.names: dict[Any, str] = {}
        self.steps = 0
        goals = [self(a) == self(b) for a, b in zip(lhs, rhs, strict=True)]
        self.goal = z3.Not(z3.And(goals)) if len(goals) > 1 else z3.Not(goals[0])

    def __call__(self, node: Node) -> Any:
        import z3

        for each in topological([node], stop=self.terms):
            key = (each.op, each.attrs, each.type if not each.args else len(each.args))
            name = self.names.setdefault(key, f"{each.op}.{len(self.names)}")
            if not each.args:
                self.terms[each] = z3.Const(name, self.sort)
            else:
                function = z3.Function(name, *[self.sort] * (len(each.args) + 1))
                self.terms[each] = function(*[self.terms[a] for a in each.args])
        return self.terms[node]

    def equate(self, a: Node, b: Node) -> None:
        self.steps += 1
        self.solver.add(self(a) == self(b))

    def proved(self) -> bool:
        import z3

        return bool(self.solver.check(self.goal) == z3.unsat)
