"""The table of real models (`bench/real.py`): how each ended, and its times beside its peers."""

from __future__ import annotations

from typing import Any

import numpy as np

REAL = {"onnxruntime": "alone", **{k: k for k in ("onnxslim", "onnxsim", "onnxscript")}}
REAL["onnxruntime.transformers"] = "its transformers.optimizer"


TRAINED = ("basic_pitch", "magika", "minilm_int8", "nudenet", "ppocr_", "silero_vad")
"""Beginnings of the names of trained models; the other models are exports."""


def real(found: dict[str, Any]) -> list[str]:
    """A row for each trained model, then the means of all models."""
    rows = found["rows"]
    lines = _table([row for row in rows if row["case"].startswith(TRAINED)])
    done = [row for row in rows if row["ended"] in ("changed", "kept")]
    kept = sum(row["ended"] == "kept" for row in done)
    ratios = [_ratio(row) for row in done]
    said = [f"{len(done)} of {len(rows)} ended without an error, {kept} of them kept"]
    said += [f"ratio over ONNX Runtime: geometric mean {_mean(ratios):.3f}, least {min(ratios):.3f}"] if ratios else []
    timed = [row["times"]["ratio_best_peer"] for row in done if "times" in row]
    if timed:
        near = sum(each >= 0.98 for each in timed)
        said += [
            f"ratio over the best of all others: {_mean(timed):.3f}; the best, or within 2 % of it, on {near} of {len(timed)}"
        ]
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    return [*lines, "", f"{'. '.join(said)}. Kernels: {found['kernels']}. {found['device']}; {versions}."]


def exports(found: dict[str, Any]) -> list[str]:
    """A row for each export by PyTorch's dynamo exporter."""
    rows = (row for row in found["rows"] if not row["case"].startswith(TRAINED))
    return _table([row for row in rows if not row["case"].endswith("_torchscript")])


def torchscript(found: dict[str, Any]) -> list[str]:
    """A row for each export by PyTorch's TorchScript exporter."""
    return _table([row for row in found["rows"] if row["case"].endswith("_torchscript")])


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """A row for each model; for models timed beside peers, those times."""
    heads = ["model, ms", "ended", "outputs right", "s of the budget", "MB of the model's", "ours", *REAL.values()]
    heads += ["ratio (quartiles)", "best peer", "ours over the best"]
    return [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 4)}---|---:|", *map(_real, rows)]


def _real(row: dict[str, Any]) -> str:
    spent = f"{row['seconds']:.0f} of {row['budget']:.0f}"
    memory = f"{row['peak_mb']:.0f} of {row['model_mb']:.1f}"
    right = row["checked"] if row["ended"] == "changed" else ""
    cells = [row["case"], row["ended"], right, spent, memory]
    own = row.get("times")
    if own is None:
        ratio = f"{row['ratio']:.2f}" if row["ratio"] and row["ended"] == "changed" else ""
        return f"| {' | '.join([*cells, *[''] * (1 + len(REAL)), ratio, '', ''])} |"
    times = [own["ours"], *(own["baselines"].get(k) for k in REAL)]
    shown = ["none" if us is None else f"{us / 1e3:.3g}" for us in times]
    low, high = own["quartiles"]
    ratio = "kept" if row["ended"] == "kept" else f"{own['ratio']:.2f} ({low:.2f} to {high:.2f})"
    cells += [*shown, ratio, REAL[own["best_peer"]], f"{own['ratio_best_peer']:.2f}"]
    return f"| {' | '.join(cells)} |"


def _ratio(row: dict[str, Any]) -> float:
    """Over the original: that of the run itself where nothing was timed beside it."""
    return float(row["times"]["ratio"] if "times" in row else (row["ratio"] if row["ended"] == "changed" else 0) or 1.0)


def _mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
