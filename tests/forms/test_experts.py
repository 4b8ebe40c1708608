"""Layers of experts as kernels: their results, which parts of a model they are for, and that wrong
ones are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expert_goals import EXPERTS, GOALS, RESULTS, batched, dense, goal
from named_models import model, session, w, x
from native_kernels import QUICK, complaints, computes, values

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import generate_all
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.errors import IllTyped
from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.forms.experts import FORM, RowsOfExperts, rows_of_experts
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import ABSENT, Graph, Node, constant
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.ops import term
from taso_mirage.regions.free_regions import free_regions
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cpu_kernel
from taso_mirage.verdicts import Evidence

TOKENS = 9


@cache
def layer(name: str, tokens: int = TOKENS) -> tuple[RowsOfExperts, Graph]:
    whole = GOALS[name](tokens)
    made = rows_of_experts(whole)
    assert made is not None
    return made, whole


def given(graph: Graph, seed: int = 0) -> dict[Node, Any]:
    """Random inputs, of which most shares are zero; one expert has no rows, another all but one
    token, which has none."""
    found, rng = values(graph, seed), np.random.default_rng(seed)
    shares = next(x for x in graph.inputs if x.attr("name") == "shares")
    for leaf in graph.inputs:
        if leaf.dtype == "int64":
            found[leaf] = rng.integers(-EXPERTS, EXPERTS, leaf.shape)
    if EXPERTS in shares.shape:
        kept = rng.random((TOKENS, EXPERTS)) < 0.3
        kept[:, 1], kept[:, 2], kept[0] = False, True, False
        found[shares] *= kept.T if shares.shape[0] == EXPERTS else kept
    return found


@pytest.fixture(scope="module")
def kernels() -> dict[str, NativeKernel]:
    """The kernels of all goals, each with another block, from one library."""
    blocks = (16, 2), (32, 3), (64, 1)
    graphs = {
        name.replace(" ", "_"): Graph(layer(name)[1].inputs, (layer(name)[0].mugraph(blocks[i % 3]),))
        for i, name in enumerate(GOALS)
    }
    library = build(generate_all(graphs), None, QUICK)
    return {name: NativeKernel(graph, name, threads=2, library=library) for name, graph in graphs.items()}


@pytest.mark.parametrize("name", GOALS)
def test_the_kernel_computes_the_layer(name: str, kernels: dict[str, NativeKernel]) -> None:
    whole = layer(name)[1]
    assert computes(kernels[name.replace(" ", "_")], whole, given(whole), 4e-6)


def test_what_is_no_number_stays_with_its_token(kernels: dict[str, NativeKernel]) -> None:
    """A share that is NaN is not zero; a token without shares has zeros."""
    whole = layer("dense")[1]
    found = given(whole)
    shares = found[next(x for x in whole.inputs if x.attr("name") == "shares")]
    shares[3, 1] = np.nan
    (made,) = kernels["dense"](*found.values())
    assert np.isnan(made[3]).all()
    assert np.isfinite(np.delete(made, 3, 0)).all()
    assert not made[0].any()


def test_no_sanitizer_complains(tmp_path: Path) -> None:
    graphs = {
        name.replace(" ", "_"): Graph(layer(name)[1].inputs, (layer(name)[0].mugraph((16, 2)),))
        for name in ("in turn",)
    }
    assert not complaints(graphs, tmp_path, ("0", "1"))


@pytest.mark.parametrize("name", GOALS)
def test_muGraphs_have_evidence(name: str) -> None:
    made, whole = layer(name)
    found = made.mugraphs(whole, CPU_DEVICE)
    assert len({f.graph.outputs[0].attr("block") for f in found}) == len(found) > 1
    assert all(f.evidence.tests >= 8 and f.evidence.bound < 1e-30 for f in found)


# ---------------------------------------------------------------- wrong ones


def refused(mine: Node, whole: Graph) -> bool:
    return not isinstance(verified_mugraph(Graph(whole.inputs, (mine,)), whole), Evidence)


def small(name: str) -> tuple[RowsOfExperts, Graph]:
    made = layer(name)[0].layer.small()
    return RowsOfExperts(made), goal(made.goal)


def with_shares(made: RowsOfExperts, shares: Node) -> Node:
    """The layer's muGraph with other shares of tokens and experts."""
    node = made.mugraph((16, 6))
    return term(node.op, *node.args[:2], shares, *node.args[3:], **dict(node.attrs))


def test_other_shares_are_refused() -> None:
    """Shares of the next expert, one slot less, equal choices once, the other slot's share, the
    next token's."""
    made, whole = small("gathered")
    chosen, shares = made.layer.chosen, made.layer.shares
    numbers = constant(np.array([0, 1], np.float32))
    places = term("one_hot", chosen, numbers, depth=3, axis=2)
    each = term("mul", places, term("unsqueeze", shares, axes=(2,)))
    right = term("reduce_sum", each, axes=(1,), keepdims=0)
    turned = [term("gather", right, constant(np.array([1, 2, 0])), axis=axis) for axis in (0, 1)]
    other = term("gather", shares, constant(np.array([1, 0])), axis=1)
    wrong = [
        *turned,
        term("reduce_sum", term("slice", each, axes=(1,), starts=(0,), ends=(1,), steps=(1,)), axes=(1,), keepdims=0),
        term("reduce_max", each, axes=(1,), keepdims=0),
        term("reduce_sum", term("mul", places, term("unsqueeze", other, axes=(2,))), axes=(1,), keepdims=0),
        term("reduce_sum", places, axes=(1,), keepdims=0),
    ]
    assert not refused(with_shares(made, right), whole)
    assert [refused(with_shares(made, each), whole) for each in wrong] == [True] * len(wrong)


