"""Kernels that other workers of a scheduler search and tune, while this one works on another kind
of regions. All are of one kind of machine, so the fastest kernel there is that of here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Lock
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.lowering.backend import Record, here
from taso_mirage.measure.cluster import Line, Others
from taso_mirage.measure.target import Target
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.pipeline.fuse.searches import BEST, CUT_SHORT, SearchedGoal
from taso_mirage.search.config import Stop

LEAST = 4.0
"""The least seconds for which a goal is given to another worker, which begins a process for it."""
LATE = 2.0
"""The factor of its seconds for which the answer of another worker is awaited."""


@dataclass(frozen=True, slots=True)
class SharedGoal:
    """A goal, and the sets of sizes at which its kernels are measured, if these are free."""

    goal: SearchedGoal
    sizes: Sequence[Mapping[str, int]]


class OtherWorkers:
    """Goals, the most important first, of which others get the second while this process has the
    first: `take` returns the choice of a goal that another worker has, and keeps any other goal
    here. A choice gets `seconds()`; `taken` counts those from elsewhere."""

    def __init__(
        self, others: Others, target: Target, rounding: bool, goals: Iterable[SharedGoal], seconds: Callable[[], float]
    ) -> None:
        self.others, self.place, self.seconds = others, (target, rounding), seconds
        self._lock, self._waiting = Lock(), {each.goal: each for each in goals}
        self._given: dict[SearchedGoal, tuple[Any, float]] = {}
        self.taken = 0
        self._give()

    def _give(self, *ended: Any) -> None:
        """Give goals to workers that have none."""
        with self._lock:
            busy = sum(not future.done() for future, _ in self._given.values())
            while busy < self.others.count and self._waiting and (seconds := self.seconds()) >= LEAST:
                goal = [*self._waiting][:2][-1]
                asked = self._waiting.pop(goal)
                free = None if goal[1] is None else goal[1].as_json()
                future = self.others(tuned, *self.place, to_json(goal[0]), free, asked.sizes, seconds)
                self._given[goal] = future, time.monotonic() + LATE * seconds
                future.add_done_callback(self._give)
                busy += 1

    def take(self, goal: SearchedGoal, key: str) -> Record | None:
        """The choice that another worker of this `key` made; None if the goal is for this one."""
        with self._lock:
            self._waiting.pop(goal, None)
            future, end = self._given.pop(goal, (None, 0.0))
        if future is None:
            return None
        try:
            there, record = future.result(timeout=max(end - time.monotonic(), 0.0))
        except Exception:  # it died, found nothing, or is late: this process does it
            future.cancel()
            return None
        self.taken += there == key
        return record if there == key else None

    def close(self) -> None:
        with self._lock:
            self._waiting.clear()
            given, self._given = self._given, {}
        for future, _ in given.values():
            future.cancel()


def tuned(
    line: Line,
    target: Target,
    rounding: bool,
    goal: Mapping[str, Any],
    free: Mapping[str, Any] | None,
    sizes: Sequence[Mapping[str, int]],
    seconds: float,
) -> tuple[str, Record]:
    """On another worker: the key of its back end, and its fastest muGraph for a goal, after about
    so many seconds. Raises TasoMirageError where there is none."""
    stop, end = Stop(), time.monotonic() + seconds
    line.stops.append(stop)

    def progress(stage: str, done: int, total: int) -> None:
        if stop.asked:
            raise TasoMirageError("the other worker has ended")

    backend = here(target)
    with closing(backend.rounding() if rounding else backend) as used:
        graph = from_json(goal)
        search = Search(graph, SearchOptions(), used.device, 0, None if free is None else FreeSizes.of_json(free))
        record = dict(used.fastest(graph, search.run(BEST, seconds / 2, progress), end, sizes))
        return used.key, record if time.monotonic() <= end else {**record, CUT_SHORT: seconds}
