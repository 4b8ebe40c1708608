"""Models that list their weights among their inputs, as old exporters and simplifiers do: a caller
may replace them, or say that nobody does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from commandline import result_of, run
from onnx import TensorProto, helper, numpy_helper

from taso_mirage import optimize
from taso_mirage.ir.model import random_inputs
from taso_mirage.onnx_io import load, serialize
from taso_mirage.onnx_io.defaults import with_fixed_defaults

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.normal(size=(4, 3, 3, 3)).astype(np.float32),
    "scale": RNG.uniform(0.5, 2, (4, 1, 1)).astype(np.float32),
    "shape": np.array([2, 8, -1], np.int64),
}
COMMAND = ("--json", "--budget", "0", "--no-measure", "--kernels", "off")


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A convolution, its scale, and a Reshape, whose weights and shape are inputs, too."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "scale"], ["b"]),
        helper.make_node("Reshape", ["b", "shape"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])]
    for name, value in WEIGHTS.items():
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    tensors = [numpy_helper.from_array(value, name) for name, value in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    path = tmp_path / "listed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6), path)
    return path


def outputs(path: Path, **given: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.ones((1, 3, 6, 6), np.float32), **given})[0]


def test_what_a_caller_leaves_out_is_not_made_up(listed: Path) -> None:
    """A shape of zeros and ones would not run."""
    inputs = random_inputs(load(listed), 1)
    assert {name: value.tolist() for name, value in inputs.items() if name != "x"} == {
        name: value.tolist() for name, value in WEIGHTS.items()
    }


def test_a_caller_may_still_replace_them(listed: Path, tmp_path: Path) -> None:
    done = tmp_path / "done.onnx"
    said = result_of(run("optimize", listed, "-o", done, *COMMAND))
    assert any("3 of 4 inputs have an initializer as their default" in note for note in said["notes"])
    assert [i.name for i in onnx.load(done).graph.input] == ["x", *WEIGHTS]
    other = {"scale": np.full((4, 1, 1), 3, np.float32)}
    np.testing.assert_allclose(outputs(done, **other), outputs(listed, **other), rtol=1e-5, atol=1e-5)


def test_where_nobody_does_they_are_weights(listed: Path, tmp_path: Path) -> None:
    """The scale goes into the kernel."""
    done = tmp_path / "done.onnx"
    said = result_of(run("optimize", listed, "-o", done, *COMMAND, "--fix-defaults"))
    assert not any("have an initializer as their default" in note for note in said["notes"])
    made = onnx.load(done)
    assert [i.name for i in made.graph.input] == ["x"]
    assert [n.op_type for n in made.graph.node] == ["Conv", "Reshape"]
    np.testing.assert_allclose(outputs(done), outputs(listed), rtol=1e-5, atol=1e-5)


def test_fixed_alone_is_a_change(tmp_path: Path) -> None:
    """The runtime computes ahead of weights, and of no inputs."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2]) for n in "xw"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
        [numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    fixed = optimize(made, budget=0.0, measure=False, fix_defaults=True)
    assert [i.name for i in fixed.graph.input] == ["x"]
    kept = optimize(made, budget=0.0, measure=False)
    assert kept == made


def test_the_original_stays_what_the_user_runs(listed: Path) -> None:
    model = with_fixed_defaults(load(listed))
    assert model.input_names == ("x",)
    assert {"w", "scale"} <= model.weights.keys()
    original = onnx.ModelProto.FromString(serialize(model, source=True))
    assert [i.name for i in original.graph.input] == ["x", *WEIGHTS]


def test_a_user_may_give_some_of_them(listed: Path, tmp_path: Path) -> None:
    file = tmp_path / "inputs.npz"
    np.savez(file, x=np.ones((1, 3, 6, 6), np.float32), scale=np.ones((4, 1, 1), np.float32))
    result_of(run("optimize", listed, "-o", tmp_path / "done.onnx", *COMMAND, "--inputs", file))
