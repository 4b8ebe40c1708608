"""Goals that measure how general the search is: the same by a seed, well typed, and each step says
what is true."""

from __future__ import annotations

import importlib
import json
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scripts import script

from taso_mirage.ir.terms import Graph, is_float
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.operators.interpret import retyped
from taso_mirage.rewriting.text import parse_graph, show_graph

COUNT = 40


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("goals")


@pytest.fixture(scope="module")
def checks(bench: ModuleType) -> ModuleType:
    return importlib.import_module("goal_checks")


@pytest.fixture(scope="module")
def peers(bench: ModuleType) -> ModuleType:
    return importlib.import_module("goal_peers")


@pytest.fixture(scope="module")
def timing(bench: ModuleType) -> ModuleType:
    return importlib.import_module("goal_rows")


def step(checks: ModuleType, name: str, goal: Graph, **job: Any) -> dict[str, Any]:
    found: dict[str, Any] = checks.step({"step": name, "goal": to_json(goal), "budget": 20, **job})
    return found


def test_a_seed_determines_the_goals(bench: ModuleType) -> None:
    first, again = ([(g.name, g.graph) for g in bench.goals(COUNT, 3)] for _ in range(2))
    assert first == again
    others = [(g.name, g.graph) for g in bench.goals(COUNT, 4)]
    forms = len(bench.FORMS)
    assert first[:forms] == others[:forms]
    assert len({graph for _, graph in (*first[forms:], *others[forms:])}) > 1.5 * COUNT
    assert len({name for name, _ in first}) == len(first) == forms + COUNT


def test_every_goal_is_well_typed_and_computes_floats(bench: ModuleType) -> None:
    for each in bench.goals(COUNT, 0):
        graph = each.graph
        assert retyped(graph.outputs, {x: x for x in graph.inputs}) == graph.outputs, each.name
        assert parse_graph(show_graph(graph)) == graph, each.name
        assert graph.inputs, each.name
        assert all(is_float(output.dtype) for output in graph.outputs), each.name


def test_compositions_contain_every_movement(bench: ModuleType) -> None:
    moved = importlib.import_module("goal_compositions").MOVED
    names = " ".join(g.name for g in bench.goals(200, 0) if g.kind == "composition")
    assert [op for op in moved if op not in names] == []


@pytest.mark.parametrize("name", ["rotary embedding", "window of a cache", "layer norm, product"])
def test_a_form_with_labels_is_expressed(name: str, bench: ModuleType, checks: ModuleType) -> None:
    assert step(checks, "labels", bench.FORMS[name]())["labels"] >= 3


def test_a_refusal_names_the_operator(checks: ModuleType) -> None:
    graph = parse_graph(
        "def graph(x: input('x', float32[4, 8])):\n    y = reduce_prod(x, axes=(1,), keepdims=1)\n    return y"
    )
    assert "the term reduce_prod" in step(checks, "labels", graph)["problem"]


@pytest.mark.sampled(3)
def test_all_refusals_name_an_operator_and_its_shapes(bench: ModuleType, checks: ModuleType) -> None:
    """The refusals of pieces of models, and of compositions by a seed of which some are refused."""
    corpus = json.loads(importlib.import_module("goal_corpus").CORPUS.read_text())
    graphs = [parse_graph("\n".join(each["goal"])) for each in corpus["pieces"]]
    graphs += [bench.composition(f"9 {i}", corpus["follow"])[1] for i in range(120)]
    texts = [(graph, step(checks, "labels", graph).get("problem")) for graph in graphs]
    refused = [(graph, text) for graph, text in texts if text is not None]
    assert refused
    for graph, text in refused:
        named = re.match(r"(\w+)\((\w+\[[\d, ]*\](, )?)+\) -> \w+\[[\d, ]*\]: .+", text)
        assert named, text
        assert named[1] in {n.op for n in graph}, text


GOAL = parse_graph("""\
def graph(x: input('x', float32[6, 32]), y: input('y', float32[6, 16])):
    a = slice(x, starts=(16,), ends=(32,), axes=(1,), steps=(1,))
    b = mul(a, y)
    return b
""")
WRONG = parse_graph(show_graph(GOAL).replace("(16,), ends=(32,)", "(0,), ends=(16,)"))


def test_programs_of_a_goal_are_right_and_those_of_another_are_not(checks: ModuleType) -> None:
    search = step(checks, "search", GOAL, target="cpu")
    assert search["proved"]
    assert step(checks, "native", GOAL, graph=search["graph"])["error"] < 1e-6
    assert step(checks, "native", WRONG, graph=search["graph"])["error"] > 0.1


@pytest.mark.sampled(3)
def test_programs_for_a_gpu_run_in_the_interpreter(checks: ModuleType) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    search = step(checks, "search", GOAL, target="gpu")
    made = step(checks, "cubins", GOAL, graph=search["graph"])
    given = {"graph": search["graph"], "source": made["source"]}
    assert step(checks, "interpreter", GOAL, **given)["error"] < 1e-3
    assert step(checks, "interpreter", WRONG, **given)["error"] > 0.1


