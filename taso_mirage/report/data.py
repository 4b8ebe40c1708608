"""The data of a result for JSON: the name, the type and the meaning of each field.

The types are the schema of the output of `optimize --json` (`docs/schemas.py` writes it from them);
times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import NotRequired, cast

from typing_extensions import TypedDict

from taso_mirage.devices.stamp import PROVIDERS
from taso_mirage.measure.check import Difference
from taso_mirage.measure.rounding import LetThrough
from taso_mirage.measure.timing import Timing
from taso_mirage.report.explanations import ChangeData
from taso_mirage.report.leftover import Leftover
from taso_mirage.report.result import Result
from taso_mirage.runtime.register import FORMAT_KEY
from taso_mirage.search.search import SearchStatistics
from taso_mirage.system.spending import Spending
from taso_mirage.system.terminal import one_line
from taso_mirage.targets.packaging import opening
from taso_mirage.version import __version__


class BeforeAfter(TypedDict):
    """Seconds."""

    before: float
    after: float


class Counts(TypedDict):
    """The numbers of operators of the original's graph and of the result's."""

    before: int
    after: int


class Times(TypedDict):
    """Measured seconds: medians over rounds in which both ran in turn."""

    before: float
    after: float
    ratio: float
    """The speed-up of the result."""
    interval: list[float]
    """The confidence interval of the ratio, by the sequential test."""
    runs: int
    clock: str
    """`wall`, or `processor`: CPU time on one thread, used if other processes used the cores."""


class TargetData(TypedDict):
    """The target of the model, and the options of the runtime in the measurement."""

    name: str
    provider: str | None
    options: dict[str, str]


class SizesData(TypedDict):
    """One set of sizes of dynamic dims, and its share of the runs."""

    sizes: dict[str, int]
    share: float
    time: Times | None


class CheckData(TypedDict):
    """One output on one set of inputs. A number that is not finite is null."""

    case: str
    output: str
    error: float | None
    own_error: float | None
    """The original's own, against float64."""
    bound: float | None
    passed: bool


class AllowedData(TypedDict):
    """The rounding that `--allow-rounding` allowed."""

    steps: float
    rules: list[str]


class OutputData(TypedDict):
    """The largest error of an output in steps of a size, and the number of its elements that
    differ."""

    case: str
    output: str
    against: str
    step: float
    steps: float
    elements: int
    size: int


class LetThroughData(TypedDict):
    """The rules that changed roundings of quantizers, and the resulting errors of the outputs."""

    rules: list[str]
    allowed: AllowedData
    outputs: list[OutputData]


class ExtractionData(TypedDict):
    """The extractions by `--strategy saturate` from its e-graphs."""

    parts: int
    exact: int
    gap: float
    """The largest saving of a better choice, in one part."""


class SearchData(TypedDict):
    """The counts of the search."""

    parts: int
    distinct_parts: int
    states: int
    matches: int
    ended: dict[str, int]
    """The number of parts by the reason for their end."""
    extraction: ExtractionData | None


class MutantData(TypedDict):
    """A mutant that is faster on its own, `right` for a share of its elements before correction."""

    equation: str
    right: float
    seconds: BeforeAfter
    taken: int


class MutantsData(TypedDict):
    """The mutants (PET) that were tried."""

    programs: int
    known: int
    late: int
    mutants: int
    refused: int
    seconds: float
    paying: list[MutantData]


class LeftRegionData(TypedDict):
    """A kind of regions that was not tried."""

    operators: list[str]
    places: int
    gain: float
    """The largest possible speed-up of the whole model by a kernel, by an estimate."""


class LeftoverData(TypedDict):
    """The regions for which the search of kernels had no time."""

    said: str
    """A summary in one line."""
    tuned: int
    kinds: int
    """The number of all kinds of regions."""
    seconds: float
    """The estimated seconds that the other kinds would take."""
    regions: list[LeftRegionData]


class StageSpendingData(TypedDict):
    """The seconds of a stage, by purpose."""

    stage: str
    seconds: float
    spent: dict[str, float]
    loads: int
    """The number of loads of whole models into the runtime."""


class SpendingData(TypedDict):
    """The seconds of a command by use: each second belongs to one stage and one purpose."""

    seconds: float
    """All seconds, from the start of the process to the last file."""
    spent: dict[str, float]
    loads: int
    """The number of loads of whole models into the runtime."""
    stages: list[StageSpendingData]


class ResultData(TypedDict):
    """The result of `optimize` for a model."""

    model: str
    written: list[str]
    open: str | None
    """The line of Python that opens the written model."""
    changed: bool
    """False if the original's graph was kept."""
    failure: str | None
    """The rewrite that failed the check; it was left out."""
    target: TargetData
    nodes: Counts
    cost: BeforeAfter
    """Predicted seconds."""
    time: Times | None
    """Null if nothing was measured."""
    sizes: list[SizesData]
    integers: dict[str, int]
    """Values of scalar inputs that choose a branch or a size."""
    equations: dict[str, int]
    """The number of applications of each equation."""
    check: list[CheckData]
    let_through: LetThroughData | None
    search: SearchData
    partial: MutantsData
    seconds: dict[str, float]
    """The seconds of each stage of the pipeline."""
    spending: SpendingData
    notes: list[str]
    left: LeftoverData | None
    """Null if the kernels of all kinds of regions were tried, or of none."""
    version: str
    changes: NotRequired[list[ChangeData]]
    """Only with `--explain`."""


