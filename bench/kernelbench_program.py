"""One program of KernelBench: built, compiled, compared and measured (`bench/kernelbench.py` does
it in a process of its own, forked from one that has imported this module).

The facts so far are written before each phase, so that they are there if the process is ended.
"""

from __future__ import annotations

import copy
import fcntl
import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxscript  # noqa: F401
import torch
import torch._dynamo
import torch.onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from kernelbench_sizes import Sizes, attempts  # noqa: E402

import taso_mirage  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.torch.modules import Optimized  # noqa: E402
from taso_mirage.torch.program import spent  # noqa: E402

SEED, COMPARED, WARM = 42, 5, 5
"""The benchmark's seed, inputs that are compared, and runs before those that count."""
TOLERANCE = 1e-4
"""The benchmark's, absolute and relative, in single precision; it was 1e-2 before."""
FLUSHED = 32 * 2**20
"""Integers that the benchmark writes before each run on a GPU, so that its cache is cold."""
NEAR = 2.0
"""The largest distance from float64 of a `near` result, relative to eager PyTorch's."""
PIECE = 1 << 24
"""Elements that are compared at a time."""
CALLS = ("eager", "inductor", "ours")
SLOW = "times as long here"
"""In the reason of a graph that was compiled and runs by PyTorch, which is faster."""


@dataclass(frozen=True)
class Options:
    """The options of one program: the device, how much smaller it is made, seconds of the search,
    trials and seconds of the measurement, GB of the process, its GPU (nothing is any), and the file
    to lock while it must be alone there."""

    device: str
    scale: float
    budget: float
    trials: int
    seconds: float
    memory: float
    gpu: str
    lock: str


Built = tuple[Any, Callable[[], list[Any]]]
"""A module, and the function that draws its inputs."""


def seed(number: int) -> None:
    torch.manual_seed(number)
    torch.cuda.manual_seed(number)


def built(source: str, folder: Path, device: str) -> Built:
    """The program with the benchmark's seed, in training mode as there."""
    path = folder / "program.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seed(SEED)
    given = module.get_init_inputs()
    with torch.no_grad():
        seed(SEED)
        model = module.Model(*(each.to(device) if isinstance(each, torch.Tensor) else each for each in given))

    def draw() -> list[Any]:
        with torch.device(device):  # gigabytes of random numbers take a CPU most of a minute
            drawn = module.get_inputs()
        # the benchmark converts all inputs so, those that are indices too
        return [each.to(device) if isinstance(each, torch.Tensor) else each for each in drawn]

    return model.to(device), draw


def runnable(source: str, scale: float, folder: Path, device: str) -> tuple[Built, Sizes]:
    """The program at the first of the smaller sizes at which eager PyTorch runs it."""
    last: Exception | None = None
    for text, sizes in attempts(source, scale) if scale > 1 else [(source, {})]:
        try:
            model, draw = built(text, folder, device)
            with torch.no_grad():
                model(*draw())
            return built(text, folder, device), sizes
        except Exception as error:
            last = last or error
    assert last is not None
    raise last


