"""What was measured, kept on disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path


class CostCache:
    """Measured seconds by (target, signature) in SQLite; a cache that cannot be opened is kept in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._memory: dict[tuple[str, str], float] = {}
        self._database = self._open(path)

    @staticmethod
    def _open(path: Path | None) -> sqlite3.Connection | None:
        if path is None:
            return None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(path, timeout=5)
            database.execute("PRAGMA synchronous=OFF")  # a measurement that is lost is measured again
            database.execute(
                "CREATE TABLE IF NOT EXISTS cost (target TEXT, signature TEXT, seconds REAL, PRIMARY KEY (target, signature))"
            )
            return database
        except (OSError, sqlite3.Error):
            return None

    def get(self, target: str, signature: str) -> float | None:
        key = (target, signature)
        if key not in self._memory and self._database is not None:
            try:
                row = self._database.execute("SELECT seconds FROM cost WHERE target=? AND signature=?", key).fetchone()
            except sqlite3.Error:
                row = None
            if row is not None and isinstance(row[0], float) and row[0] >= 0:
                self._memory[key] = row[0]
        return self._memory.get(key)

    def put(self, target: str, signature: str, seconds: float) -> None:
        self._memory[(target, signature)] = seconds
        if self._database is not None:
            try:
                with self._database:
                    self._database.execute("INSERT OR REPLACE INTO cost VALUES (?, ?, ?)", (target, signature, seconds))
            except sqlite3.Error:
                self._database = None

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def cache_path() -> Path:
    """Where measured costs are kept; TASO_MIRAGE_CACHE overrides the user's cache folder."""
    import os

    import platformdirs

    folder = os.environ.get("TASO_MIRAGE_CACHE") or platformdirs.user_cache_dir("taso-mirage")
    return Path(folder) / "costs.sqlite"


def proofs_path(cache: Path | None = None) -> Path:
    """Where verdicts on cases are kept: beside the measured costs."""
    return (cache or cache_path()).parent / "proofs.sqlite"
