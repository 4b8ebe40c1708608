"""Values that threads compute before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from taso_mirage.errors import OutOfTime
from taso_mirage.measure.early import EarlyValues


def nothing() -> None:
    """A step that ends nothing."""


def given(value: int) -> Callable[[Callable[[], None]], int]:
    return lambda step: value


def test_values_are_those_of_their_functions_in_any_order() -> None:
    early = EarlyValues[str, int](2, 100, nothing)
    for i in range(8):
        early.add(str(i), given(i), 40)
    assert [early.take(str(i)) for i in reversed(range(8))] == [*reversed(range(8))]
    assert "0" not in early
    early.close()


def test_a_thread_computes_before_it_is_asked_for() -> None:
    """The thread that asks only waits where another one has begun."""
    begun, where = threading.Event(), list[int]()

    def slow(step: Callable[[], None]) -> int:
        where.append(threading.get_ident())
        begun.set()
        return 7

    early = EarlyValues[str, int](1, 100, nothing)
    early.add("x", slow, 1)
    assert begun.wait(60)
    assert early.take("x") == 7
    assert where != [threading.get_ident()]
    early.close()


def test_no_more_is_held_than_there_is_room_for() -> None:
    """The thread that asks computes the values that had to wait."""
    where = dict[int, int]()

    def noted(value: int) -> Callable[[Callable[[], None]], int]:
        def compute(step: Callable[[], None]) -> int:
            where[value] = threading.get_ident()
            return value

        return compute

    early = EarlyValues[int, int](1, 100, nothing)
    for i in range(3):
        early.add(i, noted(i), 60)
    assert early.take(2) == 2
    assert where[2] == threading.get_ident()
    assert [early.take(0), early.take(1)] == [0, 1]
    early.close()


def test_the_error_of_a_function_is_raised_where_its_value_is_asked_for() -> None:
    def wrong(step: Callable[[], None]) -> int:
        raise ValueError("no value")

    early = EarlyValues[str, int](1, 100, nothing)
    early.add("x", wrong, 1)
    with pytest.raises(ValueError, match="no value"):
        early.take("x")
    with pytest.raises(KeyError):
        early.take("x")
    early.close()


def test_threads_end_where_nobody_waits_for_them() -> None:
    entered, closed, ended = threading.Event(), threading.Event(), list[type[BaseException]]()
    left = threading.Event()

    def long(step: Callable[[], None]) -> int:
        entered.set()
        closed.wait(60)
        try:
            step()
        except OutOfTime as late:
            ended.append(type(late))
            raise
        finally:
            left.set()
        return 0

    early = EarlyValues[str, int](1, 100, nothing)
    early.add("x", long, 1)
    assert entered.wait(60)
    early.close()
    closed.set()
    assert left.wait(60)
    assert ended == [OutOfTime]
    assert "x" not in early
