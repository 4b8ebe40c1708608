"""Options of ONNX Runtime's CPU provider, one thread among them: whether any of them makes a
model faster than the defaults.

    python bench/options_cpu.py [NAME ...] [--models DIR] [--small] [--seconds 8] [--repeats 2]
    [--threads N]

A name is one of the models of `bench/optimize.py`, or of a file NAME.onnx in DIR. A session of each
of OPTIONS and two of the defaults run in turn, and are opened anew for each repeat; every run
begins when no thread spins any more. A ratio is the median of those of the rounds, by the first
session of the defaults; that of the second one shows the noise. Denormals as zero are missing: the
thread that opens a process's first session keeps the choice of that session, so two sessions of a
process do not differ in it. Prints a line and writes
bench/results/options_cpu-cpu2.json after each row (rows of models that are not named stay).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from optimize import MODELS  # noqa: E402
from rows import Rows  # noqa: E402
from runtimes_cpu import model_of  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.machine import cores  # noqa: E402
from taso_mirage.ir.model import random_inputs  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.onnx_io.serialization import serialize  # noqa: E402
from taso_mirage.targets.onnx_runtime import opened_session, run_of  # noqa: E402

DEFAULT = "the defaults again"
PAUSE = 0.1
"""Seconds after a run, in which threads stop spinning."""


def entry(name: str, value: str) -> Callable[[Any], None]:
    return lambda options: options.add_session_config_entry(name, value)


def parallel(options: Any) -> None:
    """Operators that do not read each other run beside each other."""
    import onnxruntime

    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL


def without(name: str) -> Callable[[Any], None]:
    return lambda options: setattr(options, name, False)


OPTIONS: Mapping[str, Callable[[Any], None]] = {
    DEFAULT: lambda options: None,
    "parallel": parallel,
    "one thread": lambda options: setattr(options, "intra_op_num_threads", 1),
    "dynamic blocks": entry("session.dynamic_block_base", "4"),
    "no spinning": entry("session.intra_op.allow_spinning", "0"),
    "no arena": without("enable_cpu_mem_arena"),
    "no memory pattern": without("enable_mem_pattern"),
    "no prepacking": entry("session.disable_prepacking", "1"),
}


def opened(content: bytes, threads: int, change: Callable[[Any], None]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    change(options)
    return opened_session(content, ["CPUExecutionProvider"], options, threads)


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    model = model_of(name, options)
    content, inputs = serialize(model, True), random_inputs(model, 0)
    ratios: dict[str, list[float]] = {each: [] for each in OPTIONS}
    rounds = 0
    for _ in range(options.repeats):
        sessions = [opened(content, options.threads, change) for change in (OPTIONS[DEFAULT], *OPTIONS.values())]
        times = in_turn([run_of(session, inputs) for session in sessions], options.seconds / options.repeats)
        rounds += len(times)
        for each, taken in zip(OPTIONS, np.transpose(times)[1:], strict=True):
            ratios[each].append(round(float(np.median(times[:, 0] / taken)), 3))
        sessions.clear()
    return {"case": name, "ratios": ratios, "rounds": rounds, "load": round(os.getloadavg()[0], 2)}


def in_turn(runs: list[Callable[[], Any]], seconds: float) -> Any:
    """The seconds of each run, a row for each round."""
    for run in runs:
        run()
    found: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(found) < 5 or time.perf_counter() < end:
        found.append([])
        for run in runs:
            time.sleep(PAUSE)
            begin = time.perf_counter()
            run()
            found[-1].append(time.perf_counter() - begin)
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--models", type=Path, help="a folder of NAME.onnx")
    parser.add_argument("--small", action="store_true", help="build small configurations where there are any")
    parser.add_argument("--seconds", type=float, default=8.0, help="timing of each model")
    parser.add_argument("--repeats", type=int, default=2, help="times that all sessions are opened")
    parser.add_argument("--threads", type=int, default=cores(), help="of a run; default: one for each core")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "options_cpu-cpu2.json")
    options = parser.parse_args()
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version()}
    head = {"bench": "options_cpu", "device": runtime.device(), "versions": versions, "threads": options.threads}
    rows = Rows(options.output, {**head, "small": options.small})
    rows.run(options.names, partial(row, options=options))


if __name__ == "__main__":
    main()
