"""Operators before there was one of their name: written as nodes of which the runtime makes one,
and read from exporters' files, so that no rewrite beside them takes them apart."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from small_models import F, ops, w, x

from taso_mirage.errors import Unsupported
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, topological, variable
from taso_mirage.meanings.reals import REALS
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get, term
from taso_mirage.search.passes import Context, pass_order, simplify
from taso_mirage.search.rulesets import rules

NORMS = {
    "gelu": (term("gelu", x(2, 3, 8)), {"Gelu"}, {"Gelu"}),
    "layer_norm": (
        term("layer_norm", x(2, 3, 8), w(8, name="g"), w(8, name="o"), axis=2, epsilon=1e-3),
        {"LayerNormalization"},
        {"LayerNormalization"},
    ),
    "rms_norm": (
        term("rms_norm", x(2, 3, 8), w(8, name="g"), axis=2, epsilon=1e-3),
        {"RMSNormalization"},
        {"SimplifiedLayerNormalization", "RMSNormalization"},
    ),
}
"""A term, its ONNX operator, and the runtime's node for it."""


def written(root: Node, opset: int) -> tuple[Model, bytes]:
    leaves = [n for n in topological([root]) if n.op == "weight"]
    rng = np.random.default_rng(0)
    values = {n.attr("name"): StoredWeight(rng.normal(size=n.shape).astype(np.float32)) for n in leaves}
    inputs = tuple(n for n in topological([root]) if n.op == "input")
    made = standalone(Graph(inputs, (root,)), {"": opset}, values)
    return made, serialize(made)


def nodes_of_the_runtime(data: bytes, folder: Path) -> list[str]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "runtime.onnx")
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "runtime.onnx").graph.node]


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 20, 23])
@pytest.mark.parametrize("name", NORMS)
def test_an_operator_is_written_at_every_opset_and_is_one_node_in_the_runtime(
    name: str, opset: int, tmp_path: Path
) -> None:
    root, own, made = NORMS[name]
    model, data = written(root, opset)
    there = {node.op_type for node in onnx.load_model_from_string(data).graph.node}
    assert (there == own) == (opset >= {"gelu": 20, "layer_norm": 17, "rms_norm": 23}[name])
    (found,) = nodes_of_the_runtime(data, tmp_path)
    assert found in made
    data_in = np.random.default_rng(1).normal(size=(2, 3, 8)).astype(np.float32)
    values = {"x": data_in, **{k: v.numpy() for k, v in model.weights.items()}}
    leaves = {n: values[n.attr("name")].astype(np.float64) for n in topological([root]) if n.op in ("input", "weight")}
    (result,) = onnxruntime.InferenceSession(data).run(None, {"x": data_in})
    np.testing.assert_allclose(result, interpret([root], REALS, leaves)[root], atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16"])
def test_other_dtypes_have_the_operators_only_where_onnx_has_them(dtype: str) -> None:
    half = variable("x", Tensor(dtype, (2, 8)))
    for root, opset in (
        (term("gelu", half), 20),
        (term("gelu", x(2, 8), approximate="tanh"), 20),
        (term("rms_norm", half, variable("g", Tensor(dtype, (8,))), axis=1), 23),
        (term("layer_norm", half, variable("g", Tensor(dtype, (8,))), axis=1), 17),
    ):
        assert get(root.op).to_onnx(root, opset).op_type == get(root.op).onnx
        if root.op != "gelu":  # of a norm ONNX says in which dtype it is computed
            widened = [n.dtype for n in topological(get(root.op).to_onnx(root, opset - 1).args) if n.op == "sqrt"]
            assert widened == ["float32"]
            continue
        with pytest.raises(Unsupported):
            get(root.op).to_onnx(root, opset - 1)


def exported_gelu(a: Node, form: str) -> Node:
    root, half, one = constant(math.sqrt(2), F), constant(0.5, F), constant(1.0, F)
    tail = term("add", term("erf", term("div", a, root)), one)
    if form == "half of x":
        return term("mul", term("mul", a, half), tail)
    if form == "half of the rest":
        return term("mul", a, term("mul", tail, half))
    return term("mul", term("mul", a, tail), half)


def exported_norm(a: Node, form: str) -> Node:
    square = term("reduce_mean", term("pow", a, constant(2.0, F)), axes=(2,))
    deviation = term("sqrt", term("add", square, constant(1e-3, F)))
    if form == "quotient":
        return term("mul", term("div", a, deviation), w(8, name="g"))
    over = term("reciprocal", deviation) if form == "reciprocal" else term("div", constant(1.0, F), deviation)
    return term("mul", w(8, name="g"), term("mul", a, over))


@pytest.mark.parametrize("form", ["half of x", "half of the rest", "half of all"])
def test_a_gelu_by_a_quotient_is_one_term_and_keeps_its_half(form: str) -> None:
    """The half would go into the weight of the product behind it, and the runtime would make no
    Gelu of the rest."""
    root = term("matmul", exported_gelu(term("add", x(2, 3, 8), w(8, name="b")), form), w(8, 8))
    standard = pass_order(rules())[0]
    found, _ = simplify((root,), standard, Context({"": 17}, {}))
    assert ops(found) == ["add", "gelu", "matmul"]


@pytest.mark.parametrize("form", ["quotient", "reciprocal", "one over"])
def test_a_norm_keeps_its_scale(form: str) -> None:
    root = term("matmul", exported_norm(x(2, 3, 8), form), w(8, 8))
    standard = pass_order(rules())[0]
    found, _ = simplify((root,), standard, Context({"": 17}, {}))
    assert ops(found) == ["matmul", "rms_norm"]
