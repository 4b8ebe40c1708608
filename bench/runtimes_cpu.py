"""`optimize --target auto` beside ONNX Runtime and OpenVINO on a CPU (extra `openvino`).

    python bench/runtimes_cpu.py [NAME ...] [--models DIR] [--small] [--budget 60] [--seconds 12]
    [--sessions 3] [--threads N]

A name is one of the models of `bench/optimize.py`, or of a file NAME.onnx in DIR. Each model is
optimized with an empty cache of costs. The original in both runtimes and the result in its own one
run in turn, and are opened `--sessions` times. Prints a line and writes
bench/results/runtimes-cpu2.json after each row (microseconds, lower quartiles; rows of models that
are not named stay).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from optimize import MODELS, in_any_runtime, loaded  # noqa: E402
from rows import Rows  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.ir.model import Model, random_inputs  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.child import in_child  # noqa: E402
from taso_mirage.measure.target import CPU, OPENVINO, on_threads, runtimes_beside  # noqa: E402
from taso_mirage.measure.tasks import device_key  # noqa: E402
from taso_mirage.onnx_io import from_ir, load  # noqa: E402
from taso_mirage.report.result import Result  # noqa: E402

OURS = "ours"
PEERS = ("onnxruntime", "openvino")


def model_of(name: str, options: argparse.Namespace) -> Model:
    file = None if options.models is None else options.models / f"{name}.onnx"
    if name in MODELS:
        proto = onnx.load_from_string(loaded(name, options.models, options.small))
        return from_ir(ir.from_proto(proto))
    return load(file)


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model: optimized, and timed beside the original in both runtimes."""
    model = model_of(name, options)
    result = in_any_runtime(model, options)
    model, other = result.original, CPU if options.threads is None else on_threads(CPU, options.threads)
    opening = {
        "onnxruntime": partial(runtime.open_in_child, model, other, source=True),
        "openvino": partial(runtime.open_in_child, model, runtimes_beside(other)[0], source=True),
    }
    if result.changed:  # the original timed against itself would show noise as a gain or a loss
        opening[OURS] = partial(runtime.open_in_child, result.model, result.target)
    times: dict[str, list[float]] = {whose: [] for whose in opening}
    for _ in range(options.sessions):
        sessions = [opened() for opened in opening.values()]
        share = options.seconds / options.sessions
        found = runtime.interleaved(sessions, random_inputs(model, 0), share, patience=np.inf)
        for taken, more in zip(times.values(), found, strict=True):
            taken += more
        sessions.clear()
    return {
        "case": name,
        **figures(times, result),
        "load": round(os.getloadavg()[0], 2),
        "seconds": round(sum(result.seconds.values()), 1),
        "notes": [note for note in result.notes if "runtime" in note],
    }


def figures(times: Mapping[str, list[float]], result: Result) -> dict[str, Any]:
    """Lower quartiles in microseconds, and how many times as fast as the faster peer the result
    is."""
    quiet = {k: float(np.percentile(t, 25)) * 1e6 for k, t in times.items()}
    quiet.setdefault(OURS, quiet["onnxruntime"])
    best = min(quiet[peer] for peer in PEERS)
    rounds = np.asarray(times["onnxruntime"]) / np.asarray(times["openvino"])
    return {
        "unit": "us",
        **{k: round(v, 1) for k, v in quiet.items()},
        "taken": "openvino" if result.target.name == "openvino" else "cpu",
        "openvino over onnxruntime": round(float(np.median(rounds)), 3),
        "over onnxruntime": round(quiet["onnxruntime"] / quiet[OURS], 3),
        "over the best": round(best / quiet[OURS], 3),
        "rounds": len(rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--models", type=Path, help="a folder of NAME.onnx")
    parser.add_argument("--small", action="store_true", help="build small configurations where there are any")
    parser.add_argument("--seconds", type=float, default=12.0, help="timing of each model")
    parser.add_argument("--budget", type=float, default=60.0, help="search of each model")
    parser.add_argument("--sessions", type=int, default=3, help="times that all models are opened for the timing")
    parser.add_argument("--threads", type=int, help="of a run; default: one for each core")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "runtimes-cpu2.json")
    options = parser.parse_args()
    there = in_child(device_key, OPENVINO, False).rpartition("openvino ")[2]
    versions = {"taso-mirage": __version__, "openvino": there, "onnxruntime": runtime.child_version()}
    asked = {"budget": options.budget, "small": options.small, "threads": options.threads}
    rows = Rows(options.output, {"bench": "runtimes", "device": runtime.device(), "versions": versions, **asked})
    rows.run(options.names, partial(row, options=options))


if __name__ == "__main__":
    main()
