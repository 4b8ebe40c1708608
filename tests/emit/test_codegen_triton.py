"""Triton code of muGraphs: it runs in Triton's interpreter and matches float64, and compiles for
three architectures."""

from __future__ import annotations

import ast
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any, cast

import in_turn
import mugraphs
import numpy as np
import pytest
from triton_cases import CASES, REAL, agrees, drawn, idle_loop, split_last

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton as codegen
from taso_mirage.emit import tune
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.global_layouts import accesses, touched_sectors
from taso_mirage.emit.gpu.order import ordered
from taso_mirage.emit.gpu.program import LaunchSchedule, TritonProgram
from taso_mirage.errors import RuntimeUnavailable, Unsupported
from taso_mirage.ir.mugraph import LoopPhase, loop_phases
from taso_mirage.ir.terms import Graph, Node, constant
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.operators.ops import term

pytest.importorskip("triton", reason="the extra `triton` is not installed")


@pytest.fixture(autouse=True)
def own_cache_of_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, run in one process."""
    folder, programs = tmp_path_factory.mktemp("triton"), {}
    for name, make in CASES.items():
        graph, _ = make()
        values = [drawn(name, x, i) for i, x in enumerate(graph.inputs)]
        programs[name] = codegen.program(graph).source, graph, values
    in_turn.interpreted(folder, programs)
    return folder


@pytest.mark.sampled(2, together=True)
@pytest.mark.parametrize("name", CASES)
def test_generated_code_computes_the_goal(name: str, interpreted: Path) -> None:
    assert agrees(name, np.load(interpreted / f"{name}.npy"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90, 100])
@pytest.mark.parametrize("name", ["rmsnorm_gamma_bias", "attention_split", "rotated", "one_query_float16"])
def test_compiles_without_a_gpu(name: str, capability: int) -> None:
    program = codegen.program(CASES[name]()[0])
    for each in compiled(program, capability):
        assert each.cubin[:4] == b"\x7fELF"
        assert each.symbol.encode() in each.cubin
        assert each.hidden == 2  # Triton's global and profile scratch
        assert each.buffers == next(x.buffers for x in program.launches if x.name == each.symbol)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "capability"), [("attention_cluster", 90), ("spread_cluster", 100)])
def test_clusters_exchange_through_shared_memory(name: str, capability: int) -> None:
    program = codegen.program(CASES[name]()[0])
    (launch,), (made,) = program.launches, compiled(program, capability)
    assert (made.cluster, made.grid) == (launch.cluster, launch.launched)
    assert launch.launched[0] == launch.grid[0] * launch.grid[-1]
    assert {"mapa.shared::cluster.u32", "ld.shared::cluster.f32", "st.shared::cluster.f32"} <= {*made.ptx.split()}
    assert made.ptx.count("barrier.cluster.arrive.release") == made.ptx.count("barrier.cluster.wait.acquire") > 0


def test_only_the_block_that_stores_gets_what_none_combines_again() -> None:
    alone, parts = (codegen.program(CASES[name]()[0]).source for name in ("attention_cluster", "long_rows"))
    assert [line.partition("= ")[2] for line in alone.splitlines() if " = exchanged(" in line] == [
        'exchanged(acc_2, "max", 4, 4)',
        'exchanged(combine_3, "sum", 4, 1)',
        'exchanged(combine_4, "sum", 4, 1)',
    ]
    assert 'exchanged(reduce_sum, "sum", 4, 4)' in parts


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("splits", "capability"), [(4, 89), (16, 120)])
def test_a_gpu_without_such_clusters_gets_no_kernel(splits: int, capability: int) -> None:
    graph, _ = mugraphs.attention_cluster(splits=splits, keys=6 * splits)
    with pytest.raises(Unsupported, match=f"clusters of {splits} blocks; sm_{capability} has [18] at most"):
        compiled(codegen.program(graph), capability)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", REAL)
def test_real_sizes_fit_an_h100(name: str) -> None:
    for each in compiled(codegen.program(REAL[name]()[0]), 90):
        assert each.shared <= 227 * 1024


def test_padding_is_masked_only_where_it_is() -> None:
    """Powers of two need no mask but for the rows of a dot, which are 16."""
    source = codegen.program(mugraphs.rmsnorm_linear(16, 64, 32, 2, 2)[0]).source
    assert "mask" not in source
    assert "mask=r16[:, None] < 2" in codegen.program(mugraphs.rmsnorm_linear(2, 64, 32, 2, 2)[0]).source


GOLDEN = """\
@triton.jit
def kernel_0(X, W, out, STAGES: tl.constexpr, OVERLAP: tl.constexpr = False, LATE: tl.constexpr = False):
    g0 = tl.program_id(0)
    r16 = tl.arange(0, 16)
    r32 = tl.arange(0, 32)
    if OVERLAP:  # loads follow the wait for the kernel before
        tl.extra.cuda.gdc_wait()
    if OVERLAP and not LATE:  # the one after may start now, and waits as well; else at the end
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.full([16, 32], 0.0, tl.float32)
    acc_2 = tl.full([16, 16], 0.0, tl.float32)
    for t in tl.range(0, 2, num_stages=STAGES):
        X_tile = tl.load(X + r16[:, None] * 64 + t * 32 + r32[None, :], mask=r16[:, None] < 2, other=0)
        X_tile_2 = tl.load(X + r16[:, None] * 64 + t * 32 + r32[None, :], mask=r16[:, None] < 2, other=0, eviction_policy="evict_last")
        W_tile = tl.load(W + (t * 32 + r32[:, None]) * 32 + g0 * 16 + r16[None, :])
        X_tile_2_f = X_tile_2.to(tl.float32)
        mul = X_tile_2_f * X_tile_2_f
        matmul = tl.dot(X_tile, W_tile)
        acc += mul
        acc_2 += matmul
    div = tl.sum(acc, 1)
    div_2 = div / 64.0
    sqrt = tl.sqrt(div_2)
    sqrt_inverse = 1.0 / sqrt
    div_3 = acc_2 * sqrt_inverse[:, None]
    tl.store(out + r16[:, None] * 32 + g0 * 16 + r16[None, :], div_3, mask=r16[:, None] < 2)