def tensors(found: Any) -> list[Any]:
    """The tensors of a result, however they are packed."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [each for part in found for each in tensors(part)] if isinstance(found, tuple | list) else []


def pieces(*pair: Any) -> Iterator[tuple[Any, ...]]:
    """Parts of two tensors of one shape: results of gigabytes would be there several times."""
    yield from zip(*(each.reshape(-1).split(PIECE) for each in pair), strict=True)


def compared(eager: Any, ours: Any, draw: Callable[[], list[Any]]) -> dict[str, Any]:
    """How many of the benchmark's random inputs give equal results, by its tolerance and by its
    earlier one, and the largest difference."""
    seed(SEED)
    seeds = [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(COMPARED)]
    equal, near, largest = 0, 0, 0.0
    for number in seeds:
        seed(number)
        inputs = draw()
        seed(number)
        wanted = tensors(eager(*inputs))
        seed(number)  # a program may draw random numbers
        found = tensors(ours(*inputs))
        pairs = list(zip(found, wanted, strict=True))
        shapes = all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
        parts = [each for pair in pairs for each in pieces(*pair)] if shapes else []
        equal += shapes and all(torch.allclose(b, a, atol=TOLERANCE, rtol=TOLERANCE) for a, b in parts)
        near += shapes and all(torch.allclose(b, a, atol=1e-2, rtol=1e-2) for a, b in parts)
        largest = max([largest, *(float((a.double() - b.double()).abs().max()) for a, b in parts)])
    return {"equal": int(equal), "equal_before": int(near), "of": COMPARED, "difference": float(f"{largest:.2g}")}


def optimized(model: Any, inputs: Sequence[Any], options: Options) -> tuple[Optimized, dict[str, Any]]:
    """The module by `taso_mirage.optimize`, and the result for each graph.

    Where nothing is timed, the candidate that is predicted to be faster is taken.
    """
    ours = taso_mirage.optimize(model, tuple(inputs), budget=options.budget, measure=options.trials > 0)
    stay = [way for way in ours.ways if way.by in CALLS[:2]]
    kept = [result.kept or "" for result in ours.results]
    graphs = {
        "compiled": len(ours.results),
        "eager": sum(way.by == "eager" for way in stay),
        "inductor": sum(way.by == "inductor" for way in stay),
        "composed": sum(way.by == "composed" for way in ours.ways),
        "reasons": [way.reason for way in stay],
        "notes": [note for way in stay for note in way.notes],
        "stages": [spent(result.seconds) for result in ours.results],
        "changed": sum(result.changed for result in ours.results),
        "checked": min((len(result.cases) for result in ours.results if result.changed), default=0),
        "kernels": sum(bool(result.kernels) for result in ours.results),
        "kept": [reason for reason in kept if reason],
        "without kernels": [n for result in ours.results for n in result.notes if n.startswith("no kernels")],
        "equations": sum(sum(result.equations.values()) for result in ours.results),
    }
    return ours, graphs


@contextmanager
def alone(options: Options) -> Iterator[None]:
    """No other program is timed on this GPU."""
    with open(options.lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def timed(call: Callable[..., Any], inputs: Sequence[Any], flush: Any) -> float:
    """Seconds of a run; on a GPU from an idle device with a cold cache to an idle one."""
    if flush is not None:
        torch.cuda.synchronize()
        flush.fill_(42)
        torch.cuda.synchronize()
    else:
        time.sleep(native.SPINNING)  # the others' threads fall asleep
        call(*inputs)  # and its own wake up
    start = time.perf_counter()
    call(*inputs)
    if flush is not None:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measured(calls: Sequence[Callable[..., Any]], inputs: Sequence[Any], options: Options) -> np.ndarray:
    """A row of seconds for every trial, in turn forwards and backwards."""
    flush = torch.empty(FLUSHED, dtype=torch.int64, device="cuda") if options.device == "cuda" else None
    for call in calls:
        for _ in range(WARM):
            call(*inputs)
    rounds: list[list[float]] = []
    began = time.perf_counter()
    while len(rounds) < options.trials and (len(rounds) < 3 or time.perf_counter() < began + options.seconds):
        found = [0.0] * len(calls)
        for i in range(len(calls)) if len(rounds) % 2 else reversed(range(len(calls))):
            found[i] = timed(calls[i], inputs, flush)
        rounds.append(found)
    return np.array(rounds)


def times(rounds: np.ndarray) -> dict[str, Any]:
    """Medians and means in microseconds, and ratios of ours trial by trial with their quartiles."""
    ratios = {name: rounds[:, i] / rounds[:, 2] for i, name in enumerate(CALLS[:2])}
    return {
        "us": {name: round(float(np.median(rounds[:, i])) * 1e6, 1) for i, name in enumerate(CALLS)},
        "mean_us": {name: round(float(np.mean(rounds[:, i])) * 1e6, 1) for i, name in enumerate(CALLS)},
        "ratio": {k: [round(float(np.percentile(v, p)), 4) for p in (50, 25, 75)] for k, v in ratios.items()},
        "trials": len(rounds),
        "load": round(os.getloadavg()[0], 2),
    }


def phases(row: dict[str, Any], program: Path, options: Options, note: Callable[[str], None]) -> str:
    """Fill the row; how the program ended."""
    note("building")
    with tempfile.TemporaryDirectory() as folder:
        (model, draw), sizes = runnable(program.read_text(), options.scale, Path(folder), options.device)
        row["sizes"] = sizes
        seed(SEED)
        inputs = draw()
        plain, inductor = copy.deepcopy(model), copy.deepcopy(model)
        note("optimizing")
        with alone(options):
            start = time.perf_counter()
            ours, row["graphs"] = optimized(model, inputs, options)
            row["seconds"] = {"ours": round(time.perf_counter() - start, 1)}
        ended = ending(row["graphs"])
        if not row["graphs"]["compiled"]:
            row["reason"] = (row["graphs"]["reasons"] or ["PyTorch captured no graph in it"])[0]
            if ended == "refused":
                return ended
        note("comparing")
        with alone(options):
            row["results"] = compared(plain, ours, draw)
            if row["results"]["equal"] < COMPARED:
                ended = _differing(row, (plain, inductor, ours), draw, inputs, ended)
        if ended != "wrong" and options.trials:
            _time(row, (plain, inductor, ours), inputs, options, note)
    return ended


def _differing(
    row: dict[str, Any], calls: Sequence[Any], draw: Callable[[], list[Any]], inputs: Sequence[Any], ended: str
) -> str:
    """How a program ends whose results are not eager's by the benchmark's tolerance: `near` if they
    are by its earlier one, and nearly as close to float64 as eager's; as it is if it runs by
    Inductor and `torch.compile` has the same results; else wrong."""
    plain, inductor, ours = calls
    row["reason"] = f"results differ by {row['results']['difference']:.3g}"
    if ended == "inductor":
        same = compared(torch.compile(inductor), ours, draw)
        row["results"]["as_inductor"] = same["equal"]
        if same["equal"] == COMPARED:
            row["reason"] += ", as those of torch.compile do"
            return ended
    errors = _own_errors(plain, ours, inputs)
    if errors is None:
        return "wrong"
    eager, own, largest = errors
    row["reason"] += f"; of {largest:.3g}, from float64 eager is {eager:.3g} away, and this {own:.3g}"
    return "near" if row["results"]["equal_before"] == COMPARED and own <= NEAR * eager else "wrong"


def ending(graphs: dict[str, Any]) -> str:
    """How a right program ends: by the ways that its graphs run."""
    if graphs["compiled"]:
        return "partly" if graphs["eager"] or graphs["inductor"] else "whole"
    if graphs["inductor"]:
        return "inductor"
    slow = [SLOW in each for each in graphs["reasons"]]
    return "eager" if slow and all(slow) else "refused"


def _time(row: dict[str, Any], calls: Sequence[Any], inputs: Sequence[Any], options: Options, note: Any) -> None:
    note("compiling with Inductor")
    start = time.perf_counter()
    compiled = torch.compile(calls[1])
    compiled(*inputs)
    row["seconds"]["inductor"] = round(time.perf_counter() - start, 1)
    note("measuring")
    with alone(options):
        row["times"] = times(measured((calls[0], compiled, calls[2]), inputs, options))


def _own_errors(eager: Any, ours: Any, inputs: Sequence[Any]) -> tuple[float, float, float] | None:
    """How far eager PyTorch and ours are from float64, and the largest number; None where it does
    not run so."""
    wide = [each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in inputs]
    try:
        exact = tensors(copy.deepcopy(eager).double()(*wide))
        pairs = zip(tensors(eager(*inputs)), tensors(ours(*inputs)), exact, strict=True)
        found = [(float((a - c).abs().max()), float((b - c).abs().max()), float(c.abs().max())) for a, b, c in pairs]
        return max(found, key=lambda each: each[1] / max(each[0], 1e-30))
    except Exception:  # a program may fix its dtype, or have no room
        return None


def reason(error: BaseException) -> str:
    """The error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def run(program: Path, answer: Path, log: Path, options: Options) -> None:
    """Run the program in this process: its result goes into `answer`, all other output into
    `log`."""
    os.setsid()  # it can be ended with all that it starts
    with log.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if options.device == "cpu":  # CUDA maps far more than it uses
        resource.setrlimit(resource.RLIMIT_DATA, (int(options.memory * 2**30),) * 2)
    if options.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = options.gpu
    row: dict[str, Any] = {}

    def note(phase: str) -> None:
        row["ended"] = f"ended while {phase}"
        answer.write_text(json.dumps(row))

    try:
        with torch.no_grad():
            row["ended"] = phases(row, program, options, note)
    except Exception as error:
        traceback.print_exc()
        row |= {"ended": row["ended"].replace("ended while", "failed while"), "reason": reason(error)}
    answer.write_text(json.dumps(row))
