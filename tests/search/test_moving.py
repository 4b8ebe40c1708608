"""Changes of layout that move towards the outputs until they meet: TensorFlow's operators with
channels last, between convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from equal_layers import values
from small_models import F, model, ops, w

from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.measure.target import CPU
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.rewriting.text import laws
from taso_mirage.search.config import Config
from taso_mirage.search.rewriter import Rewriter

SAME = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
QUICK = Config(budget=0.0, measure=False)


def normalized(image: Node, i: int) -> Node:
    """A convolution whose bias, norm and activation have channels last."""
    last = term("transpose", term("conv", image, w(4, 4, 3, 3, name=f"k{i}"), **SAME), perm=LAST)
    shifted = term("sub", term("add", last, w(4, name=f"b{i}")), w(1, 1, 4, name=f"m{i}"))
    scaled = term("add", term("mul", shifted, w(4, name=f"s{i}")), w(1, 1, 1, 4, name=f"o{i}"))
    return term("relu", scaled)


def residual(blocks: int = 2, batch: Dim = 2) -> Model:
    image = state = variable("image", Tensor(F, (batch, 4, 6, 5)))
    for i in range(blocks):
        inside = term("transpose", normalized(state, 2 * i), perm=FIRST)
        last = term("add", normalized(inside, 2 * i + 1), term("transpose", state, perm=LAST))
        state = term("transpose", last, perm=FIRST)
    return model((image,), (state,))


def passed(made: Model) -> Model:
    equations = tuple(laws())
    return Rewriter(made, CPU, [({}, 1.0)], equations, dict(made.weights), None).passes()[2].model


@pytest.mark.parametrize("batch", [2, symbol("batch")])
def test_they_meet_and_norms_go_into_the_kernels(batch: Dim) -> None:
    result = optimize_model(residual(batch=batch), QUICK)
    assert result.failure is None
    assert ops(result.model.graph.outputs) == sorted(["conv", "relu", "conv", "relu", "add"] * 2)


def test_they_stay_where_nothing_is_gained() -> None:
    """One that moves past a sum meets none."""
    image = variable("image", Tensor(F, (2, 4, 6, 5)))
    made = model((image,), (term("relu", term("add", term("transpose", image, perm=LAST), w(4))),))
    assert passed(made).graph.outputs == made.graph.outputs


def test_a_weight_moves_with_its_axes() -> None:
    """The weight has every rank, and stands on either side of a difference and a quotient."""
    image = variable("image", Tensor(F, (2, 4, 6, 5)))
    for shape in ((4,), (5, 4), (6, 1, 4), (1, 6, 5, 1), ()):
        for name in ("sub", "div"):
            moved = term("transpose", image, perm=LAST)
            weight = w(*shape)
            for made in (term(name, moved, weight), term(name, weight, moved)):
                asked = model((image,), (term("transpose", made, perm=FIRST),))
                done = passed(asked)
                assert ops(done.graph.outputs) == [name]
                (before,), (after,) = (values(m, m.graph.outputs, m.weights) for m in (asked, done))
                np.testing.assert_allclose(after, before, rtol=1e-6)
