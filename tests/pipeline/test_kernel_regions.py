"""Kernels of a large model are checked on the inputs of their own regions, and tried in the model
once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fused_models import CONFIG, ROWS, WIDTH, fresh_cache, quick
from loop_models import gated

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight
from taso_mirage.lowering import cpu as cpu
from taso_mirage.measure import regional
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import compare
from taso_mirage.measure.child import child
from taso_mirage.measure.load import Load
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import CPU
from taso_mirage.measure.whole import cases_by_runs
from taso_mirage.onnx_io import from_ir, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.loops import with_scans
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import comparisons, fused, kernel_check
from taso_mirage.pipeline.fuse.kinds import Kinds
from taso_mirage.report.result import Result
from taso_mirage.runtime import kernel_functions
from taso_mirage.runtime.plan import PlannedNode
from taso_mirage.system.deadline import Deadline

LAYERS, KINDS = 5, 2
SMALL = 1e-3
"""The size of a layer's summand beside its input: a layer's errors are hidden in the outputs."""


def layered() -> Model:
    """x + gelu(x + b) W, some times, W small."""
    rng = np.random.default_rng(0)
    value = start = variable("x", Tensor("float32", (ROWS, WIDTH)))
    weights: dict[str, StoredWeight] = {}

    def drawn(shape: tuple[int, ...], scale: float) -> Node:
        name = f"w{len(weights)}"
        weights[name] = StoredWeight((scale * rng.normal(size=shape)).astype(np.float32))
        return weight(name, Tensor("float32", shape))

    for _ in range(LAYERS):
        gate = term("gelu", term("add", value, drawn((WIDTH,), 1.0)))
        value = term("add", value, term("matmul", gate, drawn((WIDTH, WIDTH), SMALL)))
    return from_ir(to_ir(standalone(Graph((start,), (value,)), {"": 20}, weights)))


@pytest.fixture
def large(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The model of layers, of which there is no float64 evaluation as a whole."""
    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)
    child().stop()
    found = optimize_model(layered(), replace(CONFIG, measure=False, budget=0.0))
    cases = tuple(cases_by_runs(found.original, runtime.open_in_child(found.original, CPU), {}))
    whole, given = len(found.original.nodes()), FloatReference.__call__

    def of_parts(self: FloatReference, *args: Any) -> Any:
        assert len(self.model.nodes()) < whole / 2
        return given(self, *args)

    monkeypatch.setattr(FloatReference, "__call__", of_parts)
    return replace(found, model=found.original, steps=(), changed=False, cases=cases)


def inaccurate(monkeypatch: pytest.MonkeyPatch, factor: str) -> None:
    """Kernels of gelu have this number in the place of a half."""
    made = cpu.cpu_kernel

    def wrong(graph: Graph, *before: Any) -> PlannedNode:
        kernel = made(graph, *before)
        assert "0.5f" in kernel.source or not any(n.op in ("gelu", "erf") for n in graph)
        return replace(kernel, source=kernel.source.replace("0.5f", factor))

    monkeypatch.setattr(cpu, "cpu_kernel", wrong)


