"""The table of `recurrent.py`: recurrences as loops by length."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

OWN = "LinearAttention of onnxruntime, ms"
HEADS = ("loop", "steps", "onnxruntime, ms", "ours, ms", "ratio", OWN, "PyTorch, ms", "its step compiled, ms")
TIMES = ("original", "ours", "operator", "eager", "compiled")


def recurrent(found: dict[str, Any]) -> list[str]:
    """Milliseconds by model and length, of ONNX Runtime on the loop, of ours, of ONNX Runtime's own
    operator, and of PyTorch; geometric means of the ratios by length."""
    lines = [f"| {' | '.join(HEADS)} |", f"|---|{'---:|' * (len(HEADS) - 1)}"]
    ratios: dict[int, list[float]] = defaultdict(list)
    for row in found["rows"]:
        ratios[row["length"]].append(row["ratio"])
        before, after, *others = (f"{1e3 * row[k]:.3g}" if k in row else "" for k in TIMES)
        cells = [row["model"], row["length"], before, after, f"{row['ratio']:.2f}", *others]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    means = [f"{np.exp(np.mean(np.log(some))):.2f} at {t} steps ({len(some)})" for t, some in sorted(ratios.items())]
    torch = sorted({f"torch {row['torch']}" for row in found["rows"] if "torch" in row})
    versions = ", ".join([f"onnxruntime {found['versions']['onnxruntime']}", *torch])
    return [*lines, "", f"Geometric means: {', '.join(means)}. {versions}."]