def result_data(result: Result, source: Path, written: Sequence[Path]) -> ResultData:
    """The result as JSON data; times in seconds."""
    timing = result.timing
    return {
        "model": str(source),
        "written": [str(p) for p in written],
        "open": opening_line(result, written) if written else None,
        "changed": result.changed,
        "failure": None if result.failure is None else str(result.failure),
        "target": {
            "name": result.target.name,
            "provider": PROVIDERS.get(result.target.name),
            "options": dict(result.target.options),
        },
        "nodes": {"before": result.terms_before, "after": result.terms_after},
        "cost": {"before": result.cost_before, "after": result.cost_after},
        "time": None if timing is None else times_data(timing),
        "sizes": [
            {"sizes": dict(sizes), "share": share, "time": None if each is None else times_data(each)}
            for sizes, share, each in by_sizes(result)
        ],
        "integers": dict(result.original.integers),
        "equations": dict(result.equations),
        "check": check_data(result.differences),
        "let_through": None if result.let_through is None else _rounding_data(result.let_through),
        "search": _search_data(result.statistics),
        "partial": _mutants_data(result),
        "seconds": dict(result.seconds),
        "spending": _spending_data(result.spending),
        "notes": list(result.notes),
        "left": None if result.left is None else _leftover_data(result.left),
        "version": __version__,
    }


def _leftover_data(left: Leftover) -> LeftoverData:
    regions = [LeftRegionData(operators=[*r.operators], places=r.places, gain=r.gain) for r in left.regions]
    return {"said": str(left), "tuned": left.tuned, "kinds": left.kinds, "seconds": left.seconds, "regions": regions}


def _spending_data(spending: Spending) -> SpendingData:
    return {
        "seconds": spending.seconds,
        "spent": spending.purposes,
        "loads": sum(spending.loads.values()),
        "stages": [
            {"stage": stage, "seconds": sum(each.values()), "spent": dict(each), "loads": spending.loads.get(stage, 0)}
            for stage, each in spending.stages.items()
        ],
    }


def times_data(timing: Timing) -> Times:
    return {
        "before": timing.original,
        "after": timing.optimized,
        "ratio": timing.ratio,
        "interval": [timing.low, timing.high],
        "runs": timing.runs,
        "clock": "processor" if timing.works else "wall",
    }


def check_data(differences: Sequence[Difference]) -> list[CheckData]:
    """Every output on every set of inputs."""
    return [
        {
            "case": d.case,
            "output": d.output,
            "error": or_null(d.error),
            "own_error": or_null(d.own),
            "bound": or_null(d.bound),
            "passed": d.passed,
        }
        for d in differences
    ]


def or_null(number: float) -> float | None:
    """JSON has no other numbers."""
    return number if math.isfinite(number) else None


def _rounding_data(found: LetThrough) -> LetThroughData:
    return {
        "rules": list(found.rules),
        "allowed": {"steps": found.allowed.steps, "rules": list(found.allowed.rules)},
        "outputs": [cast(OutputData, asdict(each)) for each in found.outputs],
    }


def _search_data(statistics: SearchStatistics) -> SearchData:
    return {
        "parts": statistics.parts,
        "distinct_parts": statistics.distinct,
        "states": statistics.states,
        "matches": statistics.matches,
        "ended": dict(statistics.ended),
        "extraction": _extraction_data(statistics),
    }


def _extraction_data(statistics: SearchStatistics) -> ExtractionData | None:
    gaps = statistics.gaps
    return {"parts": len(gaps), "exact": gaps.count(0.0), "gap": max(gaps)} if gaps else None


def _mutants_data(result: Result) -> MutantsData:
    """The counts of mutants that were tried, the mutants that are faster by themselves, and the
    number of uses of each."""
    made = result.mutations
    return {
        "programs": made.programs,
        "known": made.known,
        "late": made.late,
        "mutants": made.mutants,
        "refused": made.refused,
        "seconds": made.seconds,
        "paying": [
            {
                "equation": m.equation.name,
                "right": m.right,
                "seconds": {"before": m.seconds[0], "after": m.seconds[1]},
                "taken": result.equations.get(m.equation.name, 0),
            }
            for m in made.found
        ],
    }


def by_sizes(result: Result) -> Iterator[tuple[Mapping[str, int], float, Timing | None]]:
    """Every set of sizes, its share, and the times there."""
    each = () if result.timing is None else result.timing.each or (result.timing,)
    for (sizes, share), timing in zip_longest(result.workloads, each):
        yield sizes, share, timing


def opening_line(result: Result, written: Sequence[Path]) -> str:
    """The line of Python that opens the written model."""
    return one_line(opening(written[-1], result.target.stamp, FORMAT_KEY in result.model.header.metadata_props))
