"""Values that threads compute before they are asked for, while the thread that asks waits for the
runtime's process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from taso_mirage.errors import OutOfTime
from taso_mirage.system.spending import Purpose, spent

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Compute = Callable[[Callable[[], None]], V]
"""A function that gives a value. It calls its argument between its steps, which raises OutOfTime
once nobody waits. It makes no terms: they are interned, and two threads could make one twice."""


class EarlyValues(Generic[K, V]):
    """The values of functions, in the order in which these were added. Those that are computed or
    kept at once hold `room` bytes at most, if more than one. A value that no thread has begun is
    computed by the thread that asks. In the end nobody waits for the threads."""

    def __init__(self, threads: int, room: int, step: Callable[[], None]) -> None:
        self.threads, self.room, self.own_step = threads, room, step
        self._waiting: dict[K, tuple[Compute[V], int]] = {}
        self._begun: dict[K, tuple[Compute[V], int, Future[V]]] = {}
        self._todo: queue.SimpleQueue[tuple[Compute[V], Future[V]] | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._started = 0

    def add(self, key: K, compute: Compute[V], held: int) -> None:
        """Add a function whose value, and all that is computed for it, holds so many bytes."""
        self._waiting[key] = compute, held
        self._begin()

    def take(self, key: K) -> V:
        """The value, which is not kept. Raises the error of its function, and KeyError for a value
        that was not added, or was taken before."""
        if key in self._waiting:
            compute, _ = self._waiting.pop(key)
            return compute(self.own_step)
        compute, _, future = self._begun.pop(key)
        try:
            if future.cancel():  # no thread has begun it
                return compute(self.own_step)
            with spent(Purpose.REFERENCES):
                return future.result()
        finally:
            self._begin()

    def __contains__(self, key: object) -> bool:
        return key in self._waiting or key in self._begun

    def close(self) -> None:
        """Drop all values; the threads end after the step that they are at."""
        self._over.set()
        self._waiting.clear()
        self._begun.clear()
        for _ in range(self._started):
            self._todo.put(None)

    def _begin(self) -> None:
        while self._waiting:
            key, (compute, held) = next(iter(self._waiting.items()))
            if self._begun and held + sum(each for _, each, _ in self._begun.values()) > self.room:
                return
            del self._waiting[key]
            self._begun[key] = compute, held, Future()
            self._todo.put((compute, self._begun[key][2]))
            if self._started < self.threads:
                self._started += 1
                threading.Thread(target=self._work, daemon=True).start()

    def _step(self) -> None:
        if self._over.is_set():
            raise OutOfTime("nobody waits for this value")
        self.own_step()

    def _work(self) -> None:
        while (pair := self._todo.get()) is not None:
            compute, future = pair
            if self._over.is_set() or not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(compute(self._step))
            except BaseException as error:  # raised again by the thread that asks
                future.set_exception(error)
