"""Resize and Upsample whose scales are initializers, as exporters write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import read

from taso_mirage.meanings.reals import REALS
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.interpret import interpret

SCALES = np.array([1, 1, 2, 3], np.float32)
NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def proto(op: str, opset: int, inputs: list[str], scales: Any = SCALES, **attrs: Any) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 2, 3, 4]), ("y", None)))
    constants = [numpy_helper.from_array(scales, "s"), numpy_helper.from_array(np.zeros(0, np.float32), "roi")]
    graph = helper.make_graph([helper.make_node(op, inputs, ["y"], **attrs)], "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


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


MODES = [
    {"mode": "linear"},
    {"mode": "cubic"},
    {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
    {"mode": "nearest", "nearest_mode": "round_prefer_floor"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    {"mode": "nearest", "nearest_mode": "floor"},
    {"mode": "nearest", "nearest_mode": "ceil"},
]
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
SIZES = ((3, 4), (6, 8), (5, 7), (2, 3), (1, 1), (9, 2), (17, 13))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("attrs", MODES, ids=lambda attrs: "-".join(map(str, attrs.values())))
def test_every_mode_is_what_the_runtime_computes(attrs: dict[str, Any], coordinates: str) -> None:
    """By sizes and by scales; an operator that is not taken stays as it is, of exact type."""
    read_as = []
    for h, w in SIZES:
        for by_sizes in (True, False):
            scales = np.array([1, 1, h / 3, w / 4], np.float32)
            given = np.array([1, 2, h, w], np.int64) if by_sizes else scales
            inputs = ["x", "", "", "s"] if by_sizes else ["x", "", "s"]
            made = proto("Resize", 18, inputs, given, coordinate_transformation_mode=coordinates, **attrs)
            model = read(made)
            x = np.random.default_rng(h).normal(size=(1, 2, 3, 4)).astype(np.float32)
            wanted, written = (Session(c).run({"x": x})[0] for c in (made.SerializeToString(), serialize(model)))
            (found,) = model.graph.outputs
            assert found.shape == wanted.shape
            np.testing.assert_allclose(written, wanted, rtol=1e-6, atol=1e-6)
            if found.op != "opaque":
                ours = interpret(model.graph.outputs, REALS, dict.fromkeys(model.graph.inputs, x))[found]
                np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)
                read_as.append(found.op)
    assert len(read_as) >= (6 if attrs["mode"] == "nearest" else 10)


def test_a_resampling_to_its_own_size_is_nothing() -> None:
    """Segformer's, of the largest of its four images."""
    model = read(proto("Resize", 13, ["x", "", "", "s"], np.array([1, 2, 3, 4]), mode="linear"))
    (found,) = model.graph.outputs
    assert found.op == "input"


def test_a_coordinate_between_two_positions_is_left_to_the_runtime() -> None:
    """Single precision may take either of the two positions."""
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    model = read(proto("Resize", 13, ["x", "", "", "s"], np.array([1, 2, 5, 10]), **attrs))
    (found,) = model.graph.outputs
    assert "between two positions" in model.opaque[found] or "from 3 to 5" in model.opaque[found]
    assert str(found.type) == "float32[1, 2, 5, 10]"


def test_an_image_of_billions_of_rows_is_left_to_the_runtime() -> None:
    """Scales of a damaged file; a position of each row took minutes and all memory."""
    made = read(proto("Resize", 13, ["x", "", "s"], np.array([1, 1, 1e9, 1], np.float32), **NEAREST))
    assert "resample" not in [n.op for n in made.nodes()]
