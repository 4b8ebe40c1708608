"""Kernels of attention whose warps have roles: which muGraphs have such a form, where it reads and
writes, and that it compiles for sm_90 alone; on a GPU its results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from typing import Any

import mugraphs
import numpy as np
import pytest

from models.workloads.gqa import gqa
from models.workloads.qknorm import qknorm
from taso_mirage.devices.cuda.device import H100, Gpu, described
from taso_mirage.emit import compile_jobs, triton, tune
from taso_mirage.emit.compile import CompiledKernel, compiled
from taso_mirage.emit.gpu.block import TritonBlock
from taso_mirage.emit.gpu.buffers import kernel_terms, output_buffers, tensor_buffers
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.emit.gpu.warp_specialized import GROUPS, ROWS, WarpSpecializedBlock
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph
from taso_mirage.lowering import cuda as cuda
from taso_mirage.lowering.backend import BATCH
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.verdicts import NO_EVIDENCE

pytest.importorskip("triton", reason="the extra `triton` is not installed")
GOALS = {"gqa": gqa, "qknorm": qknorm}


@cache
def graphs(name: str) -> tuple[list[Graph], list[Graph]]:
    """MuGraphs with and without a form that has roles."""
    found: tuple[list[Graph], list[Graph]] = ([], [])
    for each in superoptimize(GOALS[name](batch=8).graph(), best=50, budget=60.0, device=H100):
        try:
            triton.program(each.graph, specialized=True)
        except Unsupported:
            found[1].append(each.graph)
        else:
            found[0].append(each.graph)
    return found


def roles(name: str) -> tuple[WarpSpecializedBlock, TritonProgram]:
    graph = graphs(name)[0][0]
    buffers = tensor_buffers(graph)
    node = kernel_terms(graph)[0]
    reads = [buffers[x] for x in node.args]
    block = WarpSpecializedBlock(TritonBlock(node, "kernel_0", reads, list(output_buffers(node, buffers))))
    return block, triton.program(graph, specialized=True)


@cache
def kernels(name: str) -> tuple[CompiledKernel, ...]:
    return tuple(compiled(roles(name)[1], 90))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", GOALS)
def test_the_same_mugraph_has_a_form_with_roles_beside_the_other(name: str) -> None:
    graph = graphs(name)[0][0]
    plain, special = triton.program(graph), triton.program(graph, specialized=True)
    assert plain.source != special.source
    assert [x.buffers for x in plain.launches] == [x.buffers for x in special.launches]
    assert [x.grid for x in plain.launches] == [x.grid for x in special.launches]
    assert special.launches[0].maps
    assert not special.launches[1].maps
    assert "gl.warp_specialize" in special.source
    assert "gluon" not in plain.source


def points(block: WarpSpecializedBlock) -> Iterator[dict[str, int]]:
    """Some blocks and iterations."""
    sizes = [*block.term.grid, block.term.loop]
    names = [*(f"g{i}" for i in range(len(block.term.grid))), "t"]
    for values in product(*[sorted({0, n // 2, n - 1}) for n in sizes]):
        yield dict.fromkeys(("g0", "g1", "g2"), 0) | dict(zip(names, values, strict=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", GOALS)
def test_tiles_are_those_that_the_mugraph_cuts(name: str) -> None:
    """Every place is that of the part that slicing gives a block, by numbers of elements."""
    block, _ = roles(name)
    for i, leaf in enumerate(block.body.inputs):
        shape = tuple(int(n) for n in block.term.reads[i].shape)
        elements = np.arange(np.prod(shape)).reshape(shape)
        for at in points(block):
            part = elements
            for dim, count, _, variable in block.term.cuts(i):
                if dim >= 0:
                    part = np.split(part, int(count), axis=dim)[at[variable]]
            matrix = elements.reshape(block.maps[leaf].shape)
            row, column = (eval(str(each), {}, at) for each in block._place(leaf))
            rows, columns = block.maps[leaf].tile
            assert np.array_equal(matrix[row : row + rows, column : column + columns], part.reshape(rows, columns))


@pytest.mark.parametrize("name", GOALS)
def test_every_element_of_a_result_is_written_once(name: str) -> None:
    block, _ = roles(name)
    for o, _ in enumerate(block.body.outputs):
        offset, strides = block._result(o)
        lanes = [np.arange(GROUPS * ROWS) * strides[0]]
        lanes += [np.arange(block.width) * each for each in strides[1:]]
        inner = lanes[0] if len(lanes) == 1 else lanes[0][:, None] + lanes[1][None, :]
        names = [f"g{i}" for i in range(len(block.term.grid))]
        blocks = product(*map(range, block.term.grid))
        known = {f"result_{o}": 0}
        every = [eval(str(offset), known, dict(zip(names, each, strict=True))) + inner for each in blocks]
        found = np.concatenate([each.ravel() for each in every])
        assert np.array_equal(np.sort(found), np.arange(len(found)))


@pytest.mark.parametrize("name", GOALS)
def test_it_compiles_for_hopper_with_copies_products_and_turns(name: str) -> None:
    first, second = kernels(name)
    assert (first.warps, first.hidden, len(first.maps)) == (12, 2, 3)
    assert not second.maps
    for instruction in ("cp.async.bulk.tensor.2d", "wgmma.mma_async", "setmaxnreg.inc", "mbarrier.try_wait"):
        assert instruction in first.ptx
    for number in (8, 9):
        assert f"bar.sync {number}, 256" in first.ptx
        assert f"bar.arrive {number}, 256" in first.ptx
    assert len(re.findall(r"\.param \.align 64 \.b8", first.ptx)) == 3
    assert first.shared < 227 * 1024


@pytest.mark.parametrize("name", GOALS)
def test_the_exponentials_end_before_the_turn_does(name: str) -> None:
    """In the PTX of a group, all powers of an iteration stand between its turn's begin and end."""
    text = kernels(name)[0].ptx
    for mine, other in ((8, 9), (9, 8)):
        begin = text.index(f"bar.sync {mine}, 256")
        end = text.index(f"bar.arrive {other}, 256", begin)
        assert text[begin:end].count("ex2.approx") > 32
        assert "wgmma.mma_async" not in text[begin:end]


