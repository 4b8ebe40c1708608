"""Possible replacements of a program: its mutants with corrections, before their costs are known.
`whole.verified` verifies the ones that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph
from taso_mirage.search.partial.agreement import Agreement, agreement
from taso_mirage.search.partial.correct import correct
from taso_mirage.search.partial.families import Mutant, mutants_of
from taso_mirage.verdicts import Failure, FailureKind

LOOKS = 3
"""The number of trials that determine where a mutant agrees; a mutant that is kept is verified with
more (`whole.verified`)."""


@dataclass(frozen=True, slots=True)
class CorrectedMutant:
    """A mutant, the region where it agrees, and the program with corrections. `joined`: corrections
    that share weights are one operator."""

    mutant: Mutant
    agreement: Agreement
    corrected: Graph
    joined: bool


def candidates(original: Graph, depth: int = 1) -> Iterator[CorrectedMutant | Failure]:
    """Every mutant of up to `depth` steps with its corrections, or why it has none.

    Nothing here is verified.
    """
    for mutant in mutants_of(original, depth):
        yield from made_whole(original, mutant)


def made_whole(original: Graph, mutant: Mutant) -> list[CorrectedMutant | Failure]:
    """A mutant with its corrections, in one or two ways, or why it has none."""
    try:
        return [*corrections(original, mutant, agreement(original, mutant.graph, LOOKS))]
    except Unsupported as error:
        return [Failure(FailureKind.EXCLUDED, f"{', then '.join(mutant.families)}: {error}")]


def corrections(original: Graph, mutant: Mutant, found: Agreement) -> list[CorrectedMutant]:
    """A mutant with its corrections; if they can be joined, in both forms, so that the cheaper one
    can be used. Raises Unsupported."""
    apart, together = (correct(original, mutant.graph, found, joined) for joined in (False, True))
    ways = [CorrectedMutant(mutant, found, apart, False)]
    if together.outputs != apart.outputs and not found.total:
        ways.append(CorrectedMutant(mutant, found, together, True))
    return ways
