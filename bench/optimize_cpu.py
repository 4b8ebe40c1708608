"""Original against optimized, both on ONNX Runtime's CPU provider at ORT_ENABLE_ALL, in turn in one process.

    python bench/optimize_cpu.py [NAME ...] [--small] [--seconds 10] [--budget 60]

Prints a table and writes bench/results/optimize_cpu-DEVICE.json. Needs the extra `models`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.model import random_inputs  # noqa: E402
from taso_mirage.onnx_io import from_ir, serialize  # noqa: E402
from taso_mirage.optimize import session as runtime  # noqa: E402
from taso_mirage.optimize.pipeline import Config, optimize  # noqa: E402

NAMES = ("mini_transformer", "light_squeezenet", "light_shufflenet", "light_inception_v1", "light_inception_v2")
NAMES += (
    "light_densenet121",
    "light_resnet50",
    "resnet50",
    "resnext50",
    "inception_v3",
    "nasnet_a",
    "vit",
    "bert",
    "llama",
)
NAMES += ("light_zfnet512", "light_alexnet", "light_vgg19")


def row(name: str, small: bool, seconds: float, budget: float) -> dict[str, Any]:
    """One model: search it, then time it afresh against its original."""
    model = from_ir(ir.from_proto(models.build(name, small=small)))
    start = time.perf_counter()
    result = optimize(model, Config(budget=budget))
    searched = time.perf_counter() - start
    original = runtime.Session(serialize(model, source=True))
    optimized = runtime.Session(serialize(result.model, source=not result.changed))
    inputs = random_inputs(model, 0)
    times = runtime.interleaved([original, optimized], inputs, seconds)
    ratios = np.asarray(times[0]) / np.asarray(times[1])
    low, high = np.percentile(ratios, (25, 75))
    quiet = [float(np.percentile(t, 25)) for t in times]
    note = "" if result.changed else "the original's graph was kept"
    return {
        "case": name + ("_small" if small and not name.startswith(("light", "mini")) else ""),
        "ours": quiet[1] * 1e6,
        "baselines": {"onnxruntime": quiet[0] * 1e6},
        "ratio": round(quiet[0] / quiet[1], 4)
        if result.changed
        else 1.0,  # the same graph twice: what is measured is noise
        "quartiles": [round(float(low), 4), round(float(high), 4)],
        "runs": len(ratios),
        "nodes": [result.terms_before, result.terms_after],
        "search_seconds": round(searched, 2),
        "checked": sum(d.passed for d in result.differences),
        "spread": round(float(high - low), 4),
        "note": "; ".join([note, *result.notes]).strip("; "),
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'model':24} {'ORT ms':>9} {'ours ms':>9} {'ratio':>6} {'quartiles':>15} {'nodes':>11} {'search s':>8}")
    for r in rows:
        quartiles = f"{r['quartiles'][0]:.2f} to {r['quartiles'][1]:.2f}"
        nodes = f"{r['nodes'][0]} > {r['nodes'][1]}"
        baseline = r["baselines"]["onnxruntime"] / 1e3
        print(
            f"{r['case']:24} {baseline:9.2f} {r['ours'] / 1e3:9.2f} {r['ratio']:6.2f} {quartiles:>15} {nodes:>11} "
            f"{r['search_seconds']:8.1f} {r['note']}"
        )
    mean = float(np.exp(np.mean([np.log(r["ratio"]) for r in rows])))
    print(f"geometric mean of the ratios: {mean:.3f}; slowest: {min(r['ratio'] for r in rows):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--small", action="store_true", help="small configurations where there are any")
    parser.add_argument("--seconds", type=float, default=10.0, help="timing of each model")
    parser.add_argument("--budget", type=float, default=60.0, help="search of each model")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "optimize_cpu-cpu2.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.names:
        rows.append(row(name, options.small, options.seconds, options.budget))
        show(rows[-1:])
        write(options.output, rows)
        gc.collect()
    print()
    show(rows)
    print(f"wrote {options.output}")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.version(), "numpy": np.__version__}
    found = {"bench": "optimize_cpu", "device": runtime.device(), "versions": versions, "unit": "us", "rows": rows}
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