def test_other_gpus_have_the_other_form() -> None:
    _, program = roles("gqa")
    for capability in (80, 100):
        with pytest.raises(Unsupported, match="sm_90 alone"):
            compiled(program, capability)
    with pytest.raises(Unsupported, match="chosen for another form"):
        triton.program(
            graphs("gqa")[0][0],
            [each.schedule for each in triton.program(graphs("gqa")[0][0]).launches],
            specialized=True,
        )


@pytest.mark.parametrize("name", GOALS)
def test_what_has_no_such_form_says_why(name: str) -> None:
    said = set()
    for graph in graphs(name)[1]:
        with pytest.raises(Unsupported, match="no attention that warps with roles are generated for") as error:
            triton.program(graph, specialized=True)
        said.add(str(error.value))
    assert len(said) > 1


def test_the_tuner_tries_depths_and_a_job_is_json() -> None:
    _, program = roles("gqa")
    tried = tune.schedules(program.launches[0])
    assert tried[0] == program.launches[0].schedule
    assert {each.warps for each in tried} == {4}
    assert all(each.specialized for each in tried)
    assert len({each.stages for each in tried}) == len(tried) > 1
    job = json.loads(json.dumps(compile_jobs.job(program)))
    name, dtypes, maps, sizes, options = job["launches"][0]
    assert (name, sizes, len(maps)) == ("kernel_0", 0, 3)
    assert options["maxnreg"] == program.launches[0].registers
    assert dtypes[:3] == ["float16"] * 3


