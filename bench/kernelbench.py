"""KernelBench: PyTorch programs by eager PyTorch, by torch.compile with Inductor, and by
`taso_mirage.optimize` (extra `torch`, and a C++ compiler for Inductor).

    python bench/kernelbench.py FOLDER [NAME ...] [--levels 1,2,3] [--sample 60] [--device cuda]

FOLDER is a clone of https://github.com/ScalingIntelligence/KernelBench; a NAME is a part of a
program's, as `level1/19_`. Each program runs in a process of its own with a limit of time and of
memory, and adds a line of JSON to the output when it has ended. Those that are there in the same
setting are not run again, so a run may be interrupted and goes on with the same command.

As the benchmark prescribes: its seed, weights and training mode; five random inputs with its seeds,
equal by its tolerance of single precision (1e-4; the package's own check and the comparison with
eager of its PyTorch backend come before); five runs to warm up and 100 trials, on a GPU with a cold
cache and the time from idle to idle. Unlike there, all three run in turn in one process, and
medians count.

A program of which nothing is faster than Inductor runs by its code (on a GPU): it ended as
`inductor`, and its ratio over Inductor is 1 by construction. One that runs by Inductor as it was
optimized, with our kernels in it, ended as `whole`; its graphs count as `composed`. Ours compiles
first, so the seconds of Inductor's own compilation are those with a warm cache then.

`--scale S` makes batches S times as small and extents the square root of S times: the sizes are
meant for GPUs. A program that does not run so has both the square root of S times as small, or
batches alone, or its own sizes. Each line names the changes; such times are not figures of
KernelBench. `--trials 0` measures nothing: how many programs go through; then `--jobs` may run
several at once. On GPUs they may be timed too: while one program is optimized, compared or measured
on a GPU, the others there are built or compiled by Inductor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.cuda.device import gpu_name  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["kernelbench_program"])
RUNNING: set[int] = set()
"""Processes of programs, each with its children in a group of its own."""
PLACES: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
"""One for each of the jobs: its GPU, and the file that a program locks to be alone there."""
PASSED = ("device", "scale", "budget", "seconds", "trials", "memory")
"""Options of a program's process."""
SETTING = ("device", "scale", "budget", "trials")
"""Options at which a line of an earlier run counts."""


def programs(folder: Path, levels: Sequence[int], names: Sequence[str]) -> dict[str, Path]:
    """The programs by level and number, those whose name has one of the names."""
    found = {}
    for level in levels:
        paths = (folder / "KernelBench" / f"level{level}").glob("[0-9]*_*.py")
        for path in sorted(paths, key=lambda path: int(path.name.partition("_")[0])):
            name = f"level{level}/{path.stem}"
            if not names or any(part in name for part in names):
                found[name] = path
    return found


def ran(name: str, path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The line of a program."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        place = PLACES.get()
        given = {**{k: getattr(options, k) for k in PASSED}, "gpu": place[0], "lock": place[1]}
        process = FORKS.Process(target=started, args=(path, answer, log, given))
        process.start()
        RUNNING.add(process.pid)
        process.join(options.limit)
        late = process.exitcode is None
        if late:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        RUNNING.discard(process.pid)
        PLACES.put(place)
        row = json.loads(answer.read_text()) if answer.exists() else {"ended": "failed at the start"}
        said = log.read_text(errors="replace") if log.exists() else ""
    if late:
        row["reason"] = f"it took more than {options.limit:.0f} s"
    elif process.exitcode:
        last = [line.strip() for line in said.splitlines() if line.strip()][-1:] or ["it said nothing"]
        row["reason"] = f"its process ended with {process.exitcode}: {last[0][:200]}"
    if options.log is not None:
        options.log.mkdir(parents=True, exist_ok=True)
        (options.log / f"{name.replace('/', ' ')}.log").write_text(said)
    return {"case": name, **row, "took": round(time.monotonic() - start, 1)}


def started(path: Path, answer: Path, log: Path, options: dict[str, Any]) -> None:
    """The process of a program."""
    from kernelbench_program import Options, run

    run(path, answer, log, Options(**options))


def earlier(path: Path, setting: dict[str, Any]) -> set[str]:
    """The programs that have a line in this setting."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {line["case"] for line in lines if line["setting"] == setting}


def asked() -> argparse.Namespace:
    """The options of the command line, with the programs that they choose as `chosen`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--levels", default="1,2,3")
    parser.add_argument(
        "--sample", type=int, help="so many of them, drawn with --seed, of each level a share like its own"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of the search, for each graph")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0, help="no trial begins later, but for the first three")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a program's process")
    parser.add_argument("--memory", type=float, default=16.0, help="GB of a program's process, on a CPU")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--gpus", default="", help="those of the jobs, as 0,1: each has one of them")
    parser.add_argument("--log", type=Path, help="a folder for what each process says")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_intermixed_args()
    if options.jobs > 1 and options.trials and options.device == "cpu":
        parser.error("--jobs is for --trials 0: programs that run at once disturb each other's times")
    options.chosen = programs(options.folder, [int(level) for level in options.levels.split(",")], options.names)
    if not options.chosen:
        parser.error(f"{options.folder} has no such programs in KernelBench/level1 and so on")
    return options


def main() -> None:
    options = asked()
    setting = {
        **{name: getattr(options, name) for name in SETTING},
        "machine": runtime.device(),
        **({"gpu": gpu_name()} if options.device == "cuda" else {}),
        "threads": len(os.sched_getaffinity(0)),
        "versions": {
            "taso-mirage": __version__,
            "onnxruntime": runtime.child_version(),
            "torch": metadata.version("torch"),
        },
    }
    done = earlier(options.output, setting)
    # the process that is forked finds the module of a program by this alone
    os.environ["PYTHONPATH"] = os.pathsep.join((*sys.path[:2], os.environ.get("PYTHONPATH", "")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (
        tempfile.TemporaryDirectory() as locks,
        options.output.open("a") as lines,
        ThreadPoolExecutor(options.jobs) as threads,
    ):
        gpus = options.gpus.split(",")
        for i in range(options.jobs):
            PLACES.put((gpu := gpus[i % len(gpus)], f"{locks}/gpu{gpu}"))
        waiting = [name for name in sampled(list(options.chosen), options.sample, options.seed) if name not in done]
        try:
            for row in threads.map(lambda name: ran(name, options.chosen[name], options), waiting):
                lines.write(json.dumps({**row, "setting": setting}) + "\n")
                lines.flush()
                ratio = row.get("times", {}).get("ratio", "")
                print(row["case"], row["ended"], row.get("reason", ""), ratio, flush=True)
        except BaseException:  # an interrupt: nothing is left behind
            threads.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                with suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
            raise


def sampled(names: list[str], count: int | None, seed: int) -> list[str]:
    """A sample of the names, with a share of each level like its own."""
    if count is None or count >= len(names):
        return names
    drawn = random.Random(seed)
    levels = {level: list(group) for level, group in groupby(names, key=lambda name: name.partition("/")[0])}
    kept = {n for group in levels.values() for n in drawn.sample(group, round(count * len(group) / len(names)))}
    return [name for name in names if name in kept]


if __name__ == "__main__":
    main()
