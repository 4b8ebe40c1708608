"""The time before a user sees any effect: `--help`, and the import of the package, against an empty
Python.

    python bench/startup.py [--runs 15]

Prints a table and writes bench/results/startup-cpu2.json. The three commands run in turn; medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from taso_mirage import __version__  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402

BASELINE = ("-c", "pass")
CASES = {
    "taso-mirage --help": ("-m", "taso_mirage.cli", "--help"),
    "import taso_mirage": ("-c", "import taso_mirage"),
}


def seconds(arguments: tuple[str, ...]) -> float:
    """The wall time of one fresh interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measured(runs: int) -> list[dict[str, Any]]:
    """One row for every case. The first round only fills the caches of the disk and of bytecode."""
    commands = [BASELINE, *CASES.values()]
    times = np.array([[seconds(c) for c in commands] for _ in range(runs + 1)])[1:] * 1e6
    low, median, high = np.percentile(times, (25, 50, 75), axis=0)
    return [
        {
            "case": name,
            "ours": round(float(median[i])),
            "baselines": {"python -c pass": round(float(median[0]))},
            "ratio": round(float(median[0] / median[i]), 4),
            "quartiles": [round(float(low[i])), round(float(high[i]))],
            "runs": runs,
            "spread": round(float((high[i] - low[i]) / median[i]), 4),
            "note": f"{(median[i] - median[0]) / 1e3:.0f} ms above an empty Python",
        }
        for i, name in enumerate(CASES, 1)
    ]


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'command':20} {'Python ms':>9} {'ours ms':>9} {'quartiles':>14} note")
    for r in rows:
        quartiles = f"{r['quartiles'][0] / 1e3:.0f} to {r['quartiles'][1] / 1e3:.0f}"
        baseline = r["baselines"]["python -c pass"] / 1e3
        print(f"{r['case']:20} {baseline:9.1f} {r['ours'] / 1e3:9.1f} {quartiles:>14} {r['note']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="runs of each command")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "startup-cpu2.json")
    options = parser.parse_args()
    rows = measured(options.runs)
    show(rows)
    versions = {"taso-mirage": __version__, "python": platform.python_version()}
    found = {"bench": "startup", "device": runtime.device(), "versions": versions, "unit": "us", "rows": rows}
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
