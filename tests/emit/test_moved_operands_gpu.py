"""Kernels whose operands only move elements, or that store parts of a result, in Triton: each
computes what its term means, and a wrong index map makes another result."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import in_turn
import numpy as np
import pytest
from moved_operands import IN_BODIES, MOVED, arrays, chained, joined, padded
from mugraphs import kernel, leaf
from native_kernels import exact
from scattered_goals import scattered, viewed_row
from stored_goals import parted

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton as codegen
from taso_mirage.emit.compile import compiled
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.operators.ops import term

pytest.importorskip("triton", reason="the extra `triton` is not installed")
SEEDS = 40
DTYPES = ("float32", "float16")


@cache
def graphs() -> dict[str, Graph]:
    named = {
        f"{name.replace(' ', '_')}_{dtype}": make(dtype)
        for name, make in MOVED.items()
        for dtype in DTYPES
        if name != IN_BODIES
    }
    named |= {f"chain_{seed}": chained(seed, "float32") for seed in range(SEEDS)}
    (found,) = superoptimize(viewed_row(), best=1, device=H100, budget=20)
    return named | parted() | scattered() | {"viewed_row": found.graph}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moved")
    in_turn.interpreted(
        folder, {name: (codegen.program(graph).source, graph, arrays(graph)) for name, graph in graphs().items()}
    )
    return folder


@pytest.mark.parametrize("name", list(graphs()))
def test_a_kernel_over_moved_operands_computes_its_meaning(name: str, results: Path) -> None:
    graph = graphs()[name]
    (wanted,) = exact(graph, dict(zip(graph.inputs, arrays(graph), strict=True)))
    found = np.load(results / f"{name}.npy")
    assert found.shape == wanted.shape
    tolerance = 2e-3 if "float16" in name else 3e-6
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("name", [f"{name}_float16" for name in ("rotary", "cached", "window", "embedding", "experts")])
def test_moved_operands_compile_without_a_gpu(name: str) -> None:
    for each in compiled(codegen.program(graphs()[name]), 90):
        assert each.cubin[:4] == b"\x7fELF"


def test_what_is_no_movement_of_inputs_is_refused_by_its_name() -> None:
    x = leaf("x", "float32", 4, 6)
    with pytest.raises(Unsupported, match="relu between kernels"):
        codegen.program(Graph((x,), (kernel([(term("relu", x), (0,), -1)], lambda t: term("exp", t), (2,), 1, (0,)),)))
    with pytest.raises(Unsupported, match="pad between kernels"):
        codegen.program(Graph((x,), (padded(x, 1, 0, 0, 0),)))


def test_one_affine_piece_is_another_offset() -> None:
    x = leaf("x", "float32", 4, 16)
    right = term("slice", x, starts=(8,), ends=(16,), axes=(1,), steps=(1,))
    made = kernel([(right, (0,), -1)], lambda t: term("exp", t), (4,), 1, (0,))
    assert "x_tile = tl.load(x + g0 * 16 + r8 + 8)" in codegen.program(Graph((x,), (made,))).source


def test_pieces_are_masked_loads_of_which_one_is_chosen() -> None:
    x, y = leaf("x", "float32", 4, 6), leaf("y", "float32", 4, 2)
    made = kernel([(joined(1, x, y), (0,), -1)], lambda t: term("exp", t), (4,), 1, (0,))
    lines = codegen.program(Graph((x, y), (made,))).source.splitlines()
    assert [line.strip() for line in lines if "tl.load" in line or "tl.where" in line] == [
        "x_tile = tl.load(x + g0 * 6 + r8, mask=r8 < 6, other=0)",
        "y_tile = tl.load(y + g0 * 2 + r8 + -6, mask=r8 >= 6, other=0)",
        "moved = tl.where(r8 < 6, x_tile, y_tile)",
    ]
