"""Runs of a session on a GPU: captured as a CUDA graph, or plainly where none can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from taso_mirage.errors import RunFailed
from taso_mirage.measure.session import Session, working_providers
from taso_mirage.measure.target import CUDA
from taso_mirage.targets.cuda import session


class Binding:
    def bind_input(self, *where: Any) -> None: ...

    bind_output = bind_input

    def synchronize_inputs(self) -> None: ...


class Runtime:
    """A session of ONNX Runtime: runs that are captured fail, or all do."""

    def __init__(self, plain: bool) -> None:
        self.plain, self.runs = plain, list[str]()

    def io_binding(self) -> Binding:
        return Binding()

    def get_outputs(self) -> list[Any]:
        return []

    def run_with_iobinding(self, binding: Binding, options: str) -> None:
        self.runs.append(options)
        if options != session.PLAIN or not self.plain:
            raise RuntimeError("CUDA failure 901: operation failed due to a previous error during capture")


@pytest.mark.parametrize("plain", [True, False])
def test_what_cannot_be_captured_runs_plainly(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(plain)
    monkeypatch.setattr(session, "load_libraries", lambda: None)
    monkeypatch.setattr(session, "check_provider", lambda *given: None)
    monkeypatch.setattr(session, "inference_session", lambda *given: runtime)
    monkeypatch.setattr(session, "run_session", lambda *given: [])
    monkeypatch.setattr(session, "graph_run", lambda annotation: annotation)
    opened = session.CudaSession(b"", {}, True, {})
    if not plain:
        with pytest.raises(RunFailed, match="CUDA failure 901"):
            opened.bound({})
        return
    assert opened.bound({})() > 0
    assert runtime.runs == ["1", *[session.PLAIN] * 4]


@pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")
def test_a_result_that_hangs_on_no_input_runs_on_the_gpu() -> None:
    zeros = helper.make_tensor("zeros", TensorProto.FLOAT, [4, 1], [0.0] * 4)
    shapes = {"x": [4, 8], "y": [4, 1], "z": [4, 8]}
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    nodes = [helper.make_node("Identity", ["zeros"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y, z], [zeros]), ir_version=10, opset_imports=[helper.make_opsetid("", 21)]
    )
    opened = Session(made.SerializeToString(), CUDA)
    given = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    assert opened.bound({"x": given})() > 0
    got = opened.run({"x": given})
    np.testing.assert_array_equal(got[0], np.zeros((4, 1)))
    np.testing.assert_array_equal(got[1], np.maximum(given, 0))
