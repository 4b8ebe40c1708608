"""The target auto: the fastest runtime on the processor's cores."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as h
from protos import F, V, proto

import taso_mirage
from taso_mirage.devices.openvino.options import properties
from taso_mirage.errors import InvalidOption
from taso_mirage.measure.target import CPU, CUDA, OPENVINO, on_threads, runtimes_beside
from taso_mirage.measure.timing import Timing
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.optimize_options import Options
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.choice import Choice
from taso_mirage.pipeline.runtimes import InRuntime, choose_runtime
from taso_mirage.search.rewriter import ModelCandidate

needs_openvino = pytest.mark.skipif(
    find_spec("openvino") is None, reason="OpenVINO is not installed: pip install 'taso-mirage[openvino]'"
)
QUICK = {"kernels": "off", "partial": False, "budget": 12.0, "return_result": True}


def twice_negated() -> onnx.ModelProto:
    nodes = [h.make_node("Neg", ["x"], ["m"]), h.make_node("Neg", ["m"], ["n"]), h.make_node("Tanh", ["n"], ["y"])]
    return proto(nodes, [V("x", F, [64])], [V("y", F, [64])])


def test_auto_is_the_processor_with_its_other_runtimes() -> None:
    assert Options(target="auto").config().target == CPU
    assert Options(target="auto").config().runtimes == (OPENVINO,)
    assert Options().config().runtimes == ()
    assert runtimes_beside(CUDA) == ()
    (other,) = Options(target="auto", threads=2).config().runtimes
    assert properties(other.options) == {**dict(OPENVINO.options), "INFERENCE_NUM_THREADS": "2"}
    with pytest.raises(InvalidOption, match="no number of threads"):
        on_threads(CUDA, 2)


def test_one_thread_is_one_whatever_else_is_asked() -> None:
    assert properties(on_threads(OPENVINO, 4).serial.options)["INFERENCE_NUM_THREADS"] == "1"
    assert "INFERENCE_NUM_THREADS" not in properties(OPENVINO.options)


def within(result: Any, ratio: float) -> InRuntime:
    """The original in OpenVINO, so many times as fast."""
    candidate = ModelCandidate("the original", result.original, (), result.cost_before, OPENVINO)
    return InRuntime(OPENVINO, Choice(candidate, Timing(ratio, 1.0, ratio, ratio, ratio, 100)))


def test_the_faster_runtime_is_taken() -> None:
    _, result = taso_mirage.optimize(twice_negated(), effort="quick", return_result=True)
    result = replace(result, timing=Timing(1.3, 1.0, 1.3, 1.3, 1.3, 100))
    job: Any = type("Job", (), {"config": Options().config()})
    assert choose_runtime(job, result, ()) is result
    kept = choose_runtime(job, result, [within(result, 1.3)])
    assert kept.target == CPU
    assert kept.model is result.model
    assert "cpu 1.30, openvino 1.30 with the original" in kept.notes[-1]
    moved = choose_runtime(job, result, [within(result, 1.5)])
    assert (moved.target, moved.model, moved.changed) == (OPENVINO, result.original, True)
    assert moved.timing is not None
    assert moved.timing.ratio == 1.5
    assert moved.notes[-1].endswith("makes one that is faster on cpu")
    slower = replace(within(result, 0.5), choice=Choice(None, Timing(0.5, 1.0, 0.5, 0.5, 0.5, 100)))
    assert choose_runtime(job, result, [slower]).notes[-1].endswith("cpu 1.30, openvino 0.50")
    absent = choose_runtime(job, result, [InRuntime(OPENVINO, why="OpenVINO is not installed")])
    assert absent.target == CPU
    assert "openvino without a result (OpenVINO is not installed)" in absent.notes[-1]


@needs_openvino
def test_another_runtime_is_measured_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of whichever runtime wins computes the same."""
    seen: list[Any] = []
    monkeypatch.setattr(
        "taso_mirage.pipeline.runtimes.GAIN", 0.0
    )  # OpenVINO is taken if it is faster than the original
    path = tmp_path / "m.onnx"
    _, result = taso_mirage.optimize(
        twice_negated(), target="auto", output=path, candidates=lambda *each: seen.append(each), **QUICK
    )
    (note,) = [each for each in result.notes if each.startswith("runtimes, each against the original on cpu: cpu ")]
    assert "openvino" in note
    assert any(name == "the original" for name, *_ in seen)
    x = np.linspace(-2, 2, 64, dtype=np.float32)
    opened = taso_mirage.session(path)
    found = opened({"x": x})[0] if result.target.name == "openvino" else opened.run(None, {"x": x})[0]
    np.testing.assert_allclose(found, np.tanh(x), rtol=1e-5)


@needs_openvino
def test_a_runtime_that_refuses_the_model_is_named() -> None:
    model = from_memory(twice_negated(), False)
    wrong = replace(OPENVINO, options=(*OPENVINO.options, ("NO_SUCH_PROPERTY", "1")))
    config = replace(
        Options(**{k: v for k, v in QUICK.items() if k != "return_result"}).config(model), runtimes=(wrong,)
    )
    result = optimize_model(model, config)
    assert result.target == CPU
    (note,) = [each for each in result.notes if each.startswith("runtimes")]
    assert "openvino without a result (OpenVINO cannot load the model" in note
    assert "candidate" not in note


def test_without_measurements_no_other_runtime_is_tried() -> None:
    _, result = taso_mirage.optimize(twice_negated(), target="auto", effort="quick", return_result=True)
    assert "other runtimes were not tried: that takes measurements" in result.notes
