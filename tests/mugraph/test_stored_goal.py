"""Results of several parts: each part has one place, which is proved, and wrong places are
refused."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest
from mugraphs import leaf
from stored_goals import GOALS, LEFT, RIGHT, A, V, apart, goals, wrong_layouts, wrong_places

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.horizontal import fused_goals
from taso_mirage.mugraph.moved_goal import core_labels
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.mugraph.stored_goal import copy_kernel, is_partition, stored_goal
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.ops import term
from taso_mirage.operators.stores import fill_once, part_layout, stored_parts


@pytest.mark.parametrize("name", GOALS)
def test_the_parts_of_a_result_are_a_proved_partition(name: str) -> None:
    given = goals()[name]
    stored = stored_goal(given)
    assert stored.stores
    assert stored.is_equal()
    assert verified_mugraph(apart(given), given, tests=2)


@pytest.mark.parametrize("name", GOALS)
def test_wrong_places_are_refused(name: str) -> None:
    """Overlapping ones, gaps, places off by one, exchanged ones, and other strides."""
    found: Counter[str] = Counter()
    for result in stored_goal(goals()[name]).joined:
        parts = stored_parts(result)
        assert is_partition(result, parts)
        for kind, wrong in wrong_places(parts):
            assert not is_partition(result, wrong), (kind, wrong)
            found[kind] += 1
        count = prod(map(int, result.shape))
        assert fill_once(count, [(part.value.shape, part_layout(part)) for part in parts])
        for kind, layouts in wrong_layouts(parts):
            assert not fill_once(count, layouts), (kind, layouts)
            found[kind] += 1
    assert {"off by one", "gap"} <= found.keys()
    assert found.total() >= 8


def test_wrong_stores_of_a_mugraph_are_refused() -> None:
    """Parts in another order, and a part in place of another, are no muGraph of the goal."""
    given = goals()["nested"]
    right = apart(given)
    assert from_json(to_json(right)) == right
    (output,) = right.outputs
    left, copies = output.args
    for wrong in (
        term("concat", term("concat", *left.args[::-1], axis=0), copies, axis=1),
        term("concat", term("concat", left.args[0], left.args[0], axis=0), copies, axis=1),
        term("concat", copies, left, axis=1),
    ):
        assert not verified_mugraph(Graph(right.inputs, (wrong,)), given, tests=2)


def test_a_part_of_another_kernel_is_no_part_of_a_record() -> None:
    given = goals()["stack"]
    right = apart(given)
    found = FoundMuGraph(right, given, 1.0, "cpu", verified_mugraph(right, given, tests=2))
    assert FoundMuGraph.of_json(found.as_json(), given).graph == right


def operators(*outputs: Node) -> Graph:
    inputs = (x for x in Graph((), outputs) if x.op == "input")
    return Graph(tuple(inputs), outputs)


def test_elementwise_parts_and_pads_of_one_part_stay_in_one_kernel() -> None:
    """Each element is computed once, whatever the parts are."""
    wide = leaf("wide", "float32", 6, 5)
    for output in (
        term("concat", term("relu", wide), term("exp", wide), axis=0),
        term("pad", LEFT, pads=(0, 1, 0, 0), value=0.0),
        term("concat", wide, A, axis=1),
    ):
        assert not stored_goal(operators(output)).stores


def test_what_does_not_reach_the_operands_is_stored_apart() -> None:
    """No movement of rows and columns is a part of a flat result."""
    output = term("concat", *[term("reshape", term("exp", x), shape=(n,)) for x, n in ((A, 60), (V, 80))], axis=0)
    given = operators(output)
    with pytest.raises(Unsupported, match="merges dims"):
        core_labels(given)
    assert stored_goal(given).is_equal()
    assert [lane.graph.outputs[0].shape for lane in fused_goals(given)] == [(60,), (80,)]


def test_parts_of_operators_with_several_results_are_no_movements() -> None:
    x = leaf("x", "float32", 6, 10)
    made = term("split", term("relu", x), axis=1, split=(4, 6))
    given = operators(*[term("item", made, index=i) for i in range(2)])
    assert not stored_goal(given).stores


def test_each_part_is_computed_once() -> None:
    """The widths of the parts are those of the products: none is computed for other columns."""
    given = goals()["two products"]
    lanes = fused_goals(given)
    assert [lane.graph.outputs[0].shape for lane in lanes] == [LEFT.shape, RIGHT.shape]
    plain = fused_goals(given, stores=False)
    assert [lane.graph.outputs[0].shape for lane in plain] == [(6, 20)]


def test_the_search_of_a_goal_of_parts_gives_one_mugraph() -> None:
    given = operators(term("concat", term("matmul", A, V), leaf("wide", "float32", 6, 5), axis=1))
    found = superoptimize(given, best=2, budget=4, device=CPU_DEVICE)
    assert found
    for each in found:
        assert each.evidence.tests > 0
        assert verified_mugraph(each.graph, given, tests=2)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5000), (2, 8, 1024, 64)])
def test_a_copy_is_a_kernel_that_gives_its_operand(shape: tuple[int, ...]) -> None:
    x = leaf("x", "float32", *shape)
    made = copy_kernel(x)
    assert made.type == x.type
    assert copy_kernel(x, 1) is not made
    if prod(shape) < 1000:
        assert verified_mugraph(Graph((x,), (made,)), Graph((x,), (term("mul", x, term("div", x, x)),)), tests=2)
