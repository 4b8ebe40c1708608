"""Specialized warps wait for each other: they never wait for ever, and never read memory that was
not written, in every possible order; they compute attention; and the compiler kept it.

A kernel that hangs takes its process with it, so this is seen before any GPU: the generated Gluon
runs as Python (`gluon_blocks`), and all orders of its groups are gone through (`barrier_states`).
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import mugraphs
import numpy as np
import pytest
from barrier_states import States, Wrong
from gluon_blocks import Block, Hang, Matrix, Pointer

from taso_mirage.emit import triton
from taso_mirage.emit.compile import CompiledKernel, compiled
from taso_mirage.emit.gpu.program import LaunchSchedule, TritonProgram
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import LARGEST_CLUSTER

TILE = 64
"""Keys."""
THREADS = 128
"""The threads of a group."""


@cache
def program(normed: bool, loop: int, tile: int = TILE, splits: int = 2) -> TritonProgram:
    """Attention whose keys are divided by their norms, or are not."""
    return triton.program(
        mugraphs.attention_roles(splits * loop * tile, splits, loop, normed=normed, heads=1)[0], specialized=True
    )


def traced(normed: bool, loop: int, stages: int, old: str = "", new: str = "") -> Block:
    """The actions of each group of a block, where the source has something else in one place."""
    made = program(normed, loop)
    assert old in made.source
    block = Block(made.source.replace(old, new), blocks=False)
    launch = made.launches[0]
    matrices = [Matrix(np.zeros(each.shape, np.float16), each.tile) for each in launch.maps]
    results = [Pointer(np.full(1 << 18, np.nan)) for _ in launch.buffers[len(matrices) :]]
    block.run(launch.name, *matrices, *results, STAGES=stages)
    return block


@pytest.mark.sampled(3)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("loop", [2, 3, 4, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 6, 8, 9))])
def test_no_order_of_the_groups_hangs_or_races(normed: bool, loop: int) -> None:
    """Loops that are shorter than the ring, as long, odd, even, and several times as long."""
    for stages in (2, 3) if loop > 6 else (2, 3, 4):
        assert States(traced(normed, loop, stages)).explore() > 100


KEYS_FREE = "gl_mbarrier.wait(k_free.index(t % STAGES), (n // STAGES) & 1)"
WRONG = "has tile|more arrivals|for ever"
"""The possible errors: the order decides which one is seen first."""
SCALES = "gl_mbarrier.wait(s_full.index(slot), phase)"
BROKEN = {
    "no wait for a slot of keys": (False, KEYS_FREE, "pass", WRONG),
    "no wait for a slot of values": (False, KEYS_FREE.replace("k_", "v_"), "pass", WRONG),
    "a slot that is waited for in another phase": (
        False,
        KEYS_FREE,
        KEYS_FREE.replace("n //", "1 + n //"),
        WRONG,
    ),
    "no wait for keys": (False, "gl_mbarrier.wait(k_full.index(slot), phase)", "pass", "k.* has tile"),
    "no wait for values": (False, "gl_mbarrier.wait(v_full.index(slot), phase)", "pass", "v.* has tile"),
    "values that are free before they are read": (
        False,
        "        token = warpgroup_mma(",
        "        gl_mbarrier.arrive(v_free.index(slot), count=1)\n        token = warpgroup_mma(",
        WRONG,
    ),
    "keys that are free for one group": (
        False,
        "init(k_free.index(i), count=2)",
        "init(k_free.index(i), count=1)",
        "k.* has tile|more arr",
    ),
    "keys that are free for three groups": (
        False,
        "init(k_free.index(i), count=2)",
        "init(k_free.index(i), count=3)",
        "for ever",
    ),
    "no first turn": (False, "    if GROUP == 1:\n        pass_turn(GROUP)\n", "", "for ever"),
    "a last turn for nobody": (False, "elif t < 5 - 1:", "else:", "nobody takes"),
    "a turn that is passed twice": (False, "        take_turn(GROUP, q_full)\n", "", "twice"),
    "no wait for what keys are divided by": (True, SCALES, "pass", "scales.* has tile"),
    "what keys are divided by, read behind its turn": (
        True,
        "        s = s * gl.expand_dims(by_key, 0)",
        "        by_key = scales.index(slot).load(gl.SliceLayout(0, mma))\n        s = s * gl.expand_dims(by_key, 0)",
        "scales.* has tile",
    ),
    "keys that are asked for behind the wait for them": (True, "n = i - 1", "n = i - STAGES", "for ever"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_in_one_place_is_seen(name: str) -> None:
    normed, old, new, said = BROKEN[name]
    with pytest.raises(Wrong, match=said):
        States(traced(normed, 5, 2, old, new)).explore()


def test_a_ring_of_one_slot_is_refused_where_keys_are_divided() -> None:
    """The warps that load would wait for a tile before they ask for it."""
    with pytest.raises(AssertionError):
        traced(True, 3, 1)
    with pytest.raises(Wrong, match="for ever"):
        States(traced(True, 3, 1, "gl.static_assert(STAGES > 1)", "pass")).explore()
    with pytest.raises(Unsupported, match="a schedule of 1 slots"):
        triton.program(mugraphs.attention_roles()[0], [LaunchSchedule(4, 1, specialized=True), None])


def test_what_does_not_iterate_has_no_such_form() -> None:
    with pytest.raises(Unsupported, match="a kernel without a loop of known sizes"):
        program(False, 1)


# ---------------------------------------------------------------- the computed numbers


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("loop", "tile", "stages"), [(2, 64, 3), (3, 128, 2), (5, 64, 2), (4, 128, 4), (7, 64, 3)])
def test_the_blocks_compute_parts_of_attention(normed: bool, loop: int, tile: int, stages: int) -> None:
    """All blocks of the first kernel, in half precision, and float64: the largest score, the sum
    and the unnormalised output of each part of the keys."""
    made, splits, rng = program(normed, loop, tile), 2, np.random.default_rng(loop)
    launch = made.launches[0]
    inputs = {b.name: rng.normal(size=b.shape).astype(b.dtype) for b in made.buffers if b.role == "input"}
    found = {b.name: np.full(int(b.elements), np.nan) for b in made.buffers if b.role != "input"}
    matrices = [Matrix(inputs[b].reshape(m.shape), m.tile) for b, m in zip(launch.buffers, launch.maps, strict=False)]
    results = [Pointer(found[name]) for name in launch.buffers[len(matrices) :]]
    for ids in product(*map(range, map(int, (*launch.grid, 1, 1)[:3]))):
        Block(made.source, ids).run(launch.name, *matrices, *results, STAGES=stages)
    q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
    if normed:
        q, k = (x / np.sqrt((x * x).mean(-1, keepdims=True)) for x in (q, k))
    parts = (
        np.einsum("hqd,hkd->hqk" if normed else "hqd,hdk->hqk", q, k).reshape(1, 256, splits, -1).transpose(0, 2, 1, 3)
    )
    top = parts.max(-1, keepdims=True)
    weights = np.exp(parts - top)
    wanted = weights @ v.reshape(1, splits, -1, 64), weights.sum(-1, keepdims=True), top
    for name, exact in zip(launch.buffers[len(matrices) :], wanted, strict=True):
        buffer = made.buffer(name)
        values = found[name].reshape([buffer.shape[i] for i in buffer.order]).transpose(np.argsort(buffer.order))
        assert np.abs(values - exact).max() < 2e-3 * np.abs(exact).max()


def test_a_block_that_hangs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in itself: a turn that is never passed."""
    monkeypatch.setattr("gluon_blocks.LONGEST", 0.2)
    made = program(False, 3)
    launch = made.launches[0]
    block = Block(made.source.replace("    if GROUP == 1:\n        pass_turn(GROUP)\n", ""))
    matrices = [Matrix(np.zeros(each.shape, np.float16), each.tile) for each in launch.maps]
    with pytest.raises(Hang):
        block.run(launch.name, *matrices, *[Pointer(np.full(1 << 18, np.nan))] * 3, STAGES=2)


