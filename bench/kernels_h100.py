"""Searched, generated and tuned kernels on one NVIDIA GPU against PyTorch (eager, torch.compile
max-autotune, and SDPA), cuBLAS (8-bit floats), cuDNN (convolutions) and FlashInfer.

    python bench/kernels_h100.py [ROW ...] [--no-peers] [--alone] [--programs 50] [--workers N]
        [--append]

Prints a table and writes bench/results/kernels_h100-DEVICE.json (microseconds a call). Everything
starts from the goal: the search (with verification) and the compilers run in worker processes, the
programs are measured in this one. With `--alone` each row is searched and tuned a second time, as
if the GPU had no clusters: their gain. Attention is measured in both forms, also the one whose
warps have roles; the row says both. Method: CUDA graphs of 64 calls or more (of slow calls as many
as take 5 ms) on both sides, inputs that rotate through three times the L2 cache, medians. Results
are compared with the goal in float64 at the real size before anything is timed. Peers get their
inputs in the layout that they like best, made ahead of time, and the best of them counts. `--trials
FILE` writes all measurements with the analytic model's predictions, `--sources DIR` the fastest
programs (for a profiler, say).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import convolution_peer  # noqa: E402
import flashinfer_peer  # noqa: E402
import float8_peer  # noqa: E402
import kernel_timeline  # noqa: E402
import latent_peer  # noqa: E402
from eager_kernels import EAGER, PREPARE, SDPA, Function, for_sdpa, sdpa  # noqa: E402

from models.workloads import BEYOND, PAPER  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.devices.device import Device  # noqa: E402
from taso_mirage.emit import compile_jobs, triton, tune  # noqa: E402
from taso_mirage.emit.gpu.program import TritonProgram  # noqa: E402
from taso_mirage.errors import RuntimeUnavailable  # noqa: E402
from taso_mirage.forms.base.form import GPU_GOALS  # noqa: E402
from taso_mirage.ir.terms import Graph  # noqa: E402
from taso_mirage.mugraph.found import FoundMuGraph  # noqa: E402
from taso_mirage.mugraph.search import superoptimize  # noqa: E402

TOLERANCE = 4e-3
"""The norm of the difference from float64, over its norm: half precision has 5e-4 an element."""


# ---------------------------------------------------------------- rows


@dataclass(frozen=True)
class Row:
    """A workload at a size, and the microseconds that it is to take."""

    name: str
    sizes: dict[str, int]
    bar: float | None = None

    @property
    def case(self) -> str:
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.sizes.items())])


ROWS = (
    Row("gated_mlp", {}, 25.0),
    Row("lora", {}, 4.0),
    Row("lora", {"width": 4096}, 20.0),
    Row("rmsnorm_linear", {"batch": 1}, 20.0),
    Row("rmsnorm_linear", {"batch": 8}, 20.0),
    Row("ntrans", {"batch": 1}, 2.0),
    Row("ntrans", {"batch": 8}, 2.9),
    Row("gqa", {"batch": 1}, 8.0),
    Row("gqa", {"batch": 8}, 15.0),
    Row("qknorm", {"batch": 1}, 9.0),
    Row("qknorm", {"batch": 8}, 19.0),
    Row("gqa", {"width": 128, "keys": 8192}),
    Row("long_attention", {"group": 8}),
    Row("long_attention", {"group": 1}),
    Row("lora", {"width": 4096, "rank": 64}),
    Row("rmsnorm_gamma_linear", {"batch": 1}),
    Row("masked_attention", {}),
    Row("rotary_attention", {}),
    Row("gated_mlp_down", {}),
    Row("float8_linear", {"batch": 16}),
    Row("float8_linear", {"batch": 128}),
    Row("float8_linear", {"batch": 16, "rows": 0}),
    Row("float8_attention", {}),
    Row("latent_attention", {}, 12.0),
    *(Row("convolution", {"side": 56 >> i, "channels": 128 << i, "group": 32}) for i in range(4)),
    Row("convolution", {"side": 56, "channels": 144, "group": 144}),
)


ALONE = replace(H100, cluster=1)


def goal(row: Row) -> Graph:
    if row.name == convolution_peer.NAME:
        return convolution_peer.goal(**row.sizes)
    return {**PAPER, **BEYOND}[row.name](**row.sizes).graph()


def searched(graph: Graph, best: int, device: Device = H100, budget: float = 120.0) -> list[TritonProgram]:
    """The programs of the muGraphs that the search finds, the fastest by its model first."""
    found: dict[str, TritonProgram] = {}
    for each in _mugraphs(graph, best, device, budget):
        found |= {program.source: program for program in triton.program_forms(each.graph, device.specialized)}
    return list(found.values())


def _mugraphs(graph: Graph, best: int, device: Device, budget: float) -> list[FoundMuGraph]:
    by_hand = GPU_GOALS.read(graph)
    if by_hand is not None:
        return by_hand.mugraphs(graph, device)
    return superoptimize(graph, best=best, budget=budget, device=device)


# ---------------------------------------------------------------- measuring


def checker(eager: Function, errors: list[float]) -> tune.Check:
    """Whether results are the goal's in float64, by norm; the errors are noted."""
    known: dict[int, Any] = {}

    def check(inputs: Sequence[Any], results: Sequence[Any]) -> bool:
        key = inputs[0].data_ptr()
        if key not in known:
            known[key] = eager(*[x.double() for x in inputs])
        wanted = known[key]
        error = float((results[0].double() - wanted).norm() / wanted.norm())
        errors.append(error)
        return math.isfinite(error) and error < TOLERANCE

    return check


