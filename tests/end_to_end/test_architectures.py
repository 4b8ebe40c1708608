"""Every model of `models/` through `optimize`: checked, valid, no larger, with the signature of the
original, and with a certificate that leads to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from certificate_cases import LARGE, Case, certified, followed

import models
from taso_mirage import pipeline
from taso_mirage.certificates.judge import AGAIN, CHECKED
from taso_mirage.measure.session import Session
from taso_mirage.measure.sizes import SEEDS
from taso_mirage.onnx_io import from_proto, serialize
from taso_mirage.onnx_io.read import from_ir
from taso_mirage.report.result import Result
from taso_mirage.search.config import Config

ROOT = Path(__file__).parents[2]
LONG = ("light_alexnet", "light_zfnet512", "light_vgg19", "light_resnet50", "light_inception_v2")
"""Models whose float64 reference takes long: weights are large, or images. The last two are built
small from torch, too."""
ALIKE = (
    *("resnet50", "resnext50", "nasnet_a", "light_densenet121", "light_inception_v1", "light_squeezenet"),
    *("vit", "llama", "llama_lora"),
    *("inception_v3", "bert", "mini_transformer", "mobilenet_v2"),
)
"""Models of the kinds of ResNet-18 and -3D, of ShuffleNet, which has groups too, and Llama with a
cache. Inception v3 is judged in test_report.py, and BERT below, at any size."""
SLOW = (*LONG, *ALIKE)

Small = Callable[..., onnx.ModelProto]


def optimize(proto: onnx.ModelProto, budget: float = 3) -> Result:
    return pipeline.optimize_model(from_ir(from_proto(proto)), Config(measure=False, budget=budget))


def verified(proto: onnx.ModelProto, result: Result) -> Session:
    """Judge an optimized model, and open a session on it."""
    assert result.failure is None, result.notes
    assert all(d.passed for d in result.differences)
    assert result.differences or (not result.changed and result.model.graph == from_ir(from_proto(proto)).graph)
    assert len({d.case for d in result.differences}) >= len(SEEDS) * result.changed
    assert result.terms_after <= result.terms_before
    assert result.cost_after <= result.cost_before
    content = serialize(result.model)
    written = onnx.load_model_from_string(content)
    onnx.checker.check_model(written, full_check=True)
    assert signature(written) == signature(proto)
    return Session(content)


def with_certificate(proto: onnx.ModelProto, folder: Path) -> tuple[Result, Case]:
    """A model optimized, with its certificate, which is followed. On a busy machine it is tried
    again with more time."""
    result = next(each for each in (optimize(proto, budget) for budget in (3, 30)) if each.changed)
    case = certified(from_ir(from_proto(proto)), result, folder)
    assert set(followed(case).equalities) <= {CHECKED, AGAIN}
    return result, case


def signature(proto: onnx.ModelProto) -> list[Any]:
    """Names, dtypes and sizes, named ones too, of inputs and outputs."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    values = [*(i for i in proto.graph.input if i.name not in weights), *proto.graph.output]
    tensors = [(v.name, v.type.tensor_type) for v in values]
    return [(name, t.elem_type, [d.dim_param or d.dim_value for d in t.shape.dim]) for name, t in tensors]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in models.NAMES])
def test_small_model(small: Small, name: str, tmp_path: Path) -> None:
    result = optimize(small(name)) if name in LARGE else with_certificate(small(name), tmp_path)[0]
    session = verified(small(name), result)
    assert all(np.isfinite(output).all() for output in session.run(models.inputs(small(name))))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["bert", pytest.param("llama", marks=pytest.mark.slow)])
def test_dynamic_model_keeps_its_sizes_free(small: Small, name: str, tmp_path: Path) -> None:
    proto = small(name, dynamic=True)
    result, (*_, text) = with_certificate(proto, tmp_path)
    assert any("dim(" in e["lhs"] or "'" in e["lhs"].partition(":")[2] for e in text["equalities"])
    original, optimized = Session(proto.SerializeToString()), verified(proto, result)
    for batch, sequence in ((1, 16), (3, 7), (2, 1)):
        fed = models.inputs(proto, sizes={"batch": batch, "sequence": sequence})
        for before, after in zip(original.run(fed), optimized.run(fed), strict=True):
            np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in models.EXPORTED if name != "mini_transformer"])
def test_full_model(name: str) -> None:
    proto = models.build(name, small=False)
    verified(proto, optimize(proto))


@pytest.mark.sampled(3)
def test_the_same_model_becomes_the_same_bytes(small: Small) -> None:
    first, second = (optimize(small("bert"), budget=600) for _ in range(2))  # the search ends before the budget does
    assert serialize(first.model) == serialize(second.model)
    assert first.equations == second.equations


@pytest.mark.sampled(5)
def test_hash_seeds_do_not_matter(layer: Path, tmp_path: Path) -> None:
    """Python orders sets of strings by a seed that changes from process to process."""
    written = [tmp_path / f"{seed}.onnx" for seed in (1, 2)]
    for seed, path in enumerate(written, 1):
        given = ("optimize", layer, "--no-measure", "--budget", 600, "-o", path)
        command = [sys.executable, "-m", "taso_mirage.cli", *map(str, given)]
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": str(seed)}, check=True, capture_output=True)
    first, second = (path.read_bytes() for path in written)
    assert first == second
