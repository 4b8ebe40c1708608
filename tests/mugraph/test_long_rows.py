"""Norms, softmaxes and losses over rows that no block holds: dims that lie side by side are one
label, parts are combined by a kernel of their own or by a cluster, and a run may give how many
samples there are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import mugraphs
import numpy as np
import pytest
from in_turn import interpreted

from taso_mirage.devices.cuda.device import H100
from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.mugraph import kernels
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.closure import close
from taso_mirage.mugraph.collapsed import runs_without, same_results
from taso_mirage.mugraph.field_check import sizes_apart
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.free import FreeSizes, at_sizes, part_sizes
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.mugraph.shrink import resized_goal
from taso_mirage.mugraph.tilings import Tiled
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size
from taso_mirage.verdicts import Evidence, Failure

pytestmark = pytest.mark.sampled(2)

N = symbol("n0")


def x(name: str, *shape: Dim) -> Node:
    return variable(name, Tensor("float32", shape))


def layer_norm(*shape: int) -> Graph:
    """Over all dims but the first."""
    h, gamma, beta = x("h", *shape), x("gamma", *shape[1:]), x("beta", *shape[1:])
    return Graph((h, gamma, beta), (term("layer_norm", h, gamma, beta, axis=1),))


def batch_norm(*shape: int) -> Graph:
    """In training: over all dims but the second."""
    h, gamma, beta = x("h", *shape), x("gamma", shape[1]), x("beta", shape[1])
    axes = (0, *range(2, len(shape)))
    mean = term("reduce_mean", h, axes=axes, keepdims=1)
    apart = term("sub", h, mean)
    variance = term("reduce_mean", term("mul", apart, apart), axes=axes, keepdims=0)
    flat = term("reshape", mean, shape=(shape[1],))
    return Graph((h, gamma, beta), (term("batch_norm", h, gamma, beta, flat, variance),))


def softmax(*shape: int) -> Graph:
    h = x("h", *shape)
    return Graph((h,), (term("softmax", h, axis=len(shape) - 1),))


def squared_loss(*shape: int) -> Graph:
    a, b = x("a", *shape), x("b", *shape)
    apart = term("sub", a, b)
    return Graph((a, b), (term("reduce_mean", term("mul", apart, apart), axes=tuple(range(len(shape))), keepdims=0),))


def frobenius(*shape: int) -> Graph:
    h = x("h", *shape)
    return Graph((h,), (term("div", h, term("reduce_l2", h, axes=tuple(range(len(shape))), keepdims=0)),))


def rows_of_length_one(*shape: int) -> Graph:
    h = x("h", *shape)
    return Graph((h,), (term("div", h, term("reduce_l2", h, axes=(len(shape) - 1,), keepdims=1)),))


def samples(goal: Graph) -> FreeSizes:
    """The first dim is free in all that has four dims or is as long."""
    count = goal.inputs[0].shape[0]
    shapes = [tuple([N if i == 0 and n == count else n for i, n in enumerate(y.shape)]) for y in goal.inputs]
    results = [tuple([N if i == 0 and n == count else n for i, n in enumerate(y.shape)]) for y in goal.outputs]
    return FreeSizes(tuple(shapes), tuple(results))


# ---------------------------------------------------------------- labels


def test_dims_that_lie_side_by_side_are_one_run() -> None:
    assert label(layer_norm(2, 3, 4, 5)).runs == (("b", "c", "d"),)
    assert label(frobenius(2, 3, 4)).runs == (("a", "b", "c"),)


@pytest.mark.parametrize(
    "goal",
    [
        batch_norm(2, 3, 4),  # one is folded, the other is not
        Graph((h := x("h", 2, 3), g := x("g", 3)), (term("mul", h, g),)),  # one tensor lacks one
        Graph((h, t := x("t", 3, 2)), (term("add", h, term("transpose", t, perm=(1, 0))),)),  # the other way round
        Graph((h,), (term("reduce_sum", term("reduce_max", h, axes=(1,)), axes=(0,)),)),  # folds of two kinds
    ],
)
def test_others_are_none(goal: Graph) -> None:
    assert label(goal).runs == ()


def test_free_labels_part_a_run() -> None:
    assert runs_without((("a", "b", "c", "d"),), {"b"}) == (("c", "d"),)
    assert runs_without((("a", "b"),), {"c"}) == (("a", "b"),)


def test_a_joined_goal_is_the_goal_with_fewer_dims() -> None:
    goal = label(layer_norm(2, 3, 4, 5))
    joined = label(goal.graph, None, goal.runs)
    assert (joined.inputs["h"], joined.sizes) == ((("a",), ("b",)), {"a": 2, "b": 60})
    assert (joined.inputs["gamma"], joined.outputs) == ((("b",),), ((("a",), ("b",)),))
    sizes = sizes_apart(goal, 0)
    whole = {**sizes, "b": sizes["b"] * sizes["c"] * sizes["d"]}
    assert same_results(resized_goal(joined, whole)[0], resized_goal(goal, sizes)[0])


@pytest.mark.sampled(1)
def test_what_is_joined_wrongly_is_told() -> None:
    """The wrong join takes rows together with the values that divide each of them."""
    goal = label(softmax(2, 3, 4))
    joined = label(goal.graph, None, (("a", "b"), ("c",)))
    sizes = sizes_apart(goal, 0)
    right = resized_goal(joined, {**sizes, "a": sizes["a"] * sizes["b"]})[0]
    wrong = Graph(right.inputs, (term("softmax", right.inputs[0], axis=0),))
    assert same_results(right, resized_goal(goal, sizes)[0])
    assert not same_results(wrong, resized_goal(goal, sizes)[0])


# ---------------------------------------------------------------- the search

PASSES = {
    "layer norm": (layer_norm(16, 64, 256, 256), 3),
    "batch norm": (batch_norm(32, 64, 256, 256), 3),
    "softmax": (softmax(256, 393216), 3),
    "squared loss": (squared_loss(4096, 32768), 2),
    "Frobenius norm": (frobenius(32, 64, 256, 256), 3),
    "RMS norm over few": (Graph((h := x("h", 16, 64, 512, 512),), (mugraphs.rms(h, 1),)), 2),
    "activation": (Graph((h := x("h", 256, 65536),), (term("gelu", h),)), 2),
    "rows of length one": (rows_of_length_one(32768, 65535), 3),
    "logits": (softmax(4096, 50257), 3),
}
"""Goals of the sizes of KernelBench, and how often memory moves as much as the first input."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "free"),
    [
        *((name, True) for name in PASSES),
        *(pytest.param(n, False, marks=[pytest.mark.slow] * (n not in ("softmax", "activation"))) for n in PASSES),
    ],
)
def test_a_long_row_takes_what_memory_takes(name: str, free: bool) -> None:
    goal, passes = PASSES[name]
    search = Search(goal, SearchOptions(), H100, free=samples(goal) if free else None)
    (found, *_) = search.run(1, 60.0)
    assert found.seconds < 1.15 * passes * size(goal.inputs[0].type) / H100.bandwidth
    assert (found.free is not None) == free


