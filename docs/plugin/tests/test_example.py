"""Distances that are transposed are taken the other way round, and the kernel computes them."""

import numpy as np
import onnx
from onnx import TensorProto, helper

import taso_mirage
from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.ir.terms import Graph, Tensor, variable, weight
from taso_mirage.operators.ops import term


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


def test_the_kernel_computes_distances_from_known_rows() -> None:
    x, known_rows = variable("x", Tensor("float32", (9, 40))), weight("w", Tensor("float32", (150, 40)))
    node = term("cdist", x, known_rows)
    assert list(CPU_GOALS.candidates([x, known_rows, node], lambda node: [], lambda node: True, {})) == [[node]]
    w = variable("w", known_rows.tensor)
    goal = Graph((x, w), (term("cdist", x, w),))
    given = CPU_GOALS.prepared(goal, (x, known_rows))
    assert given is not None
    rows, known = (np.random.default_rng(0).normal(size=node.shape).astype(np.float32) for node in (x, w))
    wanted = np.sqrt(((rows[:, None].astype(np.float64) - known) ** 2).sum(-1))
    found = given.mugraphs(goal, CPU_DEVICE)
    assert len(found) == 3
    for each in found:
        (made,) = NativeKernel(each.graph)(rows, known)
        np.testing.assert_allclose(made, wanted, rtol=1e-5)
