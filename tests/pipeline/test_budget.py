"""The budget is the time of the command: work that would not end in it does not begin, and the
command ends with a smaller but whole answer. Clocks are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from set_clock import Clock
from small_models import model, relus, w, x

import taso_mirage
from taso_mirage import folder
from taso_mirage.errors import OutOfTime
from taso_mirage.folder import Folder
from taso_mirage.measure import session as runtime
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import choice, stages
from taso_mirage.pipeline.choice import UNMEASURED
from taso_mirage.pipeline.shares import MEASURED, finishing_seconds
from taso_mirage.pipeline.stage import Job, Stage, run
from taso_mirage.pipeline.stages import optimize_model
from taso_mirage.report import inspection
from taso_mirage.search import config
from taso_mirage.search.config import SEARCH, Config, Stop, quiet
from taso_mirage.search.cost import CostCache
from taso_mirage.search.passes import Context, merge, pass_order, simplify
from taso_mirage.search.rulesets import rules
from taso_mirage.system.deadline import Deadline


def twice() -> Any:
    a = x(8, 8)
    return model((a,), (term("relu", term("relu", term("matmul", a, w(8, 8)))),))


# ---------------------------------------------------------------- one model


def test_what_began_too_long_ago_is_kept_and_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def opened(*_: Any) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr(runtime, "original", opened)
    monkeypatch.setattr(config, "rules", lambda: pytest.fail("the rules were read"))
    clock = Clock()
    clock.now = 1000.0
    late = Deadline(2.0, clock, began=0.0)
    result = optimize_model(twice(), Config(budget=2.0), deadline=late, output=tmp_path / "o.onnx")
    assert not result.changed
    assert "the budget of 2 s ended in the stage 'load the original'" in str(result.kept)
    assert (tmp_path / "o.onnx").exists()


def test_a_load_that_would_not_end_in_time_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load takes about as long as reading the file took."""
    deadline = Deadline(10.0, Clock())
    monkeypatch.setattr(runtime, "original", lambda *_: pytest.fail("a session was opened"))
    result = optimize_model(twice(), Config(budget=10.0), deadline=deadline, reading=deadline.last() / 2 + 0.1)
    assert "to load a model takes about as long as to read it" in str(result.kept)


def test_without_time_to_measure_the_predicted_cost_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "slow_seconds", lambda job: 1e9)
    monkeypatch.setattr(runtime, "interleaved", lambda *_: pytest.fail("models were measured"))
    result = optimize_model(twice(), Config(budget=5.0, partial=False))
    assert result.changed
    assert result.timing is None
    assert UNMEASURED in result.notes
    assert all(d.passed for d in result.differences)
    assert result.differences


def test_passes_end_where_they_are_once_the_time_is_over() -> None:
    made = twice()
    context = Context({"": 17, "com.microsoft": 1}, {})
    stage = pass_order(tuple(rules()))[0]
    assert simplify(made.graph.outputs, stage, context)[1]
    context.over = lambda: True
    assert simplify(made.graph.outputs, stage, context) == (made.graph.outputs, [])
    assert merge(made.graph.outputs, stage, context) == (made.graph.outputs, [])


def staged_job(seconds: float, terms: int) -> Job:
    """A job at the begin of its time, which a made-up clock tells."""
    job = Job(Config(budget=seconds), quiet, Stop(), CostCache(None), deadline=Deadline(seconds, Clock()))
    job.terms = terms
    return job


def test_a_stage_that_would_not_end_in_time_does_not_begin() -> None:
    """By its seconds for each term, and those of the work that has to follow it."""
    done: list[str] = []

    def noting(name: str) -> Callable[..., int]:
        return lambda job, *_: len(done.append(name) or done)  # type: ignore[func-returns-value]

    found = [
        Stage("short", noting("short"), (), ("a",), per_term=1e-3),
        Stage("left out", noting("left out"), ("a",), ("b",), 1.0, (7,)),
        Stage("long", noting("long"), ("b",), ("c",), 3e-3),
        Stage("last", noting("last"), ("c",), ("d",)),
    ]
    job = staged_job(10.0, 10_000)
    job.deadline.clock.now = 1.0  # type: ignore[attr-defined]
    assert run(found, job, {}) == {"a": 1, "b": 7}
    assert done == ["short"]
    assert "the budget of 10 s ended in the stage 'long'" in str(job.kept)
    assert "on 10000 terms it takes 30 s" in str(job.kept)
    job = staged_job(10.0, 10)
    job.deadline.closing = 60.0
    assert "c" not in run(found[2:], job, {"b": 1})
    job.deadline.closing = 0.0
    assert run(found[2:], job, {"b": 1})["c"] == 2


def test_once_the_time_is_over_no_stage_of_the_search_begins() -> None:
    """No rules are read for the search, and no kind of region is looked for."""
    job = staged_job(5.0, 20_000)
    job.deadline.clock.now = 5.0  # type: ignore[attr-defined]
    for stage in stages.SEARCH:
        if stage.name in ("read", "reference", "oddities", "passes", "mutants", "search"):
            with pytest.raises(OutOfTime, match="on 20000 terms it takes"):
                stage(replace_last(job), dict.fromkeys(stage.takes))
    job.config = replace(job.config, kernels=SEARCH)
    result: Any = SimpleNamespace(target=job.config.target, noted=lambda said: said)
    assert "no regions were searched" in str(stages.fuse(replace_last(job), result, None, None))  # type: ignore[arg-type]


