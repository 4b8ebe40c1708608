"""Regions with free leading dims: which they are, and that the kernels of one sample compute all of
them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import interpreter
import mugraphs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import dynamic
from sample_regions import sample_regions

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton
from taso_mirage.errors import IllTyped
from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.model import Model, StoredWeight, random_array
from taso_mirage.ir.mugraph import Batch
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.mugraph.horizontal import fused_goals
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.regions import free_regions
from taso_mirage.regions.batches import batch_of, independent, region_members, resized, symbols_in
from taso_mirage.regions.fragments import RegionSite
from taso_mirage.runtime.embed import EmbeddedRegion
from taso_mirage.runtime.plan import PlannedNode

State = tuple[Node, ...]
N, S = symbol("n"), symbol("s")


def x(name: str, *shape: Dim) -> Node:
    return variable(name, Tensor("float32", shape))


def site(*outputs: Node) -> RegionSite:
    inputs = dict.fromkeys(n for o in outputs for n in Graph((), (o,)) if n.op == "input")
    return RegionSite(tuple(inputs), outputs, ())


def attention(*batch: Dim, mask: tuple[Dim, ...] = (6, 6)) -> Node:
    q, k, v = (x(name, *batch, 6, 8) for name in "qkv")
    turned = term("transpose", k, perm=(*range(len(batch)), len(batch) + 1, len(batch)))
    scores = term("add", term("matmul", q, turned), x("mask", *mask))
    return term("matmul", term("softmax", scores, axis=-1), v)


def model(*outputs: Node) -> Model:
    names = {n.attr("name"): n for n in Graph((), outputs) if n.op == "weight"}
    rng = np.random.default_rng(0)
    weights = {name: StoredWeight(random_array(n, rng, {})) for name, n in names.items()}
    return standalone(Graph(site(*outputs).inputs, outputs), {"": 20}, weights)


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (term("add", x("a", N, 8), x("b", 8)), Batch(1, (True, False))),
        (term("add", x("a", N, S, 8), x("b", N, S, 8)), Batch(2, (True, True))),
        (term("add", x("a", 1, S, 8), x("b", 1, 8)), Batch(2, (True, False))),
        (term("add", x("a", N, S, 8), x("b", S, 8)), None),  # of other leading dims
        (term("add", x("a", 4, N), x("b", 4, 1)), None),  # the free dim is no leading one
        (term("add", x("a", N * 2, 8), x("b", 8)), None),  # no run has 2 n = 1
        (term("reduce_sum", x("a", N, 8), axes=(0,), keepdims=0), None),  # a result of all samples together
        (attention(N, 3), Batch(1, (True, True, False, True))),
        (attention(N, 3, mask=(N, 1, 1, 6)), Batch(1, (True, True, True, True))),
    ],
)
def test_the_free_dims_have_to_lead(output: Node, wanted: Batch | None) -> None:
    assert batch_of(site(output)) == wanted


@pytest.mark.parametrize(
    ("output", "right"),
    [
        (term("softmax", x("a", N, 8), axis=1), True),
        (attention(N, 3), True),
        (term("softmax", x("a", N, 8), axis=0), False),
        (term("sub", x("a", N, 8), term("reduce_mean", x("a", N, 8), axes=(0,), keepdims=1)), False),
        (term("reshape", term("transpose", x("a", N, 4, 2), perm=(1, 0, 2)), shape=(N, 8)), False),
    ],
)
def test_samples_that_mix_are_found(output: Node, right: bool) -> None:
    given, free = site(output), {"n"}
    batch = batch_of(given)
    assert batch is not None
    assert independent(given, resized(given, {"n": 1}), batch, free) is right


def test_regions_that_are_equal_for_one_sample_are_told_apart() -> None:
    """The sum over an axis is none where that has size 1."""

    def summed(y: Node) -> Node:
        return term("mul", term("add", y, term("reduce_sum", y, axes=(0,), keepdims=1)), y)

    for outputs in (
        [summed(x("a", 1, S, 8)), summed(x("b", N, S, 8))],
        [summed(x("b", N, S, 8)), summed(x("a", 1, S, 8))],
    ):
        for sizes in ({"n": 2, "s": 3}, {"n": 1, "s": 3}):
            found, out = sample_regions(model(*outputs), sizes, True)
            sites = [site for each in found.values() for site in each]
            assert [site.inputs[0].attr("name") for site in sites] == ["a"]
            assert out == {"n", "s"}


def test_a_size_that_only_the_inside_of_a_region_has_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is 1 the region looks as if it had fixed sizes. None grows so, as sizes are larger
    there; one that did would be left out."""
    wide = term("expand", x("q", 4, 1, 8), shape=(4, S, 8))
    total = term("reduce_sum", wide, axes=(1,), keepdims=0)
    output = term("softmax", term("mul", total, x("r", 4, 8)), axis=1)
    made = standalone(Graph((*site(output).inputs, x("s", S)), (output, term("neg", x("s", S)))), {"": 20})
    for batched in (True, False):
        found, _ = sample_regions(made, {"s": 1}, batched)
        for each in (each for sites in found.values() for each in sites):
            assert symbols_in(region_members(each)) <= symbols_in([*each.inputs, *each.outputs])
        assert not [n for kind in found for n in kind.goal if n.op == "expand"]
    whole = site(output)
    monkeypatch.setattr(free_regions, "fragments", lambda *given: {resized(whole, {"s": 1}): [whole]})
    for batched in (True, False):
        assert free_regions.free_regions(made, {"s": 1}, 4, batched) == ({}, {"s"})