@pytest.mark.parametrize("name", GOALS)
def test_a_device_has_the_form_where_it_is_described_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is by itself: users get the programs that they got before. Where it is the tuner
    compares both forms with the goal, and keeps the faster one."""
    found = [FoundMuGraph(graph, graph, 1.0, "", NO_EVIDENCE) for graph in graphs(name)[0][:2]]
    seen: list[TritonProgram] = []
    cheap = True

    def tuned(programs: Sequence[TritonProgram], **options: Any) -> tune.TunedProgram:
        def cost(some: Sequence[TritonProgram]) -> list[float]:
            return [2.0 if bool(p.launches[0].maps) == cheap else 3.0 for p in some]

        seen.extend(programs)
        assert isinstance(options["check"], cuda.Float64Oracle)
        return tune._tuned(programs, cost, H100, True, lambda: False)

    monkeypatch.setattr(tune, "tuned_program", tuned)
    others = [described(Gpu("any", capability, 132, 227 << 10, 0.0)) for capability in (80, 89, 100, 120)]
    assert not any(device.specialized for device in others)
    assert described(Gpu("any", 90, 132, 227 << 10, 0.0)).specialized
    for device, forms in ((others[0], 1), (H100, 2)):
        for cheap in (True, False):
            seen.clear()
            record = cuda.CudaLowering(device, "a stand-in", 90).fastest(Graph((), ()), found, 0.0)
            assert [bool(p.launches[0].maps) for p in seen] == [False, True][:forms] * 2
            chosen = cuda._program(json.loads(json.dumps(record)))
            assert bool(chosen.launches[0].maps) == (cheap and forms == 2)


def test_both_forms_of_a_grid_are_tuned() -> None:
    """The one that is slower as it was guessed may be faster at another depth."""
    programs = triton.program_forms(graphs("gqa")[0][0], True)

    def cost(some: Sequence[TritonProgram]) -> list[float]:
        return [
            1.0 if p.launches[0].maps and p.launches[0].schedule.stages == 4 else 2.0 + bool(p.launches[0].maps)
            for p in some
        ]

    best = tune._tuned(programs, cost, H100, True, lambda: False)
    assert best.program.launches[0].maps
    assert best.program.launches[0].schedule.stages == 4


def test_a_model_has_the_form_for_sm_90_and_the_other_for_all_others() -> None:
    """One plan: grids and buffers are the same."""
    _, program = roles("gqa")
    record = {
        "mugraph": to_json(graphs("gqa")[0][0]),
        "schedules": [asdict(x.schedule) for x in tune.overlapped(program).launches],
    }
    node = cuda.CudaLowering(H100, "a stand-in", 90)._planned(record, (80,))
    lines = [line.split() for line in node.plan.splitlines()]
    assert [line[0] for line in lines if line[0] in ("kernel", "image", "map")] == (
        ["kernel"] * 2 + ["image"] * 3 + ["map"] * 3 + ["image"] * 3
    )
    shown = [(line[1:4], line[5]) for line in lines if line[0] == "image"]
    assert [x for x, _ in shown[:4]] == [[i, c, "cubin"] for c in ("80", "90") for i in ("0", "1")]
    assert [warps == "12" for _, warps in shown] == [False, False, True, False, False, False]
    assert [x for x, _ in shown[4:]] == [["0", "80", "ptx"], ["1", "80", "ptx"]]
    assert [line[8] for line in lines if line[0] == "image"] == ["0", "0", "1", "1", "0", "0"]


def test_a_record_of_samples_has_the_form_in_triton() -> None:
    graph, _ = mugraphs.attention_roles(512, 2, 4, heads=1)
    schedules = [asdict(x.schedule) for x in triton.program(graph, specialized=True).launches]
    record = {"mugraph": to_json(graph), "schedules": schedules}
    assert cuda._program(record).launches[0].maps
    batch = {"dims": 1, "inputs": [True] * 3}
    assert not cuda._program(record | {BATCH: batch}).launches[0].maps


def test_a_record_from_before_there_was_the_form_reads_as_before() -> None:
    graph, _ = mugraphs.attention_roles(512, 2, 4)
    program = triton.program(graph)
    older = [{k: v for k, v in asdict(x.schedule).items() if k != "specialized"} for x in program.launches]
    assert cuda._program({"mugraph": to_json(graph), "schedules": older}).source == program.source


@pytest.mark.parametrize("name", GOALS)
def test_its_results_on_a_gpu(name: str, tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no GPU of sm_90")
    from taso_mirage.emit.compile import load_source

    for i, graph in enumerate(graphs(name)[0]):
        program = tune.overlapped(triton.program(graph, specialized=True))
        module = load_source(program.source, tmp_path, f"generated_{i}")
        for inputs in tune.input_sets(program)[:2]:
            q, k, v = (x.double() for x in inputs)
            if name == "qknorm":
                q, k = (x / (x * x).mean(-1, keepdim=True).sqrt() for x in (q, k))
                k = k.transpose(1, 2)
            wanted = (q @ k).softmax(-1) @ v
            found = tune._into_nan(module.launch, inputs)
            torch.cuda.synchronize()
            assert float((found.double() - wanted).norm() / wanted.norm()) < 2e-3
