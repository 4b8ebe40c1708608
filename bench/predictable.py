"""A check that a command gives the same graph each time: cold runs on the machine as it is, and as
many beside busy processes.

    python bench/predictable.py [NAME or FILE.onnx ...] [--runs 10] [--beside 2] [--budget 60]

Every run is a process with a cache of its own, which is empty. Two graphs are the same if their
structure is: operators, attributes, types and edges, whatever the names. Kernels count separately,
by the operators of their regions. Prints and writes bench/results/predictable-NAME.json by model
and by kind of run: how many distinct graphs there were, also up to the order of operands that
commute, and together with their kernels, which part of the runs gave the most frequent one (over
both kinds, too), how often the original was kept, and the gain of each distinct graph by CPU time
of one thread, all in turn. A model takes 2 x RUNS x BUDGET seconds, and a few more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import onnx  # noqa: E402

import models  # noqa: E402
from models.__main__ import write  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.machine import processor_and_cores  # noqa: E402
from taso_mirage.ir.model import Model, random_inputs  # noqa: E402
from taso_mirage.ir.terms import Node  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.load import observed_load  # noqa: E402
from taso_mirage.measure.target import CPU  # noqa: E402
from taso_mirage.measure.timing import compared_times  # noqa: E402
from taso_mirage.onnx_io import load  # noqa: E402
from taso_mirage.onnx_io.kernels import KERNEL  # noqa: E402
from taso_mirage.search.config import Config, representative  # noqa: E402
from taso_mirage.search.orders import commuting  # noqa: E402

BURN = "while True: sum(i * i for i in range(10000))"
LATE = 30
"""Seconds that a run may take longer than twice its budget."""
SECONDS = 4.0
"""The seconds of the comparison by CPU time."""


def structure(model: Model, ordered: bool = True) -> str:
    """A digest of a model's graph that names do not change; numbers of weights are not in it, and
    unless it is `ordered` neither is the order of operands that commute."""
    digests: dict[Node, str] = {}
    for i, node in enumerate(model.nodes()):
        attrs = [] if node.op in ("input", "weight") else [[k, _said(v)] for k, v in node.attrs]
        place = [i for i, each in enumerate(model.graph.inputs) if each is node]
        args = [digests[a] for a in node.args]
        row = [node.op, str(node.type), attrs, place, args if ordered or not commuting(node) else sorted(args)]
        digests[node] = hashlib.sha256(json.dumps(row).encode()).hexdigest()
    return hashlib.sha256("".join(digests[o] for o in model.graph.outputs).encode()).hexdigest()[:12]


def _said(value: Any) -> str:
    """An attribute without places in memory, and without the name of a kernel, which depends on its
    schedule."""
    array = value.numpy() if hasattr(value, "numpy") else value
    if isinstance(array, np.ndarray):
        return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return str(value) if isinstance(value, str | int | float | tuple | bool) else type(value).__name__


def kernels(path: Path) -> list[str]:
    """The regions of a written model that have kernels at fixed sizes: their number, and their
    operators."""
    model = onnx.load(path, load_external_data=False)
    operators = {each.name: " ".join(node.op_type for node in each.node) for each in model.functions}
    calls = [node.op_type for node in model.graph.node if KERNEL.fullmatch(node.op_type)]
    return sorted(f"{count} of {region}" for region, count in Counter(operators[name] for name in calls).items())


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run processes during the block that compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def cold(path: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One run with an empty cache: its graph, and its report."""
    folder.mkdir()
    made, began = folder / "made.onnx", time.monotonic()
    asked = ["optimize", path, "-o", made, "--budget", options.budget, "--kernels", options.kernels, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "taso_mirage.cli", *map(str, asked)],
        capture_output=True,
        text=True,
        timeout=2 * options.budget + LATE,
        env=os.environ | {"TASO_MIRAGE_CACHE": str(folder / "cache")},
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    result = next((each for each in said if each.get("event") == "result"), None)
    if result is None or not made.exists():
        return {"graph": f"exit {done.returncode}", "kept": True, "note": done.stderr.strip()[-200:]}
    return {
        "graph": structure(load(made)),
        "unordered": structure(load(made), ordered=False),
        "kernels": kernels(made),
        "kept": not result["changed"],
        "nodes": result["nodes"]["after"],
        "ratio": None if result["time"] is None else round(result["time"]["ratio"], 3),
        "seconds": round(time.monotonic() - began, 1),
        "notes": result["notes"],
        "path": str(made),
    }


