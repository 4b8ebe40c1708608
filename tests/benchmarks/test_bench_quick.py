"""The models of bench/quick.py and bench/budget.py, and their counts."""

from __future__ import annotations

from types import ModuleType

import onnx
import pytest
from onnx import helper
from scripts import script


@pytest.fixture(scope="module")
def quick() -> ModuleType:
    return script("quick")


def test_layers_are_valid_and_as_many_as_their_names_say(quick: ModuleType) -> None:
    for name, layers in quick.LAYERS.items():
        made = quick.Encoder().model(layers)
        assert quick.nodes(made.graph) == pytest.approx(int(name.rpartition("_")[2]), rel=0.03)
    onnx.checker.check_model(quick.Encoder().model(2), full_check=True)


def test_nodes_inside_count_and_constants_do_not(quick: ModuleType) -> None:
    made = quick.Encoder().model(1).graph
    constant = helper.make_node("Constant", [], ["c"], value_float=1.0)
    branch = helper.make_node("If", ["c"], ["z"], then_branch=made, else_branch=made)
    whole = helper.make_graph([constant, branch], "g", [], [])
    assert quick.nodes(whole) == 1 + 2 * len(made.node)


def test_a_chain_is_a_valid_model() -> None:
    made = script("budget").chain(9)
    onnx.checker.check_model(made, full_check=True)
    assert len(made.graph.node) == 9
