"""Regions of models as they are after the substitutions: fused operators of the runtime, several
results, repeated heads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
from named_models import WITH_CONTRIB, w, x
from named_models import model as model_of
from onnxruntime import InferenceSession

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit.cpu.native_kernel import NativeKernel as Compiled
from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import Graph, Node, constant
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.closure import close
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import PLANS, Search, SearchOptions, superoptimize
from taso_mirage.mugraph.structures import Limits, plans
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.regions.fragments import RegionSite, _Growing, fragments
from taso_mirage.regions.kernel_regions import kernel_regions
from taso_mirage.regions.survey import survey
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cpu_kernel
from taso_mirage.verdicts import Evidence, Failure

ROWS, WIDTH = 66, 12
model = partial(model_of, opsets=WITH_CONTRIB)


def found(*outputs: Node) -> tuple[Model, list[tuple[Graph, list[RegionSite]]]]:
    made = model(*outputs)
    return made, list(fragments(made, {}).items())


def operators(graph: Graph) -> list[str]:
    return [n.op for n in graph if n.args]


def skip_norm(op: str, **attrs: Any) -> Node:
    data = (x("x", 1, ROWS, WIDTH), x("skip", 1, ROWS, WIDTH), w("scale", WIDTH))
    offset = (w("offset", WIDTH),) if "layer" in op else ()
    return term(op, *data, *offset, w("bias", WIDTH), **attrs)


def items(node: Node) -> tuple[Node, ...]:
    return tuple(term("item", node, index=i) for i in range(2))


@pytest.mark.parametrize("op", ["skip_layer_norm", "skip_rms_norm"])
def test_a_norm_with_its_sum_is_a_region_where_it_is_one_operator(op: str) -> None:
    _, ((goal, (site,)),) = found(skip_norm(op))
    assert (operators(goal), len(site.inputs)) == ([op], 4 + ("layer" in op))
    (best, *_) = superoptimize(goal, best=1, budget=20, device=CPU_DEVICE)
    assert isinstance(verified_mugraph(best.graph, goal, seed=5), Evidence)


@pytest.mark.parametrize("op", ["skip_layer_norm_sum", "skip_rms_norm_sum"])
def test_both_results_of_one_operator_are_results_of_its_region(op: str) -> None:
    made, ((goal, (site,)),) = found(*items(skip_norm(op)))
    assert operators(goal) == [op, "item", "item"]
    assert site.outputs == made.graph.outputs
    (best, *_) = superoptimize(goal, best=1, budget=20, device=CPU_DEVICE)
    assert isinstance(verified_mugraph(best.graph, goal, seed=5), Evidence)
    (region,) = kernel_regions(made, {})
    assert [n.op for n in region.operators] == [op]
    assert [len(names) for names in region.places] == [1]


def test_a_kernel_of_several_results_takes_their_place_in_the_model() -> None:
    normal, total = items(skip_norm("skip_layer_norm_sum"))
    linear = term("matmul", normal, w("w", WIDTH, WIDTH))
    made, ((goal, (site,)),) = found(term("add", linear, total))
    assert operators(goal) == ["skip_layer_norm_sum", "item", "item"]  # the linear layer has too many rows for a region
    (best, *_) = superoptimize(goal, best=1, budget=20, device=CPU_DEVICE)
    fused = embed(made, [EmbeddedRegion(site.inputs, site.outputs, cpu_kernel(best.graph))])
    assert "skip_layer_norm_sum" not in [n.op for n in fused.nodes()]
    inputs = random_inputs(made, 0)
    ours, wanted = (InferenceSession(serialize(each)).run(None, inputs) for each in (fused, made))
    np.testing.assert_array_equal(ours[0], wanted[0])  # without the library a function runs the same operators
    rng = np.random.default_rng(1)
    arrays = {leaf: rng.normal(size=leaf.shape).astype(np.float32) for leaf in goal.inputs}
    exact = interpret(goal.outputs, EXACT, {leaf: EXACT.load(array) for leaf, array in arrays.items()})
    for result, output in zip(Compiled(best.graph)(*arrays.values()), goal.outputs, strict=True):
        np.testing.assert_allclose(result, exact[output], rtol=1e-5, atol=1e-5)


def test_a_wrong_sum_is_refused() -> None:
    """The definition of each result counts, not that of the first."""
    (normal, total), other = items(skip_norm("skip_rms_norm_sum")), skip_norm("skip_rms_norm")
    inputs = tuple(n for n in Graph((), (normal,)) if n.op == "input")
    goal = Graph(inputs, (normal, total))
    assert isinstance(verified_mugraph(Graph(inputs, (other, term("add", *inputs))), goal), Failure)
    summed = term("add", term("add", inputs[0], w("bias", WIDTH)), inputs[1])
    assert isinstance(verified_mugraph(Graph(inputs, (other, summed)), goal), Evidence)


def test_what_several_results_come_back_to_is_no_part_of_their_region() -> None:
    """The linear layer lies between the norm and the last sum: a region with both, and without it,
    would wait for itself."""
    normal, total = items(skip_norm("skip_layer_norm_sum"))
    linear = term("matmul", normal, w("w", WIDTH, WIDTH))
    last = term("gelu", term("add", linear, total))
    _, kinds = found(last)
    assert sorted(map(operators, dict(kinds))) == [["add", "gelu"], ["skip_layer_norm_sum", "item", "item"]]


def grouped(queries: int, keys: int, heads: int = 8, shared: int = 2, width: int = 4) -> Node:
    """Attention in which four heads share each head of keys and values, as exporters write it."""
    q = x("q", 1, heads, queries, width)
    both = []
    for name in ("k", "v"):
        each = term("unsqueeze", x(name, 1, shared, keys, width), axes=(2,))
        wide = term("expand", each, shape=(1, shared, heads // shared, keys, width))
        both.append(term("reshape", wide, shape=(1, heads, keys, width)))
    scores = term("matmul", q, term("transpose", both[0], perm=(0, 1, 3, 2)))
    masked = term("add", term("mul", scores, constant(np.float32(0.5))), x("mask", 1, 1, queries, keys))
    return term("matmul", term("softmax", masked, axis=3), both[1])


@pytest.mark.parametrize("queries", [1, 6])
def test_attention_reads_heads_that_queries_share_once(queries: int) -> None:
    _, ((goal, _),) = found(grouped(queries, 9))
    assert operators(goal).count("expand") == 2
    assert sorted(i.shape for i in goal.inputs)[-2:] == [(1, 2, 9, 4), (1, 8, queries, 4)]
    (best, *_) = superoptimize(goal, best=1, budget=20, device=CPU_DEVICE)
    assert isinstance(verified_mugraph(best.graph, goal, seed=5), Evidence)


def test_what_only_repeats_elements_is_no_region() -> None:
    wide = term("expand", x("x", 1, 4, 1), shape=(1, 4, 8))
    assert found(term("reshape", wide, shape=(1, 32)))[1] == []


def test_attention_of_the_runtime_with_a_mask_and_no_bias_is_a_region() -> None:
    q, k, v = (x(name, 1, n, 8) for name, n in (("q", 4), ("k", 6), ("v", 6)))
    _, ((goal, _),) = found(term("multi_head_attention", q, k, v, None, x("mask", 1, 1, 4, 6), num_heads=2))
    assert (operators(goal), len(goal.inputs)) == (["multi_head_attention"], 4)
    (best, *_) = superoptimize(goal, best=1, budget=20, device=CPU_DEVICE)
    assert isinstance(verified_mugraph(best.graph, goal, seed=5), Evidence)


def test_attention_with_a_mask_that_is_known_is_a_region_of_as_many_rows_as_there_are() -> None:
    """A mask is no linear layer's weight, though it is known, and the sum runs along it."""
    q, k, v = (x(name, 1, 70, 64) for name in "qkv")
    made = term("multi_head_attention", q, k, v, None, w("mask", 1, 1, 70, 70), num_heads=2)
    assert [operators(goal) for goal, _ in found(made)[1]] == [["multi_head_attention"]]
    beside = found(term("matmul", term("softmax", q, axis=2), w("w", 64, 32)))[1]
    assert [operators(goal) for goal, _ in beside] == [["softmax"]]


