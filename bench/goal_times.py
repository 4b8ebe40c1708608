"""The time of a goal on one NVIDIA GPU: of the best of our programs (`tuned`), and of PyTorch's
peers (`timed_peers`), each a job as JSON in a process of its own.

Jobs run beside each other, since most of their time is that of compilers. One of them at a time
holds the clock of the GPU (`held`): for each of our programs, and for each choice that
torch.compile measures.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import goal_peers  # noqa: E402
import goal_plans  # noqa: E402

from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.emit import compile_jobs, triton, tune  # noqa: E402
from taso_mirage.emit.compile import load_source  # noqa: E402
from taso_mirage.emit.gpu.program import TritonProgram  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.forms.base.form import in_operators  # noqa: E402
from taso_mirage.ir.terms import Graph  # noqa: E402
from taso_mirage.mugraph.checkpoint import from_json  # noqa: E402
from taso_mirage.system.workers import Workers  # noqa: E402

TOLERANCE, OTHERS = 4e-3, 2e-2
"""The norm of the difference from float64, over its norm: of our programs; of peers, which round
between operators."""
LOCK = "TASO_MIRAGE_BENCH_LOCK"
"""The variable that names the file of the lock of the clock; without it nothing is locked."""


_holding = threading.RLock()
_depth: list[None] = []


@contextmanager
def held() -> Iterator[None]:
    """The clock of the GPU, for one process at a time."""
    import fcntl

    with _holding:
        if LOCK not in os.environ or _depth:
            yield
            return
        with Path(os.environ[LOCK]).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _depth.append(None)
            try:
                yield
            finally:
                _depth.clear()


def alone(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that holds the clock while it runs."""

    def holding(*args: Any, **options: Any) -> Any:
        with held():
            return call(*args, **options)

    return holding


def step(job: Mapping[str, Any]) -> dict[str, Any]:
    """One job of a row; its errors are the `problem`."""
    try:
        found: dict[str, Any] = {"ours": tuned, "around": planned, "peers": timed_peers}[job["side"]](job)
        return found
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}"[:400]}


def programs(found: Sequence[Any]) -> list[TritonProgram]:
    """The different programs of muGraphs; those without a form in Triton are left out."""
    made: dict[str, TritonProgram] = {}
    for each in found:
        with suppress(TasoMirageError):
            made |= {p.source: p for p in triton.program_forms(from_json(each), H100.specialized)}
    return list(made.values())


def checker(graph: Graph, errors: list[float], tolerance: float = TOLERANCE) -> tune.Check:
    """Whether results are the goal's in float64, by norm; the errors are noted."""
    written = Graph(graph.inputs, in_operators(graph.outputs))
    reference = goal_peers.function(goal_peers.with_floats(written, "float64"), "cuda")
    known: dict[int, Any] = {}

    def check(inputs: Sequence[Any], results: Sequence[Any]) -> bool:
        key = inputs[0].data_ptr()
        if key not in known:
            known.clear()
            known[key] = reference(*[x.double() if x.is_floating_point() else x for x in inputs])
        errors.append(max(_error(got, want) for got, want in zip(results, known[key], strict=True)))
        return errors[-1] < tolerance

    return alone(check)


def _error(got: Any, want: Any) -> float:
    found = float((got.double().reshape(want.shape) - want).norm() / want.norm())
    return found if math.isfinite(found) else math.inf


_compilers: list[Workers] = []
"""This process's compilers: a job that ends the process ends them, too."""


def tuned(job: Mapping[str, Any]) -> dict[str, Any]:
    """The microseconds of the fastest of a row's programs."""
    graph, start = from_json(job["goal"]), time.perf_counter()
    made, errors = programs(job["graphs"]), list[float]()
    best = tune.tuned_program(
        made,
        compiler=_started(job),
        check=checker(graph, errors),
        prepare=goal_peers.prepared(graph),
        late=_after(job["tuning"]),
    )
    launches = [{"grid": x.grid, "loop": x.loop, "name": x.name} for x in best.program.launches]
    schedules = [{"warps": x.schedule.warps, "stages": x.schedule.stages} for x in best.program.launches]
    place = next((i for i, p in enumerate(made) if _kind(p) == _kind(best.program)), None)
    return {
        "ours": best.seconds * 1e6,
        "error": max((e for e in errors if e < TOLERANCE), default=None),
        "refused": sum(not e < TOLERANCE for e in errors),
        "programs": len(made),
        "place": place,
        "first": [round(t.seconds * 1e6, 2) if math.isfinite(t.seconds) else None for t in best.trials[: len(made)]],
        "trials": len(best.trials),
        "tuning_seconds": round(time.perf_counter() - start, 1),
        "launches": [a | b for a, b in zip(launches, schedules, strict=True)],
        "source": best.program.source,
    }


