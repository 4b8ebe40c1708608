"""Values of rank 0, for which numpy likes to give numbers: the runtime takes arrays alone."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

import taso_mirage
from taso_mirage.ir.model import StoredWeight
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io.originals import as_tensor
from taso_mirage.report.result import Result

DTYPES = (T.BOOL, T.FLOAT, T.DOUBLE, T.FLOAT16, T.INT8, T.INT16, T.INT32, T.INT64, T.UINT8, T.UINT32, T.UINT64)
value = helper.make_tensor_value_info


def proto(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: tuple[Any, ...] = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def either(source: str, dtype: int) -> onnx.NodeProto:
    """An If, which has no definition here: it gives a value of rank 0 that its bodies capture."""
    branches = {}
    for name in ("then_branch", "else_branch"):
        outputs = [value(name, dtype, [])]
        branches[name] = helper.make_graph([helper.make_node("Identity", [source], [name])], name, [], outputs)
    return helper.make_node("If", ["c"], ["u"], **branches)


def result(made: onnx.ModelProto, **options: Any) -> Result:
    found: Result = taso_mirage.optimize(made, measure=False, return_result=True, **options)[1]
    return found


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_and_results_of_every_dtype_go_through_an_opaque_node(dtype: int, given: bool) -> None:
    nodes = [either("v", dtype), helper.make_node("Relu", ["x"], ["y"])]
    inputs = [value("c", T.BOOL, []), value("v", dtype, []), value("x", T.FLOAT, [3])]
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype).type
    own = {"c": np.bool_(True), "v": numpy_type(1), "x": np.ones(3, np.float32)}
    made = proto(nodes, inputs, [value("u", dtype, []), value("y", T.FLOAT, [3])])
    assert len(result(made, inputs=[own] if given else []).cases) >= 3


SCALARS = {
    "sum": [("ReduceSum", ["x"], {"keepdims": 0})],
    "element": [("Gather", ["x", "zero"], {})],
    "dot": [("MatMul", ["x", "x"], {})],
    "norm": [("ReduceL2", ["x"], {"keepdims": 0})],
    "place": [("ArgMax", ["x"], {"keepdims": 0}), ("Cast", ["s0"], {"to": T.FLOAT})],
    "choice": [
        ("ReduceMax", ["x"], {"keepdims": 0}),
        ("Greater", ["s0", "two"], {}),
        ("Where", ["s1", "s0", "two"], {}),
    ],
    "functions": [
        ("ReduceMean", ["x"], {"keepdims": 0}),
        ("Abs", ["s0"], {}),
        ("Sqrt", ["s1"], {}),
        ("Clip", ["s2", "two"], {}),
    ],
    "rest": [("ReduceSum", ["x"], {"keepdims": 0}), ("Mod", ["s0", "two"], {"fmod": 1})],
}


@pytest.mark.parametrize("made", SCALARS)
def test_results_of_operators_go_into_an_opaque_node(made: str) -> None:
    steps = SCALARS[made]
    names = [f"s{i}" for i in range(len(steps) - 1)] + ["s"]
    nodes = [helper.make_node(op, args, [name], **attrs) for (op, args, attrs), name in zip(steps, names, strict=True)]
    nodes += [helper.make_node("Greater", ["s", "two"], ["c"]), either("s", T.FLOAT)]
    nodes += [helper.make_node("Mul", ["u", "s"], ["y"])]
    constants = (helper.make_tensor("zero", T.INT64, [], [0]), helper.make_tensor("two", T.FLOAT, [], [2]))
    found = result(proto(nodes, [value("x", T.FLOAT, [3])], [value("y", T.FLOAT, [])], constants))
    assert len(found.cases) == 3


def test_a_float_is_drawn_beside_the_given_one() -> None:
    nodes = [helper.make_node("Mul", ["x", "k"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    made = proto(nodes, [value("x", T.FLOAT, [3]), value("k", T.FLOAT, [])], [value("y", T.FLOAT, [3])])
    found = result(made, inputs=[{"x": np.ones(3, np.float32), "k": np.array(2, np.float32)}])
    assert [case.name for case in found.cases][1:] == [f"random inputs {i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("number", [np.float32(2), np.float16(2), np.bool_(True), np.int8(2), np.uint64(2)])
def test_a_session_takes_numbers_in_runs_and_timings(number: Any) -> None:
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(number.dtype))
    made = proto([helper.make_node("Identity", ["k"], ["y"])], [value("k", dtype, [])], [value("y", dtype, [])])
    session = Session(made.SerializeToString())
    assert session.run({"k": number})[0] == number
    assert session.prepared({"k": number})() > 0
    assert session.bound({"k": number})() > 0


def test_a_number_of_few_bits_is_an_array() -> None:
    from taso_mirage.measure.session import fed

    found = fed({"k": ml_dtypes.bfloat16(2), "s": [np.float32(1)]})
    assert isinstance(found["k"], np.ndarray)
    assert found["k"].dtype == ml_dtypes.bfloat16
    assert found["s"] == [1.0]


def test_a_weight_of_rank_0_that_was_computed_is_written_so() -> None:
    """numpy's `ascontiguousarray` makes a vector of it, which quantized operators refuse."""
    assert as_tensor(StoredWeight(np.asarray(3, np.uint8))).shape.numpy() == ()
