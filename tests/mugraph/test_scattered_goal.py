"""Rows of a result that are stored where a run says: proved, found, right, and in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from moved_goals import goal
from mugraphs import kernel, leaf
from native_kernels import exact
from scattered_goals import GOALS, ROWS, apart, goals, scattered, viewed_row, wrong_layouts

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton as codegen
from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, variable
from taso_mirage.mugraph import stored_goal as parts_of_goals
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.mugraph.stored_goal import is_stored_once, stored_goal
from taso_mirage.operators import stores
from taso_mirage.operators.ops import term
from taso_mirage.operators.stores import launch_order, part_layout, stored_parts, stores_elements


@pytest.mark.parametrize("name", GOALS)
def test_the_parts_are_stored_apart(name: str) -> None:
    stored = stored_goal(goals()[name])
    assert stored.stores
    assert stored.is_equal()


@pytest.mark.parametrize("name", GOALS)
def test_wrong_places_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = stored_goal(goals()[name]).joined[0]
    parts = stored_parts(result)
    assert stores_elements(result, parts)
    assert not stores_elements(result, parts[1:])
    assert not stores_elements(result, parts[:-1])
    assert not stores_elements(result, parts[::-1])
    mutants = list(wrong_layouts([(part, part_layout(part)) for part in parts]))
    assert len(mutants) > 4
    for kind, layouts in mutants:
        known = dict(zip(parts, layouts, strict=True))
        monkeypatch.setattr(stores, "part_layout", lambda part, known=known: known[part])
        assert not is_stored_once(result), (kind, layouts)


@pytest.mark.parametrize("name", GOALS)
def test_updates_of_a_large_result_are_proved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those of several rows of a tensor: they may be equal, so that only one is there."""
    monkeypatch.setattr(parts_of_goals, "NUMBERED", 0)
    assert stored_goal(goals()[name]).is_equal() == (name not in ("several rows", "constant rows"))


