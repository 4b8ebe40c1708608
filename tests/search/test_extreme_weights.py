"""Products of weights that single or double precision does not hold: computed ahead they would be
infinite or zero, where the model's own order of operations is neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import taso_mirage
from taso_mirage.ir.model import StoredWeight
from taso_mirage.ir.terms import Graph, Tensor, variable, weight
from taso_mirage.measure.target import CPU
from taso_mirage.onnx_io import from_ir, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.search import passes
from taso_mirage.search.passes import Context
from taso_mirage.search.rewriter import Rewriter

ROUNDS = '<ir_version: 8, opset_import: ["": 17]> g ({d}[4] x) => ({d}[4] y) {{ a = {op}(x, c)  y = {op}(a, d) }}'
CASES: dict[str, tuple[str, str, Any, Any, Any]] = {
    "a product that vanishes": ("Mul", "float", 1e-30, 1e-30, [1e38, -1e35, 1e30, 1.0]),
    "a divisor that vanishes": ("Div", "float", 1e-30, 1e-30, [1e-38, -1e-35, 0.0, 1e-37]),
    "a product that is infinite": ("Mul", "float", 1e30, 1e30, [1e-38, -1e-35, 0.0, 1e-37]),
    "a sum that is infinite": ("Add", "float", 3e38, 3e38, [-3e38, -3.2e38, -3.4e38, -3.1e38]),
    "a subnormal product": ("Mul", "float", 1e-20, 3e-20, [1e38, -1e35, 1e30, 1e20]),
    "one number of a vector": ("Mul", "float", [1, 1, 1e-30, 1], [2, 2, 1e-30, 2], [1.0, 2.0, 1e38, 4.0]),
    "doubles that vanish": ("Mul", "double", 1e-200, 1e-200, [1e300, -1e250, 1e200, 1.0]),
    "doubles that are infinite": ("Mul", "double", 1e200, 1e200, [1e-300, -1e-250, 0.0, 1e-301]),
}


def model(op: str, dtype: str, first: Any, second: Any) -> onnx.ModelProto:
    """Two operations in turn with weights."""
    made = onnx.parser.parse_model(ROUNDS.format(op=op, d=dtype))
    as_is = np.float32 if dtype == "float" else np.float64
    made.graph.initializer.extend(numpy_helper.from_array(as_is(a), n) for n, a in (("c", first), ("d", second)))
    return made


def output(proto: onnx.ModelProto, x: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("name", CASES)
def test_weights_are_not_combined_to_numbers_that_their_dtype_does_not_hold(name: str) -> None:
    op, dtype, first, second, numbers = CASES[name]
    original = model(op, dtype, first, second)
    optimized = taso_mirage.optimize(original, measure=False, kernels="off", budget=5)
    x = np.array(numbers, np.float32 if dtype == "float" else np.float64)
    expected = output(original, x)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(output(optimized, x), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_usual_weights_are_combined(dtype: str) -> None:
    optimized = taso_mirage.optimize(model("Mul", dtype, 1e-3, 1e4), measure=False, kernels="off", budget=5)
    assert [node.op_type for node in optimized.graph.node] == ["Mul"]


def context(**weights: Any) -> Context:
    return replace(Context({"": 17}, {}), weights={name: StoredWeight(each) for name, each in weights.items()})


def leaf(name: str, array: Any) -> Any:
    return weight(name, Tensor(array.dtype.name, array.shape))


def test_a_large_weight_of_usual_numbers_is_not_multiplied_to_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "dtype_holds", lambda *_: False)
    w, s = np.full((512, 256), 1e-3, np.float32), np.full(256, 5.0, np.float32)
    product = term("mul", leaf("w", w), leaf("s", s))
    assert context(w=w, s=s).legal(product)
    assert not context(w=w, s=1e20 * s).legal(product)


def test_a_large_weight_of_extreme_numbers_may_hold() -> None:
    """A mask of the lowest numbers is scaled, and must not be added twice."""
    low, half = np.full((512, 256), -3e38, np.float32), np.full(256, 0.5, np.float32)
    known = context(low=low, half=half)
    assert known.legal(term("mul", leaf("low", low), leaf("half", half)))
    assert not known.legal(term("add", leaf("low", low), leaf("low", low)))


@pytest.mark.parametrize("special", [-np.inf, np.inf, np.nan, 1e-40])
def test_weights_that_are_special_before_stay_so(special: float) -> None:
    w, s = np.array([special, 1.0], np.float32), np.array([0.3, 0.3], np.float32)
    assert context(w=w, s=s).legal(term("mul", leaf("w", w), leaf("s", s)))


def test_the_result_of_a_search_is_looked_at_with_the_values_of_weights() -> None:
    """A part is searched without them."""
    small = np.full(4, 1e-30, np.float32)
    s, x = leaf("s", small), variable("x", Tensor("float32", (4,)))
    before = term("mul", term("mul", x, s), s)
    asked = from_ir(to_ir(standalone(Graph((x,), (before,)), {"": 17}, {"s": StoredWeight(small)})))
    rewriter = Rewriter(asked, CPU, [({}, 1.0)], (), {"s": StoredWeight(small)}, None)
    assert rewriter.context.legal(term("mul", s, s))
    assert rewriter._spoils((before,), (term("mul", x, term("mul", s, s)),))
    assert not rewriter._spoils((before,), (term("mul", s, term("mul", x, s)),))
