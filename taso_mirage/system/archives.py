"""Untrusted zip archives and arrays of numpy (`.npz`), read with limits: nothing is unpickled, and
the memory use is limited to the size of the file, or to a fixed size if that is larger."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression methods that numpy and `cache export` use; others may expand a file a million
times."""
LARGEST = 1 << 30
"""The largest number of bytes of an archive's content, unless the file is larger."""
HEADER = 10_000
"""The largest number of characters of an array's header; numpy has the same limit."""
ENCRYPTED = 1
"""The bit of a member's flags that marks encryption."""


class BadArchive(ValueError):
    """Raised for a file that is no readable archive; the message is one line."""


@contextmanager
def opened_archive(path: Path, largest: int = LARGEST) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive whose members are listed once, not encrypted, and compressed by one of
    `METHODS`, and whose content has at most the size of the file or `largest` bytes.

    Raises BadArchive if it is none, or if content that the block reads is damaged.
    """
    with _damage(), path.open("rb") as content:
        if not zipfile.is_zipfile(content):
            raise BadArchive("it is no archive")
        with zipfile.ZipFile(content) as archive:
            _check(archive.infolist(), max(content.seek(0, 2), largest))
            yield archive


def _check(members: list[zipfile.ZipInfo], most: int) -> None:
    seen: set[str] = set()
    for each in members:
        if each.filename in seen:
            raise BadArchive(f"it has two files {each.filename!r}")
        seen.add(each.filename)
        if each.flag_bits & ENCRYPTED:
            raise BadArchive(f"{each.filename!r} is encrypted")
        if each.compress_type not in METHODS:
            raise BadArchive(f"{each.filename!r} is compressed by the method {each.compress_type}, which is not read")
    held = sum(each.file_size for each in members)
    if held > most:
        raise BadArchive(f"it holds {held} bytes, more than {most}")


def read_arrays(path: Path) -> Mapping[str, Any]:
    """The arrays of an `.npz` file by name.

    Raises BadArchive, also for an array of Python objects, and for an array whose header gives
    another size than its file, which is tested before memory is allocated.
    """
    with opened_archive(path) as archive:
        members = archive.infolist()
        found = {each.filename.removesuffix(".npy"): _array(archive, each) for each in members}
        if len(found) < len(members):
            raise BadArchive("it has two arrays of one name")
    return found


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    with archive.open(member) as file:
        shape, transposed, dtype = _header(file, member.filename)
        size, wanted = member.file_size - file.tell(), math.prod(shape) * dtype.itemsize
        if wanted != size:
            raise BadArchive(f"{member.filename!r} has {size} bytes; {dtype}{list(shape)} would need {wanted}")
        content = bytearray(file.read())
    if len(content) != size:
        raise BadArchive(f"{member.filename!r} is truncated")
    array = np.frombuffer(content, dtype) if size else np.zeros(math.prod(shape), dtype)
    return array.reshape(shape, order="F" if transposed else "C")


def _header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first axis runs fastest, and dtype; the file is then at the first
    element."""
    try:
        version = npy.read_magic(file)
        read = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}[version[0]]
        shape, transposed, dtype = read(file, max_header_size=HEADER)
    except Exception as error:  # Python's parser raises many kinds of errors, also MemoryError
        raise BadArchive(f"{name!r} is no array: {_said(error)}") from None
    if min(shape, default=0) < 0:
        raise BadArchive(f"{name!r} has the shape {list(shape)}")
    if dtype.hasobject:
        raise BadArchive(f"{name!r} has Python objects, which are never read")
    return shape, transposed, dtype


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except (MemoryError, BadArchive):
        raise
    except Exception as error:  # zipfile, its decompressors and numpy raise many kinds of errors for damaged bytes
        raise BadArchive(_said(error)) from None


def _said(error: Exception) -> str:
    """The first line of an error."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0][:200]