def counted(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far some runs agree."""
    graphs = Counter(run["graph"] for run in runs)
    whole = Counter((run["graph"], *run.get("kernels", ())) for run in runs)
    return {
        "runs": len(runs),
        "distinct": len(graphs),
        "distinct_up_to_order": len({run.get("unordered", run["graph"]) for run in runs}),
        "distinct_with_kernels": len(whole),
        "without_kernels": sum(not run.get("kernels") for run in runs),
        "modal_share": round(graphs.most_common(1)[0][1] / len(runs), 3) if runs else None,
        "kept": sum(run["kept"] for run in runs),
        "graphs": dict(graphs.most_common()),
        "nodes": sorted({run["nodes"] for run in runs if "nodes" in run}),
        "ratios": [run.get("ratio") for run in runs],
        "seconds": [run.get("seconds") for run in runs],
    }


def gains(path: Path, runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """For each distinct graph, its gain over the original, by CPU time of one thread; kernels that
    it carries do not run."""
    first = {run["graph"]: run["path"] for run in reversed(runs) if "path" in run}
    model = load(path)
    inputs = random_inputs(model, 0, representative(model, Config()))
    sessions = [runtime.Session(Path(each).read_bytes(), CPU.serial) for each in (path, *first.values())]
    before, *others = runtime.interleaved(sessions, inputs, SECONDS * len(sessions), patience=np.inf)
    return {
        name: round(compared_times([before], [times], [1.0]).ratio, 3)
        for name, times in zip(first, others, strict=True)
    }


def row(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All runs of a model, each kind in its turn, so that a drift of the machine meets both."""
    runs: dict[str, list[dict[str, Any]]] = {"quiet": [], "busy": []}
    with tempfile.TemporaryDirectory() as name:
        for i in range(options.runs):
            for kind, count in (("quiet", 0), ("busy", options.beside)):
                with busy(count):
                    runs[kind].append(cold(path, Path(name) / f"{kind}{i}", options))
                print(path.stem, kind, i, {k: v for k, v in runs[kind][-1].items() if k != "path"}, flush=True)
        every = [*runs["quiet"], *runs["busy"]]
        found = {kind: counted(each) for kind, each in runs.items()}
        modal = Counter(run["graph"] for run in every).most_common(1)[0][0]
        agree = {kind: round(sum(r["graph"] == modal for r in each) / len(each), 3) for kind, each in runs.items()}
        return {"case": path.stem, **found, "all": agree, "by_cpu_time": gains(path, every)}


def files(names: Sequence[str], folder: Path) -> Iterator[Path]:
    """The models: files as they are, others built."""
    for name in names:
        path = Path(name)
        if path.suffix != ".onnx":
            path = folder / f"{name}.onnx"
            write(models.build(name, small=True), path)
        yield path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[str(ROOT / "models" / "mini_transformer.onnx")])
    parser.add_argument("--runs", type=int, default=10, help="of each kind")
    parser.add_argument("--beside", type=int, default=2, help="busy processes")
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--kernels", default="search")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args()
    load_before = observed_load()
    with tempfile.TemporaryDirectory() as folder:
        for path in files(options.models, Path(folder)):
            found = {
                "device": processor_and_cores(),
                "versions": {
                    "taso-mirage": __version__,
                    "onnxruntime": runtime.child_version(),
                    "onnx": onnx.__version__,
                },
                "budget": options.budget,
                "beside": options.beside,
                "cores_got_before": round(load_before.got, 2),
                **row(path, options),
            }
            print(json.dumps(found, indent=1))
            (options.output / f"predictable-{path.stem}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
