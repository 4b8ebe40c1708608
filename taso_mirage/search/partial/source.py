"""Partial equivalence as a source of equations: the costly programs of a model, and the verified
mutants of each that make it faster."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, substitute, topological, variable, weight
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.work import work
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.text import show_graph
from taso_mirage.search.partial.candidates import CorrectedMutant, made_whole
from taso_mirage.search.partial.families import begins, mutants_of
from taso_mirage.search.partial.picture import picture
from taso_mirage.search.partial.whole import equation, tests_in_words, verified_program
from taso_mirage.verdicts import Failure

PAYS = 0.97
"""The largest share of a program's seconds that a corrected mutant may take."""
Seconds = Callable[[Graph], float]
"""The cost of a program."""
Contest = Callable[[Graph, Graph], tuple[float, float]]
"""Seconds of two programs side by side, measured if the second has the lower predicted cost."""
KEPT = 3
"""The largest number of mutants of one program that are kept."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A corrected mutant that is faster: `equation` replaces `program` by `corrected`; `families`
    led to the mutant.

    `right`: the part of the output's elements that the mutant computes rightly without corrections;
    `region` is a picture of them, empty where all are right. `seconds`: of the program and of the
    corrected mutant, as they were asked for.
    """

    program: Graph
    corrected: Graph
    equation: Equation
    families: tuple[str, ...]
    right: float
    region: str
    seconds: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Tried:
    """The mutations of a program, the best first, and the number of its mutants; `refused` of those
    that might be faster have no corrections."""

    mutations: tuple[Mutation, ...] = ()
    mutants: int = 0
    refused: int = 0


def programs(outputs: Sequence[Node]) -> list[Graph]:
    """The costly programs of a model, each once."""
    return list(counted(outputs))


def counted(outputs: Sequence[Node]) -> Mapping[Graph, int]:
    """Every term of fixed sizes at which mutants begin, over leaves of its own; and how many there
    are.

    A concatenation of convolutions comes with them.
    """
    found: Counter[Graph] = Counter()
    for node in topological(outputs):
        inside = begins(node)
        if inside and not is_weight(node) and all(_fixed(n) for each in inside for n in (each, *each.args)):
            found[alone(node, inside)] += 1
    return found


def _fixed(node: Node) -> bool:
    return isinstance(node.type, Tensor) and all(isinstance(n, int) for n in node.type.shape or ())


def alone(node: Node, inside: Collection[Node]) -> Graph:
    """The terms `inside` below a node, over leaves of their own: x0, x1, ..."""
    operands = dict.fromkeys(a for each in topological([node]) if each in inside for a in each.args)
    leaves: dict[Node, Node] = {}
    for a in operands:
        if a not in inside and a is not ABSENT and a.op != "constant":
            leaves[a] = (weight if is_weight(a) else variable)(f"x{len(leaves)}", a.tensor)
    return Graph(tuple(n for n in leaves.values() if n.op == "input"), substitute([node], leaves))


def tried(
    program: Graph,
    seconds: Seconds,
    contest: Contest | None = None,
    depth: int = 1,
    late: Callable[[], bool] = lambda: False,
) -> Tried | None:
    """The verified mutants of a program that take fewer `seconds` with their corrections, by
    prediction and in the contest.

    Corrections and the other terms only add to the cost of the largest term of a mutant. Therefore
    a mutant that is too expensive without corrections is not compared, and the cost of moving data
    is not computed if the largest term alone is too expensive. Both would take most of the time.
    None if it was late before the end.
    """
    before = seconds(program)
    enough = PAYS * before
    paying: list[tuple[float, CorrectedMutant]] = []
    number = refused = 0
    for mutant in mutants_of(program, depth):
        number += 1
        hopeful = seconds(_largest(mutant.graph)) < enough and seconds(mutant.graph) < enough
        for made in made_whole(program, mutant) if hopeful else ():
            if isinstance(made, Failure):
                refused += 1
            elif (after := seconds(made.corrected)) < enough:
                paying.append((after, made))
        if late():  # the last costs may be estimates, which must not be stored
            return None
    found: list[Mutation] = []
    for after, candidate in sorted(paying, key=lambda each: each[0]):
        if late():
            return None
        times = contest(program, candidate.corrected) if contest is not None else (before, after)
        evidence = verified_program(program, candidate.corrected) if times[1] < PAYS * times[0] else None
        if evidence is not None and not isinstance(evidence, Failure):
            found.append(_mutation(program, candidate, tests_in_words(evidence), times))
        if len(found) == KEPT:
            break
    return Tried(tuple(sorted(found, key=lambda m: m.seconds[1] / m.seconds[0])), number, refused)


def _largest(graph: Graph) -> Graph:
    """The term with the most operations, alone."""
    terms = [n for n in graph if n.args and not is_weight(n)]
    largest = max(terms, key=lambda n: work(n, {}).flops)
    return alone(largest, {largest})


def _mutation(program: Graph, candidate: CorrectedMutant, evidence: str, seconds: tuple[float, float]) -> Mutation:
    regions, families = candidate.agreement.regions, candidate.mutant.families
    drawn = "" if candidate.agreement.total else "\n".join(picture(r) for r in regions)
    right = min(r.share for r in regions)
    return mutation(program, candidate.corrected, families, evidence, right, drawn, seconds)


def mutation(
    program: Graph,
    corrected: Graph,
    families: tuple[str, ...],
    evidence: str,
    right: float,
    region: str,
    seconds: tuple[float, float],
) -> Mutation:
    """A mutation with its equation, whose name contains the families and a digest of both
    programs."""
    digest = hashlib.blake2b("\0".join(map(show_graph, (program, corrected))).encode(), digest_size=4).hexdigest()
    law = equation(f"partial: {', then '.join(families)} ({digest})", program, corrected, evidence)
    return Mutation(program, corrected, law, families, right, region, seconds)
