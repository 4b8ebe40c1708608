"""Original against optimized in OpenVINO, on a CPU, with ONNX Runtime's time of the original beside
it (extra `openvino`).

    python bench/openvino_cpu.py [NAME ...] [--models DIR] [--small] [--seconds 12] [--sessions 3]
    [--budget 40]

Prints a line and writes bench/results/openvino-cpu2.json after each row (microseconds; rows of
models that are not named stay). Ours is the result of `taso-mirage optimize --target openvino`:
substitutions in standard ONNX, chosen by measurements in OpenVINO, and checked there. All sessions
run in turn and are opened `--sessions` times. (A file `openvino.py` here would hide the package.)
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from optimize import MODELS, SEQUENCE, loaded, mean  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.ir.model import random_inputs  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.child import in_child  # noqa: E402
from taso_mirage.measure.tasks import device_key  # noqa: E402
from taso_mirage.onnx_io import from_ir  # noqa: E402
from taso_mirage.pipeline import optimize_model  # noqa: E402
from taso_mirage.search.config import Config, representative  # noqa: E402
from taso_mirage.targets.openvino.target import OPENVINO  # noqa: E402

CHOSEN = ("bert", "llama_decode", "resnet50", "squeezenet", "densenet121", "shufflenet")
PEER, OURS, OTHER = "openvino", "ours", "onnxruntime"
RATIOS = ("ratio", "median_ratio")


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model: optimized for OpenVINO with an empty cache, and timed beside the original there
    and in ONNX Runtime."""
    content = loaded(name, options.models, options.small)
    model = from_ir(ir.from_proto(onnx.load_from_string(content)))
    sizes = {"batch": 1, "sequence": SEQUENCE[options.small]}
    shapes = (({k: sizes[k] for k in model.symbols()}, 1.0),)
    config = Config(budget=options.budget, shapes=shapes, target=OPENVINO)
    model = replace(model, sizes=representative(model, config))
    result = optimize_model(model, config)
    opening = {
        PEER: partial(runtime.open_in_child, model, OPENVINO, source=True),
        OTHER: partial(runtime.open_in_child, model, source=True),
    }
    if result.changed:  # the original timed against itself would show noise as a gain or a loss
        opening[OURS] = partial(runtime.open_in_child, result.model, OPENVINO)
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
        **figures(times),
        "load": round(os.getloadavg()[0], 2),
        "kept": not result.changed,
        "nodes": [result.terms_before, result.terms_after],
        "checked": sum(d.passed for d in result.differences),
        "stages": {k: round(v, 2) for k, v in result.seconds.items()},
        "note": "; ".join(result.notes),
    }


def figures(times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Lower quartiles and medians in microseconds, and the ratios of OpenVINO alone over ours, also
    round by round."""
    quiet, median = ({k: float(np.percentile(t, q)) * 1e6 for k, t in times.items()} for q in (25, 50))
    own = OURS if OURS in times else PEER
    rounds = np.asarray(times[PEER]) / np.asarray(times[own])
    low, middle, high = (round(float(v), 4) for v in np.percentile(rounds, (25, 50, 75)))
    return {
        "ours": quiet[own],
        "baselines": {k: quiet[k] for k in (PEER, OTHER)},
        "medians": {OURS: median[own], PEER: median[PEER], OTHER: median[OTHER]},
        "ratio": middle,
        "median_ratio": round(median[PEER] / median[own], 4),
        "quartiles": [low, high],
        "runs": len(rounds),
    }


def setting(options: argparse.Namespace) -> dict[str, Any]:
    """The head of a file of rows."""
    there = in_child(device_key, OPENVINO, False).rpartition("openvino ")[2]
    versions = {"taso-mirage": __version__, "openvino": there, "onnxruntime": runtime.child_version()}
    head = {"bench": "openvino", "device": runtime.device(), "unit": "us", "versions": versions}
    return {**head, "options": dict(OPENVINO.options), "small": options.small}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CHOSEN), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--models", type=Path, help="a folder of NAME.onnx")
    parser.add_argument("--small", action="store_true", help="build small configurations where there are any")
    parser.add_argument("--seconds", type=float, default=12.0, help="timing of each model")
    parser.add_argument("--budget", type=float, default=40.0, help="search of each model")
    parser.add_argument("--sessions", type=int, default=3, help="times that all models are opened for the timing")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "openvino-cpu2.json")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MODELS):
        parser.error(f"no model is named {sorted(unknown)[0]!r}; the names are {', '.join(MODELS)}")
    head = setting(options)
    done = earlier(options.output, head)
    for name in options.names:
        try:
            done[name] = row(name, options)
        except Exception as error:  # the others are worth having: this one is named in the file as failed
            done[name] = {"case": name, "failed": f"{type(error).__name__}: {native.first_line(error)}"}
        print(done[name], flush=True)
        rows = [done[each] for each in MODELS if each in done]
        timed = [r for r in rows if "failed" not in r]
        means = {k: round(mean([r[k] for r in timed]), 4) for k in RATIOS if timed}
        options.output.write_text(json.dumps({**head, "means": means, "rows": rows}, indent=1) + "\n")
        gc.collect()


def earlier(path: Path, head: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows that the file has from a run in the same setting."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return {r["case"]: r for r in found["rows"]} if all(found.get(k) == v for k, v in head.items()) else {}


if __name__ == "__main__":
    main()