def test_differences_are_relative_and_see_shapes_and_infinities(checks: ModuleType) -> None:
    wanted = [np.array([2.0, -4.0])]
    assert checks.difference([np.array([2.0, -3.0])], wanted) == 0.25
    assert checks.difference([np.array([[2.0, -4.0]])], wanted) == np.inf
    assert checks.difference([np.array([2.0, np.nan])], wanted) == np.inf


@pytest.mark.parametrize("name", ["rotary embedding", "pad, convolution", "chosen experts", "running sums"])
def test_the_peer_of_pytorch_computes_the_goal(
    name: str, bench: ModuleType, checks: ModuleType, peers: ModuleType
) -> None:
    torch = pytest.importorskip("torch")
    graph = bench.FORMS[name]()
    given = checks.arrays(graph)
    inputs = [*map(torch.tensor, given)]
    peer = peers.function(graph, "cpu")
    for call in (peer, peers.as_module(peer, inputs)):
        assert checks.difference([x.numpy() for x in call(*inputs)], checks.exact(graph, given)) < 1e-5


@pytest.mark.parametrize(
    ("name", "kind"),
    [("split projection", "attentions"), ("cache append", "attentions"), ("layer norm, product", "products")],
)
def test_peers_with_a_librarys_operator_compute_the_goal(
    name: str, kind: str, bench: ModuleType, checks: ModuleType, peers: ModuleType
) -> None:
    torch = pytest.importorskip("torch")
    graph = bench.FORMS[name]()
    sites, given = getattr(peers, kind)(graph), checks.arrays(graph)
    assert len(sites) == 1
    found = peers.function(graph, "cpu", sites)(*map(torch.tensor, given))
    assert checks.difference([x.numpy() for x in found], checks.exact(graph, given)) < 1e-5


def test_a_masked_attention_has_its_mask_in_sdpa(checks: ModuleType, peers: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    graph = importlib.import_module("kernel_goals").GOALS["window attention"]()
    graph = peers.with_floats(graph, "float32")
    ((node, _),) = peers.attentions(graph).items()
    given = checks.arrays(graph)
    found = peers.function(graph, "cpu", peers.attentions(graph))(*map(torch.tensor, given))
    assert node in graph.outputs
    assert checks.difference([x.numpy() for x in found], checks.exact(graph, given)) < 1e-5


def test_rows_of_a_gpu_are_the_forms_and_regions_at_larger_sizes(bench: ModuleType, timing: ModuleType) -> None:
    rows = timing.rows()
    assert len(rows) >= 16 + 14
    for name, made in bench.FORMS.items():
        small, large = made(), rows[f"form: {name}"]()
        assert [n.op for n in small] == [n.op for n in large], name
        assert sum(x.shape != y.shape for x, y in zip(small.inputs, large.inputs, strict=True)) > 0, name
    regions = [name for name in rows if name.startswith("region")]
    assert len(regions) >= 10
    assert all(len(timing.operators(rows[name]())) >= timing.OPERATORS for name in regions)


def test_sizes_that_do_not_grow_alike_have_no_row(timing: ModuleType) -> None:
    lines = "def graph(x: input('x', float32[2, 32])):\n    y = reshape(x, shape=({}))\n    z = exp(y)\n    return z"
    (grown,) = timing.enlarged(lines.format("4, 16").splitlines()).outputs
    assert grown.shape == (4, 128)
    assert timing.enlarged(lines.format("8, 8").splitlines()) is None


def test_rows_of_indices_are_within_the_tensor_they_are_for(checks: ModuleType, bench: ModuleType) -> None:
    graph = bench.FORMS["embedding, layer norm"]()
    ids = dict(zip((x.attr("name") for x in graph.inputs), checks.arrays(graph), strict=True))["ids"]
    assert ids.min() >= 0
    assert 100 < ids.max() < 1000


def test_equal_refusals_are_one(bench: ModuleType) -> None:
    text = "the term conv float32[1, 64, 14, 14] has no labels: pad moves elements between axes"
    rows = [
        {"case": "a", "kind": "form", "expressed": False, "problem": text},
        {"case": "b", "kind": "form", "expressed": False, "problem": text.replace("14", "28")},
        {"case": "c", "kind": "form", "expressed": True, "labels": 3, "cpu": {"found": True, "problem": "off by 0.5"}},
    ]
    assert bench.refusals(rows) == {
        ("expressed", text.replace("float32[1, 64, 14, 14]", "T")): 2,
        ("cpu", "off by N"): 1,
    }
    assert bench.counts(rows, "cpu") == {"expressed": 1, "found": 1, "proved": 0, "compiled": 0, "right": 0}
