"""Measured times, stored on disk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.system.builds import cache_root, private_folder
from taso_mirage.system.store import Store


class CostCache:
    """Measured seconds by (target, signature). If the file cannot be opened, they are kept in
    memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._memory: dict[tuple[str, str], float] = {}
        self._store = Store(path, "cost", ("target TEXT", "signature TEXT", "seconds REAL"), 2)

    def get(self, target: str, signature: str) -> float | None:
        key = (target, signature)
        if key not in self._memory:
            for *_, seconds in self._store.rows(*key):
                if isinstance(seconds, float) and 0 <= seconds < float("inf"):
                    self._memory[key] = seconds
        return self._memory.get(key)

    def put(self, target: str, signature: str, seconds: float) -> None:
        self._memory[(target, signature)] = seconds
        self._store.put(target, signature, seconds)

    def entries(self) -> int:
        """How many measurements the file has."""
        return self._store.count()

    def measurements(self) -> list[tuple[str, str, float]]:
        """All of the file: target, signature, seconds."""
        return [(str(target), str(signature), float(seconds)) for target, signature, seconds in self._store.rows()]

    def add(self, measurements: Sequence[tuple[str, str, float]]) -> int:
        """Add the measurements of another file that this one lacks. Returns their number."""
        return self._store.add(measurements)

    def close(self) -> None:
        self._store.close()


def cache_path() -> Path:
    """The folder of measured costs; TASO_MIRAGE_CACHE overrides the user's cache folder."""
    return cache_root() / "costs.sqlite"


def proofs_path(cache: Path | None = None) -> Path | None:
    """The folder of verdicts on cases. Verdicts are not proved again, so only this user may write
    to the folder; None if no such folder is possible."""
    with suppress(RuntimeUnavailable):
        return private_folder("proofs", (cache or cache_path()).parent) / "proofs.sqlite"
    return None