def test_a_guard_against_what_is_no_number_runs_on_a_cpu() -> None:
    data = x("x", 3, 20)
    made = term("mul", data, data)
    goal = Graph((data,), (term("where", term("isnan", made), constant(np.float32(0)), made),))
    (best, *_) = superoptimize(goal, best=1, budget=20, device=CPU_DEVICE)
    given = np.linspace(-3, 3, 60, dtype=np.float32).reshape(3, 20)
    given[1, 7] = np.nan
    (result,) = Compiled(best.graph)(given)
    np.testing.assert_allclose(result, np.where(np.isnan(given), 0, given * given), rtol=1e-6)


def test_one_value_alone_is_no_region() -> None:
    for each in (term("matmul", x("a", 2, 5, 3), x("b", 2, 3, 8)), term("gelu", x("x", 10, 8))):
        assert found(term("reshape", each, shape=(80,)))[1] == []


def test_a_survey_has_a_time_for_every_operator() -> None:
    """An operator that has labels only beside others, or several results, takes the roofline's
    time, or that of its own kernel."""
    made = [model(grouped(2, 6)), model(*items(skip_norm("skip_rms_norm_sum")))]
    for region in (r for each in made for r in kernel_regions(each, {})):
        (each,) = survey([region], 10, {}, H100)
        assert each.problem == ""
        assert each.apart > 0


