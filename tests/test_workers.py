"""Processes that compile for the tuner: they answer, one that breaks costs no other, and they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from taso_mirage.codegen.gpu.program import Program
from taso_mirage.codegen.workers import Workers

pytest.importorskip("torch", reason="the extra `triton` needs torch")


@pytest.fixture
def workers() -> Iterator[Workers]:
    with closing(Workers(1)) as made:
        yield made


def program(source: str) -> Program:
    """Nothing to launch: importing the source is all there is to do."""
    return Program(source, (), ())


def test_a_process_answers_again_and_again(workers: Workers) -> None:
    printing = program("print('true or false', end='')")
    assert [workers(printing).result(60) for _ in range(3)] == [True] * 3
    assert len(workers._started) == 1


def test_a_process_that_ends_is_replaced(workers: Workers) -> None:
    broken, killed = program("raise ValueError"), program("import os; os._exit(1)")
    found = [workers(p).result(60) for p in (broken, program(""), killed, program(""))]
    assert found == [False, True, False, True]


def test_what_takes_too_long_ends_its_process() -> None:
    with closing(Workers(1, limit=0.5)) as workers:
        found = [workers(program(source)).result(60) for source in ("", "while True: pass", "")]
    assert found == [True, False, True]


def test_closing_does_not_wait_for_what_hangs(workers: Workers) -> None:
    hanging = workers(program("import time; time.sleep(1000)"))
    while not workers._started:
        time.sleep(0.01)
    workers.close()
    assert not hanging.result(10)
    assert all(process.poll() is not None for process in workers._started)
