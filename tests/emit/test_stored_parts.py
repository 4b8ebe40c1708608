"""Programs whose kernels store parts of a result at their places.

`test_moved_operands_cpp.py` and `test_moved_operands_gpu.py` run them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mugraphs import kernel, leaf
from native_kernels import exact
from stored_goals import parted

from taso_mirage.emit import triton as codegen
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import Batch
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.operators.ops import term


def test_a_part_is_a_place_in_the_result() -> None:
    source = generate_cpp(parted()["two_products"])
    assert source.count("static void kernel_") == 2
    assert "static_cast<char*>(outputs[0]) + 32" in source


def test_a_part_has_a_start_and_strides() -> None:
    source = codegen.program(parted()["carried_columns"]).source
    assert source.count("torch.empty") == 1
    left, right = [line.strip() for line in source.splitlines() if "tl.store" in line]
    assert left.startswith("tl.store(out + (g0 * 3 + r16[:, None]) * 13 + ")
    assert right.startswith("tl.store(out + 8 + ")


def test_parts_compile_without_a_gpu() -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    for each in compiled(codegen.program(parted()["cache"]), 90):
        assert each.cubin[:4] == b"\x7fELF"


def elementwise(x: Node, op: str) -> Node:
    made: Callable[[Node], Node] = lambda t: term(op, t)  # noqa: E731
    return kernel([(x, (0,), -1)], made, (1,), 1, (0,))


def test_parts_that_no_kernel_stores_alone_are_refused() -> None:
    """In Triton; a program in C++ copies them."""
    x = leaf("x", "float32", 1, 6)
    made = elementwise(x, "relu")
    graphs = [
        Graph((x,), outputs)
        for outputs in (
            (term("concat", made, x, axis=0),),
            (term("concat", made, made, axis=0),),
            (term("concat", made, elementwise(made, "exp"), axis=0), made),
        )
    ]
    for graph in graphs:
        with pytest.raises(Unsupported, match="part"):
            codegen.program(graph)
    numbers = np.random.default_rng(0).normal(size=(1, 6)).astype(np.float32)
    (found, own), (right, _) = NativeKernel(graphs[-1])(numbers), exact(graphs[-1], {x: numbers})
    assert np.allclose(found, right, rtol=1e-5)
    assert np.array_equal(own, np.maximum(numbers, 0))


def test_a_cache_in_the_memory_of_its_result_is_not_copied() -> None:
    """A caller may append rows in place: the rows before them stay where they are."""
    graph = parted()["carried_rows"]
    source = generate_cpp(graph)
    assert source.count("if (inputs[") == 1
    kernel, rng = NativeKernel(graph), np.random.default_rng(0)
    inputs = [rng.normal(size=x.shape).astype(np.float32) for x in graph.inputs]
    (wanted,) = kernel(*inputs)
    memory = np.zeros(graph.outputs[0].shape, np.float32)
    rows = memory[:4]
    rows[:] = inputs[0]
    rows.flags.writeable = False  # of this view alone
    kernel.bound([rows, *inputs[1:]], [memory])()
    assert np.array_equal(memory, wanted)


@pytest.mark.parametrize("name", ["carried_columns", "cache"])
def test_rows_that_lie_otherwise_in_the_result_are_always_copied(name: str) -> None:
    assert "if (inputs[" not in generate_cpp(parted()[name])


def test_parts_of_samples_are_refused() -> None:
    x = leaf("x", "float32", 1, 6)
    joined = term("concat", elementwise(x, "relu"), elementwise(x, "exp"), axis=1)
    with pytest.raises(Unsupported, match="samples"):
        codegen.program(Graph((x,), (joined,)), batch=Batch(1, (True,)))
