"""Writes the tables of README.md from bench/results/*.json: `python bench/tables.py` (with --check: fail if they differ)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent


def optimize_cpu(found: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    lines = [
        "| model | ONNX Runtime | optimized | ratio (quartiles) | nodes | whole job |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        low, high = row["quartiles"]
        ratio = (
            f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})" if not row["note"].startswith("the original") else "kept"
        )
        lines.append(
            f"| {row['case']} | {row['baselines']['onnxruntime'] / 1e3:.2f} ms | {row['ours'] / 1e3:.2f} ms | {ratio} "
            f"| {row['nodes'][0]} to {row['nodes'][1]} | {row['search_seconds']:.0f} s |"
        )
    mean = float(np.exp(np.mean([np.log(r["ratio"]) for r in found["rows"]])))
    lines += ["", f"Geometric mean of the ratios {mean:.3f}. {found['device']}; {versions}."]
    return lines


def startup(found: dict[str, Any]) -> list[str]:
    return [f"- `{row['case']}`: {row['ours'] / 1e6:.2f} s" for row in found["rows"]]


def generate(found: dict[str, Any]) -> list[str]:
    lines = ["| | seconds | memory | TASO's generator | |", "|---|---:|---:|---:|---|"]
    for row in found["rows"]:
        memory = f"{row['gigabytes']} GB" if "gigabytes" in row else ""
        peer = ", ".join(f"{v:.0f} s, 7.1 GB" for v in row["baselines"].values())
        lines.append(f"| {row['case']} | {row['ours']:.3g} | {memory} | {peer} | {row['note']} |")
    return lines


TABLES = {"generate-cpu2": generate, "optimize_cpu-cpu2": optimize_cpu, "startup-cpu2": startup}


def filled(text: str) -> str:
    """README with every section between `<!-- NAME -->` and `<!-- end -->` written anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(begin)
        if rest:
            found = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
            text = before + begin + "\n".join(table(found)) + "\n" + end + rest.partition(end)[2]
    return text


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    if "--check" in sys.argv:
        return int(filled(text) != text)
    readme.write_text(filled(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
