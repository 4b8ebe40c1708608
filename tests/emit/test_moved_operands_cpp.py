"""Kernels whose operands only move elements, or that store parts of a result, in C++: each computes
what its term means, and a wrong index map makes another result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moved_operands import MOVED, arrays, chained, decoded
from native_kernels import QUICK, complaints, exact
from scattered_goals import scattered
from stored_goals import parted

from taso_mirage.emit import cpp
from taso_mirage.emit.cpp import CppProgram, generate_all
from taso_mirage.emit.cpu import blocks
from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.meanings.index_maps import IndexMap, IndexPiece
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.movements import index_map, is_moved, moved_elements

SEEDS = 32
DTYPES = ("float32", "float16")


@cache
def graphs() -> dict[str, Graph]:
    named = {f"{name.replace(' ', '_')}_{dtype}": make(dtype) for name, make in MOVED.items() for dtype in DTYPES}
    return named | parted() | scattered() | {f"chain_{seed}": chained(seed, "float32") for seed in range(SEEDS)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        generate_all({**graphs(), "any_length": decoded("float32", symbol("s"))}),
        tmp_path_factory.mktemp("moved"),
        QUICK,
    )


@pytest.mark.parametrize("keys", [1, 6, 64])
def test_a_cache_may_have_any_length(library: Path, keys: int) -> None:
    made = NativeKernel(decoded("float32", symbol("s")), "any_length", library=library)
    assert same(decoded("float32", keys), made)


def same(graph: Graph, made: NativeKernel, seed: int = 0) -> bool:
    given: list[Any] = arrays(graph, seed)
    (wanted,), (found,) = exact(graph, dict(zip(graph.inputs, given, strict=True))), made(*given)
    tolerance = 3e-6 if found.dtype == np.float32 else 2e-3
    return found.shape == wanted.shape and bool(np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("name", list(graphs()))
def test_a_kernel_over_moved_operands_computes_its_meaning(library: Path, name: str) -> None:
    graph = graphs()[name]
    assert same(graph, NativeKernel(graph, name, library=library))


def test_no_element_is_read_outside_of_its_tensor(tmp_path: Path) -> None:
    """Sanitizers find no error, with rows of every kind: negative ones, and too large ones."""
    stored = {**parted(), **scattered()}
    few = {name: graph for name, graph in [*list(graphs().items())[:30], *stored.items()] if "float16" not in name}
    assert not complaints(few, tmp_path, ("0", "-3", "99"))


# ---------------------------------------------------------------- wrong index maps


def wrong_maps(right: IndexMap) -> Iterator[IndexMap]:
    """Index maps that are not the right one by one mistake each: off by one, another part, without
    a mask or with one that is shifted, parts that are exchanged, another number or row."""
    pieces = right.pieces
    for i, piece in enumerate(pieces):
        others: list[IndexPiece] = []
        others += [
            replace(piece, index=moved) for axis in range(len(piece.index)) for moved in shifted(piece.index, axis)
        ]
        masks = piece.conditions
        others += [replace(piece, conditions=(*masks[:k], *masks[k + 1 :])) for k in range(len(masks))]
        others += [replace(piece, conditions=moved) for k in range(len(masks)) for moved in shifted(masks, k)]
        others += [replace(piece, source=x) for x in right.sources if x != piece.source and x.type == piece.source.type]
        for other in others:
            yield replace(right, pieces=(*pieces[:i], other, *pieces[i + 1 :]))
        yield replace(right, pieces=pieces[:i] + pieces[i + 1 :])
    for i, (first, second) in enumerate(pairwise(pieces)):
        exchanged = replace(first, conditions=second.conditions), replace(second, conditions=first.conditions)
        yield replace(right, pieces=(*pieces[:i], *exchanged, *pieces[i + 2 :]))
    if right.fill is not None and any(piece.conditions for piece in pieces):
        yield replace(right, fill=right.fill + 1)
    for k, (name, row) in enumerate(right.rows):
        counts = [replace(row, count=row.count + 1)] if row.source.op == "input" else []
        for other in [*counts, *(replace(row, index=x) for x in shifted(row.index, 0))]:
            yield replace(right, rows=(*right.rows[:k], (name, other), *right.rows[k + 1 :]))


def shifted(index: tuple[Any, ...], axis: int) -> list[tuple[Any, ...]]:
    return [(*index[:axis], index[axis] + by, *index[axis + 1 :]) for by in (1, -1)]


@cache
def wrong() -> dict[str, tuple[Graph, Node, IndexMap]]:
    """MuGraphs, each with a wrong map for one of its operands."""
    found: dict[str, tuple[Graph, Node, IndexMap]] = {}
    for name, make in MOVED.items():
        graph = make("float32")
        (kernel,) = graph.outputs
        for node in dict.fromkeys(filter(is_moved, kernel.args)):
            for each in wrong_maps(index_map(node)):
                found[f"wrong_{name.replace(' ', '_')}_{len(found)}"] = graph, node, each
    return found


@cache
def compiled() -> list[str]:
    """The ones whose programs are compiled."""
    return list(wrong())[::4]


@pytest.fixture(scope="module")
def wrong_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of wrong maps."""
    maps: dict[Node, IndexMap] = {}

    def program(graph: Graph, name: str, lazy: LazyMeaning) -> CppProgram:
        _, node, each = wrong()[name]
        maps.clear()
        maps[node] = each
        return CppProgram(graph, name, lazy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp, "CppProgram", program)
        patch.setattr(blocks, "index_map", lambda node: maps.get(node) or index_map(node))
        source = generate_all({name: wrong()[name][0] for name in compiled()})
    return build(source, tmp_path_factory.mktemp("wrong"), ("-march=native", "-O0"))


def refused(node: Node, found: IndexMap, graph: Graph) -> bool:
    """Whether the map has no partition of the positions, or other elements than the term."""
    given = dict(zip(graph.inputs, arrays(graph), strict=True))
    given |= {x: x.attr("value").numpy() for x in found.sources if x.op == "constant"}
    try:
        made = moved_elements(found, given)
    except (ValueError, IndexError):
        return True
    return not np.array_equal(made, interpret([node], EXACT, given)[node])


def test_wrong_index_maps_make_other_results_or_are_refused(wrong_library: Path) -> None:
    """Some maps that the check refuses still have a right program, which reads the first part that
    fits; the others differ."""
    different = 0
    for name in compiled():
        graph, node, each = wrong()[name]
        differs = not same(graph, NativeKernel(graph, name, library=wrong_library))
        different += differs
        assert differs or refused(node, each, graph), name
    assert different > len(compiled()) / 2


def test_every_wrong_index_map_is_refused() -> None:
    assert len(wrong()) >= 150
    assert [name for name, (graph, node, each) in wrong().items() if not refused(node, each, graph)] == []
