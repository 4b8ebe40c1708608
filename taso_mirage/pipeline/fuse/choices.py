"""The kernel of a kind of regions: the fastest muGraph of its fused branches, found now or in an
earlier run, whose records are on disk.

A record of this user is believed. A record of other origin (`cache import`, a cache that others
write to) is compared with its goal first.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.form import PreparedGoal
from taso_mirage.ir.terms import Graph
from taso_mirage.lowering.backend import BATCH, Backend, Record
from taso_mirage.measure.cost_cache import cache_path
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.free import FreeSizes, at_sizes_of
from taso_mirage.mugraph.horizontal import FusedGoal, fused_goals
from taso_mirage.mugraph.verification import AGAIN, verified_mugraph
from taso_mirage.pipeline.fuse.other_workers import OtherWorkers
from taso_mirage.pipeline.fuse.searches import CUT_SHORT, SearchedGoal, Searches
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.runtime.plan import PlannedNode
from taso_mirage.search.search import Budget
from taso_mirage.system.builds import private_folder
from taso_mirage.system.files import write_file
from taso_mirage.system.toml import read_json
from taso_mirage.verdicts import Failure
from taso_mirage.version import __version__

Measured = tuple[tuple[str, int], ...]
"""The sizes at which the choice was measured, of those that a run gives."""


@dataclass(frozen=True, slots=True)
class KernelRecords:
    """The kernels chosen earlier for a target and a key of its back end."""

    target: str
    key: str

    def record(self, graph: Graph, free: FreeSizes | None, measured: Measured) -> Record | None:
        """The record on disk; None if it is missing, not readable, or computes something other than
        its goal."""
        path = self._path(graph, free, measured)
        try:
            found = read_json(path)
            if isinstance(found, dict) and (_is_own(path, found) or _computes(found, graph, free)):
                _sign(path, found)
                return found
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, TasoMirageError):
            return None
        return None

    def keep_from(self, record: Record, graph: Graph, free: FreeSizes | None, measured: Measured) -> Record | None:
        """Write a choice that another worker made, and return it if it computes its goal."""
        write_file(self._path(graph, free, measured), json.dumps(record))
        return self.record(graph, free, measured)

    def keep(self, record: Record, graph: Graph, free: FreeSizes | None, measured: Measured) -> None:
        """Write the choice for a goal."""
        path = self._path(graph, free, measured)
        write_file(path, json.dumps(record))
        _sign(path, record)

    def _path(self, graph: Graph, free: FreeSizes | None, measured: Measured) -> Path:
        """The file of a choice. Its name contains everything on which the choice depends: the
        region's structure and shapes, the machine, and this version."""
        program = "\n".join(to_json(graph)["program"])
        names = [] if free is None else [str(free), str(measured)]
        said = "\0".join([program, self.target, self.key, __version__, *names])
        return cache_path().parent / "kernels" / f"{hashlib.blake2b(said.encode(), digest_size=16).hexdigest()}.json"


def _computes(record: Record, goal: Graph, free: FreeSizes | None) -> bool:
    """Whether every muGraph of a record computes the goal at the sizes that the goal has."""
    graphs = [from_json(each["mugraph"]) for each in (record, *record.get("before", ()))]
    verdicts = (verified_mugraph(at_sizes_of(goal, each, free), goal, AGAIN) for each in graphs)
    return not any(isinstance(each, Failure) for each in verdicts)


def _is_own(path: Path, record: Record) -> bool:
    with suppress(OSError, ValueError, TasoMirageError):
        return _receipt(path).read_text() == _digest(record)
    return False


def _sign(path: Path, record: Record) -> None:
    """Record that this user made a record, or compared it with its goal."""
    with suppress(TasoMirageError):
        if not _is_own(path, record):
            write_file(_receipt(path), _digest(record))


def _receipt(path: Path) -> Path:
    return private_folder("receipts", path.parents[1]) / path.stem


