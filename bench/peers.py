"""Models optimized by other tools, each in a process of its own, and times of all in turn.

    python bench/peers.py TOOL SOURCE TARGET [--kind bert]

writes a tool's result for a file; `pip install -e ".[peers]"` installs the tools. `--kind` is the
model type that onnxruntime.transformers.optimizer is told; the number of heads is left to it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from taso_mirage.ir.model import Model  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.check import CheckCase, compare  # noqa: E402

ALONE, OURS, PLAIN = "onnxruntime", "ours", "substitutions"
CASES = 2
"""Input sets on which a peer's result is checked: float64 evaluations of a large model take their
time."""
GPU_ONLY = ("nhwc_conv", "group_norm", "skip_group_norm", "bias_splitgelu", "bias_add")
"""Fusions of onnxruntime.transformers.optimizer into operators that the CPU provider does not
have."""
KIND = "bert"
"""The model type that onnxruntime.transformers.optimizer takes where nobody says one."""


# ---------------------------------------------------------------- in a tool's process


def slimmed(file: str, kind: str) -> onnx.ModelProto:
    import onnxslim

    return onnxslim.slim(onnx.load(file))


def simplified(file: str, kind: str) -> onnx.ModelProto:
    import onnxsim

    return onnxsim.simplify(onnx.load(file))[0]


def rewritten(file: str, kind: str) -> onnx.ModelProto:
    import onnxoptimizer

    return onnxoptimizer.optimize(onnx.load(file))


def optimized(file: str, kind: str) -> onnx.ModelProto:
    from onnxscript import optimizer

    return ir.to_proto(optimizer.optimize(ir.from_proto(onnx.load(file))))


def fused(file: str, kind: str) -> onnx.ModelProto:
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    return ir.to_proto(optimize_for_ort(ir.from_proto(onnx.load(file)))[0])


def transformed(file: str, kind: str) -> onnx.ModelProto:
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions(kind)
    for fusion in GPU_ONLY:
        setattr(options, f"enable_{fusion}", False)
    return optimize_model(file, model_type=kind, optimization_options=options).model


TOOLS: Mapping[str, Callable[[str, str], onnx.ModelProto]] = {
    "onnxslim": slimmed,
    "onnxsim": simplified,
    "onnxoptimizer": rewritten,
    "onnxscript": optimized,
    "optimize_for_ort": fused,
    "onnxruntime.transformers": transformed,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--kind", default=KIND)
    options = parser.parse_args()
    try:
        onnx.save(TOOLS[options.tool](options.source, options.kind), options.target)
    except Exception as error:  # a tool that fails has no figure, whatever it failed by
        print(f"{type(error).__name__}: {native.first_line(error)[:160]}", file=sys.stderr)
        return 1
    return 0


# ---------------------------------------------------------------- in the benchmark's process


def peer_versions(tools: Iterable[str]) -> dict[str, str]:
    """The versions of the installed tools."""
    found = {}
    for name in tools:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def put(tool: str, source: Path, target: Path, kind: str, limit: float) -> str | None:
    """Have a tool write its result for a file; why it did not, if so."""
    command = [sys.executable, __file__, tool, str(source), str(target), "--kind", kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit)
    except subprocess.TimeoutExpired:
        return f"over {limit:.0f} s"
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return last if done.returncode == 1 else f"exit {done.returncode} {last}".strip()


def right(
    tools: Mapping[str, str],
    source: Path,
    model: Model,
    cases: Sequence[CheckCase],
    place: Path,
    notes: list[str],
    kind: str = KIND,
    limit: float = 600.0,
) -> dict[str, Path]:
    """The files of the tools (by the names that they get here) that load and pass the check; the
    notes say why another has none."""
    found: dict[str, Path] = {}
    for name, tool in tools.items():
        target = place / f"{name}.onnx"
        why = put(tool, source, target, kind, limit)
        if why is not None:
            notes.append(f"{name} failed: {why}")
            continue
        try:
            wrong = next((d for d in compare(model, runtime.Session(str(target)), cases) if not d.passed), None)
        except Exception as error:  # the runtime refuses the file, or does not run it
            said = native.first_line(error).replace(f"{place}/", "")
            notes.append(f"{name} does not run: {said[:160]}")
            continue
        if wrong is None:
            found[name] = target
        else:
            notes.append(f"{name} is wrong: {wrong}")
    return found


Opening = Callable[[], runtime.Session]


def opened(files: Mapping[str, bytes | str]) -> dict[str, Opening]:
    """How each file, or its content, is opened."""
    return {name: partial(runtime.Session, file) for name, file in files.items()}


def timed(
    opening: Mapping[str, Opening], inputs: native.Arrays, seconds: float, sessions: int
) -> dict[str, list[float]]:
    """Run times of all, in turn; they are opened so many times, as luck (where memory lies) lasts
    as long as a session."""
    times: dict[str, list[float]] = {whose: [] for whose in opening}
    for _ in range(sessions):
        there = [each() for each in opening.values()]
        found = runtime.interleaved(there, inputs, seconds / sessions, patience=np.inf)
        for taken, more in zip(times.values(), found, strict=True):
            taken += more
        there.clear()
    return times


def figures(times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Lower quartiles and medians in microseconds, and the ratios: over ONNX Runtime alone, and
    over the best peer."""
    quiet, median = ({k: float(np.percentile(t, q)) * 1e6 for k, t in times.items()} for q in (25, 50))
    own = next(k for k in (OURS, PLAIN, ALONE) if k in times)
    rounds = np.asarray(times[ALONE]) / np.asarray(times[own])
    low, high = (float(v) for v in np.percentile(rounds, (25, 75)))
    others = [k for k in times if k not in (OURS, PLAIN)]
    best = min(others, key=lambda k: quiet[k])
    return {
        "ours": quiet[own],
        PLAIN: quiet[PLAIN if PLAIN in times else ALONE],
        "baselines": {k: quiet[k] for k in others},
        "medians": {OURS: median[own], **{k: median[k] for k in others}},
        "ratio": round(quiet[ALONE] / quiet[own], 4),
        "median_ratio": round(median[ALONE] / median[own], 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "spread": round(high - low, 4),
        "best_peer": best,
        "ratio_best_peer": round(quiet[best] / quiet[own], 4),
        "median_ratio_best_peer": round(min(median[k] for k in others) / median[own], 4),
        "runs": len(rounds),
    }


if __name__ == "__main__":
    sys.exit(main())
