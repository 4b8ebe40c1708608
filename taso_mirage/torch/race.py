"""Two ways to run a graph beside each other: the slower one is not taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

SLOWER = 1.01
"""A graph is slower that takes so many times as long, in three of four rounds."""
ROUNDS, SECONDS = 9, 1.0
"""Rounds at most, none begun later, but for the first three."""
SHORT = 1e-4
"""Seconds of calls of which nobody looks at the time: what Python does counts there."""
TimedCall = Callable[[], Any]


def slower(ours: TimedCall, theirs: TimedCall, cuda: bool) -> float | None:
    """How many times as long as another way a graph takes, if it is slower; both have run before.

    They run in turn, in an order that changes.
    """
    if both_short(ours, theirs, cuda):
        return None
    calls, ratios, start = (ours, theirs), list[float](), time.perf_counter()
    while len(ratios) < ROUNDS and (len(ratios) < 3 or time.perf_counter() < start + SECONDS):
        order: Sequence[int] = (0, 1) if len(ratios) % 2 else (1, 0)
        times = {i: _seconds(calls[i], cuda) for i in order}
        ratios.append(times[0] / times[1])
    ratios.sort()
    return ratios[len(ratios) // 2] if ratios[len(ratios) // 4] > SLOWER else None


def both_short(ours: TimedCall, theirs: TimedCall, cuda: bool) -> bool:
    """Whether nobody looks at the time of these calls."""
    _seconds(ours, cuda)  # a second run may be captured
    return max(_seconds(ours, cuda), _seconds(theirs, cuda)) < SHORT


def _seconds(call: TimedCall, cuda: bool) -> float:
    """Seconds of a call, from idle to idle on a GPU."""
    if cuda:
        torch.cuda.synchronize(0)
    start = time.perf_counter()
    call()
    if cuda:
        torch.cuda.synchronize(0)
    return time.perf_counter() - start
