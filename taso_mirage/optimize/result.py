"""What `optimize` gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from taso_mirage.equation import work_terms
from taso_mirage.model import Model, Weight
from taso_mirage.optimize.check import Case, Difference
from taso_mirage.optimize.cost import Workloads
from taso_mirage.optimize.mutations import NONE, Mutations
from taso_mirage.optimize.rewriter import Candidate
from taso_mirage.optimize.search import Statistics
from taso_mirage.optimize.steps import Step
from taso_mirage.optimize.target import CPU, Target
from taso_mirage.optimize.timing import Timing


@dataclass(frozen=True, slots=True)
class Result:
    """What `optimize` did. `changed` is false when the original's graph was kept; `notes` says why, and what failed.

    `steps` lead from the original's terms to the model's; `weights` has every one that a state in between needs; `cases` are the
    check's, with their float64 references, for a later stage that checks again; `normal` is the original after the passes, if they change
    it and it was measured no slower.
    """

    original: Model
    model: Model
    steps: tuple[Step, ...]
    weights: Mapping[str, Weight]
    changed: bool
    terms_before: int
    terms_after: int
    cost_before: float
    cost_after: float
    timing: Timing | None
    equations: Mapping[str, int]
    differences: tuple[Difference, ...]
    statistics: Statistics
    seconds: Mapping[str, float]
    notes: tuple[str, ...]
    workloads: Workloads
    target: Target = CPU
    mutations: Mutations = NONE
    cases: tuple[Case, ...] = field(default=(), repr=False, compare=False)
    normal: Candidate | None = field(default=None, repr=False, compare=False)

    def of(self, chosen: Candidate) -> Result:
        """The same with another candidate in place of the original's graph."""
        return replace(
            self,
            model=chosen.model,
            steps=chosen.steps,
            changed=True,
            terms_after=len(work_terms(chosen.model.nodes())),
            cost_after=chosen.cost,
            equations=dict(Counter(e for s in chosen.steps for e in s.equations).most_common()),
            target=chosen.target,
        )
