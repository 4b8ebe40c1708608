"""Laws that pay only at all of their places at once: squeeze and excite between convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from equal_layers import values
from small_models import CONTEXT, F, model, ops, w

from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CPU, CUDA, Target
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.config import Config
from taso_mirage.search.cost import CostCache
from taso_mirage.search.rewriter import Rewriter
from taso_mirage.search.rulesets import rules
from taso_mirage.search.simultaneous import all_at_once, laws_together

SAME = {"strides": (1, 1), "dilations": (1, 1)}


def squeezed(blocks: int = 2, batch: Dim = 2, reshaped: bool = False) -> Model:
    """Convolutions with squeeze and excite after each; the mean has its dims, or gets them back."""
    image = state = variable("image", Tensor(F, (batch, 4, 6, 5)))
    for i in range(blocks):
        state = term("conv", state, w(4, 4, 3, 3, name=f"k{i}"), pads=(1, 1, 1, 1), **SAME)
        pooled = term("reduce_mean", state, axes=(2, 3), keepdims=int(not reshaped))
        if reshaped:
            pooled = term("reshape", pooled, shape=(batch, 4, 1, 1))
        squeezed = term("conv", pooled, w(4, 4, 1, 1, name=f"s{i}"), pads=(0, 0, 0, 0), **SAME)
        state = term("mul", state, term("sigmoid", squeezed))
    return model((image,), (state,))


def changed(outputs: Sequence[Node]) -> tuple[tuple[Node, ...], list[Any]]:
    found, steps = all_at_once(tuple(outputs), Rules(laws_together(rules())), CONTEXT)
    return found, steps


def test_some_laws_are_stated_so() -> None:
    assert {"global_average_pool.0", "resize.0", "resize.1"} <= {e.name for e in laws_together(rules())}


@pytest.mark.parametrize("reshaped", [False, True])
def test_all_places_change_at_once_and_the_values_stay(reshaped: bool) -> None:
    made = squeezed(3, reshaped=reshaped)
    outputs, steps = changed(made.graph.outputs)
    assert ops(outputs).count("resize") == 3
    assert ops(outputs).count("global_average_pool") == 3 * (not reshaped)
    assert len(steps) == (3 if reshaped else 6)
    for before, after in zip(
        values(made, made.graph.outputs, made.weights), values(made, outputs, made.weights), strict=True
    ):
        np.testing.assert_allclose(after, before, rtol=1e-12)


def test_what_has_no_layout_stays_as_it_is() -> None:
    image, gate = variable("image", Tensor(F, (2, 4, 6, 5))), variable("gate", Tensor(F, (2, 4, 1, 1)))
    outputs = (term("mul", image, gate),)
    assert changed(outputs) == (outputs, [])


def test_a_gate_of_other_dims_and_images_of_free_sizes_stay() -> None:
    image = variable("image", Tensor(F, (2, 4, 6, 5)))
    conv = term("conv", image, w(4, 4, 3, 3), pads=(1, 1, 1, 1), **SAME)
    for shape in ((1, 4, 1, 1), (2, 1, 1, 1), (2, 4, 6, 1), (4, 1, 1)):
        outputs = (term("mul", conv, variable("gate", Tensor(F, shape))),)
        assert changed(outputs) == (outputs, []), shape
    wide = variable("image", Tensor(F, (2, 4, symbol("h"), 5)))
    conv = term("conv", wide, w(4, 4, 3, 3), pads=(1, 1, 1, 1), **SAME)
    outputs = (term("mul", conv, variable("gate", Tensor(F, (2, 4, 1, 1)))),)
    assert "resize" not in ops(changed(outputs)[0])


def test_a_gate_that_is_a_weight_stays_as_small_as_it_is() -> None:
    image = variable("image", Tensor(F, (1, 4, 6, 5)))
    conv = term("relu", term("conv", image, w(4, 4, 3, 3, name="k"), pads=(1, 1, 1, 1), **SAME))
    outputs = (term("mul", conv, w(1, 4, 1, 1, name="gate")),)
    assert changed(outputs) == (outputs, [])


@pytest.mark.parametrize(("target", "there"), [(CPU, True), (CUDA, False)])
def test_only_where_the_runtime_keeps_a_blocked_layout(target: Target, there: bool, tmp_path: Path) -> None:
    made = squeezed()
    cache = CostCache(tmp_path / "costs")
    rewriter = Rewriter(made, target, (({}, 1.0),), tuple(rules()), dict(made.weights), cache)
    rewriter.measure_until(0.0)
    _, _, passed = rewriter.passes()
    found = rewriter.together(passed)
    assert (found is not None) == there
    assert found is None or found.name.endswith(", together")


def test_the_candidate_is_measured_checked_and_runs_at_other_batches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The clock says that a model with a Resize is twice as fast."""

    def interleaved(sessions: Sequence[Any], *_: Any, **__: Any) -> list[list[float]]:
        return [[1e-3 if resized(each) else 2e-3] * 9 for each in sessions]

    def resized(session: Any) -> bool:
        with session._source() as (source, _):
            read = onnx.load_model_from_string(source) if isinstance(source, bytes) else onnx.load(source)
        return any(node.op_type == "Resize" for node in read.graph.node)

    monkeypatch.setattr(runtime, "interleaved", interleaved)
    made = squeezed(2, batch=symbol("batch"))
    result = optimize_model(made, Config(budget=20, seconds=0.1, cache=tmp_path / "costs", kernels="off"))
    assert result.changed
    assert all(each.passed for each in result.differences)
    assert {"global_average_pool.0", "resize.1"} <= set(result.equations)
    sessions = [
        onnxruntime.InferenceSession(serialize(each), providers=["CPUExecutionProvider"])
        for each in (made, result.model)
    ]
    for batch in (1, 3):
        image = np.random.default_rng(0).normal(size=(batch, 4, 6, 5)).astype(np.float32)
        before, after = (session.run(None, {"image": image})[0] for session in sessions)
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 13, 14, 18])
def test_spreading_and_hard_swish_run_at_old_opsets_and_any_batch(opset: int) -> None:
    x = variable("x", Tensor(F, (symbol("batch"), 3, 1, 1)))
    spread = term("resize", term("hard_swish", x), factors=(1, 1, 7, 5))
    made = replace(model((x,), (spread,)), opsets={"": opset})
    session = onnxruntime.InferenceSession(serialize(made), providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        value = np.random.default_rng(batch).normal(size=(batch, 3, 1, 1)).astype(np.float32) * 4
        expected = np.broadcast_to(value * np.clip(value + 3, 0, 6) / 6, (batch, 3, 7, 5))
        np.testing.assert_allclose(session.run(None, {"x": value})[0], expected, rtol=1e-5, atol=1e-6)
