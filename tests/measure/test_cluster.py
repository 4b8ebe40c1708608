"""The workers of a Dask scheduler: one kind of machine, one task a worker at a time."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import distributed
import pytest
from executors import QUIET

from taso_mirage.errors import CheckFailed, InvalidOption, RunFailed, RuntimeUnavailable
from taso_mirage.measure import cluster as workers
from taso_mirage.measure.cluster import Line, NotBegun, cluster
from taso_mirage.measure.target import CPU
from taso_mirage.search.config import Stop


def _local(count: int, **options: Any) -> distributed.LocalCluster:
    return distributed.LocalCluster(n_workers=count, processes=False, **{"threads_per_worker": 1, **QUIET, **options})


@pytest.mark.parametrize("changed", ["machine", "taso-mirage"])
def test_a_mixed_pool_is_refused_with_the_difference(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, kinds = workers.facts, iter("ab")
    monkeypatch.setattr(
        workers, "facts", lambda target: usual(target) | ({} if target is None else {changed: next(kinds)})
    )
    with (
        _local(2) as local,
        pytest.raises(InvalidOption, match=rf"{changed} is .* on .* and .*; (start one|install the same)"),
        cluster(local.scheduler_address, CPU),
    ):
        pass


def test_a_worker_of_another_kind_that_comes_later_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with _local(1) as local, cluster(local.scheduler_address, CPU) as there:
        monkeypatch.setattr(workers, "facts", lambda target: {**there.kind, "machine": "another"})
        with pytest.raises(InvalidOption, match=r"came later, and machine is 'another' on the worker"):
            there.run(_answer)


def _answer(line: Line, *args: Any) -> Any:
    for each in args:
        line.tell(each)
    return args


def _raise(line: Line, error: Exception) -> None:
    raise error


def _wait(line: Line, seconds: float) -> str:
    told: list[str] = []
    line.stops.append(lambda: told.append("stopped"))
    line.tell("begun")
    end = time.monotonic() + seconds
    while not told and time.monotonic() < end:
        time.sleep(0.01)
    return "".join(told)


def test_one_worker_does_tasks_hears_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    with _local(1) as local, cluster(local.scheduler_address, CPU) as there:
        heard: list[Any] = []
        assert there.run(_answer, 1, "two", hear=heard.append) == (1, "two")
        assert heard == [1, "two"]
        with pytest.raises(CheckFailed, match="as it was raised"):
            there.run(_raise, CheckFailed("as it was raised"))
        with pytest.raises(RunFailed, match="a worker failed: ZeroDivisionError: of a bug"):
            there.run(_raise, ZeroDivisionError("of a bug"))
        stop = Stop()
        assert there.run(_wait, 60.0, hear=lambda _: stop(), stop=stop) == "stopped"
        monkeypatch.setattr(workers, "_stop", lambda name: False)
        with pytest.raises(NotBegun):
            there.run(_wait, 1.0, stop=stop)
        assert not there._heard


def test_a_task_that_nobody_waits_for_stops() -> None:
    tasks: dict[str, Any] = {"kept": SimpleNamespace(state="executing"), "dropped": SimpleNamespace(state="cancelled")}
    for name, ends in (("dropped", True), ("forgotten", True), ("kept", False)):
        line = Line(name, SimpleNamespace(state=SimpleNamespace(tasks=tasks)))
        stopped: list[str] = []
        line.stops.append(lambda name=name, stopped=stopped: stopped.append(name))  # type: ignore[misc]
        line.ended = SimpleNamespace(wait=_times(2))  # type: ignore[assignment]
        line.watch()
        assert bool(stopped) == ends


def _times(count: int) -> Callable[[float], bool]:
    """The answers of an event that is set after some looks."""
    answers = iter([False] * count + [True])
    return lambda seconds: next(answers)


def test_without_workers_for_long_the_work_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LOST", 0.2)
    with _local(1) as local, cluster(local.scheduler_address, CPU) as there:
        monkeypatch.setattr(type(there), "count", 0)
        with pytest.raises(RuntimeUnavailable, match=r"lost while it worked .it has had no workers"):
            there.run(_wait, 2.0)


@pytest.mark.parametrize(
    ("count", "options", "said"),
    [(0, {}, "no workers; start one with"), (1, {"threads_per_worker": 2}, "several tasks at once; start workers")],
)
def test_unusable_workers_are_refused(count: int, options: dict[str, Any], said: str) -> None:
    with (
        _local(count, **options) as local,
        pytest.raises(InvalidOption, match=said),
        cluster(local.scheduler_address, CPU),
    ):
        pass


def test_a_worker_with_a_device_measures_alone_with_several_threads() -> None:
    with (
        _local(1, threads_per_worker=2, resources={"device": 1}) as local,
        cluster(local.scheduler_address, CPU) as there,
    ):
        assert there.resources == {"device": 1}
        assert there.run(_answer, 3) == (3,)


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(InvalidOption, match=r"scheduler needs Dask: pip install 'taso-mirage\[distributed\]'"),
        cluster("tcp://host:1", CPU),
    ):
        pass


NOBODY = "inproc://192.0.2.1/1/1"
"""An address of another process on another machine, which Dask refuses at once."""


def test_a_scheduler_that_is_not_there_is_an_error() -> None:
    for address in ("nothing://here", "nonsense", "host:port"):
        with pytest.raises(InvalidOption, match="write it as tcp://host:8786"), cluster(address, CPU):
            pass
    with pytest.raises(InvalidOption, match="start one with"), cluster(NOBODY, CPU):
        pass


@pytest.mark.sampled(3)
def test_dask_may_be_slow_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's client gives its thread ten seconds and fails an assertion then, which was seen on a
    machine of CI."""
    client, calls = distributed.Client, []

    def slow(*args: Any, **options: Any) -> distributed.Client:
        calls.append(args)
        if len(calls) == 1:
            raise AssertionError
        return client(*args, **options)

    monkeypatch.setattr(distributed, "Client", slow)
    with pytest.raises(InvalidOption, match="start one with"), cluster(NOBODY, CPU):
        pass
    assert calls == [(NOBODY,)] * 2


def test_a_client_that_did_not_start_is_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collected while another one started, it waited for ever for a lock that this one held."""
    made = list[weakref.ref[distributed.Client]]()

    class Kept(distributed.Client):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            made.append(weakref.ref(self))
            super().__init__(*args, **options)

    monkeypatch.setattr(distributed, "Client", Kept)
    with pytest.raises(InvalidOption, match="start one with") as raised, cluster(NOBODY, CPU):
        pass
    assert raised.value is not None  # the error is still there, the client is not
    assert [each() for each in made] == [None]
