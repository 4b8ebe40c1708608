"""Mutants: programs of the same type that may agree on a part (PET, OSDI'21, sections 3 and 4):
compound steps around one operator.

The families are declared beside their operators, in `op_specs/`. They claim nothing; `agreement`
determines where a mutant is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Graph, Node, substitute, topological
from taso_mirage.operators.ops import load_specs, traits
from taso_mirage.operators.traits import MutantFamily


@dataclass(frozen=True, slots=True)
class Mutant:
    """A program and the families that led to it, the first first."""

    families: tuple[str, ...]
    graph: Graph


def mutants_of(original: Graph, depth: int = 1) -> Iterator[Mutant]:
    """Every program that up to `depth` steps at any term produce, each once, in the order of the
    number of steps."""
    seen, level = {original.outputs}, [Mutant((), original)]
    for _ in range(depth):
        found = []
        for each in level:
            for name, outputs in _steps(each.graph.outputs):
                if outputs not in seen:
                    seen.add(outputs)
                    found.append(Mutant((*each.families, name), Graph(original.inputs, outputs)))
                    yield found[-1]
        level = found


def _steps(outputs: tuple[Node, ...]) -> Iterator[tuple[str, tuple[Node, ...]]]:
    for node in topological(outputs):
        for family in traits(node).families:
            for new in variants(family, node):
                yield family.name, substitute(outputs, {node: new})


def families() -> dict[str, MutantFamily]:
    """All families by their names."""
    return {f.name: f for op in load_specs().values() for f in op.traits.families}


def begins(node: Node) -> frozenset[Node]:
    """The terms that the families at a term rewrite: the term, and its operands if a family reads
    them.

    Empty where no family begins.
    """
    found = [f for f in traits(node).families if _about(f, node)]
    beside = any(f.of is not None for f in found)
    return frozenset({node, *node.args} if beside else {node} if found else ())


def _about(family: MutantFamily, node: Node) -> bool:
    return family.of is None or all(a.op == family.of for a in node.args)


def variants(family: MutantFamily, node: Node) -> Iterator[Node]:
    """The variants of one term by a family, except those that have no type, another type, or no
    difference."""
    if not _about(family, node):
        return
    found = family.mutate(node)
    while True:
        try:
            new = next(found, None)
        except IllTyped:
            return
        if new is None:
            return
        if new.type == node.type and new is not node:
            yield new
