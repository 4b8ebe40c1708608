"""Where a model is cut: equal layers are one part, also the last ones."""

from __future__ import annotations

import pytest

from taso_mirage.ir.terms import Node, Tensor, variable, weight
from taso_mirage.operators.ops import term
from taso_mirage.search.partition import model_parts

WIDTH, TERMS = 8, 26


def layers(count: int) -> tuple[Node, ...]:
    """Equal layers beside the value they add to, each of which reads a mask that all share, and
    some terms behind them."""
    value = start = variable("x", Tensor("float32", (WIDTH, WIDTH)))
    mask = term("sigmoid", variable("mask", Tensor("float32", (WIDTH, WIDTH))))
    for i in range(count):
        inner = term("matmul", value, weight(f"w{i}", start.tensor))
        for _ in range(TERMS // 2):
            inner = term("tanh", inner)
        inner = term("add", inner, mask)
        for _ in range(TERMS // 2):
            inner = term("tanh", inner)
        value = term("add", value, inner)
    for _ in range(TERMS):
        value = term("tanh", value)
    return (value,)


@pytest.mark.parametrize("count", [6, 12])
def test_the_layers_after_which_a_mask_is_not_read_are_cut_as_all_others(count: int) -> None:
    parts = [part.graph for part in model_parts(layers(count))]
    assert len(parts) > count
    assert len(set(parts[2:count])) == 1