def test_a_region_without_an_input_of_all_samples_is_left_out() -> None:
    queries = term("expand", x("latents", 1, 4, 8), shape=(N, 4, 8))
    assert batch_of(site(term("softmax", queries, axis=2))) is None


def test_a_region_without_other_sizes_does_not_cost_the_others() -> None:
    with_four = term("softmax", term("add", x("c", N, 8), x("d", N, 4, 8)), axis=2)  # N is 4, or 1
    norm = term("rms_norm", x("h", N, 16), x("g", 16), axis=-1, epsilon=1e-5)
    found, _ = sample_regions(model(with_four, norm), {"n": 4}, True)
    assert [[each.outputs for each in sites] for sites in found.values()] == [[(norm,)]]


def test_what_all_samples_read_is_no_more_than_each_has() -> None:
    """A kernel of one row would read the weight of a linear layer once for every row, and there may
    be a thousand."""
    weighed = weight("w", Tensor("float16", (16, 16)))
    half = (variable("h", Tensor("float16", (N, 16))), variable("g", Tensor("float16", (16,))))
    layer = term("matmul", term("rms_norm", *half, axis=-1, epsilon=1e-5), weighed)
    found, _ = sample_regions(model(layer), {"n": 1}, True)
    assert [[n.op for n in kind.goal if n.args] for kind in found] == [["rms_norm"]]
    (fixed,), _ = sample_regions(model(layer), {"n": 1}, False)
    assert "matmul" in {n.op for n in fixed.goal}
    norm = term("rms_norm", x("h", N, 16), x("g", 16), axis=-1, epsilon=1e-5)
    assert sample_regions(model(term("matmul", norm, x("given", 16, 16))), {"n": 1}, True) == ({}, {"n"})