"""


def test_the_printed_kernel() -> None:
    source = codegen.generate(mugraphs.rmsnorm_linear(2, 64, 32, 2, 2)[0])
    assert source[source.index("@triton.jit") : source.index("\n\nOPTIONS")] == GOLDEN


def test_lanes_that_exchange_products_have_equal_sums() -> None:
    """Contracted with the sum, a product would be rounded in all lanes but that which it is of;
    racecheck saw two of them write."""
    source = codegen.program(CASES["attention_powers_of_two"]()[0]).source
    assert "reduce_sum = tl.sum(mul + 0.0, 0)" in source
    assert "accumulate = tl.sum(exp, 1)" in source  # no product: it costs nothing


def test_each_choice_is_explained() -> None:
    source = codegen.generate(mugraphs.rmsnorm_linear(2, 64, 32, 2, 2)[0])
    lines = [line.strip(" -") for line in source[: source.index("import triton")].splitlines()]
    assert "in the loop: mul, reduce_sum, matmul; at most 66 elements live (the least of all orders)." in lines
    assert "loads: 3072 bytes an iteration, STAGES in flight; all else is in registers." in lines
    assert "matmul: a dot of 16 x 32 x 16 lanes, float16 operands, fp32 sums." in lines
    assert "acc: tl.sum once after the loop, not in it: 512 lanes, no barrier." in lines


@pytest.mark.parametrize("name", ["class", "t", "kernel_0", "EARLY", "LATE", "²x", '"""\nimport os', "g0", ""])
def test_any_name_of_an_input_is_legal(name: str) -> None:
    x = mugraphs.leaf(name, "float32", 4, 6)
    made = mugraphs.kernel([(x, (0,), -1)], lambda t: term("exp", t), (2,), 1, (0,))
    tree = ast.parse(codegen.generate(Graph((x,), (made,))))
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == ["kernel_0", "launch"]
    assert [type(node) for node in tree.body[:3]] == [ast.Expr, ast.Import, ast.Import]
    kernel, launch = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert len({each.arg for each in kernel.args.args}) == 5
    assert launch.args.args[0].arg != "kernel_0"


