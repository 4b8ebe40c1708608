"""The column whose product with a row is the largest, in kernels of loops: the bounds by numbers of
8 bits never rule out the largest one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from loop_models import greedy, loop
from numpy.typing import NDArray

from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.errors import Unsupported
from taso_mirage.forms.recurrence import Recurrence
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.operators.ops import term

ROWS, DEPTH, COLUMNS = 64, 32, 1003
"""Steps, and the sizes of the matrix, some of whose columns are no whole group."""


def products(columns: int = COLUMNS) -> Node:
    """For each element of a sequence of rows, the first column of a matrix with the largest
    product."""
    given = variable("x0", Tensor("int64", (1,))), variable("x1", Tensor("float32", (1, DEPTH)))
    leaves = *given, variable("x2", Tensor("float32", (DEPTH, columns)))
    best = term("argmax", term("matmul", leaves[1], leaves[2]), axis=1, keepdims=0)
    operands = [variable(f"y{i}", x.tensor) for i, x in enumerate(leaves)]
    operands[1] = variable("y1", Tensor("float32", (ROWS, 1, DEPTH)))
    return term("scan", *operands, body=Graph(leaves, (best, best)), states=1, sequences=1)


@cache
def kernel(threads: int, columns: int = COLUMNS) -> NativeKernel:
    right = Recurrence(products(columns))
    return NativeKernel(Graph(tuple(right.node.args), right.results(right.kernel(()))), threads=threads)


def found(x: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.int64]:
    """The columns by the kernel, the same by one thread and by two."""
    given = np.zeros(1, np.int64), x[:, None].astype(np.float32), b.astype(np.float32)
    (last, every), (_, other) = (kernel(threads, b.shape[1])(*given) for threads in (1, 2))
    assert last[0] == every[-1, 0]
    np.testing.assert_array_equal(every, other)
    made: NDArray[np.int64] = every[:, 0]
    return made


def draw(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(ROWS, DEPTH)).astype(np.float32), rng.normal(size=(DEPTH, COLUMNS)).astype(np.float32)


def scaled(seed: int, x_scale: float, b_scale: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    x, b = draw(seed)
    return x * np.float32(x_scale), b * np.float32(b_scale)


def close_columns(seed: int, by: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Columns whose difference is of a size relative to them: a unit of 8 bits is larger than a
    thousandth, and one of 16 bits is not."""
    x, b = draw(seed)
    return x, b[:, :1] + b * np.float32(by)


def wide_rows(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows and columns of elements of many sizes."""
    x, b = draw(seed)
    spread = (np.float32(10.0) ** np.arange(-8, 8, 0.5)).astype(np.float32)
    return x * spread, b / spread[:, None] * (1 + np.arange(COLUMNS, dtype=np.float32) % 7)


def large_elements(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows whose first element is so large that the others are a few units of 8 bits."""
    x, b = draw(seed)
    x *= np.float32(0.1)
    x[:, 0], b[0] = 10, 1
    return x, b


CASES = {
    "normal": draw(0),
    "huge": scaled(1, 1e15, 1e18),
    "small": scaled(2, 1e-14, 1e-14),
    "tiny rows": scaled(3, 1e-30, 1.0),
    "tiny columns": scaled(4, 1.0, 1e-30),
    "close columns": close_columns(5, 3e-3),
    "closer columns": close_columns(5, 1e-4),
    "elements of many sizes": wide_rows(6),
    "a large element": large_elements(9),
}


@pytest.mark.parametrize("columns", [COLUMNS, 960])
@pytest.mark.parametrize("name", CASES)
def test_the_column_found_has_the_largest_product(name: str, columns: int) -> None:
    """The columns are whole groups, where the only column that is left is not computed, or not."""
    x, b = CASES[name]
    b = b[:, :columns]
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
    groups = b[:, :480]
    assert (found(x, np.concatenate([groups, groups], axis=1)) < 480).all()


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


MUTANTS = {
    "no bound": ("bound = size * errors[n] + error * half.size[n] + TINY", "bound = TINY"),
    "no low integers of the columns": ("static_cast<float>(found[1][0][c] - half.little[n])", "0.0f"),
    "no low integers of the rows": ("static_cast<float>(found[0][0][c] - half.total[n])", "0.0f"),
    "the last column that is left": ("if (left == 1 &&", "if ("),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_bounds_are_found(name: str) -> None:
    text, (old, new) = generate_cpp(graph := kernel(1, 960).graph), MUTANTS[name]
    assert text.count(old) == 1
    wrong = NativeKernel(graph, library=build(text.replace(old, new)))
    differs = []
    for x, b in (CASES["close columns"], CASES["a large element"]):
        given = np.zeros(1, np.int64), x[:, None], b[:, :960].copy()
        differs.append(not np.array_equal(wrong(*given)[1], kernel(1, 960)(*given)[1]))
    assert any(differs)
