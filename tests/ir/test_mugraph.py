"""muGraphs: kernels as ordinary terms, refusals and their reasons, text and JSON, and verification
against the goal."""

from __future__ import annotations

import gc
import json
import pickle
from functools import partial
from typing import Any

import mugraphs
import numpy as np
import pytest

from taso_mirage.errors import IllTyped, SyntaxProblem
from taso_mirage.ir.terms import Graph, Node, Tensor, constant
from taso_mirage.meanings.degree import DEGREE
from taso_mirage.meanings.reals import EXACT, REALS
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import work
from taso_mirage.prove.fingerprint import Agreed, fingerprint
from taso_mirage.rewriting.text import parse_graph, show_graph
from taso_mirage.verdicts import Evidence, Failure

BUILDERS = mugraphs.WORKLOADS | mugraphs.CLUSTERS
workloads = pytest.mark.parametrize("name", BUILDERS)


@pytest.mark.sampled(2)
@workloads
def test_the_best_known_structures_are_their_goals(name: str) -> None:
    mugraph, goal = BUILDERS[name]()
    evidence = verified_mugraph(mugraph, goal)
    assert isinstance(evidence, Evidence), evidence
    assert evidence.tests == 8
    assert evidence.bound < 1e-33
    assert {m.dtype for m in evidence.measured} == {"float16", "bfloat16", "float32"}
    assert all(m.error <= min(m.allowed, 1e-4) for m in evidence.measured)


@workloads
def test_printed_and_saved_mugraphs_are_the_same_terms(name: str) -> None:
    mugraph, _ = BUILDERS[name]()
    text = show_graph(mugraph)
    assert parse_graph(text) == mugraph
    assert from_json(json.loads(json.dumps(to_json(mugraph)))) == mugraph


def test_what_is_read_of_a_text_is_printed_so_again() -> None:
    """Where no term of it is left that could be found instead of made."""
    texts = {name: show_graph(build()[0]) for name, build in BUILDERS.items()}
    gc.collect()
    for name, text in texts.items():
        assert show_graph(parse_graph(text)) == text, name


@workloads
def test_the_dtype_may_be_any(name: str) -> None:
    """The declared dtypes hold in the meaning `reals`, tile by tile."""
    mugraph, _ = BUILDERS[name]()
    rng = np.random.default_rng(1)
    values = {n: rng.normal(size=n.shape).astype(np.float16) for n in mugraph.inputs}
    found, exact = (interpret(mugraph.outputs, xp, {n: xp.load(v) for n, v in values.items()}) for xp in (REALS, EXACT))
    for output in mugraph.outputs:
        assert (found[output].dtype, found[output].shape) == (np.float16, output.shape)
        np.testing.assert_allclose(found[output].astype(np.float64), exact[output], rtol=0.1, atol=0.05)


@pytest.mark.parametrize(
    ("build", "sizes"),
    [
        *[(mugraphs.rmsnorm_linear, {"grid": g, "loop": n}) for g in (1, 2, 10) for n in (1, 4, 12)],
        *[(mugraphs.lora, {"grid": g, "loop": n}) for g in (1, 5) for n in (1, 6)],
        *[(mugraphs.attention_safe, {"blocks": b, "loop": n}) for b in (1, 6) for n in (1, 2, 12)],
        *[(mugraphs.attention_split_safe, {"splits": s, "loop": n}) for s in (1, 2, 8) for n in (1, 3)],
        *[(mugraphs.attention_cluster, {"splits": s, "loop": n}) for s in (1, 2, 8) for n in (1, 3)],
        *[
            (partial(mugraphs.spread_cluster, dtype="float32"), {"splits": s, "loop": n})
            for s in (1, 2, 8)
            for n in (1, 3)
        ],
    ],
)
def test_a_kernel_under_any_schedule_is_its_goal(build: Any, sizes: dict[str, int]) -> None:
    mugraph, goal = build(**sizes)
    assert isinstance(fingerprint(mugraph.outputs, goal.outputs), Agreed)


