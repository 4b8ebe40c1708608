"""Goals of one model that other workers tune: which ones, and what becomes of their answers."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.lowering.backend import here
from taso_mirage.measure.target import CPU
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.fuse.choices import KernelRecords
from taso_mirage.pipeline.fuse.other_workers import LEAST, OtherWorkers, SharedGoal, tuned

X = variable("x", Tensor("float32", (8, 64)))


def goal(*names: str) -> Graph:
    """A chain of operators of one input."""
    found = X
    for name in names:
        found = term(name, found)
    return Graph((X,), (term("mul", found, X),))


GOALS = [(goal(name), None) for name in ("tanh", "exp", "sigmoid", "sqrt", "abs")]


class Pool:
    """Workers whose answers the test gives."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[Future[Any]] = []
        self.programs: list[Any] = []

    def __call__(self, function: Any, *args: Any) -> Future[Any]:
        assert function is tuned
        self.programs.append(args[2])
        self.asked.append(Future())
        return self.asked[-1]

    def given(self) -> list[int]:
        """The numbers of the goals that workers got."""
        return [[to_json(each) for each, _ in GOALS].index(program) for program in self.programs]


def shared(pool: Pool, seconds: float = 60.0) -> OtherWorkers:
    return OtherWorkers(pool, CPU, False, [SharedGoal(each, ()) for each in GOALS], lambda: seconds)  # type: ignore[arg-type]


def test_another_worker_has_the_second_goal_while_this_one_has_the_first() -> None:
    pool = Pool(1)
    made = shared(pool)
    assert pool.given() == [1]
    assert made.take(GOALS[0], "key") is None
    pool.asked[0].set_result(("key", {"mugraph": 1}))
    assert pool.given() == [1, 3]  # the third is the next one here
    assert made.take(GOALS[1], "key") == {"mugraph": 1}
    assert made.take(GOALS[2], "key") is None
    pool.asked[1].set_exception(TasoMirageError("none"))
    assert made.take(GOALS[3], "key") is None
    assert pool.given() == [1, 3, 4]
    pool.asked[2].set_result(("another machine", {}))
    assert made.take(GOALS[4], "key") is None
    assert made.taken == 1


def test_several_workers_have_as_many_and_all_end() -> None:
    pool = Pool(3)
    made = shared(pool)
    assert pool.given() == [1, 2, 3]
    made.close()
    assert all(each.cancelled() for each in pool.asked)
    assert made.take(GOALS[0], "key") is None
    assert pool.given() == [1, 2, 3]


def test_without_time_nothing_is_given() -> None:
    pool = Pool(2)
    assert shared(pool, LEAST / 2).take(GOALS[1], "key") is None
    assert pool.given() == []


def test_a_choice_of_another_worker_is_kept_if_it_computes_its_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path))
    asked, line = GOALS[0][0], SimpleNamespace(stops=[])
    key, record = tuned(line, CPU, False, to_json(asked), None, (), 8.0)  # type: ignore[arg-type]
    assert key == here(CPU).key
    assert len(line.stops) == 1
    records = KernelRecords(CPU.name, key)
    assert records.keep_from(record, GOALS[1][0], None, ()) is None  # of another goal
    assert records.record(GOALS[1][0], None, ()) is None
    assert records.keep_from(record, asked, None, ()) == record
    assert here(CPU).kernel(record).source