@pytest.mark.parametrize(("lowest", "maxima"), [(-1e30, 1), (None, 2)])
def test_one_maximum_runs_for_all_that_is_relative_to_it(lowest: float | None, maxima: int) -> None:
    """Where no element is -inf, which is no start for a running maximum, the maximum of all
    iterations is that as well."""
    x = mugraphs.leaf("X", "float16", 4, 32)

    def body(x: Node) -> tuple[Node, ...]:
        top = term("reduce_max", x, axes=(1,))
        if lowest is not None:
            top = term("max", top, term("cast", constant(np.float32(lowest)), to="float16"))
        powers = term("exp", term("sub", x, term("running_max", top)))
        flat = term("running_max", term("reshape", top, shape=(2,)))
        sums = [
            term("accumulate", term("reduce_sum", powers, axes=(1,), keepdims=k), m, over="rescaled", degree=1)
            for k, m in ((1, term("running_max", top)), (0, flat))
        ]
        return (*sums, term("accumulate", top, over="max"))

    made = mugraphs.kernel([(x, (0,), 1)], body, (2,), 2, (0,), (0,), (0,))
    source = codegen.program(Graph((x,), tuple(mugraphs.parts(made)))).source
    states = source[source.index("@triton") : source.index("for t in")].count("tl.full(")
    loop = source[source.index("for t in") : source.index("tl.store")]
    assert [states - 2, *(loop.count(each) for each in ("tl.exp2(", "tl.exp("))] == [maxima, 1, 1]


def test_a_rescaled_sum_has_no_negative_degree() -> None:
    x = mugraphs.leaf("X", "float32", 4, 6)

    def body(x: Node) -> Node:
        return term("accumulate", x, term("running_max", x), over="rescaled", degree=-1)

    made = mugraphs.kernel([(x, (0,), 1)], body, (2,), 2, (0,))
    with pytest.raises(Unsupported, match="power of -1"):
        codegen.program(Graph((x,), (made,)))


def test_a_fold_waits_for_the_end_of_the_loop() -> None:
    source = codegen.program(mugraphs.rmsnorm_linear()[0]).source
    assert "tl.sum" not in source[source.index("for t in") : source.index("div")]


def test_a_vector_times_a_matrix_is_a_dot_where_nothing_is_rounded() -> None:
    """Scores of one query: both operands as stored; its powers are no numbers of half precision,
    and their products wait."""
    source = codegen.program(CASES["one_query_float16"]()[0]).source
    loop = source[source.index("for t in") : source.index("tl.store")]
    assert "reduce_sum = tl.dot(Q_tile_rows, K_tile)\n        reduce_sum_2 = tl.max(reduce_sum, 0)" in loop
    assert loop.count("tl.dot(") == 1
    assert "tl.sum" not in loop[: loop.index("m = m_new")]
    assert "reduce_sum: a dot of 16 x 32 x 32 lanes, float16 operands, fp32 sums." in source
    assert "tl.dot(" not in codegen.program(CASES["one_query_float32"]()[0]).source
    assert "tl.dot(" not in codegen.program(CASES["vector"]()[0]).source  # without a loop


def test_what_a_dot_of_a_vector_and_others_read_is_loaded_twice() -> None:
    source = codegen.program(CASES["one_query_normed"]()[0]).source
    assert source.count("tl.load(K") == 2
    assert source.count("tl.load(V") == 1


def test_a_tensor_between_kernels_has_the_layout_of_fewest_sectors() -> None:
    graph, _ = split_last()
    program = codegen.program(graph)
    (scratch,) = [b for b in program.buffers if b.role == "scratch"]
    assert (scratch.shape, scratch.order, scratch.strides) == ((20, 3), (1, 0), (1, 20))
    touched = accesses(graph, graph.outputs[0].args[0])
    assert touched == [((20, 1), 3), ((10, 3), 2)]
    # row order: 3 blocks write 20 runs of 4 bytes, 2 read one of 120; the other: 3 runs of 80
    # bytes, 2 * 3 runs of 40
    assert [touched_sectors((20, 3), touched, 4, order) for order in ((0, 1), (1, 0))] == [
        3 * 20 + 2 * 4,
        3 * 3 + 2 * 3 * 2,
    ]


def test_a_schedule_is_what_the_tuner_says() -> None:
    graph, _ = mugraphs.gated_mlp()
    program = codegen.program(graph, [LaunchSchedule(warps=2, stages=5)])
    assert '{"num_warps": 2, "STAGES": 5},  # kernel_0' in program.source
    assert program.launches[0].schedule == LaunchSchedule(2, 5)


