"""How this process takes memory from the operating system."""

from __future__ import annotations

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Of mallopt(3)."""
KEPT = 64 << 20
"""Bytes that are free and stay with the process, at its end of the heap."""


def reuse_memory() -> None:
    """Large arrays come from the heap, and their memory is used again.

    Else glibc maps and unmaps every array of 32 MiB or more, and the system clears its pages each
    time, which is much of a float64 evaluation of a large model. For a process of our own only.
    Nothing where the C library is another one.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((M_TRIM_THRESHOLD, KEPT), (M_MMAP_MAX, 0), (M_ARENA_MAX, 1)):
            mallopt(option, value)
