"""Products of many rows on a processor's matrix unit, in single precision: their results where
there is one and by vectors, the numbers that its parts cannot hold, and the machines that get
them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named_models import x
from native_kernels import QUICK, complaints, computes, exact, values

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.machine import has_matrix_unit
from taso_mirage.emit.cpp import generate_all
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.forms import linear
from taso_mirage.forms.linear import TILED, WeightProduct, weight_products
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import ABSENT, Graph, Tensor, variable
from taso_mirage.lowering import cpu as lowering
from taso_mirage.lowering.cpu import CpuLowering
from taso_mirage.operators.ops import term

CASES = (
    ((3,), 40, 33, "", (32, 32, 1)),
    ((33,), 70, 100, "bias", (64, 32, 2)),
    ((2, 23), 31, 64, "bias, sum", (32, 32, 2)),
    ((40,), 833, 17, "gelu", (32, 32, 1)),
    (("n",), 66, 40, "bias", (32, 32, 2)),
)
"""Rows (a name is a size of the run), elements of the sum, columns, followers, and block: one tile
or several, sums in one piece or in two, columns and sums that fill no tile."""
ROWS = 35
"""The rows of a run that gives them."""
NARROW = {1: "bfloat16", 2: "half", 3: "single"}
"""The parts that numbers of a format have."""


def case(rows: tuple[Any, ...], k: int, n: int, follows: str, block: tuple[int, int, int]) -> tuple[Graph, Graph]:
    """The kernel's muGraph and its goal."""
    shape = tuple([symbol(size) if isinstance(size, str) else size for size in rows])
    data = variable("x", Tensor("float32", (*shape, k)))
    bias = x("b", n) if "bias" in follows else ABSENT
    z = variable("z", Tensor("float32", (*shape, n))) if "sum" in follows else ABSENT
    made = WeightProduct(data, x("w", k, n), bias, z)
    leaves = tuple([leaf for leaf in (made.x, made.w, bias, z) if leaf is not ABSENT])
    if follows == "gelu":
        goal = Graph(leaves, (term("gelu", made.goal()),))
        read = weight_products(goal)
        assert read is not None
        made = read.parts[0]
    goal = Graph(leaves, (made.goal(),))
    return Graph(leaves, (made.mugraph(block),)), goal


def in_format(array: Any, parts: int) -> Any:
    """The nearest numbers that so many parts of bfloat16 hold."""
    if parts == 2:
        return array.astype(np.float16).astype(np.float32)
    return (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if parts == 1 else array


@cache
def library(*flags: str) -> Path:
    return build(generate_all({f"case_{i}": case(*given)[0] for i, given in enumerate(CASES)}), None, (*QUICK, *flags))


def kernels(*flags: str) -> Iterator[tuple[NativeKernel, Graph]]:
    for i, given in enumerate(CASES):
        graph, goal = case(*given)
        yield NativeKernel(graph, f"case_{i}", threads=2, library=library(*flags)), goal


def run_values(goal: Graph) -> dict[Any, Any]:
    """Random inputs, with ROWS rows where a run gives them."""
    fixed = [Tensor(leaf.dtype, tuple([n if isinstance(n, int) else ROWS for n in leaf.shape])) for leaf in goal.inputs]
    drawn = values(Graph(tuple([variable(str(i), type) for i, type in enumerate(fixed)]), ()))
    return dict(zip(goal.inputs, drawn.values(), strict=True))


@pytest.mark.parametrize(
    "flags", [(), ("-mno-amx-bf16",), ("-mno-avx512f", "-mno-amx-bf16")], ids=["native", "vectors", "8"]
)
def test_the_kernel_computes_the_product(flags: tuple[str, ...]) -> None:
    """On two threads, of weights that have one part, two and three."""
    for kernel, goal in kernels(*flags):
        given = run_values(goal)
        weights = goal.inputs[1]
        for parts in NARROW:
            now = given | {weights: in_format(given[weights], parts)}
            assert computes(kernel, goal, now, 1e-6)
            (prepared,) = kernel.prepared(list(now.values()))
            assert prepared[0] == (parts if has_matrix_unit() and not flags else 0)


def largest_error(kernel: NativeKernel, goal: Graph) -> float:
    """Relative, where a row has one number, so that a result is one product."""
    data, weights, bias = run_values(goal).values()
    bias[:] = 0
    single = np.zeros_like(data)
    single[np.arange(len(data)), np.arange(len(data)) * 2] = data[:, 0]
    (found,) = kernel(single, weights, bias)
    wanted = data[:, :1].astype(float) * weights[: 2 * len(data) : 2].astype(float)
    return float((np.abs(found - wanted) / np.abs(wanted)).max())


def test_each_result_has_the_digits_of_single_precision() -> None:
    assert largest_error(*list(kernels())[1]) < 2.0**-21


@pytest.mark.skipif(not has_matrix_unit(), reason="there is no matrix unit")
@pytest.mark.sampled(2)
def test_without_the_smallest_of_its_products_a_result_lacks_digits() -> None:
    graph, goal = case(*CASES[1])
    source, dropped = generate_all({"mutant": graph}), "load_weights(w + PAIR), add_products<BOTH>();\n    }"
    before, _, after = source.rpartition(dropped)
    assert before.count(dropped) == 0
    mutant = NativeKernel(graph, "mutant", library=build(f"{before}load_weights(w + PAIR);}}{after}", None, QUICK))
    assert largest_error(mutant, goal) > 2.0**-20


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4e38, 1e-30, 1e-42], ids=str)
def test_numbers_that_parts_do_not_hold_have_the_same_results(value: float) -> None:
    """In one row, of which a small number is the largest one; other rows stay as they are."""
    kernel, goal = list(kernels())[1]
    data, weights, bias = run_values(goal).values()
    weights, bias = np.abs(weights) / 2 + np.float32(0.125), np.zeros_like(bias)
    before = kernel(data, weights, bias)[0]
    data[5] = np.float32(value) * np.linspace(0.5, 1, data.shape[1], dtype=np.float32) if value < 1 else 0
    data[5, 0] = value
    (found,) = kernel(data, weights, bias)
    np.testing.assert_array_equal(np.delete(found, 5, 0), np.delete(before, 5, 0))
    with np.errstate(all="ignore"):
        wanted = (data[5].astype(float) @ weights).astype(np.float32)
    np.testing.assert_allclose(found[5], wanted, rtol=1e-6, atol=2e-44)