def gated_mlp(width: int, hidden: int) -> Graph:
    """x + skip + W3 (silu(W1 n) * (W2 n)) with n the norm of x + skip."""
    data = [x(name, 1, 1, width) for name in ("x", "skip")]
    scale, *weights = (x(n, *s) for n, s in (("g", (width,)), ("a", (width, hidden)), ("b", (width, hidden))))
    normal, total = items(term("skip_rms_norm_sum", *data, scale, epsilon=1e-6))
    gate, up = (term("matmul", normal, each) for each in weights)
    down = x("c", hidden, width)
    made = term("matmul", term("mul", term("quick_gelu", gate, alpha=1.0), up), down)
    return Graph((*data, scale, *weights, down), (term("add", made, total),))


def test_every_hand_over_has_its_turn_before_the_cap() -> None:
    """A kernel that stores the hidden values alone comes after hundreds that store whole
    matrices."""
    closure = close(label(gated_mlp(20, 28)))
    (hidden,) = (name for name, size in closure.goal.sizes.items() if size == 28)
    stored = [[closure.classes[c] for c in plan[-1].body.leaves] for plan in islice(plans(closure, Limits()), PLANS)]
    assert [{hidden}] in stored


def test_a_split_on_few_threads_has_to_promise_more_than_the_model_can_tell() -> None:
    goal = Graph((x("x", 4, 8), x("w", 8, 6)), (term("matmul", x("x", 4, 8), x("w", 8, 6)),))
    for device, behind in ((CPU_DEVICE, True), (H100, False)):
        search = Search(goal, SearchOptions(), device)
        plain = search.candidates()[0]
        split = replace(plain, closure=close(label(goal, *search.labelled.reduced)))
        assert (search.order(split) > search.order(plain)) is behind


def test_labels_say_which_term_has_none() -> None:
    """Several results have no labels together: a goal reads each."""
    whole = skip_norm("skip_layer_norm_sum")
    inputs = tuple(n for n in Graph((), items(whole)) if n.op == "input")
    with pytest.raises(TasoMirageError, match="it is no single tensor"):
        label(Graph(inputs, (whole,)))
    assert len(label(Graph(inputs, items(whole))).outputs) == 2


# ---------------------------------------------------------------- the order that regions are grown in


@pytest.mark.parametrize("seed", range(12))
def test_a_region_has_one_rank_below_all_that_hangs_on_it(seed: int) -> None:
    """Any regions are merged, as long as no path leaves one and comes back."""
    rng = np.random.default_rng(seed)
    values = [x(f"x{i}", 4) for i in range(3)]
    for _ in range(40):
        first, second = (values[-1 - int(rng.integers(min(8, len(values))))] for _ in range(2))
        values.append(term("add", first, term("relu", second)))
    growing = _Growing([values[-1], term("neg", values[-2])], {}, 1, False, False)
    free = [n for n in growing.order if n.args]
    for _ in range(30):
        start = free[int(rng.integers(len(free)))]
        members = [start, *[u for u in growing.users.get(start, ()) if u.args][: int(rng.integers(4))]]
        if any(n in growing.region for n in members) or not growing.ranks.convex(set(members)):
            continue
        growing._take(members)
        assert len({growing.ranks.rank[n] for n in members}) == 1
        for node in growing.order:
            for arg in node.args:
                same = growing.region.get(arg, [arg]) is growing.region.get(node, [node])
                assert same or growing.ranks.rank[arg] < growing.ranks.rank[node]
    assert len(growing.found) > 3


def test_no_region_is_looked_for_once_it_is_late() -> None:
    node = x("x", 4)
    for _ in range(200):
        node = term("tanh", term("exp", term("neg", node)))
    asked = iter([False] * 5 + [True] * 10_000)
    few, all_ = fragments(model(node), {}, late=lambda: next(asked)), fragments(model(node), {})
    assert 0 < sum(map(len, few.values())) <= 5 < sum(map(len, all_.values()))
