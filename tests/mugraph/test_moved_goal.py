"""Movements at the operands of a goal: what passes through operators, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from mugraphs import leaf

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Node, constant, topological
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.moved_goal import MOVING, moved_goal
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.movements import is_moved
from taso_mirage.operators.ops import term


def part(x: Node, axis: int, start: int, end: int, step: int = 1) -> Node:
    return term("slice", x, axes=(axis,), starts=(start,), ends=(end,), steps=(step,))


X, COS, SIN = leaf("x", "float32", 2, 4, 8, 16), leaf("cos", "float32", 8, 16), leaf("sin", "float32", 8, 16)
A, W = leaf("a", "float32", 8, 16), leaf("w", "float32", 16, 48)
PAST, NEW, Q = (leaf(name, "float32", 1, 4, n, 16) for name, n in (("past", 7), ("new", 1), ("q", 1)))
ROTATED = term("concat", term("neg", part(X, 3, 8, 16)), part(X, 3, 0, 8), axis=3)
PROJECTED = term("reshape", term("matmul", A, W), shape=(8, 3, 4, 4))
KEYS = term("concat", PAST, term("mul", NEW, constant(2.0, "float32")), axis=2)
GATES = leaf("gates", "float32", 8, 32)

GOALS: dict[str, Sequence[Node]] = {
    "rotary embedding": [term("add", term("mul", X, COS), term("mul", ROTATED, SIN))],
    "queries, keys and values": [term("reshape", part(PROJECTED, 1, i, i + 1), shape=(8, 4, 4)) for i in range(3)],
    "cache and new keys": [term("matmul", Q, term("transpose", KEYS, perm=(0, 1, 3, 2)))],
    "gated by halves": [term("mul", part(GATES, 1, 0, 16), term("sigmoid", part(GATES, 1, 16, 32)))],
    "padded": [term("exp", term("pad", term("relu", A), pads=(0, 1, 0, 2), value=0.5))],
    "rows of a softmax": [part(term("softmax", A, axis=1), 0, 2, 7)],
    "reversed rows of a product": [part(term("relu", term("matmul", A, W)), 0, 7, -1, -1)],
    "gathered columns": [term("gather", term("matmul", A, W), constant(np.array([3, -1, 0])), axis=1)],
}


def goal(outputs: Sequence[Node]) -> Graph:
    return Graph(tuple(n for n in topological(outputs) if n.op == "input"), tuple(outputs))


def values(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = interpret(graph.outputs, EXACT, {x: rng.normal(size=x.shape) for x in graph.inputs})
    return [found[output] for output in graph.outputs]


@pytest.mark.parametrize("name", GOALS)
def test_movements_reach_the_operands(name: str) -> None:
    given = goal(GOALS[name])
    made = moved_goal(given)
    assert made.moves
    assert not {n.op for n in topological(made.core.outputs)} & set(MOVING)
    label(made.core)
    assert all(is_moved(x) or x in given.inputs for x in made.operands)
    for found, wanted in zip(values(made.restored(made.core)), values(given), strict=True):
        np.testing.assert_array_equal(found, wanted)


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
    with pytest.raises(Unsupported, match=r"cumsum"):
        moved_goal(goal([part(term("cumsum", A, axis=1), 1, 2, 7)]))
    with pytest.raises(Unsupported, match=r"reshape .* merges dims"):
        moved_goal(goal([part(term("reshape", term("relu", A), shape=(128,)), 0, 3, 9)]))
