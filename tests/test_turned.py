"""Transposed convolutions with stride 1 as plain ones with turned kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from test_optimize import CONTEXT, F, model, ops, w

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.rulesets import rules
from taso_mirage.search.together import all_at_once, laws_together
from taso_mirage.search.weights import fold_weights


def changed(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    return all_at_once(outputs, Rules(laws_together(rules())), CONTEXT)[0]


def transposed(kernel: tuple[int, ...], pads: tuple[int, ...], bias: bool = True, **attrs: Any) -> Model:
    """Six channels, images of free sizes, and an operator behind."""
    ones = (1,) * len(kernel)
    group = attrs.setdefault("group", 1)
    zeros = (0,) * len(kernel)
    attrs = {"strides": ones, "dilations": ones, "output_padding": zeros, "pads": pads, **attrs}
    x = variable("image", Tensor(F, (symbol("batch"), 6, *[symbol(f"size{i}") for i in range(len(kernel))])))
    operands = [x, w(6, 4, *kernel, name="k"), *([w(4 * group, name="b")] if bias else [])]
    return model((x,), (term("relu", term("conv_transpose", *operands, **attrs)),))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize(
    ("kernel", "pads", "others"),
    [
        ((3,), (1, 0), {}),
        ((4,), (2, 5), {"dilations": (3,)}),
        ((3, 2), (0, 1, 2, 0), {}),
        ((3, 2), (4, 0, 3, 1), {"dilations": (2, 1)}),
        ((1, 1), (0, 0, 0, 0), {}),
        ((2, 3, 1), (1, 0, 0, 0, 2, 0), {}),
    ],
)
def test_the_same_at_every_size(kernel: Any, pads: Any, others: dict[str, Any], group: int, bias: bool) -> None:
    made = transposed(kernel, pads, bias, group=group, **others)
    found = changed(made.graph.outputs)
    folded, _ = fold_weights(made.with_graph(found), made.weights)
    assert sorted(n.op for n in folded.nodes() if n.args) == ["conv", "relu"]
    before, after = (onnxruntime.InferenceSession(serialize(each)) for each in (made, folded))
    for n, size in ((1, 5), (2, 8)):
        x = np.random.default_rng(0).normal(size=(n, 6, *range(size, size + len(kernel)))).astype(np.float32)
        was, now = (each.run(None, {"image": x})[0] for each in (before, after))
        assert was.size
        np.testing.assert_allclose(now, was, atol=1e-5)


@pytest.mark.parametrize(
    "same",
    [
        transposed((3, 3), (1, 1, 1, 1), strides=(1, 2)),
        transposed((3, 3), (3, 0, 0, 0)),  # more is cut off than the kernel reaches over the border
        transposed((3, 1), (0, 0, 0, 1)),
    ],
)
def test_what_a_plain_one_cannot_say_stays(same: Model) -> None:
    assert ops(changed(same.graph.outputs)) == ops(same.graph.outputs)


def test_a_computed_kernel_stays() -> None:
    x, k = variable("image", Tensor(F, (1, 6, 5))), variable("k", Tensor(F, (6, 4, 3)))
    attrs = {"strides": (1,), "dilations": (1,), "output_padding": (0,), "pads": (1, 1)}
    assert ops(changed((term("conv_transpose", x, k, **attrs),))) == ["conv_transpose"]
