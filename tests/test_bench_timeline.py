"""The kernels that note when they do what are the generated ones, and they compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripts import script

from models.workloads import PAPER
from taso_mirage.codegen.compile import compiled
from taso_mirage.codegen.gpu.program import Buffer
from taso_mirage.codegen.tune import overlapped
from taso_mirage.kernels.search import superoptimize

pytest.importorskip("triton")


def test_every_kernel_of_a_program_notes_its_phases() -> None:
    timeline = script("kernel_timeline")
    found = superoptimize(PAPER["gqa"](batch=8).graph(), best=8)
    program = overlapped(next(p for p in (each.program() for each in found) if len(p.launches) == 2))
    times = Buffer("times", "int64", (1 << 20,), "input", (0,))
    noting = replace(
        program,
        source=timeline.stamped(program.source),
        buffers=(times, *program.buffers),
        launches=tuple(replace(each, buffers=("times", *each.buffers)) for each in program.launches),
    )
    kernels = compiled(noting, 90)
    loops = [each.loop > 1 for each in program.launches]
    assert [kernel.ptx.count("%globaltimer") for kernel in kernels] == [3 + loop for loop in loops]
    assert set(loops) == {True, False}
    assert all(f"kernel_{i}[" in noting.source and f"(TIMES[{i}], " in noting.source for i in (0, 1))
