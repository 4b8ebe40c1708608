"""Tilings of the kernels that combine parts, one by one on an NVIDIA GPU, and which of them the
analytic model chooses.

    python bench/second_kernels.py [--measure]

Without options: for every first kernel of bench/results/second_kernels-H100.json, how far the
model's choice of the second one is behind the best that was measured (and the best of its first
three). `--measure` writes that file anew: behind the first kernel of each row of two in
bench/results/kernels_h100-H100.json, tilings of the second one by 1 to 8 warps, in CUDA graphs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from models.workloads import BEYOND, PAPER  # noqa: E402
from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.emit import compile_jobs, tune  # noqa: E402
from taso_mirage.emit.gpu.buffers import kernel_terms  # noqa: E402
from taso_mirage.emit.gpu.program import LaunchSchedule, TritonProgram  # noqa: E402
from taso_mirage.errors import RuntimeUnavailable  # noqa: E402
from taso_mirage.mugraph.search import Search, SearchOptions, TiledPlan  # noqa: E402
from taso_mirage.mugraph.tilings import Tiled, tiled  # noqa: E402

RESULTS = ROOT / "bench" / "results"
WIDTH = 2
"""Bytes of an element of the workloads."""
SLOWER, MOST = 1.35, 30
"""Tilings are measured that the model holds to be at most so much slower than its first, and at
most so many of a kernel."""
WARPS = (1, 2, 4, 8)


def found(case: str, grid: Sequence[int], loop: int, labels: Collection[str] | None = None) -> tuple[Search, TiledPlan]:
    """The first muGraph of two kernels for a row such as 'gqa batch=8' whose first kernel has this
    grid and loop; and whose second one has tiles of these `labels`, if they are given."""
    name, *sizes = case.split()
    workload = {**PAPER, **BEYOND}[name](**{k: int(v) for k, v in (each.split("=") for each in sizes)})
    search = Search(workload.graph(), SearchOptions())
    for each in search.candidates():
        graph = each.graph() if len(each.plan) == 2 else None
        if graph is not None and (labels is None or {*each.plan[1].tiles} == {*labels}):
            first = kernel_terms(graph)[0]
            if [list(first.attr("grid")), first.attr("loop")] == [list(grid), loop] and search.accepted(each):
                return search, each
    raise LookupError(f"{case}: no first kernel of {grid} blocks with {loop} iterations")


def choices(candidate: TiledPlan) -> list[Tiled]:
    """All tilings of the second kernel, the model's first one first."""
    return tiled(candidate.plan[1].kernel, candidate.closure, candidate.sizes, WIDTH, H100, 10_000)


def behind(row: dict[str, Any]) -> tuple[float, float]:
    """How many times as long as the best the model's choice takes, and the best of its first three;
    each with its best warps."""
    measured = {tuple(sorted(t["tiles"].items())): min(t["us"].values()) for t in row["tilings"]}
    _, candidate = found(row["case"], row["grid"], row["loop"], row["tilings"][0]["tiles"])
    times = [measured[key] for each in choices(candidate) if (key := tuple(sorted(each.tiles.items()))) in measured]
    return times[0] / min(times), min(times[:3]) / min(times)


def programs(row: dict[str, Any]) -> Iterator[tuple[Tiled, int, TritonProgram]]:
    """Tilings and warps of the second kernel behind a measured first one with its schedule."""
    first = row["launches"][0]
    search, candidate = found(row["case"], first["grid"], first["loop"])
    every = choices(candidate)
    near = [each for each in every if each.seconds <= SLOWER * every[0].seconds]
    for each in near[:: math.ceil(len(near) / MOST)]:
        accepted = search.accepted(replace(candidate, plan=(candidate.plan[0], each)))
        if accepted is not None:
            program = tune.overlapped(accepted.program())
            program = tune.scheduled(program, 0, LaunchSchedule(first["warps"], first["stages"], True))
            guess = program.launches[1].schedule
            for warps in sorted({s.warps for s in tune.schedules(program.launches[1])}.intersection(WARPS)):
                yield each, warps, tune.scheduled(program, 1, replace(guess, warps=warps))


def measured(row: dict[str, Any], compiler: compile_jobs.Compiler) -> dict[str, Any]:
    """One row of the file."""
    variants = list(programs(row))
    with TemporaryDirectory() as folder:
        seconds = tune._Bench("", Path(folder), None, compiler, None).seconds([p for *_, p in variants])
    tilings: dict[tuple[tuple[str, int], ...], dict[str, Any]] = {}
    for (each, warps, program), taken in zip(variants, seconds, strict=True):
        entry = {"grid": program.launches[1].grid, "tiles": dict(each.tiles), "us": {}}
        if math.isfinite(taken):
            tilings.setdefault(tuple(each.tiles.items()), entry)["us"][str(warps)] = round(taken * 1e6, 2)
    first = row["launches"][0]
    return {"case": row["case"], "grid": first["grid"], "loop": first["loop"], "tilings": list(tilings.values())}


def measure(device: str) -> None:
    """Write the file, row by row."""
    rows = json.loads((RESULTS / "kernels_h100-H100.json").read_text())["rows"]
    path, done = RESULTS / f"second_kernels-{device.removeprefix('NVIDIA ').split()[0]}.json", []
    with closing(compile_jobs.compilers(os.cpu_count() or 2)) as compiler:
        for row in [each for each in rows if len(each["launches"]) == 2]:
            done.append(measured(row, compiler))
            result = {"bench": "second_kernels", "device": device, "unit": "us", "rows": done}
            path.write_text(json.dumps(result) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="on the GPU that is there, first")
    if parser.parse_args().measure:
        try:
            measure(tune.gpu_and_versions())
        except RuntimeUnavailable as error:
            parser.error(str(error))
    ratios = []
    for row in json.loads((RESULTS / "second_kernels-H100.json").read_text())["rows"]:
        ratios.append(behind(row))
        shown = f"{row['case']} behind {row['grid']} blocks"
        print(
            f"{shown:60} {len(row['tilings']):3} tilings, the model's {ratios[-1][0]:.3f}, of three {ratios[-1][1]:.3f}"
        )
    means = [math.exp(sum(map(math.log, each)) / len(each)) for each in zip(*ratios, strict=True)]
    print(f"geometric means {means[0]:.3f} and {means[1]:.3f}")


if __name__ == "__main__":
    main()