def _digest(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


class KernelsEnded(Exception):
    """The end of a search by an interrupt, or by the end of the time."""


class KernelChoices:
    """The kernels of a back end for a target, found by `searches` with `searching`, else read from
    the disk. Goals in `prepared` have kernels that prepare weights."""

    def __init__(
        self, target: str, backend: Backend, prepared: Mapping[Graph, PreparedGoal], searching: bool, budget: Budget
    ) -> None:
        self.backend, self.prepared, self.searching, self.budget = backend, prepared, searching, budget
        self.choices = KernelRecords(target, backend.key)
        self.searches: Searches | None = None
        self.others: OtherWorkers | None = None
        self._lanes: dict[tuple[Graph, FreeSizes | None, bool], list[FusedGoal]] = {}
        self._predicted: dict[SearchedGoal, Record] = {}
        self._compiling: dict[SearchedGoal, Callable[[], Record]] = {}
        """The functions that wait for predicted kernels which `begin` has begun."""

    def lanes(self, kind: EqualRegions) -> list[FusedGoal]:
        """The lanes of a kind's goal, which are found once; a goal whose kernel prepares weights is
        a single lane. Parts of results are stored apart, but not those of samples."""
        goal, key = kind.goal, (kind.goal, kind.free, kind.batch is None)
        if key not in self._lanes:
            whole = FusedGoal(goal, tuple(range(len(goal.inputs))), tuple(range(len(goal.outputs))), free=kind.free)
            lanes = [whole] if goal in self.prepared else fused_goals(goal, kind.batch is None, kind.free)
            self._lanes[key] = lanes
        return self._lanes[key]

    def unknown(self, kind: EqualRegions) -> list[SearchedGoal]:
        """The lanes of a kind whose kernels are not on disk from a search with enough time."""
        return [
            each
            for each in self._goals(kind)
            if CUT_SHORT in (self.choices.record(*each, kind.measured) or (CUT_SHORT,))
        ]

    def is_known(self, kind: EqualRegions) -> bool:
        """Whether the kernels of all lanes of a kind are on disk."""
        return not self.unknown(kind)

    def begin(self, kind: EqualRegions) -> None:
        """Begin to compile the predicted kernels of a kind whose searches have ended. Raises
        TasoMirageError where there is none."""
        for goal in dict.fromkeys(self.unknown(kind)):
            if self.searches is not None and self.searches.has_ended(goal) and goal not in self._compiling:
                found = self.searches(goal[0], 0.0, self._goes_on, goal[1], first=True)
                if found:
                    self._compiling[goal] = self.backend.predicted(goal[0], found, kind.sizes)

    def predicted(self, kind: EqualRegions, share: float) -> Callable[[], tuple[Record, PlannedNode] | None]:
        """Begin the kernel for a region that is predicted to be the fastest, or that was chosen
        earlier. The returned function waits for the compiler. Raises TasoMirageError, as that
        does."""
        goals = self._goals(kind)
        begun = {goal: self._begun(goal, share / len({*goals}), kind) for goal in dict.fromkeys(goals)}

        def made() -> tuple[Record, PlannedNode] | None:
            known = {goal: wait() for goal, wait in begun.items() if wait is not None}
            return self._kernel(kind, [known[goal] for goal in goals if goal in known])

        return made

    def _begun(self, goal: SearchedGoal, share: float, kind: EqualRegions) -> Callable[[], Record] | None:
        """A function that returns the choice of a lane: from the disk, else predicted."""
        known = self.choices.record(*goal, kind.measured)
        if known is not None:
            return partial(dict, known)
        if not self.searching or share <= 0 or self.searches is None:
            return None
        wait = self._compiling.get(goal)
        if wait is None:
            found = self.searches(goal[0], share, self._goes_on, goal[1], first=True)
            if not found:
                return None
            wait = self.backend.predicted(goal[0], found, kind.sizes)

        def kept() -> Record:
            self._predicted[goal] = wait()
            record = {**self._predicted[goal], CUT_SHORT: 0.0}
            self.choices.keep(record, *goal, kind.measured)
            return record

        return kept

    def keep_predicted(self, kind: EqualRegions) -> None:
        """Make the predicted kernel of a kind its choice on disk: no other one is clearly
        faster."""
        for goal in self._goals(kind):
            known = self.choices.record(*goal, kind.measured) or {}
            if goal in self._predicted and known.get(CUT_SHORT) != 0.0:
                cut = {CUT_SHORT: known[CUT_SHORT]} if CUT_SHORT in known else {}
                self.choices.keep({**self._predicted[goal], **cut}, *goal, kind.measured)

    def fastest(self, kind: EqualRegions, share: float) -> tuple[Record, PlannedNode] | None:
        """The fastest kernel for a region, made of those of its lanes; each lane gets its part of
        the time."""
        goals = self._goals(kind)
        for anew in (False, True):
            known = {goal: self._choice(goal, share / len({*goals}), anew, kind) for goal in dict.fromkeys(goals)}
            choices = [known[goal] for goal in goals]
            try:
                return self._kernel(kind, [choice[0] for choice in choices if choice is not None])
            except (ValueError, LookupError, TypeError, TasoMirageError):
                if all(choice[1] for choice in choices if choice is not None):
                    raise
        return None  # the files are damaged, and nothing is searched

    def _goals(self, kind: EqualRegions) -> list[SearchedGoal]:
        """The goal of each lane of a kind, with the names of its sizes."""
        return [(lane.graph, lane.free) for lane in self.lanes(kind)]

    def _kernel(self, kind: EqualRegions, records: Sequence[Record]) -> tuple[Record, PlannedNode] | None:
        """The kernel of a kind, made of the choices for its lanes; None if one has none."""
        parts = self.lanes(kind)
        if len(records) < len(parts):
            return None
        whole = len(parts) == 1 and parts[0].stored is None
        record = records[0] if whole else self.backend.joined(kind.goal, parts, records)
        record = record if kind.batch is None else {**record, BATCH: asdict(kind.batch)}
        return record, self.backend.kernel(record)

    def _choice(self, goal: SearchedGoal, share: float, anew: bool, kind: EqualRegions) -> tuple[Record, bool] | None:
        """The fastest muGraph of one lane, and whether it was searched now. It is read from the
        disk if it was found before, in enough time, or in at least half of the time of now.
        """
        known = self.choices.record(*goal, kind.measured)
        enough = known is not None and 2 * known.get(CUT_SHORT, math.inf) >= share
        if not self.searching or share <= 0 or (enough and not anew):
            return None if known is None or anew else (known, False)
        searched = self._search(goal, share, kind)
        return None if searched is None else (searched, True)

    def _search(self, goal: SearchedGoal, share: float, kind: EqualRegions) -> Record | None:
        there = None if self.others is None else self.others.take(goal, self.backend.key)
        if there is not None and (kept := self.choices.keep_from(there, *goal, kind.measured)) is not None:
            return kept
        end = time.monotonic() + share
        found = [] if self.searches is None else self.searches(goal[0], share / 2, self._goes_on, goal[1])
        if not found:
            return None
        record = dict(self.backend.fastest(goal[0], found, end, kind.sizes))
        if time.monotonic() > end:
            record[CUT_SHORT] = share
        self.choices.keep(record, *goal, kind.measured)
        return record

    def _goes_on(self, stage: str, done: int, total: int) -> None:
        if self.budget.stop:
            raise KernelsEnded
