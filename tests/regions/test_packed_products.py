"""Products with gathered or packed weights: on a GPU each is in a region of its own."""

from __future__ import annotations

from collections.abc import Callable

import block_linear_models
import expert_goals
import named_models
import pytest
from named_models import w

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, constant
from taso_mirage.operators.ops import term
from taso_mirage.regions import fragments as growth
from taso_mirage.regions.region_kinds import has_weights

GPU, CPU = 4, 1
"""The largest number of lanes of a region."""


def regions(model: Model, lanes: int) -> list[list[str]]:
    """The operators of each region."""
    return [[n.op for n in goal] for goal in growth.fragments(model, {}, lanes)]


def normed(y: Node) -> Node:
    mean = term("reduce_mean", term("mul", y, y), axes=(1,), keepdims=1)
    return term("div", y, term("sqrt", term("add", mean, constant(1e-6, "float32"))))


@pytest.mark.parametrize("layer", [expert_goals.batched, expert_goals.gathered])
def test_each_layer_of_chosen_experts_is_a_region_and_their_sum_is_in_the_last(
    layer: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm behind them waits for all columns (more than the experts), so it is outside."""
    assert expert_goals.SLOTS < 4 < expert_goals.RESULTS
    monkeypatch.setattr(growth, "FEW", 4)
    made = named_models.model(normed(layer(1, w).outputs[0]))
    found = regions(made, GPU)
    products = [each for each in found if "matmul" in each]
    assert len(products) == 2
    assert [each for each in products if "reduce_sum" in each]
    assert not [each for each in products if "sqrt" in each]
    assert [each for each in found if "sqrt" in each]
    assert len([each for each in regions(made, CPU) if "matmul" in each]) == 1


def test_successive_products_of_packed_weights_are_two_regions_of_a_gpu() -> None:
    first = term("sigmoid", block_linear_models.product(1, 64, 96))
    made = block_linear_models.model(block_linear_models.product(1, 96, 32, data=first))
    found = [each for each in regions(made, GPU) if "matmul_nbits" in each]
    assert [each.count("matmul_nbits") for each in found] == [1, 1]
    assert "sigmoid" in found[0]


def test_moved_weights_are_those_whose_every_element_is_a_weight() -> None:
    """Integers that choose rows are none of the elements; numbers of bytes and conditions are."""
    table, rows = w("table", 8, 4), named_models.x("rows", 3, dtype="int64")
    chosen, data = term("gather", table, rows, axis=0), named_models.x("x", 3, 4)
    cases = {
        chosen: True,
        term("reshape", chosen, shape=(12,)): True,
        term("concat", chosen, data, axis=0): False,
        term("where", named_models.x("c", 3, 4, dtype="bool"), chosen, chosen): False,
        term("reshape", named_models.x("bytes", 3, 4, dtype="uint8"), shape=(12,)): False,
        term("reshape", data, shape=(12,)): False,
    }
    moving = {n for node in cases for n in Graph((), (node,)) if n.args}
    assert [has_weights(node, moving) for node in cases] == [*cases.values()]
