"""Kernels that a review found wrong, or that it could not find: each goal is kept with the inputs
that showed it."""

from __future__ import annotations

import numpy as np
import pytest
from named_models import x

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Node, constant
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph import search as searching
from taso_mirage.mugraph import tilings
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.search import Search, SearchOptions, superoptimize
from taso_mirage.mugraph.verification import SINGLE
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term

RNG = np.random.default_rng(0)


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


def assert_right(found: list[FoundMuGraph], values: dict[Node, np.ndarray]) -> None:
    """At the goal's own sizes every muGraph gives float64's results, computed in float32."""
    for each in found:
        single = {n: v.astype(np.float32) for n, v in values.items()}
        wanted = interpret(each.goal.outputs, EXACT, {n: v.astype(float) for n, v in single.items()})
        with np.errstate(all="ignore"):
            ours = interpret(each.graph.outputs, SINGLE, single)
        for a, b in zip(each.goal.outputs, each.graph.outputs, strict=True):
            finite = np.abs(wanted[a]) <= np.finfo(np.float32).max
            assert np.isfinite(ours[b][finite]).all()
            assert np.abs(ours[b][finite] - wanted[a][finite]).max() <= 1e-4 * np.abs(wanted[a][finite]).max()


A, W, Q, K, V = x("a", 64, 128), x("w", 128, 16), x("q", 64, 32), x("k", 128, 32), x("v", 128, 16)


def test_a_maximum_is_over_no_more_than_what_is_summed() -> None:
    """softmax over rows times a matrix: the product sums over the columns too, but of values of
    degree 0."""
    found = superoptimize(Graph((A, W), (matmul(softmax(A, 0), W),)), best=6)
    assert found
    assert_right(found, {A: apart(64, 128), W: RNG.normal(size=(128, 16))})


def test_two_softmaxes_of_one_tensor_do_not_share_a_maximum() -> None:
    """Each has a kernel: in one, exp would be relative to the maximum over rows and over columns at
    once."""
    goal = Graph((A,), (term("mul", softmax(A, 0), softmax(A, 1)),))
    found = superoptimize(goal, best=6)
    assert found
    assert_right(found, {A: apart(64, 128)})
    with pytest.raises(Unsupported, match="a denominator may vanish: it is not summed over all that its maximum"):
        superoptimize(goal, best=6, max_kernels=1)


def test_a_row_that_is_masked_with_the_lowest_number_is_uniform() -> None:
    """Exporters mask so: each score is the lowest number, and so is their maximum."""
    mask = x("m", 64, 128)
    scores = term("add", matmul(Q, term("transpose", K, perm=(1, 0))), mask)
    found = superoptimize(Graph((Q, K, V, mask), (matmul(softmax(scores, 1), V),)), best=8)
    assert found
    hidden = np.where(RNG.random((64, 128)) < 0.3, np.finfo(np.float32).min, 0)
    hidden[:5] = np.finfo(np.float32).min
    values = {Q: RNG.normal(size=(64, 32)), K: RNG.normal(size=(128, 32)), V: RNG.normal(size=(128, 16))}
    assert_right(found, {**values, mask: hidden})


def test_efficient_attention() -> None:
    keys = matmul(term("transpose", softmax(K, 0), perm=(1, 0)), V)
    found = superoptimize(Graph((Q, K, V), (matmul(softmax(Q, 1), keys),)), best=6)
    assert found
    assert_right(found, {Q: RNG.normal(size=(64, 32)), K: apart(128, 32), V: RNG.normal(size=(128, 16))})


@pytest.mark.parametrize("other", ["exp", "sum"])
def test_an_exponential_that_is_a_result_does_not_bare_a_softmax(other: str) -> None:
    """The result is as the model writes it, and overflows as it does; the softmax beside it has its
    maximum."""
    bare = term("exp", A)
    result = bare if other == "exp" else term("reduce_sum", bare, axes=(1,), keepdims=1)
    found = superoptimize(Graph((A,), (result, softmax(A, 1))), best=6)
    assert found
    assert_right(found, {A: 40 * RNG.normal(size=(64, 128))})


