"""Regions whose results have different labels: lanes, searched apart, that run beside each
other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fused_models import CONFIG, fresh_cache, kernels, on_the_cpu, quick, run
from named_models import w, x

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.cuda.device import H100
from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, topological, variable, weight
from taso_mirage.lowering import cuda as cuda
from taso_mirage.lowering.cpu import CpuLowering
from taso_mirage.lowering.cuda import CudaLowering
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.horizontal import fused_goals, together
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused, stage
from taso_mirage.regions.fragments import _Growing, fragments
from taso_mirage.regions.region_kinds import RegionKind
from taso_mirage.report.result import Result

pytestmark = pytest.mark.sampled(2)

ROWS, WIDTH = 2, 32
OPSETS = {"": 23, "com.microsoft": 1}
GPU = CudaLowering(H100, "a stand-in for an H100", 90)


def model(*outputs: Node) -> Model:
    leaves = Graph((), outputs)
    rng = np.random.default_rng(0)
    arrays = {
        n.attr("name"): StoredWeight((rng.normal(size=n.shape) / 4).astype(n.dtype)) for n in leaves if n.op == "weight"
    }
    graph = Graph(tuple(n for n in leaves if n.op == "input"), outputs)
    return from_ir(from_proto(onnx.load_from_string(serialize(standalone(graph, OPSETS, arrays)))))


def norm() -> tuple[Node, Node]:
    """A norm of a sum, and the sum."""
    made = term("skip_rms_norm_sum", x("x", 1, ROWS, WIDTH), x("skip", 1, ROWS, WIDTH), w("scale", WIDTH))
    return term("item", made, index=0), term("item", made, index=1)


def projections() -> tuple[Node, ...]:
    """Queries, keys and values of one norm, and the sum that the next one reads."""
    normed, total = norm()
    linear = [term("matmul", normed, w(name, WIDTH, n)) for name, n in (("wq", 24), ("wk", 16), ("wv", 16))]
    return *linear, total


def operators(graph: Graph) -> list[str]:
    return [n.op for n in graph if n.args and n.op != "item"]


def only(made: Model, count: int) -> Graph:
    (goal,) = fragments(made, {}, count)
    return goal


def test_results_of_other_labels_are_lanes_of_one_region() -> None:
    goal = only(model(*projections()), 4)
    parts = fused_goals(goal)
    assert [operators(p.graph) for p in parts] == [["skip_rms_norm_sum", "matmul"]] * 3 + [["skip_rms_norm_sum"]]
    assert sorted(i for part in parts for i in part.results) == [0, 1, 2, 3]
    assert parts[1].graph == parts[2].graph != parts[0].graph  # so they are searched once
    assert parts[1].inputs != parts[2].inputs


def test_where_nothing_runs_beside_anything_a_region_has_one_lane() -> None:
    for count, wanted in ((1, {1}), (3, {1, 3}), (4, {4})):
        assert {len(fused_goals(goal)) for goal in fragments(model(*projections()), {}, count)} == wanted


@pytest.mark.sampled(1)
def test_no_two_lanes_compute_the_same_product() -> None:
    """The first product is a result too, and an operand of the second one."""
    first = term("sigmoid", term("matmul", x("x", ROWS, WIDTH), w("w0", WIDTH, 24)))
    second = term("sigmoid", term("matmul", first, w("w1", 24, 16)))
    for goal in fragments(model(first, second), {}, 4):
        assert operators(goal).count("matmul") == 1


def test_a_norm_that_is_converted_is_in_the_region_of_its_products() -> None:
    """In half precision, exporters write a norm in single precision. The conversion behind it
    computes nothing, so it is no lane alone."""
    wide = term("cast", variable("x", Tensor("float16", (1, ROWS, WIDTH))), to="float32")
    mean = term("reduce_mean", term("mul", wide, wide), axes=(2,), keepdims=1)
    normed = term("cast", term("div", wide, term("sqrt", mean)), to="float16")
    shapes = (("wq", 24), ("wk", 16), ("wv", 16))
    linear = [term("matmul", normed, weight(name, Tensor("float16", (WIDTH, n)))) for name, n in shapes]
    goal = only(model(*linear), 4)
    assert operators(goal).count("matmul") == 3
    assert "reduce_mean" in operators(goal)
    assert len(fused_goals(goal)) == 3


def test_a_rotary_embedding_is_a_region_behind_its_product_on_a_gpu() -> None:
    heads = term("reshape", term("matmul", x("x", ROWS, WIDTH), w("wq", WIDTH, 32)), shape=(ROWS, 2, 16))
    low, high = (term("slice", heads, starts=(a,), ends=(a + 8,), axes=(2,), steps=(1,)) for a in (0, 8))
    turned = term("concat", term("neg", high), low, axis=2)
    whole = term("add", term("mul", heads, x("cos", ROWS, 1, 16)), term("mul", turned, x("sin", ROWS, 1, 16)))
    found = [operators(goal) for goal in fragments(model(whole), {}, 4)]
    assert len(found) == 2
    assert [op for each in found for op in each if op in ("matmul", "concat")] == ["matmul", "concat"]
    assert not [each for each in found if {"matmul", "concat"} <= {*each}]


def test_a_chain_that_others_read_is_no_lane() -> None:
    mask = term("mul", term("exp", x("x", 1, 20)), x("z", 1, 20))
    scores = term("add", term("matmul", x("q", 3, 8), x("k", 8, 20)), mask)
    goals = [operators(g) for g in fragments(model(term("softmax", scores, axis=1), term("neg", mask)), {}, 4)]
    assert ["matmul", "add", "softmax"] in goals


# ---------------------------------------------------------------- muGraphs


def joined() -> tuple[Graph, dict[str, Any]]:
    goal = only(model(*projections()), 4)
    parts = fused_goals(goal)
    records = []
    for i, part in enumerate(parts):
        found = superoptimize(part.graph, best=1, budget=20, device=H100)[0].graph
        count = sum(n.op == "kernel" for n in found)
        records.append({"mugraph": to_json(found), "schedules": [{"warps": 2**i, "stages": 1}] * count})
    return goal, dict(GPU.joined(goal, parts, records))


def test_the_mugraphs_of_lanes_are_one_that_computes_the_goal() -> None:
    goal, record = joined()
    graph = from_json(record["mugraph"])
    assert [n.tensor for n in graph.inputs] == [n.tensor for n in goal.inputs]
    rng = np.random.default_rng(1)
    given = [rng.normal(size=n.shape) for n in goal.inputs]
    found, wanted = values(graph, given), values(goal, given)
    assert len(wanted) == 4
    for got, exact in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-9)


def values(graph: Graph, given: list[Any]) -> list[Any]:
    """The results in float64."""
    found = interpret(graph.outputs, EXACT, dict(zip(graph.inputs, map(EXACT.load, given), strict=True)))
    return [found[o] for o in graph.outputs]


def test_every_kernel_keeps_its_schedule() -> None:
    goal, record = joined()
    graph, parts = from_json(record["mugraph"]), fused_goals(goal)
    made = [n for n in graph if n.op == "kernel"]
    assert len(made) == 4
    for i, part in enumerate(parts):
        output = graph.outputs[part.results[0]]
        kernel = next(n for n in reversed(topological([output])) if n.op == "kernel")
        assert record["schedules"][made.index(kernel)]["warps"] == 2**i
    with pytest.raises((TasoMirageError, ValueError)):
        GPU.joined(goal, parts, [record] * 4)


def test_lanes_of_other_goals_do_not_go_together() -> None:
    goal = only(model(*projections()), 4)
    parts = fused_goals(goal)
    with pytest.raises((TypeError, ValueError)):
        together(goal, parts, [parts[0].graph] * 4)


# ---------------------------------------------------------------- the stage


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Result:
    """The model as it comes from the other stages, where there is a stand-in for a GPU."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)
    monkeypatch.setattr(stage, "here", lambda target: GPU)
    monkeypatch.setattr(cuda, "SHIPPED", (90,))  # test_fuse_cuda.py has all of them
    monkeypatch.setattr(runtime, "open_in_child", on_the_cpu)
    made = model(*projections())
    found = optimize_model(made, replace(CONFIG, measure=False, budget=0.0))
    return replace(found, model=made, steps=(), changed=False, target=CUDA)


