"""How fast a generated program is: measured on the GPU that is there, else ranked by an analytic model, and it says which.

A measurement replays a CUDA graph (Mirage, OSDI'25, section 8) in which every launch has inputs of its own, together larger than
the L2 cache, so that weights come from memory as they do in a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Protocol

from taso_mirage.codegen.compile import load
from taso_mirage.codegen.gpu.program import Buffer, Launch, Program, Schedule
from taso_mirage.codegen.triton import options_text
from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.gpu import H100, Device

RESIDENT = 32
"""Blocks of a processor at a time, at most."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a launch by the model; how many blocks a processor holds, and in how many waves they run."""

    seconds: float
    resident: int
    waves: int


class Cache(Protocol):
    """What keeps measurements (`optimize.cache.CostCache` is one)."""

    def get(self, target: str, signature: str) -> float | None: ...
    def put(self, target: str, signature: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Tuned:
    """The program with its best schedules. `measured` says whether `seconds` is a measurement or the model's."""

    program: Program
    seconds: float
    measured: bool


def estimated(program: Program, launch: Launch, device: Device = H100, shared: int | None = None) -> Estimate:
    """The longest of memory, L2 cache and arithmetic, in whole waves, and the start. `shared`: as compiled, if known."""
    schedule, traffic = launch.schedule, launch.traffic
    needed = (
        traffic.in_flight * schedule.stages if launch.loop > 1 else 0
    )  # what a loop does not load stays in registers
    needed = needed if shared is None else shared
    resident = max(1, min(device.shared // max(needed, 1), device.threads // (32 * schedule.warps), RESIDENT))
    waves = math.ceil(launch.blocks / (device.processors * resident))
    busy = min(1.0, launch.blocks / device.processors)
    flying = min(launch.blocks, device.processors * resident) * traffic.in_flight * schedule.stages
    fed = min(1.0, flying / (device.bandwidth * device.latency))  # Little's law: bytes in flight = bandwidth * latency
    unique = sum(program.buffer(name).bytes for name in launch.buffers)
    tail = waves * min(launch.blocks, device.processors * resident) / launch.blocks
    longest = max(
        unique / (device.bandwidth * fed),
        traffic.moved / (device.cache * busy) * tail,
        traffic.flops / (device.flops * busy) * tail,
        device.latency * launch.loop / schedule.stages,
    )
    return Estimate(longest + device.launch, resident, waves)


def ranked(programs: Iterable[Program], device: Device = H100) -> list[tuple[float, Program]]:
    """Programs with the model's seconds, the fastest first."""
    found = [(sum(estimated(p, each, device).seconds for each in p.launches), p) for p in programs]
    return sorted(found, key=lambda pair: pair[0])


def tuned(program: Program, cache: Cache | None = None, device: Device = H100) -> Tuned:
    """The program with the best schedule for each of its launches, one launch after the other: measured where there is a
    GPU, else by the model. What does not compile or fit is passed over."""
    try:
        target = gpu()
    except RuntimeUnavailable:
        return Tuned(*_best(program, lambda p: ranked([p], device)[0][0], device), measured=False)
    with TemporaryDirectory() as folder:
        module, sets = load(program, Path(folder)), input_sets(program)

        def seconds(candidate: Program) -> float:
            signature = blake2b(candidate.source.encode(), digest_size=16).hexdigest()
            known = cache.get(target, signature) if cache is not None else None
            if known is None:
                known = _seconds(module, candidate, sets)
                if cache is not None and math.isfinite(known):
                    cache.put(target, signature, known)
            return known

        return Tuned(*_best(program, seconds, device), measured=True)


def _best(program: Program, cost: Callable[[Program], float], device: Device) -> tuple[Program, float]:
    best, seconds = program, cost(program)
    for i, launch in enumerate(program.launches):
        for schedule in schedules(launch, device)[1:]:
            candidate = scheduled(best, i, schedule)
            found = cost(candidate)
            if found < seconds:
                best, seconds = candidate, found
    return best, seconds


def schedules(launch: Launch, device: Device = H100) -> list[Schedule]:
    """What is tried for a launch: its own first."""
    depths = [s for s in (2, 3, 4, 6, 8) if s <= launch.loop and s * launch.traffic.in_flight <= device.shared] or [1]
    found = [Schedule(warps, stages) for warps in (1, 2, 4, 8) for stages in (depths if launch.loop > 1 else [1])]
    return list(dict.fromkeys([launch.schedule, *found]))


def scheduled(program: Program, i: int, schedule: Schedule) -> Program:
    """The program with another schedule of one launch. The functions are the same; so is the source, but for OPTIONS."""
    launches = tuple(replace(each, schedule=schedule) if k == i else each for k, each in enumerate(program.launches))
    old = program.source
    start, stop = old.index("OPTIONS = ("), old.index("\ndef launch(")
    return replace(program, launches=launches, source=f"{old[:start]}{options_text(launches)}\n\n{old[stop:]}")


def gpu() -> str:
    """The name of the GPU and the versions that a measurement hangs on. Raises RuntimeUnavailable where there is none."""
    try:
        import torch
        import triton
    except ImportError as error:
        raise RuntimeUnavailable(f"{error.name} is not installed") from None
    if not torch.cuda.is_available():
        raise RuntimeUnavailable("there is no CUDA device to measure on")
    return f"{torch.cuda.get_device_name()} torch {torch.__version__} triton {triton.__version__}"


def _seconds(module: ModuleType, program: Program, sets: Sequence[Sequence[Any]]) -> float:
    """Seconds a call; infinity where Triton does not compile it or it does not fit."""
    options = [_options(each) for each in program.launches]

    def call(*inputs: Any) -> Any:
        return module.launch(*inputs, options=options)

    try:
        call(*sets[0])
    except Exception as error:  # Triton's errors have no common base, and some are plain RuntimeErrors of its passes
        if type(error).__module__.split(".")[0] != "triton" and "PassManager" not in str(error):
            raise
        return math.inf
    return measured(call, sets)


def _options(launch: Launch) -> dict[str, int]:
    return {"num_warps": launch.schedule.warps} | ({"STAGES": launch.schedule.stages} if launch.loop > 1 else {})


def measured(call: Callable[..., Any], sets: Sequence[Sequence[Any]], seconds: float = 0.05) -> float:
    """Seconds a call of `call(*inputs)` on the current GPU: the median replay of a CUDA graph that goes round `sets` of inputs,
    replayed for about `seconds`. The first call is outside of the graph, for what compiles then."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(*sets[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call(*inputs) for inputs in sets]  # kept: memory that is free is used again, and stays in the cache
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times: list[float] = []
    while len(times) < 5 or (sum(times) < seconds and len(times) < 1000):
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1000)
    del results
    return float(sorted(times)[len(times) // 2] / len(sets))


def input_sets(program: Program) -> list[list[Any]]:
    """Random inputs on the current GPU, as many sets as take three times its L2 cache, from 2 to 1024."""
    import torch

    each = sum(b.bytes for b in program.buffers if b.role == "input")
    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    count = max(2, min(1024, math.ceil(3 * cache / max(each, 1))))
    generator = torch.Generator(device="cuda").manual_seed(0)
    return [[_drawn(b, generator) for b in program.buffers if b.role == "input"] for _ in range(count)]


def _drawn(buffer: Buffer, generator: Any) -> Any:
    import torch

    values = torch.randn(buffer.shape, generator=generator, device="cuda")
    return (values > 0 if buffer.dtype == "bool" else values).to(getattr(torch, buffer.dtype))
