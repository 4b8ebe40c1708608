"""Tiles that overlap: sizes that no power of two divides, cut all the same; the last block begins
earlier and computes some rows twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import interpreter
import numpy as np
import pytest
from mugraphs import leaf
from named_models import x

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton as codegen
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.mugraph import overlaps
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.mugraph.shrink import UNEVEN, cuts, shrunk, shrunk_sizes
from taso_mirage.mugraph.tilings import Tiled
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.verdicts import Evidence

TOKENS, HEADS, WIDTH = 37, 2, 16
"""A prime number of tokens."""


def attention(tokens: int = TOKENS) -> Graph:
    q, k, v = (leaf(name, "float32", HEADS, tokens, WIDTH) for name in "QKV")
    scores = term("matmul", q, term("transpose", k, perm=(0, 2, 1)))
    return Graph((q, k, v), (term("matmul", term("softmax", scores, axis=2), v),))


def squares(
    rows: int = 10, tile: int = 4, count: int = 3, omap: Any = ((0,),), body: Graph | None = None, **attrs: Any
) -> Node:
    """x * x by blocks of `tile` rows."""
    t = x("t", tile, 6)
    given: dict[str, Any] = {"grid": (count,), "loop": 1, "imap": ((0,),), "fmap": (-1,), "omap": omap}
    return term("kernel", x("x", rows, 6), body=body or Graph((t,), (term("mul", t, t),)), **(given | attrs))


def values(graph: Graph, given: list[Any]) -> list[Any]:
    leaves = dict(zip(graph.inputs, map(EXACT.load, given), strict=True))
    found = interpret(graph.outputs, EXACT, leaves)
    return [found[o] for o in graph.outputs]


# ---------------------------------------------------------------- kernels


@pytest.mark.parametrize(("rows", "tile", "count"), [(10, 4, 3), (9, 4, 3), (11, 4, 3), (5, 3, 2), (197, 32, 7)])
def test_every_row_is_there_once(rows: int, tile: int, count: int) -> None:
    node = squares(rows, tile, count)
    assert node.shape == (rows, 6)
    array = np.random.default_rng(0).normal(size=(rows, 6))
    (found,) = values(Graph((x("x", rows, 6),), (node,)), [array])
    np.testing.assert_array_equal(found, array * array)
    graph = Graph((x("x", rows, 6),), (node,))
    assert from_json(to_json(graph)) == graph


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"rows": 8, "count": 3}, "dimension 0 is 8, not 3 parts of 4"),  # two blocks would do
        ({"rows": 13}, "dimension 0 is 13, not 3 parts of 4"),
        ({"grid": (3, 2), "imap": ((0, 0),), "omap": ((0, 0),)}, "not 6 parts of 4"),
        ({"fmap": (0,), "loop": 2}, "not 6 parts of 4"),
    ],
)
def test_what_does_not_cover_a_dim_is_refused(attrs: dict[str, Any], said: str) -> None:
    with pytest.raises(IllTyped, match=said):
        squares(**attrs)


def test_all_that_a_grid_dim_cuts_has_the_same_tiles() -> None:
    t, u = x("t", 4, 6), x("u", 5, 6)
    shared = {"grid": (3,), "loop": 1, "imap": ((0,), (0,)), "fmap": (-1, -1)}
    total = term("add", t, term("reduce_sum", u, axes=(0,), keepdims=1))
    with pytest.raises(IllTyped, match="grid dim 0 cuts 10 into overlapping tiles of 4"):
        term("kernel", x("x", 10, 6), x("y", 15, 6), body=Graph((t, u), (total,)), omap=((0,),), **shared)
    half = Graph((t,), (term("slice", t, starts=(0,), ends=(2,), axes=(0,), steps=(1,)),))
    with pytest.raises(IllTyped, match="output 0: dimension 0 is 2, but grid dim 0 cuts 10 into overlapping tiles"):
        squares(body=half)


def test_a_cpu_has_no_blocks_that_overlap() -> None:
    graph = Graph((x("x", 10, 6),), (squares(),))
    with pytest.raises(Unsupported, match="overlap"):
        generate_cpp(graph)
    for found in Search(attention(), SearchOptions(), CPU_DEVICE).run(8, 20.0):
        assert not any(overlapping(found.graph))


# ---------------------------------------------------------------- the search


def overlapping(graph: Graph) -> list[Any]:
    made = [n for n in graph if n.op == "kernel"]
    return [
        each
        for n in made
        for each in overlaps([a.shape for a in n.args], n.attr("body"), n.attr("grid"), n.attr("imap"))
        if each is not None
    ]


@pytest.fixture(scope="module")
def found() -> list[FoundMuGraph]:
    return Search(attention(), SearchOptions(), H100).run(48, 60.0)


@pytest.mark.sampled(3)
def test_queries_of_a_prime_number_are_cut(found: list[FoundMuGraph]) -> None:
    some = [f.graph for f in found if overlapping(f.graph)]
    assert some
    for graph in some[:3]:
        assert isinstance(verified_mugraph(graph, attention(), seed=3), Evidence)
        rng = np.random.default_rng(0)
        given = [rng.normal(size=n.shape) for n in graph.inputs]
        np.testing.assert_allclose(values(graph, given)[0], values(attention(), given)[0], rtol=1e-9)


def test_sizes_that_powers_of_two_divide_are_cut_equally() -> None:
    assert not any(overlapping(f.graph) for f in Search(attention(64), SearchOptions(), H100).run(12, 60.0))


def test_a_sum_over_tiles_that_overlap_is_refused() -> None:
    """Elements of two blocks would be counted twice."""
    t = x("t", 4, 6)
    part = Graph((t,), (term("reduce_sum", t, axes=(0,), keepdims=1),))
    node = term(
        "kernel", x("x", 12, 6), body=part, grid=(3,), loop=1, imap=((0,),), fmap=(-1,), omap=((0,),)
    )  # exact, and right
    goal = Graph((x("x", 12, 6),), (term("reduce_sum", x("x", 12, 6), axes=(0,), keepdims=1),))
    right = Graph(goal.inputs, (term("reduce_sum", node, axes=(0,), keepdims=1),))
    array = np.random.default_rng(0).normal(size=(12, 6))
    np.testing.assert_allclose(values(right, [array])[0], values(goal, [array])[0])
    with pytest.raises(IllTyped, match="output 0: dimension 0 is 1"):
        squares(body=part)


def test_the_small_sizes_of_a_verification_overlap_too() -> None:
    goal = label(attention())
    queries = goal.outputs[0][1][0]
    tiles = {**goal.sizes, queries: 16}
    plan = [Tiled(None, tiles, 0.0)]  # type: ignore[arg-type]
    own = [cuts(plan[0], goal.sizes)]
    assert own[0][queries] == UNEVEN
    sizes = shrunk_sizes(goal, own)
    (small,) = shrunk(plan, own, sizes)
    assert sizes[queries] % small.tiles[queries]
    assert len(set(sizes.values())) == len(sizes)


# ---------------------------------------------------------------- code


RUN = """
import json, sys
from pathlib import Path
import torch
from taso_mirage.emit.compile import load_source as load
from taso_mirage.emit import triton
from taso_mirage.lowering.cuda import Float64Oracle
from taso_mirage.mugraph.checkpoint import from_json

