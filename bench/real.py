"""The corpus of real models (`python -m models.real FOLDER`), each through `taso-mirage optimize`
as a user would call it: no `--shape`, no `--inputs`.

    python bench/real.py FOLDER [NAME ...] [--small] [--budget 10] [--limit 120] [--kernels off]

Prints a table and writes bench/results/real-cpu2.json after each row (rows of models that are not
named stay). A row says how the run ended, how many outputs passed the check, seconds against the
budget (of the wall, and of the processor, which other load does not lengthen), the peak memory of
the largest process against the size of the model, the ratio original / ours, or why the original
was kept. A run over `--limit` is interrupted, then killed; the row says how long it took to end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from rows import Rows  # noqa: E402

from models.real import KNOWN  # noqa: E402
from models.real.known import Known  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402

STOPS = ((signal.SIGINT, 0.0), (signal.SIGKILL, 15.0))
"""What a run over the limit gets, and how many seconds later."""
TOO_SLOW = "over the limit"


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the command line: `code` is None where it had to be stopped."""

    code: int | None
    seconds: float
    processor: float
    peak: int
    output: str
    errors: str


def run(arguments: Sequence[str], limit: float) -> Run:
    """Call taso-mirage with its own process group, and stop the group when the limit is over."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "taso_mirage.cli", *arguments],
            stdout=output,
            stderr=errors,
            cwd=ROOT,
            start_new_session=True,
        )
        late = threading.Event()
        timers = [threading.Timer(limit + wait, _stop, (process.pid, kind, late)) for kind, wait in STOPS]
        for timer in timers:
            timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        for timer in timers:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        output.seek(0)
        errors.seek(0)
        code = None if late.is_set() else process.returncode
        return Run(code, seconds, usage.ru_utime + usage.ru_stime, _bytes(usage), output.read(), errors.read())


def _stop(group: int, kind: signal.Signals, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(ProcessLookupError):  # it ended just now
        os.killpg(group, kind)


def _bytes(usage: resource.struct_rusage) -> int:
    return int(usage.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def size(file: Path) -> int:
    """Bytes of a model with its external data."""
    data = file.with_suffix(".onnx.data")
    return file.stat().st_size + (data.stat().st_size if data.exists() else 0)


def row(known: Known, options: argparse.Namespace) -> dict[str, Any]:
    """One model, optimized."""
    file = options.folder / f"{known.name}.onnx"
    with tempfile.TemporaryDirectory() as place:
        wanted = ["-o", f"{place}/out.onnx", "--budget", str(options.budget), "--kernels", options.kernels, "--json"]
        done = run(["optimize", str(file.resolve()), *wanted], options.limit)
    return {
        "case": known.name,
        "origin": known.origin,
        **told(done),
        "seconds": round(done.seconds, 1),
        "processor_seconds": round(done.processor, 1),
        "budget": options.budget,
        "peak_mb": round(done.peak / 1e6, 1),
        "model_mb": round(size(file) / 1e6, 3),
    }


def told(done: Run) -> dict[str, Any]:
    """What the run says of itself."""
    if done.code != 0:
        lines = [line for line in done.errors.strip().splitlines() if line.strip()]
        ended = TOO_SLOW if done.code is None else f"exit {done.code}"
        return {"ended": ended, "checked": None, "ratio": None, "note": " / ".join(lines[-3:])[:400]}
    said = json.loads(done.output)
    passed = [each["passed"] for each in said["check"]]
    timed = said["time"] or {}
    return {
        "ended": "changed" if said["changed"] else "kept",
        "checked": f"{sum(passed)} of {len(passed)}",
        "ratio": timed.get("ratio") and round(timed["ratio"], 3),
        "quartiles": [round(q, 3) for q in timed.get("quartiles") or ()],
        "stages": {stage: round(seconds, 1) for stage, seconds in said["seconds"].items() if seconds >= 0.05},
        "equations": sum(said["equations"].values()),
        "note": "; ".join(said["notes"]),
    }


def show(r: dict[str, Any]) -> None:
    ratio = "-" if r["ratio"] is None else f"{r['ratio']:.3f}"
    print(
        f"{r['case']:24} {r['ended']:14} {r['checked'] or '-':>8} {r['seconds']:6.1f} s of {r['budget']:.0f} "
        f"({r['processor_seconds']:.1f} s) {r['peak_mb']:7.0f} MB of {r['model_mb']:.1f} ratio {ratio} {r['note']}",
        flush=True,
    )


def versions() -> dict[str, str]:
    found = {"taso-mirage": __version__, "onnxruntime": runtime.child_version()}
    return {name: re.sub(r"\s.*", "", version) for name, version in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where `python -m models.real` put the models")
    parser.add_argument("names", nargs="*", help="these models only")
    parser.add_argument("--small", action="store_true", help="only those that are marked small")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of search")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a run is stopped")
    parser.add_argument("--kernels", choices=("off", "search", "cached"), default="off")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "real-cpu2.json")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(KNOWN)):
        parser.error(f"no model is named {unknown[0]!r}; `python -m models.real --list` prints the names")
    chosen = [k for k in KNOWN.values() if k.name in options.names or not (options.names or (options.small > k.small))]
    head = {"bench": "real", "device": runtime.device(), "unit": "s", "versions": versions()}
    rows = Rows(options.output, {**head, "kernels": options.kernels})
    for known in chosen:
        if not (options.folder / f"{known.name}.onnx").exists():
            print(f"{known.name}: not in {options.folder}; `python -m models.real {options.folder} {known.name}`")
            continue
        found = row(known, options)
        rows.keep(found)
        show(found)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
