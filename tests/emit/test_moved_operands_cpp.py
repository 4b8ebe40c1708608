"""Kernels whose operands only move elements, in C++: each computes what its term means, and a wrong
index map makes another result."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moved_operands import MOVED, arrays, chained
from native_kernels import QUICK, exact

from taso_mirage.emit.cpp import generate_all
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.ir.terms import Graph

SEEDS = 40
DTYPES = ("float32", "float16")


@cache
def graphs() -> dict[str, Graph]:
    named = {f"{name.replace(' ', '_')}_{dtype}": make(dtype) for name, make in MOVED.items() for dtype in DTYPES}
    return named | {f"chain_{seed}": chained(seed, "float32") for seed in range(SEEDS)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(generate_all(graphs()), tmp_path_factory.mktemp("moved"), QUICK)


def same(graph: Graph, made: NativeKernel, seed: int = 0) -> bool:
    given: list[Any] = arrays(graph, seed)
    (wanted,), (found,) = exact(graph, dict(zip(graph.inputs, given, strict=True))), made(*given)
    tolerance = 3e-6 if found.dtype == np.float32 else 2e-3
    return found.shape == wanted.shape and bool(np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("name", list(graphs()))
def test_a_kernel_over_moved_operands_computes_its_meaning(library: Path, name: str) -> None:
    graph = graphs()[name]
    assert same(graph, NativeKernel(graph, name, library=library))