def test_keys_in_rows_are_turned_also_where_tiles_are_square() -> None:
    for normed, turned in ((False, False), (True, True)):
        assert ("k.index(slot).permute((1, 0))" in program(normed, 2).source) == turned


# ---------------------------------------------------------------- the compiled code


@cache
def kernel(normed: bool, tile: int) -> CompiledKernel:
    return compiled(program(normed, 4, tile), 90)[0]


FORMS = pytest.mark.parametrize(("normed", "tile"), [(False, 64), (False, 128), (True, 64), (True, 128)])


@FORMS
def test_a_group_meets_before_it_says_that_it_is_done(normed: bool, tile: int) -> None:
    """One thread arrives for its group: all of them must have read and written before, and a
    barrier of 128 threads stands between."""
    lines = [line.strip() for line in kernel(normed, tile).ptx.splitlines()]
    arrivals = [i for i, line in enumerate(lines) if "mbarrier.arrive.shared" in line]
    assert len(arrivals) == 4 + normed
    for i in arrivals:
        met = max(k for k in range(i) if re.match(r"bar\.sync\s+\d+, 128", lines[k]))
        between = " ".join(lines[met + 1 : i])
        assert not re.search(r"ld\.|st\.|wgmma|bra", between), between
    for i, line in enumerate(lines):  # a slot is asked for by one thread, when all have read it
        if "cp.async.bulk.tensor" in line:
            met = max(k for k in range(i) if re.match(r"bar\.sync\s+\d+, 128", lines[k]))
            assert not re.search(r"ld\.shared|st\.shared|wgmma|mbarrier.try_wait", " ".join(lines[met + 1 : i]))


