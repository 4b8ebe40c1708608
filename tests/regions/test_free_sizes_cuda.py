"""Triton programs whose sizes a run gives: one source for all sizes, which computes the goal at
each of them, with whole tiles and with the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from free_models import FREE, N, S, attention, model, norm
from free_programs import interpret
from fused_models import CONFIG, accepted, fresh_cache, kernels, on_the_cpu, quick, run
from length_goals import decoder_step

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.accumulators import Accumulators
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.mugraph import kernels as kernels_of
from taso_mirage.ir.mugraph import parts_in, possibly_empty
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.lowering import cuda as cuda
from taso_mirage.lowering.backend import Record
from taso_mirage.lowering.cuda import CudaLowering, _program
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.mugraph.horizontal import fused_goals, together
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.masked_tiles import masked_goal
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused, stage
from taso_mirage.regions.batches import EqualRegions, resized
from taso_mirage.regions.fragments import RegionSite
from taso_mirage.regions.free_regions import free_kind, free_regions
from taso_mirage.report.result import Result
from taso_mirage.runtime.plan import sealed

pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra `triton` is not installed")


def x(name: str, *shape: Dim, dtype: str = "float32") -> Node:
    return variable(name, Tensor(dtype, shape))


def self_attention(b: Dim, s: Dim) -> Graph:
    """Attention with as many queries as keys."""
    return attention(b, s, s)


def one_query(b: Dim, k: Dim) -> Graph:
    """A token and the tokens before it: sums wait for the end of the loop."""
    q, keys, v = x("q", b, 4, 1, 16), x("k", b, 4, k, 16), x("v", b, 4, k, 16)
    scores = term("matmul", q, term("transpose", keys, perm=(0, 1, 3, 2)))
    return Graph((q, keys, v), (term("matmul", term("softmax", scores, axis=3), v),))


def norm_linear(b: Dim, s: Dim) -> Graph:
    h, g, w = x("h", b, s, 64), x("g", 64), x("w", 64, 48)
    return Graph((h, g, w), (term("matmul", term("rms_norm", h, g, axis=-1, epsilon=1e-5), w),))


def gated(b: Dim, s: Dim) -> Graph:
    h, w, u = x("h", b, s, 32), x("w", 32, 48), x("u", 32, 48)
    gate = term("matmul", h, w)
    return Graph((h, w, u), (term("mul", term("mul", gate, term("sigmoid", gate)), term("matmul", h, u)),))


def activation(b: Dim, s: Dim) -> Graph:
    h, g = x("h", b, s, 48), x("g", 48)
    return Graph((h, g), (term("softmax", term("gelu", term("add", h, g)), axis=2),))


def pooled(b: Dim, s: Dim) -> Graph:
    """A sum and a maximum over the free dim."""
    h = x("h", b, s, 24)
    tops = [term(op, h, axes=(1,), keepdims=0) for op in ("reduce_sum", "reduce_max")]
    return Graph((h,), (term("add", *tops),))


Goal = Callable[..., Graph]
CASES: dict[str, tuple[Goal, FreeSizes, tuple[int, ...]]] = {
    "attention": (attention, FREE, (2, 64, 256)),
    "self_attention": (
        self_attention,
        FreeSizes(((N, 4, S, 16), (N, 4, 16, S), (N, 4, S, 16), (N, 1, 1, S)), ((N, 4, S, 16),)),
        (2, 64),
    ),
    "one_query": (
        one_query,
        FreeSizes(((N, 4, 1, 16), (N, 4, S, 16), (N, 4, S, 16)), ((N, 4, 1, 16),)),
        (2, 128),
    ),
    "norm": (norm, FreeSizes(((N, S, 64), (N, S, 64)), ((N, S, 64),)), (2, 16)),
    "norm_linear": (norm_linear, FreeSizes(((N, S, 64), (64,), (64, 48)), ((N, S, 48),)), (2, 16)),
    "gated": (gated, FreeSizes(((N, S, 32), (32, 48), (32, 48)), ((N, S, 48),)), (2, 32)),
    "activation": (activation, FreeSizes(((N, S, 48), (48,)), ((N, S, 48),)), (2, 16)),
    "pooled": (pooled, FreeSizes(((N, S, 24),), ((N, 24),)), (2, 64)),
    "decoder_step": (decoder_step, FreeSizes.of_goal(decoder_step(N, S)), (2, 255)),
}
SIZES = (1, 1), (3, 2), (1, 15), (1, 16), (2, 17), (1, 130)
"""Ones, the rest of a tile and one more, whole tiles, and several; a cache may be empty, too."""
FORMS = 2
"""Programs of a case that are run: different grids, loops, or numbers of kernels first."""


def copied_beside(goal: Graph, free: FreeSizes) -> list[Graph]:
    """MuGraphs of attention, beside which caches and new rows are copied to their places."""
    (lane,) = lanes = fused_goals(goal, free=free)
    found = Search(lane.graph, SearchOptions(), H100, free=lane.free).run(FORMS, 60.0)
    made = [together(goal, lanes, [each.free])[0] for each in found if each.free is not None]
    assert all(len(kernels_of(each.outputs)) == 5 and possibly_empty(each) == ["n1"] for each in made)
    return made


@cache
def programs(name: str) -> list[Any]:
    goal, free, at = CASES[name]
    if name == "decoder_step":
        return [triton.program(each) for each in copied_beside(goal(*at), free)]
    search = Search(goal(*at), SearchOptions(), H100, free=free)
    assert search.free is not None
    found: dict[object, Any] = {}
    for each in search.candidates():
        made = each.free(search.free)
        if made is not None and search.accepted(each) is not None:
            key = tuple(
                (len(k.attr("grid")), k.attr("loop") != 1, str(k.attr("loop"))) for k in kernels_of(made.outputs)
            )
            found.setdefault(key, triton.program(made))
        if len(found) == FORMS:
            break
    assert found, name
    return list(found.values())


MORE = ("self_attention", "norm", "gated", "activation")
"""Cases of the slow test: others have the same features."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], dict[str, list[float]]]:
    """The errors of all cases, or of MORE, at all forms and sizes, from one process."""

    @cache
    def found(more: bool) -> dict[str, list[float]]:
        given = []
        for name in (n for n in CASES if (n in MORE) == more):
            goal, _, at = CASES[name]
            more_sizes = ((2, 0),) if name == "decoder_step" else ()
            goals = [to_json(goal(*(b, s, s + 40)[: len(at)])) for b, s in (*more_sizes, *SIZES)]
            given.append([name, [each.source for each in programs(name)], goals])
        if not more:
            goal, masked = masked_attention()
            given.append(["masked", [triton.program(each).source for each in masked], [to_json(goal)]])
        every: dict[str, list[float]] = {}
        for name, *_, error in interpret(given, tmp_path_factory.mktemp("free_triton")):
            every.setdefault(name, []).append(float(error))
        return every

    return found


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in MORE)) for n in CASES])
def test_one_program_for_all_sizes(name: str, errors: Callable[[bool], dict[str, list[float]]]) -> None:
    found = errors(name in MORE)[name]
    count = len(SIZES) + (name == "decoder_step")
    assert len(found) >= 2 * count
    assert len(found) % count == 0
    assert max(found) < 5e-6


