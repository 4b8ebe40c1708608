"""Writes the tables of README.md and of pages of docs/ from bench/results:
`python bench/tables.py` (--check: fail if they differ)."""

from __future__ import annotations

import json
import statistics
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from attack_tables import judging, soak  # noqa: E402
from decode_table import decode, pasts, steps  # noqa: E402
from durations import durations  # noqa: E402
from goals_table import forms, goal_rows, goals, refused, sanitized  # noqa: E402
from graphnet_table import graphnet  # noqa: E402
from kernel_tables import (  # noqa: E402
    convolutions_h100,
    free_sizes,
    kernel_search,
    kernels_cpu,
    kernels_h100,
    prepared_cpu,
    quantized_h100,
    roles,
    single_h100,
    timeline,
)
from kernelbench_table import kernelbench  # noqa: E402
from minute_table import curve, minute, quick, spent  # noqa: E402
from optimize_table import best_and_worst, optimize  # noqa: E402
from public_table import findings, kinds, public  # noqa: E402
from quantized_table import quantized  # noqa: E402
from real_table import exports, real, torchscript  # noqa: E402
from recurrent_table import recurrent, written_out  # noqa: E402
from regions_table import regions  # noqa: E402


def runtimes(found: dict[str, Any]) -> list[str]:
    heads = ["model, ms", "ours", "taken", "OpenVINO", "ONNX Runtime", "over ONNX Runtime", "over the faster of both"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    rows = [row for row in found["rows"] if "failed" not in row]
    for row in rows:
        ours, other, plain = (f"{row[k] / 1e3:.2f}" for k in ("ours", "openvino", "onnxruntime"))
        gains = [f"{row[k]:.2f}" for k in ("over onnxruntime", "over the best")]
        lines.append(f"| {' | '.join([row['case'], ours, row['taken'], other, plain, *gains])} |")
    means = [float(np.exp(np.mean(np.log([row[k] for row in rows])))) for k in ("over onnxruntime", "over the best")]
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    mean = f"Geometric means: {means[0]:.2f} over ONNX Runtime, {means[1]:.2f} over the faster of both."
    return [*lines, "", f"{mean} {found['device']}; {versions}."]


def optimize_cuda(found: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    lines = ["| model, us | ours | ONNX Runtime | its best options | torch.compile | ratio | nodes |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    for row in sorted(found["rows"], key=lambda r: (int(r["case"].rsplit(" b", 1)[1]), r["case"].split()[1])):
        baselines = row["baselines"]
        best = min(v for k, v in baselines.items() if k.startswith("onnxruntime"))
        compiled = f"{baselines['torch.compile']:.0f}" if "torch.compile" in baselines else ""
        peers = [f"{baselines['onnxruntime']:.0f}", f"{best:.0f}", compiled]
        ratio = "kept" if row["note"].startswith("measured") else f"{row['ratio']:.2f}"
        nodes = f"{row['nodes'][0]} to {row['nodes'][1]}"
        lines.append(f"| {row['case']} | {row['ours']:.0f} | {' | '.join(peers)} | {ratio} | {nodes} |")
    ratios = [r["ratio"] for r in found["rows"] if r["case"].endswith(" b1")]
    mean = float(np.exp(np.mean(np.log(ratios))))
    return [*lines, "", f"Geometric mean at batch 1 over ONNX Runtime {mean:.3f}. {found['device']}; {versions}."]


def end_to_end(found: dict[str, Any]) -> list[str]:
    """Rows in the order of batch sizes; a peer that no row has gets no column."""
    rows = sorted(found["rows"], key=lambda r: int(r["case"].rsplit(" b", 1)[1]))
    peers = [k for k in ("torch.compile", "tensorrt") if any(r.get("baselines", {}).get(k) for r in rows)]
    heads = [
        "model, ms",
        "ONNX Runtime",
        "substitutions",
        "and kernels",
        *peers,
        "ratio (quartiles)",
        "floor",
        "what is left",
    ]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 2)}---|"]
    lines += [_whole(row, peers) for row in rows]
    means = found["means"]
    names = {"ratio": "over ONNX Runtime alone", "substitutions": "by the substitutions"}
    names |= {"over_compiled": "over torch.compile"}
    said = ", ".join(f"{means[key]:.3f} {name}" for key, name in names.items() if key in means)
    said = f"Geometric means at batch 1: {said}; " if said else ""
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    least = f"least ratio of all rows {means['least']:.3f}. {found['device']}; {versions}."
    return [*lines, "", said + (least if said else least[0].upper() + least[1:])]


def _whole(row: dict[str, Any], peers: list[str]) -> str:
    if "failed" in row:
        return f"| {row['case']} | failed: {row['failed'].replace('|', '/')} |" + " |" * (5 + len(peers))
    times = [row["baselines"]["onnxruntime"], row["baselines"]["substitutions"], row["ours"]]
    times += [row["baselines"].get(k) for k in peers]
    low, high = row["quartiles"]
    ratio = "kept" if "kernels" in row["kept"] else f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"
    shares = sorted(row["left"].get("operators", {}).items(), key=lambda item: -item[1])[:3]
    left = [f"{kind} {share:.0%}" for kind, share in shares]
    between = row["left"].get("between")
    left += (
        []
        if between is None
        else [f"between them {between:.0%}" if between >= 0 else "kernels wait in each other's time"]
    )
    shown, floor = ["" if t is None else f"{t / 1e3:.2f}" for t in times], f"{row['floor']['us'] / 1e3:.2f}"
    return f"| {' | '.join([row['case'], *shown, ratio, floor, ', '.join(left)])} |"


def tensorrt_engine(found: dict[str, Any]) -> list[str]:
    """Microseconds of each model's engines, and whether all of them agree with ONNX Runtime."""
    lines = [
        "| model, us | the original | our graph | our graph, kernels as plugins | over the original | over our graph | outputs right |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in found["rows"]:
        engines = [row.get(key) for key in ("original", "reference", "plugin")]
        times = ["not built" if each is None else f"{each['us']:.0f}" for each in engines]
        ratios = [f"{row[key]:.2f}" if key in row else "" for key in ("over_original", "over_reference")]
        right = "all" if all(each["checked"] for each in engines if each is not None) else "not all"
        lines.append(f"| {' | '.join([row['model'], *times, *ratios, right])} |")
    number = found["rows"][0]["tensorrt"]
    version = f"{number // 1000}.{number // 100 % 10}.{number % 100}"
    return [*lines, "", f"TensorRT {version}, {found['device']}; taso-mirage {found['versions']['taso-mirage']}."]


def startup(found: dict[str, Any]) -> list[str]:
    return [f"- `{row['case']}`: {row['ours'] / 1e6:.2f} s" for row in found["rows"]]


def generate(found: dict[str, Any]) -> list[str]:
    lines = ["| | seconds | memory | TASO's generator | |", "|---|---:|---:|---:|---|"]
    for row in found["rows"]:
        memory = f"{row['gigabytes']} GB" if "gigabytes" in row else ""
        peer = ", ".join(f"{v:.0f} s, 7.1 GB" for v in row["baselines"].values())
        lines.append(f"| {row['case']} | {row['ours']:.3g} | {memory} | {peer} | {row['note']} |")
    return lines


def partial(found: dict[str, Any]) -> list[str]:
    lines = [
        "| program, us | alone | mutants | the best that is right everywhere | the best with corrections (without them) |",
        "|---|---:|---:|---|---|",
    ]
    for row in found["parts"]:
        if "us" in row:
            cells = [
                row["case"],
                f"{row['us']:.0f}",
                str(row["mutants"]),
                _mutant(row, "exact"),
                _mutant(row, "corrected"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    if found["models"]:
        head = "| model, us | original | without mutants | with | ratio (quartiles) | mutants, programs | pay alone, taken | s cold, warm |"
        lines += ["", head, "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for row in found["models"]:
        if "ratio" in row:
            low, high = row["quartiles"]
            times = " | ".join(f"{row[k]:.0f}" for k in ("original", "without", "with"))
            counts = f"{row['mutants']}, {row['programs']} | {row['pay_alone']}, {len(row['taken'])}"
            spent = ", ".join(f"{row['mutation_seconds'][k]:.1f}" for k in ("cold", "warm"))
            lines.append(
                f"| {row['case']} | {times} | {row['ratio']:.3f} ({low:.2f} to {high:.2f}) | {counts} | {spent} |"
            )
        else:
            lines.append(f"| {row['case']} | {row['note']} | | | | | | |")
    return [*lines, "", f"{found['device']}, {found['dtype']}, onnxruntime {found['versions']['onnxruntime']}."]


def _mutant(row: dict[str, Any], kind: str) -> str:
    if kind not in row:
        return "none"
    best = row[kind]
    bare = f" ({best['uncorrected_ratio']:.2f}; {best['right']:.0%} right)" if kind == "corrected" else ""
    return f"{best['ratio']:.2f}{bare}, {', then '.join(best['families'])}"


def search_time(found: dict[str, Any]) -> list[str]:
    lines = ["| search, s | cold | second | third | parts, by what ended the first |", "|---|---:|---:|---:|---|"]
    for row in found["rows"]:
        times = [f"{row[kind]['search']:.1f}" for kind in ("cold", "second", "third")]
        ended = ", ".join(f"{kind} ({n})" for kind, n in row["cold"]["ended"].items())
        lines.append(f"| {' | '.join([row['case'], *times, ended])} |")
    return [*lines, "", f"{found['device']}, onnxruntime {found['versions']['onnxruntime']}."]


def soundness(found: dict[str, Any]) -> list[str]:
    lines = [
        "| search, s | without proofs | with, from nothing | again | changes without, with | cost with / without "
        "| certificate | followed | accepted by the checker |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        times = [f"{row[kind]['search']:.2f}" for kind in ("without", "cold", "warm")]
        changes = f"{row['without']['changes']}, {row['cold']['changes']}"
        cost = f"{row['cold']['cost'] / row['without']['cost']:.3f}"
        accepted = row["equalities"].get("accepted by the checker", 0)
        share = f"{accepted} of {sum(row['equalities'].values())}"
        shown = [row["case"], *times, changes, cost, f"{row['written']:.2f}", f"{row['followed']:.2f}", share]
        lines.append(f"| {' | '.join(shown)} |")
    size = "small forms" if found["small"] else "full sizes"
    return [*lines, "", f"{found['device']}, {size}, onnxruntime {found['versions']['onnxruntime']}."]


def extraction(found: dict[str, Any]) -> list[str]:
    """Rows for both solvers on each e-graph; costs as a share of ours, and seconds of the
    processor."""
    heads = ["part, seconds of saturation", "classes, options", "cost, milp / ours", "gap, ours", "gap, milp"]
    heads += ["s, ours", "s, milp", "s, milp for one graph"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in found["rows"]:
        both = row["ours"], row["milp"]
        gaps = ["exact" if each["exact"] else f"{each['gap']:.3f}" for each in both]
        times = [f"{row[k]['processor']:.2f}" for k in ("ours", "milp", "one")]
        cost = f"{both[1]['cost'] / both[0]['cost']:.4f}"
        size = f"{row['classes']}, {row['options']}"
        lines.append(f"| {' | '.join([row['case'], size, cost, *gaps, *times])} |")
    exact = [sum(row[k]["exact"] for row in found["rows"]) for k in ("ours", "milp")]
    count = len(found["rows"])
    said = f"Exact of {count}: ours {exact[0]}, milp {exact[1]}."
    return [*lines, "", f"{said} {found['device']}, scipy {found['versions']['scipy']}."]


def from_torch(found: dict[str, Any]) -> list[str]:
    """Medians, and ratios round by round; the largest difference to eager at any of the sizes."""
    heads = ["model, ms", "eager", "Inductor", "ours", "over eager (quartiles)", "over Inductor (quartiles)"]
    counted = {"graphs": "graphs", "eager_graphs": "in eager", "inductor_graphs": "by Inductor"}
    counted |= {"composed_graphs": "by Inductor as optimized"}
    counted = {key: name for key, name in counted.items() if any(key in row for row in found["rows"])}
    heads += [", ".join(counted.values()), "largest difference", "s to compile, Inductor and ours"]
    keys = {"ratio": "eager", "ratio_inductor": "Inductor", "ratio_graphs": "Inductor with CUDA graphs"}
    keys = {key: name for key, name in keys.items() if key in found["rows"][0]}
    heads[6:6] = ["over it with CUDA graphs"] if "ratio_graphs" in keys else []
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in found["rows"]:
        times = [f"{t / 1e3:.2f}" for t in (row["baselines"]["eager"], row["baselines"]["inductor"], row["ours"])]
        ratios = ["{:.2f} ({:.2f} to {:.2f})".format(*row[key]) for key in keys]
        took = f"{row['seconds']['inductor']:.0f}, {row['seconds']['ours']:.0f}"
        counts = ", ".join(str(row.get(key, 0)) for key in counted)
        rest = [counts, f"{max(row['differences']):.1g}", took]
        lines.append(f"| {' | '.join([row['case'], *times, *ratios, *rest])} |")
    means = {key: statistics.geometric_mean(row[key][0] for row in found["rows"]) for key in keys}
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    said = ", ".join(f"{means[key]:.2f} over {name}" for key, name in keys.items())
    return [*lines, "", f"Geometric means: {said}. {found['device']}, {found['threads']} threads; {versions}."]


DOCS = ROOT / "docs"
PAGES = (
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((DOCS / "measured").glob("*.md")),
)


TABLES = {
    "extraction-cpu2": extraction,
    "soundness-cpu2": soundness,
    "search_time-cpu2": search_time,
    "partial-cpu2": partial,
    "partial-H100": partial,
    "end_to_end_cpu-cpu2": end_to_end,
    "end_to_end_h100-H100": end_to_end,
    "end_to_end_h100-H200": end_to_end,
    "end_to_end_real-H100": end_to_end,
    "free_sizes-H100": free_sizes,
    "tensorrt_engine-H100": tensorrt_engine,
    "kernels_h100-H100": kernels_h100,
    "kernels_h100-H100 timeline": timeline,
    "kernels_h100-H100 roles": roles,
    "kernels_h100-H200": kernels_h100,
    "kernels_h100-H200-all": kernels_h100,
    "kernels_h100-H200 roles": roles,
    "quantized_h100-H100": quantized_h100,
    "quantized_h100-H100-integers": quantized_h100,
    "quantized_h100-H200": quantized_h100,
    "single_h100-H100": single_h100,
    "convolutions_h100-H100": convolutions_h100,
    "kernel_search-cpu2": kernel_search,
    "kernels_cpu-cpu2": kernels_cpu,
    "prepared_cpu-cpu2": prepared_cpu,
    "durations-cpu2": durations,
    "generate-cpu2": generate,
    "goals-cpu2": goals,
    "goals-cpu2 forms": forms,
    "goals-cpu2 refused": refused,
    "goal_rows-H200": goal_rows,
    "sanitized-H200": sanitized,
    "optimize-cpu2": optimize,
    "optimize-cpu2 best and worst": best_and_worst,
    "runtimes-cpu2": runtimes,
    "regions_cpu-cpu2": regions,
    "optimize_cuda-H100": optimize_cuda,
    "startup-cpu2": startup,
    "real-cpu2": real,
    "real-cpu2 exports": exports,
    "real-cpu2 torchscript": torchscript,
    "quantized-cpu2": quantized,
    "quick-cpu2": quick,
    "torch-cpu2": from_torch,
    "torch-H200": from_torch,
    "torch-H200-others": from_torch,
    "torch-H200-captured": from_torch,
    "kernelbench-cpu2": kernelbench,
    "judging-cpu2": judging,
    "recurrent-cpu2": recurrent,
    "recurrent-H200": recurrent,
    "written_out-cpu2": written_out,
    "decode-cpu2": decode,
    "decode-H200": decode,
    "decode-H200 steps": steps,
    "decode-H200 pasts": pasts,
    "graphnet-cpu2-quick": graphnet,
    "graphnet-H200-quick": graphnet,
    "graphnet-H200-default": graphnet,
    "public-cpu2": public,
    "public-cpu2 findings": findings,
    "public_ours-cpu2": public,
    "public_ours-cpu2 findings": findings,
    "public_verified-cpu2": public,
    "public_verified-cpu2 findings": findings,
    "public_reports-cpu2": public,
    "public_reports-cpu2 kinds": kinds,
    "compiled-cpu2": public,
    "compiled-cpu2 kinds": kinds,
    "soak-cpu2-surfaces": soak,
    "soak-cpu2-models": soak,
    "soak-cpu2-accidents": soak,
    "kernelbench-H100": kernelbench,
    "kernelbench-H200": kernelbench,
    "minute-before-H200 spent": spent,
    "minute-H200": minute,
    "minute-H200 spent": spent,
    "minute-H100": minute,
    "minute-H100 spent": spent,
    "minute-cpu2": minute,
    "minute-cpu2 spent": spent,
    "minute-files-cpu2": curve,
    "minute-files-cpu2 spent": spent,
}


def wrapped(lines: list[str]) -> list[str]:
    """Prose in lines of at most 100 characters; rows of tables as they are."""
    return [part for line in lines for part in ([line] if line[:1] in ("", "|") else textwrap.wrap(line, 100))]


def _results(name: str) -> Any:
    """The content of a file of results; for a file of lines, the list of them."""
    path = ROOT / "bench" / "results" / f"{name}.json"
    if path.exists():
        return json.loads(path.read_text())
    return [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]


def filled(text: str) -> str:
    """A page with every section between `<!-- NAME -->` and `<!-- end -->` written anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(begin)
        if rest:
            lines = wrapped(table(_results(name.split()[0])))
            text = before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    return text


def main() -> int:
    pages = {page: page.read_text() for page in PAGES}
    if "--check" in sys.argv:
        return int(any(filled(text) != text for text in pages.values()))
    for path, text in pages.items():
        path.write_text(filled(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
