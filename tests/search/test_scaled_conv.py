"""Scales and shifts beside a convolution go into its weights: as one number of any rank, and those
of the channels of its image."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from small_models import CONTEXT, F, model, ops, w

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, constant, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.passes import simplify
from taso_mirage.search.rulesets import rules
from taso_mirage.search.weights import fold_weights

IMAGE = variable("image", Tensor(F, (2, 4, 5, 6)))


def conv(x: Node, name: str, group: int = 1, bias: bool = True, pad: int = 0) -> Node:
    """Four channels and as many results."""
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (pad,) * 4, "group": group}
    operands = [x, w(4, 4 // group, 3, 3, name=name), *([w(4, name=f"{name}_bias")] if bias else [])]
    return term("conv", *operands, **attrs)


def passed(result: Node) -> tuple[Model, Model]:
    made = model((IMAGE,), (term("relu", result),))
    found, _ = simplify(made.graph.outputs, Rules(rules().equations), CONTEXT)
    return made, fold_weights(made.with_graph(found), made.weights)[0]


def equal(made: Model, changed: Model) -> None:
    image = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(serialize(each)).run(None, {"image": image})[0] for each in (made, changed)
    )
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", ["mul", "div", "add", "sub"])
def test_one_number_behind_or_before(op: str, bias: bool, shape: tuple[int, ...]) -> None:
    number = w(*shape, name="c")
    for result in (term(op, conv(IMAGE, "k", 2, bias), number), conv(term(op, IMAGE, number), "k", 2, bias)):
        made, changed = passed(result)
        assert ops(changed.graph.outputs) == ["conv", "relu"]
        equal(made, changed)


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", ["mul", "div", "add", "sub"])
def test_one_number_for_each_channel_of_an_image(op: str, bias: bool, shape: tuple[int, ...]) -> None:
    made, changed = passed(conv(term(op, IMAGE, w(*shape, name="c")), "k", 1, bias))
    assert ops(changed.graph.outputs) == ["conv", "relu"]
    equal(made, changed)


def test_learned_affine_blocks_between_convolutions() -> None:
    """A scale and a shift behind each convolution and each activation."""

    def affine(x: Node, name: str) -> Node:
        return term("add", term("mul", w(1, name=f"{name}_scale"), x), w(1, name=f"{name}_shift"))

    middle = affine(term("relu", affine(conv(IMAGE, "k", 4), "a")), "b")
    made, changed = passed(affine(conv(middle, "l"), "c"))
    assert ops(changed.graph.outputs) == ["conv", "conv", "relu", "relu"]
    equal(made, changed)


@pytest.mark.parametrize(
    "same",
    [
        conv(term("add", IMAGE, w(1, name="c")), "k", pad=1),  # the zeros around are not shifted
        conv(term("sub", IMAGE, w(4, 1, 1, name="c")), "k", pad=1),
        term("add", conv(IMAGE, "k"), w(1, 1, 1, 1, 1, name="c")),  # the result has another rank
        conv(term("mul", IMAGE, w(4, 1, 1, name="c")), "k", group=2),
    ],
)
def test_what_weights_cannot_say_stays(same: Node) -> None:
    made, changed = passed(same)
    assert ops(changed.graph.outputs) == ops(made.graph.outputs)


def test_a_convolution_that_others_read_is_not_computed_twice() -> None:
    """Few channels become many: to read the result takes longer than to compute it, on a
    roofline."""
    x, many = variable("x", Tensor(F, (1, 2, 112, 112))), w(256, 2, 1, 1, name="many")
    made = term("conv", x, many, w(256, name="b"), strides=(1, 1), dilations=(1, 1), pads=(0,) * 4, group=1)
    result = term("mul", made, term("clip", term("add", made, w(1, name="three")), constant(0.0, F), constant(6.0, F)))
    found, _ = simplify((result,), Rules(rules().equations), CONTEXT)
    assert ops(found).count("conv") == 1