def replace_last(job: Job) -> Job:
    """The job a moment before the last end."""
    job.deadline.clock.now += job.deadline.last() - 0.1  # type: ignore[attr-defined]
    return job


def test_work_is_counted_once_for_all_terms_that_look_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    usual = inspection.work
    monkeypatch.setattr(inspection, "work", lambda node, sizes: seen.append(node.op) or usual(node, sizes))
    a = made = x(8, 8)
    for _ in range(50):
        made = term("tanh", term("matmul", made, w(8, 8)))
    table = inspection.inspection(model((a,), (made, term("tanh", w(4, 4, name="v")))), {})["operators"]
    assert table["matmul"] == {"count": 50, "flops": 50 * 2 * 8**3, "bytes": 50 * 3 * 4 * 64}
    assert sorted(seen) == ["matmul", "tanh", "tanh"]


def test_what_follows_on_the_result_has_its_share() -> None:
    asked = Config(budget=60.0)
    assert finishing_seconds(asked, 0.5, 0) == 0.5
    assert finishing_seconds(asked, 0.5, 1 << 29) == 1.5
    assert finishing_seconds(replace(asked, explain=True), 0.5, 0) == 6.5
    assert finishing_seconds(replace(asked, explain=True, budget=6000.0), 0.0, 0) == MEASURED


def test_explanations_have_what_is_left_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(stages, "explained", lambda result, config, progress, seconds: seen.append(seconds) or [])
    monkeypatch.setattr(stages, "operator_times", lambda *_: ())
    monkeypatch.setattr(stages, "profile", lambda *_: None)
    monkeypatch.setattr(stages, "replace", lambda result, **_: result)
    clock = Clock()
    job = Job(Config(explain=True), quiet, Stop(), CostCache(None), deadline=Deadline(60.0, clock))
    for clock.now in (10.0, 56.0, 70.0):
        stages.explain(job, SimpleNamespace())  # type: ignore[arg-type]
    assert seen == [pytest.approx(stages.MEASURING, abs=1), pytest.approx(4.0, abs=1), 0.0]


def test_the_budget_of_a_call_begins_when_its_caller_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    relus(tmp_path / "m.onnx", 2)
    seen: list[Deadline] = []
    usual = stages.optimize_model

    def noting(*args: Any) -> Any:
        seen.append(args[5])
        return usual(*args)

    monkeypatch.setattr(stages, "optimize_model", noting)
    made = onnx.load(tmp_path / "m.onnx")
    taso_mirage.optimize(made, effort="quick", budget=7.0, began=1.0)
    assert (seen[0].start, seen[0].seconds) == (1.0, 7.0)


def test_a_model_is_written_though_its_explanation_comes_too_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(*_: Any) -> None:
        raise OutOfTime("the time was over")

    relus(tmp_path / "m.onnx", 2)
    monkeypatch.setattr(stages, "explained", late)
    out = tmp_path / "o.onnx"
    assert taso_mirage.optimize(tmp_path / "m.onnx", effort="quick", output=out, report=tmp_path / "r.html") == out
    assert len(onnx.load(out).graph.node) == 1
    assert (tmp_path / "r.html").exists()


# ---------------------------------------------------------------- interrupts


def test_an_interrupt_while_models_are_measured_keeps_the_best_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The few rounds that there is time for then say nothing."""
    stop = Stop()

    def few_rounds(sessions: Any, *_: Any) -> list[list[float]]:
        stop()
        return [[1.0, 1.1, 1.0] if each is sessions[0] else [1.05, 1.0, 1.0] for each in sessions]

    monkeypatch.setattr(runtime, "interleaved", few_rounds)
    config = Config(budget=60.0, partial=False)
    result = optimize_model(twice(), config, quiet, stop)
    assert result.changed, result.notes
    assert all(d.passed for d in result.differences)


# ---------------------------------------------------------------- folders


def test_models_of_a_folder_take_no_longer_together_than_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first takes its reports and more; the others have the rest."""
    for name in "abcd":
        relus(tmp_path / "models" / f"{name}.onnx", 2)
    clock, seen = Clock(), list[tuple[float, float]]()

    def optimized(source: Path, **options: Any) -> Any:
        seen.append((options["began"], options["budget"]))
        clock.now += 12.0 if source.name == "a.onnx" else options["budget"] / 2
        raise MemoryError

    monkeypatch.setattr(folder.api, "optimize", optimized)
    clock.now = 100.0
    made = Folder(tmp_path / "models", options={"budget": 5.0, "began": 98.0}, clock=clock)
    for name in made.waiting:
        made.optimize(name)
    assert seen[0] == (100.0, 4.5)  # the start of the command is in it
    assert seen[1] == (112.0, 2.0)
    assert seen[2] == (113.0, 2.5)
    assert seen[3] == (114.25, 3.7)
    assert clock.now <= 98.0 + 4 * 5.0


def test_no_model_of_a_folder_takes_what_others_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        relus(tmp_path / "models" / f"{name}.onnx", 2)
    seen: list[float] = []
    clock = Clock()

    def optimized(source: Path, **options: Any) -> Any:
        seen.append(options["budget"])
        raise MemoryError

    monkeypatch.setattr(folder.api, "optimize", optimized)
    made = Folder(tmp_path / "models", options={"budget": 5.0}, clock=clock)
    for name in made.waiting:
        made.optimize(name)
    assert seen == [5.0, 5.0]
