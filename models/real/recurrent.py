"""LSTM, GRU and a scripted loop, and a perceptron of more than 2 GB."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models import exporter, weights
from models.real.torch_export import Subject, exported, to_onnx

FREE = {"x": {0: "batch", 1: "steps"}}
WIDE, WIDE_OPSET = 16384, 22
"""Two matrices of this width in float32 have 2.1 GB."""


def layer(which: str, *, kind: str) -> onnx.ModelProto:
    """Two bidirectional layers of torch's LSTM or GRU."""
    torch = exporter.require("torch")
    module = getattr(torch.nn, kind)(32, 64, num_layers=2, batch_first=True, bidirectional=True).eval()
    x = torch.zeros(2, 12, 32)
    return to_onnx(Subject(module, {"x": x}, lambda module, x: module(x)[0], ("y",), FREE), which)


def loop(which: str) -> onnx.ModelProto:
    """A recurrence in Python, scripted: the exporter writes a Loop."""
    torch = exporter.require("torch")

    def recur(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = torch.tanh(x[:, step] + state @ weight)
        return state

    # the script compiler reads annotations as objects
    recur.__annotations__ = dict.fromkeys(("x", "weight", "return"), torch.Tensor)
    scripted = torch.jit.script(recur)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.zeros(32, 32))
    exporter.randomize(module, 0)
    subject = Subject(module, {"x": torch.zeros(2, 12, 32)}, lambda m, x: scripted(x, m.weight), ("y",), FREE)
    return exported(subject, which)


def wide(which: str) -> onnx.ModelProto:
    """Two linear maps of 16384, written without an exporter."""
    del which
    generator = np.random.default_rng(0)
    matrices = [_matrix(generator, f"w{i}") for i in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["y"]),
    ]
    shape: list[Any] = ["batch", WIDE]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph(nodes, "wide", [x], [y], matrices)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", WIDE_OPSET)], ir_version=10)


def _matrix(generator: np.random.Generator, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(weights.linear(generator, (WIDE, WIDE), WIDE).astype(np.float32), name)
