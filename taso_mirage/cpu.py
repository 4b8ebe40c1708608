"""The CPU: its cores, and what the analytic model knows of it, which chooses the muGraphs that are compiled; a measurement decides."""

from __future__ import annotations

import os

from taso_mirage.gpu import Device

CPU = Device(
    "CPU",
    processors=2,
    bandwidth=4e10,
    cache=1.5e11,
    flops=2e11,
    shared=2**30,
    registers=2**20,
    threads=2,
    latency=1e-7,
    launch=2e-6,
    resident=1,
    sector=2048,
    longest=2**30,
    elementwise=8,
    padded=1,
    general=True,
)
"""Two cores with vectors of 16 floats, fp32. A tile is read where it lies, so only sums have to fit somewhere (the second cache); memory
streams rows of two kibibytes or more."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