@pytest.mark.parametrize("max_kernels", [2, 1])
def test_a_limit_of_kernels_holds(max_kernels: int) -> None:
    search = Search(layer_norm(16, 64, 256, 256), SearchOptions(max_kernels=max_kernels), H100)
    assert max((len(each.plan) for each in search.candidates()), default=0) <= max_kernels


@pytest.mark.sampled(3)
def test_a_hand_over_without_products_is_a_fold() -> None:
    search = Search(batch_norm(32, 64, 256, 256), SearchOptions(), H100)
    stored = {c for each in search.candidates() for k in each.plan for c in k.kernel.body.leaves}
    edges = search.closures[None].edges
    assert all(e.label is not None for c in stored if c < len(edges) for e in edges[c])


# ---------------------------------------------------------------- code


SMALL = {
    "layer norm": layer_norm(4, 4, 16, 32),
    "batch norm": batch_norm(4, 5, 16, 16),
    "softmax": softmax(4, 1024),
    "squared loss": squared_loss(4, 1024),
    "Frobenius norm": frobenius(4, 4, 16, 16),
}


@cache
def forms(name: str, free: bool) -> list[FoundMuGraph]:
    """One verified muGraph for each number of kernels, of clusters and of loops, the fastest
    first."""
    goal = SMALL[name]
    search = Search(goal, SearchOptions(max_kernels=3), H100, free=samples(goal) if free else None)
    known: dict[tuple[object, ...], FoundMuGraph | None] = {}
    for each in search.candidates():
        form = tuple([(k.kernel.loop is not None, k.kernel.body.cluster is not None) for k in each.plan])
        if len(known) < 8 and known.get(form) is None:
            known[form] = search.accepted(each)
    return [each for each in known.values() if each is not None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "free"),
    [
        *((name, True) for name in SMALL),
        *(
            pytest.param(name, False, marks=[pytest.mark.slow] * (name not in ("layer norm", "softmax")))
            for name in SMALL
        ),
    ],
)
def test_generated_code_is_the_goal_in_float64(name: str, free: bool, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    from taso_mirage.emit import triton

    goal, found = SMALL[name], forms(name, free)
    assert found
    rng = np.random.default_rng(0)
    given = [(3 + rng.normal(size=y.shape)).astype(np.float32) for y in goal.inputs]
    sources = [triton.program(each.free or each.graph).source for each in found]
    interpreted(tmp_path, {f"form{i}": (source, goal, given) for i, source in enumerate(sources)})
    values = interpret(goal.outputs, EXACT, {y: EXACT.load(a) for y, a in zip(goal.inputs, given, strict=True)})
    wanted = np.asarray(values[goal.outputs[0]])
    for i in range(len(found)):
        got = np.load(tmp_path / f"form{i}.npy")
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max() <= 2e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("length", [1485, 1009])
def test_a_length_that_no_power_of_two_divides_is_taken_in_parts(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part fills most of the lanes, as 495 of 512: in a loop, whose other lanes count for
    nothing."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    from taso_mirage.emit import triton

    monkeypatch.setattr("taso_mirage.mugraph.tilings.LONG", 512)
    monkeypatch.setattr("taso_mirage.mugraph.tilings.STREAMED", 512)
    goal, search = softmax(4, length), Search(softmax(4, length), SearchOptions(), H100)
    looped = [each for each in search.candidates() if any(part_of(k) not in (length, 1) for k in each.plan)]
    found = [made for each in looped[:2] if (made := search.accepted(each)) is not None]
    assert len(found) == (2 if length == 1485 else 0)  # the other one is a prime
    given = [np.random.default_rng(0).normal(size=(4, length)).astype(np.float32)]
    sources = {f"form{i}": (triton.program(each.graph).source, goal, given) for i, each in enumerate(found[:2])}
    interpreted(tmp_path, sources)
    (wanted,) = interpret(goal.outputs, EXACT, {goal.inputs[0]: EXACT.load(given[0])}).values()
    for name in sources:
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), wanted, rtol=1e-5)