def peers(row: Row, sets: Sequence[Sequence[Any]], check: tune.Check) -> Iterator[tuple[str, float]]:
    """Every peer with its seconds a call; a peer that fails or is wrong has no figure."""
    import torch._inductor.config
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch._inductor.config.precompilation_timeout_seconds = 60  # a template that hangs its compiler is not waited for
    eager = EAGER[row.name]
    kinds: list[tuple[str, Function, Sequence[Sequence[Any]], Any]] = [("eager", eager, sets, None)]
    compiled = partial(torch.compile, mode="max-autotune-no-cudagraphs", dynamic=False)
    kinds.append(("torch.compile", compiled(eager), sets, None))
    if row.name in SDPA:
        arranged = [for_sdpa(row.name, inputs) for inputs in sets]
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            label = f"SDPA {backend.name.split('_')[0].lower()}"
            kinds.append((label, SDPA[row.name], arranged, backend))
            if SDPA[row.name] is not sdpa and backend is SDPBackend.FLASH_ATTENTION:
                kinds.append((f"{label}, compiled", compiled(SDPA[row.name]), arranged, backend))
        kinds += [(*each, None) for each in latent_peer.kinds(row.name, arranged)]
        kinds += [(*each, None) for each in _flashinfer(row.name, arranged)]
    kinds += [(*each, None) for each in float8_peer.kinds(row.name, sets)]
    kinds += [(*each, None) for each in convolution_peer.kinds(row.name, sets)]
    for label, call, inputs, backend in kinds:
        torch._dynamo.reset()
        try:
            with sdpa_kernel([backend] if backend is not None else [SDPBackend.MATH]), torch.inference_mode():
                result = call(*inputs[0])
                if not check(sets[0], (result.reshape(eager_shape(row, sets[0])),)):
                    print(f"  {label} is wrong", flush=True)
                    continue
                yield label, tune.measured(call, inputs)
        except Exception as error:  # a peer that fails has no figure
            print(f"  {label}: {str(error).splitlines()[0][:120]}", flush=True)


def _flashinfer(name: str, arranged: Sequence[Sequence[Any]]) -> list[flashinfer_peer.Kind]:
    try:
        return list(flashinfer_peer.kinds(name, arranged, PREPARE.get(name)))
    except Exception as error:  # it is not there, or does not go with this PyTorch
        print(f"  no FlashInfer: {type(error).__name__}: {str(error)[:120]}", flush=True)
        return []


def eager_shape(row: Row, inputs: Sequence[Any]) -> tuple[int, ...]:
    return tuple(EAGER[row.name](*[x.to("meta") for x in inputs]).shape)


