"""The processor that this process runs on."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def processor_and_cores() -> str:
    """The processor and the cores that this process may use, as a key for measurements."""
    return f"{processor()} x{cores()}"


@cache
def has_matrix_unit() -> bool:
    """Whether the processor multiplies tiles of bfloat16 (Intel's AMX)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("flags") and "amx_bf16" in line.split() for line in lines)
