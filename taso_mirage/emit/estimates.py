"""The estimated time of a generated program, by an analytic model of a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from taso_mirage.devices.cuda.device import H100
from taso_mirage.devices.device import Device
from taso_mirage.emit.gpu.program import TritonBuffer, TritonLaunch, TritonProgram
from taso_mirage.ir.dims import dim_product, evaluate
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import numpy_dtype

RESIDENT = 32
"""The largest number of blocks of a processor at a time."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The seconds of a launch by the model, the number of blocks that a processor holds, and the
    number of waves in which they run."""

    seconds: float
    resident: int
    waves: int


def estimated(
    program: TritonProgram,
    launch: TritonLaunch,
    device: Device = H100,
    shared: int | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Estimate:
    """The longest time of memory, L2 cache and arithmetic, in whole waves, plus that of the start.

    `shared`: as compiled, if known; `sizes`: those that a run gives.
    """
    schedule, traffic = launch.schedule, launch.traffic
    blocks, loop = (evaluate(n, sizes) for n in (dim_product(launch.grid), launch.loop))
    more = blocks * loop / (launch.blocks * usual_size(launch.loop))  # relative to the counts behind `traffic`
    needed = (
        traffic.in_flight * schedule.stages if launch.loop != 1 else 0
    )  # values that a loop does not load stay in registers
    needed = needed if shared is None else shared
    resident = max(1, min(device.shared // max(needed, 1), device.threads // (32 * schedule.warps), RESIDENT))
    waves = math.ceil(blocks / (device.processors * resident))
    busy = min(1.0, blocks / device.processors)
    flying = min(blocks, device.processors * resident) * traffic.in_flight * schedule.stages
    fed = min(1.0, flying / (device.bandwidth * device.latency))  # Little's law: bytes in flight = bandwidth * latency
    unique = sum(buffer_bytes(program.buffer(name), sizes) for name in launch.buffers)
    tail = waves * min(blocks, device.processors * resident) / blocks
    longest = max(
        unique / (device.bandwidth * fed),
        more * traffic.moved / (device.cache * busy) * tail,
        more * traffic.flops / (device.flops * busy) * tail,
        device.latency * loop / schedule.stages,
    )
    return Estimate(longest + device.launch, resident, waves)


def buffer_bytes(buffer: TritonBuffer, sizes: Mapping[str, int]) -> int:
    """The estimate at these sizes of the names that a run gives."""
    return evaluate(buffer.elements, sizes) * numpy_dtype(buffer.dtype).itemsize


def ranked(
    programs: Iterable[TritonProgram], device: Device = H100, sizes: Mapping[str, int] = MappingProxyType({})
) -> list[tuple[float, TritonProgram]]:
    """Programs with their seconds by the model, the fastest first."""
    found = [(sum(estimated(p, x, device, sizes=sizes).seconds for x in p.launches), p) for p in programs]
    return sorted(found, key=lambda pair: pair[0])