@cache
def masked_attention() -> tuple[Graph, list[Graph]]:
    """Attention over 67 keys, which no tiles divide, and the muGraphs with a masked last tile."""
    goal = self_attention(1, 67)
    found = [each.graph for each in Search(goal, SearchOptions(), H100).run(6, 20.0)]
    return goal, [each for each in found if any(parts_in(k.attr("body")) for k in kernels_of(each.outputs))]


def test_a_size_that_no_tile_divides_has_a_masked_rest(errors: Callable[[bool], dict[str, list[float]]]) -> None:
    goal, masked = masked_attention()
    assert masked
    for graph in masked:
        assert [x.type for x in (*graph.inputs, *graph.outputs)] == [x.type for x in (*goal.inputs, *goal.outputs)]
        assert from_json(to_json(graph)) == graph
        loops = [k.attr("loop") for k in kernels_of(graph.outputs) if parts_in(k.attr("body"))]
        assert all(loop > 1 for loop in loops)
    assert max(errors(False)["masked"]) < 5e-6


def test_sizes_that_tiles_divide_and_small_ones_have_no_rest() -> None:
    for keys in (64, 80, 33):
        assert masked_goal(label(self_attention(1, keys))) is None
    found = masked_goal(label(self_attention(1, 67)))
    assert found is not None
    assert {*found.sizes.values()} == {67}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("norm_linear", 80),
        ("norm_linear", 90),
        ("decoder_step", 90),
        *(pytest.param("self_attention", capability, marks=pytest.mark.slow) for capability in (80, 90)),
    ],
)
def test_sizes_are_arguments_of_a_cubin(name: str, capability: int) -> None:
    """The arguments have 32 bits, and nothing is known of them: neither that one is 1, nor a
    multiple of 16."""
    program = programs(name)[0]
    for each in compiled(program, capability):
        assert each.cubin[:4] == b"\x7fELF"
        assert each.hidden == 2
        assert each.ptx.count(".param .u32") == len(program.sizes) == 2
    assert "do_not_specialize" in program.source