def test_what_has_no_form_says_why() -> None:
    square = mugraphs.leaf("X", "float32", 4, 6, 6)
    made = mugraphs.kernel(
        [(square, (0,), -1)], lambda t: term("add", t, term("transpose", t, perm=(0, 2, 1))), (2,), 1, (0,)
    )
    with pytest.raises(Unsupported, match="beside its transpose"):
        codegen.program(Graph((square,), (made,)))
    x = mugraphs.leaf("X", "float32", 4, 6)
    made = mugraphs.kernel([(x, (0,), -1)], lambda t: term("cumsum", t, axis=1), (2,), 1, (0,))
    with pytest.raises(Unsupported, match="cumulate has no form"):
        codegen.program(Graph((x,), (made,)))
    with pytest.raises(Unsupported, match="relu between kernels"):
        codegen.program(Graph((x,), (term("relu", x),)))
    with pytest.raises(Unsupported, match="X of float64"):
        codegen.program(mugraphs.ntrans(dtype="float64")[0])


def test_source_is_deterministic() -> None:
    def made() -> TritonProgram:
        return codegen.program(mugraphs.attention_split_safe()[0])

    assert made() == made()


def test_the_order_of_a_body_holds_the_least() -> None:
    """Each of two large tiles is folded before the next is made, though both are listed first."""
    x = mugraphs.leaf("X", "float32", 4, 64)
    big = [term("exp", x), term("tanh", x)]
    small = [term("reduce_sum", b, axes=(1,)) for b in big]
    body = Graph((x,), (term("add", term("add", term("reduce_max", big[0], axes=(1,)), small[0]), small[1]),))
    stage = loop_phases(body, (-1,))
    found = ordered(body, stage, LoopPhase.INVARIANT, lambda n: n.shape[0] * n.shape[1])
    assert found.exact
    assert found.live == 4 * 64 + 4 * 2
    assert [n.op for n in found.terms].index("tanh") > [n.op for n in found.terms].index("reduce_sum")


def test_without_a_gpu_the_model_ranks_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise RuntimeUnavailable("no device")

    monkeypatch.setattr(tune, "gpu_and_versions", missing)
    whole = codegen.program(REAL["gated_mlp"]()[0])
    few = codegen.program(mugraphs.gated_mlp(8, 4096, 4096, 4, 256)[0])
    assert [p for _, p in tune.ranked([few, whole])] == [whole, few]
    found = tune.tuned_program([few, whole])
    assert found.program.launches[0].grid == whole.launches[0].grid
    assert not found.measured
    read = 2 * 4096 * 4096 * 2  # bytes of both weights
    assert read / tune.H100.bandwidth < found.seconds <= tune.ranked([whole])[0][0]
    assert {each.program for each in tune.tuned_program([few, whole], first=True).trials} == {few, whole}
    assert len(found.trials) > 2


