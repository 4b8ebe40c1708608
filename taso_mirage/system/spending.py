"""An account of a command's seconds by stage and by purpose.

An account belongs to the thread that opened it. Each of its seconds belongs to one stage, the
outermost, and to one purpose, the innermost, so the sums over stages and over purposes equal the
wall time. Work of other threads and processes counts only while the thread waits for it, for the
thread's current purpose.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")
START, BETWEEN = "start", "between stages"
"""Names in place of a stage: until a command's first line, and outside of all stages."""


class Purpose(StrEnum):
    """The purpose of spent seconds."""

    OWN = "own work"
    """The thread's own: rules, search, and all that has no other purpose."""
    STARTING = "starting"
    """The start of Python, and of the process that has the runtime."""
    LOADS = "loads"
    """Whole models into sessions of the runtime."""
    REFERENCES = "references"
    """Evaluations in float64."""
    OPERATORS = "operators"
    """Measurements of operators, with their sessions."""
    COMPARISONS = "comparisons"
    """Runs of whole models in turn."""
    CHECKS = "checks"
    """Runs whose outputs are compared."""
    RUNS = "runs"
    """All other calls of the runtime: first runs, which choose algorithms, and runs at other
    sizes."""
    TUNING = "tuning"
    """Measurements of kernels, and of their regions."""
    COMPILING = "compiling"
    WAITING = "waiting"
    """For searches in other processes, and for files that another command has."""
    FILES = "files"
    """Models that are read or written."""


@dataclass(frozen=True, slots=True)
class Spending:
    """Seconds by stage, in the order in which they ran, and purpose; and how many whole models each
    stage loaded into the runtime."""

    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    loads: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """All: the wall time."""
        return sum(sum(each.values()) for each in self.stages.values())

    @property
    def purposes(self) -> dict[str, float]:
        """The seconds of all stages together, the most first."""
        found: dict[str, float] = {}
        for each in self.stages.values():
            for purpose, seconds in each.items():
                found[purpose] = found.get(purpose, 0.0) + seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class Account:
    """The seconds of a thread since it was opened, and those `before`, which are of its start."""

    def __init__(self, before: float = 0.0, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._since = clock, clock()
        self._stage, self._purposes = BETWEEN, [Purpose.OWN]
        self._spent: dict[str, dict[str, float]] = {}
        self._loads: dict[str, int] = {}
        if before:
            self._spent[START] = {Purpose.STARTING: before}

    def spending(self) -> Spending:
        """The seconds spent until now."""
        self._charge()
        return Spending({stage: dict(found) for stage, found in self._spent.items()}, dict(self._loads))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Seconds of this stage, unless one is on already."""
        if self._stage != BETWEEN:
            yield
            return
        self._charge()
        self._stage = name
        try:
            yield
        finally:
            self._charge()
            self._stage = BETWEEN

    @contextmanager
    def purpose(self, purpose: Purpose, usual: bool = False) -> Iterator[None]:
        """Charge the block's seconds to this purpose, except seconds with another purpose inside of
        the block. A `usual` purpose applies only to seconds without a purpose."""
        purpose = self._purposes[-1] if usual and self._purposes[-1] is not Purpose.OWN else purpose
        self._charge()
        if purpose is Purpose.LOADS is not self._purposes[-1]:
            self._loads[self._stage] = self._loads.get(self._stage, 0) + 1
        self._purposes.append(purpose)
        try:
            yield
        finally:
            self._charge()
            self._purposes.pop()

    def _charge(self) -> None:
        now = self._clock()
        stage, purpose = self._spent.setdefault(self._stage, {}), self._purposes[-1]
        stage[purpose] = stage.get(purpose, 0.0) + now - self._since
        self._since = now


_OWN = threading.local()


def _account() -> Account | None:
    found: Account | None = getattr(_OWN, "account", None)
    return found


@contextmanager
def accounting(before: float = 0.0, clock: Callable[[], float] = time.perf_counter) -> Iterator[Account]:
    """This thread's open account, else a new one for the duration of the block."""
    known = _account()
    if known is not None:
        yield known
        return
    _OWN.account = made = Account(before, clock)
    try:
        yield made
    finally:
        _OWN.account = None


@contextmanager
def spent(purpose: Purpose, usual: bool = False) -> Iterator[None]:
    """Around slow work (or as a decorator of a function): its seconds are for this purpose, if this
    thread has an account; if `usual` only where they have no other."""
    account = _account()
    if account is None:
        yield
        return
    with account.purpose(purpose, usual):
        yield


@contextmanager
def staged(name: str) -> Iterator[None]:
    """Charge the block's seconds to a stage of this thread's account."""
    account = _account()
    if account is None:
        yield
        return
    with account.stage(name):
        yield


def waited(items: Iterable[T], purpose: Purpose) -> Iterator[T]:
    """The items of an iterator; the seconds until each next item are charged to this purpose."""
    each = iter(items)
    while True:
        with spent(purpose):
            try:
                found = next(each)
            except StopIteration:
                return
        yield found