@pytest.mark.parametrize("name", ["packed", "in turn", "by expert", "batched"])
def test_other_operands_are_refused(name: str) -> None:
    made, whole = small(name)
    own, (first, beside) = made.layer, made.layer.products
    others = [
        replace(own, products=(beside, first)),
        replace(own, products=(first, first)),
    ]
    if first.w is beside.w:
        others.append(replace(own, products=(replace(first, start=beside.start), beside)))
    if own.last.b is not ABSENT:
        others += [
            replace(own, last=replace(own.last, b=ABSENT)),
            replace(own, products=(replace(first, b=ABSENT), beside)),
        ]
    if name == "by expert":
        others.append(replace(own, by_expert=0))
    assert not refused(made.mugraph((16, 6)), whole)
    assert [refused(RowsOfExperts(each).mugraph((16, 6)), whole) for each in others] == [True] * len(others)


def test_operands_that_do_not_fit_are_ill_typed() -> None:
    node = layer("packed")[0].mugraph((16, 6))
    with pytest.raises(IllTyped, match="ranges of columns"):
        term(node.op, *node.args, **{**dict(node.attrs), "columns": ((0, 1),)})
    with pytest.raises(IllTyped, match="with the bias"):
        term(node.op, *node.args[:7], x("b", RESULTS), **dict(node.attrs))


# ---------------------------------------------------------------- goals and models


def other_goals() -> Iterator[Graph]:
    """Goals that are no such layer: another sum, a function of whole rows, products of two x, and
    shares of each column."""
    whole = dense(TOKENS)
    scaled = whole.outputs[0].args[0]
    yield goal(term("reduce_sum", scaled, axes=(1,), keepdims=0))
    yield goal(term("reduce_max", scaled, axes=(0,), keepdims=0))
    y, shares = scaled.args
    inner, last = y.args
    activated, product = inner.args
    apart = term("mul", activated, term("matmul", x("z", *product.args[0].shape), product.args[1]))
    for other in (term("softmax", inner, axis=2), apart):
        yield goal(term("reduce_sum", term("mul", term("matmul", other, last), shares), axes=(0,), keepdims=0))
    yield goal(term("reduce_sum", term("mul", y, x("columns", *y.shape)), axes=(0,), keepdims=0))


def test_other_goals_are_not_read() -> None:
    assert [rows_of_experts(each) for each in other_goals()] == [None] * 5


def test_a_square_goal_has_its_shares_as_they_are() -> None:
    for by_expert in (False, True):
        made = rows_of_experts(dense(EXPERTS, by_expert=by_expert))
        assert made is not None
        assert made.layer.by_expert == by_expert


@pytest.mark.parametrize("make", [dense, batched])
def test_a_model_of_any_number_of_tokens_runs_the_kernel(make: Any) -> None:
    """One kernel for all sizes, also where the model's terms contain sizes."""
    plain = model(*make(symbol("n"), leaf=w).outputs)
    ((kind, (site,)),) = free_regions(plain, {"n": TOKENS}, 1, False, CPU_GOALS)[0].items()
    made = CPU_GOALS.prepared(kind.whole, site.inputs)
    assert isinstance(made, RowsOfExperts)
    assert CPU_GOALS.prepared(kind.whole, kind.whole.inputs) is None, "weights of the run"
    assert kind.free is not None
    free = with_free_names(Graph(kind.whole.inputs, (made.mugraph((16, 2)),)), kind.free)
    with_kernel = embed(plain, [EmbeddedRegion(site.inputs, site.outputs, cpu_kernel(free))])
    sessions = session(plain, False), session(with_kernel, True), session(with_kernel, False)
    for tokens in (1, TOKENS, 30):
        whole = make(tokens)
        feed = {leaf.attr("name"): value for leaf, value in values(whole).items()}
        names = {each.name for each in sessions[0].get_inputs()}
        feed = {
            name: np.abs(value) % EXPERTS if name == "chosen" else value
            for name, value in feed.items()
            if name in names
        }
        wanted, *others = (each.run(None, feed)[0] for each in sessions)
        for found in others:
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_names_of_another_layer_do_not_follow() -> None:
    """The layer with exchanged products, at sizes that have names."""
    whole, named = batched(TOKENS), batched(symbol("n0"))
    free = FreeSizes.of(named)
    assert FORM.follows is not None
    assert FORM.follows(whole, named, free)
    assert not FORM.follows(whole, batched(symbol("n0"), swapped=True), free)


def cpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for name in ("in turn", "batched"):
        made, whole = layer(name)
        yield f"experts/{name}", Graph(whole.inputs, (made.mugraph((32, 6)),))
