"""Models with bodies as text of ONNX: read and optimized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_texts

import taso_mirage
from taso_mirage.report.result import Result

HEADER = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'
RNG = np.random.default_rng(0)


def parse(body: str, weights: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    return onnx_texts.parse(body, HEADER, weights)


def kinds(proto: onnx.ModelProto, *path: str) -> list[str]:
    """The operators of a body, by the names of the attributes on the way to it."""
    graph = proto.graph
    for name in path:
        graph = next(a.g for n in graph.node for a in n.attribute if a.name == name)
    return [n.op_type for n in graph.node]


def optimized(proto: onnx.ModelProto, **options: Any) -> tuple[onnx.ModelProto, Result]:
    given = {"measure": False, "budget": 2.0} | options
    made, result = taso_mirage.optimize(proto, return_result=True, **given)
    return made, result


def same(before: onnx.ModelProto, after: onnx.ModelProto, *feeds: Mapping[str, Any]) -> None:
    """The checker takes the written model, and it computes the same."""
    onnx.checker.check_model(after, full_check=True)
    for each in feeds:
        for a, b in zip(onnx_texts.run(before, **each), onnx_texts.run(after, **each), strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)
