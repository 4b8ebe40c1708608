"""What a program could be replaced with: its mutants, corrected, to be costed; what is kept is verified by `whole.verified`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taso_mirage.errors import Unsupported
from taso_mirage.ir import Graph
from taso_mirage.partial.agreement import Agreement, agreement
from taso_mirage.partial.correct import correct
from taso_mirage.partial.families import Mutant, mutants
from taso_mirage.verify.refused import Refused


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mutant, where it agrees, and the program with corrections: `joined` ones as one operator, where that makes a difference."""

    mutant: Mutant
    agreement: Agreement
    corrected: Graph
    joined: bool


def candidates(original: Graph, depth: int = 1) -> Iterator[Candidate | Refused]:
    """Every mutant of up to `depth` steps with its corrections, or why it has none. Nothing here is verified.

    Where the corrections can be joined, both ways are given, for the one that costs less.
    """
    for mutant in mutants(original, depth):
        try:
            found = agreement(original, mutant.graph)
            apart = correct(original, mutant.graph, found, joined=False)
        except Unsupported as error:
            yield Refused(f"{', then '.join(mutant.families)}: {error}")
            continue
        yield Candidate(mutant, found, apart, False)
        together = correct(original, mutant.graph, found, joined=True)
        if together.outputs != apart.outputs and not found.total:
            yield Candidate(mutant, found, together, True)
