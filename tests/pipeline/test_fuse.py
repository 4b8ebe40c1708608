"""Kernels inside an optimized model: it computes the same with the custom-operator library and
without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from fused_models import CONFIG, ROWS, WIDTH, clock, fresh_cache, kernels, plain, quick, run

from taso_mirage.devices.cpu import compiler as compilers
from taso_mirage.emit import tune
from taso_mirage.emit.cpu.native_kernel import FLAGS
from taso_mirage.errors import InvalidOption, RuntimeUnavailable
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.lowering import backend as lowering
from taso_mirage.lowering import cpu as cpu
from taso_mirage.measure.child import child
from taso_mirage.measure.cost_cache import cache_path
from taso_mirage.measure.load import Load
from taso_mirage.measure.session import Session, open_in_child, runnable
from taso_mirage.measure.target import CPU, CUDA, OPENVINO, TARGETS, Target
from taso_mirage.onnx_io import load, save, serialize
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import (
    check_mode,
    choices,
    comparisons,
    fused,
    kinds,
    order,
    region_times,
    searches,
    usual_mode,
)
from taso_mirage.report.result import Result
from taso_mirage.runtime import compilation, register
from taso_mirage.runtime.embed import DOMAIN
from taso_mirage.runtime.plan import PlannedNode
from taso_mirage.runtime.register import carries_kernels
from taso_mirage.search.config import Stop
from taso_mirage.search.search import Budget
from taso_mirage.system.deadline import Deadline
from taso_mirage.targets import profile

pytestmark = pytest.mark.sampled(2, together=True)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Result, Result, Path]]:
    """The model before, after one search, and the cache folder that this filled."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        fresh_cache(patch, folder)
        quick(patch)
        result = plain()
        yield result, fused(result, CONFIG, "search"), folder


