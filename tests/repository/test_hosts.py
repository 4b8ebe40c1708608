"""The examples of docs/hosts, each on a small model: the file is another one, computes the same,
and keeps the interface."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper as h
from protos import F, V, proto

import taso_mirage

HOSTS = Path(__file__).parents[2] / "docs" / "hosts"
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter


@cache
def host(name: str) -> ModuleType:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(f"hosts_{name}", HOSTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def twice_negated() -> onnx.ModelProto:
    """A product, whose result is negated twice."""
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["p"]),
        h.make_node("Neg", ["p"], ["m"]),
        h.make_node("Neg", ["m"], ["y"]),
    ]
    weight = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    return proto(nodes, [V("x", F, ["n", 8])], [V("y", F, ["n", 4])], w=weight)


def ran(model: onnx.ModelProto | Path, **inputs: Any) -> list[Any]:
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def same(a: onnx.ModelProto | Path, b: onnx.ModelProto | Path, **inputs: Any) -> None:
    for one, other in zip(ran(a, **inputs), ran(b, **inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def operators(model: onnx.ModelProto | Path) -> list[str]:
    return [node.op_type for node in (onnx.load(model) if isinstance(model, Path) else model).graph.node]


X = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)


def test_every_example_is_on_the_page() -> None:
    page = (HOSTS.parent / "hosts.md").read_text()
    assert all(f"hosts/{path.name}" in page for path in HOSTS.glob("*.py"))


@pytest.mark.sampled(3)
@needs_torch
def test_an_export_of_torch_onnx_is_optimized(tmp_path: Path) -> None:
    import torch

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x.neg().neg().T.T)

    for optimize in (False, True):
        host("torch_export").export(Twice(), (torch.from_numpy(X),), tmp_path / f"{optimize}.onnx", optimize=optimize)
    assert len(operators(tmp_path / "True.onnx")) < len(operators(tmp_path / "False.onnx"))
    same(tmp_path / "True.onnx", tmp_path / "False.onnx", x=X)


def test_a_pass_of_onnx_ir_runs_among_theirs() -> None:
    from onnx_ir.passes.common import CheckerPass

    made = ir.from_proto(twice_negated())
    own = host("onnxscript_pass").TasoMirage()
    result = ir.passes.Sequential(own, CheckerPass())(made)
    assert result.modified
    after = ir.to_proto(result.model)
    assert operators(after) == ["MatMul"]
    assert len(made.graph) == 3  # a functional pass leaves its argument as it was
    same(after, twice_negated(), x=X)
    assert not ir.passes.Sequential(own)(ir.from_proto(after)).modified


def test_a_folder_of_parts_becomes_another_one(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for name in ("encoder_model.onnx", "decoder_model.onnx"):
        onnx.save(twice_negated(), source / name)
    (source / "config.json").write_text("{}")
    optimizer = host("folder_of_parts").PartsOptimizer
    done = optimizer.from_pretrained(source).optimize(tmp_path / "out")
    found = sorted(path.name for path in done.iterdir())
    assert found == ["config.json", "decoder_model_optimized.onnx", "encoder_model_optimized.onnx"]
    assert operators(done / "encoder_model_optimized.onnx") == ["MatMul"]
    same(done / "decoder_model_optimized.onnx", source / "decoder_model.onnx", x=X)
    with pytest.raises(FileNotFoundError, match="has no ONNX file"):
        optimizer.from_pretrained(tmp_path)


@pytest.mark.sampled(3)
@needs_torch
def test_an_exporter_class_keeps_its_export_if_the_step_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.SiLU())
    exporter = host("exporter_class").Exporter(module, torch.zeros(1, 3, 8, 8))
    with caplog.at_level(logging.INFO, "exporter"):
        exporter(tmp_path / "faster.onnx")
    assert "nodes" in caplog.text

    def failing(*args: object, **options: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(taso_mirage, "optimize", failing)
    exporter(tmp_path / "plain.onnx")
    assert "the export is as it was: no luck" in caplog.text
    image = {onnx.load(tmp_path / "plain.onnx").graph.input[0].name: np.ones((1, 3, 8, 8), np.float32)}
    same(tmp_path / "faster.onnx", tmp_path / "plain.onnx", **image)
    for name in ("faster", "plain"):
        entries = {each.key: json.loads(each.value) for each in onnx.load(tmp_path / f"{name}.onnx").metadata_props}
        assert entries["stride"] == 32


@pytest.mark.sampled(3)
@needs_torch
def test_a_streaming_script_keeps_states_and_metadata(tmp_path: Path) -> None:
    script = host("streaming_script")
    optimized, small = script.main(tmp_path)
    chunk = {"x": np.ones((1, 16, 80), np.float32), "state": np.ones((1, 1, 64), np.float32)}
    same(optimized, tmp_path / "encoder.exported.onnx", **chunk)
    assert [each.shape for each in ran(small, **chunk)] == [(1, 16, 64), (1, 1, 64)]
    for path in (optimized, small):
        made = onnx.load(path)
        assert [each.name for each in made.graph.input] == ["x", "state"]
        assert [each.name for each in made.graph.output] == ["encoder_out", "next_state"]
        assert {each.key: each.value for each in made.metadata_props}["model_type"] == "gru"


@pytest.mark.skipif(find_spec("olive") is None, reason="Olive is not installed: pip install olive-ai")
def test_a_pass_of_olive_runs_in_its_engine(tmp_path: Path) -> None:
    import olive

    onnx.save(twice_negated(), tmp_path / "m.onnx")
    found = olive.run(
        {
            "input_model": {"type": "ONNXModel", "model_path": str(tmp_path / "m.onnx")},
            "passes": {"faster": {"type": "TasoMirageOptimization", "effort": "quick"}},
            "output_dir": str(tmp_path / "out"),
            "cache_dir": str(tmp_path / "cache"),
        },
        package_config=host("olive_pass").PACKAGE,
    )
    (made,) = found.get_output_models()
    assert operators(Path(made.model_path)) == ["MatMul"]
    same(Path(made.model_path), tmp_path / "m.onnx", x=X)
