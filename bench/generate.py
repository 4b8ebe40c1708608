"""The generator and the verifier: seconds and memory of family `taso` before proofs, and of verifying the shipped library.

    python bench/generate.py [--ops 3 4] [--workers 2] [--no-verify]

Prints a table and writes bench/results/generate-cpu2.json; the unit is seconds. Every row runs in a fresh process; peak memory
is that process's. The baseline is TASO's own generator (public C++ code, one thread,
measured once: 249 s and 7.1 GB for 3 operators; it cannot do 4).
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from taso_mirage import __version__  # noqa: E402

PROPOSE = """
import json, resource, sys, time
from taso_mirage.generate.candidates import propose
start = time.perf_counter()
found = propose("taso", int(sys.argv[1]), 0)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"seconds": time.perf_counter() - start, "gigabytes": peak, "counts": found.counts}))
"""
TASO = {3: 249.0}
BARS = {3: (20.0, 0.5), 4: (300.0, 3.0)}


def proposed(ops: int) -> dict[str, Any]:
    """Enumeration, equations, pruning and joins of family taso, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", PROPOSE, str(ops)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    bar = f"bar {BARS[ops][0]:g} s and {BARS[ops][1]:g} GB" if ops in BARS else ""
    return {
        "case": f"taso, {ops} operators, before proofs",
        "ours": round(found["seconds"], 2),
        "baselines": {"TASO's generator": TASO[ops]} if ops in TASO else {},
        "gigabytes": round(found["gigabytes"], 2),
        "counts": found["counts"],
        "note": bar,
    }


def verified(workers: int) -> dict[str, Any]:
    """`taso-mirage substitutions verify` on everything that is shipped."""
    command = [sys.executable, "-m", "taso_mirage.cli", "substitutions", "verify", "--workers", str(workers)]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    note = done.stdout.strip().splitlines()[-1] + f"; {workers} workers; bar 300 s"
    return {"case": "verify the library", "ours": round(time.perf_counter() - start, 1), "baselines": {}, "note": note}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, nargs="*", default=[3, 4])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "generate-cpu2.json")
    options = parser.parse_args()
    rows = [proposed(ops) for ops in options.ops]
    if not options.no_verify:
        rows.append(verified(options.workers))
    for row in rows:
        print(f"{row['case']:40} {row['ours']:8.1f} s  {row.get('gigabytes', '')}  {row['note']}")
    versions = {"taso-mirage": __version__, "python": platform.python_version()}
    found = {"bench": "generate", "device": "cpu2", "versions": versions, "unit": "s", "rows": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
