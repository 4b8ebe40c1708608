"""Statistics of paired runs: how often they are wrong, by which clock they are, and when they
pause.

The noise of the simulations is that of shared machines: heavy tails, disturbances that last for
several rounds, drifts, and luck that a session keeps.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from quiet import counted_cores
from scipy import integrate

from taso_mirage.measure import load, native
from taso_mirage.measure.load import Load
from taso_mirage.measure.native import SPINNING, pause_between, spins
from taso_mirage.measure.session import FEW, ROUNDS, interleaved
from taso_mirage.measure.target import CPU, CUDA, OPENVINO, Target
from taso_mirage.measure.timing import (
    ALPHA,
    GAIN,
    LUCK,
    PAIRS,
    Timing,
    Verdict,
    clear,
    compared_times,
    enough_wins,
    evidence,
    pooled,
)

# ---------------------------------------------------------------- the conclusions from rounds


def test_a_good_moment_of_one_model_is_no_gain() -> None:
    """Moments in which all is faster met the other three times, the original once: the quotient of
    the lower quartiles would be 1.6."""
    original = [7.0, 7.1, 7.2, 7.1, 7.1, 7.1, 7.1, 4.25]
    other = [6.9, 7.0, 7.1, 4.2, 7.0, 4.3, 7.0, 4.2]
    timing = compared_times([original], [other], [1.0])
    assert timing.ratio < 1.02
    assert timing.verdict is Verdict.UNDECIDED


def test_a_steady_gain_is_the_quotient() -> None:
    assert compared_times([[2.0] * 8], [[1.0] * 8], [1.0]).ratio == 2.0


@pytest.mark.parametrize("rounds", [1, 2, 7, 15, 16, 40])
def test_the_ratio_is_in_its_interval(rounds: int) -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        a, b = (np.exp(rng.standard_t(2, rounds)).tolist() for _ in range(2))
        timing = compared_times([a], [b], [1.0])
        assert timing.low <= timing.ratio <= timing.high
        assert f"{timing.low:.2f} and {timing.high:.2f}" in str(timing)


def test_both_orders_of_two_models_say_the_same() -> None:
    rng = np.random.default_rng(0)
    for gain in (0.8, 1.0, 1.02, 1.3):
        a, b = (np.exp(0.05 * rng.standard_t(2, 21)) for _ in range(2))
        there, back = compared_times([a * gain], [b], [1.0]), compared_times([b], [a * gain], [1.0])
        assert there.ratio == pytest.approx(1 / back.ratio)
        assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
        assert there.faster == (back.verdict is Verdict.SLOWER)


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([1.05] * 16, Verdict.SLOWER),
        ([1.05, 0.98] * 8, Verdict.UNDECIDED),
        ([1.005] * 16, Verdict.UNDECIDED),
        ([0.98] * 16, Verdict.UNDECIDED),  # a session may be as lucky
        ([0.9] * 16, Verdict.FASTER),
        ([0.5] * (FEW - 1), Verdict.UNDECIDED),
        ([0.5] * FEW, Verdict.FASTER),
    ],
)
def test_what_luck_and_noise_explain_is_undecided(others: list[float], verdict: Verdict) -> None:
    assert compared_times([[1.0] * len(others)], [others], [1.0]).verdict is verdict


def test_what_all_pairs_of_sessions_gain_is_no_luck() -> None:
    one, other = (compared_times([[t] * 9], [[1.0] * 9], [1.0]) for t in (1.02, 0.999))
    assert pooled([one] * (PAIRS - 1)).verdict is Verdict.UNDECIDED
    assert pooled([one] * PAIRS).verdict is Verdict.FASTER
    assert pooled([*[one] * PAIRS, other]).verdict is Verdict.UNDECIDED
    assert pooled([one] * PAIRS).runs == 9 * PAIRS


def test_rounds_end_once_they_decide_and_say_closely() -> None:
    assert clear([[2.0] * 15, [1.0] * 15, [1.5] * 15])
    assert not clear([[2.0] * 15, [1.0] * 15, [1.99] * 15])
    assert not clear([[2.0] * 15, [1.0, 1.1, 0.9] * 5])
    model = SimpleNamespace(prepared=lambda inputs: lambda: 1e-9)
    sessions: list[Any] = [model, model]
    for decided, rounds in ((True, ROUNDS), (False, 2 * ROUNDS)):
        times = interleaved(
            sessions, {}, 60.0, ends=lambda times, decided=decided: decided or len(times[0]) >= 2 * ROUNDS
        )
        assert [len(each) for each in times] == [rounds] * 2


@pytest.mark.parametrize(("low", "high", "sure"), [(1.2, 1.4, 1.2), (0.9, 1.1, 1.0), (0.7, 0.8, 0.8)])
def test_what_is_sure_is_the_end_of_the_interval_next_to_1(low: float, high: float, sure: float) -> None:
    assert Timing(1.0, 1.0, (low * high) ** 0.5, low, high, 20).sure == sure


# ---------------------------------------------------------------- the test


@pytest.mark.parametrize(("wins", "rounds"), [(0, 1), (7, 7), (9, 12), (60, 100), (500, 1000)])
def test_evidence_is_the_mean_of_the_bets(wins: int, rounds: int) -> None:
    def odds(p: float) -> float:
        return 2.0 * (2 * p) ** wins * (2 * (1 - p)) ** (rounds - wins)

    assert evidence(wins, rounds) == pytest.approx(integrate.quad(odds, 0.5, 1.0, limit=500)[0], rel=1e-6)


def test_fair_rounds_are_called_unequal_as_rarely_as_is_said() -> None:
    """Looked at after every round, up to 200."""
    wins = np.cumsum(np.random.default_rng(0).random((4000, 200)) < 0.5, axis=1)
    bars = np.array([enough_wins(n) or 10**6 for n in range(1, 201)])
    called = (wins >= bars).any(axis=1).mean()
    assert 0 < called <= ALPHA


def sessions(rng: np.random.Generator, gain: float, rounds: int, luck: float, noise: float) -> Timing:
    """One pair of sessions: a disturbance may last some rounds and slows one run more than the
    other; all drifts."""
    drift = np.exp(np.cumsum(rng.normal(0, 0.02, rounds)))
    disturbed = np.zeros(rounds)
    for i in range(1, rounds):
        disturbed[i] = 0.7 * disturbed[i - 1] + (rng.random() < 0.1) * rng.pareto(1.5)
    sides = []
    for speed in (gain, 1.0):
        own = np.exp(noise * rng.standard_t(2, rounds)) * (1 + disturbed * rng.random(rounds))
        sides.append(speed * drift * own * np.exp(rng.normal(0, luck)))
    return compared_times([sides[0]], [sides[1]], [1.0])


def looked(rng: np.random.Generator, gain: float, luck: float, noise: float) -> Timing:
    """The choice's procedure: new sessions until it is decided."""
    looks: list[Timing] = []
    while len(looks) < PAIRS and not (looks and pooled(looks).verdict is not Verdict.UNDECIDED):
        looks.append(sessions(rng, gain, 15, luck, noise))
    return pooled(looks)


