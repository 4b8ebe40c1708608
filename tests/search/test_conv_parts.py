"""Parts of a convolution as convolutions of their own, and a softmax along another axis than the
last."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from small_models import CONTEXT, F, model, ops, w

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.rulesets import rules
from taso_mirage.search.simultaneous import all_at_once, laws_together
from taso_mirage.search.weights import fold_weights

DENSE = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def changed(made: Model) -> Model:
    outputs, _ = all_at_once(made.graph.outputs, Rules(laws_together(rules())), CONTEXT)
    return fold_weights(made.with_graph(outputs), made.weights)[0]


def image() -> Node:
    return variable("image", Tensor(F, (symbol("batch"), 5, symbol("height"), 7)))


def conv(x: Node, filters: int, name: str, **more: int) -> Node:
    return term(
        "conv", x, w(filters, 5 // more.get("group", 1), 3, 3, name=name), w(filters, name=f"b{name}"), **DENSE, **more
    )


def equal(made: Model, other: Model) -> None:
    before, after = (onnxruntime.InferenceSession(serialize(each)) for each in (made, other))
    for batch, height in ((1, 4), (3, 6)):
        x = np.random.default_rng(0).normal(size=(batch, 5, height, 7)).astype(np.float32)
        for a, b in zip(before.run(None, {"image": x}), after.run(None, {"image": x}), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("activation", ["", "relu", "quick_gelu"])
def test_each_part_has_its_own_convolution(activation: str) -> None:
    x = image()
    whole = conv(x, 20, "k")
    whole = term(activation, whole) if activation else whole
    parts = [term("item", term("split", whole, axis=1, split=(12, 8)), index=i) for i in range(2)]
    made = model((x,), (parts[1], term("concat", *parts, axis=1)))
    found = changed(made)
    assert [n.args[1].shape[0] for n in found.nodes() if n.op == "conv"] in ([12, 8], [8, 12])
    assert "split" not in ops(found.graph.outputs)
    equal(made, found)


def test_rows_and_other_parts_of_three_stay() -> None:
    x = image()
    rows = term("split", conv(x, 20, "k"), axis=3, split=(3, 4))
    made = model((x,), tuple(term("item", rows, index=i) for i in range(2)))
    assert changed(made).graph.outputs == made.graph.outputs


def test_softmax_of_channels_is_written_out_and_of_the_last_axis_not() -> None:
    x = image()
    made = model((x,), tuple(term("softmax", conv(x, 20, "k"), axis=i) for i in (1, 3)))
    found = changed(made)
    assert ops(found.graph.outputs) == ["conv", "div", "exp", "reduce_max", "reduce_sum", "softmax", "sub"]
    equal(made, found)
