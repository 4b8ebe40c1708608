"""Where the time of a call goes: generated kernels that note, for every block, when it enters, may
load, ends its loop and has issued its stores.

`kernels_h100.py` writes it beside each row. The blocks read the GPU's global timer (32 ns steps on
an H100); the calls follow each other in a CUDA graph that goes round all sets of inputs, as they do
when they are timed, and figures are of one in the middle.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from taso_mirage.emit.compile import load_source
from taso_mirage.emit.gpu.program import TritonProgram

PHASES = ("entered", "waited", "loop", "stored")
FIELDS = 8
"""Numbers that a block has room for: its phases, and the processor that it ran on."""
CALLS = 16
"""Calls in the graph, at least."""
TIMER = "tl.extra.cuda.globaltimer()"
BLOCK = "tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))"


def stamped(source: str) -> str:
    """A generated module whose functions take a tensor to note times in before their other
    arguments, `launch` one for each of them."""
    return "\n".join(_stamped(source.split("\n")))


def _stamped(lines: Sequence[str]) -> Iterator[str]:
    inside = loop = waits = ""
    for line in lines:
        if inside and not line:
            yield from _noted(bool(loop))
            inside = ""
        if loop == "open" and not line.startswith("     "):
            loop = "closed"
            yield f"    ts_loop = {TIMER}"
        if waits and not line.startswith("     "):
            waits = ""
            yield f"    ts_waited = {TIMER}"
        if line.startswith("    for t in"):
            loop = "open"
        if line.startswith("def kernel_"):
            inside, loop = line, ""
            yield line.replace("(", "(TIMES, ", 1)
            yield f"    ts_entered = {TIMER}"
            continue
        if called := re.match(r"    kernel_(\d+)\[", line):
            line = line.replace("](", f"](TIMES[{called[1]}], ", 1)
        yield line.replace("def launch(", "def launch(TIMES, ").replace("if OVERLAP:", "if True:")
        if "gdc_wait" in line:
            waits = line


def _noted(loops: bool) -> Iterator[str]:
    yield "    tl.debug_barrier()"
    yield f"    ts_stored = {TIMER}"
    yield f"    ts_block = TIMES + ({BLOCK}) * {FIELDS}"
    for i, phase in enumerate(PHASES):
        if phase != "loop" or loops:
            yield f"    tl.store(ts_block + {i}, ts_{phase})"
    yield f"    tl.store(ts_block + {len(PHASES)}, tl.extra.cuda.smid().to(tl.int64))"


def timeline(program: TritonProgram, sets: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Microseconds: `call` from the end of one call to the end of the next; for every launch its
    phases, as the least, median and largest of its blocks, from the end of the call before; and how
    many processors had how many of its blocks."""
    import torch

    with TemporaryDirectory() as folder:
        module = load_source(stamped(program.source), Path(folder), "stamped")
        times = [
            [torch.zeros(x.blocks, FIELDS, dtype=torch.int64, device="cuda") for x in program.launches]
            for _ in range(max(CALLS, len(sets)))
        ]
        module.launch(times[0], *sets[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [module.launch(each, *sets[i % len(sets)]) for i, each in enumerate(times)]
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        del kept
    ends = [int(each[-1][:, PHASES.index("stored")].max()) for each in times]
    middle = len(times) // 2
    return {
        "call": (ends[-1] - ends[1]) / (len(times) - 2) / 1e3,
        "launches": [phases(noted.cpu(), ends[middle - 1]) for noted in times[middle]],
    }


def phases(noted: Any, start: int) -> dict[str, Any]:
    """The times that the blocks of a launch noted, in microseconds from `start`: the least, the
    median and the largest of every phase."""
    found: dict[str, Any] = {}
    for i, phase in enumerate(PHASES):
        values = sorted((noted[:, i] - start).tolist())
        if noted[0, i]:
            found[phase] = [values[k] / 1e3 for k in (0, len(values) // 2, -1)]
    beside = Counter(noted[:, len(PHASES)].tolist())
    return found | {"processors": dict(sorted(Counter(beside.values()).items()))}
