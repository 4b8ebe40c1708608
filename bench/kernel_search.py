"""The kernel search: seconds until the best muGraphs of a workload are found and verified, on one
core; code generation is not in it.

    python bench/kernel_search.py [NAME ...] [--runs 3] [--best 8] [--ablation] [--compile N] [--out
    FILE]

Prints a table and writes bench/results/kernel_search-cpu2.json; the unit is seconds. Every run is a
fresh process with one thread, its imports not counted; the best of the runs counts, for the machine
is shared. Classes and edges are those of all closures of a search (the goal, and the goal with each
long reduction split), pruned terms those of the first. Tested: structures, each with 8 tests in the
field and the cases in numbers; verified: muGraphs returned. `--ablation` closes every goal without
pruning, cut short at CAP classes. The baselines are Mirage's published times (OSDI'25) for the same
program.

`--compile N` measures something else, and leaves the rest of the file as it is: the N best of each
workload are found, written as Triton programs, and compiled to cubins for sm_90 on all cores (no
GPU is needed, and Triton's cache is empty). Fits: the shared memory of every kernel is within an
H100's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from models.workloads import BEYOND, PAPER  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.cuda.device import H100  # noqa: E402

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CAP = 20_000
BUDGET = 120.0
MIRAGE = {"rmsnorm_linear": {"Mirage, 8 threads": 28.0, "Mirage, 1 thread": 183.0}}
BARS = {
    "rmsnorm_linear": 1.0,
    "gated_mlp": 1.0,
    "lora": 1.0,
    "gqa": 3.0,
    "masked_attention": 3.0,
    "qknorm": 5.0,
    "ntrans": 5.0,
}
ALL_SIX = 20.0
ALL_SIX_COMPILED = 300.0
CAPABILITY = 90

SEARCH = """
import json, sys, time
from dataclasses import asdict
from models.workloads import BEYOND, PAPER
from taso_mirage.mugraph.search import SearchOptions as Options, Search
graph = {**PAPER, **BEYOND}[sys.argv[1]]().graph()
start = time.perf_counter()
search = Search(graph, Options())
found = search.run(int(sys.argv[2]), float(sys.argv[3]))
seconds = time.perf_counter() - start
best = found[0].seconds if found else None
print(json.dumps({"seconds": seconds, "best": best, "found": len(found), **asdict(search.statistics)}))
"""
CLOSE = """
import json, sys
from models.workloads import BEYOND, PAPER
from taso_mirage.mugraph.closure import close
from taso_mirage.mugraph.labels import label
graph = {**PAPER, **BEYOND}[sys.argv[1]]().graph()
closed = close(label(graph), prune=sys.argv[2] == "prune", cap=int(sys.argv[3]))
print(json.dumps({**closed.statistics, "reached": len(closed.targets) == len(graph.outputs)}))
"""

FOUND = """
import json, sys, time
from models.workloads import BEYOND, PAPER
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.mugraph.search import superoptimize
graph = {**PAPER, **BEYOND}[sys.argv[1]]().graph()
start = time.perf_counter()
found = superoptimize(graph, best=int(sys.argv[2]), budget=float(sys.argv[3]))
print(json.dumps({"seconds": time.perf_counter() - start, "graphs": [to_json(each.graph) for each in found]}))
"""


def ran(code: str, *arguments: object) -> dict[str, Any]:
    """The output of a fresh process with one thread; the reason where it fails."""
    env = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no reason"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def searched(name: str, runs: int, best: int) -> dict[str, Any]:
    """One workload: the fastest of its runs."""
    found = [ran(SEARCH, name, best, BUDGET) for _ in range(runs)]
    failed = [each for each in found if "failed" in each]
    if failed:
        return {"case": name, **failed[0]}
    fastest = min(found, key=lambda each: each["seconds"])
    closed = ran(CLOSE, name, "prune", 2000)
    return {
        "case": name,
        "ours": round(fastest["seconds"], 3),
        "baselines": MIRAGE.get(name, {}),
        "bar": BARS.get(name),
        "runs": [round(each["seconds"], 3) for each in found],
        "best_us": None if fastest["best"] is None else round(fastest["best"] * 1e6, 2),
        "pruned": closed.get("pruned"),
        "counts": {k: v for k, v in fastest.items() if k not in ("seconds", "best")},
    }


def ablated(name: str) -> dict[str, Any]:
    """The closure of a goal, without splits, with pruning and without."""
    kept = ("seconds", "classes", "edges", "tried", "pruned", "reached", "capped", "failed")
    with_, without = ran(CLOSE, name, "prune", 2000), ran(CLOSE, name, "all", CAP)
    return {
        "case": name,
        "pruned": {k: with_[k] for k in kept if k in with_},
        "all": {k: without[k] for k in kept if k in without},
    }


def built(graph: Any) -> dict[str, Any]:
    """One muGraph as cubins: the most bytes of shared memory that a kernel of it wants, or why
    there are none."""
    from taso_mirage.emit import triton
    from taso_mirage.emit.compile import compiled
    from taso_mirage.errors import TasoMirageError
    from taso_mirage.mugraph.checkpoint import from_json

    try:
        kernels = compiled(triton.program(from_json(graph)), CAPABILITY)
    except TasoMirageError as error:
        return {"problem": str(error)}
    except Exception as error:  # Triton's own errors have no common base
        return {"problem": f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason'])[0]}"}
    return {"kernels": len(kernels), "shared": max(kernel.shared for kernel in kernels)}


def compiling(name: str, best: int, pool: Executor) -> dict[str, Any]:
    """One workload: seconds to find its best muGraphs and to compile all of them."""
    found = ran(FOUND, name, best, BUDGET)
    if "failed" in found:
        return {"case": name, **found}
    start = time.perf_counter()
    made = list(pool.map(built, found["graphs"]))
    seconds = {"search": round(found["seconds"], 2), "compile": round(time.perf_counter() - start, 2)}
    whole = [each for each in made if "shared" in each]
    return {
        "case": name,
        "ours": round(sum(seconds.values()), 2),
        "seconds": seconds,
        "found": len(made),
        "compiled": len(whole),
        "kernels": sum(each["kernels"] for each in whole),
        "fit": sum(each["shared"] <= H100.shared for each in whole),
        "problems": dict(Counter(each["problem"] for each in made if "problem" in each)),
    }


def shown_compiling(row: dict[str, Any]) -> str:
    """A row of the third table."""
    if "failed" in row:
        return f"{row['case']:22} failed: {row['failed']}"
    numbers = " ".join(f"{row[k]:9}" for k in ("found", "compiled", "kernels", "fit"))
    return f"{row['case']:22} {row['seconds']['search']:9.2f} {row['seconds']['compile']:9.2f} {numbers}  {row['problems'] or ''}"


def compile_all(names: Sequence[str], best: int) -> dict[str, Any]:
    """The part of the results that `--compile` writes."""
    cores = len(os.sched_getaffinity(0))
    heads = "".join(f"{h:>10}" for h in ("search s", "compile s", "found", "compiled", "kernels", "fit"))
    print(f"{'workload':22}{heads}")
    rows = []
    with TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
            for name in names:
                rows.append(compiling(name, best, pool))
                print(shown_compiling(rows[-1]), flush=True)
    found: dict[str, Any] = {"best": best, "cores": cores, "capability": CAPABILITY, "rows": rows}
    if {*PAPER} <= {row["case"] for row in rows if "ours" in row}:
        total = sum(row["ours"] for row in rows if row["case"] in PAPER)
        found["all_six"] = {"seconds": round(total, 1), "bar": ALL_SIX_COMPILED}
        print(f"{'all six of the paper':22} {total:9.1f}   bar {ALL_SIX_COMPILED:g} s")
    return found


def shown(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "failed" in row:
        return f"{row['case']:22} failed: {row['failed']}"
    counts, bar = row["counts"], f"bar {row['bar']:g} s" if row["bar"] else ""
    numbers = [counts[k] for k in ("classes", "edges")] + [row["pruned"]] + [counts[k] for k in ("tested", "verified")]
    predicted = "none" if row["best_us"] is None else f"{row['best_us']:.1f}"
    return f"{row['case']:22} {row['ours']:8.2f} {' '.join(f'{n:8}' for n in numbers)} {predicted:>10}  {bar}"


def shown_ablation(row: dict[str, Any]) -> str:
    """A row of the second table."""
    sides = []
    for side in (row["pruned"], row["all"]):
        if "failed" in side:
            sides.append(f"failed: {side['failed'][:40]}")
        else:
            cut = " (cut short)" if side["capped"] else ""
            goal = "" if side["reached"] else ", goal not reached"
            sides.append(f"{side['classes']:6} classes {side['edges']:7} edges {side['seconds']:8.2f} s{cut}{goal}")
    return f"{row['case']:22} {sides[0]:45} | {sides[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*PAPER, *BEYOND))}; all if left out")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--best", type=int, default=8, help="muGraphs to verify for each workload")
    parser.add_argument("--ablation", action="store_true", help="close every goal without pruning, too")
    parser.add_argument("--compile", type=int, metavar="N", help="compile the N best of each workload instead")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "kernel_search-cpu2.json")
    options = parser.parse_args()
    names = options.names or [*PAPER, *BEYOND]
    if unknown := sorted(set(names) - {*PAPER, *BEYOND}):
        parser.error(f"no workload is named {unknown[0]}")
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.compile:
        kept["compile"] = compile_all(options.names or [*PAPER], options.compile)
        options.out.write_text(json.dumps(kept, indent=1) + "\n")
        return
    heads = "".join(f"{h:>9}" for h in ("seconds", "classes", "edges", "pruned", "tested", "verified"))
    print(f"{'workload':22}{heads} {'best, us':>10}")
    rows = []
    for name in names:
        rows.append(searched(name, options.runs, options.best))
        print(shown(rows[-1]), flush=True)
    found: dict[str, Any] = {"bench": "kernel_search", "device": "cpu2", "unit": "s"}
    found["versions"] = {"taso-mirage": __version__, "python": platform.python_version()}
    found |= {"rows": rows} | {k: v for k, v in kept.items() if k == "compile"}
    if all(any(row["case"] == name and "ours" in row for row in rows) for name in PAPER):
        total = sum(row["ours"] for row in rows if row["case"] in PAPER)
        found["all_six"] = {"seconds": round(total, 2), "bar": ALL_SIX}
        print(f"{'all six of the paper':22} {total:8.2f}{'':57}bar {ALL_SIX:g} s")
    if options.ablation:
        found["ablation"] = [ablated(name) for name in names]
        print("\n" + "\n".join(map(shown_ablation, found["ablation"])))
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