@pytest.mark.parametrize("value", [np.inf, np.nan, 3.4e38, 1e-30], ids=str)
def test_weights_that_parts_do_not_hold_lie_as_they_are(value: float) -> None:
    kernel, goal = list(kernels())[1]
    data, weights, bias = run_values(goal).values()
    data, bias = np.abs(data) / 2 + np.float32(0.125), np.zeros_like(bias)
    weights[:, 0] *= 0
    weights[3] = weights[3] * 0 + np.float32(value)
    weights = weights if value > 1 or value != value else np.full_like(weights, value)
    (prepared,), (found,) = kernel.prepared([data, weights, bias]), kernel(data, weights, bias)
    assert prepared[0] == 0
    with np.errstate(all="ignore"):
        wanted = (data.astype(float) @ weights.astype(float)).astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_rows_of_zeros_are_multiplied_by_tiles() -> None:
    kernel, goal = next(kernels())
    data, weights = run_values(goal).values()
    data[1] = 0
    (found,) = kernel(data, weights)
    (wanted,) = exact(goal, dict(zip(goal.inputs, (data, weights), strict=True)))
    np.testing.assert_array_equal(found[1], np.zeros(len(found[1]), np.float32))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_no_sanitizer_complains(tmp_path: Path) -> None:
    assert not complaints({f"case_{i}": case(*CASES[i])[0] for i in (1, 2)}, tmp_path, ("0.3333333", "0x1p-100"))


def test_a_machine_with_a_matrix_unit_tries_tiles_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that fills a tile, whose kernels may save more time."""
    saved = []
    for there in (True, False):
        monkeypatch.setattr(linear, "has_matrix_unit", lambda there=there: there)
        for rows in (31, 32):
            made = WeightProduct(x("x", rows, 512), x("w", 512, 512))
            first = next(made.blocks())[:2]
            assert (first == TILED[0]) == (there and rows == 32)
        saved.append(made.saved(CPU_DEVICE))
    assert saved[0] > saved[1]


def test_a_machine_with_a_matrix_unit_keeps_choices_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of the same name without one has other fastest kernels."""
    keys = []
    for there in (True, False):
        monkeypatch.setattr(lowering, "has_matrix_unit", lambda there=there: there)
        keys.append(CpuLowering().key)
    assert keys[0] != keys[1]


def cpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for given in CASES:
        yield f"tile_linear/{given}", case(*given)[0]