def measured(
    row: Row, programs: Sequence[TritonProgram], compiler: compile_jobs.Compiler, with_peers: bool
) -> tuple[dict[str, Any], Any]:
    """One row, and all trials."""
    errors: list[float] = []
    check = checker(EAGER[row.name], errors)
    start = time.perf_counter()
    best = tune.tuned_program(programs, compiler=compiler, check=check)
    seconds = time.perf_counter() - start
    sets = tune.input_sets(best.program)
    others = dict(peers(row, sets, check)) if with_peers else {}
    inputs = sum(b.bytes for b in best.program.buffers if b.role != "scratch")
    found = {
        "case": row.case,
        "ours": best.seconds * 1e6,
        "baselines": {k: v * 1e6 for k, v in others.items()},
        "bar": row.bar,
        "floor": inputs / H100.bandwidth * 1e6,
        "error": max((e for e in errors if e < TOLERANCE), default=None),
        "refused": sum(not e < TOLERANCE for e in errors),
        "programs": len(programs),
        "trials": len(best.trials),
        "tuning_seconds": round(seconds, 1),
        "model": ranking(best, len(programs)),
        "launches": shown_launches(best.program),
        "clusters": fastest(best, lambda program: any(x.cluster != 1 for x in program.launches)),
        "specialized": fastest(best, specialized),
        "plain": fastest(best, lambda program: not specialized(program)) if any(map(specialized, programs)) else None,
        "calls": math.ceil(tune.REPLAYED / len(sets)) * len(sets),
    }
    try:
        if not specialized(best.program):  # whose groups have no place to note times in
            found["timeline"] = kernel_timeline.timeline(best.program, sets)
    except Exception as error:  # the row is wanted all the same; before sm_90 kernels cannot note when they may load
        print(f"  no timeline: {str(error)[:120]}", flush=True)
    return found, best


def fastest(best: tune.TunedProgram, holds: Callable[[TritonProgram], bool]) -> dict[str, Any] | None:
    """The fastest of the programs of a kind."""
    found = [t for t in best.trials if math.isfinite(t.seconds) and holds(t.program)]
    least = min(found, key=lambda t: t.seconds, default=None)
    return least and {"us": least.seconds * 1e6, "launches": shown_launches(least.program)}


def specialized(program: TritonProgram) -> bool:
    """Whether warps have roles."""
    return any(x.schedule.specialized for x in program.launches)


def alone(row: Row, programs: Sequence[TritonProgram], compiler: compile_jobs.Compiler) -> dict[str, Any]:
    """The measurements of a row with programs without clusters."""
    best = tune.tuned_program(programs, compiler=compiler, check=checker(EAGER[row.name], []))
    return {"us": best.seconds * 1e6, "launches": shown_launches(best.program)}


def shown_launches(program: TritonProgram) -> list[dict[str, Any]]:
    return [{"grid": x.grid, "loop": x.loop, "cluster": x.cluster} | asdict(x.schedule) for x in program.launches]


def least(*runs: Mapping[str, float]) -> dict[str, float]:
    """Each peer's least time over runs: the kernels that torch.compile chooses differ from run to
    run."""
    return {
        peer: min(run[peer] for run in runs if peer in run) for peer in dict.fromkeys(p for run in runs for p in run)
    }


def ranking(best: tune.TunedProgram, count: int) -> dict[str, float]:
    """How well the search's order is that of the measurements (rank correlation), and how much
    slower than the best of all programs, with the schedules that were guessed, the best of the
    first eight is."""
    times = np.array([trial.seconds for trial in best.trials[:count]])
    fine = np.isfinite(times)
    place, rank = np.flatnonzero(fine), times[fine].argsort().argsort()
    correlation = float(np.corrcoef(place.argsort().argsort(), rank)[0, 1]) if fine.sum() > 2 else 0.0
    return {"rank_correlation": round(correlation, 3), "best_of_8": round(float(times[:8].min() / times.min()), 3)}


def noted(row: Row, programs: Sequence[TritonProgram], best: tune.TunedProgram) -> list[dict[str, Any]]:
    """All trials of a row, for a look at the model."""
    place = {_kind(p): i for i, p in enumerate(programs)}
    found = []
    for trial in best.trials:
        p = trial.program
        launches = [{"grid": x.grid, "loop": x.loop, **asdict(x.schedule), **asdict(x.traffic)} for x in p.launches]
        us = trial.seconds * 1e6 if math.isfinite(trial.seconds) else None
        model = tune.ranked([p])[0][0] * 1e6
        found.append({"case": row.case, "place": place.get(_kind(p)), "us": us, "model": model, "launches": launches})
    return found


def _kind(program: TritonProgram) -> str:
    """A key of a program without its schedules."""
    return str([(x.name, x.grid, x.loop, x.traffic, x.schedule.specialized) for x in program.launches])


