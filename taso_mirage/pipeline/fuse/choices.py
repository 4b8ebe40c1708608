"""The fastest muGraphs that were found on this machine, on disk.

A record of this user is believed. A record of other origin (`cache import`, a cache that others
write to) is compared with its goal first."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph
from taso_mirage.lowering.backend import Record
from taso_mirage.measure.cost_cache import cache_path
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.free import FreeSizes, at_sizes_of
from taso_mirage.mugraph.verification import AGAIN, verified_mugraph
from taso_mirage.system.builds import private_folder
from taso_mirage.system.files import write_file
from taso_mirage.system.toml import read_json
from taso_mirage.verdicts import Failure
from taso_mirage.version import __version__

Measured = tuple[tuple[str, int], ...]
"""The sizes where it was measured, of those that a run gives."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The kernels chosen earlier for a target and a key of its back end."""

    target: str
    key: str

    def record(self, graph: Graph, free: FreeSizes | None, measured: Measured) -> Record | None:
        """The record on disk; None where there is none, none that can be read, or one that computes
        something else than its goal."""
        path = self._path(graph, free, measured)
        try:
            found = read_json(path)
            if isinstance(found, dict) and (_is_own(path, found) or _computes(found, graph, free)):
                _sign(path, found)
                return found
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, TasoMirageError):
            return None
        return None

    def keep(self, record: Record, graph: Graph, free: FreeSizes | None, measured: Measured) -> None:
        """Write the choice for a goal."""
        path = self._path(graph, free, measured)
        write_file(path, json.dumps(record))
        _sign(path, record)

    def _path(self, graph: Graph, free: FreeSizes | None, measured: Measured) -> Path:
        """The file of a choice; its name has all that the choice depends on: the region's structure
        and shapes, the machine, and this version."""
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
    """Keep that this user made a record, or compared it with its goal."""
    with suppress(TasoMirageError):
        if not _is_own(path, record):
            write_file(_receipt(path), _digest(record))


def _receipt(path: Path) -> Path:
    return private_folder("receipts", path.parents[1]) / path.stem


def _digest(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
