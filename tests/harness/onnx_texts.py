"""Models as text of ONNX, read, and compared with their originals."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from taso_mirage.ir.model import Model
from taso_mirage.onnx_io import from_proto, serialize
from taso_mirage.onnx_io.read import from_ir

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
Array = NDArray[Any]


def parse(body: str, header: str = HEADER, weights: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(header + textwrap.dedent(body))
    parts = [proto.graph, *proto.functions]
    while parts:
        for node in parts.pop().node:
            if not node.domain:
                node.ClearField("domain")  # the parser writes the empty domain
            parts += [a.g for a in node.attribute if a.HasField("g")]
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in (weights or {}).items())
    return proto


def read(proto: onnx.ModelProto) -> Model:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return from_ir(from_proto(copy))


def round_trip(proto: onnx.ModelProto, checked: bool = True) -> onnx.ModelProto:
    after = onnx.load_model_from_string(serialize(read(proto)))
    if checked:
        onnx.checker.check_model(after, full_check=True)
    return after


def run(proto: onnx.ModelProto, **feeds: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def same(proto: onnx.ModelProto, **feeds: Any) -> onnx.ModelProto:
    """Round trip and compare the results on `feeds`."""
    after = round_trip(proto)
    for before, now in zip(run(proto, **feeds), run(after, **feeds), strict=True):
        np.testing.assert_array_equal(before, now)
    return after


NUMBERS = {"float8_e4m3fn": 17, "float8_e5m2": 19}


def initializer(name: str, array: Array) -> onnx.TensorProto:
    if array.dtype.name not in NUMBERS:
        return numpy_helper.from_array(array, name)
    return helper.make_tensor(name, NUMBERS[array.dtype.name], array.shape, array.tobytes(), raw=True)


def built(text: str, weights: dict[str, Any], opset: int = 21) -> onnx.ModelProto:
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]> g'
    made = onnx.parser.parse_model(f"{head} {text}")
    made.graph.initializer.extend(initializer(n, np.asarray(a)) for n, a in weights.items())
    return made