def numbers(graph: Graph, at: int, seed: int = 0) -> list[Any]:
    """Inputs of a muGraph: rows `at` and those that follow."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(x.shape).astype(x.dtype)
        if x.dtype == "float32"
        else at + np.arange(np.prod(x.shape)).reshape(x.shape).astype(x.dtype)
        for x in graph.inputs
    ]


def close(found: Any, wanted: Any) -> bool:
    return bool(np.allclose(found, wanted, rtol=1e-5, atol=1e-5))


@pytest.mark.parametrize("name", ["row by rows", "several rows", "read before", "two caches"])
def test_a_search_stores_rows_where_a_run_says(name: str) -> None:
    given = goals()[name]
    (found,) = superoptimize(given, best=1, device=CPU_DEVICE, budget=20, max_kernels=1)
    kernel = NativeKernel(found.graph)
    for at in (0, 2, -3):
        arrays = numbers(found.graph, at)
        for result, wanted in zip(
            kernel(*arrays), exact(given, dict(zip(found.graph.inputs, arrays, strict=True))), strict=True
        ):
            assert close(result, wanted)


def test_a_row_that_is_a_view_of_what_a_kernel_gives_is_copied() -> None:
    given = viewed_row()
    (found,) = superoptimize(given, best=1, device=H100, budget=20)
    for at in (0, 15):
        arrays = dict(zip(found.graph.inputs, numbers(found.graph, at), strict=True))
        assert all(map(close, exact(found.graph, arrays), exact(given, arrays)))


def test_a_row_is_stored_by_the_kernel_that_computes_it() -> None:
    """By one kernel, and no other one for the copy, if the cache is in the memory of the result."""
    source = generate_cpp(scattered()["row_by_elements"])
    assert source.count("static void kernel_") == 2
    assert source.count("if (inputs[") == 1
    assert "row_of(" in source


@pytest.mark.parametrize("name", ["row by elements", "row by rows", "read before"])
def test_a_cache_is_updated_in_place(name: str) -> None:
    """All that reads the cache runs before a row of it is replaced."""
    graph = apart(goals()[name])
    kernel, place = NativeKernel(graph), [x.attr("name") for x in graph.inputs].index("cache")
    for at in (3, -1):
        arrays = numbers(graph, at)
        wanted = exact(graph, dict(zip(graph.inputs, arrays, strict=True)))
        memory = arrays[place].copy()
        results = [memory, *(np.zeros(o.shape, np.float32) for o in graph.outputs[1:])]
        kernel.bound([*arrays[:place], memory, *arrays[place + 1 :]], results)()
        assert all(map(close, results, wanted))


def test_rows_outside_are_those_at_the_ends() -> None:
    graph = scattered()["row_by_elements"]
    kernel = NativeKernel(graph)
    for at, inside in ((ROWS + 5, ROWS - 1), (-ROWS - 5, 0)):
        (found,) = kernel(*numbers(graph, at))
        assert close(found, kernel(*numbers(graph, inside))[0])


def test_rows_are_stored_behind_all_that_reads_the_cache() -> None:
    graph = apart(goals()["read before"])
    order = [n for n in launch_order(graph) if n.op == "kernel"]
    assert order[0] is graph.outputs[1]
    assert len(order) == 3


def test_what_a_kernel_reads_of_the_cache_is_not_written_by_it() -> None:
    """The update is computed from the cache: it is copied to its place by a kernel of its own."""
    cache, at = variable("cache", goals()["row by elements"].outputs[0].tensor), variable("at", term_of_rows())
    given = Graph((cache, at), (term("scatter_elements", cache, at, term("exp", first_row(cache)), axis=2),))
    assert generate_cpp(apart(given)).count("static void kernel_") == 3


def test_what_the_second_update_reads_of_the_cache_is_read_before_the_first_one() -> None:
    """The second row is computed from the cache, in whose memory the first one is stored."""
    cache, new = leaf("cache", "float32", 4, 6), leaf("new", "float32", 1, 6)
    at, then = (leaf(name, "int64", 1, 1) for name in ("at", "then"))
    read = term("exp", term("slice", cache, axes=(0,), starts=(2,), ends=(3,), steps=(1,)))
    first = term("scatter_nd", cache, at, term("relu", new))
    graph = apart(goals_of(term("scatter_nd", first, then, read)))
    arrays = dict(zip(graph.inputs, numbers(graph, 2), strict=True))
    arrays[then] = np.array([[0]])
    (wanted,) = exact(graph, arrays)
    memory = arrays[cache].copy()
    NativeKernel(graph).bound([memory if x is cache else arrays[x] for x in graph.inputs], [memory])()
    assert close(memory, wanted)


def test_a_kernel_of_two_results_does_not_store_them_over_others() -> None:
    """The kernel runs before the copies of both caches, which would replace its rows."""
    keys, values = goals()["two caches"].outputs
    given = goals_of(
        keys, term("scatter_elements", values.args[0], values.args[1], term("relu", values.args[2]), axis=2)
    )
    (found,) = superoptimize(given, best=1, device=CPU_DEVICE, budget=20, max_kernels=1)
    arrays = numbers(found.graph, 3)
    wanted = exact(found.graph, dict(zip(found.graph.inputs, arrays, strict=True)))
    assert all(map(close, NativeKernel(found.graph)(*arrays), wanted))
    assert found.graph.outputs[0].args[2].args[0].op == "item"
    direct = Graph(found.graph.inputs, tuple([direct_of(output) for output in found.graph.outputs]))
    for make in (generate_cpp, codegen.program):
        with pytest.raises(Unsupported, match="another result"):
            make(direct)


def direct_of(output: Any) -> Any:
    """The result without the copy of its update."""
    whole, at, copied = output.args
    return term(output.op, whole, at, *copied.args, axis=2)


def term_of_rows() -> Any:
    return goals()["row by elements"].outputs[0].args[1].tensor


def first_row(cache: Any) -> Any:
    return term("slice", cache, axes=(2,), starts=(0,), ends=(1,), steps=(1,))


def test_a_kernel_does_not_read_what_others_are_stored_over() -> None:
    graph = scattered()["several_rows"]
    (whole,) = graph.outputs
    reader = kernel([(whole, (0,), -1)], lambda t: term("exp", t), (2,), 1, (0,))
    again = Graph(graph.inputs, (whole, reader))
    with pytest.raises(Unsupported, match="reads scatter_nd"):
        generate_cpp(again)
    with pytest.raises(Unsupported, match="reads scatter_nd"):
        codegen.program(again)


@pytest.mark.parametrize("reduction", ["add", "max"])
def test_folded_updates_are_no_parts(reduction: str) -> None:
    whole, at, new = goals()["several rows"].outputs[0].args
    assert not stored_goal(goals_of(term("scatter_nd", whole, at, new, reduction=reduction))).stores


def goals_of(*outputs: Any) -> Graph:
    return goal(outputs)


def test_rows_of_a_grid_of_other_positions_are_no_parts() -> None:
    """The indices of two axes are exchanged: each update is at other heads."""
    whole, indices, new = goals()["row by a grid"].outputs[0].args
    first, second, at = indices.args
    for columns in ((second, first, at), (first, at, second), (at, second, at)):
        wrong = term("scatter_nd", whole, term("concat", *columns, axis=3), new)
        assert not stored_goal(goals_of(wrong)).stores
