"""Convolutions of few filters as ones of more, with a stride along the rows."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from small_models import F, changed, model, ops, w

from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.search.weights import fold_weights

DENSE = {"dilations": (1, 1), "pads": (1, 2, 0, 1)}


def image(width: Dim = 14, height: Dim = 6) -> Node:
    return variable("image", Tensor(F, (symbol("batch"), 5, height, width)))


def convolution(filters: int, stride: int = 1, width: Dim = 14, columns: int = 4) -> Model:
    kernel, bias = w(filters, 5, 3, columns, name="k"), w(filters, name="b")
    x = image(width, symbol("height"))
    return model((x,), (term("relu", term("conv", x, kernel, bias, strides=(1, stride), **DENSE)),))


@pytest.mark.parametrize(("filters", "stride", "phases"), [(1, 1, 2), (3, 2, 2), (3, 2, 4), (4, 1, 4), (8, 1, 4)])
def test_the_same_at_every_batch_and_height(filters: int, stride: int, phases: int) -> None:
    made = convolution(filters, stride, width=stride * (3 * phases - 1) + 4 - 3)  # 3 * phases columns
    found = changed(made.graph.outputs)
    (strided,) = (n for n in made.with_graph(found).nodes() if n.op == "conv")
    used = phases if filters * phases <= 16 else 2
    assert strided.attr("strides") == (1, used * stride)
    assert strided.args[1].shape == (used * filters, 5, 3, 4 + (used - 1) * stride)
    folded, _ = fold_weights(made.with_graph(found), made.weights)
    assert [n.op for n in folded.nodes() if n.op in ("pad", "concat")] == []
    before, after = (onnxruntime.InferenceSession(serialize(each)) for each in (made, folded))
    for batch, height in ((1, 3), (3, 7)):
        x = np.random.default_rng(0).normal(size=(batch, 5, height, made.graph.inputs[0].shape[3])).astype(np.float32)
        np.testing.assert_allclose(after.run(None, {"image": x})[0], before.run(None, {"image": x})[0], atol=1e-5)


@pytest.mark.parametrize(
    "same",
    [
        convolution(9),  # they fill a block
        convolution(3, width=13),  # 13 columns
        convolution(3, width=symbol("width")),
        convolution(3, stride=4, width=10),  # no two windows share a column
        convolution(3, columns=1, width=13),
    ],
)
def test_what_would_gain_nothing_or_does_not_divide_stays(same: Model) -> None:
    assert changed(same.graph.outputs) == same.graph.outputs


def test_groups_dilations_and_computed_weights_stay() -> None:
    x, there = image(), {"strides": (1, 1), "pads": (0, 1, 0, 1)}
    computed = variable("w", Tensor(F, (3, 5, 3, 3)))
    for term_ in (
        term("conv", x, w(5, 1, 3, 3, name="k"), group=5, dilations=(1, 1), **there),
        term("conv", x, w(3, 5, 3, 2, name="k"), dilations=(1, 2), **there),
        term("conv", x, computed, dilations=(1, 1), **there),
    ):
        assert ops(changed((term_,))) == ops((term_,))
