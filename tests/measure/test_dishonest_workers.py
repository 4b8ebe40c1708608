"""Workers of a scheduler that die, hang, or give no measurement: the search goes on by predicted
costs, and the result is checked as always."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import distributed
import numpy as np
import pytest
from executors import QUIET
from small_models import model, w, x

from taso_mirage.errors import OutOfTime, RunFailed, RuntimeUnavailable
from taso_mirage.measure import remote, tasks
from taso_mirage.measure.child import child
from taso_mirage.measure.remote import answered, executor
from taso_mirage.measure.target import CPU
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.search.config import Config


class Odd(Exception):
    """A worker's own error, of a class that nobody here knows."""


def _raise(error: BaseException) -> Any:
    raise error


def _drawn() -> Any:
    return next(DRAWN)


DRAWN: Iterator[Any] = (np.random.default_rng(i).choice([-1.0, math.nan, 1e-9, 1e300, 0.0]) for i in count())
LIES: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "a text": lambda: "fast",
    "no number": lambda: math.nan,
    "less than nothing": lambda: -1.0,
    "for ever": lambda: math.inf,
    "no list": lambda: [],
    "a list that is too short": lambda: [1e-6],
    "a list of texts": lambda: ["a", "b", "c"],
    "bytes": lambda: b"\xff" * 100,
    "an error of its own": lambda: _raise(Odd("gone wrong")),
    "an exit": lambda: _raise(SystemExit(3)),
    "no memory": lambda: _raise(MemoryError()),
    "numbers at random": _drawn,
}


class Dishonest(Executor):
    """Answers everything but the name of its device with the same lie."""

    def __init__(self, lie: Callable[[], Any]) -> None:
        self.lie, self.asked = lie, 0

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        self.asked += 1
        found: Future[Any] = Future()
        try:
            found.set_result("some machine" if function is tasks.device_key else self.lie())
        except BaseException as error:
            found.set_exception(error)
        return found


@pytest.mark.parametrize("name", LIES)
def test_what_is_no_measurement_costs_a_measurement(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    there = Dishonest(LIES[name])

    @contextmanager
    def dishonest(address: str, target: Any) -> Iterator[Executor]:
        yield remote._Watched(there, lambda: True)

    monkeypatch.setattr(remote, "executor", dishonest)
    a = x(8, 64)
    outputs = tuple(term("relu", term("relu", term("matmul", a, w(64, 64, name=n)))) for n in "qk")
    cache = tmp_path / "costs.sqlite"
    result = optimize_model(model((a,), outputs), Config(scheduler="tcp://x:1", cache=cache, seconds=0.1, budget=4))
    assert there.asked
    assert all(each.passed for each in result.differences)


def test_a_worker_that_hangs_is_waited_for_as_long_as_a_run_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child(), "limit", 0.3)
    with pytest.raises(RunFailed, match=r"took longer than 0\.3 s"):
        answered(Future())


def test_a_worker_that_hangs_does_not_outlast_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child(), "deadline", SimpleNamespace(last=lambda: -1.0))
    asked: Future[Any] = Future()
    with pytest.raises(OutOfTime):
        answered(asked)
    assert asked.cancelled()


def test_without_workers_nobody_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SECONDS", 0.3)
    with pytest.raises(CancelledError, match="no workers"):
        answered(Future(), lambda: False)


@pytest.mark.slow
def test_a_worker_that_dies_costs_what_it_was_at() -> None:
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, **QUIET) as cluster,
        executor(cluster.scheduler_address, CPU) as there,
    ):
        with pytest.raises(RunFailed, match="a worker of the scheduler failed: KilledWorker"):
            there.submit(os._exit, 3).result()
        assert there.submit(abs, -3).result() == 3


@pytest.mark.slow
def test_a_scheduler_whose_workers_are_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SECONDS", 2)
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, **QUIET) as cluster,
        pytest.raises(RuntimeUnavailable, match="lost while measuring"),
    ):
        _ask_after(cluster)


def _ask_after(cluster: Any) -> None:
    with executor(cluster.scheduler_address, CPU) as there:
        cluster.scale(0)
        time.sleep(1)
        there.submit(abs, -3).result()
