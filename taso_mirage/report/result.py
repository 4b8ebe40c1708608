"""The result of `optimize`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import Node
from taso_mirage.measure.check import CheckCase, Difference
from taso_mirage.measure.rounding import LetThrough
from taso_mirage.measure.shapes import Workloads
from taso_mirage.measure.target import CPU, Target
from taso_mirage.measure.timing import Timing
from taso_mirage.report.changes import Explanation, ReportedChange, changes
from taso_mirage.report.leftover import Leftover
from taso_mirage.report.loop_changes import loop_regions
from taso_mirage.report.pages import render_template
from taso_mirage.rewriting.equation import Equation, work_terms
from taso_mirage.search.mutations import NO_MUTATIONS, Mutations
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.rulesets import RuleSet, rules
from taso_mirage.search.search import SearchStatistics
from taso_mirage.search.steps import RewriteStep
from taso_mirage.system.spending import Spending
from taso_mirage.system.terminal import plural
from taso_mirage.targets.profile import TimedNode

SEARCHES = ("passes", "mutants", "search")
"""The stages that share the budget of the search of graphs."""


@dataclass(frozen=True, slots=True)
class MeasuredPeaks:
    """The peaks of the runtime on this machine: operations a second in one large product, bytes a
    second in one large sum, both of this dtype."""

    flops: float
    bandwidth: float
    dtype: str


@dataclass(frozen=True, slots=True)
class OperatorProfile:
    """The runtime's nodes in a run of the original and of the result, with the seconds that its
    profiler measured."""

    before: tuple[TimedNode, ...]
    after: tuple[TimedNode, ...]


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Predicted seconds of every term that runs, in the original and in the result.

    `peaks`: None where nothing was measured; the seconds are then a roofline of described numbers.
    """

    before: Mapping[Node, float]
    after: Mapping[Node, float]
    peaks: MeasuredPeaks | None = None