def _shown(launch: Mapping[str, Any]) -> str:
    cluster = f" clusters of {launch['cluster']}" if launch.get("cluster", 1) != 1 else ""
    roles = " roles" if launch.get("specialized") else ""
    return f"{launch['grid']}{cluster}{roles} loop {launch['loop']} w{launch['warps']} s{launch['stages']}"


def show(row: dict[str, Any]) -> None:
    best = min(row["baselines"].values(), default=math.nan)
    others = ", ".join(f"{k} {v:.1f}" for k, v in row["baselines"].items())
    bar = f"(bar {row['bar']:g})" if row["bar"] else ""
    shown = "; ".join(_shown(x) for x in row["launches"])
    kinds = {
        "clusters": "with clusters",
        "specialized": "with roles",
        "plain": "without roles",
        "alone": "without clusters",
    }
    for kind, said in kinds.items():
        if row.get(kind):
            others += f" | {said} {row[kind]['us']:.2f} us, {'; '.join(map(_shown, row[kind]['launches']))}"
    print(
        f"{row['case']:36} {row['ours']:7.2f} us {bar:9} floor {row['floor']:5.1f} best peer {best:7.1f} ratio "
        f"{best / row['ours']:5.2f} | {shown} | {row['programs']} programs, {row['trials']} trials, {row['refused']} refused, "
        f"{row['tuning_seconds']:.0f} s | {others}",
        flush=True,
    )


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="workloads, or rows such as 'gqa batch=8'; all if left out"
    )
    parser.add_argument("--programs", type=int, default=50, help="muGraphs of a row that are generated and measured")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--alone", action="store_true", help="measure each row without clusters, too")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="with --append: only rows that the file lacks, or has of graphs without a number of calls",
    )
    parser.add_argument(
        "--append", action="store_true", help="keep the other rows, and of each peer the least time of all runs"
    )
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--trials", type=Path)
    parser.add_argument("--sources", type=Path, metavar="DIR")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if unknown := set(options.rows) - {each for row in ROWS for each in (row.name, row.case)}:
        parser.error(f"no workload is named {min(unknown)}")
    try:
        options.device = tune.gpu_and_versions()
    except RuntimeUnavailable as error:
        parser.error(str(error))
    return options


def merged(found: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """A row with the file's data of its peers: their least times, and those in graphs of fewer
    calls (`before`, until 2026-11-23)."""
    peers = least(found["baselines"], earlier["baselines"]) if "calls" in earlier else found["baselines"]
    return found | {"baselines": peers} | {k: v for k, v in earlier.items() if k == "before"}


def main() -> None:
    options = read_options()
    name = options.device.removeprefix("NVIDIA ").split()[0]
    path = options.output or ROOT / "bench" / "results" / f"kernels_h100-{name}.json"
    before = json.loads(path.read_text())["rows"] if options.append and path.exists() else []
    rows = {r["case"]: r for r in before}
    chosen = [row for row in ROWS if not options.rows or row.name in options.rows or row.case in options.rows]
    chosen = [row for row in chosen if not (options.missing and "calls" in rows.get(row.case, {}))]
    trials: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(options.workers, spawn) as executor,
        closing(compile_jobs.compilers(options.workers)) as compiler,
    ):
        asked = [(row, executor.submit(searched, goal(row), options.programs)) for row in chosen]
        single = [executor.submit(searched, goal(row), options.programs, ALONE) for row in chosen if options.alone]
        for i, (row, future) in enumerate(asked):
            programs = future.result()
            try:
                found, best = measured(row, programs, compiler, not options.no_peers)
                found |= {"alone": alone(row, single[i].result(), compiler)} if options.alone else {}
            except Exception as error:  # the other rows are wanted all the same
                print(f"{row.case}: {type(error).__name__}: {error}", flush=True)
                continue
            rows[row.case] = merged(found, rows.get(row.case, {}))
            show(rows[row.case])
            result = {"bench": "kernels_h100", "device": options.device, "unit": "us", "rows": list(rows.values())}
            path.write_text(json.dumps(result | {"versions": {"taso-mirage": __version__}}, indent=1) + "\n")
            trials += noted(row, programs, best)
            if options.sources:
                options.sources.mkdir(parents=True, exist_ok=True)
                (options.sources / f"{re.sub(r'[ =]', '_', row.case)}.py").write_text(best.program.source)
            if options.trials:
                options.trials.write_text(json.dumps(trials))
    ratios = [min(r["baselines"].values()) / r["ours"] for r in rows.values() if r["baselines"]]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"geometric mean over the best peer {mean:.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
