"""Kernels whose operands are moved elements of tensors: chains of movements as loads in Triton."""

from __future__ import annotations

from pathlib import Path

import in_turn
import mugraphs
import numpy as np
import pytest
from random_movements import movements

from taso_mirage.emit import triton as codegen
from taso_mirage.emit.compile import compiled
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Node, numpy_dtype, topological
from taso_mirage.meanings.reals import Reals
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term

pytest.importorskip("triton", reason="the extra `triton` is not installed")
SEEDS = range(24)


def added(node: Node, seed: int = 0) -> Graph:
    """A kernel that adds a moved operand to itself, in blocks along a dim that can be cut."""
    sizes = [int(n) for n in node.shape]
    axis = seed % max(len(sizes), 1)
    count = next((k for k in (3, 2) if sizes and sizes[axis] % k == 0 and sizes[axis] > k), 1)
    cut = axis if count > 1 else -1
    made = mugraphs.kernel([(node, (cut,), -1)], lambda t: term("add", t, t), (count,), 1, (cut if count > 1 else 0,))
    return Graph(tuple(x for x in topological([node]) if x.op == "input"), (made,))


def values(graph: Graph, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-4, 4, x.shape)
        if x.dtype == "int64"
        else rng.standard_normal(x.shape).astype(numpy_dtype(x.dtype))
        for x in graph.inputs
    ]


def wanted(graph: Graph, given: list[np.ndarray]) -> np.ndarray:
    moved = graph.outputs[0].args[0]
    return 2 * interpret([moved], Reals(), dict(zip(graph.inputs, given, strict=True)))[moved]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, programs = tmp_path_factory.mktemp("moved"), {}
    for seed in SEEDS:
        graph = added(movements(seed), seed)
        programs[f"seed_{seed}"] = codegen.program(graph).source, graph, values(graph, seed)
    in_turn.interpreted(folder, programs)
    return folder


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kernel_reads_moved_elements(seed: int, results: Path) -> None:
    graph = added(movements(seed), seed)
    found = np.load(results / f"seed_{seed}.npy")
    np.testing.assert_allclose(found, wanted(graph, values(graph, seed)), rtol=1e-6)


def test_moved_operands_compile_without_a_gpu() -> None:
    for seed in (1, 3):
        for each in compiled(codegen.program(added(movements(seed), seed)), 90):
            assert each.cubin[:4] == b"\x7fELF"


def test_a_computed_operand_is_refused_by_its_name() -> None:
    x = mugraphs.leaf("X", "float32", 4, 6)
    with pytest.raises(Unsupported, match="relu between kernels"):
        codegen.program(added(term("relu", x)))
