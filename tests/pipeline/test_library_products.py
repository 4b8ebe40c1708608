"""Regions whose product is best left to the runtime: kernels are made for the regions around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fused_models import CONFIG, WIDTH, fresh_cache, plain, quick, run

from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import Graph
from taso_mirage.measure.session import open_in_child
from taso_mirage.onnx_io import serialize
from taso_mirage.pipeline.fuse import fused, region_times
from taso_mirage.report.result import Result
from taso_mirage.rewriting.derived_traits import multiplies

FEW = 24
"""The rows of a linear layer that is in a region."""


def kernel_made(patch: pytest.MonkeyPatch, folder: Path, products: float) -> tuple[Result, Result, list[list[str]]]:
    """The model before and with kernels, and the operators of the regions that were measured.
    Kernels with a product save `products` seconds; others one second for each operator but one."""
    measured: list[list[str]] = []

    def seconds(graph: Graph, *_: Any) -> tuple[float, float]:
        operators = [n.op for n in graph if n.args]
        measured.append(operators)
        saved = products if any(map(multiplies, operators)) else float(len(operators) - 1)
        return 10.0, 10.0 - saved

    fresh_cache(patch, folder)
    quick(patch)
    patch.setattr(region_times, "region_seconds", seconds)
    result = plain(FEW)
    return result, fused(result, CONFIG, "search"), measured


def operators(result: Result) -> list[str]:
    return [n.op for n in result.model.nodes() if n.args]


def test_kernels_are_around_a_product_that_a_library_computes_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, found, measured = kernel_made(monkeypatch, tmp_path, products=-1.0)
    assert ["add", "gelu", "matmul"] in measured
    assert ["add", "gelu"] in measured
    assert found.changed
    assert operators(found) == ["opaque", "matmul", "opaque"]
    inputs = dict(random_inputs(result.original, 0, {}))
    assert inputs["x"].shape == (FEW, WIDTH)
    (wanted,) = run(serialize(result.original), inputs)
    content = serialize(found.model)
    for (got,) in (open_in_child(found.model).run(inputs), run(content, inputs)):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_kernel_with_the_product_stays_where_it_saves_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found, measured = kernel_made(monkeypatch, tmp_path, products=9.0)
    assert ["add", "gelu", "matmul"] in measured
    assert operators(found) == ["opaque", "opaque"]
    assert ["add", "gelu"] not in measured  # more than starts and memory of the operators around it
