"""Output files of commands: they are checked before the work, and moved into place when they are
complete."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from taso_mirage.errors import InvalidOption, OutputError
from taso_mirage.system.files import refuse_irregular
from taso_mirage.system.wording import option


@contextmanager
def workspace(path: Path) -> Iterator[Path]:
    if not path.parent.is_dir():
        raise OutputError(
            f"cannot write {path}: the folder {path.parent} does not exist; make it, or name another output"
        )
    folder = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}"
    try:
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:  # an interrupt may come at any moment, also while the folder is removed
        shutil.rmtree(folder, ignore_errors=True)


def move(folder: Path, target: Path, names: list[str]) -> None:
    """Flush the new files and move them into place, the model last, because only it may have the
    name of an old file."""
    for name in names:
        with (folder / name).open("rb+") as handle:
            os.fsync(handle.fileno())
    try:
        for name in names:
            os.replace(folder / name, target / name)
    except BaseException:
        if (folder / names[-1]).exists():  # otherwise the new model exists and needs them
            remove(target / name for name in names[:-1])
        raise


def remove(files: Iterable[Path]) -> None:
    for each in files:
        with suppress(OSError):
            each.unlink()


def check_writable(path: Path) -> None:
    """Raise OutputError before the work if the output cannot be written."""
    refuse_irregular(path)
    try:
        with workspace(path) as folder:
            (folder / "probe").write_bytes(b"")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; name another output") from None


def check_space(path: Path, size: int) -> None:
    """Raise OutputError before the work if a file of `size` bytes has no room at `path`. The file
    that it replaces needs its room until the new one is complete."""
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:  # a file system that does not say it
        return
    if free < size:
        raise OutputError(
            f"cannot write {path}: it needs {size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free there; make room, or name "
            "another output"
        )


def check_folder(folder: Path) -> None:
    """Raise OutputError before the work if files cannot be written into a folder, which need not
    exist yet."""
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    if not there.is_dir():
        raise OutputError(f"cannot write into {folder}: {there} is no folder; name another one")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write into {folder}: {there} may not be written to; name another folder")


def check_empty(folder: Path, files: Iterable[Path | None]) -> None:
    """Raise an error before the work if a folder already has files, cannot be written to, or is the
    path of one of these outputs."""
    check_folder(folder)
    if any(each is not None and each.resolve() == folder.resolve() for each in files):
        raise InvalidOption(f"{folder} is the path of a file and of a folder to write; name another folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidOption(f"the folder {folder} is not empty; name another one, or remove its content")


def check_outputs(
    outputs: Mapping[str, Path | None], read: Mapping[str, Path], data: Collection[Path] = (), in_place: bool = False
) -> None:
    """Raise an error before the work if an output, given by its option's name in Python, cannot be
    written, or would overwrite another output, a weight file, or a file that is `read`. Files are
    compared by identity, so links are recognised. With `in_place` the output may be the model
    itself."""
    seen: dict[Path, str] = {}
    for name, path in outputs.items():
        if path is None:
            continue
        check_writable(path)
        place = path.resolve()
        if place in seen:
            raise InvalidOption(f"{option(name, path)} is the same file as {seen[place]}; name another one")
        seen[place] = option(name)
        for what, other in read.items():
            if same_file(path, other) and not (in_place and (name, what) == ("output", "the model")):
                more = f", or pass {option('in_place', True)}" if (name, what) == ("output", "the model") else ""
                raise InvalidOption(f"{option(name, path)} would overwrite {what}; name another file{more}")
        if any(same_file(path, each) for each in data):
            raise InvalidOption(
                f"{option(name, path)} would overwrite weights of the model, which lie in that file; name another one"
            )


def same_file(first: Path, second: Path) -> bool:
    """Whether two paths lead to one file, by links too."""
    with suppress(OSError):
        return first.samefile(second)
    return first.resolve() == second.resolve()
