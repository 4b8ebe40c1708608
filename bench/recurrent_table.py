"""The table of `recurrent.py`: recurrences as loops by length."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

HEADS = ("loop", "steps", "onnxruntime, ms", "ours, ms", "ratio", "LinearAttention of onnxruntime, ms")


def recurrent(found: dict[str, Any]) -> list[str]:
    """Milliseconds by model and length, of ONNX Runtime on the loop, of ours, and of ONNX Runtime's
    own operator; geometric means of the ratios by length."""
    lines = [f"| {' | '.join(HEADS)} |", f"|---|{'---:|' * (len(HEADS) - 1)}"]
    ratios: dict[int, list[float]] = defaultdict(list)
    for row in found["rows"]:
        ratios[row["length"]].append(row["ratio"])
        before, after, own = (f"{1e3 * row[k]:.3g}" if k in row else "" for k in ("original", "ours", "operator"))
        lines.append(f"| {row['model']} | {row['length']} | {before} | {after} | {row['ratio']:.2f} | {own} |")
    means = [f"{np.exp(np.mean(np.log(some))):.2f} at {t} steps ({len(some)})" for t, some in sorted(ratios.items())]
    return [*lines, "", f"Geometric means: {', '.join(means)}. onnxruntime {found['versions']['onnxruntime']}."]
