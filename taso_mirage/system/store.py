"""Results on disk: a table in SQLite.

If the file is damaged, only its content is lost.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any


class Store:
    """A table of `columns` (with SQL types); the first `keys` columns are the primary key.

    A file that is no such database, or has another schema, is renamed to NAME.damaged. If no file
    can be opened, nothing is stored.
    """

    def __init__(self, path: Path | None, table: str, columns: Sequence[str], keys: int) -> None:
        self._names = [column.split()[0] for column in columns]
        self._table, self._columns, self._keys = table, list(columns), keys
        self._path, self._database = path, self._connected(path)

    def _connected(self, path: Path | None) -> sqlite3.Connection | None:
        if path is None:
            return None
        try:
            return self._opened(path)
        except (OSError, sqlite3.OperationalError):
            return None  # no room, no permission, or another process holds it: its content is right
        except (sqlite3.DatabaseError, UnicodeDecodeError):  # the message may quote bytes that are no text
            return self._anew(path)

    def _anew(self, path: Path) -> sqlite3.Connection | None:
        """A new database in the place of a damaged one."""
        try:
            os.replace(path, path.with_name(f"{path.name}.damaged"))
            for ending in ("-journal", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
            return self._opened(path)
        except (OSError, sqlite3.Error):
            return None

    def _opened(self, path: Path) -> sqlite3.Connection:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise OSError(f"{path} is no regular file")
        if path.is_symlink() and path.lstat().st_uid not in (os.getuid(), 0):
            raise OSError(f"{path} is a link of another user: it may lead to any database of this one")
        database = sqlite3.connect(path, timeout=5)
        try:
            database.execute("PRAGMA trusted_schema=OFF")
            database.execute("PRAGMA synchronous=OFF")  # lost rows are computed again
            with database:
                database.execute(
                    self._schema("TABLE IF NOT EXISTS")
                )  # only one of several concurrent processes creates it
            kinds = database.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
            if kinds.fetchall() != [("table", self._table, self._schema("TABLE"))]:
                raise sqlite3.DatabaseError("another schema: a view or a trigger could run statements")
            return database
        except BaseException:
            database.close()
            raise

    def _schema(self, what: str) -> str:
        key = ", ".join(self._names[: self._keys])
        return f"CREATE {what} {self._table} ({', '.join(self._columns)}, PRIMARY KEY ({key}))"

    def rows(self, *keys: Any) -> list[tuple[Any, ...]]:
        """The rows whose first columns are these."""
        where = " AND ".join(f"{name}=?" for name in self._names[: len(keys)])
        return self._asked(f"SELECT * FROM {self._table}" + (f" WHERE {where}" if keys else ""), keys)

    def count(self) -> int:
        found = self._asked(f"SELECT COUNT(*) FROM {self._table}", ())
        return int(found[0][0]) if found else 0

    def put(self, *row: Any) -> None:
        """Store a row, if possible."""
        self._asked(f"INSERT OR REPLACE INTO {self._table} VALUES ({', '.join('?' for _ in row)})", row)

    def add(self, rows: Sequence[tuple[Any, ...]]) -> int:
        """Store many rows, except rows whose keys exist. Returns the number of new rows."""
        before = self.count()
        if self._database is not None:
            places = ", ".join("?" for _ in self._names)
            with suppress(sqlite3.Error, OverflowError, UnicodeError), self._database:
                self._database.executemany(f"INSERT OR IGNORE INTO {self._table} VALUES ({places})", rows)
        return self.count() - before

    def _asked(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._database is None:
            return []
        try:
            with self._database, closing(self._database.execute(statement, values)) as found:
                return found.fetchall()
        except (sqlite3.OperationalError, OverflowError, UnicodeError):
            return []  # a full disk or a lock; a later write may succeed
        except sqlite3.Error:
            self._database.close()
            self._database = self._anew(self._path) if self._path else None
            return []

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def empty_table(path: Path, table: str, dry: bool = False) -> int | None:
    """Remove all rows of the table of a file, or with `dry` none; how many there are.

    None for a file that is no database with this table alone, and for one that another process
    writes to.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=5)) as database:
            database.execute("PRAGMA trusted_schema=OFF")
            kinds = database.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
            if kinds != [("table", table)]:
                return None
            with database:
                count = int(database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])
                if not dry:
                    database.execute(f"DELETE FROM {table}")
            if not dry:
                with suppress(sqlite3.OperationalError):  # another process reads the file; it shrinks the next time
                    database.execute("VACUUM")
            return count
    except (OSError, sqlite3.Error, UnicodeDecodeError):
        return None