def test_a_golden_mugraph() -> None:
    mugraph, _ = mugraphs.gated_mlp()
    assert show_graph(mugraph) == (
        "def graph(x0: input('X', float16[4, 12]), x1: input('W1', float16[12, 10]), x2: input('W2', float16[12, 10])):\n"
        "    def body0(x0: input('X', float16[4, 4]), x1: input('W1', float16[4, 2]), x2: input('W2', float16[4, 2])):\n"
        "        v0 = matmul(x0, x1)\n"
        "        v1 = accumulate(v0, over='sum', degree=0)\n"
        "        v2 = swish(v1, alpha=1.0)\n"
        "        v3 = matmul(x0, x2)\n"
        "        v4 = accumulate(v3, over='sum', degree=0)\n"
        "        v5 = mul(v2, v4)\n"
        "        return v5\n"
        "    v0 = kernel(x0, x1, x2, body=body0, grid=(5,), loop=3, imap=((-1,), (1,), (1,)), fmap=(1, 0, 0), "
        "omap=((1,),), cluster=1)\n"
        "    return v0\n"
    )


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"mugraph": 2, "program": ["def graph():", "    return v"]},
        {"mugraph": 1, "program": "def graph(): return 1"},
        {"mugraph": 1, "program": ["import os"]},
        {"mugraph": 1, "program": ["def graph(x0: input('x', float32[2])):", "    return __import__('os')"]},
        {"mugraph": 1, "program": ["def graph(x0: input('x', float32[2])):", "    return accumulate(x0, degree=(1,))"]},
        {"mugraph": 1, "program": ["def graph(x0: input('x', float32[2])):", "    return kernel(x0, body=1, grid=(1,), "
         "loop=1, imap=((0,),), fmap=(0,), omap=((0,),))"]},
        {"mugraph": 1, "program": ["def graph(x0: input('x', float32[2])):", "    return constant(value="
         "array('float32', (3,), (1,)))"]},
    ],
    ids=range(9),
)  # fmt: skip
def test_what_is_no_checkpoint_is_refused(value: Any) -> None:
    with pytest.raises((SyntaxProblem, IllTyped)):
        from_json(value)


def test_a_mugraph_survives_being_pickled_to_another_process() -> None:
    mugraph, _ = mugraphs.attention_split_safe()
    assert pickle.loads(pickle.dumps(mugraph)) == mugraph


def test_a_kernel_in_a_body_is_the_thread_level() -> None:
    x = mugraphs.leaf("x", "float32", 6, 20)

    def threads(tile: Node) -> Node:
        inner = mugraphs.kernel([(tile, (1,), 0)], lambda t: term("accumulate", term("mul", t, t)), (2,), 3, (1,))
        return term("accumulate", inner)

    made = mugraphs.kernel([(x, (1,), 1)], threads, (5,), 2, (1,))
    folded = term("reshape", term("mul", x, x), shape=(3, 2, 5, 2, 2))  # the sum of both loops' iterations
    goal = term("reshape", term("reduce_sum", folded, axes=(0, 3), keepdims=0), shape=(2, 10))
    assert made.type == Tensor("float32", (2, 10))
    assert verified_mugraph(Graph((x,), (made,)), Graph((x,), (goal,)))
    assert parse_graph(show_graph(Graph((x,), (made,)))) == Graph((x,), (made,))


def test_the_grid_and_the_loop_may_cut_one_dim() -> None:
    x = mugraphs.leaf("x", "float32", 12)
    made = mugraphs.kernel([(x, (0,), 0)], lambda t: term("accumulate", t), (2,), 3, (0,))
    values = interpret([made], REALS, {x: np.arange(12, dtype=np.float32)})
    assert values[made].tolist() == [0 + 2 + 4, 1 + 3 + 5, 6 + 8 + 10, 7 + 9 + 11]


def test_two_grid_dims_may_cut_one_dim_and_stand_along_one() -> None:
    x = mugraphs.leaf("x", "float32", 12)
    made = mugraphs.kernel([(x, (0, 0), -1)], lambda t: term("neg", t), (2, 3), 1, (0, 0))
    values = interpret([made], REALS, {x: np.arange(12, dtype=np.float32)})
    assert values[made].tolist() == [-i for i in range(12)]


def test_accumulators_outside_of_a_kernel_are_of_one_iteration() -> None:
    x = mugraphs.leaf("x", "float32", 2, 3)
    m = term("running_max", term("reduce_max", x, axes=(1,)))
    values = interpret(
        [term("accumulate", x, m, over="rescaled", degree=1), m], REALS, {x: np.ones((2, 3), np.float32)}
    )
    assert all((v == 1).all() for v in values.values())


def test_work_counts_every_block_and_iteration_and_is_quick_at_real_sizes() -> None:
    mugraph, goal = mugraphs.gated_mlp(8, 4096, 4096, 64, 32)
    (kernel,) = mugraph.outputs
    products = 2 * 2 * 8 * 4096 * 4096
    sums = 2 * 8 * 4096 * 31
    after = sum(work(n, {}).flops for n in goal if n.op in ("swish", "mul"))
    assert work(kernel, {}).flops == products + sums + after
    assert work(kernel, {}).bytes == 2 * (8 * 4096 + 2 * 4096 * 4096 + 8 * 4096)


