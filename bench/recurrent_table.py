"""The table of `recurrent.py`: recurrences as loops by length."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

OWN = "LinearAttention of onnxruntime, ms"
HEADS = ("loop", "steps", "onnxruntime, ms", "ours, ms", "ratio")
PEERS = {
    "operator": OWN,
    "eager": "PyTorch, ms",
    "compiled": "its step compiled, ms",
    "captured": "compiled steps in one CUDA graph, ms",
}


def recurrent(found: dict[str, Any]) -> list[str]:
    """Milliseconds by model and length, of ONNX Runtime on the loop, of ours, of ONNX Runtime's own
    operator, and of PyTorch, where some row has them; geometric means of the ratios by length."""
    peers = [key for key in PEERS if any(key in row for row in found["rows"])]
    heads = [*HEADS, *(PEERS[key] for key in peers)]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    ratios: dict[int, list[float]] = defaultdict(list)
    for row in found["rows"]:
        ratios[row["length"]].append(row["ratio"])
        before, after, *others = (f"{1e3 * row[k]:.3g}" if k in row else "" for k in ("original", "ours", *peers))
        cells = [row["model"], row["length"], before, after, f"{row['ratio']:.2f}", *others]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    means = [f"{np.exp(np.mean(np.log(some))):.2f} at {t} steps ({len(some)})" for t, some in sorted(ratios.items())]
    torch = sorted({f"torch {row['torch']}" for row in found["rows"] if "torch" in row})
    versions = ", ".join([f"onnxruntime {found['versions']['onnxruntime']}", *torch])
    return [*lines, "", f"Geometric means: {', '.join(means)}. {versions}."]


def written_out(found: dict[str, Any]) -> list[str]:
    """Milliseconds by module and exporter, of ONNX Runtime on the file, of ours and of PyTorch, and
    the geometric mean of the ratios."""
    rows = [row for row in found["rows"] if "failed" not in row]
    heads = (
        "module",
        "exporter",
        "nodes",
        "after",
        "onnxruntime, ms",
        "ours, ms",
        "ratio",
        "PyTorch, ms",
        "compiled, ms",
    )
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for row in rows:
        before, after, *others = (
            f"{1e3 * row[k]:.3g}" if k in row else "" for k in ("original", "ours", "eager", "compiled")
        )
        cells = [row["model"], row["exporter"], *row["nodes"], before, after, f"{row['ratio']:.2f}", *others]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    mean = np.exp(np.mean([np.log(row["ratio"]) for row in rows]))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return [*lines, "", f"Geometric mean of the ratios: {mean:.2f} ({len(rows)}). {versions}."]
