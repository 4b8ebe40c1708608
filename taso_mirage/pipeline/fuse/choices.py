"""The fastest muGraphs that were found on this machine, on disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from taso_mirage.ir.terms import Graph
from taso_mirage.kernels.checkpoint import to_json
from taso_mirage.kernels.free import FreeSizes
from taso_mirage.measure.cost_cache import cache_path
from taso_mirage.system.files import write_file
from taso_mirage.system.toml import read_json
from taso_mirage.targets.lowering import Record
from taso_mirage.version import __version__

Measured = tuple[tuple[str, int], ...]
"""The sizes where it was measured, of those that a run gives."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Those for a target and a key of its back end."""

    target: str
    key: str

    def record(self, graph: Graph, free: FreeSizes | None, measured: Measured) -> Record | None:
        """What lies on disk; None where nothing does, or nothing that can be read."""
        try:
            found = read_json(self._path(graph, free, measured))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def keep(self, record: Record, graph: Graph, free: FreeSizes | None, measured: Measured) -> None:
        """Write the choice for a goal."""
        write_file(self._path(graph, free, measured), json.dumps(record))

    def _path(self, graph: Graph, free: FreeSizes | None, measured: Measured) -> Path:
        """The file of a choice; its name is what it hangs on: the region's structure and shapes,
        the machine, and this version."""
        program = "\n".join(to_json(graph)["program"])
        names = [] if free is None else [str(free), str(measured)]
        said = "\0".join([program, self.target, self.key, __version__, *names])
        return cache_path().parent / "kernels" / f"{hashlib.blake2b(said.encode(), digest_size=16).hexdigest()}.json"