def test_what_is_left_of_an_iteration_is_not_read_after_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mask before a sum that waits for the end of the loop there is no program."""
    goal, free, at = CASES["one_query"]
    search = Search(goal(*at), SearchOptions(), H100, free=free)
    made = next(graph for each in search.candidates() if (graph := each.free(search.free or {})) is not None)
    source = triton.program(made).source
    masked = [line for line in source.splitlines() if "_m = tl.where" in line and "n1_by" in line]
    assert len(masked) >= 3  # of the maximum, of the denominator and of the values that are mixed
    monkeypatch.setattr(Accumulators, "_whole", lambda self, y, over, neutral: (y, over))
    with pytest.raises(Unsupported, match="of an iteration, outside of the loop"):
        triton.program(made)


def test_offsets_are_64_bits_wide_where_a_run_gives_sizes() -> None:
    """An int32 would end at a few million rows; within fixed dims offsets stay 32 bits wide."""
    source = programs("self_attention")[0].source
    assert "n1.to(tl.int64)" in source
    assert "* (64*n1_wide)" in source
    made = variable("x", Tensor("float32", (N, 1 << 16, 1 << 15)))
    with pytest.raises(Unsupported, match="within fixed dims"):
        triton.program(Graph((made,), (made,)))


def softmaxes(h: Node, times: int) -> Node:
    for _ in range(times):
        h = term("softmax", h, axis=2)
    return h


def test_a_tile_that_is_as_long_as_a_free_dim_has_no_program() -> None:
    """A softmax over a free dim alone takes a kernel for its maximum and sum, and one more; several
    of each other would take more than there are, so they keep their operators."""
    h, free = x("h", 2, 3, 64), FreeSizes(((N, 3, S),), ((N, 3, S),))
    one, several = (
        Search(Graph((h,), (softmaxes(h, times),)), SearchOptions(), H100, free=free).run(4, 20.0) for times in (1, 4)
    )
    assert one
    assert all(len(kernels_of(each.graph.outputs)) == 2 for each in one)
    assert several == []


def test_what_is_verified_has_several_tiles_of_every_free_label() -> None:
    """At the instance a label may have one tile: the same roles with more are other ones."""
    goal, free, at = CASES["norm"]
    search = Search(goal(*at), SearchOptions(), H100, free=free)
    whole = next(
        each
        for each in search.candidates()
        if (made := each.free(search.free or {})) is not None and "n1_by_16" in str(to_json(made))
    )
    small, _ = whole.shrunk()
    assert small is not None
    (kernel, *_) = kernels_of(small.outputs)
    assert all(n > 1 for n in kernel.attr("grid")[:2])


# ---------------------------------------------------------------- models

LONG = 4096
"""Elements of a long sequence."""
GPU = CudaLowering(H100, "a stand-in for an H100", 90)


@pytest.fixture(scope="module")
def regions() -> dict[EqualRegions, list[RegionSite]]:
    """The regions of a block of attention with a free batch and a free sequence."""
    found, left_out = free_regions(model(), {"batch": 2, "sequence": 24}, 4, True)
    assert left_out == set()
    assert [kind.free is not None for kind in found] == [True] * 3
    return found


@pytest.fixture(scope="module")
def records(regions: dict[EqualRegions, list[RegionSite]]) -> list[Record]:
    found = []
    for kind in regions:
        graphs = Search(kind.goal, SearchOptions(), H100, free=kind.free).run(4, 60.0)
        found.append(GPU.fastest(kind.goal, graphs, math.inf, kind.sizes))
    return found


@pytest.mark.sampled(5)
def test_regions_of_a_model_run_at_every_size(
    regions: dict[EqualRegions, list[RegionSite]], records: list[Record], tmp_path: Path
) -> None:
    given = []
    for i, ((site, *_), record) in enumerate(zip(regions.values(), records, strict=True)):
        goals = [to_json(resized(site, {"batch": b, "sequence": s})) for b, s in SIZES]
        parts = [record, *record["before"]]
        given.append([f"region{i}", [_program(part).source for part in parts], goals])
    errors = [float(error) for *_, error in interpret(given, tmp_path)]
    assert len(errors) == len(SIZES) * sum(len(sources) for _, sources, _ in given)
    assert max(errors) < 5e-6


def test_a_plan_has_sizes_ranges_and_counts_that_round_up(
    records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a stand-in for a GPU where long sequences have another fastest program than short ones."""

    def fastest(programs: Sequence[TritonProgram], sizes: Mapping[str, int]) -> TritonProgram:
        rounding = [any("//" in str(x.grid) for x in p.launches) for p in programs]
        return programs[rounding.index(sizes["n1"] < LONG)]

    def tuned(lowering: CudaLowering, programs: Any, check: Any, end: float, sizes: Any) -> TritonProgram:
        chosen[sizes["n1"]] = fastest(programs, sizes)
        return chosen[sizes["n1"]]

    chosen: dict[int, TritonProgram] = {}
    monkeypatch.setattr(CudaLowering, "_tuned", tuned)
    monkeypatch.setattr(CudaLowering, "_seconds", lambda _, p, check, sizes: 2.0 - (p is chosen[sizes["n1"]]))
    goal, free, _ = CASES["self_attention"]
    found = Search(goal(2, 64), SearchOptions(), H100, free=free).run(6, 60.0)
    sizes = [{"n0": 2, "n1": 24}, {"n0": 1, "n1": 1}, {"n0": 4, "n1": LONG}]
    plans = [GPU.kernel(record) for record in (*records, GPU.fastest(goal(2, 64), found, math.inf, sizes))]
    assert all(made.free for made in plans)
    shown = [[x for x in made.plan.splitlines() if x.startswith(("kernel", "range"))] for made in plans]
    assert all(line.endswith(" n0 n1") for lines in shown for line in lines if line.startswith("kernel"))
    ranged = next(lines for lines in shown if len(lines) == 3)
    assert [line.split()[0] for line in ranged] == ["kernel", "range", "kernel"]
    assert "//" in ranged[0]
    assert all(accepted(made.attributes) for made in plans)
    broken = plans[0].plan.replace(" n0 n1\nimage", " n0 n2\nimage").rsplit("check", 1)[0].splitlines()
    assert not accepted(plans[0].attributes | {"plan": sealed(broken)})


