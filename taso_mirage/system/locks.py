"""Locks of outputs, so that one run at a time writes each: an advisory lock of the operating system
on a small file beside the output.

The system releases a lock when its process ends in any way. The file of a killed process locks
nothing, and the next run with this output removes it. On file systems without locks, such as some
network mounts, nothing is locked.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from taso_mirage.errors import OutputError

if sys.platform == "win32":
    import msvcrt

    def _lock(number: int) -> None:
        """The position of the locked byte, far behind the text, because other processes may be
        unable to read a locked byte."""
        os.lseek(number, 1 << 30, os.SEEK_SET)
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


TAKEN = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
"""The error codes for a lock that another process holds."""
FLAGS = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags with which a link is not followed, and opening a pipe does not block."""
HOLDER = re.compile(r"(\d+) on ([\w.-]+)\n")
WRITTEN, LOOK = 10, 0.02
"""The number of attempts to read the name of the holder, which writes it after it has the lock, and
the seconds between them."""


_HELD: dict[int, Path] = {}
"""The files of the locks that this process has, by descriptor."""


@contextmanager
def locked(*outputs: Path) -> Iterator[None]:
    """Hold the locks of outputs, files or folders that are there, until the end of the block.

    OutputError where another run has one: it names the process.
    """
    with ExitStack() as stack:
        for output in outputs:
            stack.enter_context(_held(output))
        yield


def lock_file(output: Path) -> Path:
    """The path of an output's lock: beside a file, but inside a folder, because only the folder may
    be writable."""
    return output / ".lock" if output.is_dir() else output.with_name(f".{output.name}.lock")


@contextmanager
def _held(output: Path) -> Iterator[None]:
    path = lock_file(output)
    number = None
    try:
        number = _taken(path, output)
        yield
    finally:
        if number is not None:
            _let_go(number, path)


def _taken(path: Path, output: Path) -> int | None:
    """The descriptor that has the lock; None where there are no locks."""
    while (number := _opened(path)) is not None:
        try:
            _lock(number)
        except OSError as error:
            other = _holder(number) if error.errno in TAKEN else None
            os.close(number)
            if other is None:
                return None
            raise OutputError(
                f"cannot write {output}: {other} is writing to it; wait until that ends, or name another output"
            ) from None
        if _is(number, path):  # else its holder removed it in between
            _HELD[number] = path
            _sign(number)
            return number
        os.close(number)
    return None


def _opened(path: Path) -> int | None:
    """The file of a lock; one that a process of another user left behind can be read alone."""
    for mode in (os.O_RDWR, os.O_RDONLY):
        with suppress(OSError):
            number = os.open(path, mode | FLAGS, 0o666)
            said = os.fstat(number)
            if stat.S_ISREG(said.st_mode) and said.st_nlink <= 1:
                return number
            os.close(number)
    return None


def _is(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.lstat(path))
    except OSError:
        return False


def _sign(number: int) -> None:
    """Say who has the lock."""
    with suppress(OSError):
        os.ftruncate(number, 0)
        os.lseek(number, 0, os.SEEK_SET)
        os.write(number, f"{os.getpid()} on {socket.gethostname()}\n".encode())


def _holder(number: int) -> str:
    for _ in range(WRITTEN):
        os.lseek(number, 0, os.SEEK_SET)
        found = HOLDER.match(os.read(number, 300).decode(errors="replace"))
        if found is not None:
            return f"process {found[1]} on {found[2]}"
        time.sleep(LOOK)
    return "another process"


def let_go_all() -> None:
    """Release all locks of this process at its end."""
    for number, path in list(_HELD.items()):
        _let_go(number, path)


def _let_go(number: int, path: Path) -> None:
    """Release a lock. The file is removed first, so a process that has opened it sees that it no
    longer exists."""
    if _HELD.pop(number, None) is None:
        return
    with suppress(OSError):
        path.unlink()
    os.close(number)
    if sys.platform == "win32":  # where no open file can be removed
        with suppress(OSError):
            path.unlink()
