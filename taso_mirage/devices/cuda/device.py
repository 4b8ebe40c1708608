"""The GPU as a device: the H100 as measured, and other GPUs by their drivers' descriptions."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache

from taso_mirage.devices.device import Device, Reached

H100 = Device(
    "H100",
    132,
    3.0e12,
    5.5e12,
    6.0e14,
    sector=64,
    batched=200.0,
    launch=1.4e-6,
    line=128,
    cluster=16,
    specialized=True,
    operator=Reached(launch=2e-6, flops=3e13, bandwidth=2e12),
)
PORTABLE_CLUSTER, LARGE_CLUSTERS = 8, (90, 100)
"""Blocks of a cluster from compute capability 9.0 on, and which ones take twice as many if asked
for."""
SPECIALIZED = 90
"""The compute capability for which warp-specialized kernels are generated."""
PINS = 2 * 2.619e9 * 5120 / 8
"""Bytes a second at the pins of an H100's memory (SXM5, 80 GB): twice a clock on each."""
NAME, UNKNOWN = 100, "unknown GPU"
ATTRIBUTES = {"processors": 16, "clock": 36, "width": 37, "major": 75, "minor": 76, "shared": 97}
"""Numbers of `CUdevice_attribute` (cuda.h); the clock is the memory's, in kHz, the width its bus's,
in bits."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The driver's description of a GPU: the name, ten times the compute capability, processors,
    bytes of shared memory that a block can have, and bytes a second at the memory's pins (0 where
    it does not say)."""

    name: str
    capability: int
    processors: int
    shared: int
    pins: float


@cache
def gpu() -> Gpu | None:
    """The first GPU; None without a driver or GPU. No context is created."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, name = ctypes.c_int(), ctypes.create_string_buffer(NAME)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetName(name, NAME, device):
        return None
    found = {}
    for each, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device):
            return None
        found[each] = value.value
    pins = 2 * 1e3 * found["clock"] * found["width"] / 8
    capability = 10 * found["major"] + found["minor"]
    return Gpu(name.value.decode(), capability, found["processors"], found["shared"], pins)


def described(gpu: Gpu) -> Device:
    """The H100's description with the numbers of another GPU.

    Rates that its driver does not tell are estimated by the number of processors.
    """
    memory, processors = (gpu.pins or PINS) / PINS, gpu.processors / H100.processors
    return replace(
        H100,
        name=gpu.name,
        processors=gpu.processors,
        shared=gpu.shared,
        cluster=largest_cluster(gpu.capability),
        specialized=gpu.capability == SPECIALIZED,
        bandwidth=H100.bandwidth * memory,
        cache=H100.cache * processors,
        flops=H100.flops * processors,
        operator=replace(
            H100.operator, flops=H100.operator.flops * processors, bandwidth=H100.operator.bandwidth * memory
        ),
    )


def largest_cluster(capability: int) -> int:
    """The largest number of blocks of a cluster; 1 for GPUs without clusters."""
    if capability < LARGE_CLUSTERS[0]:
        return 1
    return 2 * PORTABLE_CLUSTER if capability in LARGE_CLUSTERS else PORTABLE_CLUSTER


@cache
def here() -> Device:
    """The GPU of this machine; without one the H100, for which a model is then made."""
    found = gpu()
    return H100 if found is None else described(found)


def gpu_name() -> str:
    """The name of the first GPU, as a key for measurements."""
    found = gpu()
    return UNKNOWN if found is None else found.name
