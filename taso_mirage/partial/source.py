"""Partial equivalence as a source of equations: the costly programs of a model, their mutants, and those that pay, verified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from taso_mirage.equation import Equation
from taso_mirage.expressions import is_weight
from taso_mirage.ir import ABSENT, Graph, Node, Tensor, substitute, topological, variable, weight
from taso_mirage.partial.candidates import Candidate, candidates
from taso_mirage.partial.whole import equation, verified
from taso_mirage.verify.refused import Refused

COSTLY = frozenset({"conv", "matmul", "average_pool"})
Pays = Callable[[Graph, Graph], bool]
"""Whether the second program is worth its verification: cheaper than the first."""


def programs(outputs: Sequence[Node]) -> list[Graph]:
    """Every costly term of fixed sizes over leaves of its own, and every concatenation of convolutions; equal ones are one."""
    found: dict[Graph, None] = {}
    for node in topological(outputs):
        beside = node.op == "concat" and all(a.op == "conv" for a in node.args)
        if (node.op in COSTLY or beside) and not is_weight(node):
            inside = {node, *node.args} if beside else {node}
            if all(_fixed(n) for each in inside for n in (each, *each.args)):
                found[_alone(node, inside)] = None
    return list(found)


def _fixed(node: Node) -> bool:
    return isinstance(node.type, Tensor) and all(isinstance(n, int) for n in node.type.shape or ())


def _alone(node: Node, inside: Collection[Node]) -> Graph:
    operands = dict.fromkeys(a for each in topological([node]) if each in inside for a in each.args)
    leaves: dict[Node, Node] = {}
    for a in operands:
        if a not in inside and a is not ABSENT and a.op != "constant":
            leaves[a] = (weight if is_weight(a) else variable)(f"x{len(leaves)}", a.tensor)
    return Graph(tuple(n for n in leaves.values() if n.op == "input"), substitute([node], leaves))


def equations(
    outputs: Sequence[Node], pays: Pays, depth: int = 1, late: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Equation, Candidate]]:
    """For every costly program of a model its mutants that pay, as equations at their sizes with their evidence, until it is late."""
    for program in programs(outputs):
        for candidate in candidates(program, depth):
            if late():
                return
            if isinstance(candidate, Refused) or not pays(program, candidate.corrected):
                continue
            evidence = verified(program, candidate.corrected)
            if not isinstance(evidence, Refused):
                name = ", then ".join(candidate.mutant.families)
                yield equation(f"partial: {name}", program, candidate.corrected, str(evidence)), candidate
