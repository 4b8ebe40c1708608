"""The table of `graphnet_times.py`: a sample of GraphNet in all ways."""

from __future__ import annotations

from typing import Any

WAYS = ("ours", "onnxruntime", "openvino", "inductor", "eager")


def graphnet(found: dict[str, Any]) -> list[str]:
    """Medians in milliseconds, and ours over the other ways."""
    timed = [row for row in found["rows"] if "medians" in row]
    ways = [way for way in WAYS if any(way in row["medians"] for row in timed)]
    peers = [way for way in ways if way in ("onnxruntime", "inductor")]
    heads = ["sample", "parameters, M", *(f"{way}, ms" for way in ways), *(f"over {way}" for way in peers)]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in timed:
        times = [f"{row['medians'][way] / 1e3:.3f}" if way in row["medians"] else "" for way in ways]
        gains = [f"{row['ratios'][way][0]:.2f}" if way in row["ratios"] else "" for way in peers]
        size = f"{row['parameters'] / 1e6:.1f}"
        lines.append(f"| {' | '.join([row['case'], size, *times, *gains])} |")
    left = [f"{row['case']} ({row['left out']})" for row in found["rows"] if "left out" in row]
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    said = f"Effort {found['effort']}. {found['device']}; {versions}."
    return [*lines, "", *([f"Left out: {', '.join(left)}."] if left else []), said]