def test_a_region_with_other_free_dims_is_left_out_and_said() -> None:
    scores = term("softmax", x("scores", N, 4, S, S), axis=-1)
    norm = term("rms_norm", x("h", N, S, 16), x("g", 16), axis=-1, epsilon=1e-5)
    found, out = sample_regions(model(scores, norm), {"n": 2, "s": 3}, True)
    assert out == {"n", "s"}
    assert [kind.batch for kind in found] == [Batch(2, (True, False))]
    (kind,) = found
    assert [o.shape for o in (*kind.goal.outputs, *kind.whole.outputs)] == [(1, 1, 16), (2, 3, 16)]
    everywhere, none = sample_regions(model(scores, norm), {"n": 2, "s": 3}, False)
    assert (len(everywhere), none) == (2, set())
    assert all(kind.batch is None and kind.goal is kind.whole for kind in everywhere)


@pytest.mark.sampled(3)
@settings(
    max_examples=int(os.environ.get("EXAMPLES", "60")),
    deadline=None,
    derandomize="EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(dynamic(), st.sampled_from((1, 2, 3)), st.sampled_from((None, None, "softmax", "reduce_mean", "reduce_max")))
def test_hostile_regions_are_those_of_their_samples(drawn: tuple[None, State], searched: int, over: str | None) -> None:
    """At untried sizes, also where the last operators mix the samples; and a region without a batch
    has no free dim inside."""
    outputs = tuple(mixed(o, over) for o in drawn[1])
    found, _ = sample_regions(model(*outputs), {"n": searched}, True)
    for kind, sites in found.items():
        for each in sites:
            inside = resized(each, {"n": 7}) if kind.batch is not None else resized(each, {})
            rng = np.random.default_rng(searched)
            for n in (1, 4, 7) if kind.batch is not None else ():
                whole = resized(each, {"n": n})
                inputs = [EXACT.load(random_array(node, rng, {})) for node in whole.inputs]
                results = values(whole, inputs)
                for i in range(n):
                    own = [y[i : i + 1] if one else y for y, one in zip(inputs, kind.batch.inputs, strict=True)]
                    for result, one in zip(results, values(kind.goal, own), strict=True):
                        np.testing.assert_allclose(
                            result[i : i + 1], one, rtol=1e-7, atol=1e-9 * np.abs(one).max(initial=1)
                        )
            assert len(inside.inputs) == len(each.inputs)


def mixed(y: Node, over: str | None) -> Node:
    """A term whose samples depend on each other by a fold over the leading dim, where it is
    free."""
    if over is None or not y.shape or isinstance(y.shape[0], int):
        return y
    return term("softmax", y, axis=0) if over == "softmax" else term("sub", y, term(over, y, axes=(0,), keepdims=1))


def values(graph: Graph, given: list[Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        found = interpret(graph.outputs, EXACT, dict(zip(graph.inputs, given, strict=True)))
    return [found[o] for o in graph.outputs]


def test_a_kernel_of_any_number_of_samples_takes_one_number_alone() -> None:
    n = symbol("n0")
    kernel = PlannedNode("cuda", "k", *[(Tensor("float32", (n, 8)),) * i for i in (2, 1)], "", "")
    a, b, c = x("a", N, 8), x("b", N, 8), x("c", S, 8)
    EmbeddedRegion((a, b), (term("add", a, b),), kernel).check({})
    assert not EmbeddedRegion((a, b), (term("add", a, b),), kernel).free
    with pytest.raises(IllTyped, match="input 1"):
        EmbeddedRegion((a, c), (term("add", a, b),), kernel).check({})


# ---------------------------------------------------------------- programs


def sums(*samples: int) -> tuple[Graph, Graph]:
    """Sums of the columns of a sample, by two kernels with scratch memory between them, plus a term
    that all samples share; and the goal for so many samples."""
    dims = len(samples)
    a, b = x("a", *[1] * dims, 12, 20), x("b", 20)
    first = mugraphs.kernel(
        [(a, (dims, dims + 1), -1)],
        lambda t: term("reduce_sum", t, axes=(dims,), keepdims=1),
        (3, 2),
        1,
        (dims, dims + 1),
    )
    second = mugraphs.kernel(
        [(first, (dims + 1,), -1), (b, (0,), -1)],
        lambda t, u: term("add", term("reduce_sum", t, axes=(dims,), keepdims=0), u),
        (2,),
        1,
        (dims,),
    )
    many = x("a", *samples, 12, 20)
    goal = term("add", term("reduce_sum", many, axes=(dims,), keepdims=0), b)
    return Graph((a, b), (second,)), Graph((many, b), (goal,))


INTERPRETED = """
import json, sys
from pathlib import Path
import torch
from taso_mirage.emit.compile import load_source as load
from taso_mirage.lowering.cuda import Float64Oracle, _program
from taso_mirage.mugraph.checkpoint import from_json

goal, record = json.loads(Path(sys.argv[1]).read_text())
goal, program = from_json(goal), _program(record)
torch.manual_seed(0)
inputs = [torch.randn([int(n) for n in x.shape]) for x in goal.inputs]
results = load(program.source, Path(sys.argv[1]).parent).launch(*inputs)
results = results if isinstance(results, tuple) else (results,)
assert [r.shape for r in results] == [o.shape for o in goal.outputs]
print(Float64Oracle(goal)(inputs, results))
"""


@pytest.mark.parametrize("samples", [(5,), (2, 3)])
def test_scratch_memory_is_each_samples_own(samples: tuple[int, ...], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    graph, goal = sums(*samples)
    batch = Batch(len(samples), (True, False))
    program = triton.program(graph, None, batch)
    assert "sample * 240" in program.source
    assert [b.batched for b in program.buffers] == [True, False, True, True]
    schedules = [asdict(each.schedule) for each in program.launches]
    record = {"mugraph": to_json(graph), "schedules": schedules, "batch": asdict(batch)}
    (tmp_path / "given.json").write_text(json.dumps([to_json(goal), record]))
    done = interpreter.run(INTERPRETED, tmp_path / "given.json")
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr


def test_a_plan_has_a_grid_for_every_sample() -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    from taso_mirage.emit.compile import compiled
    from taso_mirage.runtime.plan import cuda_kernel, images

    program = triton.program(sums(5)[0], None, Batch(1, (True, False)))
    made = cuda_kernel(program, images(compiled(program, 90)))
    assert made.free
    assert [line for line in made.plan.splitlines() if not line.startswith(("image", "check"))] == [
        "taso_mirage 1 cuda",
        "input float32 n0 12 20",
        "input float32 20",
        "output float32 n0 20",
        "scratch float32 60*n0",
        "kernel n0*3 2 1 i0 s0",
        "kernel n0*2 1 1 s0 i1 o0",
    ]
    assert math.prod(b.elements for b in program.buffers if b.role == "scratch") == 60
    assert np.shape(made.images) == (2,)


def test_lanes_of_samples_run_beside_each_other(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    from taso_mirage.lowering.cuda import CudaLowering

    gpu = CudaLowering(H100, "a stand-in for an H100", 90)
    h = x("h", N, 4, 16)
    norm = term("rms_norm", h, x("g", 16), axis=-1, epsilon=1e-5)
    made = model(term("exp", norm), term("exp", term("reduce_max", norm, axes=(2,), keepdims=0)))
    (kind,), out = sample_regions(made, {"n": 5}, True)
    parts = fused_goals(kind.goal)
    assert (len(parts), out, kind.batch) == (2, set(), Batch(1, (True, False)))
    found = [Search(lane.graph, SearchOptions(), H100).run(1, 60.0)[0].graph for lane in parts]
    schedules = [[asdict(each.schedule) for each in triton.program(g).launches] for g in found]
    records = [{"mugraph": to_json(g), "schedules": s} for g, s in zip(found, schedules, strict=True)]
    record = dict(gpu.joined(kind.goal, parts, records)) | {"batch": asdict(kind.batch)}
    (tmp_path / "given.json").write_text(json.dumps([to_json(kind.whole), record]))
    done = interpreter.run(INTERPRETED, tmp_path / "given.json")
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr
