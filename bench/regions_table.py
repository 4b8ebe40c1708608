"""The table of times by kind of operator on a CPU (`regions_cpu.py`)."""

from __future__ import annotations

from typing import Any

COLUMNS = {"ours": "ours", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "limit": "limit"}
SHOWN = 0.01
"""The share of a whole run from which on a kind has a row."""


def regions(found: dict[str, Any]) -> list[str]:
    """A row for each kind of operator that takes a share of a run, after one of the whole model."""
    lines = [f"| model, ms | kind | {' | '.join(COLUMNS.values())} |", f"|---|---|{'---:|' * len(COLUMNS)}"]
    for row in found["rows"]:
        if "failed" in row:
            lines.append(f"| {row['case']} | failed: {row['failed'].replace('|', '/')} |" + " |" * len(COLUMNS))
            continue
        limit = sum(times["limit"] for times in row["kinds"].values())
        lines.append(_row(row["case"], "whole", {**row["whole"], "limit": limit}))
        least = SHOWN * min(row["whole"].values())
        shown = {name: times for name, times in row["kinds"].items() if max(times.values()) >= least}
        lines += [_row("", name, times) for name, times in shown.items()]
    rates, versions = found["rates"], ", ".join(f"{name} {value}" for name, value in found["versions"].items())
    unit = f", {rates['tiles'] / 1e9:.0f} on a matrix unit" if rates["tiles"] else ""
    said = f"Products in registers: {rates['vectors'] / 1e9:.0f} Gflop/s by vectors{unit}; a copy moves "
    return [
        *lines,
        "",
        f"{said}{rates['bandwidth'] / 1e9:.0f} GB/s. {found['threads']} threads, {found['device']}; {versions}.",
    ]


def _row(case: str, name: str, times: dict[str, float]) -> str:
    return f"| {case} | {name} | {' | '.join(f'{times[column] / 1e3:.2f}' for column in COLUMNS)} |"
