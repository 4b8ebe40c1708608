"""Models of ONNX's domain for classical machine learning: types that no exporter declares, against
ONNX Runtime, and features that are scaled before a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from opaque_types import misfit, opaque
from small_models import ops

from taso_mirage.onnx_io import from_proto, serialize
from taso_mirage.onnx_io.read import from_ir
from taso_mirage.pipeline import optimize_model
from taso_mirage.search.config import Config

ROWS = np.array([[1, 2, 3], [0, 2, 5]], np.float32)
TREE = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
LEAVES = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, 1], "weights": [1.0, 1.0]}
CLASSES: dict[str, Any] = {f"class_{name}": values for name, values in LEAVES.items()}
TARGETS: dict[str, Any] = {f"target_{name}": values for name, values in LEAVES.items()}
NODES: dict[str, dict[str, Any]] = {
    "Scaler": {"offset": [1.0, 2, 3], "scale": [0.5, 2, 4]},
    "Normalizer": {"norm": "L2"},
    "Imputer": {"imputed_value_floats": [1.0], "replaced_value_float": 0.0},
    "Binarizer": {"threshold": 1.0},
    "OneHotEncoder": {"cats_int64s": [1, 2, 3, 4]},
    "FeatureVectorizer": {"inputdimensions": [3]},
    "LabelEncoder": {"keys_floats": [1.0], "values_strings": ["a"]},
    "LinearRegressor": {"coefficients": [1.0] * 6, "intercepts": [0.5, 1], "targets": 2},
    "LinearClassifier": {"coefficients": [1.0] * 3, "intercepts": [0.5], "classlabels_ints": [0, 1]},
    "TreeEnsembleRegressor": {**TREE, **TARGETS, "n_targets": 2},
    "TreeEnsembleClassifier": {**TREE, **CLASSES, "classlabels_strings": ["a", "b"]},
    "SVMRegressor": {
        "coefficients": [1.0, 2, 3],
        "rho": [0.5],
        "kernel_type": "LINEAR",
        "kernel_params": [0.0, 0, 0],
        "n_supports": 0,
    },
}


def alone(op_type: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    names = ["label", "scores"] if op_type.endswith("Classifier") else ["y"]
    node = helper.make_node(op_type, ["x"], names, domain="ai.onnx.ml", **NODES[op_type])
    return around([node], shape, names)


def around(nodes: list[onnx.NodeProto], shape: tuple[Any, ...], results: list[str], **weights: Any) -> onnx.ModelProto:
    """A model that declares nothing of its results, as scikit-learn's converter writes it."""
    outputs = [onnx.ValueInfoProto(name=name) for name in results]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(proto: onnx.ModelProto | bytes, x: np.ndarray) -> list[Any]:
    content = proto if isinstance(proto, bytes) else proto.SerializeToString()
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"x": x})


@pytest.mark.parametrize(
    ("op_type", "rank"), [(op, rank) for op in NODES for rank in (1, 2) if rank == 2 or "Tree" not in op]
)
def test_rules_give_the_runtimes_types(op_type: str, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ROWS if rank == 2 else ROWS[0]
    proto = alone(op_type, x.shape)
    found = zip(opaque(proto, monkeypatch), run(proto, x), strict=True)
    assert [misfit(type, array) for type, array in found if type.dtype != "string"] == [None] * (
        len(proto.graph.output) - (op_type in ("LabelEncoder", "TreeEnsembleClassifier"))
    )


def test_texts_have_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    for op_type, shape in (("LabelEncoder", (2, 3)), ("TreeEnsembleClassifier", (2,))):
        first, *_ = opaque(alone(op_type, (2, 3)), monkeypatch)
        assert (first.dtype, first.shape) == ("string", shape)


@pytest.mark.parametrize(("offset", "scale"), [([1.0, 2, 3], [0.5, 2, 4]), ([1.5], [0.25])])
def test_a_scaler_goes_into_the_layer_behind_it(offset: list[float], scale: list[float]) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=offset, scale=scale),
        helper.make_node("Cast", ["scaled"], ["same"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["same", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    w, b = (rng.normal(size=size).astype(np.float32) for size in ((3, 4), (4,)))
    proto = around(nodes, ("n", 3), ["y"], w=w, b=b)
    result = optimize_model(from_ir(from_proto(proto)), Config(budget=0.0, measure=False))
    assert result.failure is None
    assert ops(result.model.graph.outputs) == ["gemm", "relu"]
    np.testing.assert_allclose(run(serialize(result.model), ROWS)[0], run(proto, ROWS)[0], rtol=1e-5, atol=1e-5)


def test_a_scaler_of_other_numbers_stays() -> None:
    """The runtime computes it in single precision, whatever it is given."""
    proto = alone("Scaler", (2, 3))
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    (output,) = from_ir(from_proto(proto)).graph.outputs
    assert (output.op, output.dtype, output.shape) == ("opaque", "float32", (2, 3))