def planned(job: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `tuned_plan`, with its sources in a folder of their own."""
    with TemporaryDirectory() as folder:
        return {"around": tuned_plan({**job, "folder": folder})}


def tuned_plan(job: Mapping[str, Any]) -> dict[str, Any]:
    """The microseconds of a goal around a library's products, each of its kernels tuned alone."""
    import torch

    graph, steps, calls, names = from_json(job["goal"]), job["plan"], list[Any](), list[list[str]]()
    start, launches = time.perf_counter(), list[Any]()
    for i, each in enumerate(steps):
        if "product" in each:
            calls.append(None)
            names.append([])
            continue
        own = from_json(each["goal"])
        best = tune.tuned_program(
            programs(each["graphs"]),
            compiler=_started(job),
            check=checker(own, []),
            prepare=goal_peers.prepared(own),
            late=_after(job["tuning"] / 2),
        )
        module = load_source(best.program.source, Path(job["folder"]), f"step_{i}")
        calls.append(partial(module.launch, options=[x.options for x in best.program.launches]))
        names.append([x.attr("name") for x in own.inputs])
        launches += [{"grid": x.grid, "loop": x.loop} for x in best.program.launches]
    inputs = [x.attr("name") for x in graph.inputs]

    def call(*given: Any) -> tuple[Any, ...]:
        return goal_plans.run(steps, calls, names, dict(zip(inputs, given, strict=True)))

    sets, errors = goal_peers.input_sets(graph), list[float]()
    with torch.inference_mode():
        if not checker(graph, errors)(sets[0], call(*sets[0])):
            return {"problem": f"off by {errors[-1]:.2g}"}
        seconds = tune.measured(call, sets)
    return {"us": seconds * 1e6, "launches": launches, "seconds": round(time.perf_counter() - start, 1)}


def _after(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds are over."""
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end


def _started(job: Mapping[str, Any]) -> Workers:
    """This process's compilers."""
    if not _compilers:
        _compilers.append(compile_jobs.compilers(job["workers"]))
        tune.measured = alone(tune.measured)
    return _compilers[0]


def _kind(program: TritonProgram) -> str:
    return str([(x.name, x.grid, x.loop, x.traffic, x.schedule.specialized) for x in program.launches])


def timed_peers(job: Mapping[str, Any]) -> dict[str, Any]:
    """The microseconds of every peer; one that fails or is wrong has a note and no figure."""
    import torch
    import torch._inductor.config
    from torch._inductor.runtime import benchmarking
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch._inductor.config.precompilation_timeout_seconds = 20
    torch._inductor.config.compile_threads = job["workers"]
    benchmarker = benchmarking.benchmarker
    if not hasattr(benchmarker, "of_one"):  # the choices of torch.compile are measured alone, too
        benchmarker.of_one, benchmarker.benchmark_gpu = True, alone(benchmarker.benchmark_gpu)
    graph, start = from_json(job["goal"]), time.perf_counter()
    errors = list[float]()
    check, times, notes = checker(graph, errors, OTHERS), dict[str, float](), dict[str, str]()
    for label, call, backend, sets in goal_peers.kinds(graph):
        torch._dynamo.reset()
        try:
            with sdpa_kernel([backend or SDPBackend.MATH]), torch.inference_mode():
                if check(sets[0], call(*sets[0])):
                    times[label] = alone(tune.measured)(call, sets) * 1e6
                else:
                    notes[label] = f"off by {errors[-1]:.2g}"
        except Exception as error:
            notes[label] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return {"baselines": times, "notes": notes, "peer_seconds": round(time.perf_counter() - start, 1)}