@pytest.fixture
def result(searched: tuple[Result, Result, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The model before, with a copy of the cache folder."""
    ignored = shutil.ignore_patterns("*.tmp")  # what a compiler still writes
    shutil.copytree(searched[2], tmp_path / "cache", ignore=ignored)
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path / "cache"))
    child().stop()  # it has the kernels of the test before, under the same names
    quick(monkeypatch)
    return searched[0]


def test_the_model_runs_with_its_kernels_and_without_them(
    searched: tuple[Result, Result, Path], tmp_path: Path
) -> None:
    result, found, _ = searched
    content = serialize(found.model)
    assert carries_kernels(content)
    assert kernels(found) == 2
    assert found.changed
    assert found.timing is not None
    assert found.differences
    assert all(d.passed for d in found.differences)
    inputs = dict(random_inputs(result.original, 0, {}))
    wanted = run(serialize(result.original), inputs)
    for got in (open_in_child(found.model).run(inputs), run(content, inputs)):
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4, atol=1e-5)
    save(found.model, tmp_path / "fused.onnx")
    again = load(tmp_path / "fused.onnx", trust_kernels=True)
    assert sum(n.op == "opaque" and DOMAIN in str(n.attr("call")) for n in again.nodes()) == 2


def test_what_was_searched_before_is_not_searched_again(
    result: Result, searched: tuple[Result, Result, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(searches, "Search", None)
    assert serialize(fused(result, CONFIG, "cached").model) == serialize(searched[1].model)
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path / "empty"))
    assert not carries_kernels(serialize(fused(result, CONFIG, "cached").model))


def test_a_kernel_that_gains_nothing_is_left_out(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "interleaved", clock([1.0]))
    found = fused(result, CONFIG, "cached")
    assert found.model is result.model
    assert (
        "2 different regions of the model can be fused, but none makes the model measurably faster" in found.notes[-1]
    )


def test_a_gain_that_half_of_the_rounds_have_is_noise(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "interleaved", lambda *args, **named: [[2.0] * 16, [1.0, 4.0] * 8])
    assert fused(result, CONFIG, "cached").model is result.model


def test_what_is_slower_than_the_runtimes_operators_is_not_tried(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_times, "models_in_turn", lambda *measurement: [1.0, 2.0])
    monkeypatch.setattr(comparisons, "interleaved", lambda *args, **named: pytest.fail("it was tried in the model"))
    assert fused(result, CONFIG, "cached").model is result.model


def test_a_kernel_that_computes_something_else_fails_the_check(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cpu.cpu_kernel

    def wrong(graph: Graph, *before: Any) -> PlannedNode:
        kernel = made(graph, *before)
        return replace(kernel, source=kernel.source.replace("* 0.5f", "* 0.25f").replace("0.5f *", "0.25f *"))

    monkeypatch.setattr(cpu, "cpu_kernel", wrong)
    found = fused(result, CONFIG, "cached")
    assert found.model is result.model
    assert "the check failed with kernels" in found.notes[-1]


def test_a_predicted_kernel_is_compiled_before_it_is_in_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session compiles it in the same way, and then compiles nothing."""
    fresh_cache(monkeypatch, tmp_path)
    x = variable("x", Tensor("float32", (4, 8)))
    goal = Graph((x,), (term("neg", term("gelu", x)),))
    backend = cpu.CpuLowering()
    record = backend.predicted(goal, searches.Search(goal, searches.SearchOptions(), backend.device).run(1, 10.0))()
    backend.close()
    monkeypatch.setattr(compilation, "compile_files", lambda command: pytest.fail(f"{command} ran"))
    assert compilation.compile_kernels([backend.kernel(record).source], FLAGS).is_file()


def test_modes_and_what_excludes_them() -> None:
    result = plain()
    assert fused(result, CONFIG, "off") is result
    with pytest.raises(InvalidOption, match="one of off, cached, search"):
        check_mode("often", True)
    with pytest.raises(InvalidOption, match="measure=False exclude each other"):
        fused(result, replace(CONFIG, measure=False), "search")


def test_an_interrupt_keeps_what_was_found_before(result: Result) -> None:
    """The predicted kernels are in the model, and none is tuned; then, before any kernel, nothing
    is lost."""
    stop, seen = Stop(), list[str]()

    def after(stage: str, done: int, total: int) -> None:
        if stage == "kernels" and "kernels in the model" in seen:
            stop()
        seen.append(stage)

    some = fused(result, CONFIG, "cached", after, stop)
    assert kernels(some) == 2
    assert any("interrupted" in note for note in some.notes)
    assert all(d.passed for d in some.differences)
    stop = Stop()
    none = fused(result, CONFIG, "search", lambda stage, done, total: stop(), stop)
    assert none.model is result.model
    assert any("interrupted" in note for note in none.notes)
    assert stop.budget is None
    assert "no kernels were tried" in fused(result, CONFIG, "search", stop=stop).notes[-1]


def test_an_interrupt_between_stages_ends_those_to_come() -> None:
    """While the model is measured, say: the results so far are kept."""
    stop = Stop()
    assert not stop.began
    stop.budget = first = Budget(1.0)
    stop.budget = None
    assert stop.began
    stop()
    assert not first.stop
    stop.budget = second = Budget(1.0)
    assert second.stop


def test_a_damaged_file_is_searched_again(result: Result, searched: tuple[Result, Result, Path]) -> None:
    files = list((cache_path().parent / "kernels").glob("*.json"))
    for file, text in zip(files, ("{", '{"mugraph": {"mugraph": 1, "program": ["def"]}}'), strict=True):
        file.write_text(text)
    assert kernels(fused(result, CONFIG, "cached")) == 0
    assert kernels(fused(result, CONFIG, "search")) == 2
    assert all(file.read_text().endswith("}") and len(file.read_text()) > 100 for file in files)


def test_a_choice_that_had_too_little_time_is_made_again_when_there_is_more(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(share: float) -> None:
        for file in (cache_path().parent / "kernels").iterdir():
            file.write_text(json.dumps({**json.loads(file.read_text()), choices.CUT_SHORT: share}))

    class Counted(searches.Search):
        def __init__(self, *args: Any) -> None:
            asked.append(args[0])
            super().__init__(*args)

    asked: list[Any] = []
    monkeypatch.setattr(searches, "Search", Counted)
    cut(1e6)
    assert kernels(fused(result, CONFIG, "search")) == 2
    assert not asked
    cut(1e-3)
    assert kernels(fused(result, CONFIG, "cached")) == 2
    assert not asked
    assert kernels(fused(result, CONFIG, "search")) == 2
    assert len(asked) == 2
    assert not any(choices.CUT_SHORT in file.read_text() for file in (cache_path().parent / "kernels").iterdir())


def test_a_bug_in_a_search_costs_that_region_alone(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("made up")

    (cache_path().parent / "kernels").rename(cache_path().parent / "away")
    monkeypatch.setattr(searches, "Search", broken)
    found = fused(result, CONFIG, "search")
    assert found.model is result.model
    assert sum("please report it: ZeroDivisionError: made up" in note for note in found.notes) == 2
    monkeypatch.setattr(kinds, "free_regions", broken)
    found = fused(result, CONFIG, "search")
    assert found.model is result.model
    assert "no kernel for any region: internal error, please report it: ZeroDivisionError" in found.notes[-2]


def test_a_kernel_is_measured_alone_once(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice by measurement is the predicted kernel again, whose times are known."""
    looks, timed = list[object](), region_times.region_seconds
    monkeypatch.setattr(region_times, "region_seconds", lambda *args: looks.append(args) or timed(*args))
    assert kernels(fused(result, CONFIG, "cached")) == 2
    assert len(looks) == 2


@pytest.mark.parametrize("trying", [0.0, 50.0])
def test_kernels_of_all_kinds_are_tried_at_once(result: Result, trying: float) -> None:
    found = fused(result, CONFIG, "cached", trying=trying)
    assert [len(made.kinds) for made in found.kernels] == [2], found.notes


def test_no_model_is_tried_that_the_command_has_no_time_for(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of whole models, and the check of its choice, would take longer than the command
    has."""
    monkeypatch.setattr(comparisons, "interleaved", lambda *args, **named: pytest.fail("it was tried in the model"))
    monkeypatch.setattr(child(), "deadline", Deadline(60.0))
    found = fused(result, CONFIG, "cached", trying=50.0)
    assert found.model is result.model
    assert found.notes[-1] == "no kernels: the time was over after 0 of 2 kinds of regions"


def test_no_kernel_is_measured_that_there_is_no_time_to_try(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of the first kernel, and then its measurement, took the time that was left."""
    late = iter(())
    monkeypatch.setattr(order.StageTime, "late", lambda self: next(late, True))
    monkeypatch.setattr(region_times, "slower_elsewhere", lambda *args: pytest.fail("it was measured at other sizes"))
    late = iter([False])
    found = fused(result, CONFIG, "cached")
    assert found.model is result.model
    ended = "no kernels: the time was over after 0 of 2 kinds of regions"
    assert found.notes[-1] == ended
    monkeypatch.setattr(region_times, "region_seconds", lambda *args: pytest.fail("it was measured"))
    assert fused(result, CONFIG, "cached").notes[-1] == ended


def test_no_slower_model_is_kept(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind makes the model faster, but all that is kept is slower than the original: it is
    not."""
    monkeypatch.setattr(comparisons, "interleaved", clock([2.0, 0.5]))
    found = fused(result, CONFIG, "cached")
    assert found.model is result.model
    assert "0.500 times as fast as the original" in found.notes[-1]


def test_a_session_without_luck_is_not_the_last_word(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds pay; then the sessions of both look 1 % slower than the original's, new ones 10 %
    faster: the runs of all count."""
    looks = iter([[2.0, 1.0], [2.0, 2.02]])
    monkeypatch.setattr(
        comparisons,
        "interleaved",
        lambda sessions, *args, **named: [[t] * 9 for t in next(looks, [2.2, 2.0])[: len(sessions)]],
    )
    found = fused(result, CONFIG, "cached")
    assert kernels(found) == 2
    assert found.timing is not None
    assert found.timing.pairs == pytest.approx((1 / 1.01, 1.1, 1.1))
    assert found.timing.ratio == pytest.approx(1.1)


def test_an_interrupt_ends_the_looks(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while the session without luck runs: it is the last."""
    stop, looks = Stop(), iter([[2.0, 1.0], [2.0, 2.02]])

    def interleaved(sessions: Sequence[Session], *args: object, **named: object) -> list[list[float]]:
        times = next(looks, [2.2, 2.0])
        if times == [2.0, 2.02]:
            stop()
        return [[t] * 9 for t in times[: len(sessions)]]

    monkeypatch.setattr(comparisons, "interleaved", interleaved)
    found = fused(result, CONFIG, "cached", stop=stop)
    assert kernels(found) == 0
    assert "0.990 times as fast as the original" in found.notes[-1]


def test_a_model_that_is_slower_without_the_library_is_not_kept(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who registers nothing loses nothing: each kind pays, and all together, but not their
    functions."""
    monkeypatch.setattr(comparisons, "interleaved", clock([2.0, 2.0, 0.5]))
    found = fused(result, CONFIG, "cached")
    assert found.model is result.model
    assert "where their library is not registered the model would be 0.500 times as fast" in found.notes[-1]


def test_a_model_that_may_be_slower_without_the_library_is_not_kept_but_where_it_stays(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten rounds of sixteen say that it is slower, the others that it is faster: as far as one can
    see it takes 1.1 times as long."""
    looks = iter([[2.0] * 16] * 2)
    noisy = [1 / 1.1] * 10 + [1 / 0.95] * 6

    def interleaved(sessions: Sequence[Session], *args: object, **named: object) -> list[list[float]]:
        return [next(looks, noisy), [1.0] * 16]

    monkeypatch.setattr(comparisons, "interleaved", interleaved)
    found = fused(result, CONFIG, "cached")
    assert found.model is result.model
    assert "would be 0.909 times as fast as the original; elsewhere=False is for" in found.notes[-1]
    looks = iter([[2.0] * 16] * 2)
    assert kernels(fused(result, replace(CONFIG, elsewhere=False), "cached")) == 2


def test_beside_other_processes_kernels_are_timed_by_the_other_clock(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Target] = []

    def interleaved(sessions: Sequence[Session], *args: object, **named: object) -> list[list[float]]:
        seen.extend(each.target for each in sessions)
        return [[2.0] * 9, [1.0] * 9]

    monkeypatch.setattr(comparisons, "interleaved", interleaved)
    monkeypatch.setattr(comparisons, "observed_load", lambda fresh: Load(0.4, 2))
    found = fused(result, CONFIG, "cached")
    assert set(seen) == {CPU.serial}
    assert found.target == CPU
    assert found.timing is not None
    assert found.timing.works


def test_kernels_are_checked_without_the_library_too(result: Result, searched: tuple[Result, Result, Path]) -> None:
    found = fused(result, CONFIG, "cached")
    cases = [d.case for d in found.differences]
    assert all(cases.count(case) == 2 for case in set(cases))


def test_without_a_compiler_the_model_is_optimized_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody asked for kernels, so none is an error; who asks is told before anything starts."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)
    compilers.compiler.cache_clear()
    try:
        found = optimize_model(plain().original, replace(CONFIG, budget=1.0, kernels=usual_mode(CONFIG)))
        assert any(note.startswith("no kernels: there is no C++ compiler") for note in found.notes)
        with pytest.raises(RuntimeUnavailable, match=r"no C\+\+ compiler"):
            check_mode("search", True, CPU)
    finally:
        compilers.compiler.cache_clear()


# ---------------------------------------------------------------- free dims


def test_kernels_are_for_the_given_sizes_and_the_models_operators_for_all_others(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plain("rows")
    found = fused(before, CONFIG, "cached")  # searched for fixed sizes
    assert kernels(found) == 2
    assert f"kernels run at rows={ROWS}; at all other sizes the model runs its own operators" in found.notes
    assert {d.case for d in found.differences} >= {f"random inputs at rows={n}" for n in (ROWS + 3, ROWS - 1)}
    assert all(d.passed for d in found.differences)
    content = serialize(found.model)
    onnx.checker.check_model(content)
    session = open_in_child(found.model)
    for rows in (1, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS):
        inputs = {"x": np.random.default_rng(rows).normal(size=(rows, WIDTH)).astype(np.float32)}
        (wanted,) = run(serialize(before.original), inputs)
        for (got,) in (session.run(inputs), run(content, inputs)):
            assert got.shape == (rows, WIDTH)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def ran(found: Result, rows: int, folder: Path) -> set[str]:
    """The operators that run, in branches too, as the runtime's profile has them."""
    content, options = serialize(found.model), onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / f"profile{rows}")
    register(options, content, cuda=False)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((rows, WIDTH), np.float32)})
    events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text())
    return {e["args"]["op_name"] for e in events if "op_name" in e.get("args", {})}


def test_the_sizes_choose_what_runs(result: Result, tmp_path: Path) -> None:
    found = fused(plain("rows"), CONFIG, "cached")
    assert {"CpuKernel0", "CpuKernel1"} <= ran(found, ROWS, tmp_path)
    assert not {"CpuKernel0", "CpuKernel1"} & ran(found, ROWS + 1, tmp_path)
    assert "Softmax" in ran(found, ROWS + 1, tmp_path)


def test_several_sets_of_sizes_are_all_timed(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def timed(sessions: Any, inputs: Any, *_: Any, **__: Any) -> list[list[float]]:
        seen.append(len(inputs["x"]))
        return [[3.0 if seen[-1] == ROWS else 1.0] * 9, [1.0] * 9]

    config = replace(CONFIG, shapes=(({"rows": 5}, 1.0), ({"rows": ROWS}, 3.0)))
    before = plain("rows", config)
    monkeypatch.setattr(comparisons, "interleaved", timed)
    found = fused(before, config, "cached")
    assert seen == [ROWS, 5] * 4  # each of two kinds, both together, and both without the library
    assert found.timing is not None
    assert found.timing.ratio == pytest.approx(3 * 0.75 + 1 * 0.25)


# ---------------------------------------------------------------- other targets


def test_without_a_gpu_a_note_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise RuntimeUnavailable("torch is not installed")

    monkeypatch.setattr(tune, "gpu_and_versions", none)
    result = replace(plain(), target=CUDA)
    found = fused(result, CONFIG, "search")
    assert found.model is result.model
    assert (
        "torch is not installed; on a machine with the GPU, pip install 'taso-mirage[triton]' torch" in found.notes[-1]
    )


def test_a_target_without_kernels_says_so() -> None:
    assert [name for name, each in TARGETS.items() if each.lowering is None] == ["openvino"]
    with pytest.raises(InvalidOption, match="no fused kernels for the target openvino"):
        lowering.here(OPENVINO)
    assert usual_mode(replace(CONFIG, target=TARGETS["openvino"])) == "off"


def test_a_profile_has_the_kernels(searched: tuple[Result, Result, Path]) -> None:
    """The kernels are compiled and run as in a session of the user's."""
    made = searched[1].model
    content, inputs = runnable(made), random_inputs(made, 0, made.sizes)
    found, _ = profile.profiled_seconds(content, ["CPUExecutionProvider"], inputs, 0.05)
    assert sum(each.operator.startswith("CpuKernel") for each in found) == kernels(searched[1]) > 0
    assert all(0 <= each.seconds < 1 for each in found)
    assert all(each.outputs for each in found)
