"""Kernels inside an optimized model: it computes the same with the custom-operator library and without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from taso_mirage import fuse
from taso_mirage.errors import InvalidOption
from taso_mirage.ir import Graph, Tensor, variable, weight
from taso_mirage.model import Model, random_inputs
from taso_mirage.onnx_io import from_ir, from_proto, load, save, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.ops import term
from taso_mirage.optimize.pipeline import Config, Result, optimize
from taso_mirage.optimize.session import opened
from taso_mirage.runtime.embed import DOMAIN
from taso_mirage.runtime.register import carries_kernels


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path_factory.mktemp("cache") / "costs.sqlite"))


def model(rows: int | str = 4) -> Model:
    """Two layers, each a norm, a linear layer and a GELU."""
    rng = np.random.default_rng(0)
    weights, x = {}, variable("x", Tensor("float32", (rows, 32)))
    y = x
    for i in range(2):
        arrays = {"gamma": rng.normal(size=32), "beta": rng.normal(size=32), "w": rng.normal(size=(32, 32)) / 6}
        leaves = {n: weight(f"{n}{i}", Tensor("float32", a.shape)) for n, a in arrays.items()}
        weights |= {f"{n}{i}": np.asarray(a, np.float32) for n, a in arrays.items()}
        y = term("layer_norm", y, leaves["gamma"], leaves["beta"], axis=1, epsilon=1e-5)
        y = term("gelu", term("matmul", y, leaves["w"]))
    made = standalone(Graph((x,), (y,)), {"": 20}, {n: _Array(a) for n, a in weights.items()})
    return from_ir(from_proto(onnx.load_from_string(serialize(made))))


class _Array:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def numpy(self) -> np.ndarray:
        return self.array


CONFIG = Config(budget=1.0, seconds=0.1)


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> Result:
    """Every kernel is worth its place, whatever this machine says."""
    monkeypatch.setattr(fuse, "KEEP", 0.0)
    monkeypatch.setattr(fuse, "NODE", -1.0)
    return optimize(model(), CONFIG)


def run(content: bytes, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, inputs)


def test_the_model_runs_with_its_kernels_and_without_them(result: Result, tmp_path: Path) -> None:
    found = fuse.fused(result, CONFIG, "search", 20)
    content = serialize(found.model)
    assert carries_kernels(content)
    assert any("kernel for" in note for note in found.notes)
    assert found.changed
    assert found.timing is not None
    assert all(d.passed for d in found.differences)
    inputs = dict(random_inputs(result.original, 0, {}))
    wanted = run(serialize(result.original), inputs)
    for got in (opened(found.model).run(inputs), run(content, inputs)):
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4, atol=1e-5)
    save(found.model, tmp_path / "fused.onnx")
    again = load(tmp_path / "fused.onnx")
    assert any(n.op == "opaque" and DOMAIN in str(n.attr("call")) for n in again.nodes())


def test_what_was_searched_before_is_not_searched_again(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not carries_kernels(serialize(fuse.fused(result, CONFIG, "cached", 20).model))
    first = fuse.fused(result, CONFIG, "search", 20)
    monkeypatch.setattr(fuse, "Search", None)
    assert serialize(fuse.fused(result, CONFIG, "cached", 20).model) == serialize(first.model)


def test_a_kernel_that_gains_nothing_is_left_out(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "KEEP", 1e9)
    found = fuse.fused(result, CONFIG, "search", 20)
    assert found.model is result.model
    assert "none makes the model measurably faster" in found.notes[-1]


def test_a_kernel_that_computes_something_else_fails_the_check(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fuse.cpu_kernel

    def wrong(graph: Graph) -> fuse.Kernel:
        kernel = made(graph)
        return replace(kernel, source=kernel.source.replace("* 0.5f", "* 0.25f").replace("0.5f *", "0.25f *"))

    monkeypatch.setattr(fuse, "cpu_kernel", wrong)
    found = fuse.fused(result, CONFIG, "search", 20)
    assert found.model is result.model
    assert "the check failed with kernels" in found.notes[-1]


def test_where_kernels_are_not_searched_a_note_says_why() -> None:
    dynamic = optimize(model("rows"), replace(CONFIG, measure=False))
    found = fuse.fused(dynamic, CONFIG, "search", 1)
    assert found.model is dynamic.model
    assert "dims without fixed sizes" in found.notes[-1]
    assert fuse.fused(dynamic, CONFIG, "off", 1) is dynamic
    with pytest.raises(InvalidOption, match="one of off, cached, search"):
        fuse.fused(dynamic, CONFIG, "often", 1)
