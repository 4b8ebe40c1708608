"""Regions with movements: slices and concatenations that kernels read in place are in them."""

from __future__ import annotations

import onnx
import pytest
from block_linear_models import model as weighted
from moved_goals import part

from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.regions.fragments import fragments
from taso_mirage.regions.free_regions import free_regions

S = symbol("s")


def leaf(name: str, *shape: Dim) -> Node:
    return variable(name, Tensor("float32", shape))


def rotary(s: Dim) -> Graph:
    x, cos, sin = leaf("x", 2, 8, s, 64), leaf("cos", s, 64), leaf("sin", s, 64)
    half = term("concat", term("neg", part(x, 3, 32, 64)), part(x, 3, 0, 32), axis=3)
    return Graph((x, cos, sin), (term("add", term("mul", x, cos), term("mul", half, sin)),))


def attention(s: Dim) -> Graph:
    """Attention to a cache of keys, which are values too, and a new one."""
    past, new, query = leaf("past", 8, s, 64), leaf("new", 8, 1, 64), leaf("query", 8, 1, 64)
    keys = term("concat", past, new, axis=1)
    scores = term("softmax", term("matmul", query, term("transpose", keys, perm=(0, 2, 1))), axis=2)
    return Graph((past, new, query), (term("matmul", scores, keys),))


def model(graph: Graph) -> Model:
    return from_ir(from_proto(onnx.load_from_string(serialize(standalone(graph, {"": 20}, {})))))


@pytest.mark.parametrize("size", [256, S])
def test_a_rotary_embedding_is_one_region(size: Dim) -> None:
    found, left_out = free_regions(model(rotary(size)), {"s": 256}, 1, False)
    ((kind, sites),) = found.items()
    assert not left_out
    assert len(sites[0].names) == 7
    assert (kind.free is None) == (size == 256)


def test_a_concatenation_along_a_free_size_is_in_the_region() -> None:
    """The goal is searched where the keys, not the cache, have whole tiles."""
    for size in (255, S):
        ((kind, _),) = free_regions(model(attention(size)), {"s": 255}, 1, False)[0].items()
        assert any(n.op == "concat" for n in kind.goal)
        assert kind.goal.inputs[0].shape == (8, 255, 64)
        assert (kind.free is None) == (size == 255)


def test_a_part_that_some_lengths_lack_is_outside_of_the_region() -> None:
    """A window of 8 keys would begin before the first of fewer."""
    cache, scale = leaf("cache", 4, S, 64), leaf("scale", 64)
    window = term("slice", cache, axes=(1,), starts=(S - 8,), ends=(S,), steps=(1,))
    ((kind, _),) = free_regions(
        model(Graph((cache, scale), (term("softmax", term("mul", window, scale), axis=2),))), {"s": 64}, 1, False
    )[0].items()
    assert not any(n.op == "slice" for n in kind.goal)


def test_the_parts_of_an_operator_stay_together() -> None:
    """The results of the operator have other users each, and would be lanes."""
    x, w = leaf("x", symbol("b"), 1, 96), leaf("w", 32)
    parts = term("split", x, axis=2, split=(64, 32))
    a, b = (term("item", parts, index=i) for i in range(2))
    results = term("softmax", term("mul", b, w), axis=2), term("relu", term("mul", a, a))
    assert free_regions(model(Graph((x, w), results)), {"b": 2}, 1, False)[0]


def test_rows_that_integers_choose_are_in_the_region_that_reads_them() -> None:
    """Integers that a kernel only reads as rows are among its inputs; others are not."""
    table, rows = leaf("table", 20, 64), variable("rows", Tensor("int64", (6,)))
    x = term("gather", table, rows, axis=0)
    norm = term("div", x, term("sqrt", term("reduce_mean", term("mul", x, x), axes=(1,))))
    ((kind, _),) = free_regions(model(Graph((table, rows), (norm,))), {}, 1, False)[0].items()
    assert any(n.op == "gather" for n in kind.goal)
    scaled = term("mul", norm, term("cast", term("reshape", rows, shape=(6, 1)), to="float32"))
    ((kind, _),) = free_regions(model(Graph((table, rows), (scaled,))), {}, 1, False)[0].items()
    assert not any(n.op == "cast" for n in kind.goal)


def test_an_operator_that_projects_its_attention_is_in_no_region() -> None:
    """The operator has three products in turn, the first split in three parts."""
    w, b, out = (
        weight(name, Tensor("float32", shape)) for name, shape in (("w", (16, 48)), ("b", (48,)), ("o", (16, 16)))
    )
    packed = term("packed_attention", leaf("x", 1, 8, 16), w, b, num_heads=2)
    found = fragments(weighted(term("relu", term("matmul", packed, out))), {})
    ((graph, _),) = found.items()
    assert [n.op for n in graph if n.args] == ["matmul", "relu"]


def written(rows: Dim, gate: bool = True) -> Graph:
    """A cache with a gated key at a position of a run, and attention to it."""
    cache, at = leaf("cache", rows, 64), variable("at", Tensor("int64", (1, 1)))
    key, query = leaf("key", 1, 64), leaf("query", 1, 64)
    new = term("mul", key, term("sigmoid", term("exp", key))) if gate else key
    keys = term("scatter_nd", cache, at, new)
    scores = term("softmax", term("matmul", query, term("transpose", keys, perm=(1, 0))), axis=1)
    return Graph((cache, at, key, query), (keys, term("matmul", scores, keys)))


def test_new_rows_of_a_cache_are_in_the_region_that_computes_them() -> None:
    """The attention that reads the cache is another region."""
    kinds, _ = free_regions(model(written(256)), {}, 1, False)
    operators = [sorted(n.op for n in kind.goal if n.args) for kind in kinds]
    assert ["exp", "mul", "scatter_nd", "sigmoid"] in operators
    assert sum("scatter_nd" in each for each in operators) == 1


@pytest.mark.parametrize("graph", [written(S), written(256, gate=False)])
def test_a_scatter_of_inputs_or_of_a_free_size_is_in_no_region(graph: Graph) -> None:
    kinds, _ = free_regions(model(graph), {"s": 256}, 1, False)
    assert not any(n.op == "scatter_nd" for kind in kinds for n in kind.goal)
