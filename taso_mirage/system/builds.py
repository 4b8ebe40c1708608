"""Compiled files kept on disk: whole, checked before they are opened, and of this user alone.

A file is kept under the digest of its content, beside an entry that names it; both are moved into
place, so that processes that build the same at once cannot hurt each other, and a file that was cut
off or changed is built anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from taso_mirage.errors import OutputError, RuntimeUnavailable
from taso_mirage.system.files import write_file
from taso_mirage.system.locks import locked

LIMIT = 600.0
"""Seconds that a compiler may take for one file."""

DAY = 86400.0
USED = ".used"
"""The file of a folder whose lock says that a process uses the folder."""


def cache_root() -> Path:
    """$TASO_MIRAGE_CACHE, or the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("TASO_MIRAGE_CACHE") or platformdirs.user_cache_dir("taso-mirage"))


def private_folder(name: str, cache: Path | None = None) -> Path:
    """A folder below a cache for files that are trusted because this user made them (code,
    verdicts), which only this user writes to: in a cache that others share it has this user's
    number in its name. Raises RuntimeUnavailable where there can be none."""
    cache = cache or cache_root()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for folder in (cache / name, cache / f"{name}-{os.getuid()}"):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            owners = {folder.lstat().st_uid, folder.stat().st_uid}  # of a link, and of its target
            if folder.is_dir() and owners == {os.getuid()}:
                if folder.stat().st_mode & 0o022:
                    folder.chmod(0o700)
                _use(folder, name)
                return folder
    except OSError as error:
        raise RuntimeUnavailable(
            f"{cache / name} cannot be made ({error.strerror}); set TASO_MIRAGE_CACHE to a folder that can"
        ) from None
    raise RuntimeUnavailable(f"{folder} belongs to another user; set TASO_MIRAGE_CACHE to a folder of your own")


_USED: dict[str, int] = {}
"""Descriptors that hold folders of code, by their names."""


def _use(folder: Path, name: str) -> None:
    """Let other processes see that this one uses the files of a folder, to its end."""
    with suppress(ImportError, OSError):  # where there are no such locks, they do not
        import fcntl

        number = os.open(folder / USED, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(number, fcntl.LOCK_SH)
        if name in _USED:
            os.close(_USED[name])
        _USED[name] = number


@contextmanager
def in_use(folder: Path) -> Iterator[bool]:
    """Whether a process uses a folder of code; if not, none begins to before the end of the
    block."""
    import fcntl

    number = os.open(folder / USED, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield True
    else:
        yield False
    finally:
        os.close(number)


def built(folder: Path, key: str, suffix: str, make: Callable[[Path], Path]) -> Path:
    """The file that `make` makes in a folder that it is given, kept in `folder` under `key`; the
    kept one where it is whole and of this user."""
    entry = folder / f"{key}.built"
    kept = _kept(entry, suffix)
    if kept is not None:
        return kept
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with tempfile.TemporaryDirectory(dir=folder) as place, locked(Path(place)):
            made = make(Path(place))
            if not made.is_file():
                raise RuntimeUnavailable("the compiler ends without an error, but makes no file; $CXX chooses another")
            with made.open("rb+") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            target = folder / f"{digest}{suffix}"
            made.replace(target)
        write_file(entry, target.name)
    except OutputError as error:
        raise RuntimeUnavailable(str(error)) from None
    except OSError as error:
        raise RuntimeUnavailable(
            f"nothing can be compiled into {folder} ({error.strerror or error}); set TASO_MIRAGE_CACHE to a folder with room"
        ) from None
    return target


def _sweep(folder: Path) -> None:
    """Remove the files of builds that were killed: one of today may still run, and one that runs
    has a lock, whatever the clock says."""
    for each in folder.glob("tmp*"):
        with suppress(OSError, OutputError):
            if time.time() - each.stat().st_mtime > DAY:
                with locked(each):
                    shutil.rmtree(each)


def _kept(entry: Path, suffix: str) -> Path | None:
    """The file that an entry names, if both are this user's (or root's) and the file has the digest
    that is its name."""
    try:
        name = _owned(entry).decode()
        digest = name.removesuffix(suffix)
        if (
            not re.fullmatch(r"[0-9a-f]{64}", digest)
            or hashlib.sha256(_owned(entry.parent / name)).hexdigest() != digest
        ):
            return None
    except (OSError, ValueError):
        return None
    return entry.parent / name


def _owned(path: Path) -> bytes:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(number, "rb") as file:
        if os.fstat(number).st_uid not in (os.getuid(), 0):
            raise OSError(f"{path} belongs to another user")
        return file.read()


def compile_files(command: Sequence[str], limit: float = LIMIT) -> None:
    """Run a compiler.

    Raises RuntimeUnavailable with its first message, or where it takes longer than `limit` seconds.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # its own child processes end with it
        )
    except OSError as error:
        raise RuntimeUnavailable(
            f"{command[0]} cannot be run ({error.strerror}); $CXX chooses another compiler"
        ) from None
    try:
        _, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise RuntimeUnavailable(
            f"{command[0]} took longer than {limit:g} s for one file; $CXX chooses another compiler"
        ) from None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        said = [line for line in errors.splitlines() if "error" in line] or errors.splitlines()
        what = said[0][:400] if said else f"exit code {process.returncode} without a message"
        raise RuntimeUnavailable(f"{command[0]} failed: {what}; $CXX chooses another compiler")