@pytest.mark.parametrize(("luck", "noise"), [(0.0, 0.01), (0.005, 0.02), (0.01, 0.05), (0.01, 0.3)])
def test_equal_models_are_rarely_called_unequal(luck: float, noise: float) -> None:
    rng = np.random.default_rng(7)
    found = [looked(rng, 1.0, luck, noise).verdict for _ in range(400)]
    for wrong in (Verdict.FASTER, Verdict.SLOWER):
        assert found.count(wrong) / len(found) <= ALPHA


@pytest.mark.parametrize(("gain", "noise"), [(1.1, 0.02), (1.3, 0.1)])
def test_a_clear_gain_is_always_seen(gain: float, noise: float) -> None:
    rng = np.random.default_rng(11)
    found = [looked(rng, gain, 0.01, noise).verdict for _ in range(200)]
    assert found.count(Verdict.FASTER) >= 0.95 * len(found)
    assert Verdict.SLOWER not in found


def test_a_small_gain_is_told_from_luck_by_several_sessions() -> None:
    assert GAIN < 1.02 < LUCK
    rng = np.random.default_rng(13)
    assert [looked(rng, 1.025, 0.0, 0.005).faster for _ in range(50)].count(True) >= 35


# ---------------------------------------------------------------- the clock


def test_threads_that_go_on_after_a_run_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin() -> None:
        while time.thread_time() < 0.05:
            pass

    thread = Thread(target=spin)

    def run() -> float:
        thread.start()
        return 0.0

    assert not spins(lambda: 0.0, 0.1)
    # a busy machine may give the thread little time in 0.1 s
    slept = SimpleNamespace(process_time=time.process_time, sleep=lambda seconds: thread.join())
    monkeypatch.setattr(native, "time", slept)
    assert spins(run, 0.1)


