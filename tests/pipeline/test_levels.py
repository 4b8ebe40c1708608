"""Originals that ONNX Runtime's own optimizations break: at load, and when they run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import taso_mirage
from taso_mirage.errors import InvalidModel, RunRefused, RuntimeCrashed
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CPU, UNOPTIMIZED, Target, at_running_level, full_level, lower_levels
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.report.diff import numbers
from taso_mirage.report.quantized import runtime_profile
from taso_mirage.report.result import Result
from taso_mirage.search.config import Config

LEVELS = onnxruntime.GraphOptimizationLevel


def parsed(graph: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {graph}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def doubles() -> onnx.ModelProto:
    """The runtime cannot load a relu before a clip in this type at its full level."""
    low, high = np.asarray(-0.5), np.asarray(0.75)
    return parsed("g (double[2,3] x) => (double[2,3] y) { r = Relu(x) y = Clip(r, low, high) }", low=low, high=high)


def misfit(rows: str = "1") -> onnx.ModelProto:
    """The runtime's normalization in the place of these has a scale of another length: the model
    loads at the full level, and does not run."""
    text = (
        f"g (float[{rows},1] x) => (float[{rows},2] y) {{ s = Pow(x, two) m = ReduceMean<axes = [-1]>(s) e = Add(m, eps) "
        "r = Sqrt(e) n = Div(x, r) y = Mul(n, scale) }"
    )
    two, eps = np.asarray(2, np.float32), np.asarray(1e-5, np.float32)
    return parsed(text, two=two, eps=eps, scale=np.array([0.5, -2], np.float32))


def crashing() -> onnx.ModelProto:
    """The runtime computes the quotient of constants when it loads the model, and dies of it; the
    branch does not run for small operands."""
    divides = "d () => (int32[2,3] p) { q = Div(a, b) p = Add(x, q) }"
    graph = (
        "g (int32[2,3] x) => (int32[2,3] y) { m = ReduceMax<keepdims = 0>(x) c = Greater(m, most) "
        f"y = If (c) <then_branch = {divides}, else_branch = e () => (int32[2,3] r) {{ r = Neg(x) }}> }}"
    )
    low, minus, most = (np.asarray(each, np.int32) for each in ([-(2**31)], [-1], 2**30))
    return parsed(graph, a=low, b=minus, most=most)


def optimized(model: onnx.ModelProto, file: Path) -> Result:
    found = taso_mirage.optimize(model, measure=False, kernels="off", output=file, return_result=True)[1]
    assert isinstance(found, Result)
    return found


def test_a_model_that_loads_only_below_the_full_level(tmp_path: Path) -> None:
    """The result says its level, and `session` opens it there."""
    model, file = doubles(), tmp_path / "out.onnx"
    with pytest.raises(Exception, match="Clip"):
        onnxruntime.InferenceSession(model.SerializeToString())
    result = optimized(model, file)
    notes = " ".join(result.notes)
    assert "at their level ORT_DISABLE_ALL" in notes
    assert "the output needs this level, too" in notes
    session = taso_mirage.session(file)
    assert session.get_session_options().graph_optimization_level == LEVELS.ORT_DISABLE_ALL
    x = np.array([[-1, 0.25, 2], [0.5, -0.5, 1]])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.clip(x, 0, 0.75))
    assert all(each.passed for each in numbers(from_memory(model), from_memory(onnx.load(file)), {}))


def test_a_model_that_crashes_the_runtime_at_the_full_level(tmp_path: Path) -> None:
    model, file = crashing(), tmp_path / "out.onnx"
    with pytest.raises(RuntimeCrashed, match="SIGFPE"):
        runtime.Session(model.SerializeToString())
    assert "at their level ORT_DISABLE_ALL" in " ".join(optimized(model, file).notes)
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    np.testing.assert_array_equal(taso_mirage.session(file).run(None, {"x": x})[0], -x)
    assert runtime.original(from_memory(model)).target == UNOPTIMIZED


def test_a_model_that_crashes_the_runtime_at_every_level() -> None:
    always = parsed(
        "g (float[3] x) => (float[3] y) { q = Div(a, b) f = Cast<to = 1>(q) y = Add(x, f) }",
        a=np.array([-(2**31)], np.int32),
        b=np.array([-1], np.int32),
    )
    with pytest.raises(RuntimeCrashed, match="SIGFPE"):
        taso_mirage.optimize(always, effort="quick")


@pytest.mark.parametrize("rows", ["1", "N"])
def test_a_model_that_runs_only_below_the_full_level(tmp_path: Path, rows: str) -> None:
    model, file = misfit(rows), tmp_path / "out.onnx"
    with pytest.raises(Exception, match="SimplifiedLayerNorm"):
        onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": np.ones((1, 1), np.float32)})
    result = optimized(model, file)
    assert "at their level ORT_ENABLE_BASIC" in " ".join(result.notes)
    assert result.differences
    assert all(each.passed for each in result.differences)
    found = taso_mirage.session(file).run(None, {"x": np.full((1, 1), 3, np.float32)})[0]
    np.testing.assert_allclose(found, [[0.5, -2]], rtol=1e-4)
    assert all(each.passed for each in numbers(from_memory(model), from_memory(onnx.load(file)), {}))


def test_users_options_keep_a_lower_level(tmp_path: Path) -> None:
    optimized(doubles(), tmp_path / "out.onnx")
    with pytest.raises(RunRefused, match="Clip"):  # nobody said a level
        taso_mirage.session(doubles().SerializeToString())
    options = onnxruntime.SessionOptions()
    taso_mirage.session(tmp_path / "out.onnx", options=options)
    assert options.graph_optimization_level == LEVELS.ORT_DISABLE_ALL


def test_the_profiler_reads_a_model_at_its_level() -> None:
    model = from_memory(doubles())
    session = runtime.original(model)
    assert session.target == UNOPTIMIZED
    nodes = runtime.profile(model, {"x": np.zeros((2, 3))}, 0.0, session.target)
    assert [each.operator for each in nodes] == ["Relu", "Clip"]


def test_a_diagnosis_is_of_the_level_at_which_the_model_runs(tmp_path: Path) -> None:
    onnx.save(misfit(), tmp_path / "m.onnx")
    found = runtime_profile(from_memory(misfit()), tmp_path / "m.onnx", Config())
    assert found["seconds"] > 0


def test_levels_go_down_from_the_targets_own() -> None:
    names = [target.stamp.level for target in lower_levels(CPU)]
    assert names == ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL"]
    assert [*lower_levels(lower_levels(CPU)[0])] == [*lower_levels(CPU)[1:]]
    assert not lower_levels(UNOPTIMIZED)
    assert full_level(UNOPTIMIZED) == CPU


@pytest.mark.parametrize("works", [None, 0, 1, 2])
def test_the_highest_level_at_which_it_runs_is_used(works: int | None) -> None:
    """If it runs at the lowest one; otherwise the first error is raised, and no other is tried."""
    asked = []

    def runs(target: Target) -> bool:
        asked.append(target)
        return works is not None and target in lower_levels(CPU)[works:]

    def run(target: Target) -> Target:
        if target == CPU:
            raise InvalidModel("at the full level")
        return target

    if works is None:
        with pytest.raises(InvalidModel, match="at the full level"):
            at_running_level(run, CPU, runs)
        assert asked == [UNOPTIMIZED]
    else:
        assert at_running_level(run, CPU, runs) == lower_levels(CPU)[works]


def test_a_crash_at_a_level_at_which_the_original_runs_is_raised() -> None:
    """Something else than the original caused it."""

    def run(target: Target) -> Target:
        raise RuntimeCrashed("later")

    with pytest.raises(RuntimeCrashed, match="later"):
        at_running_level(run, CPU, lambda target: True)