def test_degree_sees_through_a_kernel() -> None:
    mugraph, goal = mugraphs.lora()
    noted = {n: (n.tensor, {n.attr("name"): 1.0}) for n in mugraph.inputs}
    for graph in (mugraph, goal):
        (found,) = interpret(graph.outputs, DEGREE, noted).values()
        assert found[1] == {"X": 1, "W": 1, "A": 1, "B": 1}


X = mugraphs.leaf("x", "float32", 6, 8)
Y = mugraphs.leaf("y", "float32", 8)


def _tile(*shape: int) -> Node:
    return mugraphs.leaf("t", "float32", *shape)


def _misfit(tile: Node, output: Node, **changed: Any) -> dict[str, Any]:
    attrs = {"grid": (3,), "loop": 2, "imap": ((0,),), "fmap": (1,), "omap": ((0,),)}
    return {"body": Graph((tile,), (output,)), **attrs, **changed}


SUM = term("accumulate", _tile(2, 4))
MISFITS = [
    (_misfit(_tile(2, 4), SUM, grid=(4,)), r"operand 0 \(t\): dimension 0 is 6, not 4 parts of 2"),
    (_misfit(_tile(2, 4), SUM, loop=3), r"operand 0 \(t\): dimension 1 is 8, not 3 parts of 4"),
    (_misfit(_tile(2, 4), SUM, omap=((-2,),)), r"output 0 \(accumulate\): the blocks of grid dim 0 stand along dimension -2"),
    (_misfit(_tile(2, 4), SUM, omap=((2,),)), r"grid dim 0 stand along dimension 2 of float32\[2, 4\]"),
    (_misfit(_tile(2, 4), SUM, omap=((0, 1),)), r"omap \(0, 1\) for the grid \(3,\)"),
    (_misfit(_tile(2, 4), SUM, omap=()), "omap: 0, but the body has 1"),
    (_misfit(_tile(2, 4), SUM, imap=((0, 1),)), r"imap \(0, 1\) for the grid \(3,\)"),
    (_misfit(_tile(2, 4), SUM, imap=((2,),)), "grid dim 0 cuts dimension 2 of a tensor of rank 2"),
    (_misfit(_tile(2, 4), SUM, imap=((0,), (0,))), "imap: 2, but the body has 1"),
    (_misfit(_tile(2, 4), SUM, fmap=(-2,)), "the loop cuts dimension -2"),
    (_misfit(_tile(2, 8), SUM, fmap=(-1,)), "a loop of 2 iterations that cuts no operand"),
    (_misfit(_tile(2, 4), SUM, grid=(3, 1, 1, 1)), "up to three block counts"),
    (_misfit(_tile(2, 4), SUM, loop=0), "a range of at least 1"),
    (_misfit(_tile(8), SUM), r"the tile is float32\[8\], the operand float32\[6, 8\]"),
    (_misfit(_tile(2, 4), _tile(2, 4)), "output 0, input, differs between iterations"),
    (_misfit(_tile(2, 4), term("exp", _tile(2, 4))), "output 0, exp, differs between iterations"),
    (_misfit(_tile(2, 4), term("mul", SUM, _tile(2, 4))), "mul takes a value of one iteration together with"),
    (_misfit(_tile(2, 4), term("accumulate", SUM)), "accumulate of a value that is known after the loop"),
    (_misfit(_tile(2, 4), term("accumulate", constant(1.0, "float32"))), "the same in each of the 2 iterations"),
    (_misfit(_tile(2, 4), term("accumulate", Y)), "the body reads the input y"),
    (
        _misfit(_tile(2, 4), term("accumulate", _tile(2, 4), _tile(2, 4), over="rescaled", degree=1)),
        "rescaled by input; it must be a running_max",
    ),
    (_misfit(constant(1.0, "float32"), SUM), r"operand 0 \(constant\): the body's operands are inputs"),
    ({**_misfit(_tile(2, 4), SUM), "body": Graph((_tile(2, 4),), ())}, "omap: 1, but the body has 0"),
    (_misfit(_tile(2, 4), SUM, cluster=2), r"a cluster of 2 blocks in the grid \(3,\); it has all of the last grid dim"),
    (_misfit(_tile(2, 4), SUM, grid=(), imap=((),), omap=((),), cluster=3), r"a cluster of 3 blocks in the grid \(\)"),
    (_misfit(_tile(2, 4), SUM, grid=(17,), cluster=17), "at most 16"),
    (
        _misfit(_tile(4, 8), term("exp", _tile(4, 8)), grid=(2,), loop=1, fmap=(-1,), cluster=2),
        "grid dim 0 is a cluster, and cuts into tiles that overlap",
    ),
    (_misfit(_tile(2, 4), term("accumulate", term("combine", _tile(2, 4)))), "combine of a value that differs between iterations"),
]  # fmt: skip


