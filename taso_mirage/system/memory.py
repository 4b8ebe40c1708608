"""How this process takes memory from the operating system, and lets it go."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of mallopt(3)."""
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


def collect_seldom() -> None:
    """Garbage in cycles is looked for after 50,000 new objects instead of 700.

    There is little of it among terms and rules that stay, and to look took a tenth of a command's
    time. For a process of our own only.
    """
    gc.set_threshold(50_000, 20, 20)


def leave_garbage() -> None:
    """Stop the garbage collector at the end of a process: the system takes its memory back at once,
    and a last collection takes long where there are many terms. For a process of our own only.
    """
    gc.disable()
    gc.freeze()
