"""The file of a benchmark's rows: written after each row; rows of an earlier run in the same
setting stay."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from taso_mirage.measure import native


def show(row: dict[str, Any]) -> None:
    print(row, flush=True)


class Rows:
    """Rows by their case, below a head that names the benchmark, the device and the versions."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        earlier = json.loads(path.read_text()) if path.exists() else {}
        same = all(earlier.get(name) == value for name, value in head.items())
        self.path, self.head = path, head
        self._rows = {row["case"]: row for row in earlier["rows"]} if same and earlier else {}

    @property
    def kept(self) -> list[dict[str, Any]]:
        """The rows so far."""
        return [*self._rows.values()]

    def keep(self, row: dict[str, Any]) -> None:
        """Put the row at the end, in the place of an earlier one of its case, and write the
        file."""
        self._rows.pop(row["case"], None)
        self._rows[row["case"]] = row
        self.path.write_text(json.dumps({**self.head, "rows": list(self._rows.values())}, indent=1) + "\n")

    def run(
        self,
        names: Iterable[str],
        row: Callable[[str], dict[str, Any]],
        show: Callable[[dict[str, Any]], None] = show,
    ) -> None:
        """Make, show and keep the row of each name. One that fails is kept with its error, since
        the others are worth having."""
        for name in names:
            try:
                found = row(name)
            except Exception as error:
                found = {"case": name, "failed": f"{type(error).__name__}: {native.first_line(error)}"}
            (print if "failed" in found else show)(found)
            self.keep(found)
            gc.collect()
