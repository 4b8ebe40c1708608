"""What was measured, kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taso_mirage.system.store import Store


class CostCache:
    """Measured seconds by (target, signature); a cache that cannot be opened is kept in memory."""

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
        """Keep those of another file that this one has not; how many these are."""
        return self._store.add(measurements)

    def close(self) -> None:
        self._store.close()


def cache_path() -> Path:
    """Where measured costs are kept; TASO_MIRAGE_CACHE overrides the user's cache folder."""
    import os

    import platformdirs

    folder = os.environ.get("TASO_MIRAGE_CACHE") or platformdirs.user_cache_dir("taso-mirage")
    return Path(folder) / "costs.sqlite"


def proofs_path(cache: Path | None = None) -> Path:
    """Where verdicts on cases are kept: beside the measured costs."""
    return (cache or cache_path()).parent / "proofs.sqlite"