def test_first_programs_are_all_measured_and_no_other_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simplest one, which is measured however late it is, is compiled before the others."""
    programs = [codegen.program(mugraphs.gated_mlp(8, 64, 64, columns, 16)[0]) for columns in (1, 2, 4)]
    seen: list[TritonProgram] = []

    def measured(self: tune._Bench, program: TritonProgram) -> float:
        seen.append(program)
        self.best = 1.0
        return float(len(seen))

    monkeypatch.setattr(tune, "gpu_and_versions", lambda: "a stand-in")
    monkeypatch.setattr(tune._Bench, "overlaps", lambda self: False)
    monkeypatch.setattr(tune._Bench, "_measured", measured)
    assert tune.tuned_program(programs, first=True).program == programs[0]
    assert seen == programs
    seen.clear()
    tune.tuned_program(programs, late=lambda: True)
    assert seen == programs[:1]


def test_another_schedule_changes_the_options_alone() -> None:
    program = codegen.program(mugraphs.attention_split_safe()[0])
    other = tune.scheduled(program, 1, LaunchSchedule(8, 1))
    assert other == codegen.program(mugraphs.attention_split_safe()[0], [None, LaunchSchedule(8, 1)])


def test_overlapping_launches_wait_on_hopper_alone() -> None:
    plain = codegen.program(mugraphs.attention_split_safe()[0])
    program = tune.overlapped(plain)
    assert '"OVERLAP": True, "launch_pdl": True},  # kernel_1' in program.source
    for capability, overlap in ((80, False), (90, True)):
        for before, each in zip(compiled(plain, capability), compiled(program, capability), strict=True):
            assert each.overlap == overlap
            assert (each.cubin != before.cubin) == overlap
            assert b"generated.py" not in each.cubin  # a path would make every build another one


def test_a_kernel_that_fills_all_processors_lets_the_next_one_start_at_its_end() -> None:
    """Kernels of clusters, and those with a loop and more blocks than processors: the next one's
    blocks would gather where there is room first."""
    for columns, late in ((128 * 16, False), (264 * 16, True)):
        program = codegen.program(mugraphs.gated_mlp(8, 64, columns, columns // 16, 16)[0])
        assert (program.launches[0].loop != 1, program.launches[0].blocks) == (True, columns // 16)
        assert tune.overlapped(program).launches[0].schedule.late == late
    clusters = codegen.program(mugraphs.attention_cluster(splits=4, keys=24)[0])
    assert [x.schedule.late for x in tune.overlapped(clusters).launches] == [True]


def test_an_early_kernel_lets_the_next_one_come_before_it_waits_itself() -> None:
    """On Hopper, without a loop: whatever loads waits first all the same."""
    plain = tune.overlapped(codegen.program(mugraphs.attention_split_safe()[0]))
    first, second = plain.launches
    assert tune.earlier(first) == [first.schedule, replace(first.schedule, late=True)]
    early = tune.scheduled(plain, 1, tune.earlier(second)[2])
    assert '"OVERLAP": True, "EARLY": True, "launch_pdl": True},  # kernel_1' in early.source
    late = tune.scheduled(plain, 1, tune.earlier(second)[1])
    assert '"OVERLAP": True, "LATE": True, "launch_pdl": True},  # kernel_1' in late.source
    assert "launch_dependents" not in compiled(tune.scheduled(plain, 0, tune.earlier(first)[1]), 90)[0].ptx
    for program, order in ((plain, "wl"), (early, "lw"), (late, "w")):
        ptx = compiled(program, 90)[1].ptx
        assert "".join(x[0] for x in re.findall(r"griddepcontrol\.(wait|launch_dependents)", ptx)) == order
        assert ptx.index("griddepcontrol.wait") < ptx.index("ld.global")
    alone = tune.scheduled(plain, 1, LaunchSchedule(4, early=True))  # of no use without the wait, and not there
    assert "griddepcontrol" not in compiled(alone, 90)[1].ptx
    looped = tune.scheduled(plain, 0, replace(first.schedule, early=True))
    assert compiled(looped, 90)[0].cubin == compiled(plain, 90)[0].cubin
    assert compiled(early, 80)[1].cubin == compiled(codegen.program(mugraphs.attention_split_safe()[0]), 80)[1].cubin


def test_a_program_is_measured_while_others_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not compile is passed over."""

    def compiler(job: Mapping[str, Any]) -> Future[bool]:
        source = job["source"]
        return pool.submit(lambda: source != programs[2].source and (source != programs[0].source or last.wait(600)))

    def seconds(module: object, candidate: TritonProgram, *others: object) -> float:
        measured.append(candidate)
        last.set()
        return 1.0 + len(measured)

    programs = [codegen.program(mugraphs.ntrans(dtype=d)[0]) for d in ("float16", "bfloat16", "float32")]
    last, measured = Event(), list[TritonProgram]()
    monkeypatch.setattr(tune, "gpu_and_versions", lambda: "a GPU")
    monkeypatch.setattr(tune, "input_sets", lambda program, sizes: [])
    monkeypatch.setattr(tune, "_seconds", seconds)
    monkeypatch.setattr(tune._Bench, "overlaps", lambda self: False)
    with ThreadPoolExecutor(3) as pool:
        found = tune.tuned_program(programs[:3], compiler=compiler, late=lambda: len(measured) > 1)
    assert [t.seconds for t in found.trials[:2]] == [3.0, 2.0]
    assert programs[2] not in measured


def in_clusters(program: TritonProgram) -> TritonProgram:
    first, *others = program.launches
    return replace(program, launches=(replace(first, cluster=4), *others))


