"""Resize and Upsample whose scales are initializers, as exporters write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taso_mirage.ir.model import Model
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_proto, serialize
from taso_mirage.onnx_io.read import from_ir

SCALES = np.array([1, 1, 2, 3], np.float32)
NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def proto(op: str, opset: int, inputs: list[str], scales: Any = SCALES, **attrs: Any) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 2, 3, 4]), ("y", None)))
    constants = [numpy_helper.from_array(scales, "s"), numpy_helper.from_array(np.zeros(0, np.float32), "roi")]
    graph = helper.make_graph([helper.make_node(op, inputs, ["y"], **attrs)], "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def read(made: onnx.ModelProto) -> Model:
    return from_ir(from_proto(made))


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "attrs"),
    [
        ("Resize", 10, ["x", "s"], {"mode": "nearest"}),
        ("Resize", 11, ["x", "roi", "s"], NEAREST),
        ("Resize", 13, ["x", "", "s"], NEAREST),
        ("Resize", 18, ["x", "roi", "s"], NEAREST),
        ("Upsample", 9, ["x", "s"], {"mode": "nearest"}),
    ],
)
def test_scales_that_are_an_initializer_are_known(
    op: str, opset: int, inputs: list[str], attrs: dict[str, Any]
) -> None:
    made = proto(op, opset, inputs, **attrs)
    model = read(made)
    (found,) = model.graph.outputs
    assert (found.op, found.attr("factors")) == (op.lower(), (1, 1, 2, 3))
    feed = {"x": np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)}
    wanted, got = (Session(content).run(feed)[0] for content in (made.SerializeToString(), serialize(model)))
    assert np.array_equal(wanted, got)


def test_scales_that_an_input_may_replace_are_not_known() -> None:
    made = proto("Resize", 13, ["x", "", "s"], **NEAREST)
    made.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [4]))
    (found,) = read(made).graph.outputs
    assert found.op == "opaque"


def test_scales_that_are_no_whole_numbers_are_said() -> None:
    model = read(proto("Resize", 13, ["x", "", "s"], np.array([1, 1, 1.5, 2], np.float32), **NEAREST))
    (found,) = model.graph.outputs
    assert model.opaque[found] == "Resize by (1.0, 1.0, 1.5, 2.0)"
