"""A rewrite after which the runtime crashes or refuses the model is left out, as if it was slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper, numpy_helper

from taso_mirage.errors import RunRefused, RuntimeCrashed, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.measure import session as runtime
from taso_mirage.onnx_io import from_ir, serialize
from taso_mirage.pipeline import optimize_model
from taso_mirage.search.config import Config

Opened = Callable[..., Any]


def mergeable() -> Model:
    """Two rewrites apply: two transposes cancel, and the constants of two sums become one."""
    weights = {name: np.full(4, 0.5, np.float32) for name in "vw"}
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[1, 0]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
        helper.make_node("Add", ["b", "v"], ["c"]),
        helper.make_node("Add", ["c", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return from_ir(onnx_ir.from_proto(model))


CRASH = RuntimeCrashed("ONNX Runtime's process ended (SIGSEGV)")
REFUSAL = RunRefused("ONNX Runtime cannot load the model: no kernel")


def crashing(patch: pytest.MonkeyPatch, where: Callable[[Model], bool], error: TasoMirageError = CRASH) -> None:
    """Let the runtime crash on the models that `where` names, or refuse them."""
    opened: Opened = runtime.open_in_child

    def faulty(model: Model, *args: Any, **options: Any) -> Any:
        if not options.get("source") and where(model):
            raise error
        return opened(model, *args, **options)

    patch.setattr(runtime, "open_in_child", faulty)


QUICK = Config(measure=False, budget=1)


def operators(model: Model) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(serialize(model)).graph.node]


def test_without_a_crash_both_rewrites_apply() -> None:
    assert operators(optimize_model(mergeable(), QUICK).model) == ["Add"]


@pytest.mark.parametrize("error", [CRASH, REFUSAL])
def test_a_rewrite_that_crashes_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch, error: TasoMirageError) -> None:
    crashing(monkeypatch, lambda model: operators(model).count("Add") < 2, error)
    result = optimize_model(mergeable(), QUICK)
    assert operators(result.model) == ["Add", "Add"]
    assert any("that rewrite is left out" in note for note in result.notes)


def test_where_every_rewrite_crashes_the_model_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    crashing(monkeypatch, lambda model: len(operators(model)) < 4)
    result = optimize_model(mergeable(), QUICK)
    assert not result.changed
    assert operators(result.model) == ["Transpose", "Transpose", "Add", "Add"]


@pytest.mark.parametrize("perm", [(1, 2, 0, 3), (1, 2, 3, 0)])
def test_half_precision_transposes_before_products(perm: tuple[int, ...]) -> None:
    """ONNX Runtime 1.31.1 ends in a segmentation fault on some of them: the result is one that it
    runs."""
    shape = (2, 3, 4, 5)
    turned = [shape[i] for i in perm]
    product = np.ones((turned[-1], 6), np.float16)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=perm),
        helper.make_node("Add", ["t", "t"], ["u"]),
        helper.make_node("MatMul", ["u", "w"], ["y"]),
    ]
    half = onnx.TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", half, shape)],
        [helper.make_tensor_value_info("y", half, [*turned[:-1], 6])],
        [numpy_helper.from_array(product, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    result = optimize_model(from_ir(onnx_ir.from_proto(proto)), QUICK)
    assert runtime.open_in_child(result.model).run({"x": np.ones(shape, np.float16)})[0].shape == (*turned[:-1], 6)
