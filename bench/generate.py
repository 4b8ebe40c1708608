"""The generator and the verifier: seconds and memory of family `taso` before proofs, of all
families with proofs, and of verifying the shipped library.

    python bench/generate.py [--ops 3 4] [--workers 2] [--whole DIR] [--no-verify]

Prints a table and writes bench/results/generate-cpu2.json; the unit is seconds. Every row runs in a
fresh process; peak memory is that process's. The baseline is TASO's own generator (public C++ code,
one thread, measured once: 249 s and 7.1 GB for 3 operators; it cannot do 4).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
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
PROVE = """
import json, statistics, sys, time
from pathlib import Path
from taso_mirage.rewriting.library import load_rules as load
from taso_mirage.prove.symbolic import Proved, prove_symbolic
seconds = []
for rule in load(Path(sys.argv[1])):
    try:
        sides = rule.instance()
    except Exception:
        continue  # its guard asks for numbers
    start = time.perf_counter()
    if isinstance(prove_symbolic(*sides), Proved):
        seconds.append(time.perf_counter() - start)
print(json.dumps({"seconds": statistics.median(seconds), "slowest": max(seconds), "count": len(seconds)}))
"""
TASO = {3: 249.0}
CLI = [sys.executable, "-m", "taso_mirage.cli", "substitutions"]
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


def whole(workers: int, folder: Path) -> dict[str, Any]:
    """All families at 4 operators, proofs included, into a folder."""
    command = [*CLI, "generate", "--ops", "4", "--workers", str(workers), "-o", str(folder)]
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    note = f"{workers} workers; bar 1800 s"
    case = "all families, 4 operators, with proofs"
    return {"case": case, "ours": round(seconds, 1), "baselines": {}, "note": note, "sha256": digest(folder)}


def digest(folder: Path) -> str:
    """A digest of a library: the hash of all rules, including rejected ones."""
    found = hashlib.sha256()
    for file in sorted(folder.glob("*.toml")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()


def verified(workers: int, folder: Path) -> Iterator[dict[str, Any]]:
    """`taso-mirage substitutions verify` on the whole library; and single proofs, each of a rule at
    its own typing."""
    files = [str(f) for f in sorted(folder.glob("*.toml")) if f.name != "rejected.toml"]
    start = time.perf_counter()
    done = subprocess.run([*CLI, "verify", *files, "--workers", str(workers)], cwd=ROOT, capture_output=True, text=True)
    summary = [line for line in done.stdout.splitlines() if "median" in line] or [done.stderr.strip()]
    note = f"{summary[0]}; exit code {done.returncode}; {workers} workers; bar 300 s"
    seconds = time.perf_counter() - start
    yield {"case": "verify the library", "ours": round(seconds, 1), "baselines": {}, "note": note}
    command = [sys.executable, "-c", PROVE, str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    note = f"median of {found['count']} rules, slowest {found['slowest']:.2f} s; bar 0.1 s"
    yield {"case": "one proof for every size", "ours": round(found["seconds"], 4), "baselines": {}, "note": note}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, nargs="*", default=[3, 4])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--whole", type=Path, metavar="DIR", help="generate the library too, into DIR: about 20 minutes"
    )
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "generate-cpu2.json")
    options = parser.parse_args()
    rows = [proposed(ops) for ops in options.ops]
    if options.whole is not None:
        rows.append(whole(options.workers, options.whole.absolute()))
    if not options.no_verify:
        rows += verified(options.workers, (options.whole or ROOT / "substitutions").absolute())
    for row in rows:
        print(f"{row['case']:40} {row['ours']:8.3f} s  {row.get('gigabytes', '')}  {row['note']}")
    versions = {"taso-mirage": __version__, "python": platform.python_version()}
    found = {"bench": "generate", "device": "cpu2", "versions": versions, "unit": "s", "rows": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