def test_lanes_with_free_sizes_become_one_record() -> None:
    """Ranges of one lane are those of all; sizes have the region's names in each."""
    n, s = symbol("n"), symbol("s")
    h = x("h", n, s, 16)
    norm = term("rms_norm", h, x("g", 16), axis=-1, epsilon=1e-5)
    outputs = term("exp", norm), term("exp", term("reduce_max", norm, axes=(2,), keepdims=0))
    site = RegionSite((h, norm.args[1]), outputs, ())
    sizes = {"n": 2, "s": 16}
    kind = free_kind(site, resized(site, sizes), sizes, {})
    assert kind is not None
    assert kind.free is not None
    parts = fused_goals(kind.goal)
    assert len(parts) == 2
    made = []
    for lane in parts:
        names = kind.free.of_lane(lane.inputs, lane.results)
        assert FreeSizes.of_json(json.loads(json.dumps(names.as_json()))) == names
        found = Search(lane.graph, SearchOptions(), H100, free=names).run(2, 60.0)
        made.append(GPU.fastest(lane.graph, found, math.inf, kind.sizes))
    made[0] = {**made[0], "before": [{**made[0], "most": 7}]}
    made[1] = {**made[1], "before": [{**made[1], "most": 5}, {**made[1], "most": 9}]}
    record = GPU.joined(kind.goal, parts, made)
    assert [each["most"] for each in record["before"]] == [5, 7, 9]
    assert len(_program(record).results) == 2
    assert GPU.kernel(record).free


def on_a_stand_in(made: Model, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[Result, Result]:
    """A model before, and with the kernels that the stage gives it for a GPU whose clock says that
    every kernel is twice as fast."""
    fresh_cache(monkeypatch, folder)
    quick(monkeypatch)
    monkeypatch.setattr(stage, "here", lambda target: GPU)
    monkeypatch.setattr(cuda, "SHIPPED", (90,))
    monkeypatch.setattr(runtime, "open_in_child", on_the_cpu)
    sizes = replace(CONFIG, default_size=8)
    plain = optimize_model(made, replace(sizes, measure=False, budget=0.0))
    plain = replace(plain, model=plain.original, steps=(), changed=False, target=CUDA)
    return plain, fused(plain, sizes, "search")


@pytest.mark.sampled(3)
def test_a_model_with_free_dims_gets_kernels_without_an_if(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, found = on_a_stand_in(model(), monkeypatch, tmp_path)
    assert kernels(found) >= 2
    assert len({d.case for d in found.differences}) > 3
    assert all(d.passed for d in found.differences)
    content = serialize(found.model)
    proto = onnx.load_from_string(content)
    assert not any(n.op_type == "If" for f in proto.functions for n in f.node)
    plans = [a.s.decode() for f in proto.functions for n in f.node for a in n.attribute if a.name == "plan"]
    assert len(plans) >= 2
    assert all(" n0 n1\n" in plan for plan in plans)
    for b, s in ((1, 1), (2, 7), (1, 33)):
        inputs = dict(random_inputs(before.original, s, {"batch": b, "sequence": s}))
        (wanted,), (got,) = run(serialize(before.original), inputs), run(content, inputs)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_what_has_no_program_for_all_sizes_keeps_its_operators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    h = x("h", 2, 3, symbol("s"))
    goal = Graph((h,), (softmaxes(term("gelu", h), 4),))
    before, found = on_a_stand_in(
        from_ir(from_proto(onnx.load_from_string(serialize(standalone(goal, {"": 20}))))), monkeypatch, tmp_path
    )
    assert kernels(found) == 0
    assert found.model == before.model
    assert any("no kernels: one region" in note for note in found.notes)
