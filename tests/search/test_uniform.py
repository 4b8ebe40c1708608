"""Terms that are one number throughout: masks that mask nothing, zeros of any size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from taso_mirage.ir.terms import Node, Tensor, constant, topological, variable
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.folding import fold_constants
from taso_mirage.search.passes import Context, pass_order, simplify
from taso_mirage.search.rulesets import rules

SHAPE = (3, 1, 40, 40)


def simplified(node: Node) -> Node:
    (found,), _ = simplify((node,), pass_order(rules())[0], Context({"": 20}, {}))
    return found


def filled(number: float, dtype: str = "float32") -> Node:
    return term("expand", constant(number, dtype), shape=SHAPE)


def test_numbers_that_are_expanded_are_computed_once() -> None:
    allowed = term("expand", constant(np.ones((1, 1, 40, 1), bool)), shape=SHAPE)
    mask = term("where", allowed, constant(0.0), constant(-1e4))
    folded = fold_constants(fold_constants(term("where", fold_constants(allowed), *mask.args[1:])))
    assert folded.op == "expand"
    assert folded.shape == SHAPE
    assert folded.args[0] == constant(0.0)


@pytest.mark.parametrize(
    "node",
    [
        term("reduce_sum", filled(1.0), axes=(3,), keepdims=1),
        term("softmax", filled(0.0), axis=3),
        term("add", filled(1.0), variable("y", Tensor("float32", SHAPE))),
        term("mul", filled(1.0), constant(np.arange(40, dtype=np.float32))),
        filled(2.0),
    ],
    ids=lambda node: node.op,
)
def test_others_stay(node: Node) -> None:
    """Sums have another number, and a value that is not known or not one number has none."""
    assert fold_constants(node) is node


@pytest.mark.parametrize(("op", "number"), [("add", 0.0), ("sub", 0.0), ("mul", 1.0)])
def test_a_number_that_changes_nothing_goes(op: str, number: float) -> None:
    x = variable("x", Tensor("float32", (3, 8, 40, 40)))
    assert simplified(term(op, x, filled(number))) is x
    assert simplified(term(op, x, filled(number + 1))) is not x
    wider = term(op, variable("x", Tensor("float32", (1, 1, 40, 40))), filled(number))
    assert simplified(wider).shape == SHAPE


def test_a_choice_that_is_known_goes() -> None:
    x, y = (variable(n, Tensor("float32", SHAPE)) for n in "xy")
    for number, left in ((1, x), (0, y)):
        assert simplified(term("where", filled(number, "bool"), x, y)) is left
        assert simplified(term("where", constant(np.asarray(bool(number))), x, y)) is left


def test_a_mask_in_a_file_that_lets_everything_through_is_no_weight() -> None:
    """Exporters write it as a large initializer."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 300, 300] x) => (float[1, 300, 300] y) '
        "{ m = Where(mask, zero, low) y = Add(x, m) }"
    )
    mask = np.ones((1, 300, 300), bool)
    for name, array in (("mask", mask), ("zero", np.float32(0)), ("low", np.float32(-1e4))):
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    model = from_memory(proto)
    assert not model.weights
    assert simplified(model.graph.outputs[0]) is model.graph.inputs[0]
    mask[0, 5, 7] = False
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(mask, "mask"))
    other = from_memory(proto)
    assert "weight" in {n.op for n in topological(other.graph.outputs)}
