"""Partial equivalence as a source of equations: the costly programs of a model, and of each the
mutants that pay, verified."""

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
"""The part of a program's seconds that a corrected mutant may take, at most."""
Seconds = Callable[[Graph], float]
"""The cost of a program."""
Contest = Callable[[Graph, Graph], tuple[float, float]]
"""Seconds of two programs side by side, asked for those of which the second costs less."""
KEPT = 3
"""Mutants of one program that are kept, at most."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mutant made whole that pays: `equation` puts `corrected` for `program` wherever it stands;
    `families` led to the mutant.

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
    """The mutations of a program, the best first, and of how many mutants; `refused` of those that
    might pay have no corrections."""

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
    """The mutants of a program that take less of `seconds` with their corrections, and in the
    contest, verified.

    Corrections only add to a mutant, and the rest of it to its largest term: where one that takes
    too long agrees is not asked, nor the cost of moving data if the term alone takes too long. Both
    would be most of the time. None if it was late before the end.
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
        if late():  # the last costs may be estimates, which nobody shall keep
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
    """A mutation with its equation, whose name says the families, and by a digest which programs it
    is about."""
    digest = hashlib.blake2b("\0".join(map(show_graph, (program, corrected))).encode(), digest_size=4).hexdigest()
    law = equation(f"partial: {', then '.join(families)} ({digest})", program, corrected, evidence)
    return Mutation(program, corrected, law, families, right, region, seconds)
