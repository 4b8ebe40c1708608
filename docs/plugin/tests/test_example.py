"""Distances that are transposed are taken the other way round."""

import onnx
from onnx import TensorProto, helper

import taso_mirage


def test_a_transposed_distance_is_the_other_distance() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [40, 8]) for name in "xy")
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [40, 40])
    nodes = [
        helper.make_node("CDist", ["x", "y"], ["d"], domain="com.microsoft", metric="sqeuclidean"),
        helper.make_node("Transpose", ["d"], ["z"], perm=[1, 0]),
    ]
    graph = helper.make_graph(nodes, "distances", [x, y], [z])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    faster, result = taso_mirage.optimize(model, measure=False, kernels="off", return_result=True)
    assert [node.op_type for node in faster.graph.node] == ["CDist"]
    assert list(faster.graph.node[0].input) == ["y", "x"]
    assert all(difference.passed for difference in result.differences)
    onnx.checker.check_model(faster)
