"""The column whose product with a row is the largest, in kernels of loops: the bounds by numbers of
8 bits never rule out the largest one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from loop_models import greedy, loop
from numpy.typing import NDArray

from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.errors import Unsupported
from taso_mirage.forms.recurrence import Recurrence
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.operators.ops import term

ROWS, DEPTH, COLUMNS = 64, 32, 1003
"""Steps, and the sizes of the matrix, some of whose columns are no whole group."""


def products() -> Node:
    """For each element of a sequence of rows, the first column of a matrix with the largest
    product."""
    given = variable("x0", Tensor("int64", (1,))), variable("x1", Tensor("float32", (1, DEPTH)))
    leaves = *given, variable("x2", Tensor("float32", (DEPTH, COLUMNS)))
    best = term("argmax", term("matmul", leaves[1], leaves[2]), axis=1, keepdims=0)
    operands = [variable(f"y{i}", x.tensor) for i, x in enumerate(leaves)]
    operands[1] = variable("y1", Tensor("float32", (ROWS, 1, DEPTH)))
    return term("scan", *operands, body=Graph(leaves, (best, best)), states=1, sequences=1)


@cache
def kernel() -> NativeKernel:
    right = Recurrence(products())
    return NativeKernel(Graph(tuple(right.node.args), right.results(right.kernel(()))))


def found(x: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.int64]:
    """The columns by the kernel."""
    last, every = kernel()(np.zeros(1, np.int64), x[:, None].astype(np.float32), b.astype(np.float32))
    assert last[0] == every[-1, 0]
    made: NDArray[np.int64] = every[:, 0]
    return made


def draw(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(ROWS, DEPTH)).astype(np.float32), rng.normal(size=(DEPTH, COLUMNS)).astype(np.float32)


def scaled(seed: int, x_scale: float, b_scale: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    x, b = draw(seed)
    return x * np.float32(x_scale), b * np.float32(b_scale)


def close_columns(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Columns that differ in the fourth digit, far below a unit of 8 bits."""
    x, b = draw(seed)
    return x, b[:, :1] + b * np.float32(1e-4)


def wide_rows(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows and columns of elements of many sizes."""
    x, b = draw(seed)
    spread = (np.float32(10.0) ** np.arange(-8, 8, 0.5)).astype(np.float32)
    return x * spread, b / spread[:, None] * (1 + np.arange(COLUMNS, dtype=np.float32) % 7)


CASES = {
    "normal": draw(0),
    "huge": scaled(1, 1e15, 1e18),
    "small": scaled(2, 1e-14, 1e-14),
    "tiny rows": scaled(3, 1e-30, 1.0),
    "tiny columns": scaled(4, 1.0, 1e-30),
    "close columns": close_columns(5),
    "elements of many sizes": wide_rows(6),
}


@pytest.mark.parametrize("name", CASES)
def test_the_column_found_has_the_largest_product(name: str) -> None:
    x, b = CASES[name]
    exact = x.astype(np.float64) @ b.astype(np.float64)
    slack = DEPTH * 2.0**-23 * np.abs(x).astype(np.float64) @ np.abs(b).astype(np.float64)
    place = found(x, b)
    rows = np.arange(ROWS)
    assert (exact[rows, place] >= (exact - slack).max(axis=1) - slack[rows, place]).all()
    assert len(set(place)) > 8


def test_the_first_of_equal_columns_is_taken() -> None:
    x, b = draw(7)
    before = found(x, b)
    assert (found(x, np.concatenate([b[:, :500], b[:, :500], b[:, :3]], axis=1)) < 500).all()
    assert (found(x, np.zeros_like(b)) == 0).all()
    assert (found(np.zeros_like(x), b) == 0).all()
    at = before[0]
    b[:, -1] = b[:, at]
    assert found(x, b)[0] == at


def test_infinity_is_the_largest_and_nan_rules_out_nothing() -> None:
    x, b = draw(8)
    x[:, 0] = 1
    at = found(x, b)
    b[0, 700] = np.inf
    assert (found(x, b) == 700).all()
    b[0, 700] = -np.inf
    assert (found(x, b)[at != 700] == at[at != 700]).all()
    b[:, 700] = np.nan
    assert (found(x, b)[at != 700] == at[at != 700]).all()


def test_a_loop_of_few_steps_does_not_read_its_matrix_in_advance() -> None:
    """Without that it has no kernel, whose folds are of floats."""
    sources = []
    for steps in (4, 64):
        (right,) = {o.args[0] for o in loop(greedy(steps, w=512)).outputs}
        goal = Recurrence(right)
        graph = Graph(tuple(right.args), goal.results(goal.kernel(())))
        sources += [generate_cpp(graph)] if steps > 4 else []
        if steps == 4:
            with pytest.raises(Unsupported, match="folds are of floats"):
                generate_cpp(graph)
    assert "BestColumn<8, 512>" in sources[0]


def test_a_product_may_be_written_as_gemm() -> None:
    right = products()
    (x, b), body = right.attr("body").inputs[1:], right.attr("body")
    best = term("argmax", term("gemm", x, b), axis=1, keepdims=0)
    other = term("scan", *right.args, **{**dict(right.attrs), "body": Graph(body.inputs, (best, best))})
    goal = Recurrence(other)
    assert "BestColumn<" in generate_cpp(Graph(tuple(other.args), goal.results(goal.kernel(()))))
