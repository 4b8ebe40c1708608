"""Quantized models (`python -m models.quantized FOLDER`) through `taso-mirage optimize`, on ONNX
Runtime's CPU provider, each next to the float32 model that it came from.

    python bench/quantized.py FOLDER [NAME ...] [--budget 60] [--limit 300] [--kernels search]
    [--seconds 6] [--sessions 3]

Prints a row and writes bench/results/quantized-cpu2.json after each model (rows of models that are
not named stay). The quantized model alone, ours, and the float32 original run in turn in one
process, all at ORT_ENABLE_ALL and at the sizes that the row names, so that one sees whether
quantization paid. A row says how the optimizer ended, how many outputs passed its check, the ratio
original / ours, and whether both give the same bits on the inputs of the timing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from peers import ALONE, OURS, opened, timed  # noqa: E402
from real import last_line, run, told, versions  # noqa: E402
from rows import Rows  # noqa: E402

from models.quantized import ORIGINALS, QUANTIZED, size  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import Model, random_inputs  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.onnx_io import load  # noqa: E402
from taso_mirage.targets.protocol import Trusted  # noqa: E402

FLOAT32 = "float32"


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model, optimized and timed beside itself and its original."""
    original = QUANTIZED[name].original
    file, wide = (options.folder / f"{each}.onnx" for each in (name, original))
    model = load(file)
    sizes = {k: v for k, v in ORIGINALS[original].sizes.items() if k in model.symbols()}
    with tempfile.TemporaryDirectory() as place:
        ours = Path(place) / "out.onnx"
        wanted = ["-o", str(ours), "--budget", str(options.budget), "--kernels", options.kernels, "--json"]
        shapes = [part for k, v in sizes.items() for part in ("--shape", f"{k}:{v}")]
        done = run(["optimize", str(file.resolve()), *wanted, *shapes], options.limit)
        found = {
            "case": name,
            "sizes": sizes,
            **told(done),
            "seconds": round(done.seconds, 1),
            "budget": options.budget,
            "peak_mb": round(done.peak / 1e6, 1),
            "load": round(os.getloadavg()[0], 1),
            "mb": {ALONE: round(size(file) / 1e6, 2), FLOAT32: round(size(wide) / 1e6, 2)},
        }
        changed = done.code == 0 and last_line(done.output)["changed"]
        found["mb"] |= {OURS: round(size(ours) / 1e6, 2)} if changed else {}
        files = {ALONE: file, FLOAT32: wide, **({OURS: ours} if changed else {})}
        return {**found, **beside(model, files, sizes, options)}


def beside(
    model: Model, files: Mapping[str, Path], sizes: Mapping[str, int], options: argparse.Namespace
) -> dict[str, Any]:
    """Times of all in turn, and whether ours gives the original's bits."""
    inputs = random_inputs(model, 0, sizes)
    opening = opened({whose: str(file) for whose, file in files.items()})
    if OURS in files:
        opening[OURS] = partial(runtime.Session, Trusted(str(files[OURS])))  # its kernels were made here
    try:
        times = timed(opening, inputs, options.seconds, options.sessions)
        outputs = {whose: opening[whose]().run(inputs) for whose in (ALONE, OURS) if whose in files}
    except TasoMirageError as error:
        return {"failed": str(error)[:400]}
    same = OURS not in files or all(map(np.array_equal, *outputs.values()))
    return {"times": figures(times), "same_bits": same}


def figures(times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Lower quartiles in microseconds; ratios of the rounds: of the quantized model alone over
    ours, and of float32 over each."""
    quiet = {k: round(float(np.percentile(t, 25)) * 1e6, 1) for k, t in times.items()}
    own = np.asarray(times.get(OURS, times[ALONE]))
    alone, wide = np.asarray(times[ALONE]), np.asarray(times[FLOAT32])
    low, middle, high = (round(float(v), 4) for v in np.percentile(alone / own, (25, 50, 75)))
    return {
        "us": quiet,
        "ratio": middle,
        "quartiles": [low, high],
        "float32_over_alone": round(float(np.median(wide / alone)), 4),
        "float32_over_ours": round(float(np.median(wide / own)), 4),
        "runs": len(own),
    }


def show(r: Mapping[str, Any]) -> None:
    t = r.get("times")
    ratio = f"{t['ratio']:.3f} ({t['quartiles'][0]:.2f} to {t['quartiles'][1]:.2f})" if t else r.get("failed", "")
    paid = f"float32 / alone {t['float32_over_alone']:.2f}, / ours {t['float32_over_ours']:.2f}" if t else ""
    print(
        f"{r['case']:26} {r['ended']:10} {r['checked'] or '-':>8} {r['seconds']:6.1f} s ratio {ratio} {paid} {r['note']}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where `python -m models.quantized` put the models")
    parser.add_argument("names", nargs="*", help=f"these only, of {', '.join(QUANTIZED)}")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of search")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a run is stopped")
    parser.add_argument("--kernels", choices=("off", "search", "cached"), default="search")
    parser.add_argument("--seconds", type=float, default=6.0, help="timing of each model")
    parser.add_argument("--sessions", type=int, default=3, help="times that all are opened for that timing")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "quantized-cpu2.json")
    options = parser.parse_intermixed_args()
    if unknown := sorted(set(options.names) - set(QUANTIZED)):
        parser.error(f"no model is named {unknown[0]!r}; the names are {', '.join(QUANTIZED)}")
    head = {"bench": "quantized", "device": runtime.device(), "unit": "us", "versions": versions()}
    rows = Rows(options.output, {**head, "kernels": options.kernels})
    failed = 0
    for name in options.names or QUANTIZED:
        if not (options.folder / f"{name}.onnx").exists():
            print(f"{name}: not in {options.folder}; `python -m models.quantized {options.folder} {name}`")
            continue
        found = row(name, options)
        rows.keep(found)
        show(found)
        failed += found["ended"] not in ("changed", "kept") or "failed" in found
    print(f"wrote {options.output}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
