"""Hostile input and accidents by the thousand, through the command line: `python bench/soak.py -o
bench/results/soak-cpu2.json`.

Mutated and hostile models, random graphs with both strategies, interrupts at any moment, tampered
caches and checkpoints, broken texts (rules, certificates, plans), damaged archives, and calls to
the system that fail. Each case has a seed; `--only KIND --first SEED --count 1` runs one again.
Nothing may end in a traceback, a crash or a hang, read, write or start anything forbidden, leave a
process or a lock behind, or compute something else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "harness")]

from taso_mirage import __version__  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.system.workers import Workers  # noqa: E402

COUNTS = {
    "fault": 300,
    "certificate": 2000,
    "replaced": 1000,
    "model": 20000,
    "graph": 10000,
    "interrupt": 500,
    "cache": 1000,
    "text": 3000,
    "archive": 1000,
    "value": 3000,
    "torch": 300,
}
"""Cases of a full run; every second random graph is searched with the other strategy."""
LIMIT = 600.0
"""Seconds that a case may take."""
SLOWEST = 5
"""The number of the slowest cases that are named."""
FIRST = ("onnx", "numpy", "taso_mirage.cli", "fuzz.judge")


def soak(counts: dict[str, int], first: int, workers: int) -> dict[str, Any]:
    """The summary of so many cases of each kind: how they ended, the slowest, and the errors."""
    start = time.monotonic()
    ended: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    seconds: list[tuple[float, str, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        processes = Workers("fuzz.judge:judged", workers, LIMIT, FIRST)
        try:
            jobs = [(kind, seed) for kind, count in counts.items() for seed in range(first, first + count)]
            asked = [processes({"kind": kind, "seed": seed, "folder": folder}) for kind, seed in jobs]
            for (kind, seed), answer in zip(jobs, asked, strict=True):
                found = answer.result() or {"code": "none", "wrong": ["a crash or a hang"], "seconds": LIMIT}
                ended[f"{kind}: {found['code']}"] += 1
                seconds.append((found["seconds"], kind, seed))
                if found["wrong"]:
                    wrong.append({"kind": kind, "seed": seed, "wrong": found["wrong"]})
                    print(f"{kind} {seed}: {found['wrong']}", flush=True)
        finally:
            processes.close()
    slowest = [{"seconds": s, "kind": kind, "seed": seed} for s, kind, seed in sorted(seconds, reverse=True)[:SLOWEST]]
    return {
        "bench": "soak",
        "device": runtime.device(),
        "versions": {"taso-mirage": __version__, "onnxruntime": runtime.child_version()},
        "cases": counts,
        "ended": dict(sorted(ended.items())),
        "slowest": slowest,
        "wrong": wrong,
        "seconds": round(time.monotonic() - start),
    }


def joined(found: dict[str, Any], others: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary of several runs over other cases."""
    every = [found, *others]
    cases, ended = Counter[str](), Counter[str]()
    for each in every:
        cases.update(each["cases"])
        ended.update(each["ended"])
    slowest = sorted((one for each in every for one in each["slowest"]), key=lambda one: -one["seconds"])
    return {
        **found,
        "cases": dict(cases),
        "ended": dict(sorted(ended.items())),
        "slowest": slowest[:SLOWEST],
        "wrong": [one for each in every for one in each["wrong"]],
        "seconds": sum(each["seconds"] for each in every),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*COUNTS], help="only this kind")
    parser.add_argument("--count", type=int, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--join", type=Path, nargs="+", default=(), help="results of runs over other cases, to add")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    counts = {kind: options.count or count for kind, count in COUNTS.items() if options.only in (None, kind)}
    others = [json.loads(file.read_text()) for file in options.join]
    found = joined(soak(counts, options.first, options.workers), others)
    print(json.dumps({key: value for key, value in found.items() if key != "wrong"}, indent=2))
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
