"""Local functions with something wrong: one line, and the exit code of an invalid model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from commandline import one_line, run
from onnx import helper, numpy_helper
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

import taso_mirage
from taso_mirage.errors import InvalidModel

QUICK = ("--no-measure", "--kernels", "off", "--budget", "0")
Node = onnx.NodeProto
node = helper.make_node


def function(
    nodes: Sequence[Node], inputs: Sequence[str] = ("a",), outputs: Sequence[str] = ("b",), name: str = "F"
) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs, outputs, nodes, opsets)


def calling(*functions: onnx.FunctionProto, inputs: Sequence[str] = ("x",)) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy")
    nodes = [node("Relu", ["x"], ["r"]), node("F", list(inputs), ["y"], domain="local")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


def body(output: str, used: str) -> onnx.GraphProto:
    info = helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)
    return helper.make_graph([node("Relu", [used], [output])], "body", [], [info])


def branching(then: str) -> Node:
    return node("If", ["c"], ["b"], then_branch=body("t", then), else_branch=body("e", "a"))


RELU = node("Relu", ["a"], ["b"])
BAD = {
    "undefined": (calling(function([node("Add", ["a", "z"], ["b"])])), "uses the value 'z'"),
    "undefined in a body": (calling(function([branching("z")], ("a", "c")), inputs="xx"), "uses the value 'z'"),
    "of the caller": (calling(function([node("Add", ["a", "r"], ["b"])])), "uses the value 'r'"),
    "of the caller in a body": (calling(function([branching("r")], ("a", "c")), inputs="xx"), "uses the value 'r'"),
    "not called": (calling(function([RELU]), function([node("Relu", ["z"], ["b"])], name="G")), "local::G uses"),
    "too early": (
        calling(function([node("Neg", ["t"], ["b"]), node("Abs", ["a"], ["t"])])),
        "'t', which nothing in it",
    ),
    "a circle": (calling(function([node("Neg", ["t"], ["b"]), node("Abs", ["b"], ["t"])])), "'t', which nothing in it"),
    "optional and undefined": (calling(function([node("Clip", ["a", "", "z"], ["b"])])), "uses the value 'z'"),
    "no output": (calling(function([RELU], outputs=["q"])), "'q'"),
    "twice": (calling(function([RELU]), function([node("Neg", ["a"], ["b"])])), "two functions are called local::F"),
    "inputs of one name": (calling(function([RELU], ("a", "a")), inputs="xr"), "of the same name, or of none"),
    "outputs of one name": (calling(function([RELU], outputs=("b", "b"))), "of the same name, or of none"),
    "an input without a name": (calling(function([RELU], ("",))), "of the same name, or of none"),
    "redefined": (calling(function([RELU, node("Neg", ["a"], ["b"])])), "'b'"),
    "of itself": (calling(function([node("F", ["a"], ["b"], domain="local")])), "calls itself"),
}


@pytest.mark.parametrize(("model", "said"), BAD.values(), ids=BAD.keys())
def test_a_wrong_function_is_an_invalid_model(tmp_path: Path, model: onnx.ModelProto, said: str) -> None:
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    for command in (["optimize", *QUICK], ["inspect"], ["kernels", "--budget", "0"]):
        assert said in one_line(run(command[0], tmp_path / "m.onnx", *command[1:], check=3))
    with pytest.raises(InvalidModel, match=said.replace("(", r"\(")):
        taso_mirage.optimize(model, measure=False, kernels="off")


def test_right_ones_with_bodies_are_read(tmp_path: Path) -> None:
    uses = function([node("Relu", ["a"], ["r"]), node("Cast", ["c"], ["d"], to=onnx.TensorProto.BOOL), branching("r")])
    uses.input.append("c")
    uses.node[-1].input[0] = "d"
    model = calling(uses, inputs=("x", "one"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    made = taso_mirage.optimize(model, measure=False, kernels="off")
    found = [InferenceSession(m.SerializeToString()).run(None, {"x": x})[0] for m in (model, made)]
    np.testing.assert_array_equal(*found)


# ---------------------------------------------------------------- valid ones that the runtime's optimizations break


def broken_by_optimization(first: Node, more: bool) -> onnx.ModelProto:
    """A node without effect, and then a product with a quotient that is one."""
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy")
    nodes = [first, node("Div", ["one", "one"], ["f"]), node("Mul", ["mid", "f"], ["w" if more else "y"])]
    nodes += [node("Tanh", ["w"], ["y"])] if more else []
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.float32(1), "one")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("options", [("--budget", "4"), QUICK, ("--budget", "3", "--kernels", "off")])
@pytest.mark.parametrize(("op", "attributes"), [("Cast", {"to": 1}), ("Dropout", {}), ("Identity", {})])
def test_an_original_that_loads_only_without_optimizations(
    tmp_path: Path, op: str, attributes: dict[str, int], options: Sequence[str], more: bool
) -> None:
    """The original is compared without optimizations, and the written model loads with them."""
    model = broken_by_optimization(node(op, ["x"], ["mid"], **attributes), more)
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    with pytest.raises(Exception, match="not a graph input"):
        InferenceSession(content)
    (tmp_path / "m.onnx").write_bytes(content)
    done = run("optimize", tmp_path / "m.onnx", *options, "-o", tmp_path / "out.onnx")
    assert "own optimizations break the original" in " ".join(done.stdout.split())
    plain = SessionOptions()
    plain.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    wanted = InferenceSession(content, plain).run(None, {"x": x})[0]
    np.testing.assert_allclose(InferenceSession(tmp_path / "out.onnx").run(None, {"x": x})[0], wanted, rtol=1e-6)
    assert run("diff", tmp_path / "m.onnx", tmp_path / "out.onnx").returncode == 0
