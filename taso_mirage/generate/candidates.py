"""Propose rules of one family by enumeration, equations, joins and minimising, with counts of every
stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taso_mirage.generate.enumeration import Table, evaluate_here
from taso_mirage.generate.equations import Classes, Trees, common_supergraph, recheck_equations
from taso_mirage.generate.family import load_family
from taso_mirage.generate.joins import joins
from taso_mirage.generate.minimise import Derivation, Equality, minimise
from taso_mirage.generate.statement import stated_equation
from taso_mirage.rewriting.library import show_given

Report = Callable[[str], None]


@dataclass(frozen=True)
class RuleCandidate:
    """An equation with every attribute explicit, as text; the types of its variables; the operators
    of its larger side."""

    text: str
    given: str
    operators: int

    def as_list(self) -> list[Any]:
        return [self.text, self.given, self.operators]


@dataclass(frozen=True)
class Proposed:
    """The candidates of a family, small ones first, and how many each stage left."""

    family: str
    candidates: tuple[RuleCandidate, ...]
    counts: dict[str, int]


def propose(name: str, ops: int, seed: int, report: Report = lambda text: None) -> Proposed:
    """Everything before the fuzz and the proofs, for one family up to a number of operators.

    The same seed gives the same.
    """
    family = load_family(name)
    table = Table.start(family, seed)
    counts: dict[str, int] = {}
    for size in range(1, ops + 1):
        report(f"{name}: terms of {size} operators")
        table.grow(last=size == ops, evaluate=evaluate_here)
        found = table.counts[-1]
        counts[f"terms of {size}"] = found.candidates
        counts[f"new classes of {size}"] = found.classes
    report(f"{name}: equations")
    classes = Classes.of(table)
    instances = _equations(table, classes, seed, counts)
    report(f"{name}: minimising {len(instances)} equations")
    trees = Trees(table)
    kept = _minimal(instances, trees, counts)
    report(f"{name}: joins")
    together = joins(table, classes, ops)
    counts["joins"] = len(together)
    pairs: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
    pairs += [((instances[e][0],), (instances[e][1],), max(map(trees.operators, e))) for e in kept]
    pairs += [
        ((a, b), (c, d), max(trees.operators(*j[:2]), trees.operators(*j[2:]))) for j, (a, b, c, d) in together.items()
    ]
    texts: dict[str, RuleCandidate] = {}
    for left, right, several in pairs:
        statement = stated_equation(table, left, right)
        if statement is not None:
            texts.setdefault(statement[0], RuleCandidate(statement[0], show_given(statement[1]), several))
    counts["stated"] = len(texts)
    return Proposed(name, tuple(sorted(texts.values(), key=lambda c: c.operators)), counts)


def _equations(table: Table, classes: Classes, seed: int, counts: dict[str, int]) -> dict[Equality, tuple[int, int]]:
    """Canonical equations with one instance each."""
    pairs, shared = classes.equations()
    counts["equations"] = len(pairs) + shared
    counts["without a common subgraph"] = len(pairs)
    columns = table.all
    pairs = pairs.where(table.prefix(columns.mask[pairs.left] | columns.mask[pairs.right]))
    counts["inputs in order"] = len(pairs)
    pairs = pairs.where(~common_supergraph(table, pairs))
    counts["without a common supergraph"] = len(pairs)
    pairs = pairs.where(recheck_equations(table, pairs, table.family.recheck, seed + 99))
    counts["equal at other sizes"] = len(pairs)
    trees = Trees(table)
    found: dict[Equality, tuple[int, int]] = {}
    for left, right in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True):
        found.setdefault(trees.equation(left, right), (left, right))
    counts["different up to renaming and commuting"] = len(found)
    return found


def _minimal(equations: dict[Equality, tuple[int, int]], trees: Trees, counts: dict[str, int]) -> list[Equality]:
    """Twice: most equations follow in a step or two; the rest is tried with longer derivations."""
    kept, _ = minimise(equations, Derivation(trees.commutative), trees.operators)
    counts["not derived in 2 steps a side"] = len(kept)
    kept, _ = minimise(kept, Derivation(trees.commutative, depth=6, width=6000, slack=3), trees.operators)
    counts["not derived in 6 steps a side"] = len(kept)
    return kept
