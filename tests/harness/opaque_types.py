"""Types of opaque nodes, compared with values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.onnx_io import from_proto
from taso_mirage.onnx_io import read as reading


def opaque(proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The outputs' types where every node stays opaque."""

    def refuse(reader: reading._Reader, node: Any) -> Node:
        if node.op_type == "Constant":
            return reader._constant(node)
        raise Unsupported("only its type is asked for")

    monkeypatch.setattr(reading._Reader, "_known", refuse)
    return [n.type for n in reading.from_ir(from_proto(proto)).graph.outputs]


def misfit(type: Tensor, array: Any) -> str | None:
    """How an array is not of a type; a symbol stands for any size."""
    array = np.asarray(array)
    dtype = "string" if array.dtype == object or array.dtype.kind in "UST" else array.dtype.name
    if type.dtype != dtype:
        return f"{type} but the dtype is {dtype}"
    if type.shape is None or len(type.shape) != array.ndim:
        return f"{type} but the shape is {array.shape}"
    wrong = any(isinstance(n, int) and n != m for n, m in zip(type.shape, array.shape, strict=True))
    return f"{type} but the shape is {array.shape}" if wrong else None
