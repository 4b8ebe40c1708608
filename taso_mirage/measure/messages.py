"""Messages between two processes of this machine: pickled objects. Large arrays pass through shared
memory, or as a position in the file from which they are mapped."""

from __future__ import annotations

import mmap
import os
import pickle
from bisect import bisect
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

import numpy as np

SHARED = 1 << 20
"""The number of bytes from which a buffer does not pass through the pipe. The pipe copies 64 KB at
a time and takes ten times as long for weights of a gigabyte."""
MAPPINGS = Path("/proc/self/maps")
"""The system's table of this process's memory: for each range its ends, its permissions, its place
in a file, and the file's number and name."""


@dataclass(frozen=True, slots=True)
class _File:
    """An open file. `own`: nobody else has it."""

    descriptor: int
    own: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a buffer of `size` bytes is: at an `offset` in the file of this number, or in the pipe,
    behind the others (None)."""

    size: int
    file: int | None = None
    offset: int = 0


def send(connection: Connection[Any, Any], message: Any) -> None:
    """Send an object through a duplex pipe. Raises OSError where the other end is gone.

    All places go at once, and a file once for all buffers in it: a thread that computes beside this
    one takes Python's lock for milliseconds at every call of the system.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    with _Files() as files:
        places = [files.place(view) for view in views]
        connection.send_bytes(pickle.dumps((head, places, [each.own for each in files.all])))
        for each in files.all:
            send_handle(connection, each.descriptor, None)
    for view, place in zip(views, places, strict=True):
        if place.file is None:
            connection.send_bytes(view)


def receive(connection: Connection[Any, Any]) -> Any:
    """The next object that the other end sends; arrays mapped from a file are not writable. Raises
    EOFError where the other end is gone."""
    head, places, own = pickle.loads(connection.recv_bytes())
    with _Files() as files:
        for each in own:
            files.all.append(_File(recv_handle(connection), each))
        buffers = [_buffer(connection, place, files.all) for place in places]
    return pickle.loads(head, buffers=buffers)


def _buffer(connection: Connection[Any, Any], place: _Place, files: list[_File]) -> Any:
    if place.file is None:
        return bytearray(connection.recv_bytes())
    file, begin = files[place.file], place.offset % mmap.ALLOCATIONGRANULARITY
    access = mmap.ACCESS_WRITE if file.own else mmap.ACCESS_READ
    whole = mmap.mmap(file.descriptor, begin + place.size, access=access, offset=place.offset - begin)
    return memoryview(whole)[begin:]


class _Files:
    """The files of one message's buffers, which are closed with it."""

    def __init__(self) -> None:
        self.all: list[_File] = []
        self._mapped: dict[tuple[str, str, int], int | None] = {}
        """The number of each file that buffers are mapped from; None where it has another name
        now."""

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.all:
            os.close(each.descriptor)

    def place(self, view: memoryview) -> _Place:
        """Where the other end finds a buffer: a large one in a file."""
        if view.nbytes < SHARED:
            return _Place(view.nbytes)
        if (mapped := self._in_a_file(view)) is not None:
            return mapped
        copied = _in_memory(view)
        return _Place(view.nbytes) if copied is None else _Place(view.nbytes, self._number(copied))

    def _number(self, descriptor: int, own: bool = True) -> int:
        self.all.append(_File(descriptor, own))
        return len(self.all) - 1

    def _in_a_file(self, view: memoryview) -> _Place | None:
        """The place in the file that a buffer is mapped from and that it has no changes of; None
        where it lies elsewhere."""
        begin = np.frombuffer(view, np.uint8).ctypes.data
        at = bisect(self._table, begin, key=lambda each: each.first) - 1
        if at < 0 or begin + view.nbytes > (found := self._table[at]).last:
            return None
        if found.file not in self._mapped:
            opened = _opened(*found.file)
            self._mapped[found.file] = None if opened is None else self._number(opened, own=False)
        number = self._mapped[found.file]
        return None if number is None else _Place(view.nbytes, number, found.offset + begin - found.first)

    @cached_property
    def _table(self) -> list[_Mapping]:
        """The mappings of this process that are not written to, by address."""
        try:
            lines = MAPPINGS.read_text(errors="surrogateescape").splitlines()
            return [each for each in map(_mapping, lines) if each is not None]
        except (OSError, ValueError):
            return []


@dataclass(frozen=True, slots=True)
class _Mapping:
    """The addresses of a mapping of a file, whose first is at an `offset` there. `file`: its name,
    device and number."""

    first: int
    last: int
    offset: int
    file: tuple[str, str, int]


def _mapping(line: str) -> _Mapping | None:
    span, usage, offset, device, number, *name = line.split(maxsplit=5)
    if not name or "w" in usage:
        return None
    first, last = (int(each, 16) for each in span.split("-"))
    return _Mapping(first, last, int(offset, 16), (name[0], device, int(number)))


def _opened(name: str, device: str, number: int) -> int | None:
    """A descriptor of the file of this name, if it is on this device and has this number; a pipe
    that has the name now is not waited for."""
    with suppress(OSError, ValueError):
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if (f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}", found.st_ino) == (device, number):
            return descriptor
        os.close(descriptor)
    return None


def _in_memory(view: memoryview) -> int | None:
    """A descriptor of a new file in memory with a buffer's bytes, which has no name that another
    process could open; None where the system has none, or no room."""
    with suppress(AttributeError, OSError):
        descriptor = os.memfd_create("taso-mirage", os.MFD_CLOEXEC)
        try:
            while view.nbytes:
                view = view[os.write(descriptor, view) :]
            return descriptor
        except OSError:
            os.close(descriptor)
            raise
    return None
