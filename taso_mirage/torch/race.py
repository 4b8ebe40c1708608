"""Two ways to run a graph beside each other: the slower one is not taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from taso_mirage.measure.timing import Timing, Verdict, compared_times, enough_wins

ROUNDS, SECONDS = 40, 1.0
"""Rounds at most, and seconds after which none begins once there are enough for a verdict."""
PATIENCE = 8.0
"""Seconds after which none begins in any case: without a verdict no graph is slower."""
SHORT = 1e-4
"""Seconds of calls whose time does not matter: the time of Python counts there."""
TimedCall = Callable[[], Any]


def slower(ours: TimedCall, theirs: TimedCall, cuda: bool) -> float | None:
    """How many times as long as another way a graph takes, if the verdict is that it is slower;
    both have run before.

    They run in turn, in an order that changes, until the verdict is clear.
    """
    if both_short(ours, theirs, cuda):
        return None
    calls, times, start = (ours, theirs), (list[float](), list[float]()), time.perf_counter()
    while (rounds := len(times[0])) < ROUNDS and time.perf_counter() < start + PATIENCE:
        enough = enough_wins(rounds) is not None if rounds else False
        if enough and (time.perf_counter() > start + SECONDS or _raced(times).verdict is not Verdict.UNDECIDED):
            break
        for i in (0, 1) if rounds % 2 else (1, 0):
            times[i].append(_seconds(calls[i], cuda))
    timing = _raced(times)
    return timing.ratio if timing.faster else None


def _raced(times: tuple[list[float], list[float]]) -> Timing:
    """The times of our way against those of the other."""
    ours, theirs = times
    return compared_times([ours], [theirs], [1.0])


def both_short(ours: TimedCall, theirs: TimedCall, cuda: bool) -> bool:
    """Whether the time of these calls does not matter."""
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