def test_right_kernels_stay_and_one_of_equal_regions_is_evaluated(
    large: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated, given = list[Model](), FloatReference.__call__

    def counted(self: FloatReference, *args: Any) -> Any:
        evaluated.append(self.model)
        return given(self, *args)

    monkeypatch.setattr(FloatReference, "__call__", counted)
    found = fused(large, CONFIG, "search", once=True)
    assert sum(places for made in found.kernels for _, places in made.kinds) == LAYERS
    assert len(evaluated) == KINDS * regional.RUNS * len(("with the library", "without it"))
    assert found.kernels, found.notes
    assert any(each.region for each in found.differences)
    assert all(each.passed for each in found.differences)


def test_functions_that_read_back_as_their_terms_are_compared_only_while_there_is_time(
    large: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime need not run them then."""
    monkeypatch.setattr(child(), "deadline", Deadline(1000.0))
    monkeypatch.setattr(kernel_check, "FEW", 1e9)
    compared: list[bool] = []
    given = regional.RegionalCheck.differences

    def counted(self: regional.RegionalCheck, optimized: regional.ClaimedModel) -> Any:
        compared.append(optimized.model.trusted)
        return given(self, optimized)

    monkeypatch.setattr(regional.RegionalCheck, "differences", counted)
    found = fused(large, CONFIG, "search", once=True)
    assert found.kernels, found.notes
    assert compared == [True]


def test_an_error_that_the_outputs_hide_is_found_in_its_region(large: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a layer is a thousand times smaller in the outputs: the whole model passes."""
    with monkeypatch.context() as patch:
        inaccurate(patch, "0.50002f")
        patch.setattr(regional.RegionalCheck, "differences", lambda self, optimized: [])
        passed = fused(large, CONFIG, "search", once=True)
        assert passed.kernels
        session = runtime.open_in_child(passed.model, CPU)
        assert all(each.passed for each in compare(large.original, session, large.cases))
        patch.undo()
    inaccurate(monkeypatch, "0.50002f")
    found = fused(large, CONFIG, "search", once=True)
    assert not found.kernels
    assert found.model is large.model
    assert "in the region of" in str(found.notes)


@pytest.mark.parametrize(("regions", "few"), [(True, 0.0), (True, 1e9), (False, 0.0)])
def test_a_function_that_computes_something_else_is_found(
    regions: bool, few: float, large: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function runs where the kernels' library is not registered. Where no region could be
    compared, the whole model is, without the library too. Where time is short, the function is not
    read as the terms of its region."""
    monkeypatch.setattr(child(), "deadline", Deadline(1000.0))
    monkeypatch.setattr(kernel_check, "FEW", few)
    if not regions:
        monkeypatch.setattr(regional.RegionalCheck, "differences", lambda self, optimized: [])
    made = kernel_functions.computation

    def wrong(name: str, graph: Graph, *args: Any) -> Any:
        outputs = tuple([term("relu", o) if any(n.op == "gelu" for n in graph) else o for o in graph.outputs])
        return made(name, Graph(graph.inputs, outputs), *args)

    monkeypatch.setattr(kernel_functions, "computation", wrong)
    found = fused(large, CONFIG, "search", once=True)
    assert not found.kernels
    assert "the check failed with kernels" in str(found.notes)
    here = fused(large, replace(CONFIG, elsewhere=False), "cached", once=True)
    assert here.kernels


def test_loops_as_terms_are_the_same_operators() -> None:
    """A large model is not measured again without the library of its kernels."""
    model, other = (from_memory(gated(t=t)) for t in (4, 5))
    assert Kinds(with_scans(model)).has_operators_of(model)
    assert not Kinds(with_scans(other)).has_operators_of(model)


def test_one_model_is_loaded_and_compared_once(large: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernels of all regions, beside the original; another one gives the regions their
    values."""
    loads, looks, opened, timed = list[Model](), list[int](), runtime._loaded, comparisons.interleaved

    def counted(key: Any, model: Model, *args: Any) -> Session:
        loads.append(model)
        return opened(key, model, *args)

    def looked(sessions: Sequence[Session], *args: Any, **named: Any) -> list[list[float]]:
        looks.append(len(sessions))
        return timed(sessions, *args, **named)

    monkeypatch.setattr(comparisons, "observed_load", lambda seconds: Load())
    original = runtime.original(large.original, CPU)
    monkeypatch.setattr(runtime, "_loaded", counted)
    monkeypatch.setattr(comparisons, "interleaved", looked)
    found = fused(large, CONFIG, "search", once=True, original=original)
    assert found.kernels
    assert looks == [2]
    assert loads[0] is found.model
    assert len(loads) <= 2