@pytest.mark.parametrize(
    ("threads", "target", "pause"),
    [([2, 1], CPU, SPINNING), ([1, 2], CPU, SPINNING), ([1, 1], CPU, 0.0), ([2], CPU, 0.0), ([2, 2], CUDA, 0.0)],
)
def test_runs_whose_threads_spin_wait_for_each_other(
    threads: list[int], target: Target, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "SPINNING", SPINNING)
    runs = [lambda count=count: float(count) for count in threads]
    assert pause_between(runs, target, lambda run, seconds: run() > 1) == pause


@pytest.mark.parametrize(
    ("got", "cores", "busy", "others"), [(0.99, 2, False, 1), (0.5, 2, True, 2), (0.67, 2, True, 1), (0.8, 16, True, 4)]
)
def test_a_busy_machine_is_seen_and_said(got: float, cores: int, busy: bool, others: int) -> None:
    seen = Load(got, cores)
    assert (seen.busy, seen.others) == (busy, others)
    assert seen.clock(CPU) == (CPU.serial if busy else CPU)
    assert seen.clock(CUDA) == CUDA
    who = "1 other process" if others == 1 else f"{others} other processes"
    assert seen.said(CPU) == f"{who} used the cores: CPU time decided"
    assert seen.said(CUDA) == f"{who} used the cores: times vary more"


def test_processes_that_work_take_of_what_a_process_gets() -> None:
    """On as many cores as there are, so many others leave a half, or less."""
    own = os.sched_getaffinity(0)
    burn = "import hashlib\nprint(flush=True)\nwhile True: hashlib.sha256(bytes(1 << 20))"
    others = [subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) for _ in own]
    try:
        for each in others:
            assert each.stdout is not None
            each.stdout.readline()
        got, cores = counted_cores(0.2)
    finally:
        for each in others:
            each.kill()
            each.communicate()
    assert cores == len(own)
    assert got < 0.8


def test_a_look_is_made_in_the_process_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(load, "in_child", lambda function, seconds: asked.append(function.__name__) or (0.5, 4))
    assert load.observed_load() == Load(0.5, 4)
    assert asked == ["cores_got"] * load.LOOKS


def test_a_short_command_is_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(0.5, 4), (0.95, 4), (0.5, 4)])
    monkeypatch.setattr(load, "in_child", lambda function, seconds: next(looks))
    assert load.observed_load() == Load(0.95, 4)


class Working:
    """A run that works, and then waits for others."""

    def __init__(self) -> None:
        self.left = iter([True])

    def __call__(self, *_: object) -> Sequence[object]:
        time.sleep(0.05)
        hashlib.sha256(bytes(1 << 16))
        return []


@pytest.mark.parametrize("target", [CPU, OPENVINO])
def test_the_clock_of_one_thread_counts_work_and_not_waiting(target: Target, tmp_path: Path) -> None:
    from taso_mirage.targets.protocol import timed, worked

    assert worked(Working()) < 0.04 < timed(Working())
    assert target.serial is not None
    assert target.serial != target
    assert target.serial.serial == target.serial
    assert not dict(target.options).items() >= dict(target.serial.options).items()