@dataclass(frozen=True, slots=True)
class PlacedKernels:
    """Kernels that were put into the model together: the operators and the number of places of each
    kind of region, the speed-up of the model, and the number of weights that are stored in another
    order of axes for them."""

    kinds: tuple[tuple[tuple[str, ...], int], ...]
    gain: float
    turned: int = 0

    def __str__(self) -> str:
        said = " and for ".join(
            f"{' '.join(operators)} in {plural(places, 'place')}" for operators, places in self.kinds
        )
        weights = "1 weight is" if self.turned == 1 else f"{self.turned} weights are"
        stored = f"; {weights} stored transposed, along the sums" if self.turned else ""
        return f"kernel for {said}: the whole model is {self.gain:.3f} times as fast with it as without it{stored}"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of `optimize`.

    `changed` is false when the original's graph was kept; then `kept` says why. `failure` is set
    where a rewrite broke the model and was left out: it names the rewrite. `remarks` are all other
    things that a user should know.

    `records`: the record of each kernel of the model, by the name of its function; `unfused` is the
    model without kernels then.

    `steps` lead from the original's terms to the model's; `weights` has every one that a state in
    between needs; `rules` are those that could be applied; `cases` are the check's, with their
    float64 references, for a later stage that checks again; `normal` is the original after the
    passes, if they change it and it was measured no slower. `let_through`: rules that turn
    decisions of quantizers, which the user allowed, with their errors; the cases then have the
    model's results as the original's. `seconds` are those of each stage; `spending` is the account
    of all seconds; `left`: kernels that there was no time for; `written`: the files; `machine`: the
    target, machine and runtime that measured.
    """

    original: Model
    model: Model
    steps: tuple[RewriteStep, ...]
    weights: Mapping[str, Weight]
    changed: bool
    terms_before: int
    terms_after: int
    cost_before: float
    cost_after: float
    timing: Timing | None
    equations: Mapping[str, int]
    differences: tuple[Difference, ...]
    statistics: SearchStatistics
    seconds: Mapping[str, float]
    workloads: Workloads
    remarks: tuple[str, ...] = ()
    kept: str | None = None
    failure: CheckFailed | None = None
    kernels: tuple[PlacedKernels, ...] = ()
    target: Target = CPU
    mutations: Mutations = NO_MUTATIONS
    rules: RuleSet = field(default_factory=rules, repr=False, compare=False)
    explanations: tuple[Explanation, ...] = field(default=(), repr=False, compare=False)
    times: OperatorTimes | None = field(default=None, repr=False, compare=False)
    profile: OperatorProfile | None = field(default=None, repr=False, compare=False)
    cases: tuple[CheckCase, ...] = field(default=(), repr=False, compare=False)
    normal: ModelCandidate | None = field(default=None, repr=False, compare=False)
    let_through: LetThrough | None = None
    written: tuple[Path, ...] = ()
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    unfused: Model | None = field(default=None, repr=False, compare=False)
    left: Leftover | None = None
    spending: Spending = field(default_factory=Spending, repr=False, compare=False)
    machine: str | None = None

    def __repr__(self) -> str:
        """One line; `notes`, `changes` and `timing` have the rest."""
        files = f"; written to {', '.join(map(str, self.written))}" if self.written else ""
        return f"<Result: {self.outcome}, {self.terms_before} to {self.terms_after} operators{files}>"

    def _repr_html_(self) -> str:
        """The result as a table, for notebooks."""
        before, after = self.seconds_before_after
        how = "predicted" if self.timing is None else "measured"
        rows = [
            ("result", self.outcome),
            ("operators", f"{self.terms_before} to {self.terms_after}"),
            (f"{how} time", f"{before * 1e3:.3g} ms to {after * 1e3:.3g} ms"),
            ("changes", ", ".join(f"{name} ({n})" for name, n in self.equations.items()) or "none"),
            *(("note", note) for note in self.notes),
        ]
        return render_template("result.html", rows=rows)

    @property
    def outcome(self) -> str:
        """Whether the model was changed, and how many times as fast it is."""
        if not self.changed:
            return "the original's graph was kept"
        if self.timing is None:
            before, after = self.seconds_before_after
            return f"changed, predicted {before / after:.2f} times as fast" if after > 0 else "changed"
        return f"{self.timing.ratio:.2f} times as fast"

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes for the user, one per line."""
        failure = () if self.failure is None else (str(self.failure),)
        kept = () if self.kept is None else (self.kept,)
        return (*self.remarks, *failure, *kept, *map(str, self.kernels))

    @property
    def seconds_before_after(self) -> tuple[float, float]:
        """The seconds of the original and of the model, measured or else predicted."""
        timing = self.timing
        return (self.cost_before, self.cost_after) if timing is None else (timing.original, timing.optimized)

    @property
    def searched(self) -> float:
        """Seconds of the passes, of the mutants and of the search together."""
        return sum(self.seconds.get(name, 0.0) for name in SEARCHES)

    @property
    def named(self) -> dict[str, Equation]:
        """The equations that the steps may name, those of mutants included."""
        return {e.name: e for e in (*self.rules, *(m.equation for m in self.mutations.found))}

    @property
    def changes(self) -> list[ReportedChange]:
        """The distinct changes, each with its places."""
        return changes(self.original, self.steps, self.named, loop_regions(self.steps))

    def noted(self, *remarks: str) -> Result:
        """This result with more remarks."""
        return replace(self, remarks=(*self.remarks, *remarks))

    def of(self, chosen: ModelCandidate) -> Result:
        """This result with another candidate in place of the original's graph."""
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

    def unchanged(self, why: str, target: Target) -> Result:
        """This result with the original's graph, and the reason why it is kept."""
        return replace(
            self,
            model=self.original,
            steps=(),
            changed=False,
            terms_after=self.terms_before,
            cost_after=self.cost_before,
            timing=None,
            equations={},
            differences=(),
            kernels=(),
            records={},
            unfused=None,
            explanations=(),
            times=None,
            profile=None,
            let_through=None,
            kept=why,
            target=target,
        )
