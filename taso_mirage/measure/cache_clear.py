"""Removal of this program's files from the cache, and of no others."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taso_mirage.measure.cost_cache import cache_path
from taso_mirage.system.builds import in_use
from taso_mirage.system.store import empty_table

_DIGEST = re.compile(r"[0-9a-f]{32}\.json|\.[0-9a-f]{16}\.tmp")
_BUILD = re.compile(r"((taso_mirage|kernels)_)?[0-9a-f]+\.built|[0-9a-f]{64}\.\w+|\.[0-9a-f]{16}\.tmp")
_BUILDING = re.compile(r"tmp\w+")
TABLES = {"costs.sqlite": "cost", "proofs.sqlite": "verdict", "plugins.sqlite": "judged"}
KINDS = {
    "measured costs": r"costs\.sqlite",
    "verdicts of the prover": r"(proofs|plugins)\.sqlite",
    "kernels": "kernels",
    "mutants": "mutants",
    "compiled files": r"(runtime|cpp)(-\d+)?",
}
"""The name of each kind's entry in the folder."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """The entries of one kind in a cache: their number and their bytes, before or after removal;
    `left` says why they stay."""

    kind: str
    count: int
    size: int
    left: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "count": self.count, "bytes": self.size, "left": self.left}


def clear_cache(folder: Path | None = None, dry: bool = False) -> list[Cleared]:
    """Remove the entries of the cache, or with `dry` only count them.

    Links are not followed, and only files with names that this program gives are removed. Tables
    are emptied in one transaction, so that an optimizer that runs at the same time continues with
    an empty table. Compiled files stay while a process uses them.
    """
    place = folder or cache_path().parent
    if not place.is_dir():
        return []
    found = []
    for kind, pattern in KINDS.items():
        for entry in sorted(place.iterdir()):
            if re.fullmatch(pattern, entry.name) and not entry.is_symlink():
                found.append(_cleared(kind, entry, dry))
    return [each for each in found if each.count]


def _cleared(kind: str, entry: Path, dry: bool) -> Cleared:
    if entry.suffix == ".sqlite":
        return _emptied(kind, entry, dry)
    if kind != "compiled files":
        return _removed(kind, entry, _DIGEST, dry)
    with in_use(entry) as used:
        found = _removed(kind, entry, _BUILD, dry or used)
        return Cleared(kind, found.count, found.size, "another process uses them" if used else "")


def _emptied(kind: str, path: Path, dry: bool) -> Cleared:
    size = path.stat().st_size
    count = empty_table(path, TABLES[path.name], dry)
    return Cleared(kind, 1, size, "it is no such table, or busy") if count is None else Cleared(kind, count, size)


def _removed(kind: str, folder: Path, pattern: re.Pattern[str], dry: bool) -> Cleared:
    count = size = 0
    for each in _own(folder, pattern):
        with suppress(OSError):
            bytes_ = each.lstat().st_size
            if not dry:
                _remove(each)
            count, size = count + 1, size + bytes_
    return Cleared(kind, count, size)


def _own(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """Files with names that this program gives, and folders of interrupted builds."""
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        builds = pattern is _BUILD and each.is_dir()
        named = (_BUILDING if builds else pattern).fullmatch(each.name) is not None
        if named and not each.is_symlink() and (builds or each.is_file()):
            yield each


def _remove(path: Path) -> None:
    remove: Callable[[Path], None] = shutil.rmtree if path.is_dir() else Path.unlink
    remove(path)
