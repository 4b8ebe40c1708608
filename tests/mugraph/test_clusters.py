"""Split reductions that the blocks of a cluster combine: found by the search, verified, and right
in floats where the exponentials of its blocks have maxima of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import interpreter
import mugraphs
import numpy as np
import pytest
from small_goals import SMALL, attention, gated, layer_norm_goal, lora, rms_linear, several_queries

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton
from taso_mirage.ir.mugraph import Batch, kernels
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.closure import close
from taso_mirage.mugraph.derivation_space import cluster_space
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.mugraph.stabilised import stabilisation
from taso_mirage.mugraph.structures import Limits, plans
from taso_mirage.mugraph.tiled_plans import COMPETITIVE, SOON, TiledPlan, with_forms
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.verdicts import Failure

TESTED = 40
"""The number of different kernels of a goal that are verified."""
CLUSTERS, ALONE = replace(H100, cluster=8), replace(H100, cluster=1)


def clustered(graph: Graph) -> tuple[Search, list[TiledPlan]]:
    searching = Search(graph, SearchOptions(), CLUSTERS)
    return searching, [c for c in searching.candidates() if any(k.kernel.body.cluster for k in c.plan)]


def combined(made: Graph) -> Counter[str]:
    (kernel,) = kernels(made.outputs)
    return Counter(node.attr("over") for node in kernel.attr("body") if node.op == "combine")


GOALS: dict[str, tuple[Callable[[], Graph], Counter[str]]] = {
    "a product": (lambda: lora().graph(), Counter(sum=2)),
    "three products": (lambda: gated(down=True).graph(), Counter(sum=1)),
    "a norm and a product": (lambda: rms_linear(gamma=True).graph(), Counter(sum=2)),
    "attention": (lambda: attention(scale=True, mask=True).graph(), Counter(rescaled=2)),
    "attention of normalized queries": (lambda: attention(norm=True).graph(), Counter(rescaled=2)),
    "a variance": (lambda: layer_norm_goal(8, 4096, 96), Counter(sum=4, variance=1)),
}


ALIKE = ("three products", "attention of normalized queries")
"""Goals whose clusters are of kinds that others have too."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in GOALS])
def test_every_cluster_that_is_found_is_its_goal(name: str) -> None:
    goal, wanted = GOALS[name]
    searching, found = clustered(goal())
    roles: dict[object, TiledPlan] = {}
    for each in found:
        roles.setdefault(each.roles(), each)
    made = [searching.accepted(each) for each in [*roles.values()][:TESTED]]
    assert None not in made, searching.refused
    graphs = [each.graph for each in made if each is not None]
    assert wanted in [combined(graph) for graph in graphs]
    for graph in graphs:
        (kernel,) = kernels(graph.outputs)
        assert 1 < kernel.attr("cluster") == kernel.attr("grid")[-1] <= CLUSTERS.cluster
        assert combined(graph)
    assert {kernels(graph.outputs)[0].attr("loop") > 1 for graph in graphs} >= {True}


def test_each_block_of_a_cluster_writes_its_part_of_a_long_row() -> None:
    searching, found = clustered(layer_norm_goal(4, 65536))
    graph = found[0].graph()
    assert graph is not None
    (kernel,) = kernels(graph.outputs)
    assert kernel.attr("omap")[0][-1] == 1
    assert searching.accepted(found[0]) is not None


def test_a_cluster_comes_after_the_two_kernels_that_are_faster() -> None:
    """The candidates were measured on an H200; the first few have a cluster all the same."""
    for graph in (lora().graph(), attention().graph()):
        found = Search(graph, SearchOptions(), CLUSTERS).candidates()
        first = next(c for c in found if c.plan[0].kernel.body.cluster)
        assert not found[0].plan[0].kernel.body.cluster
        assert found[0].seconds < min(c.seconds for c in found if c.plan[0].kernel.body.cluster)
        assert first in found[:SOON] or first.seconds > COMPETITIVE * found[0].seconds


