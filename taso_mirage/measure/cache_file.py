"""The cache of measured costs, of searched kernels and of mutants as one file, for other machines
of the same kind.

A zip archive: `manifest.json`, the costs as lines of JSON, and the files of `kernels/` and
`mutants/`. All entries are data with the device and the versions in their keys, so entries of
another device are stored but not used. Verdicts of the prover are not included.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from taso_mirage.errors import InvalidOption
from taso_mirage.measure.cost_cache import CostCache, cache_path
from taso_mirage.system.archives import BadArchive, opened_archive
from taso_mirage.system.files import write_file
from taso_mirage.version import __version__

FORMAT = 1
MANIFEST, COSTS = "manifest.json", "costs.jsonl"
FOLDERS = ("kernels", "mutants")
_NAME = re.compile(rf"({'|'.join(FOLDERS)})/[0-9a-f]{{32}}\.json")
LARGEST, LONGEST = 1 << 29, 1 << 16
"""The largest number of bytes of an archive's contents (or the size of the archive, if larger), and
the largest number of characters of a key."""


@dataclass(frozen=True, slots=True)
class CacheContents:
    """The number of measurements of each device (with its runtime and versions) and of files of
    each folder. `new`: the number of imported entries that did not exist before."""

    devices: Mapping[str, int]
    files: Mapping[str, int]
    new: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {"devices": dict(self.devices), **self.files, "new": self.new}


def contents(folder: Path | None = None) -> CacheContents:
    """Count the entries of a cache folder, by kind."""
    place = folder or cache_path().parent
    devices = Counter(target for target, *_ in _measured(place))
    return CacheContents(dict(devices), {kind: len(list(_files(place, kind))) for kind in FOLDERS})


def export_cache(target: Path, folder: Path | None = None) -> CacheContents:
    """Write the archive; the file is written completely or not at all.

    Raises OutputError if it cannot be written, InvalidOption if the cache is empty.
    """
    place = folder or cache_path().parent
    found = contents(place)
    if not found.devices and not any(found.files.values()):
        raise InvalidOption(f"the cache in {place} is empty; optimize a model first")
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps({"format": FORMAT, "taso-mirage": __version__, **found.as_dict()}))
        archive.writestr(COSTS, "".join(json.dumps(row) + "\n" for row in _measured(place)))
        for kind in FOLDERS:
            for file in _files(place, kind):
                archive.write(file, f"{kind}/{file.name}")
    write_file(target, buffer.getvalue())
    return found


def import_cache(source: Path, folder: Path | None = None) -> CacheContents:
    """Add the entries of an archive to the cache; existing ones stay.

    Raises InvalidOption for a file that is no such archive; then nothing was added.
    """
    if not source.is_file():
        raise InvalidOption(f"{source}: no such file; check the path")
    try:
        with opened_archive(source, LARGEST) as archive:
            costs, files = _checked(archive)
    except BadArchive as error:
        raise InvalidOption(f"{source} is no cache that `taso-mirage cache export` wrote: {error}") from None
    place = folder or cache_path().parent
    with closing(CostCache(place / cache_path().name)) as cache:
        new = cache.add(costs)
    for name, content in files.items():
        if not (place / name).exists():
            write_file(place / name, content, lasting=False)
            new += 1
    devices = Counter(target for target, *_ in costs)
    return CacheContents(dict(devices), dict(Counter(name.partition("/")[0] for name in files)), new)


def _checked(archive: zipfile.ZipFile) -> tuple[list[tuple[str, str, float]], dict[str, bytes]]:
    """The costs and files of an archive, read and checked before anything is written."""
    manifest = json.loads(archive.read(MANIFEST))
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']!r}, this version reads {FORMAT}; update taso-mirage")
    costs = [_cost(json.loads(line)) for line in archive.read(COSTS).decode().splitlines()]
    names = [name for name in archive.namelist() if name not in (MANIFEST, COSTS)]
    if strange := [name for name in names if not _NAME.fullmatch(name)]:
        raise ValueError(f"it has a file {strange[0]!r}, which does not belong to a cache")
    files = {name: archive.read(name) for name in names}
    for content in files.values():
        json.loads(content)
    return costs, files


def _cost(row: Any) -> tuple[str, str, float]:
    target, signature, seconds = row
    texts = all(isinstance(text, str) and len(text) <= LONGEST for text in (target, signature))
    if not texts or not isinstance(seconds, float) or not 0 <= seconds < math.inf:
        raise ValueError(f"a measurement {str(row)[:80]} is none")
    return target, signature, seconds


def _measured(place: Path) -> list[tuple[str, str, float]]:
    path = place / cache_path().name
    with closing(CostCache(path if path.exists() else None)) as cache:
        return cache.measurements()


def _files(place: Path, kind: str) -> Iterator[Path]:
    return (file for file in sorted((place / kind).glob("*.json")) if _NAME.fullmatch(f"{kind}/{file.name}"))