def test_a_newer_form_does_not_stand_for_a_simpler_one_that_nobody_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late it is: clusters come first by the model, and are compiled first."""

    def compiler(job: Mapping[str, Any]) -> Future[bool]:
        return pool.submit(lambda: job["source"] != plain.source or measured_one.wait(600))

    def seconds(module: object, candidate: TritonProgram, *others: object) -> float:
        measured.append(candidate)
        measured_one.set()
        return 1.0 + candidate.launches[0].cluster

    plain, other = (codegen.program(mugraphs.ntrans(dtype=d)[0]) for d in ("float16", "bfloat16"))
    clusters = in_clusters(other)
    measured_one, measured = Event(), list[TritonProgram]()
    monkeypatch.setattr(tune, "gpu_and_versions", lambda: "a GPU")
    monkeypatch.setattr(tune, "input_sets", lambda program, sizes: [])
    monkeypatch.setattr(tune, "_seconds", seconds)
    monkeypatch.setattr(tune._Bench, "overlaps", lambda self: False)
    with ThreadPoolExecutor(2) as pool:
        found = tune.tuned_program([clusters, plain], compiler=compiler, late=lambda: True)
    assert measured == [clusters, plain]
    assert found.program == plain


def test_the_simplest_form_gets_other_schedules_where_it_is_not_far_behind() -> None:
    plain = codegen.program(mugraphs.attention_split_safe()[0])
    newer = [
        replace(
            in_clusters(plain),
            source=f"# {i}\n{plain.source}",
            launches=tuple(replace(x, cluster=4, grid=(*x.grid[:-1], 64 + i)) for x in plain.launches),
        )
        for i in range(tune.FINALISTS)
    ]

    def best(behind: float) -> TritonProgram:
        def cost(programs: Sequence[TritonProgram]) -> list[float]:
            return [1.0 if tune.newness(p)[0] else behind - (p.launches[0].schedule.warps == 2) for p in programs]

        return tune._tuned([*newer, plain], cost, H100, True, lambda: False).program

    assert not tune.newness(best(1.1))[0]
    assert tune.newness(best(2.5))[0]


def test_what_was_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a GPU each launch gets the schedule that was measured the fastest, from the cache the
    second time."""
    program = codegen.program(mugraphs.attention_split_safe()[0])
    calls: list[TritonProgram] = []

    def seconds(module: object, candidate: TritonProgram, *others: object) -> float:
        calls.append(candidate)
        schedules = [each.schedule for each in candidate.launches]
        return 1.0 + sum(abs(s.warps - 2) + abs(s.stages - 2) - s.early / 2 + s.late for s in schedules)

    monkeypatch.setattr(tune, "gpu_and_versions", lambda: "a GPU")
    monkeypatch.setattr(tune, "input_sets", lambda program, sizes: [])
    monkeypatch.setattr(tune, "_seconds", seconds)
    monkeypatch.setattr(tune._Bench, "overlaps", lambda self: True)
    cache = CostCache(tmp_path / "costs.sqlite")
    found = tune.tuned_program([program], cache)
    assert found.measured
    assert [each.schedule for each in found.program.launches] == [
        LaunchSchedule(2, 2, True),
        LaunchSchedule(2, 1, True, early=True),
    ]
    assert len(calls) == len({c.source for c in calls})
    calls.clear()
    assert tune.tuned_program([program], cache) == found
    assert calls == []
    assert tune.tuned_program([program], cache, check=lambda inputs, results: True) == found
    assert len(calls) == len(found.trials)  # whether results are right was not asked then


def test_when_a_kernel_lets_the_next_in_is_asked_again_when_that_has_its_schedule() -> None:
    program = tune.overlapped(codegen.program(mugraphs.attention_split_safe()[0]))
    seen: list[str] = []

    def cost(programs: Sequence[TritonProgram]) -> list[float]:
        """The first kernel should be late while the second has not the warps it should have."""
        seen.extend(p.source for p in programs)
        found = []
        for first, second in ([x.schedule for x in p.launches] for p in programs):
            early = second.warps == 16 and second.early
            found.append(10.0 - (second.warps == 16) - 2 * early - (first.late != early))
        return found

    best = tune._tuned([program], cost, H100, True, lambda: False)
    first, second = (each.schedule for each in best.program.launches)
    assert (first.late, second.warps, second.early) == (False, 16, True)
    assert len(seen) == len(set(seen)) == len(best.trials)


