"""Original against optimized on one NVIDIA GPU: ONNX Runtime's CUDA provider with CUDA graphs on
both sides, and torch.compile.

    python bench/optimize_cuda.py [NAME ...] [--dtype float16 float32] [--batch 1 16] [--models DIR]
    [--no-compile | --only-compile]

Prints a table and writes bench/results/optimize_cuda-DEVICE.json (microseconds). Needs the extras
`cuda` and `models`. A model is built, or read from DIR/NAME-bBATCH.onnx; half precision is
onnxruntime's own conversion of it. `onnxruntime, OPTIONS` is the original with options of the
provider: a peer that costs its user one line. Every result went through the check.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))


import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import Model, random_inputs  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.target import CUDA  # noqa: E402
from taso_mirage.onnx_io import from_ir  # noqa: E402
from taso_mirage.pipeline import optimize_model  # noqa: E402
from taso_mirage.report.result import Result  # noqa: E402
from taso_mirage.search.config import Config  # noqa: E402

NAMES = ("bert", "vit", "llama", "resnet50", "resnext50", "inception_v3", "nasnet_a")
NAMES += ("light_squeezenet", "light_densenet121", "light_shufflenet")
COMPILED_RUNS = 30


def loaded(name: str, dtype: str, batch: int, folder: Path | None) -> Model:
    """The model in full size, from a file or built."""
    file = None if folder is None else folder / f"{name}-b{batch}.onnx"
    if file is not None and file.exists():
        proto = onnx.load(file)
    else:
        proto = models.build(name, small=False, batch=batch)
    if dtype == "float16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        proto = convert_float_to_float16(proto, disable_shape_infer=True)
    return from_ir(ir.from_proto(proto))


def compiled(name: str, dtype: str, batch: int) -> float | None:
    """Microseconds of a call of torch.compile's result with CUDA graphs, weights and inputs on the
    device."""
    import torch

    if name not in models.EXPORTED:
        return None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # as ONNX Runtime runs here
    torch._dynamo.reset()
    module, arguments = models.module(name, small=False, batch=batch)
    kind = getattr(torch, dtype)
    module = module.to("cuda", kind)
    given = {k: v.to("cuda", kind) if v.is_floating_point() else v.to("cuda") for k, v in arguments.items()}
    run = torch.compile(module, mode="reduce-overhead")
    positional = name not in ("bert", "llama", "vit")
    times = []
    with torch.inference_mode():
        for _ in range(COMPILED_RUNS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            run(*given.values()) if positional else run(**given)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return float(np.percentile(times[COMPILED_RUNS // 3 :], 25)) * 1e6


def timed(model: Model, result: Result, seconds: float) -> dict[str, Any]:
    """Original, original with other options of the provider, and optimized, in turn."""
    sessions = {"onnxruntime": runtime.open_in_child(model, CUDA, source=True)}
    for target in CUDA.variants:
        with contextlib.suppress(TasoMirageError):
            chosen = ", ".join(f"{k}={v}" for k, v in target.options if k not in dict(CUDA.options))
            sessions[f"onnxruntime, {chosen}"] = runtime.open_in_child(model, target, source=True)
    ours = runtime.open_in_child(result.model, result.target, source=not result.steps)
    times = runtime.interleaved([*sessions.values(), ours], random_inputs(model, 0), seconds, patience=np.inf)
    quiet = [float(np.percentile(t, 25)) * 1e6 for t in times]
    ratios = np.asarray(times[0]) / np.asarray(times[-1])
    low, high = np.percentile(ratios, (25, 75))
    return {
        "ours": quiet[-1],
        "baselines": dict(zip(sessions, quiet, strict=False)),
        "ratio": round(quiet[0] / quiet[-1], 4),
        "quartiles": [round(float(low), 4), round(float(high), 4)],
        "spread": round(float(high - low), 4),
        "runs": len(ratios),
        "graphs": [s.captures for s in (*sessions.values(), ours)],
    }


def row(name: str, dtype: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """One model: search it, then time it afresh against its original and the peers."""
    model = loaded(name, dtype, batch, options.models)
    start = time.perf_counter()
    result = optimize_model(model, Config(budget=options.budget, target=CUDA, seconds=2.0))
    searched = time.perf_counter() - start
    found = {"case": f"{name} {dtype} b{batch}", **timed(model, result, options.seconds)}
    if not options.no_compile:
        try:
            found["baselines"] |= {"torch.compile": t} if (t := compiled(name, dtype, batch)) else {}
        except Exception as error:  # a peer that fails has no figure
            found["compile_error"] = str(error)[:200]
    return found | {
        "nodes": [result.terms_before, result.terms_after],
        "options": dict(result.target.options),
        "search_seconds": round(searched, 2),
        "stages": {k: round(v, 2) for k, v in result.seconds.items()},
        "checked": sum(d.passed for d in result.differences),
        "note": "; ".join(result.notes),
    }


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    for batch in options.batch:
        for dtype in options.dtype:
            for name in options.names:
                yield name, dtype, batch


def kept(path: Path, device: str, versions: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of an earlier run on the same device with the same versions."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    same = (found["device"], found["versions"]) == (device, versions)
    return list(found["rows"]) if same else []


def fill_in(rows: list[dict[str, Any]], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows that were given torch.compile's time."""
    by_case = {r["case"]: r for r in rows if "torch.compile" not in r["baselines"]}
    for name, dtype, batch in cases(options):
        if (found := by_case.get(f"{name} {dtype} b{batch}")) is None:
            continue
        try:
            if (t := compiled(name, dtype, batch)) is not None:
                found["baselines"]["torch.compile"] = t
                yield found
        except Exception as error:  # a peer that fails has no figure
            found["compile_error"] = str(error)[:200]
            yield found


