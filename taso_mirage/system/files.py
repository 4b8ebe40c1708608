"""Files that are written completely or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from taso_mirage.errors import OutputError


def write_file(path: Path, content: str | bytes, lasting: bool = True) -> None:
    """Write a file beside its target, flush it, then rename it, so no partial file is visible.

    Raises OutputError if that fails. A file that is not `lasting`, because it can be made again, is
    not flushed to the disk.
    """
    refuse_irregular(path)
    new = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            try:
                number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
                with open(number, "wb") as file:
                    file.write(content.encode() if isinstance(content, str) else content)
                    file.flush()
                    if lasting:
                        os.fsync(file.fileno())
                os.replace(new, path)
            finally:
                new.unlink(missing_ok=True)
        finally:  # an interrupt may come at any moment
            new.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None


def refuse_irregular(path: Path) -> None:
    """Raise OutputError for an existing path that is no regular file, because a rename would
    replace a device by a file."""
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; name the file")
    if path.exists() and not path.is_file():
        raise OutputError(f"cannot write {path}: it is no regular file (a device, a pipe or a socket); name a file")


def file_digests(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files, by their paths from a folder. OSError for a file that is not regular: a
    pipe may have no end, or no beginning."""
    found = {}
    for path in files:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "no regular file", str(path))
        with path.open("rb") as file:
            found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def file_name(name: str) -> str:
    """Convert a name from a model into a file name that leads to no other folder."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name).lstrip(".")[:150] or "_"
