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
from taso_mirage.optimize.cache import cache_path
from taso_mirage.optimize.pipeline import Config, Result, Stop, optimize
from taso_mirage.optimize.session import opened
from taso_mirage.optimize.timing import Timing
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


CONFIG = Config(budget=10.0, seconds=0.1)


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> Result:
    """Every kernel is worth its place, whatever this machine says."""
    monkeypatch.setattr(fuse, "KEEP", 0.0)
    monkeypatch.setattr(fuse, "NODE", -1.0)
    return optimize(model(), replace(CONFIG, budget=1.0))


def run(content: bytes, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, inputs)


def test_the_model_runs_with_its_kernels_and_without_them(result: Result, tmp_path: Path) -> None:
    found = fuse.fused(result, CONFIG, "search")
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
    assert not carries_kernels(serialize(fuse.fused(result, CONFIG, "cached").model))
    first = fuse.fused(result, CONFIG, "search")
    monkeypatch.setattr(fuse, "Search", None)
    assert serialize(fuse.fused(result, CONFIG, "cached").model) == serialize(first.model)


def test_a_kernel_that_gains_nothing_is_left_out(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "KEEP", 1e9)
    found = fuse.fused(result, CONFIG, "search")
    assert found.model is result.model
    assert "none makes the model measurably faster" in found.notes[-1]


def test_a_kernel_that_computes_something_else_fails_the_check(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fuse.cpu_kernel

    def wrong(graph: Graph) -> fuse.Kernel:
        kernel = made(graph)
        return replace(kernel, source=kernel.source.replace("* 0.5f", "* 0.25f").replace("0.5f *", "0.25f *"))

    monkeypatch.setattr(fuse, "cpu_kernel", wrong)
    found = fuse.fused(result, CONFIG, "search")
    assert found.model is result.model
    assert "the check failed with kernels" in found.notes[-1]


def test_where_kernels_are_not_searched_a_note_says_why() -> None:
    dynamic = optimize(model("rows"), replace(CONFIG, measure=False))
    found = fuse.fused(dynamic, CONFIG, "search")
    assert found.model is dynamic.model
    assert "dims without fixed sizes" in found.notes[-1]
    assert fuse.fused(dynamic, CONFIG, "off") is dynamic
    with pytest.raises(InvalidOption, match="one of off, cached, search"):
        fuse.fused(dynamic, CONFIG, "often")
    with pytest.raises(InvalidOption, match="--no-measure exclude each other"):
        fuse.fused(dynamic, replace(CONFIG, measure=False), "search")


def test_an_interrupt_keeps_what_was_found_before(result: Result) -> None:
    """The first kind of region is searched, and its kernel is the only one; then, before any kernel, nothing is lost."""
    stop = Stop()

    def after(stage: str, done: int, total: int) -> None:
        if stage == "kernels in the model" and done == 1:
            stop()

    whole = fuse.fused(result, CONFIG, "search")
    some = fuse.fused(result, CONFIG, "cached", after, stop)
    kernels = [sum("kernel for" in note for note in each.notes) for each in (whole, some)]
    assert kernels[0] > kernels[1] == 1
    assert any("interrupted" in note for note in some.notes)
    assert all(d.passed for d in some.differences)
    none = fuse.fused(result, CONFIG, "search", lambda stage, done, total: stop(), stop)
    assert none.model is result.model
    assert any("interrupted" in note for note in none.notes)
    assert not stop.searching()


def test_a_damaged_file_is_searched_again(result: Result) -> None:
    first = fuse.fused(result, CONFIG, "search")
    files = list((cache_path().parent / "kernels").glob("*.json"))
    assert files
    for file, text in zip(files, ("{", '{"mugraph": {"mugraph": 1, "program": ["def"]}, "seconds": 1}'), strict=False):
        file.write_text(text)
    again = fuse.fused(result, CONFIG, "search")
    assert sum("kernel for" in n for n in again.notes) == sum("kernel for" in n for n in first.notes)


def test_a_bug_in_a_search_costs_that_region_alone(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(fuse, "Search", broken)
    found = fuse.fused(result, CONFIG, "search")
    assert found.model is result.model
    assert any("please report it: ZeroDivisionError: made up" in note for note in found.notes)


def test_no_slower_model_is_kept(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind is faster on its own, all that is kept is slower than the original: it is not."""

    def timed(original: object, other: object, shares: object) -> Timing:
        ratio = 0.5 if seen else 2.0
        seen.append(ratio)
        return Timing(1.0, 1.0 / ratio, ratio, ratio, ratio, 1)

    seen: list[float] = []
    monkeypatch.setattr(fuse, "KEEP", 1.01)
    monkeypatch.setattr(fuse, "compared", timed)
    found = fuse.fused(result, CONFIG, "search")
    assert found.model is result.model
    assert "0.500 times as fast as the original" in found.notes[-1]
