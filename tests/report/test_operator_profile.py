"""The measured times by operator: from ONNX Runtime's profiler of whole models, and that a page
says where they are from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from htmlpage import Page
from onnx import parser
from small_models import model, w, x

from taso_mirage.measure.child import child
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.session import timed_nodes
from taso_mirage.onnx_io import from_ir, from_proto
from taso_mirage.onnx_io.write import value_names
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model, stages
from taso_mirage.pipeline.stage import Job
from taso_mirage.report import html
from taso_mirage.report.result import OperatorProfile, Result
from taso_mirage.report.times import profiled_pairs
from taso_mirage.search.config import Config, Stop, quiet
from taso_mirage.targets.openvino.target import OPENVINO
from taso_mirage.targets.profile import TimedNode, without_own_time

pytestmark = pytest.mark.sampled(3, together=True)

LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[512,512] x) => (float[512,512] y) {
  n = Constant <value = int64 {20}> ()
  c = Constant <value = bool {1}> ()
  [outer] y = Loop (n, c, x) <body = body (int64 i, bool k, float[512,512] s) => (bool l, float[512,512] t)
    { l = Identity (k) t = MatMul (s, s) }>
}
"""


RUNS_A_PRODUCT = {"MatMul", "Gemm", "FusedMatMul", "FusedGemm"}


def timed(operator: str, seconds: float) -> TimedNode:
    return TimedNode(operator, (), (), seconds)


@pytest.fixture(scope="module")
def measured() -> Result:
    """The result of a model whose operators take much longer than the profiler."""
    a = x(64, 1024)
    doubled = term("relu", term("relu", term("matmul", a, w(1024, 1024))))
    config = Config(budget=60, seconds=0.5, kernels="off", explain=True, partial=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "MOST_BY_PROFILER", math.inf)  # other work on the machine is no failure
        return optimize_model(model((a,), (doubled,)), config)


def page_of(result: Result) -> str:
    content = html.page(result, result.explanations, Path("m.onnx"), [], ["taso-mirage"], {})
    return " ".join("".join(Page(content).text).split())


def test_the_operators_are_those_of_the_runtime() -> None:
    a = x(64, 2048)
    chain = model((a,), (term("softmax", term("matmul", a, w(2048, 2048)), axis=1),))
    found, whole = timed_nodes(chain, {"x": np.ones((64, 2048), np.float32)}, 0.2)
    assert 1e-4 < whole < 1.0
    product, softmax = found
    assert (product.operator, softmax.operator) == ("MatMul", "Softmax")
    assert 1e-5 < softmax.seconds < product.seconds < 1.0
    assert product.outputs == softmax.inputs
    assert softmax.outputs == ("output_0",)


def test_what_runs_in_a_body_counts_there_alone() -> None:
    """The profiler's time of a loop has that of its body in it."""
    loop = from_ir(from_proto(parser.parse_model(LOOP)))
    found, _ = timed_nodes(loop, {"x": np.zeros((512, 512), np.float32)}, 0.2)
    seconds = {each.operator: each.seconds for each in found}
    assert seconds["MatMul"] > 4 * seconds["Loop"] >= 0
    assert {each.outputs for each in found if each.operator in ("MatMul", "Loop")} == {("y",)}


@pytest.mark.sampled(3)
def test_of_small_operators_the_profiler_tells_no_time() -> None:
    """The profiler takes longer than the operators: a chain of sums of a few numbers."""
    a = chain = x(4)
    for i in range(200):
        chain = term("sub", term("sin", chain), w(4, name=f"w{i}"))
    found, whole = timed_nodes(model((a,), (chain,)), {"x": np.ones(4, np.float32)}, 0.2)
    assert sum(each.seconds for each in found) > 2 * whole


@pytest.mark.parametrize(("whole", "there"), [(1.0, True), (0.6, True), (0.24, False)])
def test_what_the_profiler_took_itself_is_no_time_of_an_operator(
    measured: Result, monkeypatch: pytest.MonkeyPatch, whole: float, there: bool
) -> None:
    monkeypatch.setattr(
        stages, "timed_nodes", lambda *args, **named: ([timed("MatMul", 0.6), timed("Relu", 0.4)], whole)
    )
    found = stages.profile(job(Config(explain=True)), measured, 15.0)
    assert (found is not None) == there
    if found is not None:
        product, relu = (each.seconds for each in found.before)
        assert (product + relu, product - relu) == pytest.approx((whole, 0.2))


