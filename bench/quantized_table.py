"""The table of quantized models (`bench/quantized.py`): how each ended, its times beside those of
the float32 original, and where the bars of the benchmark are."""

from __future__ import annotations

from typing import Any

import numpy as np

MEAN, LEAST = 1.15, 0.98
"""The required geometric mean and least ratio."""


def quantized(found: dict[str, Any]) -> list[str]:
    heads = ["model, ms", "ended", "outputs right", "float32", "quantized", "ours", "ratio (quartiles)"]
    heads += ["float32 over quantized", "float32 over ours", "MB, float32, quantized, ours", "same bits"]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 3)}---|"]
    rows = found["rows"]
    lines += [_row(row) for row in rows]
    timed = [row for row in rows if "times" in row]
    ended = sum(row["ended"] in ("changed", "kept") and "failed" not in row for row in rows)
    ratios = [row["times"]["ratio"] for row in timed]
    mean = float(np.exp(np.mean(np.log(ratios)))) if ratios else 0.0
    said = [f"{ended} of {len(rows)} ended without an error"]
    said += (
        [f"geometric mean {mean:.3f} (the aim is {MEAN}), least {min(ratios):.3f} (the aim is {LEAST})"]
        if ratios
        else []
    )
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    return [*lines, "", f"{'; '.join(said)}. Kernels: {found['kernels']}. {found['device']}; {versions}."]


def _row(row: dict[str, Any]) -> str:
    cells = [row["case"], row["ended"], row["checked"] or ""]
    if "times" not in row:
        return f"| {' | '.join([*cells, row.get('failed', '').replace('|', '/')])} |" + " |" * 7
    times, us = row["times"], row["times"]["us"]
    low, high = times["quartiles"]
    ratio = f"{times['ratio']:.2f} ({low:.2f} to {high:.2f})" if "ours" in us else "kept"
    cells += [f"{us[k] / 1e3:.3g}" if k in us else "" for k in ("float32", "onnxruntime", "ours")]
    cells += [ratio, f"{times['float32_over_alone']:.2f}", f"{times['float32_over_ours']:.2f}"]
    sizes = ", ".join(f"{row['mb'][k]:.3g}" for k in ("float32", "onnxruntime", "ours") if k in row["mb"])
    return f"| {' | '.join([*cells, sizes, 'yes' if row['same_bits'] else 'no'])} |"
