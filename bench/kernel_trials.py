"""Programs of many goals, each measured once on the NVIDIA GPU of this machine: the data on which
the model that ranks kernels is fitted.

    python bench/kernel_trials.py plan FILE [--each 40] [--seed 0] [GOAL ...]
    python bench/kernel_trials.py measure FILE OUTPUT [--seconds 250] [--workers 14]

`plan` searches all goals of `kernel_goals.py`, which takes no GPU, and writes muGraphs of them: the
first ones of each by the model, and others of all forms drawn at random, up to SLOWER times as slow
by the model. `measure` compiles them in processes and measures each with the schedule that the
generator guesses, some with another one. It writes a line for each trial as it goes, and goes on
where the file ends.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.emit import compile_jobs, triton, tune  # noqa: E402
from taso_mirage.emit.compile import load_source  # noqa: E402
from taso_mirage.emit.gpu.program import TritonProgram  # noqa: E402
from taso_mirage.emit.replays import input_sets, measured  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.forms.base.form import GPU_GOALS  # noqa: E402
from taso_mirage.ir.terms import Graph  # noqa: E402
from taso_mirage.mugraph.checkpoint import from_json, to_json  # noqa: E402
from taso_mirage.mugraph.search import Search, SearchOptions, TiledPlan  # noqa: E402
from taso_mirage.mugraph.tile_work import TileWork  # noqa: E402
from taso_mirage.system.workers import Workers  # noqa: E402

SLOWER, SLOWEST = 6.0, 2e-3
"""The limits of drawn programs: the ratio to the first by the model, and the seconds."""
LIMIT = 20.0
"""Seconds for compiling a program."""
STUCK = 20
"""Seconds of a trial after which the process is ended: started again, it goes on with the next."""
SHORT = 0.012
"""Seconds that a trial is replayed."""
COUNTED = ("wgmma.mma_async", "mma.sync", "ld.global", "st.global", "ld.shared", "st.shared", "ldmatrix")
COUNTED += ("bar.sync", "cp.async.cg", "cp.async.ca", "ex2.approx", "shfl.sync", "fma.rn", "ld.local", "st.local")
"""Instructions that are counted in the text of a kernel."""


# ---------------------------------------------------------------- the plan


def chosen(candidates: Sequence[TiledPlan], each: int, draw: random.Random) -> list[int]:
    """The places of the first candidates, and of others of all forms in turn."""
    first = list(range(min(each // 4, len(candidates))))
    near = [i for i, c in enumerate(candidates) if c.seconds < min(SLOWER * candidates[0].seconds, SLOWEST)]
    groups: dict[object, list[int]] = {}
    for i in near[len(first) :]:
        plan = candidates[i].plan
        kinds = [(t.kernel.loop is not None, t.kernel.body.cluster is not None) for t in plan]
        groups.setdefault((*kinds, bool(candidates[i].closure.goal.split)), []).append(i)
    for group in groups.values():
        draw.shuffle(group)
    found = dict.fromkeys(first)
    while len(found) < each and any(groups.values()):
        for group in groups.values():
            if group:
                found[group.pop()] = None
    return list(found)[:each]


def works(candidate: TiledPlan, width: int) -> list[list[float]]:
    """The work of each kernel of a candidate, in the order of the fields of `KernelWork`."""
    found = []
    for each in candidate.plan:
        tiles = {label: np.array([float(n)]) for label, n in each.tiles.items()}
        made = TileWork(each.kernel, candidate.closure, candidate.sizes, tiles, width, H100).work()
        found.append([float(np.ravel(getattr(made, x.name))[0]) for x in fields(made)])
    return found


def planned(name: str, goal: Graph, each: int, draw: random.Random) -> Iterator[dict[str, Any]]:
    """The trials of a goal."""
    by_hand = GPU_GOALS.read(goal)
    if by_hand is not None:
        for i, found in enumerate(by_hand.mugraphs(goal, H100)):
            yield {"goal": name, "place": i, "model": found.seconds, "mugraph": to_json(found.graph)}
        return
    search = Search(goal, SearchOptions(), H100)
    candidates = search.candidates()
    for i in chosen(candidates, each, draw):
        graph = candidates[i].graph()
        if graph is None:
            continue
        found = {"goal": name, "place": i, "model": candidates[i].seconds, "mugraph": to_json(graph)}
        found["work"] = works(candidates[i], search.width)
        for roles in (False, True):
            try:
                program = triton.program(graph, specialized=roles)
            except TasoMirageError:
                continue
            yield found | {"roles": roles}
            others = [(k, s) for k, x in enumerate(program.launches) for s in tune.schedules(x)[1:]]
            if others and not roles and draw.random() < 0.2:
                k, schedule = draw.choice(others)
                yield found | {"roles": roles, "launch": k, "schedule": asdict(schedule)}


def plan(path: Path, each: int, seed: int, names: Sequence[str]) -> None:
    """Write the trials of all goals, those of the goals in turn."""
    from kernel_goals import GOALS

    draw, goals = random.Random(seed), []
    for name, made in GOALS.items():
        if not names or name in names:
            goals.append(list(planned(name, made(), each, draw)))
            print(f"{name}: {len(goals[-1])} trials", flush=True)
    for own in goals:
        draw.shuffle(own)
    turns = [own[i] for i in range(max(map(len, goals))) for own in goals if i < len(own)]
    with gzip.open(path, "wt") as out:
        for i, trial in enumerate(turns):
            out.write(json.dumps({"id": i} | trial) + "\n")
    print(f"{len(turns)} trials of {len(goals)} goals")


# ---------------------------------------------------------------- measuring


def program_of(trial: Mapping[str, Any]) -> TritonProgram:
    """The program of a line of the plan."""
    made = triton.program(from_json(trial["mugraph"]), specialized=trial.get("roles", False))
    if "schedule" in trial:
        schedule = tune.LaunchSchedule(**trial["schedule"])
        made = tune.scheduled(made, trial["launch"], schedule)
    return tune.overlapped(made)


def compiled_facts(trial: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Compile a trial in a process that sees the GPU; the facts of each kernel then, None where one
    does not compile."""
    import os

    import torch

    job = compile_jobs.job(program_of(trial))
    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        del os.environ[name]
    os.environ.update(trial["settings"])
    found = []
    with TemporaryDirectory() as folder:
        module = load_source(job["source"], Path(folder))
        for name, dtypes, maps, sizes, options in job["launches"]:
            types: list[Any] = [getattr(torch, dtype) for dtype in dtypes]
            for i, (shape, tile) in enumerate(maps):
                types[i] = module.tiles(module.triton.MockTensor(types[i]), shape, tile)
            try:
                made = getattr(module, name).warmup(*types, *[4096] * sizes, grid=(1,), **options)
                made._init_handles()
            except Exception as error:
                print(error, file=sys.stderr)
                return None
            found.append(facts(made))
    return found


