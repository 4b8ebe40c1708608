"""Messages between two processes of this machine: pickled objects, whose large arrays go through
shared memory."""

from __future__ import annotations

import mmap
import os
import pickle
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

SHARED = 1 << 20
"""Bytes from which a buffer goes through shared memory: a pipe copies 64 KB at a time, and takes
ten times as long for weights of a gigabyte."""


def send(connection: Connection[Any, Any], message: Any) -> None:
    """Send an object through a duplex pipe. Raises OSError where the other end is gone."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = [view.nbytes for view in views]
    connection.send_bytes(pickle.dumps((head, sizes)))
    for view in views:
        if view.nbytes >= SHARED:
            _send_shared(connection, view)
        else:
            connection.send_bytes(view)


def receive(connection: Connection[Any, Any]) -> Any:
    """The next object that the other end sends. Raises EOFError where it is gone."""
    head, sizes = pickle.loads(connection.recv_bytes())
    return pickle.loads(head, buffers=[_buffer(connection, size) for size in sizes])


def _buffer(connection: Connection[Any, Any], size: int) -> Any:
    if size >= SHARED and connection.recv_bytes() == b"shared":
        descriptor = recv_handle(connection)
        try:
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    return bytearray(connection.recv_bytes())


def _send_shared(connection: Connection[Any, Any], view: memoryview) -> None:
    """Send a buffer as a file in memory, and through the pipe where the system gives none."""
    descriptor = _file_of(view)
    connection.send_bytes(b"shared" if descriptor is not None else b"inline")
    if descriptor is None:
        connection.send_bytes(view)
        return
    try:
        send_handle(connection, descriptor, None)
    finally:
        os.close(descriptor)


def _file_of(view: memoryview) -> int | None:
    """The descriptor of a file in memory with these bytes; it has no name that another process
    could open."""
    with suppress(AttributeError, OSError):  # not on every system, and memory may be short
        descriptor = os.memfd_create("taso-mirage", os.MFD_CLOEXEC)
        try:
            while view.nbytes:
                view = view[os.write(descriptor, view) :]
            return descriptor
        except OSError:
            os.close(descriptor)
            raise
    return None