def test_an_operator_that_takes_less_than_the_profiler_has_no_negative_time() -> None:
    found = without_own_time([timed("MatMul", 0.9), timed("Relu", 0.1)], 0.4)
    assert [each.seconds for each in found] == pytest.approx([0.4, 0.0])
    assert without_own_time(found, 0.5) == found


def test_a_result_has_measured_times_and_its_page_says_so(measured: Result) -> None:
    assert measured.profile is not None
    before, after = measured.profile.before, measured.profile.after
    assert max(before, key=lambda each: each.seconds).operator == "MatMul"
    assert max(after, key=lambda each: each.seconds).operator in RUNS_A_PRODUCT  # the faster one of them was chosen
    said = page_of(measured)
    assert "By operator, measured" in said
    assert "By operator, predicted" not in said
    assert "by its profiler in runs of the whole model" in said


def test_without_a_profile_the_bars_are_predicted_and_the_page_says_so(measured: Result) -> None:
    said = page_of(replace(measured, profile=None))
    assert "By operator, predicted" in said
    assert "By operator, measured" not in said


def test_kernels_are_one_operator() -> None:
    after = timed("CpuKernel0", 1.0), timed("CpuKernel12", 0.5), timed("Relu", 1.0)
    profile = OperatorProfile((timed("MatMul", 3.0), timed("Relu", 1.0)), after)
    found = [(pair.name, pair.before.seconds, pair.after.seconds) for pair in profiled_pairs(profile)]
    assert found == [("MatMul", 3.0, 0.0), ("Relu", 1.0, 1.0), ("fused kernels", 0.0, 1.5)]


# ---------------------------------------------------------------- time


def job(config: Config, running: float = 0.01) -> Job:
    made = Job(config, quiet, Stop(), CostCache(None), running=running)
    made.seconds["load the original"] = 0.5
    return made


@pytest.mark.parametrize(("running", "seconds", "there"), [(0.01, 15.0, True), (0.01, 1.0, False), (2.0, 15.0, False)])
def test_what_would_take_too_long_is_not_profiled(
    measured: Result, running: float, seconds: float, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "timed_nodes", lambda *args, **named: ([timed("MatMul", 1.0)], 1.0))
    found = stages.profile(job(Config(explain=True), running), measured, seconds)
    assert (found is not None) == there


def test_after_an_interrupt_nothing_is_profiled(measured: Result) -> None:
    asked = job(Config(explain=True))
    asked.stop.asked = True
    assert stages.explain(asked, replace(measured, profile=None)).profile is None


def test_what_measures_nothing_profiles_nothing(measured: Result) -> None:
    assert stages.profile(job(Config(explain=True, measure=False)), measured, 15.0) is None
    assert stages.profile(job(Config(explain=True)), replace(measured, target=OPENVINO), 15.0) is None


def test_a_model_that_the_runtime_does_not_run_has_predicted_times(
    measured: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child(), "limit", 0.0)  # the runtime may take no time
    around = child().deadline
    assert stages.profile(job(Config(explain=True)), measured, 15.0) is None
    assert child().deadline is around


def test_a_kept_original_is_profiled_once(monkeypatch: pytest.MonkeyPatch, measured: Result) -> None:
    asked: list[bool] = []

    def counted(*args: object, **named: object) -> tuple[list[TimedNode], float]:
        asked.append(bool(named["source"]))
        return [timed("Relu", 1e-6)], 1e-6

    monkeypatch.setattr(stages, "timed_nodes", counted)
    kept = replace(measured, model=measured.original, changed=False, profile=None)
    assert stages.profile(job(Config(explain=True)), kept, 15.0) == OperatorProfile(*2 * [(timed("Relu", 1e-6),)])
    assert asked == [True]


def test_values_with_blocked_channels_have_their_names() -> None:
    a = x(1, 16, 8, 8)
    first = term("conv", a, w(16, 16, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)
    second = term(
        "conv", term("relu", first), w(16, 16, 1, 1, name="v"), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1
    )
    made = model((a,), (second,))
    found, _ = timed_nodes(made, {"x": np.ones((1, 16, 8, 8), np.float32)}, 0.05)
    known = value_names(made)
    convs = [each for each in found if each.operator == "Conv"]
    assert len(convs) == 2
    assert {known[name].op for each in convs for name in each.outputs if name in known} <= {"conv", "relu"}
    assert all(any(name in known for name in each.outputs) for each in convs)
    assert convs[1].inputs[0] in convs[0].outputs