@FORMS
def test_turns_have_barriers_of_their_own(normed: bool, tile: int) -> None:
    numbers = re.findall(r"bar(?:rier)?\.(?:sync|arrive)(?:\.\w+)*\s+(\d+)(?:, (\d+))?", kernel(normed, tile).ptx)
    assert {int(n) for n, threads in numbers if threads == "256"} == {8, 9}
    assert {int(n) for n, threads in numbers if threads != "256"}.isdisjoint({8, 9})
    assert max(int(n) for n, _ in numbers) < LARGEST_CLUSTER


@FORMS
def test_registers_are_enough_for_all_groups_at_once(normed: bool, tile: int) -> None:
    """A group that asks for more registers waits until others have given up as many: their sum, at
    the start and during the run, is at most that of a block."""
    text = kernel(normed, tile).ptx
    threads, each = (int(re.search(rf"\.{word} (\d+)", text)[1]) for word in ("reqntid", "maxnreg"))  # type: ignore[index]
    changes = re.findall(r"setmaxnreg\.(inc|dec)\S*\s+(\d+)", text)
    waiting = min(int(n) for word, n in changes if word == "dec")
    alone, groups = sorted({int(n) for word, n in changes if word == "inc"}, reverse=True)
    loads = max(int(n) for word, n in changes if word == "dec")
    assert threads == 3 * THREADS
    assert alone * THREADS + waiting * 2 * THREADS <= each * threads
    assert loads * THREADS + groups * 2 * THREADS <= each * threads
    assert loads >= 24
    assert groups == 144


@FORMS
def test_no_register_is_kept_in_memory(normed: bool, tile: int, tmp_path: Path) -> None:
    import triton as package

    (tmp_path / "cubin").write_bytes(kernel(normed, tile).cubin)
    tool = Path(package.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said: Any = subprocess.run(
        [tool, "-res-usage", tmp_path / "cubin"], capture_output=True, text=True, check=True
    ).stdout
    assert f"REG:{program(normed, 4, tile).launches[0].registers} STACK:0" in said
    assert "LOCAL:0" in said
