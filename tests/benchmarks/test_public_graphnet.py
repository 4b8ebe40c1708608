"""Samples in GraphNet's layout: drawn, exported in a process of their own, and run in float64."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from scripts import script

from models import graphnet
from models.graphnet.export import put

CODE = """import torch
from torch import device

class GraphModule(torch.nn.Module):
    def forward(self, L_self_weight_ : torch.nn.parameter.Parameter, s1 : torch.SymInt, L_x_ : torch.Tensor):
        moved = L_x_.to(device(type='cuda', index=0))
        sums = torch._C._nn.linear(moved.to(torch.float32), L_self_weight_, None)
        return (sums * s1, {'more': torch.relu(sums)})
"""
WEIGHT = ((1.5, -2.0, 0.1), (0.25, 3.0, -0.7))
META = """class Program_weight_tensor_meta_L_self_weight_:
    name = "L_self_weight_"
    shape = [2, 3]
    dtype = "torch.float32"
    device = "cuda:0"
    mean = None
    std = None
    data = [1.5, -2.0, 0.1, 0.25, 3.0, -0.7]

class Program_weight_tensor_meta_s1:
    name = "s1"
    shape = []
    dtype = "torch.int64"
    data = [3]

class Program_weight_tensor_meta_L_x_:
    name = "L_x_"
    shape = [4, 3]
    dtype = "torch.float32"
    mean = 0.500
    std = float("nan")
    data = None
    min_val = 0.45
"""


def sample(corpus: Path, name: str, code: str = CODE, meta: str = META) -> Path:
    folder = corpus / "samples" / name
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(code)
    (folder / graphnet.META).write_text(meta)
    return folder


def test_statistics_are_parsed_and_not_executed(tmp_path: Path) -> None:
    weight, integer, x = graphnet.statistics(sample(tmp_path, "kind/one"))
    assert (weight.shape, weight.dtype, weight.data) == ([2, 3], "float32", [v for row in WEIGHT for v in row])
    assert (integer.shape, integer.data) == ([], [3])
    assert (x.mean, np.isnan(x.std), x.min_val) == (0.5, True, 0.45)
    assert graphnet.parameters(tmp_path / "samples" / "kind" / "one") == 6 + 1 + 12
    with pytest.raises(ValueError, match="malformed"):
        graphnet.statistics(sample(tmp_path, "kind/two", meta='class A:\n    name = open("file")\n'))


@pytest.mark.parametrize("low", [None, 0])
def test_numbers_have_the_recorded_mean_and_deviation(low: float | None) -> None:
    pytest.importorskip("torch")
    given = graphnet.Statistics("x", [200_000], "float64", mean=2.0, std=3.0, min_val=low)
    numbers = given.drawn(np.random.default_rng(0)).numpy()
    assert numbers.mean() == pytest.approx(2.0, rel=0.02)
    assert numbers.std() == pytest.approx(3.0, rel=0.05)
    assert (numbers.min() > 1e-3) == (low is not None)  # a variance of nearly zero would be a factor of its channel


@pytest.mark.parametrize("recorded", [{"mean": 1.0, "std": 0.0}, {"data": [1.0] * 8}])
def test_no_weight_is_constant(recorded: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    numbers = graphnet.Statistics("x", [8], "float32", **recorded).drawn(np.random.default_rng(0)).numpy()
    assert len({*numbers.tolist()}) == 8
    assert ((numbers >= 1) & (numbers < 1.01)).all()
    integers = graphnet.Statistics("x", [2], "int64", data=[1, 1]).drawn(np.random.default_rng(0))
    assert integers.tolist() == [1, 1]


def test_every_beginning_has_all_kinds_and_sizes(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        for size in (1, 2, 3, 4, 1000):
            sample(tmp_path, f"{kind}/{size}", meta=f"class A:\n    shape = [{size}]\n")
    assert graphnet.samples(tmp_path)[:2] == ["a/1", "a/1000"]
    found = graphnet.spread(tmp_path, 100)
    assert sorted(found) == [f"{kind}/{size}" for kind in "ab" for size in (1, 2, 3, 4)]
    assert {name[0] for name in found[:2]} == {"a", "b"}
    assert {name[0] + str(int(name[2:]) > 2) for name in found[:4]} == {"aFalse", "aTrue", "bFalse", "bTrue"}


@pytest.mark.sampled(3)
def test_a_sample_becomes_a_model(tmp_path: Path) -> None:
    file = tmp_path / "one.onnx"
    assert put(sample(tmp_path, "kind/one"), file, "torchscript", 100) is None
    model = onnx.load(file)
    assert [each.name for each in model.graph.input] == ["L_x_"]
    x = np.float32(np.random.default_rng(0).standard_normal((4, 3)))
    scaled, more = ReferenceEvaluator(model).run(None, {"L_x_": x})
    sums = x @ np.float32(WEIGHT).T
    np.testing.assert_allclose(scaled, sums * 3, rtol=1e-5)
    np.testing.assert_allclose(more, np.maximum(sums, 0), rtol=1e-5)


def test_the_reason_why_there_is_no_model(tmp_path: Path) -> None:
    broken = sample(tmp_path, "kind/broken", "raise KeyError('nothing here')")
    assert put(broken, tmp_path / "a.onnx", "dynamo", 100) == "load: KeyError: 'nothing here'"
    endless = sample(tmp_path, "kind/endless", "while True: pass")
    assert put(endless, tmp_path / "b.onnx", "dynamo", 1) == "late: more than 1 s"
    died = sample(tmp_path, "kind/died", "import os\nos._exit(9)")
    assert str(put(died, tmp_path / "c.onnx", "dynamo", 100)).startswith("crashed: exit code 9")
    assert not [*tmp_path.glob("*.onnx")]


def test_a_part_of_the_order_is_exported_within_the_limit(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        sample(tmp_path, f"kind/{name}", "while True: pass")
    part = Namespace(corpus=["graphnet"], graphnet=tmp_path, parameters=100, first=1, count=2)
    options = Namespace(exporter=["dynamo"], exports=tmp_path, limit=0.2, **vars(part))
    found = [*script("public").models(options)]
    assert [each.name for each in found] == [f"graphnet:{n}:dynamo" for n in graphnet.spread(tmp_path)[1:3]]
    assert found[0].build() == "late: more than 1 s"


def test_the_reference_of_a_module_is_in_double_precision(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    there = graphnet.load(sample(tmp_path, "kind/one"))
    x = np.float32(np.random.default_rng(0).standard_normal((4, 3)))
    in_double = script("public_torch").in_double
    exact = np.float64(x) @ np.float64(np.float32(WEIGHT)).T * 3
    found = in_double(there, {"L_x_": torch.from_numpy(x)}, 0, 0.0)[0].numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-14)  # although the code asks for float32
    rough = in_double(there, {"L_x_": torch.from_numpy(x)}, 1, 1.0)[0].numpy()
    assert 1e-9 < np.abs(rough - exact).max() < 1e-5
