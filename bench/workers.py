"""A folder of ten models on one and on two workers of a Dask scheduler: whether the files are
equal, and the wall time.

    python bench/workers.py

The workers are processes of this machine with separate homes and caches, each new and pinned to a
core of its own, so that two have twice the cores of one, as two machines would. The time begins
when the workers are there, and contains that in which they import the package. `limit` is the same
ratio for a loop in Python that shares nothing: 0.5 on two idle cores, and more where the cores
share their units or other processes use them.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import distributed
import onnxruntime

from taso_mirage.devices.machine import cores, processor_and_cores
from taso_mirage.folder import Folder
from taso_mirage.measure.cluster import cluster
from taso_mirage.version import __version__

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "harness")]
from dask_workers import pool  # noqa: E402

from models import build  # noqa: E402
from models.__main__ import write  # noqa: E402

MODELS = (
    *("bert", "llama", "llama_decode", "llama_lora", "vit", "mini_transformer"),
    *("resnet18", "mobilenet_v2", "light_squeezenet", "light_shufflenet"),
)
"""Different models: equal ones would share the memos of a worker's process."""
EFFORT = "quick"
ORDER = (1, 2, 2, 1)
"""The numbers of workers of the runs, so that a drift of the machine affects both."""
OUT = Path(__file__).parent / "results" / f"workers-cpu{cores()}.json"


LOOP = "for i in range({count}): i * i % 7"
LOOPS, COUNT = 3, 60_000_000
"""The numbers of rounds and of steps of the loop."""


def loop_seconds(processes: int) -> float:
    """The wall time of all steps of the loop, in equal parts by so many pinned processes."""
    command, start = [sys.executable, "-c", LOOP.format(count=COUNT // processes)], time.perf_counter()
    cores_of = sorted(os.sched_getaffinity(0))[:processes]
    started = [subprocess.Popen(["taskset", "-c", str(core), *command]) for core in cores_of]
    for each in started:
        each.wait()
    return time.perf_counter() - start


def limit() -> float:
    """The ratio of the loop's wall times in two processes and in one, in alternation."""
    seconds = [(loop_seconds(1), loop_seconds(2)) for _ in range(LOOPS)]
    return sum(two for _, two in seconds) / sum(one for one, _ in seconds)


def measured(zoo: Path, folder: Path, workers: int) -> dict[str, Any]:
    """The seconds, load and digests of one run of a folder on so many new workers."""
    with pool(folder / "pool", workers, pinned=True) as there:
        asked = Folder(zoo, folder / "out", {"effort": EFFORT, "scheduler": there.address})
        with cluster(there.address, asked.target) as used, asked.locked():
            load, start = os.getloadavg()[0], time.perf_counter()
            rows = [row for row, _ in asked.optimize_on(used)]
            seconds = time.perf_counter() - start
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted((folder / "out").glob("*.onnx"))}
    return {
        "workers": workers,
        "seconds": seconds,
        "load_before": load,
        "states": {row["model"]: row["state"] for row in rows},
        "seconds_of_models": {row["model"]: row["seconds"] for row in rows},
        "digests": digests,
    }


def main() -> None:
    with TemporaryDirectory() as name:
        zoo = Path(name) / "zoo"
        zoo.mkdir()
        for each in MODELS:
            write(build(each, small=True, seed=0), zoo / f"{each}.onnx")
        before = limit()
        runs = [measured(zoo, Path(name) / str(i), workers) for i, workers in enumerate(ORDER)]
        limits = [before, limit()]
    seconds = {n: [run["seconds"] for run in runs if run["workers"] == n] for n in (1, 2)}
    digests = [run.pop("digests") for run in runs]
    found = {
        "device": processor_and_cores(),
        "versions": {
            "taso-mirage": __version__,
            "onnxruntime": onnxruntime.__version__,
            "distributed": distributed.__version__,
        },
        "effort": EFFORT,
        "models": len(MODELS),
        "written": len(digests[0]),
        "same_bytes": all(each == digests[0] for each in digests) and len(digests[0]) == len(MODELS),
        "ratio": sum(seconds[2]) / sum(seconds[1]),
        "limits": limits,
        "runs": runs,
    }
    OUT.write_text(json.dumps(found, indent=2) + "\n")
    for run in runs:
        print(f"{run['workers']} workers: {run['seconds']:.1f} s, load before {run['load_before']:.1f}")
    print(f"limit of the machine before and after: {limits[0]:.3f} and {limits[1]:.3f}")
    print(f"ratio {found['ratio']:.3f}, same bytes: {found['same_bytes']}, {found['written']} files")


if __name__ == "__main__":
    main()
