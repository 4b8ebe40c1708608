"""Long runs of a decoder's step: times at positions, and many steps of several sessions and
threads, whose tokens and memory are compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Tokens = np.ndarray[Any, np.dtype[np.int64]]
"""The tokens of a step: one for each sequence of the batch."""
Call = Callable[[Tokens, int], Tokens]
"""A step: the next tokens after those at a position."""
SESSIONS, THREADS = 2, 4
"""The sessions of a soak at once, and the threads of each, all with their own caches."""
WARM = 100
"""Steps before the memory is read the first time."""
TIMED = 50
"""Steps at a position, of which the median is taken."""


class Opened(Protocol):
    """A runtime as a soak needs it: a session, and steps of it with their own caches."""

    def session(self) -> Any: ...

    def step(self, session: Any) -> Call: ...


def at_positions(step: Call, tokens: Tokens, positions: Sequence[int], length: int) -> dict[str, float]:
    """The median microseconds of a step at each position, of those within caches of this length."""
    found = {}
    for position in sorted({each for each in positions if 0 <= each < length}):
        times = []
        for _ in range(TIMED):
            start = time.perf_counter()
            step(tokens, position)
            times.append(time.perf_counter() - start)
        found[str(position)] = round(1e6 * float(np.median(times)), 1)
    return found


def wrapped(step: Call, first: Tokens, past: int, length: int, count: int) -> list[list[int]]:
    """The tokens of so many steps, whose positions begin again at the end of the caches."""
    found, tokens = [], first
    for i in range(count):
        tokens = np.array(step(tokens, (past + i) % length))
        found.append(tokens.tolist())
    return found


def memory(device: str) -> dict[str, int]:
    """The bytes of this process that are resident on the host, and those of the device in use."""
    import torch

    lines = Path("/proc/self/status").read_text().splitlines()
    host = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
    if device != "cuda":
        return {"host": host}
    free, total = torch.cuda.mem_get_info()
    return {"host": host, "device": total - free}


def soak(opened: Opened, first: Tokens, past: int, length: int, count: int, device: str) -> dict[str, Any]:
    """Memory at the beginning and the end of one run of so many steps, and how many of the runs of
    an eighth of them, in several sessions and threads at once, give the same tokens. `errors` are
    those of threads."""
    single = opened.step(opened.session())
    wrapped(single, first, past, length, min(WARM, count))
    begin = memory(device)
    wrapped(single, first, past, length, count)
    found: dict[str, Any] = {"steps": count, "begin": begin, "end": memory(device)}
    each = max(1, count // (SESSIONS * THREADS))
    sessions = [opened.session() for _ in range(SESSIONS)]
    steps = [opened.step(session) for session in sessions for _ in range(THREADS)]
    wanted = wrapped(opened.step(sessions[0]), first, past, length, each)  # alone, with new caches
    return (
        found | {"steps of a thread": each} | together(steps, lambda s: wrapped(s, first, past, length, each), wanted)
    )


def together(steps: Sequence[Call], run: Callable[[Call], Any], wanted: Any) -> dict[str, Any]:
    """Runs of all steps at once, each in a thread: how many give what is wanted, of how many."""
    same, errors = list[bool](), list[str]()

    def one(step: Call) -> None:
        try:
            same.append(run(step) == wanted)
        except Exception as error:  # it is told with the others
            errors.append(f"{type(error).__name__}: {error}"[:300])

    threads = [threading.Thread(target=one, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"same": sum(same), "runs": len(steps), "errors": errors}
