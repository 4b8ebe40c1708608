"""A survey of a model's regions: each is searched within its share of a budget, and the cost model
predicts its operators one by one.

The results are a plain value for `json.dump`, so that a survey continues where it was interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from taso_mirage.devices.device import Device
from taso_mirage.errors import SyntaxProblem, TasoMirageError
from taso_mirage.ir.mugraph import kernels
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.goal import views
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.mugraph.verification import tests_json, verified_mugraph
from taso_mirage.operators.work import work
from taso_mirage.regions.canonical import operator_alone
from taso_mirage.regions.kernel_regions import KernelRegion
from taso_mirage.verdicts import Failure

VERSION = 1
SINGLE = 2.0
"""Seconds that the search for the kernel of one operator may take."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A region with its best muGraph, or the reason why there is none, and the predicted seconds of
    one kernel for each of its operators."""

    region: KernelRegion
    found: FoundMuGraph | None
    problem: str
    apart: float
    took: float
    statistics: Mapping[str, int]

    @property
    def kernels(self) -> list[Node]:
        """The kernels of the muGraph, in the order of their runs."""
        return [] if self.found is None else kernels(self.found.graph.outputs)

    @property
    def gain(self) -> float:
        """Predicted seconds that the muGraph saves at all places together."""
        return 0.0 if self.found is None else (self.apart - self.found.seconds) * len(self.region.places)


class SurveyStopped(Exception):
    """Raised when the survey is stopped."""


def survey(
    regions: Sequence[KernelRegion],
    budget: float,
    known: Mapping[Graph, Mapping[str, Any]],
    device: Device,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Surveyed]:
    """Every region with its result, predicted for a device; the unused part of its share of
    `budget`, in seconds, is for those after it.

    `known`: the result of `survey_data` for a graph in an earlier survey. Once `stop` says so, the
    rest is not searched.
    """
    end = time.monotonic() + budget
    single: dict[Graph, float] = {}
    for place, region in enumerate(regions):
        if region.graph in known:
            yield _from_data(region, known[region.graph])
            continue
        share = max(end - time.monotonic(), 0.0) / (len(regions) - place)
        try:
            yield _searched(region, share, single, device, stop)
        except SurveyStopped:
            yield Surveyed(region, None, "its search was interrupted", 0.0, 0.0, {})


def _searched(
    region: KernelRegion, budget: float, single: dict[Graph, float], device: Device, stop: Callable[[], bool]
) -> Surveyed:
    def progress(stage: str, done: int, total: int) -> None:
        if stop():
            raise SurveyStopped

    start = time.monotonic()
    progress("start", 0, 0)
    found, problem, statistics = None, "no muGraph was verified within its share of the budget", {}
    try:
        search = Search(region.graph, SearchOptions(), device, 0)
        found = next(iter(search.run(1, budget, progress, rests=False)), None)
        statistics = asdict(search.statistics)
    except SurveyStopped:
        raise
    except TasoMirageError as error:
        problem = str(error)
    except Exception as error:  # a bug, which must not lose the results of the other regions
        problem = f"internal error, please report it: {type(error).__name__}: {error}"
    apart = sum(_single(node, single, progress, device) for node in region.operators)
    return Surveyed(region, found, "" if found else problem, apart, time.monotonic() - start, statistics)


def _single(node: Node, known: dict[Graph, float], progress: Callable[[str, int, int], None], device: Device) -> float:
    """Predicted seconds of one operator as a kernel of its own: nothing for another shape of the
    same bytes; a roofline where the search finds no kernel."""
    graph = operator_alone(node, {})
    if graph not in known:
        try:
            if views(label(graph)):
                known[graph] = 0.0
                return 0.0
            found = Search(graph, SearchOptions(max_kernels=1), device).run(1, SINGLE, progress)
        except TasoMirageError:
            found = []
        counted = work(node, {})
        roofline = device.launch + max(counted.bytes / device.bandwidth, counted.flops / device.flops)
        known[graph] = found[0].seconds if found else roofline
    return known[graph]


# ---------------------------------------------------------------- JSON


def survey_data(each: Surveyed) -> dict[str, Any]:
    """A region and its result, for `json.dump`; times in seconds."""
    found = each.found
    return {
        "goal": to_json(each.region.graph),
        "operators": [n.op for n in each.region.operators],
        "count": len(each.region.places),
        "places": [list(names) for names in each.region.places],
        "flops": each.region.flops,
        "bytes": {"apart": each.region.bytes, "fused": each.region.least},
        "seconds": {"apart": each.apart, "fused": None if found is None else found.seconds},
        "kernels": [{"grid": list(n.attr("grid")), "loop": n.attr("loop")} for n in each.kernels],
        "device": None if found is None else found.device,
        "mugraph": None if found is None else to_json(found.graph),
        "evidence": None if found is None else tests_json(found.evidence),
        "problem": each.problem or None,
        "search": {"seconds": each.took, **each.statistics},
    }


def known_regions(rows: Any, device: Device) -> dict[Graph, Mapping[str, Any]]:
    """The regions of an earlier survey for which a muGraph was found for a device.

    Raises SyntaxProblem for a value that is no such survey.
    """
    try:
        done = [row for row in rows if row["mugraph"] is not None and row["device"] == device.name]
        return {from_json(row["goal"]): row for row in done}
    except (TypeError, LookupError) as error:
        raise SyntaxProblem(f"no survey of regions: {type(error).__name__}: {error}") from None


def _from_data(region: KernelRegion, row: Mapping[str, Any]) -> Surveyed:
    """The result of an earlier survey, verified again: no statement of the file is trusted."""
    try:
        search = dict(row["search"])
        took = _seconds(search.pop("seconds"))
        graph = from_json(row["mugraph"])
        fused, apart = (_seconds(row["seconds"][key]) for key in ("fused", "apart"))
        if fused == 0:
            raise ValueError("no kernel takes no time")
        evidence = verified_mugraph(graph, region.graph)
        if isinstance(evidence, Failure):
            raise SyntaxProblem(f"its muGraph is not the region: {evidence.reason}")
        found = FoundMuGraph(graph, region.graph, fused, row["device"], evidence)
        return Surveyed(region, found, "", apart, took, search)
    except (TypeError, LookupError, ValueError, ArithmeticError) as error:
        raise SyntaxProblem(f"a region of a survey: {type(error).__name__}: {error}") from None


def _seconds(value: Any) -> float:
    found = float(value)
    if not 0 <= found < math.inf:
        raise ValueError(f"{found} are no seconds")
    return found
