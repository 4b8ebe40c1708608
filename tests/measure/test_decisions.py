"""The float64 reference takes from the runtime its decisions before the run, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from taso_mirage.errors import OutOfTime
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Tensor, constant, variable
from taso_mirage.measure import check, reference
from taso_mirage.measure.decisions import Decisions
from taso_mirage.measure.reference import FloatReference, OpaqueRunner
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term

ROWS = 31
"""Positions; at 10 and 20 the product with 0.1 is a whole number in single precision alone."""


def bucketed() -> Model:
    """Rows to which a table's row is added: that of the position's bucket."""
    proto = parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[n, 4] x) => (float[n, 4] y)
        <int64 zero = {0}, int64 one = {1}, float tenth = {0.1}>
        {
            sizes = Shape(x)
            count = Gather(sizes, zero)
            place = Range(zero, count, one)
            real = Cast<to = 1>(place)
            scaled = Mul(real, tenth)
            up = Ceil(scaled)
            bucket = Cast<to = 7>(up)
            row = Gather(table, bucket)
            y = Add(x, row)
        }""")
    table = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(table, "table"))
    onnx.checker.check_model(proto)
    return from_ir(from_proto(proto))


def apart(model: Model, inputs: dict[str, Any]) -> float:
    (found,), (exact,) = Session(serialize(model)).run(inputs), FloatReference(model)(inputs)
    return float(np.abs(found - exact).max())


def test_a_bucket_of_positions_is_the_one_that_the_runtime_chose() -> None:
    model, inputs = bucketed(), {"x": np.zeros((ROWS, 4), np.float32)}
    assert apart(model, inputs) < 1e-6
    decided = Decisions(model)(inputs, {"n": ROWS})
    (rows,) = decided.values()
    assert np.array_equal(rows[9], rows[10])
    assert not np.array_equal(rows[10], rows[11])


def test_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decisions, "__call__", lambda *_: {})
    assert apart(bucketed(), {"x": np.zeros((ROWS, 4), np.float32)}) > 0.1


def test_roundings_do_not_turn_it() -> None:
    model, inputs = bucketed(), {"x": np.ones((ROWS, 4), np.float32)}
    reference = FloatReference(model)(inputs)
    (resolution,) = check._resolution(model, inputs, reference)
    assert 1e-8 < resolution < 1e-5


def test_a_decision_on_inputs_is_never_taken_from_the_runtime() -> None:
    x = variable("x", Tensor("float32", (ROWS,)))
    up = term("ceil", term("mul", x, constant(0.1, "float32")))
    model = standalone(Graph((x,), (up,)), {"": 18})
    assert not Decisions(model).terms
    assert apart(model, {model.input_names[0]: np.arange(ROWS, dtype=np.float32)}) == 1.0


def test_what_is_near_float64_stays_there() -> None:
    """A sum of weights is computed in float64, as folding computes it."""
    x = variable("x", Tensor("float32", (3,)))
    tenth = term("exp", constant(0.1, "float32"))
    model = standalone(Graph((x,), (term("mul", x, tenth),)), {"": 18})
    assert Decisions(model).terms == (tenth,)
    assert not Decisions(model)({model.input_names[0]: np.ones(3, np.float32)}, {})


def opaque(text: str) -> Model:
    return from_ir(from_proto(parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')))


def test_an_operator_without_a_definition_runs_in_double_precision() -> None:
    model = opaque("g (float[n, 4] x, int64[2] s) => (float[a, b] y) { y = Expand(x, s) }")
    (node,) = model.graph.outputs
    assert node.op == "opaque"
    x = np.random.default_rng(1).normal(size=(1, 4))
    assert np.array_equal(OpaqueRunner(model)(node, [x, np.array([3, 4])]), np.broadcast_to(x, (3, 4)))


def test_where_the_runtime_has_none_of_it_operands_are_rounded() -> None:
    model = opaque("g (float[4, 4] x) => (float y) { y = Det(x) }")
    (node,) = model.graph.outputs
    assert node.op == "opaque"
    x = np.random.default_rng(1).normal(size=(4, 4))
    found = OpaqueRunner(model)(node, [x])
    assert found.dtype == np.float64
    assert 0 < abs(found - np.linalg.det(x)) < 1e-6


def test_nor_where_the_runtime_says_so_only_when_it_runs() -> None:
    """GRU is loaded in double precision, and its run is refused."""
    model = opaque("""g (float[s, 2, 3] x, float[1, 6, 3] w, float[1, 6, 2] r) => (float[s, 1, 2, 2] y)
        { y = GRU<hidden_size = 2>(x, w, r) }""")
    rng = np.random.default_rng(0)
    inputs = {
        n.attr("name"): rng.normal(size=s).astype(np.float32)
        for n, s in zip(model.graph.inputs, [(4, 2, 3), (1, 6, 3), (1, 6, 2)], strict=True)
    }
    (found,), (exact,) = Session(serialize(model)).run(inputs), FloatReference(model)(inputs)
    assert np.array_equal(found, exact)


def test_a_mask_of_infinities_has_a_resolution() -> None:
    x = variable("x", Tensor("float32", (3,)))
    masked = term("add", term("exp", x), constant(float("-inf"), "float32"))
    model = standalone(
        Graph((x,), (term("softmax", term("concat", masked, term("exp", x), axis=0), axis=0),)), {"": 18}
    )
    inputs = {model.input_names[0]: np.array([0.1, 0.2, 0.3], np.float32)}
    (found,) = check._resolution(model, inputs, FloatReference(model)(inputs))
    assert 0 < found < 1e-5


def test_an_operator_that_there_was_no_time_for_is_not_called_one_that_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = opaque("g (float[4, 4] x) => (float y) { y = Det(x) }")
    (node,) = model.graph.outputs

    def late(content: bytes) -> Session:
        raise OutOfTime("the time was over before ONNX Runtime had loaded or run a model")

    monkeypatch.setattr(reference, "Session", late)
    with pytest.raises(OutOfTime):
        OpaqueRunner(model)(node, [np.eye(4)])
