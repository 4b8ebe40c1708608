"""Scales of weights after the sums over their blocks: equal, and products on the tensor cores."""

from __future__ import annotations

from pathlib import Path

import in_turn
import numpy as np
import pytest
from small_goals import searched

from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.scaled_sums import scaled_after_sums
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term, traits

COLUMNS, BLOCKS, BLOCK = 1024, 32, 32
INNER = BLOCKS * BLOCK


def leaf(name: str, *shape: int, dtype: str = "float16") -> Node:
    return variable(name, Tensor(dtype, shape))


def drawn(node: Node, rng: np.random.Generator, factor: float = 1.0) -> np.ndarray:
    if node.dtype == "uint8":
        return rng.integers(0, 256, node.shape).astype(np.uint8)
    return np.clip(rng.normal(size=node.shape) * factor, -6e4, 6e4).astype(node.dtype)


# ---------------------------------------------------------------- bodies


def body(axes: tuple[int, ...], keepdims: int = 0, first: bool = True, again: bool = False) -> Graph:
    """A sum of x times scaled weights, which another term reads `again`."""
    n, x, s = leaf("n", 4, 3, 8), leaf("x", 1, 3, 8), leaf("s", 4, 3)
    scaled = term("scaled", n, constant(8.0, "float16"), term("reshape", s, shape=(4, 3, 1)))
    product = term("mul", *((scaled, x) if first else (x, scaled)))
    total = term("reduce_sum", product, axes=axes, keepdims=keepdims)
    return Graph((n, x, s), (total, product) if again else (total,))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("axes", [(1, 2), (2,), (0, 2)])
def test_a_scale_follows_the_sum_over_its_block(axes: tuple[int, ...], first: bool) -> None:
    given = body(axes, first=first)
    found, rng = scaled_after_sums(given), np.random.default_rng(0)
    assert not [n for n in found if traits(n).lowering is Lowering.SCALE]
    values = {x: EXACT.load(drawn(x, rng)) for x in given.inputs}
    (wanted,), (made,) = (interpret(g.outputs, EXACT, values).values() for g in (given, found))
    np.testing.assert_allclose(made, wanted, rtol=1e-12)


@pytest.mark.parametrize("given", [body((1,)), body((1, 2), keepdims=1), body((1, 2), again=True)])
def test_other_sums_stay(given: Graph) -> None:
    assert scaled_after_sums(given).outputs == given.outputs


# ---------------------------------------------------------------- programs


def gated() -> Graph:
    """The first part of a gated MLP of four bits, after a norm."""
    x, w = leaf("x", 1, 1, INNER), leaf("w", INNER)
    weights = [
        (leaf(f"b{i}", COLUMNS, BLOCKS, BLOCK // 2, dtype="uint8"), leaf(f"s{i}", COLUMNS, BLOCKS)) for i in "01"
    ]
    square = term("reduce_mean", term("mul", x, x), axes=(2,), keepdims=1)
    root = term("sqrt", term("add", square, constant(1e-3, "float16")))
    normal = term("mul", term("div", x, root), w)
    gate, up = (term("matmul_nbits", normal, *each, K=INNER, N=COLUMNS, bits=4, block_size=BLOCK) for each in weights)
    silu = term("mul", gate, term("sigmoid", gate))
    return Graph((x, w, *[n for pair in weights for n in pair]), (term("mul", silu, up),))


@pytest.fixture(scope="module")
def program() -> TritonProgram:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    return searched(gated())[0].program()


@pytest.mark.sampled(3, together=True)
def test_two_products_of_blocks_are_one_kernel_on_the_tensor_cores(program: TritonProgram) -> None:
    assert len(program.launches) == 1
    assert program.source.count("tl.dot(") == 2


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("large", [1.0, 15000.0])
def test_products_before_the_norm_stay_in_range(program: TritonProgram, large: float, tmp_path: Path) -> None:
    """For the larger inputs, x times the norm's weight is out of the range of half precision, since
    the division by the norm follows the sum."""
    graph, rng = gated(), np.random.default_rng(0)
    factors = [large, 3.0, *[0.01] * 4]
    inputs = [drawn(x, rng, factor) for x, factor in zip(graph.inputs, factors, strict=True)]
    x, w = (a.astype(np.float64) for a in inputs[:2])
    assert (np.abs(x * w).max() > np.finfo(np.float16).max) == (large > 1)
    in_turn.interpreted(tmp_path, {"gated": (program.source, graph, inputs)})
    given = {n: EXACT.load(a) for n, a in zip(graph.inputs, inputs, strict=True)}
    (wanted,) = interpret(graph.outputs, EXACT, given).values()
    found = np.load(tmp_path / "gated.npy")
    assert np.linalg.norm(found - wanted) < 2e-3 * np.linalg.norm(wanted)