def test_a_region_of_lanes_is_one_node(plain: Result, tmp_path: Path) -> None:
    found, made = fused(plain, CONFIG, "search"), plain.original
    assert kernels(found) == 1, found.notes
    assert all(d.passed for d in found.differences)
    assert [n.op for n in found.model.nodes() if n.args and n.op != "item"] == ["opaque"]
    assert len(list(tmp_path.glob("kernels/*.json"))) == 3  # keys and values are one
    content = serialize(found.model)
    inputs = {n.attr("name"): np.ones(n.shape, np.float32) for n in made.graph.inputs}
    for got, wanted in zip(run(content, inputs), run(serialize(made), inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert serialize(fused(plain, CONFIG, "cached").model) == content


@pytest.mark.slow  # test_fuse.py damages the file of a kernel that is no lane
def test_a_damaged_lane_is_searched_again(plain: Result, tmp_path: Path) -> None:
    def found(mode: str) -> Result:
        return fused(plain, CONFIG, mode)

    wanted = serialize(found("search").model)
    sorted(tmp_path.glob("kernels/*.json"))[0].write_text('{"mugraph": {"mugraph": 1, "program": ["nonsense"]}}')
    assert kernels(found("cached")) == 0
    assert serialize(found("search").model) == wanted
    assert serialize(found("cached").model) == wanted


def test_every_back_end_joins_lanes() -> None:
    """One without any that run beside each other too: code that asks for lanes need not ask which
    back end it has."""
    assert (CpuLowering.lanes, GPU.lanes) == (1, 4)
    goal = only(model(*projections()), 4)
    parts = fused_goals(goal)
    records = [
        {"mugraph": to_json(superoptimize(p.graph, best=1, budget=20, device=CPU_DEVICE)[0].graph)} for p in parts
    ]
    graph = from_json(CpuLowering().joined(goal, parts, records)["mugraph"])
    rng = np.random.default_rng(2)
    given = [rng.normal(size=n.shape) for n in goal.inputs]
    for got, wanted in zip(values(graph, given), values(goal, given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9)


@pytest.mark.parametrize(("rows", "count", "found"), [(1, 4, 1), (65, 4, 1), (65, 1, 0)])
def test_a_product_that_libraries_are_slow_at_is_a_region_of_a_gpu(rows: int, count: int, found: int) -> None:
    """In single precision one of any number of rows is."""
    made = model(term("reshape", term("matmul", x("x", rows, WIDTH), w("w", WIDTH, 24)), shape=(rows, 4, 6)))
    assert len(fragments(made, {}, count)) == found
    of_data = model(term("matmul", x("x", 2, 5, 3), x("y", 2, 3, 8)))
    assert len(fragments(of_data, {}, count)) == found


@pytest.mark.parametrize(("dtype", "kind"), [("float16", None), ("float32", RegionKind.LINEAR)])
def test_a_layer_of_many_rows_is_of_no_kind_in_half_precision(dtype: str, kind: RegionKind | None) -> None:
    """Libraries multiply halves on tensor cores."""
    for rows, found in ((64, RegionKind.LINEAR), (65, kind)):
        left, right = variable("x", Tensor(dtype, (rows, WIDTH))), weight("w", Tensor(dtype, (WIDTH, 24)))
        layer = term("matmul", left, right)
        assert _Growing([layer], {}, 4, True).kinds.get(layer) == found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_layer_of_free_rows_is_a_region_in_single_precision(dtype: str) -> None:
    rows = variable("x", Tensor(dtype, (symbol("n"), WIDTH)))
    made = model(term("matmul", rows, weight("w", Tensor(dtype, (WIDTH, 24)))))
    assert len(fragments(made, {"n": 64}, 4, True)) == (dtype == "float32")
