"""Compiled files on disk: complete, verified before they are opened, and owned by this user.

A file is stored under the digest of its content, beside an entry that names it. Both are moved into
place, so processes that build the same file at once do not interfere, and a truncated or changed
file is built again.
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
"""The file in a folder whose lock shows that a process uses the folder."""


def cache_root() -> Path:
    """$TASO_MIRAGE_CACHE, or the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("TASO_MIRAGE_CACHE") or platformdirs.user_cache_dir("taso-mirage"))


def private_folder(name: str, cache: Path | None = None) -> Path:
    """A folder below a cache for files that are trusted because this user made them (code,
    verdicts); only this user can write to it. In a shared cache its name contains the user's
    number. Raises RuntimeUnavailable if no such folder is possible."""
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
    """Show other processes that this process uses the files of a folder until it ends."""
    with suppress(ImportError, OSError):  # file systems without locks raise this
        import fcntl

        number = os.open(folder / USED, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(number, fcntl.LOCK_SH)
        if name in _USED:
            os.close(_USED[name])
        _USED[name] = number


@contextmanager
def in_use(folder: Path) -> Iterator[bool]:
    """Whether a process uses a folder of code. If not, no process can begin to use it before the
    end of the block."""
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
    """The file stored in `folder` under `key`, if it is complete and owned by this user; otherwise
    the file that `make` creates in a given folder, which is then stored."""
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
    """Remove the files of killed builds. A build of today may still run, and a running build has a
    lock, independent of the clock."""
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
            start_new_session=True,  # child processes of the compiler end with it
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
