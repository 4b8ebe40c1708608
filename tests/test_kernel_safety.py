"""Kernels that a review found wrong, or that it could not find: each goal is kept with the inputs that showed it."""

from __future__ import annotations

import numpy as np
import pytest

from taso_mirage.errors import Unsupported
from taso_mirage.ir import Graph, Node, Tensor, constant, variable
from taso_mirage.kernels import search as searching
from taso_mirage.kernels import tiles
from taso_mirage.kernels.search import Found, Options, Search, superoptimize
from taso_mirage.kernels.verify import SINGLE
from taso_mirage.meanings.reals import EXACT
from taso_mirage.ops import interpret, term

RNG = np.random.default_rng(0)


def x(name: str, *shape: int, dtype: str = "float32") -> Node:
    return variable(name, Tensor(dtype, shape))


def softmax(a: Node, axis: int) -> Node:
    return term("softmax", a, axis=axis)


def matmul(a: Node, b: Node) -> Node:
    return term("matmul", a, b)


def apart(*shape: int) -> np.ndarray:
    """Rows and columns far from the largest: exp of their distance is 0 in float32."""
    values = RNG.normal(size=shape)
    values[:, 1:] -= 120
    values[1:] -= 60
    return values


def assert_right(found: list[Found], values: dict[Node, np.ndarray]) -> None:
    """At the goal's own sizes every muGraph gives what float64 gives, computed in float32."""
    for each in found:
        single = {n: v.astype(np.float32) for n, v in values.items()}
        wanted = interpret(each.goal.outputs, EXACT, {n: v.astype(float) for n, v in single.items()})
        with np.errstate(all="ignore"):
            ours = interpret(each.graph.outputs, SINGLE, single)
        for a, b in zip(each.goal.outputs, each.graph.outputs, strict=True):
            finite = np.isfinite(wanted[a])
            assert np.isfinite(ours[b][finite]).all()
            assert np.abs(ours[b] - wanted[a])[finite].max() <= 1e-4 * np.abs(wanted[a])[finite].max()


A, W, Q, K, V = x("a", 64, 128), x("w", 128, 16), x("q", 64, 32), x("k", 128, 32), x("v", 128, 16)


def test_a_maximum_is_over_no_more_than_what_is_summed() -> None:
    """softmax over rows times a matrix: the product sums over the columns too, but of values of degree 0."""
    found = superoptimize(Graph((A, W), (matmul(softmax(A, 0), W),)), best=6)
    assert found
    assert_right(found, {A: apart(64, 128), W: RNG.normal(size=(128, 16))})


def test_two_softmaxes_of_one_tensor_do_not_share_a_maximum() -> None:
    found = superoptimize(Graph((A,), (term("mul", softmax(A, 0), softmax(A, 1)),)), best=6)
    assert_right(found, {A: apart(64, 128)})


def test_efficient_attention() -> None:
    keys = matmul(term("transpose", softmax(K, 0), perm=(1, 0)), V)
    found = superoptimize(Graph((Q, K, V), (matmul(softmax(Q, 1), keys),)), best=6)
    assert found
    assert_right(found, {Q: RNG.normal(size=(64, 32)), K: apart(128, 32), V: RNG.normal(size=(128, 16))})


@pytest.mark.parametrize("other", ["exp", "sum"])
def test_an_exponential_that_is_a_result_does_not_bare_a_softmax(other: str) -> None:
    bare = term("exp", A)
    result = bare if other == "exp" else term("reduce_sum", bare, axes=(1,), keepdims=1)
    found = superoptimize(Graph((A,), (result, softmax(A, 1))), best=6)
    assert_right(found, {A: 40 * RNG.normal(size=(64, 128))})


def test_an_exponential_alone_is_found() -> None:
    assert superoptimize(Graph((A,), (term("reduce_sum", term("exp", A), axes=(1,), keepdims=0),)), best=1)


def test_blocks_that_are_masked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maximum of such a block is minus infinity, and minus infinity less itself is no number."""
    monkeypatch.setattr(searching, "SPLIT_FROM", 4)
    monkeypatch.setattr(tiles, "ITERATION", (2, 512))
    mask = x("mask", 64, 128)
    scores = term("add", matmul(Q, term("transpose", K, perm=(1, 0))), mask)
    found = superoptimize(Graph((Q, K, V, mask), (matmul(softmax(scores, 1), V),)), best=60)
    assert len(found) == 60
    masked = np.zeros((64, 128))
    masked[:, :64] = -np.inf
    drawn = {n: RNG.normal(size=n.shape) for n in (Q, K, V)}
    assert_right(found, {**drawn, mask: masked})


def test_four_dims_of_attention() -> None:
    q, k, v = (
        x(n, *s, dtype="float16") for n, s in (("q", (2, 8, 128, 64)), ("k", (2, 8, 64, 256)), ("v", (2, 8, 256, 64)))
    )
    assert superoptimize(Graph((q, k, v), (matmul(softmax(matmul(q, k), 3), v),)), best=2)


def test_goals_without_muGraphs_end_quietly() -> None:
    assert superoptimize(Graph((A,), (term("reduce_sum", A, axes=(0, 1), keepdims=0),))) == []
    assert superoptimize(Graph((A, x("unused", 4)), (softmax(A, 1),)), best=1)
    row = constant(np.arange(128, dtype=np.float32))
    found = Search(Graph((A,), (term("add", A, row),)), Options()).run(2, 30)
    assert_right(found, {A: RNG.normal(size=(64, 128))})


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph((A,), (softmax(A, 1), constant(np.float32(2)))), "output 1 hangs on no input"),
        (Graph((x("n", 4, 8, dtype="int32"),), (x("n", 4, 8, dtype="int32"),)), "n is int32"),
        (Graph((x("d", 4, 8, dtype="float64"),), (softmax(x("d", 4, 8, dtype="float64"), 1),)), "d is float64"),
    ],
    ids=str,
)
def test_what_kernels_do_not_compute_is_refused(graph: Graph, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        superoptimize(graph)
