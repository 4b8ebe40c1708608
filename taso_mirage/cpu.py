"""The CPU: its cores, its C++ compiler, and what the analytic model knows of it, which chooses what is compiled; a measurement decides."""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache
from importlib.util import find_spec

from taso_mirage.errors import RuntimeUnavailable
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


@cache
def compiler() -> tuple[str, ...]:
    """The command of a C++ compiler: $CXX, g++, clang++, or that of the package ziglang."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return (found,)
    if find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "c++")
    raise RuntimeUnavailable(
        "there is no C++ compiler, which kernels for the CPU and their library need; install g++ or clang++, `pip install ziglang`, "
        "or set CXX. The model runs without them too: load it without `register`, and its functions compute the same"
    )