SHARED_CACHE = """
import json, os, subprocess, sys
from pathlib import Path
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from taso_mirage.emit import compile_jobs, tune
from taso_mirage.emit.compile import compiled, load_source as load
from taso_mirage.emit import triton as codegen
import mugraphs
from taso_mirage.ir.terms import Graph
from form_programs import convolved

class Driver:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

driver.set_active(Driver())
if len(sys.argv) > 1:
    assert compile_jobs.warmed(json.loads(sys.argv[1]))
    sys.exit()
first, second = (tune.overlapped(codegen.program(mugraphs.ntrans(dtype=d)[0])) for d in ("float16", "bfloat16"))
made, goal = convolved((2, 5, 6, 7), (3, 3), 7)
named = tune.overlapped(codegen.program(Graph(goal.inputs, (made.mugraph((32, 16, 16, 3)),))))
started_with = dict(os.environ)
library = Path(triton.__file__).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
other = Path(sys.argv[0]).parent / library.name
other.write_bytes(library.read_bytes() + bytes(4))
triton.knobs.nvidia.libdevice_path = str(other)  # as PyTorch's compiler sets it, and ptxas by the environment
compile_jobs.first_job()
compiled(first, 90)  # ahead of time, as a kernel that was chosen is
compiled(named, 90)
assembler = Path(sys.argv[0]).parent / "ptxas"  # of another version
own = triton.knobs.nvidia.ptxas.path
assembler.write_text(f'#!/bin/sh\\n[ "$1" = --version ] && echo "release 99.0, V99.0.1" || exec {own} "$@"\\n')
assembler.chmod(0o755)
os.environ["TRITON_PTXAS_PATH"] = str(assembler)
environment = started_with | {"TRITON_PTXAS_PATH": str(assembler)}
subprocess.run([sys.executable, __file__, json.dumps(compile_jobs.job(second))], env=environment, check=True)
hits = []
triton.knobs.compilation.listener = lambda **said: hits.append(said["cache_hit"])
for i, program in enumerate((first, second, named)):
    module = load(program.source, Path(sys.argv[0]).parent, f"loaded_{i}")
    inputs = [torch.zeros(b.shape, dtype=getattr(torch, b.dtype)) for b in program.buffers if b.role == "input"]
    try:
        module.launch(*inputs, options=[launch.options for launch in program.launches])
    except AttributeError:  # the driver launches nothing
        pass
print(*hits)
"""


@pytest.mark.sampled(3)
def test_what_another_process_compiled_is_not_compiled_again(tmp_path: Path) -> None:
    """A program compiled by another process is used before and after this process has compiled
    ahead of time.

    The key of Triton's cache has settings in it, and one that was set later than the tuner's
    processes were started made this process compile all that they had compiled.
    """
    pytest.importorskip("torch")
    (tmp_path / "main.py").write_text(SHARED_CACHE)
    path = os.pathsep.join(filter(None, sys.path))
    env = {k: v for k, v in os.environ.items() if not k.startswith("TRITON")}
    env |= {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(tmp_path / "main.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True", "True"]), done.stderr[-2000:]


def test_what_is_not_written_is_not_the_result_of_another_program() -> None:
    torch = pytest.importorskip("torch")
    wide = codegen.program(idle_loop()[0])

    class Unwritten:
        def launch(self, x: object, y: object, options: object) -> object:
            return torch.empty(4, 3)

    asked: list[bool] = []

    def check(inputs: object, results: Sequence[Any]) -> bool:
        asked.append(bool(results[0].isnan().all()))
        return False

    assert tune._seconds(cast(ModuleType, Unwritten()), wide, [[None, None]], check, math.inf) == math.inf
    assert asked == [True]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.sampled(3)
def test_measuring_does_not_import_the_compiler_of_torch() -> None:
    """The import takes seconds."""
    pytest.importorskip("torch")
    script = (
        "import sys, torch; from taso_mirage.emit.tune import _into_nan; "
        "assert _into_nan(lambda: torch.empty(3), ()).isnan().all(); assert 'torch._inductor' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_where_every_program_is_refused_none_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    program = codegen.program(mugraphs.ntrans()[0])
    monkeypatch.setattr(tune, "gpu_and_versions", lambda: "a GPU")
    monkeypatch.setattr(tune._Bench, "overlaps", lambda self: False)
    monkeypatch.setattr(tune._Bench, "seconds", lambda self, programs: [math.inf for _ in programs])
    with pytest.raises(Unsupported, match="none of 1 programs"):
        tune.tuned_program([program])
