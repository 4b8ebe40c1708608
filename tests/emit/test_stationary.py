"""Convolutions whose weights stay in shared memory: the generated Gluon, as Python
(`gluon_blocks`), computes the convolution and its epilogue; the compiler takes it; and where there
is no such form."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from form_programs import convolved
from gluon_blocks import Block, Pointer, rounded

from taso_mirage.devices.cuda.device import H100, SPECIALIZED, gpu
from taso_mirage.emit import triton
from taso_mirage.emit.compile import compiled, load_source
from taso_mirage.emit.gpu.program import TF32_PARTS, TritonProgram
from taso_mirage.errors import Unsupported
from taso_mirage.forms.base.in_operators import nearest_tf32
from taso_mirage.forms.shifted import BLOCK
from taso_mirage.ir.dims import evaluate, symbol
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.lowering import cuda as cuda
from taso_mirage.lowering.cuda import CudaLowering
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.operators.interpret import interpret

torch = pytest.importorskip("torch")
triton_package = pytest.importorskip("triton", reason="the extra `triton` is not installed")
Goal = tuple[Any, Graph]
FORMS: dict[str, Goal] = {
    "plain": convolved((2, 5, 9, 12), (3, 3), 7),
    "pads": convolved((2, 16, 9, 12), (3, 3), 20, "bias, mish", pads=(1, 1, 1, 1)),
    "other pads": convolved((1, 3, 4, 8), (2, 3), 17, "scale", pads=(3, 4, 0, 6)),
    "a long row": convolved((1, 8, 7, 40), (2, 5), 7, "bias, sum", pads=(0, 2, 1, 2)),
    "dilations": convolved((1, 24, 12, 16), (3, 3), 7, dilations=(2, 2), pads=(1, 2, 0, 1)),
    "strides of rows": convolved((2, 3, 12, 16), (3, 2), 7, "mish", strides=(2, 1), pads=(1, 2, 0, 1)),
    "a volume": convolved((2, 3, 5, 6, 8), (3, 3, 3), 7, "bias, scale", pads=(1, 0, 1, 1, 1, 1)),
    "a line": convolved((2, 3, 52), (4,), 7, "bias"),
    "one element": convolved((2, 32, 6, 8), (1, 1), 7, "scale, sum, mish"),
    "parts of the columns": convolved((3, 5, 3, 4), (3, 2), 75, "bias, scale, sum"),
    "transposed": convolved((2, 5, 6, 8), (3, 3), 7, "bias", pads=(1, 0, 1, 0), extra=(0, 0)),
    "phases": convolved((2, 16, 6, 8), (3, 3), 7, "bias, sum", strides=(2, 2), pads=(1,) * 4, extra=(1, 1)),
    "phases of a volume": convolved(
        (1, 16, 3, 4, 4), (4, 3, 3), 17, "bias", strides=(2, 2, 2), pads=(1,) * 6, extra=(0, 1, 0)
    ),
    "transposed with wide pads": convolved((2, 5, 8, 12), (3, 5), 7, strides=(2, 1), pads=(7, 4, 7, 4), extra=(1, 0)),
    "a line with dilations": convolved((2, 5, 52), (5,), 7, "bias", dilations=(3,), pads=(2, 1), extra=(0,)),
    "phases that see nothing": convolved(
        (2, 16, 24), (3,), 7, "bias, mish", strides=(2,), dilations=(2,), pads=(1, 1), extra=(1,)
    ),
    "four phases": convolved((2, 5, 6, 8), (4, 5), 7, "scale, mish", strides=(2, 4), extra=(0, 2)),
}
"""Rows of whole chunks of 16 bytes."""


def program(goal: Goal) -> TritonProgram:
    return triton.program(Graph(goal[1].inputs, (goal[0].mugraph(BLOCK),)), specialized=True)


def parts(made: TritonProgram) -> int:
    """The parts of the columns."""
    found = re.search(r"columns = gl.program_id\(0\) % (\d+)", made.source)
    assert found is not None
    return int(found[1])


def inputs_of(goal: Goal) -> list[Any]:
    rng = np.random.default_rng(0)
    found = [rng.standard_normal([int(n) for n in x.shape]).astype(np.float32) for x in goal[1].inputs]
    high = nearest_tf32(found[1][0])
    found[1] = np.stack([high, found[1][0] - high])
    return found


def run(
    source: str, made: TritonProgram, inputs: list[Any], blocks: int, late: bool, known: Mapping[str, int] | None = None
) -> Any:
    """The values that some blocks store, where a run gives these sizes."""
    (launch,) = made.launches
    known = known or {}
    sizes = [evaluate(n, known) for n in made.buffers[-1].shape]
    result = np.full(int(np.prod(sizes)), np.nan, np.float32)
    pointers = [Pointer(x.reshape(-1)) for x in inputs]
    for i in range(blocks):
        block = Block(source, (i, 0, 0), count=blocks, late=late)
        block.run(
            launch.name,
            *pointers,
            Pointer(result),
            *map(known.__getitem__, launch.sizes),
            STAGES=launch.schedule.stages,
        )
    return result.reshape(sizes)


def exact(goal: Goal, inputs: list[Any]) -> Any:
    """In float64, of operands that are rounded to TF32."""
    x, (w, _), *others = inputs
    given = [rounded(x), np.stack([w, 0 * w]), *others]
    arrays = dict(zip(goal[1].inputs, [each.astype(np.float64) for each in given], strict=True))
    (found,) = interpret(goal[1].outputs, EXACT, arrays).values()
    return found


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_the_kernel_computes_the_convolution(name: str, late: bool) -> None:
    goal = FORMS[name]
    made, inputs = program(goal), inputs_of(goal)
    wanted = exact(goal, inputs)
    found = run(made.source, made, inputs, 2 * parts(made), late)
    assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("pads", "(rows + further >= 0) & ", ""),
        ("pads", "(left >= 0) & ", ""),
        ("pads", "& (top < 9)", "& (top < 8)"),
        ("other pads", "- 4\n", "- 3\n"),
        ("a long row", "(place % 32 < 28)", "(place % 32 < 30)"),
        ("phases", "index % 2 - 1", "1 - index % 2 - 1"),
        ("phases", "$3, $4, 4, 31", "$3, $4, 8, 31"),
        ("parts of the columns", " & gl.expand_dims(column < 75, 0)", ""),
        ("plain", "gl.expand_dims(begin + c < 5, 1)", "gl.expand_dims(begin + c < 4, 1)"),
        ("pads", "async_copy.wait_group(STAGES - 2)", "async_copy.wait_group(STAGES - 1)"),
        ("pads", "            tile_x = next_x\n", ""),
    ],
)
def test_what_is_wrong_in_a_kernel_is_seen(name: str, old: str, new: str) -> None:
    goal = FORMS[name]
    made, inputs = program(goal), inputs_of(goal)
    wanted = exact(goal, inputs)
    assert old in made.source
    try:
        found = run(made.source.replace(old, new), made, inputs, 2 * parts(made), True)
    except (AssertionError, IndexError):
        return
    assert not np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_a_run_counts_the_images() -> None:
    """By another name than the first that it gives."""
    goal = FORMS["phases"]
    shapes = [tuple([symbol("n1") if n == 2 else n for n in x.shape[:1]]) + x.shape[1:] for x in goal[1].inputs]
    shapes[1] = goal[1].inputs[1].shape
    free = FreeSizes(tuple(shapes), ((symbol("n1"), *goal[1].outputs[0].shape[1:]),))
    graph = with_free_names(Graph(goal[1].inputs, (goal[0].mugraph(BLOCK),)), free)
    graph = Graph((variable("z", Tensor("float32", (symbol("n0"),))), *graph.inputs), graph.outputs)
    made = triton.program(graph, specialized=True)
    assert "total = (n1) * " in made.source
    assert "range(tl.program_id(0), (n1) * " in triton.program(graph).source
    compiled(made)
    for images in (1, 2):
        inputs = [x[:images] if x.shape[0] == 2 and i != 1 else x for i, x in enumerate(inputs_of(goal))]
        found = run(made.source, made, inputs, 3, True, {"n0": 5, "n1": images})
        wanted = exact(goal, inputs_of(goal))[:images]
        assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_results_of_four_phases_have_room() -> None:
    """The phases pass through shared memory all together."""
    made = program(convolved((1, 120, 4, 8), (3, 4), 32, "bias", strides=(1, 4), extra=(0, 0)))
    (kernel,) = compiled(made)
    assert kernel.shared <= 227 * 1024


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("pads", "phases of a volume")),
        *("plain", "a long row", "four phases"),
    ],
)
def test_the_compiler_takes_it(name: str) -> None:
    made = program(FORMS[name])
    (kernel,) = compiled(made)
    assert kernel.shared <= 227 * 1024
    assert "wgmma.mma_async.sync.aligned.m64n" in kernel.ptx
    assert "cp.async.cg.shared.global [ %r" in re.sub(r"\s+", " ", kernel.ptx)
    with pytest.raises(Unsupported, match="for sm_90 alone"):
        compiled(made, 100)


@pytest.mark.parametrize(("follows", "width"), [("bias, mish", 32), ("bias", 64)])
def test_what_follows_stays_in_registers(follows: str, width: int, tmp_path: Path) -> None:
    """A thread has twice as many results in two phases: with as many columns these would go to
    memory."""
    attrs = {"strides": (2, 2), "pads": (1,) * 4, "extra": (1, 1)}
    made = program(convolved((2, 64, 32, 32), (3, 3), 64, follows, **attrs))
    assert f"weights of {width} columns" in made.source
    (kernel,) = compiled(made)
    (tmp_path / "kernel").write_bytes(kernel.cubin)
    tool = Path(triton_package.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run([tool, "-res-usage", tmp_path / "kernel"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", said)
    assert found is not None
    assert int(found[1]) < 64, said


def test_what_has_no_form_says_why() -> None:
    for goal, why in (
        (convolved((1, 5, 9, 10), (3, 3), 4), "rows of 10 numbers"),
        (convolved((1, 5, 9, 12), (3, 3), 4, strides=(1, 2)), "stride 2"),
        (convolved((1, 5, 9, 24), (3, 4), 4, dilations=(1, 6)), "of which a warp has 32"),
        (convolved((1, 512, 9, 12), (3, 3), 64), "no room"),
        (convolved((1, 5, 4, 8), (3, 3), 4, strides=(1, 3), extra=(0, 0)), "3 phases"),
        (convolved((1, 5, 4, 8), (3, 3), 4, dilations=(2, 1), extra=(0, 0)), "dilations beside the row"),
        (convolved((1, 5, 4, 8), (1, 3), 4, strides=(2, 1), extra=(0, 0)), "beside the row"),  # rows that see nothing
        (convolved((1, 1, 1 << 28, 4), (1, 5), 1, pads=(0, 2) * 2), "tiles of a plane, whose positions 32 bits count"),
    ):
        block = (32, 16, 16, 1) if "stride 2" in why else BLOCK
        with pytest.raises(Unsupported, match=why):
            triton.program(Graph(goal[1].inputs, (goal[0].mugraph(block),)), specialized=True)
    made = triton.program(Graph(FORMS["plain"][1].inputs, (FORMS["plain"][0].mugraph(BLOCK),)))
    rounding = replace(made.launches[0].schedule, specialized=True, precision=TF32_PARTS)
    own = program(FORMS["parts of the columns"]).launches[0].schedule
    for name, schedule in (
        ("plain", rounding),
        *(("parts of the columns", replace(own, persistent=own.persistent + 1 - n)) for n in (0, own.persistent + 1)),
        *(("plain", replace(own, stages=n)) for n in (1, 5)),
    ):
        graph = Graph(FORMS[name][1].inputs, (FORMS[name][0].mugraph(BLOCK),))
        with pytest.raises(Unsupported, match="another form"):
            triton.program(graph, [schedule])


@pytest.mark.parametrize(("columns", "warps"), [(7, 4), (128, 8)])
def test_other_gpus_take_turns_too(columns: int, warps: int) -> None:
    """The record's variant for other GPUs has the same grid and the same buffers, and rounds
    nothing."""
    goal = convolved((2, 16, 6, 8), (3, 3), columns, "bias", strides=(2, 2), pads=(1,) * 4, extra=(1, 1))
    made = program(goal)
    record = {"mugraph": to_json(Graph(goal[1].inputs, (goal[0].mugraph((128, 128, 32, 3)),)))}
    record |= {"schedules": [asdict(replace(x.schedule, overlap=True)) for x in made.launches]}
    (own,), (other,) = (cuda._form(record, c).launches for c in (90, 80))
    assert own.schedule.specialized
    assert not other.schedule.specialized
    assert (own.grid, own.buffers) == (other.grid, other.buffers)
    assert other.schedule.overlap
    assert other.schedule.warps == warps
    assert other.schedule.precision == TF32_PARTS
    assert other.constants["TURNS"]
    (fine,) = cuda._program(CudaLowering(H100, "H100", 90).fine(record)).launches
    assert (fine.schedule, fine.grid) == (other.schedule, own.grid)


def test_it_is_tried_where_operands_may_be_rounded() -> None:
    """Once, whatever blocks muGraphs have, which it has none of."""
    blocks = (BLOCK, (64, 32, 16, 3), (32, 32, 16, 3), (64, 16, 16, 3), (32, 16, 16, 3), (64, 32, 16, 1))
    graphs = [Graph(FORMS["pads"][1].inputs, (FORMS["pads"][0].mugraph(each),)) for each in blocks]
    tried = {rounds: cuda._programs(graphs, replace(H100, rounds=rounds)).values() for rounds in (False, True)}
    stays = {rounds: [p.launches[0].schedule.specialized for _, p in found] for rounds, found in tried.items()}
    assert stays == {False: [False] * len(blocks), True: [True, *[False] * cuda.BESIDE]}
    assert [graph for graph, p in tried[True] if p.launches[0].schedule.specialized] == graphs[:1]


@pytest.mark.skipif((found := gpu()) is None or found.capability != SPECIALIZED, reason="needs a GPU of sm_90")
@pytest.mark.parametrize("name", FORMS)
def test_it_runs_on_the_gpu(name: str, tmp_path: Path) -> None:
    goal = FORMS[name]
    made, inputs = program(goal), inputs_of(goal)
    module, wanted = load_source(made.source, tmp_path), exact(goal, inputs)
    results = [module.launch(*[torch.tensor(x).cuda() for x in inputs]) for _ in range(3)]
    for each in results:
        assert np.abs(each.cpu().numpy() - wanted).max() < 2e-5 * np.abs(wanted).max()
