"""A choice of a large model is compared with the original with its kernels, or after none
stayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from fused_models import CONFIG, clock, fresh_cache, model, quick

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph
from taso_mirage.measure import session as runtime
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import choice, optimize_model, stages
from taso_mirage.pipeline.fuse import comparisons
from taso_mirage.report.result import Result
from taso_mirage.runtime import kernel_functions
from taso_mirage.search.config import SEARCH

Times = Callable[..., list[list[float]]]


def longer() -> Model:
    """The model with an operator that passes take away."""
    made = model()
    (x,) = made.graph.inputs
    kept = made.with_graph(tuple([term("neg", term("neg", o)) for o in made.graph.outputs]), made.weights)
    assert kept.graph == Graph((x,), kept.graph.outputs)
    return from_ir(from_proto(onnx.load_from_string(serialize(kept))))


@pytest.fixture
def optimized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """A large model with times by made-up clocks: those of the choice, and those with kernels."""
    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)
    for module in (choice, stages):
        monkeypatch.setattr(module, "large", lambda job: True)
    monkeypatch.setattr(choice, "measures_last", lambda job: True)

    def run(alone: Times, with_kernels: Sequence[float]) -> Result:
        monkeypatch.setattr(runtime, "interleaved", alone)
        monkeypatch.setattr(comparisons, "interleaved", clock(with_kernels))
        return optimize_model(longer(), replace(CONFIG, kernels=SEARCH))

    return run


def never(*_: Any, **__: Any) -> list[list[float]]:
    pytest.fail("the choice was compared without kernels")


def test_a_choice_is_compared_with_its_kernels(optimized: Callable[..., Result]) -> None:
    found = optimized(never, [2.0, 1.25])
    assert found.changed
    assert found.timing is not None
    assert found.timing.ratio == pytest.approx(2.0)
    assert [each.gain for each in found.kernels] == [pytest.approx(1.6)]
    assert found.differences
    assert all(each.passed for each in found.differences)
    assert "elsewhere the model runs its own operators, 1.25 times as fast" in str(found.notes)


def test_the_model_without_the_library_has_another_look_where_one_leaves_it_open(
    optimized: Callable[..., Result],
) -> None:
    assert optimized(never, [2.0, 0.98, 1.2]).kernels
    refused = optimized(clock([1.5]), [2.0, 0.9, 1.2])
    assert not refused.kernels
    assert "would be 0.900 times as fast" in str(refused.notes)


def test_the_model_without_kernels_runs_in_turn_with_them_where_it_seems_faster(
    optimized: Callable[..., Result],
) -> None:
    found = optimized(never, [1.2, 1.5, 1.1])
    assert found.timing is not None
    assert found.timing.ratio == pytest.approx(1.2)
    assert [each.gain for each in found.kernels] == [pytest.approx(1.1)]


def test_a_wrong_function_in_the_place_of_a_kernel_is_found(
    optimized: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function runs where the kernels' library is not registered."""
    made = kernel_functions.computation

    def wrong(name: str, graph: Graph, *args: Any) -> Any:
        return made(name, Graph(graph.inputs, tuple([term("relu", o) for o in graph.outputs])), *args)

    monkeypatch.setattr(kernel_functions, "computation", wrong)
    found = optimized(clock([1.5]), [2.0, 1.25])
    assert not found.kernels
    assert "the check failed with kernels" in str(found.notes)


@pytest.mark.parametrize(("trial", "said"), [([1.2, 1.5, 0.9], "1.500 times without them"), ([0.5], "no kernels: ")])
def test_a_choice_without_kernels_is_compared_last(
    optimized: Callable[..., Result], trial: list[float], said: str
) -> None:
    found = optimized(clock([1.5]), trial)
    assert found.changed
    assert not found.kernels
    assert found.timing is not None
    assert found.timing.ratio == pytest.approx(1.5)
    assert found.terms_after < found.terms_before
    assert said in str(found.notes)


def test_a_slower_choice_without_kernels_is_not_taken(optimized: Callable[..., Result]) -> None:
    found = optimized(clock([0.5]), [0.5])
    assert not found.changed
    assert found.model is found.original
    assert "measured 0.500 times as fast" in str(found.kept)
