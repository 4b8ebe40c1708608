"""The tables of `optimize.py`: all models, and those with the highest and the lowest ratios."""

from __future__ import annotations

from typing import Any

PEERS = {"onnxruntime": "alone", "onnxslim": "onnxslim", "onnxsim": "onnxsim", "onnxscript": "onnxscript"}
PEERS |= {"openvino": "OpenVINO"}


def optimize(found: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    peers = _timed_peers(found)
    heads = ["model, ms", "ours", "without kernels", *(PEERS[k] for k in peers), "ratio (quartiles)", "over the best"]
    heads += (
        ["nodes"] if "auto_ratio" not in found["means"] else ["`--target auto`", "its ratio", "over the best", "nodes"]
    )
    lines = [f"| {' | '.join(heads)} | search, cold and warm |", f"|---|{'---:|' * len(heads)}"]
    lines += [_optimized(row, peers) for row in found["rows"]]
    means = found["means"]
    lines += [
        "",
        f"Geometric means: {means['ratio']:.3f} over ONNX Runtime alone ({means['median_ratio']:.3f} by medians), "
        f"{means['ratio_best_peer']:.3f} over the best of the others for each model ({means['median_ratio_best_peer']:.3f} "
        f"by medians){_automatic(means)}. {found['device']}; {versions}.",
    ]
    return lines


def best_and_worst(found: dict[str, Any]) -> list[str]:
    """Three rows of the highest ratio, and two of the lowest."""
    rows = sorted((row for row in found["rows"] if "failed" not in row), key=lambda row: -row["ratio"])
    heads = ["model, ms", "ONNX Runtime alone", "the best of other tools", "ours", "ratio (quartiles)"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in (*rows[:3], *rows[-2:]):
        others = {PEERS[k]: row["baselines"][k] / 1e3 for k in PEERS if k != "onnxruntime" and k in row["baselines"]}
        best = min(others, key=lambda name: others[name])
        times = f"{row['baselines']['onnxruntime'] / 1e3:.2f} | {others[best]:.2f} ({best}) | {row['ours'] / 1e3:.2f}"
        low, high = row["quartiles"]
        ratio = "kept" if row["kept"] else f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {row['case']} | {times} | {ratio} |")
    said = f"Geometric mean of all {len(rows)} models {found['means']['ratio']:.3f}"
    return [*lines, "", f"{said}. {found['device']}; onnxruntime {found['versions']['onnxruntime']}."]


def _automatic(means: dict[str, float]) -> str:
    """The means of `--target auto`, where they were measured."""
    if "auto_ratio" not in means:
        return ""
    return f"; `--target auto` {means['auto_ratio']:.3f} and {means['auto_ratio_best_peer']:.3f}"


def _timed_peers(found: dict[str, Any]) -> list[str]:
    """The peers that some row has a time of."""
    return [k for k in PEERS if any(k in row.get("baselines", ()) for row in found["rows"])]


def _optimized(row: dict[str, Any], peers: list[str]) -> str:
    if "failed" in row:
        return f"| {row['case']} | failed: {row['failed'].replace('|', '/')} |" + " |" * 9
    times = [f"{row['baselines'][k] / 1e3:.2f}" if k in row["baselines"] else "none" for k in peers]
    low, high = row["quartiles"]
    ratio = "kept" if row["kept"] else f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"
    cold, warm = row["search_seconds"]
    own = [f"{row[k] / 1e3:.2f}" if k in row else "" for k in ("ours", "substitutions")]
    cells = [row["case"], *own, *times, ratio, f"{row['ratio_best_peer']:.2f}"]
    if "auto" in row:
        cells += [f"{row['auto'] / 1e3:.2f}", f"{row['auto_ratio']:.2f}", f"{row['auto_ratio_best_peer']:.2f}"]
    return f"| {' | '.join(cells)} | {row['nodes'][0]} to {row['nodes'][1]} | {cold:.0f} s, {warm:.0f} s |"