def facts(made: Any) -> dict[str, Any]:
    """The compiler's figures for a kernel."""
    text = made.asm["ptx"]
    counts = {name: n for name in COUNTED if (n := text.count(name))}
    known = {"regs": made.n_regs, "spills": made.n_spills, "shared": made.metadata.shared}
    return known | {"lines": text.count(";\n"), "counts": counts}


def launches(program: TritonProgram) -> list[dict[str, Any]]:
    """The generator's figures for each kernel."""
    return [
        {"grid": x.grid, "loop": x.loop, "cluster": x.cluster} | asdict(x.schedule) | asdict(x.traffic)
        for x in program.launches
    ]


def trials_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def measure(path: Path, output: Path, seconds: float, workers: int) -> None:
    """Compile and measure the trials that the output lacks."""
    end = time.monotonic() + seconds
    known = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    done = {each["id"] for each in known}
    trials = {each["id"]: each for each in trials_of(path) if each["id"] not in done}
    print(tune.gpu_and_versions(), len(trials), "trials", flush=True)
    settings = compile_jobs._settings()
    sets: dict[str, list[list[Any]]] = {}
    made = Workers(f"{Path(__file__).stem}:{compiled_facts.__name__}", workers, LIMIT, ("torch", "triton"))
    with closing(made) as compiler, TemporaryDirectory() as folder, output.open("a") as out:
        futures = {compiler(trial | {"settings": settings}): i for i, trial in trials.items()}
        try:
            for future in as_completed(futures, timeout=seconds):
                if time.monotonic() > end:
                    break
                trial = trials[futures[future]]
                out.write(json.dumps({"id": trial["id"], "goal": trial["goal"], "begun": True}) + "\n")
                out.flush()
                line = {k: v for k, v in trial.items() if k not in ("mugraph", "work")}
                line |= {"facts": future.result(), "us": None}
                signal.alarm(STUCK)
                if line["facts"] is not None:
                    line |= timed(trial, sets, Path(folder))
                signal.alarm(0)
                out.write(json.dumps(line) + "\n")
                out.flush()
        except TimeoutError:
            pass
        finally:
            for future in futures:
                future.cancel()


def timed(trial: Mapping[str, Any], sets: dict[str, list[list[Any]]], folder: Path) -> dict[str, Any]:
    """The microseconds of a trial, and its program."""
    import torch

    start = time.monotonic()
    program = program_of(trial)
    module = load_source(program.source, folder, f"generated_{trial['id']}")
    if trial["goal"] not in sets:
        sets[trial["goal"]] = input_sets(program)
    options = [each.options for each in program.launches]
    found: dict[str, Any] = {"launches": launches(program), "estimate": tune.ranked([program])[0][0]}
    try:
        found["us"] = 1e6 * measured(lambda *x: module.launch(*x, options=options), sets[trial["goal"]], SHORT, 1e-3)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:200]
        if isinstance(error, torch.AcceleratorError):
            raise
    return found | {"took": round(time.monotonic() - start, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    planning = commands.add_parser("plan")
    planning.add_argument("file", type=Path)
    planning.add_argument("goals", nargs="*")
    planning.add_argument("--each", type=int, default=40)
    planning.add_argument("--seed", type=int, default=0)
    measuring = commands.add_parser("measure")
    measuring.add_argument("file", type=Path)
    measuring.add_argument("output", type=Path)
    measuring.add_argument("--seconds", type=float, default=250.0)
    measuring.add_argument("--workers", type=int, default=14)
    options = parser.parse_args()
    if options.command == "plan":
        plan(options.file, options.each, options.seed, options.goals)
    else:
        measure(options.file, options.output, options.seconds, options.workers)


if __name__ == "__main__":
    main()
