"""Sequences, optional values and texts pass through whole models untouched, and the terms around
them are optimized and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from protos import F, V, map_given, proto, sequence_given

import taso_mirage
from taso_mirage.errors import InvalidOption


def twice_negated(name: str) -> list[onnx.NodeProto]:
    """A pair of nodes that is removed: its value is then called `NAME_same`."""
    return [h.make_node("Neg", [name], [f"{name}_less"]), h.make_node("Neg", [f"{name}_less"], [f"{name}_same"])]


def around(first: str, between: list[onnx.NodeProto], last: str, outputs: list[Any], **weights: Any) -> onnx.ModelProto:
    """Operators that go away, something that is no tensor of numbers, and more that goes away."""
    nodes = [*twice_negated(first), *between, *twice_negated(last), h.make_node("Tanh", [f"{last}_same"], ["y"])]
    made = proto(nodes, [V("x", F, ["n", 4])], [V("y", F, None), *outputs], **weights)
    made.graph.value_info.append(V(last, F, ["n", 4]))  # as exporters write it
    made.opset_import[0].version = 19  # the first in which texts are compared
    return made


AROUND = {
    "a sequence": around(
        "x",
        [
            h.make_node("Exp", ["x"], ["z"]),
            h.make_node("SequenceConstruct", ["x_same", "z"], ["s"]),
            h.make_node("SequenceInsert", ["s", "z", "one"], ["longer"]),
            h.make_node("SequenceAt", ["longer", "one"], ["a"]),
        ],
        "a",
        [h.make_tensor_sequence_value_info("longer", F, None)],
        one=np.array(1),
    ),
    "an optional value": around(
        "x",
        [
            h.make_node("Optional", ["x_same"], ["o"]),
            h.make_node("OptionalHasElement", ["o"], ["there"]),
            h.make_node("OptionalGetElement", ["o"], ["a"]),
        ],
        "a",
        [V("there", T.BOOL, [])],
    ),
    "texts": around(
        "x",
        [
            h.make_node("ArgMax", ["x_same"], ["best"], axis=1, keepdims=0),
            h.make_node("Gather", ["labels", "best"], ["named"]),
            h.make_node("Equal", ["named", "second"], ["hit"]),
            h.make_node("Unsqueeze", ["hit", "one"], ["column"]),
            h.make_node("Where", ["column", "x", "zero"], ["a"]),
        ],
        "a",
        [V("named", T.STRING, ["n"])],
        labels=np.array(["a", "b", "\u00e9", ""], object),
        second=np.array("b", object),
        one=np.array([1]),
        zero=np.array(0, np.float32),
    ),
}


@pytest.mark.parametrize("what", AROUND)
def test_what_is_around_values_that_are_no_numbers_is_optimized_and_checked(what: str) -> None:
    made = AROUND[what]
    after, result = taso_mirage.optimize(made, return_result=True, measure=False, budget=2.0)
    assert result.changed, result.notes
    kinds = [n.op_type for n in after.graph.node]
    assert "Neg" not in kinds
    assert sorted(kinds) == sorted(n.op_type for n in made.graph.node if n.op_type != "Neg")
    assert {d.output for d in result.differences} == {o.name for o in made.graph.output}
    assert all(d.passed for d in result.differences)
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    old, new = (onnxruntime.InferenceSession(m.SerializeToString()).run(None, {"x": x}) for m in (made, after))
    for a, b in zip(old, new, strict=True):
        np.testing.assert_equal(b, a)


def test_texts_that_are_given_are_what_the_check_runs_on() -> None:
    codes = {"keys_strings": ["a", "b"], "values_floats": [1.0, 2.0], "default_float": -1.0}
    nodes = [
        h.make_node("LabelEncoder", ["s"], ["k"], domain="ai.onnx.ml", **codes),
        h.make_node("Identity", ["s"], ["same"]),
        *twice_negated("k"),
        h.make_node("Mul", ["k_same", "x"], ["y"]),
    ]
    texts = [V("same", T.STRING, ["n"])]
    made = proto(nodes, [V("s", T.STRING, ["n"]), V("x", F, ["n"])], [V("y", F, ["n"]), *texts])
    made.opset_import[1].version = 2
    given = {"s": np.array(["a", "b", "c"], object), "x": np.ones(3, np.float32)}
    after, result = taso_mirage.optimize(made, inputs=[given], return_result=True, measure=False, budget=2.0)
    assert "Neg" not in [n.op_type for n in after.graph.node]
    assert {d.case for d in result.differences} >= {"the given inputs 1"}
    y, same = onnxruntime.InferenceSession(after.SerializeToString()).run(None, given)
    assert (y.tolist(), list(same)) == ([1.0, 2.0, -1.0], ["a", "b", "c"])


@pytest.mark.parametrize(("make", "value"), [(sequence_given, [np.ones((3, 4), np.float32)]), (map_given, {"a": 1.0})])
def test_a_sequence_or_map_cannot_be_given(make: Callable[[], onnx.ModelProto], value: Any) -> None:
    """The value was reported as an error of attributes."""
    made = make()
    name = made.graph.input[0].name
    with pytest.raises(InvalidOption, match=f"inputs: the input '{name}' is no tensor"):
        taso_mirage.optimize(made, inputs=[{name: value}])
