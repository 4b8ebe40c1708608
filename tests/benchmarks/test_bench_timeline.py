"""The kernels that note times are the generated ones, and they compile."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
from scripts import ROOT, script

from models.workloads import PAPER
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.emit.tune import earlier, overlapped, scheduled
from taso_mirage.mugraph.search import superoptimize

pytest.importorskip("triton")


@pytest.mark.sampled(3)
def test_every_kernel_of_a_program_notes_its_phases() -> None:
    timeline = script("kernel_timeline")
    found = superoptimize(PAPER["gqa"](batch=8).graph(), best=8)
    program = overlapped(next(p for p in (each.program() for each in found) if len(p.launches) == 2))
    program = scheduled(program, 1, earlier(program.launches[1])[1])
    times = TritonBuffer("times", "int64", (1 << 20,), "input", (0,))
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
    for loop, body in zip(loops, noting.source.split("@triton.jit")[1:], strict=True):
        assert body.count("gdc_launch_dependents()") == (1 if loop else 2)
        order = ["ts_entered = ", "gdc_wait()", "ts_waited = ", "tl.load("]
        order += ["for t in ", "ts_loop = "] if loop else []
        order += ["tl.store(out", "tl.debug_barrier()", "ts_stored = ", "ts_block = TIMES + (tl.program_id(0) + "]
        places = [body.index(each) for each in order]
        assert places == sorted(places)
        phases = [phase for phase in timeline.PHASES if loop or phase != "loop"]
        stored = [f"tl.store(ts_block + {timeline.PHASES.index(phase)}, ts_{phase})" for phase in phases]
        assert [line.strip() for line in body.splitlines() if "tl.store(ts_block" in line][:-1] == stored


def test_blocks_are_counted_by_the_processors_that_have_them() -> None:
    torch = pytest.importorskip("torch")
    timeline = script("kernel_timeline")
    noted = torch.tensor([[1000, 2000, 0, 5000, 7], [1500, 2500, 0, 4000, 7], [1200, 2100, 0, 4500, 130]])
    found = timeline.phases(noted, 1000)
    assert found == {
        "entered": [0.0, 0.2, 0.5],
        "waited": [1.0, 1.1, 1.5],
        "stored": [3.0, 3.5, 4.0],
        "processors": {1: 1, 2: 1},
    }


def test_of_each_peer_the_least_time_counts_without_the_start_of_a_graph() -> None:
    tables = script("kernel_tables")
    row = {
        "baselines": {"eager": 30.0, "torch.compile": 28.0},
        "before": {"calls": 2, "baselines": {"eager": 32.0, "SDPA": 40.0}},
    }
    assert tables._peers(row) == {
        "eager": 32.0 - tables.START / 2,
        "torch.compile": 28.0,
        "SDPA": 40.0 - tables.START / 2,
    }
    assert tables._peers({"baselines": {"eager": 30.0}}) == {"eager": 30.0}


def test_runs_are_merged_by_the_least_time_of_each_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    bench = importlib.import_module("kernels_h100")
    assert bench.least({"eager": 3.0, "SDPA": 2.0}, {"eager": 4.0, "torch.compile": 5.0}) == {
        "eager": 3.0,
        "SDPA": 2.0,
        "torch.compile": 5.0,
    }
    old = {"ours": 3.0, "calls": 64, "baselines": {"eager": 4.0}, "before": {"calls": 2, "baselines": {"SDPA": 9.0}}}
    new = {"ours": 2.0, "calls": 66, "baselines": {"eager": 5.0}}
    assert bench.merged(new, old) == new | {"baselines": {"eager": 4.0}, "before": old["before"]}
    assert bench.merged(new, {"ours": 3.0, "baselines": {"eager": 4.0}}) == new  # of a graph without a number of calls
    assert bench.merged(new, {}) == new
