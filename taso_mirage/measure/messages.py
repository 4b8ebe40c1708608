"""Messages between two processes of this machine: pickled objects. Large arrays pass through shared
memory, or as a position in the file from which they are mapped."""

from __future__ import annotations

import mmap
import os
import pickle
from contextlib import suppress
from dataclasses import dataclass
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
    """An open file and the offset of a buffer in it. `own`: no other process has the file."""

    descriptor: int
    offset: int
    own: bool


def send(connection: Connection[Any, Any], message: Any) -> None:
    """Send an object through a duplex pipe. Raises OSError if the other end is closed."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    connection.send_bytes(pickle.dumps((head, [view.nbytes for view in views])))
    for view in views:
        file = (_mapped(view) or _in_memory(view)) if view.nbytes >= SHARED else None
        connection.send_bytes(pickle.dumps(None if file is None else (file.offset, file.own)))
        if file is None:
            connection.send_bytes(view)
            continue
        try:
            send_handle(connection, file.descriptor, None)
        finally:
            os.close(file.descriptor)


def receive(connection: Connection[Any, Any]) -> Any:
    """The next object that the other end sends; arrays mapped from a file are not writable. Raises
    EOFError where the other end is gone."""
    head, sizes = pickle.loads(connection.recv_bytes())
    return pickle.loads(head, buffers=[_buffer(connection, size) for size in sizes])


def _buffer(connection: Connection[Any, Any], size: int) -> Any:
    place = pickle.loads(connection.recv_bytes())
    if place is None:
        return bytearray(connection.recv_bytes())
    offset, own = place
    begin = offset % mmap.ALLOCATIONGRANULARITY
    access = mmap.ACCESS_WRITE if own else mmap.ACCESS_READ
    descriptor = recv_handle(connection)
    try:
        whole = mmap.mmap(descriptor, begin + size, access=access, offset=offset - begin)
    finally:
        os.close(descriptor)
    return memoryview(whole)[begin:]


def _mapped(view: memoryview) -> _File | None:
    """The file from which a buffer is mapped without changes; None if the buffer is in other
    memory, or if the file was renamed."""
    begin = np.frombuffer(view, np.uint8).ctypes.data
    with suppress(OSError, ValueError):
        for line in MAPPINGS.read_text(errors="surrogateescape").splitlines():
            span, usage, offset, device, number, *name = line.split(maxsplit=5)
            first, last = (int(each, 16) for each in span.split("-"))
            if first <= begin and begin + view.nbytes <= last:
                inside = int(offset, 16) + begin - first
                return _opened(name[0], device, int(number), inside) if name and "w" not in usage else None
    return None


def _opened(name: str, device: str, number: int, offset: int) -> _File | None:
    """The file of this name, if it is on this device and has this number; a pipe that has the name
    now is not waited for."""
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    if (f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}", found.st_ino) == (device, number):
        return _File(descriptor, offset, own=False)
    os.close(descriptor)
    return None


def _in_memory(view: memoryview) -> _File | None:
    """A new file in memory with a buffer's bytes, which has no name that another process could
    open; None where the system has none, or no room."""
    with suppress(AttributeError, OSError):
        descriptor = os.memfd_create("taso-mirage", os.MFD_CLOEXEC)
        try:
            while view.nbytes:
                view = view[os.write(descriptor, view) :]
            return _File(descriptor, 0, own=True)
        except OSError:
            os.close(descriptor)
            raise
    return None
