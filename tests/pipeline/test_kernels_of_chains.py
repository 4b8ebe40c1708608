"""Steps that are written out become a loop for its kernels, where the loop is slower without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from written_chains import PROOFS, model

from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.pipeline import loops, stages
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.config import SEARCH, Config, Stop, quiet
from taso_mirage.system.deadline import UNBOUNDED


def result(name: str, ratio: float, kernels: tuple[str, ...] = ("kernel",)) -> Any:
    return SimpleNamespace(name=name, timing=SimpleNamespace(ratio=ratio), kernels=kernels, target=None)


def chosen(monkeypatch: pytest.MonkeyPatch, steps: Any, loop: Any, chains: bool = True) -> str:
    """The name of the result that the stage of kernels gives, of those with kernels."""
    plain, rolled = result("plain", 1.0, ()), result("rolled", 1.0, ())
    monkeypatch.setattr(stages, "fused", lambda given, *_, **__: loop if given is rolled else steps)
    monkeypatch.setattr(stages, "with_chains", lambda _: rolled)
    monkeypatch.setattr(stages, "with_loops", lambda _: None)
    job = Job(Config(kernels=SEARCH), quiet, Stop(), CostCache(None), deadline=UNBOUNDED, chains=chains)
    original: Any = SimpleNamespace(target=None)
    return str(stages.fuse(job, plain, original, None).name)  # type: ignore[attr-defined]


def test_the_loop_is_kept_where_its_kernels_are_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, result("steps", 2.0), result("loop", 5.0)) == "loop"
    assert chosen(monkeypatch, result("steps", 5.0), result("loop", 2.0)) == "steps"


def test_a_loop_without_kernels_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, result("steps", 1.0), result("loop", 9.0, ())) == "steps"


def test_models_without_such_steps_are_not_searched_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, result("steps", 1.0), result("loop", 9.0), chains=False) == "steps"


@pytest.mark.parametrize("faster", [False, True])
def test_a_loop_that_is_slower_without_kernels_is_noted(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = from_memory(model())
    problem: Any = SimpleNamespace(proofs=PROOFS, model=before)
    job = Job(Config(measure=True), quiet, Stop(), CostCache(None))
    monkeypatch.setattr(loops, "rewrite_loops", lambda job, problem, made, *_: (made, []))
    made, steps = loops.reroll_chains(job, problem, before, lambda each: 1.0 if (each is before) == faster else 0.5)
    assert job.chains is not faster
    assert (made is not before, len(steps), len(job.remarks)) == (faster, int(faster), int(faster))
