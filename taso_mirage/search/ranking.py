"""The mutants of a costly part (PET, OSDI'21), their costs without and with their corrections, and
which are verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph
from taso_mirage.search.cost import Cost
from taso_mirage.search.partial.agreement import Agreement, agreement
from taso_mirage.search.partial.candidates import corrections
from taso_mirage.search.partial.families import Mutant
from taso_mirage.search.partial.pieces import merged_boxes
from taso_mirage.search.partial.whole import verified_program
from taso_mirage.verdicts import Evidence, Failure, FailureKind

Late = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A mutant of a part; costs are seconds.

    `agreement` is None where the two cannot be compared, `corrected` where the mutant has no
    correction: `refused` says why. `joined`: corrections that share their weights run as one
    operator, which costs less than each alone. `evidence` is None while nothing was verified.
    """

    mutant: Mutant
    without: float
    agreement: Agreement | None = None
    corrected: Graph | None = None
    cost: float = inf
    joined: bool = False
    refused: Failure | None = None
    evidence: Evidence | Failure | None = None

    @property
    def share(self) -> float:
        """The part of the elements that are right without correction, of the output with the
        fewest."""
        return 0.0 if self.agreement is None else min(region.share for region in self.agreement.regions)

    @property
    def total(self) -> bool:
        """Whether it is right everywhere."""
        return self.agreement is not None and self.agreement.total

    @property
    def pieces(self) -> int:
        """How many boxes are corrected."""
        if self.agreement is None or self.corrected is None:
            return 0
        return sum(len(merged_boxes(region, False)) for region in self.agreement.regions)


def costed(original: Graph, mutants: Sequence[Mutant], cost: Cost, late: Late = lambda: False) -> Iterator[Ranked]:
    """Each mutant with its region, its correction, and the costs of both, until the time is over.

    Nothing here is verified.
    """
    for mutant in mutants:
        if late():
            return
        yield _costed(original, mutant, cost)


def _costed(original: Graph, mutant: Mutant, cost: Cost) -> Ranked:
    made = Ranked(mutant, cost(mutant.graph.outputs))
    try:
        made = replace(made, agreement=(found := agreement(original, mutant.graph)))
        ways = corrections(original, mutant, found)
    except Unsupported as error:
        return replace(made, refused=Failure(FailureKind.EXCLUDED, str(error)))
    costs = [cost(way.corrected.outputs) for way in ways]
    best = ways[costs.index(min(costs))]
    return replace(made, corrected=best.corrected, cost=min(costs), joined=best.joined)


def ranked_mutants(found: Sequence[Ranked]) -> list[Ranked]:
    """Sort by the cost of the corrected program. Mutants without one come last, the largest region
    first.

    If two mutants lead to one program, the first is kept.
    """
    order = sorted(found, key=lambda each: (each.cost, -each.share, len(each.mutant.families)))
    programs = [None if each.corrected is None else each.corrected.outputs for each in order]
    return [each for i, each in enumerate(order) if programs[i] is None or programs[i] not in programs[:i]]


def proved(original: Graph, found: Sequence[Ranked], late: Late = lambda: False) -> Iterator[Ranked]:
    """The ranked programs, with evidence for programs with a correction while there is time."""
    for each in found:
        if each.corrected is None or late():
            yield each
        else:
            yield replace(each, evidence=verified_program(original, each.corrected))
