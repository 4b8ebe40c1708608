"""A folder of ten models on one and on two workers of a Dask scheduler: whether the files are equal,
and the wall time.

    python bench/workers.py

The workers are processes of this machine with separate homes and caches, one core each, so that two
have twice the cores of one, as two machines would.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import distributed
import onnxruntime

from taso_mirage.devices.machine import cores, processor_and_cores
from taso_mirage.folder import Folder
from taso_mirage.measure.cluster import cluster
from taso_mirage.version import __version__

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "harness"))
from dask_workers import pool

MODELS, EFFORT = 10, "quick"
OUT = Path(__file__).parent / "results" / f"workers-cpu{cores()}.json"


def measured(zoo: Path, folder: Path, workers: int) -> dict[str, object]:
    """The seconds, load and digests of one run of a folder on so many fresh workers."""
    with pool(folder / "pool", workers, env={"OMP_NUM_THREADS": "1"}) as there:
        options = {"effort": EFFORT, "scheduler": there.address}
        warm = Folder(zoo / "warm", folder / "warm", options)  # every worker imports the package once
        asked = Folder(zoo / "models", folder / "out", options)
        with cluster(there.address, asked.target) as used:
            with warm.locked():
                list(warm.optimize_on(used))
            load, start = os.getloadavg()[0], time.perf_counter()
            with asked.locked():
                states = [row["state"] for row, _ in asked.optimize_on(used)]
            seconds = time.perf_counter() - start
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted((folder / "out").glob("*.onnx"))}
    return {"workers": workers, "seconds": seconds, "load": load, "states": states, "digests": digests}


def main() -> None:
    source = Path(__file__).parents[1] / "models" / "mini_transformer.onnx"
    with TemporaryDirectory() as name:
        zoo = Path(name) / "zoo"
        for part, count in (("warm", 4), ("models", MODELS)):
            (zoo / part).mkdir(parents=True)
            for i in range(count):
                shutil.copy(source, zoo / part / f"{i}.onnx")
        one, two = (measured(zoo, Path(name) / str(n), n) for n in (1, 2))
    found = {
        "device": processor_and_cores(),
        "versions": {
            "taso-mirage": __version__,
            "onnxruntime": onnxruntime.__version__,
            "distributed": distributed.__version__,
        },
        "models": MODELS,
        "effort": EFFORT,
        "same_bytes": one["digests"] == two["digests"],
        "seconds": {"1": one["seconds"], "2": two["seconds"]},
        "ratio": float(str(two["seconds"])) / float(str(one["seconds"])),
        "load_before": {"1": one["load"], "2": two["load"]},
        "states": {"1": one["states"], "2": two["states"]},
    }
    print(json.dumps(found, indent=2))
    OUT.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