def test_the_first_candidates_have_each_form_that_is_not_far_behind() -> None:
    """The best of all candidates stays the first."""
    alone, two = (replace(each, sizes={}) for each in _one_and_two())
    slow = [replace(alone, plan=(replace(alone.plan[0], seconds=1e-6 + i * 1e-9),)) for i in range(2 * SOON)]
    near = replace(two, plan=tuple(replace(each, seconds=0.9e-6) for each in two.plan))
    far = replace(two, plan=tuple(replace(each, seconds=2e-6) for each in two.plan))
    assert with_forms([*slow, near])[:3] == [slow[0], near, slow[1]]
    assert with_forms([*slow, far]) == [*slow, far]


def _one_and_two() -> list[TiledPlan]:
    found = Search(lora().graph(), SearchOptions(), ALONE).candidates()
    return [next(c for c in found if len(c.plan) == n) for n in (1, 2)]


def test_what_has_no_clusters_gets_none() -> None:
    for device in (ALONE, CPU_DEVICE):
        found = Search(attention().graph(), SearchOptions(), device).candidates()
        assert found
        assert not any(k.kernel.body.cluster for c in found for k in c.plan)


def test_parts_are_whole_before_they_are_combined() -> None:
    """No kernel exchanges in every iteration, though the sums could be exchanged in any order."""
    closure = close(label(attention().graph(), "d"))
    outer, inner = closure.goal.split["d"]
    space = cluster_space(closure)
    edges = [(c, e) for c, made in enumerate(space.edges) for e in made if e.label == outer]
    assert edges
    assert not any(inner in closure.classes[a] for _, e in edges for a in e.args)
    found = [plan for plan in plans(closure, Limits(clusters=True)) if plan[0].body.cluster]
    assert {plan[0].loop for plan in found} > {None, inner}


def test_values_of_a_block_meet_those_of_its_cluster_relative_to_one_maximum() -> None:
    """A softmax: its rows are relative to the maximum of each block, and their sum to that of all.
    The stored value of a block is not."""
    goal = Graph((x := variable("x", Tensor("float32", (16, 1024))),), (term("softmax", x, axis=1),))
    closure = close(label(goal, "b"))
    found = [plan for plan in plans(closure, Limits(clusters=True)) if plan[0].body.cluster]
    assert found
    assert not any(isinstance(stabilisation(plan, closure), Failure) for plan in found)
    search = Search(goal, SearchOptions(), H100)
    each = next(each for each in search.candidates() if each.plan[0].kernel.body.cluster)
    assert search.accepted(each) is not None


@pytest.mark.sampled(2)
def test_every_sample_of_a_batch_has_clusters_of_its_own(tmp_path: Path) -> None:
    """In Triton's interpreter."""
    sizes: dict[str, Any] = {"queries": 6, "dim": 5, "keys": 24, "width": 7, "blocks": 3, "splits": 4, "loop": 3}
    graph, _ = mugraphs.attention_cluster(heads=1, **sizes)
    _, goal = mugraphs.attention_cluster(heads=3, **sizes)
    (tmp_path / "generated.py").write_text(triton.program(graph, batch=Batch(1, (True, True, True))).source)
    rng = np.random.default_rng(0)
    given = [rng.normal(size=x.shape).astype(np.float16) for x in goal.inputs]
    np.savez(tmp_path / "given.npz", *given)
    done = interpreter.run(RUN, tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = interpret(goal.outputs, EXACT, {x: EXACT.load(v) for x, v in zip(goal.inputs, given, strict=True)})
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), wanted[goal.outputs[0]], atol=4e-3)


RUN = """
import sys, numpy, torch, generated, in_turn
given = numpy.load(sys.argv[1] + "/given.npz")
found = in_turn.launched(generated, *[torch.from_numpy(given[name]) for name in given.files])
numpy.save(sys.argv[1] + "/found.npy", found.double().numpy())
"""


def test_the_first_candidates_have_a_product_of_matrices_that_can_be_put_together() -> None:
    """The model ranks no small product first that can be put together, and of attention's heads of
    several queries it ranks some first that are none at the goal's sizes."""
    x, w = (variable(name, Tensor("float32", shape)) for name, shape in (("x", (64, 128)), ("w", (128, 64))))
    for goal in (Graph((x, w), (term("matmul", x, w),)), several_queries(*SMALL)):
        found = Search(goal, SearchOptions(), H100).candidates()
        assert not found[0].multiplies
        assert found[1].multiplies
        assert found[1].graph() is not None
