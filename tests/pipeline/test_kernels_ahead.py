"""Kernels that are begun before the model is compared and checked, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fused_models import CONFIG, GPU, NoCompiler, fresh_cache, kernels, model, on_the_cpu, plain, quick

from taso_mirage.ir.terms import Graph
from taso_mirage.lowering.cuda import CudaLowering
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.pipeline import stages
from taso_mirage.pipeline.fuse import ahead as begun
from taso_mirage.pipeline.fuse import fused, searches, stage
from taso_mirage.pipeline.fuse.ahead import KernelsAhead
from taso_mirage.pipeline.stage import Stage

pytest.importorskip("triton", reason="the extra `triton` is not installed")


@dataclass
class Searchers(NoCompiler):
    """Searches of other processes, done here at once; `jobs` are those that were asked for."""

    jobs: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __call__(self, job: Mapping[str, Any]) -> Future[Any]:
        self.jobs.append(job)
        found: Future[Any] = Future()
        found.set_result(searches.search_goal(job))
        return found


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Graph]:
    """The goals whose predicted kernels were begun."""
    goals: list[Graph] = []
    usual = CudaLowering.predicted

    def noting(self: CudaLowering, goal: Graph, found: Sequence[FoundMuGraph], *more: Any) -> Callable[[], Any]:
        goals.append(goal)
        return usual(self, goal, found, *more)

    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)
    monkeypatch.setattr(searches, "HERE", 0)
    monkeypatch.setattr(CudaLowering, "predicted", noting)
    monkeypatch.setattr(stage, "here", lambda target: GPU)
    monkeypatch.setattr(runtime, "open_in_child", on_the_cpu)
    return goals


def ahead(ready: Searchers) -> tuple[Any, KernelsAhead]:
    """A result without kernels, and the kernels of its model, begun."""
    result = replace(plain(), target=CUDA)
    return result, begun.begin_kernels(result.model, "cuda", {}, GPU, ready, 100.0)


def test_the_stage_takes_over_what_was_begun(compiled: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    """No region is looked for, searched or compiled twice."""
    ready = Searchers()
    result, made = ahead(ready)
    goals = [kind.goal for kind in made.kinds.places]
    asked = len(ready.jobs)
    assert asked == sum(map(len, made.kinds.variants.values())) == 3  # one with weights along the sums
    made.compile(100.0)
    made.compile(100.0)
    assert compiled == goals
    monkeypatch.setattr(stage, "find_kinds", None)
    found = fused(result, CONFIG, "search", ready=ready, ahead=made)
    assert kernels(found) == 2
    assert compiled == goals
    assert len(ready.jobs) == asked


def test_another_model_has_kernels_of_its_own(compiled: list[Graph]) -> None:
    result, made = ahead(Searchers())
    other = replace(result, model=replace(result.model, origins={}))
    assert made.fits(result.model, {}, GPU)
    assert not made.fits(other.model, {}, GPU)
    assert not made.fits(result.model, {"rows": 3}, GPU)
    assert not made.fits(result.model, {}, GPU.rounding())
    assert kernels(fused(other, CONFIG, "search", ahead=made)) == 2


def test_kernels_have_their_stage_where_nothing_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time may end before the stages that begin kernels."""
    seen: list[Any] = []
    noting = Stage(
        "kernels", lambda job, *taken: seen.append(taken[1:]) or taken[0], stages.KERNELS[0].takes, ("result",)
    )
    early = [each for each in stages.SEARCH if each.name in ("load the original", "sizes", "read")]
    monkeypatch.setattr(stages, "SEARCH", early)
    monkeypatch.setattr(stages, "KERNELS", (noting,))
    stages.optimize_model(model(), replace(CONFIG, measure=False, budget=1.0))
    ((original, ahead),) = seen
    assert original is not None
    assert ahead is None


def test_programs_are_written_while_there_is_time(compiled: list[Graph]) -> None:
    _, made = ahead(Searchers())
    made.compile(-1.0)
    assert not compiled


def test_an_error_with_a_region_is_reported_by_the_stage(
    compiled: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, made = ahead(Searchers())
    made.errors.append(("softmax", ValueError("a bug")))
    found = fused(result, CONFIG, "search", ahead=made)
    assert any("no kernel for softmax: internal error" in note for note in found.notes)