@pytest.mark.parametrize(("attrs", "message"), MISFITS, ids=range(len(MISFITS)))
def test_a_misfit_names_what_does_not_fit(attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(IllTyped, match=message):
        term("kernel", X, **attrs)


@pytest.mark.parametrize(
    ("args", "attrs", "message"),
    [
        ((X,), {"over": "mean"}, "it is sum, max, rescaled, variance"),
        ((X,), {"over": "rescaled"}, "accumulate over rescaled without a running maximum"),
        ((X, X), {"over": "sum"}, "accumulate over sum with a second operand"),
        ((Y, X), {"over": "rescaled"}, r"a running maximum of \[6, 8\] does not fit \[8\]"),
        ((X,), {"over": "variance"}, "accumulate over variance without a mean"),
    ],
)
def test_an_accumulator_has_the_operands_that_it_needs(args: Any, attrs: Any, message: str) -> None:
    with pytest.raises(IllTyped, match=message):
        term("accumulate", *args, **attrs)


def test_what_a_cluster_combines_has_the_operands_that_it_needs() -> None:
    with pytest.raises(IllTyped, match="combine over rescaled without a maximum"):
        term("combine", X, over="rescaled")
    with pytest.raises(IllTyped, match="combine over sum with a second operand"):
        term("combine", X, X)


def test_what_was_saved_before_there_were_clusters_has_none() -> None:
    mugraph, _ = mugraphs.gated_mlp()
    saved = to_json(mugraph)
    older = {**saved, "program": [line.replace(", cluster=1", "") for line in saved["program"]]}
    assert older != saved
    assert from_json(older) == mugraph


# ---------------------------------------------------------------- verification


def _unsafe() -> tuple[Graph, Graph]:
    a = mugraphs.Attention(2, 6, 5, 12, 7, scaled=True, masked=False, normed=False, dtype="float16")

    def body(q: Node, k: Node, v: Node) -> Node:
        p = term("exp", a.scores(q, k))
        return term(
            "div", term("accumulate", term("matmul", p, v)), term("accumulate", term("reduce_sum", p, axes=(2,)))
        )

    return Graph(a.inputs, (mugraphs.kernel(a.operands(()), body, (2, 2), 3, (0, 1)),)), a.goal


def test_an_unsafe_softmax_is_equal_in_the_field_and_refused_by_the_numbers() -> None:
    found = verified_mugraph(*_unsafe())
    assert isinstance(found, Failure)
    assert "output 0 is not finite where the goal is, with normal inputs in bfloat16 at scale 16" in found.reason


def test_a_goal_that_is_not_safe_itself_is_met_by_a_safe_kernel() -> None:
    safe, _ = mugraphs.attention_safe()
    q, k, v = safe.inputs
    p = term("exp", term("mul", term("matmul", q, k), constant(1 / np.sqrt(5), "float16")))
    goal = term("div", term("matmul", p, v), term("reduce_sum", p, axes=(2,)))
    assert verified_mugraph(safe, Graph(safe.inputs, (goal,)))


def test_tests_that_divide_by_zero_do_not_count() -> None:
    x = mugraphs.leaf("x", "float32", 3000)
    made = mugraphs.kernel([(x, (0,), -1)], lambda t: term("reciprocal", t), (2,), 1, (0,))
    evidence = verified_mugraph(Graph((x,), (made,)), Graph((x,), (term("reciprocal", x),)), tests=20)
    assert isinstance(evidence, Evidence)
    assert evidence.tests == 20
    assert evidence.undecided > 0
    nothing = Graph((x,), (term("reciprocal", term("sub", x, x)),))
    found = verified_mugraph(nothing, nothing)
    assert isinstance(found, Failure)
    assert "0 of" not in found.reason
    assert "tests do not decide" in found.reason


def test_other_types_and_other_leaves_are_refused() -> None:
    mugraph, goal = mugraphs.gated_mlp()
    wide = Graph(goal.inputs, (term("neg", term("concat", *goal.outputs, *goal.outputs, axis=0)),))
    assert "float16[4, 10], the goal's float16[8, 10]" in str(verified_mugraph(mugraph, wide))
    alien = Graph(mugraph.inputs, (term("add", mugraph.outputs[0], mugraphs.leaf("Z", "float16", 10)),))
    assert "it reads Z" in str(verified_mugraph(alien, goal))
    nowhere = Graph(goal.inputs, (term("sqrt", term("neg", term("exp", goal.outputs[0]))),))
    assert "of the goal is finite nowhere" in str(verified_mugraph(nowhere, nowhere))