def part_of(tiled: Tiled) -> int:
    """Elements of an iteration; 1 without a loop."""
    return tiled.tiles[tiled.kernel.loop] if tiled.kernel.loop is not None else 1


def test_clusters_are_among_the_forms() -> None:
    clusters = [
        k.attr("cluster") for each in forms("softmax", True) for k in kernels((each.free or each.graph).outputs)
    ]
    assert max(clusters) > 1


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in ("layer norm", "softmax"))) for n in SMALL]
)
def test_cubins_for_hopper(name: str) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    from taso_mirage.emit import triton
    from taso_mirage.emit.compile import compiled

    for each in forms(name, True)[:2]:
        made = compiled(triton.program(each.free or each.graph), 90)
        assert len(made) == len(kernels(each.graph.outputs))


# ---------------------------------------------------------------- wrong ones


def two_softmax_kernels(lag: bool) -> tuple[Graph, Graph]:
    """The maxima and the sums of rows, then the rows: less the maximum, or not, as a mutant."""
    h = x("x", 6, 24)

    def sums(t: Node) -> tuple[Node, Node]:
        largest = term("reduce_max", t, axes=(1,), keepdims=0)
        apart = term("sub", t, term("reshape", largest, shape=(2, 1)))
        return term("reduce_sum", term("exp", apart), axes=(1,), keepdims=0), largest

    def rows(t: Node, total: Node, largest: Node) -> Node:
        apart = term("sub", t, term("reshape", largest, shape=(2, 1))) if lag else t
        return term("div", term("exp", apart), term("reshape", total, shape=(2, 1)))

    first = mugraphs.parts(mugraphs.kernel([(h, (0,), -1)], sums, (3,), 1, (0,), (0,)))
    operands: list[mugraphs.Operand] = [(h, (0, 1), -1), *[(part, (0, -1), -1) for part in first]]
    return Graph((h,), (mugraphs.kernel(operands, rows, (3, 4), 1, (0, 1)),)), Graph(
        (h,), (term("softmax", h, axis=1),)
    )


@pytest.mark.sampled(1)
def test_a_softmax_in_two_kernels_and_its_mutant() -> None:
    assert isinstance(verified_mugraph(*two_softmax_kernels(True)), Evidence)
    assert isinstance(verified_mugraph(*two_softmax_kernels(False)), Failure)


def test_a_mean_over_what_a_run_gives_counts_it() -> None:
    """At the sizes of a run it is the mean there, and with the count of another run it is not."""
    for each in forms("squared loss", True)[:2]:
        assert each.free is not None
        for count in (16, 32):
            goal = squared_loss(count, 1024)
            made = at_sizes(each.free, part_sizes(each.free, {"n0": count}))
            assert isinstance(verified_mugraph(made, goal), Evidence)
            halved = Graph(goal.inputs, (term("mul", goal.outputs[0], constant(0.5, "float32")),))
            assert isinstance(verified_mugraph(made, halved), Failure)


@pytest.mark.sampled(1)
def test_merged_variances_need_their_means() -> None:
    """The variance of a batch norm without the part of the samples' means."""
    goal = batch_norm(6, 5, 4)
    h, gamma, beta = goal.inputs
    mean = term("reduce_mean", h, axes=(0, 2), keepdims=0)
    own = term("sub", h, term("reduce_mean", h, axes=(2,), keepdims=1))
    within = term("reduce_mean", term("mul", own, own), axes=(0, 2), keepdims=0)
    mutant = Graph(goal.inputs, (term("batch_norm", h, gamma, beta, mean, within),))
    assert isinstance(verified_mugraph(mutant, goal), Failure)


def test_the_closure_merges_over_samples() -> None:
    closure = close(label(batch_norm(6, 5, 4)))
    merged = [e for edges in closure.edges for e in edges if e.kind.singly]
    assert {e.label for e in merged} == {"a"}
    assert {len(e.args) for e in merged} == {1, 2}
