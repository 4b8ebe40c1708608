"""Settings for the allocation and release of this process's memory."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of mallopt(3)."""
KEPT = 64 << 20
"""The free bytes at the end of the heap that stay with the process."""


def reuse_memory() -> None:
    """Allocate large arrays from the heap and reuse their memory.

    By default glibc maps and unmaps every array of 32 MiB or more, and the system clears the pages
    each time, which takes a large part of a float64 evaluation of a large model. Only for processes
    of this package. Without effect for other C libraries.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((M_TRIM_THRESHOLD, KEPT), (M_MMAP_MAX, 0), (M_ARENA_MAX, 1)):
            mallopt(option, value)


def collect_seldom() -> None:
    """Run the cyclic garbage collector after 50,000 new objects instead of 700.

    Terms and rules create few cycles, and with the default the collector takes a tenth of a
    command's time. Only for processes of this package.
    """
    gc.set_threshold(50_000, 20, 20)


def leave_garbage() -> None:
    """Disable the garbage collector at the end of a process. The system reclaims the memory at
    once, and a last collection of many terms takes long. Only for processes of this package.
    """
    gc.disable()
    gc.freeze()
