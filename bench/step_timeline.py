"""The kernels of one step on a GPU, also inside of a captured CUDA graph: when each ends after the
one that ended before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

STEPS = 8
"""Profiled steps; the figures are of one in the middle."""
KINDS = "kernel", "gpu_memcpy", "gpu_memset"


def timeline(step: Callable[[], object]) -> dict[str, Any]:
    """The number of launches, the microseconds from the first start to the last end, and for each
    kind of kernel (its name and grid) its count and its own microseconds: those from the latest end
    before its own end. They sum to the whole, also where kernels overlap."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            step()
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    events = sorted((e for e in events if e.get("ph") == "X" and e.get("cat") in KINDS), key=lambda e: e["ts"])
    count = len(events) // STEPS
    return of(events[count * (STEPS // 2) : count * (STEPS // 2 + 1)])


def of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The timeline of one step's events, in the order of their starts."""
    if not events:
        return {"launches": 0, "us": 0.0, "kernels": []}
    end, kinds = events[0]["ts"], dict[tuple[str, str], list[float]]()
    for each in events:
        last = each["ts"] + each["dur"]
        key = each["name"], "x".join(str(n) for n in each.get("args", {}).get("grid", ()))
        found = kinds.setdefault(key, [0, 0.0])
        found[0], found[1] = found[0] + 1, found[1] + max(last - end, 0.0)
        end = max(end, last)
    rows = [{"name": n, "grid": g, "count": int(c), "us": round(us, 2)} for (n, g), (c, us) in kinds.items()]
    rows.sort(key=lambda row: -row["us"])
    return {"launches": len(events), "us": round(end - events[0]["ts"], 1), "kernels": rows}