def write(path: Path, device: str, versions: dict[str, str], rows: list[dict[str, Any]]) -> None:
    found = {"bench": "optimize_cuda", "device": device, "versions": versions, "unit": "us", "rows": rows}
    path.write_text(json.dumps(found, indent=1) + "\n")


def show(r: dict[str, Any]) -> None:
    others = ", ".join(f"{k} {v:.0f}" for k, v in r["baselines"].items())
    print(
        f"{r['case']:32} ours {r['ours']:8.0f} us, {others}; ratio {r['ratio']:.2f}, nodes {r['nodes']}, "
        f"{r['search_seconds']:.0f} s, checked {r['checked']} {r['note']}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--dtype", nargs="*", default=["float16", "float32"])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--models", type=Path, help="a folder of NAME-bBATCH.onnx")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument(
        "--only-compile", action="store_true", help="torch.compile alone, into the rows of the file that lack it"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="timing of each model")
    parser.add_argument("--budget", type=float, default=30.0, help="search of each model")
    parser.add_argument(
        "--append",
        action="store_true",
        help="keep the other rows of the file, if they are of this device; with --no-compile its times of torch.compile too",
    )
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    device = runtime.device(CUDA)
    path = (
        options.output
        or ROOT / "bench" / "results" / f"optimize_cuda-{device.split()[1] if ' ' in device else device}.json"
    )
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), "numpy": np.__version__}
    rows = kept(path, device, versions) if options.append or options.only_compile else []
    for case in cases(options) if not options.only_compile else ():
        try:
            found = row(*case, options)
            for earlier in (r for r in rows if r["case"] == found["case"] and options.no_compile):
                found["baselines"] |= {k: v for k, v in earlier["baselines"].items() if k == "torch.compile"}
            rows = [r for r in rows if r["case"] != found["case"]] + [found]
        except Exception as error:
            print(f"{case}: {type(error).__name__}: {error}", flush=True)
            continue
        show(rows[-1])
        write(path, device, versions, rows)
        gc.collect()
    if options.only_compile:
        for found in fill_in(rows, options):
            show(found)
            write(path, device, versions, rows)
    for batch in options.batch:
        ratios = [r["ratio"] for r in rows if r["case"].endswith(f" b{batch}")]
        if ratios:
            print(f"batch {batch}: geometric mean {np.exp(np.mean(np.log(ratios))):.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
