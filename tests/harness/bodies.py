"""Models with bodies as text of ONNX: read, optimized and run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import taso_mirage
from taso_mirage.report.result import Result

HEADER = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'
RNG = np.random.default_rng(0)


def parse(body: str, weights: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(HEADER + textwrap.dedent(body))
    for graph in (proto.graph, *graphs(proto)):
        for node in graph.node:
            if not node.domain:
                node.ClearField("domain")  # the parser writes the empty domain
    for function in proto.functions:
        for node in function.node:
            if not node.domain:
                node.ClearField("domain")
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in (weights or {}).items())
    return proto


def graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Every body in the main graph."""
    waiting = [proto.graph]
    while waiting:
        for node in waiting.pop().node:
            found = [a.g for a in node.attribute if a.HasField("g")]
            waiting += found
            yield from found


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


def run(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return list(onnxruntime.InferenceSession(proto.SerializeToString()).run(None, dict(feeds)))


def same(before: onnx.ModelProto, after: onnx.ModelProto, *feeds: Mapping[str, Any]) -> None:
    """The checker takes the written model, and it computes the same."""
    onnx.checker.check_model(after, full_check=True)
    for each in feeds:
        for a, b in zip(run(before, each), run(after, each), strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)