torch.manual_seed(0)
goal, *graphs = map(from_json, json.loads(Path(sys.argv[1]).read_text()))
for i, graph in enumerate(graphs):
    inputs = [torch.randn([int(n) for n in x.shape]) for x in goal.inputs]
    results = load(triton.program(graph).source, Path(sys.argv[1]).parent, f"program{i}").launch(*inputs)
    assert Float64Oracle(goal)(inputs, results if isinstance(results, tuple) else (results,)), i
    print(i)
"""


def test_programs_with_tiles_that_overlap_are_right_in_tritons_interpreter(
    found: list[FoundMuGraph], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    graphs = [f.graph for f in found if overlapping(f.graph)][:3]
    (tmp_path / "graphs.json").write_text(json.dumps([to_json(attention()), *map(to_json, graphs)]))
    done = interpreter.run(RUN, tmp_path / "graphs.json")
    assert (done.returncode, done.stdout.split()) == (0, [str(i) for i in range(len(graphs))]), done.stderr[-2000:]


def test_they_compile(found: list[FoundMuGraph]) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    program = codegen.program(next(f.graph for f in found if overlapping(f.graph)))
    assert "tl.minimum(g" in program.source
    made = compiled(program, 90, tuple(replace(launch.schedule, stages=1) for launch in program.launches))
    assert all(each.cubin for each in made)
