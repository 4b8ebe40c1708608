"""Movements of goals whose sizes a run gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from moved_goals import goal, part
from mugraphs import leaf
from native_kernels import STRICT, exact

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.terms import Graph, topological
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.mugraph.free_moves import free_moves
from taso_mirage.mugraph.moved_goal import moved_goal
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.operators.ops import term

N, S = symbol("n0"), symbol("n1")


def rotated(batch: Dim, sequence: Dim) -> Graph:
    """A rotary embedding of any number of tokens."""
    x = leaf("x", "float32", batch, sequence, 4, 16)
    cos, sin = (leaf(name, "float32", sequence, 1, 16) for name in ("cos", "sin"))
    half = term("concat", term("neg", part(x, 3, 8, 16)), part(x, 3, 0, 8), axis=3)
    return goal([term("add", term("mul", x, cos), term("mul", half, sin))])


def heads(batch: Dim, sequence: Dim) -> Graph:
    """Scores of the queries and keys in one projection."""
    x = leaf("x", "float32", batch, sequence, 96)
    apart = term("reshape", x, shape=(batch, sequence, 3, 2, 16))
    q, k = (term("reshape", part(apart, 2, i, i + 1), shape=(batch, sequence, 2, 16)) for i in range(2))
    keys = term("transpose", k, perm=(0, 2, 3, 1))
    return goal([term("softmax", term("matmul", term("transpose", q, perm=(0, 2, 1, 3)), keys), axis=3)])


CASES: dict[str, tuple[Callable[[Dim, Dim], Graph], FreeSizes]] = {
    "rotary": (rotated, FreeSizes.of_goal(rotated(N, S))),
    "heads": (heads, FreeSizes.of_goal(heads(N, S))),
}


@pytest.mark.parametrize("name", CASES)
def test_movements_of_fixed_axes_are_those_of_other_sizes(name: str) -> None:
    make, free = CASES[name]
    moves = free_moves(moved_goal(make(2, 16)), free)
    assert moves is not None
    for sizes in ((3, 5), (1, 7)):
        other = moved_goal(make(*sizes))
        own = {"n0": sizes[0], "n1": sizes[1]}
        made = moves.at(other.core, own)
        assert made == other.restored(other.core)


def test_a_movement_that_is_no_polynomial_of_the_sizes_has_no_form() -> None:
    """The rows of a running sum are a table, another one at each length; without the goal's terms
    for every size, nothing is known of others."""
    x = leaf("x", "float32", 16, 8)
    moved = moved_goal(goal([term("cumsum", x, axis=0)]))
    assert moved.moves
    named = goal([term("cumsum", leaf("x", "float32", N, 8), axis=0)])
    assert free_moves(moved, FreeSizes.of_goal(named)) is None
    assert free_moves(moved, FreeSizes.of(named)) is None


def test_a_kernel_over_movements_runs_at_every_size() -> None:
    make, free = CASES["rotary"]
    (found,) = Search(make(2, 16), SearchOptions(), CPU_DEVICE, free=free).run(1, 20)
    assert found.free is not None
    assert any(n.op == "slice" for n in topological(found.free.outputs))
    kernel, rng = NativeKernel(found.free, flags=STRICT), np.random.default_rng(0)
    for sizes in ((2, 16), (1, 1), (3, 37)):
        wanted = make(*sizes)
        arrays = [rng.normal(size=x.shape).astype(np.float32) for x in wanted.inputs]
        (right,) = exact(wanted, dict(zip(wanted.inputs, arrays, strict=True)))
        np.testing.assert_allclose(kernel(*arrays)[0], right, rtol=1e-5, atol=1e-5)
