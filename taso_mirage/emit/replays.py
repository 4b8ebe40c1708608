"""The times of calls on the GPU: replays of CUDA graphs that go round sets of inputs (Mirage,
OSDI'25, section 8). The sets together are larger than the L2 cache, so that weights come from
memory as in a model."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from taso_mirage.emit.estimates import buffer_bytes
from taso_mirage.emit.gpu.program import TritonBuffer, TritonProgram
from taso_mirage.ir.dims import fixed

REPLAYED, SPAN = 64, 5e-3
"""The number of calls that are measured at a time, and the seconds that limit it: a graph's start
takes 5 to 7 microseconds (H100)."""
SLOW = 1e-4
"""Seconds of a slow call."""
LONG = 256
"""Random inputs with more rows are scaled."""


def measured(
    call: Callable[..., Any], sets: Sequence[Sequence[Any]], seconds: float = 0.05, enough: float = math.inf
) -> float:
    """The seconds of one `call(*inputs)` on the current GPU. It is the median replay of a CUDA
    graph that goes round `sets` of inputs at least once, and has REPLAYED calls, or as many as take
    SPAN seconds, replayed for about `seconds`. The first call is outside of the graph, for
    compilation. Of a slow call (SLOW) that takes more than `enough` a single round counts."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(*sets[0])
    torch.cuda.synchronize()
    rounds, once = _rounds(call, sets)
    if SLOW < once > enough:
        return once
    graph, kept = _captured(call, sets, rounds)
    times: list[float] = []
    while len(times) < 5 or (sum(times) < seconds and len(times) < 1000):
        times.append(_replayed(graph))
    del kept
    return sorted(times)[len(times) // 2] / (rounds * len(sets))


def _rounds(call: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> tuple[int, float]:
    """The number of rounds in a graph, and the seconds of a call in one round, 0 if that is not
    measured.

    The time of a round is by the GPU's clock: a call by itself takes as long as the host needs to
    launch it.
    """
    if len(sets) >= REPLAYED:
        return 1, 0.0
    graph, _ = _captured(call, sets, 1)
    _replayed(graph)
    each = max(_replayed(graph), 1e-9) / len(sets)
    return math.ceil(min(REPLAYED, max(SPAN / each, 1)) / len(sets)), each


def _captured(call: Callable[..., Any], sets: Sequence[Sequence[Any]], rounds: int) -> tuple[Any, deque[Any]]:
    """A CUDA graph of calls, and the results of its last round: free memory is used again, and
    stays in the cache."""
    import torch

    graph = torch.cuda.CUDAGraph()
    kept: deque[Any] = deque(maxlen=len(sets))
    with torch.cuda.graph(graph):
        kept.extend(call(*inputs) for _ in range(rounds) for inputs in sets)
    return graph, kept


def _replayed(graph: Any) -> float:
    """Seconds of a replay."""
    import torch

    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop) / 1000)


def input_sets(program: TritonProgram, sizes: Mapping[str, int] = MappingProxyType({})) -> list[list[Any]]:
    """Random inputs on the current GPU, as many sets as take three times its L2 cache, from 2 to
    1024."""
    import torch

    each = sum(buffer_bytes(b, sizes) for b in program.buffers if b.role == "input")
    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    count = max(2, min(1024, math.ceil(3 * cache / max(each, 1))))
    generator = torch.Generator(device="cuda").manual_seed(0)
    return [[_drawn(b, generator, sizes) for b in program.buffers if b.role == "input"] for _ in range(count)]


def _drawn(buffer: TritonBuffer, generator: Any, sizes: Mapping[str, int]) -> Any:
    import torch

    shape = fixed(buffer.shape, sizes)
    if buffer.dtype in ("int8", "uint8"):
        limits = np.iinfo(buffer.dtype)
        found = torch.randint(limits.min, limits.max + 1, shape, generator=generator, device="cuda")
        return found.to(getattr(torch, buffer.dtype))
    values = torch.randn(shape, generator=generator, device="cuda")
    if len(shape) > 1 and shape[-2] > LONG:  # a sum over that many stays in the range of half precision
        values *= shape[-2] ** -0.5
    return (values > 0 if buffer.dtype == "bool" else values).to(getattr(torch, buffer.dtype))
