"""The tables of kernels: of `bench/kernels_h100.py`, `kernels_cpu.py`, `prepared_cpu.py`,
`kernel_search.py`, `kernel_timeline.py`, `quantized_h100.py` and `free_sizes_cuda.py`."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np


def kernel_search(found: dict[str, Any]) -> list[str]:
    lines = [
        "| goal, s | search and proof | Mirage | classes, edges | muGraphs looked at | verified |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        counts = row["counts"]
        peer = ", ".join(f"{v:g} ({k.partition(', ')[2]})" for k, v in row["baselines"].items())
        cells = [row["case"], f"{row['ours']:.2f}", peer, f"{counts['classes']}, {counts['edges']}"]
        lines.append(f"| {' | '.join([*cells, str(counts['plans']), str(counts['verified'])])} |")
    return [*lines, "", f"The six workloads of Mirage together: {found['all_six']['seconds']:.1f} s on one core."]


def kernels_cpu(found: dict[str, Any]) -> list[str]:
    lines = [
        "| fragment, us | generated C++ | ONNX Runtime, as exported | its own operator | ratio to the better |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        written, own = (row["baselines"].get(k) for k in ("onnxruntime", "onnxruntime_operator"))
        shown = "" if own is None else f"{own:.0f}"
        lines.append(f"| {row['case']} | {row['ours']:.0f} | {written:.0f} | {shown} | {row['ratio_best']:.2f} |")
    means = found["means"]
    return [
        *lines,
        "",
        f"Geometric means: {means['ratio']:.2f} over the graph as exporters write it, {means['ratio_best']:.2f} over the better of both. "
        f"{found['device']}, {found['threads']} threads.",
    ]


def prepared_cpu(found: dict[str, Any]) -> list[str]:
    lines = [
        "| case, us | ours | ONNX Runtime | ratio (of the rounds) | Gflop/s of the direct sum |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        ratio = f"{row['ratio']:.2f} ({row['range'][0]:.2f} to {row['range'][1]:.2f})"
        times = f"{row['ours']:.0f} | {row['baselines']['onnxruntime']:.0f}"
        lines.append(f"| {row['case']} | {times} | {ratio} | {row['gflops']:.0f} |")
    return [*lines, "", f"Geometric mean {found['mean']:.2f}. {found['device']}."]


START = 7.0
"""Microseconds that the start of a CUDA graph takes, at most."""


def kernels_h100(found: dict[str, Any]) -> list[str]:
    heads = {"eager": "eager", "torch.compile": "torch.compile", "SDPA": "SDPA, the best"}
    heads |= {"FlashInfer": "FlashInfer, the best", "cuBLAS": "cuBLAS, the best", "cuDNN": "cuDNN, the best"}
    measured = {name for row in found["rows"] for name in _peers(row)}
    heads = {k: v for k, v in heads.items() if any(name.startswith(k) for name in measured)}
    lines = [
        f"| kernels, us | ours | memory floor | {' | '.join(heads.values())} | ratio to the best |",
        f"|---|{'---:|' * (len(heads) + 3)}",
    ]
    ratios = []
    for row in found["rows"]:
        peers = _peers(row)
        kinds = [[v for k, v in peers.items() if k.startswith(kind)] for kind in heads]
        shown = [f"{min(times):.1f}" if times else "" for times in kinds]
        ratios += [min(peers.values()) / row["ours"]] if peers else []
        ratio = f"{ratios[-1]:.2f}" if peers else ""
        lines.append(f"| {row['case']} | {row['ours']:.2f} | {row['floor']:.1f} | {' | '.join(shown)} | {ratio} |")
    mean = float(np.exp(np.mean(np.log(ratios))))
    return [
        *lines,
        "",
        f"Geometric mean over the best peer of {len(ratios)} rows {mean:.2f}, least {min(ratios):.2f}. {found['device']}.",
    ]


def roles(found: dict[str, Any]) -> list[str]:
    """Attention in both forms."""
    lines = ["| kernels, us | with roles | without | ratio |", "|---|---:|---:|---:|"]
    for row in found["rows"]:
        if row.get("specialized") and row.get("plain"):
            special, plain = row["specialized"]["us"], row["plain"]["us"]
            lines.append(f"| {row['case']} | {special:.2f} | {plain:.2f} | {plain / special:.2f} |")
    return [*lines, "", f"{found['device']}."]


def quantized_h100(found: dict[str, Any]) -> list[str]:
    """Products alone, then the model, whose floor is that of all bytes of a run."""
    names = ("onnxruntime", "torch float16")
    lines = [
        "| case, us | ours | ONNX Runtime | PyTorch float16 | over ONNX Runtime | of the floor |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        peers = [f"{v:.2f}" if (v := row["baselines"].get(name)) is not None else "" for name in names]
        part = row.get("of_floor") or 1 / row["floor"]["distance"]
        cells = [row["case"], f"{row['ours']:.2f}", *peers, f"{row['baselines']['onnxruntime'] / row['ours']:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {part:.2f} |")
    return [*lines, "", f"{found['device']}; a copy moves {found['bandwidth'] / 1e12:.2f} TB/s."]


def single_h100(found: dict[str, Any]) -> list[str]:
    """Products in single precision, by how operands are multiplied."""
    kinds, errors = ("tf32x3", "bf16x6", "ieee"), "error over eager's"
    lines = [
        f"| product, us | ours | over the best peer | eager | torch.compile | {' | '.join(kinds)} | {errors} |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        peers, by, launch = row["baselines"], row["by precision"], row["launches"][0]["precision"]
        cells = [row["case"], f"{row['ours']:.1f}", f"{min(peers.values()) / row['ours']:.2f}"]
        cells += [f"{peers[name]:.1f}" for name in ("eager", "torch.compile")]
        times = {kind: f"{by[kind]:.1f}" if kind in by else "" for kind in kinds}
        cells += [f"**{us}**" if kind == launch else us for kind, us in times.items()]
        cells.append(f"{row[errors][0]:.2f} to {row[errors][1]:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"{found['device']}."]


def convolutions_h100(found: dict[str, Any]) -> list[str]:
    """Convolutions in single precision, without and with rounding to TF32."""
    lines = [
        "| convolution, us | TF32 | ours | over the best peer | eager | torch.compile | error over eager's |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    order = list(dict.fromkeys(row["case"] for row in found["rows"]))
    for row in sorted(found["rows"], key=lambda row: (order.index(row["case"]), row["rounds"])):
        peers = row["baselines"]
        cells = [row["case"], "on" if row["rounds"] else "off", f"{row['ours']:.1f}"]
        cells += [f"{min(peers.values()) / row['ours']:.2f}"]
        cells += [f"{peers[name]:.1f}" for name in ("eager", "torch.compile")]
        cells.append(f"{row['error'][1] / row['error of eager']:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    ratios = {
        rounds: [min(row["baselines"].values()) / row["ours"] for row in found["rows"] if row["rounds"] == rounds]
        for rounds in (False, True)
    }
    means = [statistics.geometric_mean(ratios[rounds]) for rounds in (False, True)]
    return [
        *lines,
        "",
        f"Geometric means over the best peer: {means[0]:.2f} with all digits, {means[1]:.2f} with TF32. {found['device']}.",
    ]


def _peers(row: dict[str, Any]) -> dict[str, float]:
    """The least time of every peer; for times measured in graphs of few calls without the longest
    start of a graph."""
    before = row.get("before", {"calls": 1, "baselines": {}})
    earlier = {k: v - START / before["calls"] for k, v in before["baselines"].items()}
    return {k: min(d[k] for d in (row["baselines"], earlier) if k in d) for k in {**row["baselines"], **earlier}}


def timeline(found: dict[str, Any]) -> list[str]:
    """Where the time of a call goes: a row for every kernel."""
    heads = [
        "kernel, us from the end of the call before",
        "may load",
        "loop ends",
        "stores",
        "its blocks on a processor",
    ]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in found["rows"]:
        for i, each in enumerate(row.get("timeline", {}).get("launches", [])):
            loop, stored = (" to ".join(f"{t:.1f}" for t in each.get(phase, [])[::2]) for phase in ("loop", "stored"))
            beside = ", ".join(f"{n} on {count}" for n, count in each["processors"].items())
            case = f"{row['case']}, {i + 1} (a call {row['timeline']['call']:.1f})"
            lines.append(f"| {case} | {each['waited'][1]:.1f} | {loop} | {stored} | {beside} |")
    return [*lines, "", f"Median of the blocks, and first to last block. {found['device']}."]


def free_sizes(found: dict[str, Any]) -> list[str]:
    lines = ["| goal, us | sizes | free | fixed | torch | free / fixed |", "|---|---|---:|---:|---:|---:|"]
    timed = [(row["case"], each) for row in found["rows"] for each in row["timed"]]
    lines += [
        f"| {case} | {' x '.join(map(str, t['sizes']))} | {t['free']:.1f} | {t['fixed']:.1f} | {t['torch']:.1f} "
        f"| {t['free/fixed']:.2f} |"
        for case, t in timed
    ]
    mean = statistics.geometric_mean(t["free/fixed"] for _, t in timed)
    right = sum(each["right"] for row in found["rows"] for each in row["checked"])
    count = sum(len(row["checked"]) for row in found["rows"])
    said = f"Geometric mean of free / fixed {mean:.2f}; right at {right} of {count} sizes."
    return [*lines, "", f"{said} {found['device']}, torch {found['versions']['torch']}."]
