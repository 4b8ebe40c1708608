"""Movements at the operands of a goal: what passes through operators, and what is refused."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from moved_goals import GOALS, A, W, goal, part
from mugraphs import leaf

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Node, topological
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.moved_goal import labelled_goal, moved_goal
from taso_mirage.mugraph.movement_terms import moves_elements
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.movements import is_moved
from taso_mirage.operators.ops import term

LINE = {"strides": (1,), "pads": (0, 0), "dilations": (1,)}


def values(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = interpret(graph.outputs, EXACT, {x: rng.normal(size=x.shape) for x in graph.inputs})
    return [found[output] for output in graph.outputs]


@pytest.mark.parametrize("name", GOALS)
def test_movements_reach_the_operands(name: str) -> None:
    given = goal(GOALS[name])
    made = moved_goal(given)
    assert made.moves
    assert not any(map(moves_elements, topological(made.core.outputs)))
    label(made.core)
    assert made.is_equal()
    assert all(is_moved(x) or x in given.inputs for x in made.operands)
    for found, wanted in zip(values(made.restored(made.core)), values(given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["rotary embedding", "cache and new keys", "gated by halves", "padded"])
def test_a_search_gives_kernels_over_movements(name: str) -> None:
    given = goal(GOALS[name])
    (found,) = superoptimize(given, best=1, budget=20)
    (kernel,) = [n for n in found.graph if n.op == "kernel"]
    assert any(is_moved(x) for x in kernel.args)
    for ours, wanted in zip(values(found.graph), values(given), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-12)


def test_a_goal_without_movements_is_its_own_core() -> None:
    given = goal([term("relu", term("matmul", A, W))])
    assert moved_goal(given).core == given
    assert not moved_goal(given).moves


def test_a_part_of_an_axis_that_is_needed_whole_is_refused_with_the_operator() -> None:
    with pytest.raises(Unsupported, match=r"argmax"):
        moved_goal(goal([part(term("argmax", A, axis=1), 0, 2, 7)]))
    with pytest.raises(Unsupported, match=r"reshape .* merges dims"):
        moved_goal(goal([part(term("reshape", term("relu", A), shape=(128,)), 0, 3, 9)]))


@pytest.mark.parametrize(
    "long",
    [
        term("relu", term("cumsum", leaf("long", "float32", 2, 200_000), axis=1)),
        term("relu", term("conv", leaf("sound", "float32", 1, 1, 9_000_000), leaf("w", "float32", 1, 1, 400), **LINE)),
        part(term("relu", leaf("wide", "float32", 500_000_000)), 0, 5, 400_000_000),
        part(term("reshape", term("relu", leaf("flat", "float32", 400_000_000)), shape=(4, 100_000_000)), 0, 1, 3),
    ],
    ids=["running sum", "windows", "axis", "merged dims"],
)
def test_a_movement_of_many_rows_is_refused_without_their_memory(long: Node) -> None:
    """Each would list gigabytes of positions."""
    tracemalloc.start()
    with pytest.raises(Unsupported):
        label(moved_goal(goal([long])).core)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**27


def test_the_map_of_a_large_table_takes_no_memory_of_its_size() -> None:
    table, rows = leaf("table", "float16", 2_000_000, 512), leaf("rows", "int64", 4)
    moved = moved_goal(goal([term("relu", term("gather", table, rows, axis=0))]))
    tracemalloc.start()
    assert moved.is_equal()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**27


def test_a_result_may_be_repeated() -> None:
    """The computed elements are multiplied by ones, which have the labels that they lack."""
    total = term("reduce_sum", term("exp", A), axes=(1,), keepdims=1)
    given = goal([term("reshape", term("expand", total, shape=(8, 5)), shape=(40,))])
    made, labels = labelled_goal(given)
    assert made.is_equal()
    assert len(labels.outputs[0][0]) == 2
    (found,) = superoptimize(given, best=1, budget=20)
    for ours, wanted in zip(values(found.graph), values(given), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-12)
