"""Reshapes at the border of a kernel: dims of loaded tensors are cut, and dims of stored ones
joined, by offsets alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import interpreter
import mugraphs
import pytest
from small_goals import DECODER, SMALL, half, several_queries

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.axes import grouped
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.operators.ops import term


@pytest.mark.parametrize(
    ("parts", "whole", "wanted"),
    [
        ((2, 3, 4), (6, 4), [[0, 1], [2]]),
        ((2, 3, 4), (24,), [[0, 1, 2]]),
        ((1, 2, 1, 64), (1, 1, 128), [[], [], [1, 3]]),
        ((4, 1, 1), (4,), [[0]]),
        ((4,), (1, 4, 1), [[], [0], []]),
        ((6, 4), (2, 3, 4), None),
        ((2, 3), (3, 2), None),
        ((2, 3), (2,), None),
        ((2,), (2, 3), None),
    ],
)
def test_dims_in_row_order(parts: tuple[int, ...], whole: tuple[int, ...], wanted: list[list[int]] | None) -> None:
    assert grouped(parts, whole) == wanted


def cut() -> tuple[Graph, Graph]:
    """Blocks cut the dim that is taken apart, and the one that is put together, in parts that no
    power of two divides."""
    a = half("a", 2, 36)

    def body(t: Node) -> Node:
        parts = term("reshape", t, shape=(2, 3, 4))
        shares = term("div", parts, term("reduce_sum", term("mul", parts, parts), axes=(2,), keepdims=1))
        return term("reshape", shares, shape=(2, 12))

    parts = term("reshape", a, shape=(2, 9, 4))
    shares = term("div", parts, term("reduce_sum", term("mul", parts, parts), axes=(2,), keepdims=1))
    made = mugraphs.kernel([(a, (1,), -1)], body, (3,), 1, (1,))
    return Graph((a,), (made,)), Graph((a,), (term("reshape", shares, shape=(2, 36)),))


def looped() -> tuple[Graph, Graph]:
    """The loop cuts the dim that is taken apart; a reader of the whole has it as it is."""
    a, w = half("a", 4, 96), half("w", 16, 4)

    def body(t: Node, u: Node) -> tuple[Node, ...]:
        parts = term("reshape", t, shape=(4, 3, 16))
        product = term("einsum", parts, u, equation="abc,cd->abd")
        return (
            term("accumulate", term("reduce_sum", product, axes=(1,), keepdims=0), over="sum"),
            term("accumulate", term("reduce_sum", t, axes=(1,), keepdims=0), over="sum"),
        )

    made = mugraphs.parts(mugraphs.kernel([(a, (-1,), 1), (w, (-1,), -1)], body, (1,), 2, (-1,), (-1,)))
    parts = term("reshape", a, shape=(4, 6, 16))
    product = term("einsum", parts, w, equation="abc,cd->abd")
    goal = (term("reduce_sum", product, axes=(1,), keepdims=0), term("reduce_sum", a, axes=(1,), keepdims=0))
    return Graph((a, w), tuple(made)), Graph((a, w), goal)


INTERPRETED = """
import json, sys
from pathlib import Path
import torch
from taso_mirage.emit.compile import load_source as load
from taso_mirage.lowering.cuda import Float64Oracle, _program
from taso_mirage.mugraph.checkpoint import from_json

torch.manual_seed(0)
given = json.loads(Path(sys.argv[1]).read_text())
goal = from_json(given[0])
inputs = [torch.randn([int(n) for n in x.shape]).half() for x in goal.inputs]
for i, record in enumerate(given[1]):
    results = load(_program(record).source, Path(sys.argv[1]).parent, f"program{i}").launch(*inputs)
    print(Float64Oracle(goal)(inputs, results if isinstance(results, tuple) else (results,)))
"""


@pytest.mark.sampled(3)
def test_heads_of_several_queries_are_cut_and_joined(tmp_path: Path) -> None:
    """Products pad them to 16 rows: a tile with lanes beyond its sizes cannot be reshaped."""
    pytest.importorskip("torch")
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    wanted = several_queries(*SMALL)
    found = Search(wanted, SearchOptions(), H100).run(12, 60.0)
    programs = [triton.program(each.graph) for each in found]
    assert any("tl.dot" in p.source for p in programs)
    assert not any("tl.reshape" in p.source for p in programs)
    records = [
        {"mugraph": to_json(f.graph), "schedules": [asdict(each.schedule) for each in p.launches]}
        for f, p in zip(found, programs, strict=True)
    ]
    assert interpreted(wanted, records, tmp_path) == ["True"] * len(found)
    assert all(each.cubin for each in compiled(programs[0], 90))


def test_every_mugraph_of_a_decoders_attention_has_a_form() -> None:
    """Six of the 24 had one where tiles were reshaped."""
    found = Search(several_queries(*DECODER), SearchOptions(), H100).run(24, 120.0)
    programs = [triton.program(each.graph) for each in found]
    assert len(programs) == 24
    assert all("tl.reshape" not in p.source for p in programs)


def interpreted(wanted: Graph, records: list[dict[str, Any]], folder: Path) -> list[str]:
    """Whether each of some muGraphs computes a goal, in Triton's interpreter."""
    (folder / "given.json").write_text(json.dumps([to_json(wanted), records]))
    done = interpreter.run(INTERPRETED, folder / "given.json")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(("make", "offsets"), [(cut, ["g0 * 12", "* 4"]), (looped, ["t * 48", "* 16", "evict_last"])])
def test_dims_that_blocks_or_the_loop_cut(
    make: Callable[[], tuple[Graph, Graph]], offsets: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    graph, wanted = make()
    program = triton.program(graph)
    assert all(each in program.source for each in offsets)
    schedules = [asdict(each.schedule) for each in program.launches]
    assert interpreted(wanted, [{"mugraph": to_json(graph), "schedules": schedules}], tmp_path) == ["True"]
    assert all(each.cubin for each in compiled(program, 90))