ONE = constant(np.float32(1))
NEGATED = term("exp", term("neg", A))
BY_PARTS = {
    "sigmoid": term("div", ONE, term("add", ONE, NEGATED)),
    "sigmoid, reciprocal": term("reciprocal", term("add", NEGATED, ONE)),
    "silu": term("div", A, term("add", ONE, NEGATED)),
    "silu and a softmax of it": softmax(term("div", A, term("add", ONE, NEGATED)), 1),
    "1/exp": term("reciprocal", term("exp", A)),
    "log softmax": term("log_softmax", A, axis=1),
    "logsumexp": term("reduce_log_sum_exp", A, axes=(1,)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BY_PARTS)
def test_exponentials_by_parts(name: str) -> None:
    found = superoptimize(Graph((A,), (BY_PARTS[name],)), best=6)
    assert found
    for scale in (1, 200):
        assert_right(found, {A: scale * RNG.normal(size=(64, 128))})


def test_a_gate_written_out_before_a_product() -> None:
    gate, up = matmul(A, W), matmul(A, x("u", 128, 16))
    gated = term("mul", term("div", gate, term("add", ONE, term("exp", term("neg", gate)))), up)
    assert superoptimize(Graph((A, W, up.args[1]), (matmul(gated, x("d", 16, 32)),)), best=3)


def test_softmax_and_logsumexp() -> None:
    found = superoptimize(Graph((A,), (softmax(A, 1), term("reduce_log_sum_exp", A, axes=(1,)))), best=6)
    assert found
    assert_right(found, {A: 200 * RNG.normal(size=(64, 128))})


def test_attention_with_its_logsumexp_in_one_loop() -> None:
    """The maximum that the model takes is the running one once the loop is over."""
    k, v = x("k", 4096, 32), x("v", 4096, 16)
    scores = matmul(Q, term("transpose", k, perm=(1, 0)))
    goal = Graph((Q, k, v), (matmul(softmax(scores, 1), v), term("reduce_log_sum_exp", scores, axes=(1,))))
    searching = Search(goal, SearchOptions(max_kernels=1))
    looped = [c for c in searching.candidates() if c.plan[0].kernel.loop is not None]
    found = next(f for c in looped if (f := searching.accepted(c)) is not None)
    assert_right([found], {n: 3 * RNG.normal(size=n.shape) for n in goal.inputs})


def test_a_maximum_that_no_kernel_stored_is_not_read() -> None:
    """A second kernel may read the scores again, but not the maximum that the first one had them
    relative to."""
    row = x("row", 32)
    found = superoptimize(Graph((row,), (softmax(term("tanh", row), 0),)), best=8)
    assert found
    assert_right(found, {row: RNG.normal(size=32)})


UNSAFE = {
    "exp above and below": (term("div", term("exp", A), term("add", ONE, term("exp", A))), "divided by, another"),
    "tanh": (
        term("div", term("sub", term("exp", A), NEGATED), term("add", term("exp", A), NEGATED)),
        "divided by, another",
    ),
    "softplus": (term("log", term("add", ONE, term("exp", A))), "log of an exponential that may overflow"),
    "log of a sum": (term("log", term("reduce_sum", term("exp", A), axes=(1,))), "log of an exponential"),
    "times what vanishes": (term("mul", term("exp", A), BY_PARTS["sigmoid"]), "multiplied with"),
    "times a softmax": (term("mul", term("exp", A), softmax(A, 1)), "multiplied with"),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_overflows_as_it_is_written_is_named(name: str) -> None:
    output, message = UNSAFE[name]
    with pytest.raises(Unsupported, match=message):
        superoptimize(Graph((A,), (output,)))


def test_an_exponential_alone_is_found() -> None:
    assert superoptimize(Graph((A,), (term("reduce_sum", term("exp", A), axes=(1,), keepdims=0),)), best=1)


@pytest.mark.sampled(3)
def test_blocks_that_are_masked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maximum of such a block is minus infinity, and minus infinity less itself is no
    number."""
    monkeypatch.setattr(searching, "SPLIT_FROM", 4)
    monkeypatch.setattr(tilings, "ITERATION", (2, 512))
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


def test_a_result_of_rank_0_is_of_one_block() -> None:
    found = Search(Graph((A,), (term("reduce_sum", A, axes=(0, 1), keepdims=0),)), SearchOptions()).run(2, 30)
    assert found[0].graph.outputs[0].attr("omap") == ((-1,),)
    assert_right(found, {A: RNG.normal(size=(64, 128))})


def test_goals_without_muGraphs_end_quietly() -> None:
    assert superoptimize(Graph((A, x("unused", 4)), (softmax(A, 1),)), best=1)
    row = constant(np.arange(128, dtype=np.float32))
    found = Search(Graph((A,), (term("add", A, row),)), SearchOptions()).run(2, 30)
    assert_right(found, {A: RNG.normal(size=(64, 128))})


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph((A,), (softmax(A, 1), constant(np.float32(2)))), "output 1 depends on no input"),
        (Graph((x("n", 4, 8, dtype="int32"),), (x("n", 4, 8, dtype="int32"),)), "n is int32"),
        (Graph((x("d", 4, 8, dtype="float64"),), (softmax(x("d", 4, 8, dtype="float64"), 1),)), "d is float64"),
    ],
    ids=str,
)
def test_what_kernels_do_not_compute_is_refused(graph: Graph, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        superoptimize(graph)
