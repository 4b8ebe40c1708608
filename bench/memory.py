"""Memory over many calls of the API in one process: `python bench/memory.py -o
bench/results/memory-cpu2.json`.

A random graph in every call, all different, with a short budget; each tenth is measured. After
each hundredth call: the resident memory of this process and of the one with the runtime, and the
objects that Python's collector knows. Memory is flat where the last half of the calls adds no more
than MORE of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "harness")]

import onnx  # noqa: E402
import psutil  # noqa: E402
from fuzz.generated.model import random_model  # noqa: E402

import taso_mirage  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402

CALLS, EVERY = 1000, 100
BUDGET = 0.5
"""Seconds of a call."""
MORE = 0.05
"""How much more memory the second half of the calls may take."""


def row(call: int) -> dict[str, int]:
    """Counts of objects and bytes of memory after a call."""
    gc.collect()
    own = psutil.Process()
    child = sum(each.memory_info().rss for each in own.children(recursive=True))
    return {"calls": call, "resident": own.memory_info().rss, "runtime": child, "objects": len(gc.get_objects())}


def measured(calls: int, every: int, budget: float) -> dict[str, Any]:
    start, rows = time.monotonic(), []
    for call in range(1, calls + 1):
        model = onnx.load_from_string(random_model(call))
        taso_mirage.optimize(model, budget=budget, kernels="off", measure=call % 10 == 0)
        if call % every == 0:
            rows.append(row(call))
            print(rows[-1], flush=True)
    half, last = rows[len(rows) // 2 - 1], rows[-1]
    return {
        "bench": "memory",
        "device": runtime.device(),
        "versions": {"taso-mirage": __version__, "onnxruntime": runtime.child_version()},
        "rows": rows,
        "flat": all(last[name] <= (1 + MORE) * half[name] for name in ("resident", "runtime", "objects")),
        "seconds": round(time.monotonic() - start),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--budget", type=float, default=BUDGET)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TASO_MIRAGE_CACHE"] = folder
        found = measured(options.calls, options.every, options.budget)
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if found["flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
