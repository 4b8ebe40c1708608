"""Processes of our own: they answer, one that breaks costs no other, and they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from taso_mirage.errors import TasoMirageError
from taso_mirage.system.workers import Workers, process_pool


def done(job: Mapping[str, Any]) -> Any:
    """The jobs of the processes of these tests."""
    what = job["what"]
    if what == "print":
        print("no answer", end="")
    if what == "raise":
        raise ValueError
    if what == "end":
        os._exit(1)
    while what == "hang":
        pass
    return {"said": job["what"], "by": os.getpid()}


def made(limit: float = 600.0, count: int = 1) -> Workers:
    return Workers("test_workers:done", count, limit, ("json",))


@pytest.fixture
def workers() -> Iterator[Workers]:
    with closing(made()) as found:
        yield found


def answers(workers: Workers, *jobs: str) -> list[Any]:
    return [workers({"what": job}).result(600) for job in jobs]


def test_a_process_answers_again_and_again(workers: Workers) -> None:
    found = answers(workers, "print", "a\nb", "print")
    assert [each["said"] for each in found] == ["print", "a\nb", "print"]
    assert {each["by"] for each in found} == {workers._started[0].pid}


def test_a_process_that_ends_is_replaced(workers: Workers) -> None:
    found = answers(workers, "raise", "a", "end", "b")
    assert [each and each["said"] for each in found] == [None, "a", None, "b"]


def test_what_takes_too_long_ends_its_process() -> None:
    with closing(made(0.5)) as workers:
        assert answers(workers, "hang") == [None]
        assert [process.wait() for process in workers._started] == [-signal.SIGALRM]


def test_closing_does_not_wait_for_what_hangs(workers: Workers) -> None:
    hanging = workers({"what": "hang"})
    while not workers._started:
        time.sleep(0.01)
    started = list(workers._started)
    workers.close()
    assert hanging.result(600) is None
    assert [process.poll() for process in started] == [-signal.SIGKILL]


def test_all_are_started_ahead_and_end_without_a_job() -> None:
    workers = made(count=3)
    with closing(workers):
        workers.start({"what": "first"})
        started = list(workers._started)
        assert len(started) == 3
        found = [each.result(600)["by"] for each in [workers({"what": str(i)}) for i in range(4)]]
        assert {*found} <= {process.pid for process in started}
        assert workers._started == started
    assert [process.poll() for process in started] == [-signal.SIGKILL] * 3


def test_a_full_shared_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and queues of `multiprocessing` lie in /dev/shm."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("multiprocessing.context.BaseContext.Lock", full)
    before = dict(os.environ)
    with (
        pytest.raises(TasoMirageError, match=r"cannot share memory \(No space left on device\); make room in"),
        process_pool(2),
    ):
        pass
    assert dict(os.environ) == before
