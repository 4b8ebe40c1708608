"""The searches for muGraphs of a model's regions: for all regions at once, in other processes,
unless the CPU is measured meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from taso_mirage.devices.device import Device
from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.form import PreparedGoal
from taso_mirage.ir.terms import Graph
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.operators.ops import load_specs
from taso_mirage.system.spending import Purpose, spent
from taso_mirage.system.workers import Workers

SearchedGoal = tuple[Graph, FreeSizes | None]
"""The goal of a search, and the names of its sizes where its kernels read them at run time."""
BEST, FIRST = 24, 2
"""The number of muGraphs of a region that are compiled and run; and of those of which the first one
with a program is compiled before any is run."""
CUT_SHORT = "cut short at"
"""The name in a choice's record for the seconds that it had, if they were not enough: none, if it
is predicted."""
LATE = 30.0
"""Seconds beyond its share after which a search is ended without a result; it ends by itself only
between two candidates."""
HERE = 2
"""The number of goals up to which this process searches: another process takes seconds to start."""
ASKED = 0.2
"""Seconds between two checks for an interrupt."""
FEW, MOST = 4, 1e6
"""The number of cores up to which searches in other processes would disturb other work, and the
seconds for a search without a limit."""


def searchers(count: int, seconds: float) -> Workers | None:
    """Processes for searches; None if there are few cores. Each search may take so many seconds.
    Start them at once, as each takes seconds to import its modules (`start` with an empty job)."""
    return Workers(f"{__name__}:{search_goal.__name__}", count, min(seconds, MOST) + LATE) if count > FEW else None


class Searches:
    """The searches for some goals by `count` processes, each for `seconds`; without processes, a
    goal is searched on request. Goals whose kernels prepare weights (`prepared`) are not searched.
    `ready` processes that were started before are used, and ended."""

    def __init__(
        self,
        goals: Sequence[SearchedGoal],
        device: Device,
        seconds: float,
        count: int,
        prepared: Mapping[Graph, PreparedGoal],
        ready: Workers | None = None,
    ) -> None:
        self.device, self.prepared = device, prepared
        several = count and len(goals) > HERE
        self.workers = ready if several else None
        if several and ready is None:
            self.workers = Workers(f"{__name__}:{search_goal.__name__}", count, seconds + LATE)
        said = {"device": asdict(device), "seconds": seconds, "best": BEST}
        self.futures: dict[SearchedGoal, Future[Any]] = {}
        self.begun: dict[SearchedGoal, Search] = {}
        if self.workers is None:
            return
        for goal, free in goals:
            names = None if free is None else free.as_json()
            self.futures[goal, free] = self.workers(said | {"goal": to_json(goal), "free": names})

    def __call__(
        self,
        goal: Graph,
        seconds: float,
        progress: Callable[[str, int, int], None],
        free: FreeSizes | None = None,
        first: bool = False,
    ) -> list[FoundMuGraph]:
        """The BEST muGraphs for a goal; if the search starts only now, it takes about so many
        seconds. Only the `first` ones, or more, if they are there within the seconds, else none."""
        if (made := self.prepared.get(goal)) is not None:
            found = made.mugraphs(goal, self.device)
            return found if free is None else [*_with_names(found, free)]
        future = self.futures.get((goal, free))
        if future is None:
            search = self.begun.get((goal, free)) or Search(goal, SearchOptions(), self.device, 0, free)
            self.begun[goal, free] = search
            return search.run(FIRST if first else BEST, seconds, progress)
        end = time.monotonic() + seconds if first else math.inf
        with spent(Purpose.WAITING):
            while not wait([future], ASKED).done:
                progress("search", 0, 0)
                if time.monotonic() > end:
                    return []
        answer = future.result() or ()
        if isinstance(answer, str):
            raise RuntimeError(f"in a process that searches: {answer}")
        return [FoundMuGraph.of_json(each, goal, own=True) for each in (answer[:FIRST] if first else answer)]

    def has_ended(self, goal: SearchedGoal) -> bool:
        """Whether the search for a goal in another process has ended."""
        future = self.futures.get(goal)
        return future is not None and future.done()

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()


def _with_names(found: Iterable[FoundMuGraph], free: FreeSizes) -> Iterator[FoundMuGraph]:
    """The muGraphs that have code for every size."""
    for each in found:
        with suppress(TasoMirageError):
            yield replace(each, free=with_free_names(each.graph, free))


def search_goal(job: Mapping[str, Any]) -> list[dict[str, Any]] | str:
    """The muGraphs found for the goal of a job, run in a process of its own; the text of an error
    that is not a TasoMirageError. An empty job reads the operators, as the first search does."""
    if not job:
        load_specs()
        return []
    free = None if job["free"] is None else FreeSizes.of_json(job["free"])
    try:
        search = Search(from_json(job["goal"]), SearchOptions(), Device(**job["device"]), free=free)
        found = search.run(job["best"], job["seconds"])
    except TasoMirageError:
        return []
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [each.as_json() for each in found]
