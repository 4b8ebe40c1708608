"""Small models of named tensors, and their sessions with kernels and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.runtime import register

OPSETS = {"": 20}
WITH_CONTRIB = OPSETS | {"com.microsoft": 1}
"""Opsets with the operators of ONNX Runtime's own domain."""


def x(name: str, *shape: int, dtype: str = "float32") -> Node:
    return variable(name, Tensor(dtype, shape))


def w(name: str, *shape: int) -> Node:
    return weight(name, Tensor("float32", shape))


def model(*outputs: Node, opsets: Mapping[str, int] = OPSETS) -> Model:
    """The model of these terms as it is read from a file, with random weights."""
    leaves = Graph((), outputs)
    rng = np.random.default_rng(0)
    arrays = {
        n.attr("name"): StoredWeight(rng.normal(size=n.shape).astype(np.float32)) for n in leaves if n.op == "weight"
    }
    made = standalone(Graph(tuple(n for n in leaves if n.op == "input"), outputs), dict(opsets), arrays)
    return from_ir(from_proto(onnx.load_from_string(serialize(made))))


def session(made: Model, kernels: bool) -> Any:
    options = onnxruntime.SessionOptions()
    content = serialize(made)
    if kernels:
        register(options, content)
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
