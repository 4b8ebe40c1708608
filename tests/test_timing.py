"""What interleaved runs say, and when they pause."""

from __future__ import annotations

import time
from threading import Thread

import pytest

from taso_mirage.measure.native import spins
from taso_mirage.measure.session import SPINNING, pause_between
from taso_mirage.measure.target import CPU, CUDA, Target
from taso_mirage.measure.timing import compared_times


def test_a_good_moment_of_one_model_is_no_gain() -> None:
    """Nearly every round says that the other is 1 % faster. Moments in which all is faster met it
    three times, the original once: the quotient of the lower quartiles is larger than any of the
    middle rounds'."""
    original = [7.0, 7.1, 7.2, 7.1, 7.1, 7.1, 7.1, 4.25]
    other = [6.9, 7.0, 7.1, 4.2, 7.0, 4.3, 7.0, 4.2]
    timing = compared_times([original], [other], [1.0])
    assert timing.original / timing.optimized > 1.6
    assert timing.ratio == timing.high < 1.2


def test_a_steady_gain_is_the_quotient() -> None:
    assert compared_times([[2.0] * 8], [[1.0] * 8], [1.0]).ratio == 2.0


def test_threads_that_go_on_after_a_run_are_seen() -> None:
    def spin() -> None:
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            pass

    thread = Thread(target=spin)

    def run() -> float:
        thread.start()
        return 0.0

    assert not spins(lambda: 0.0, 0.1)
    assert spins(run, 0.1)
    thread.join()


@pytest.mark.parametrize(
    ("threads", "target", "pause"),
    [([2, 1], CPU, SPINNING), ([1, 2], CPU, SPINNING), ([1, 1], CPU, 0.0), ([2], CPU, 0.0), ([2, 2], CUDA, 0.0)],
)
def test_runs_whose_threads_spin_wait_for_each_other(threads: list[int], target: Target, pause: float) -> None:
    runs = [lambda count=count: float(count) for count in threads]
    assert pause_between(runs, target, lambda run, seconds: run() > 1) == pause
