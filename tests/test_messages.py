"""Messages between processes: large arrays go through shared memory, and arrive without it too."""

from __future__ import annotations

import os
import threading
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

from taso_mirage.measure import messages

SIZES = 0, 1, messages.SHARED - 8, messages.SHARED, 3 * messages.SHARED + 8


def exchanged(message: Any) -> Any:
    """The message as the other end of a pipe gets it."""
    ours, theirs = Pipe()
    with ours, theirs:
        sender = threading.Thread(target=messages.send, args=(ours, message))
        sender.start()
        found = messages.receive(theirs)
        sender.join()
        return found


def drawn() -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 255, size, dtype=np.uint8) for size in SIZES]


def refused(*_: object) -> int:
    raise OSError("no file in memory")


@pytest.mark.parametrize("without", ["", "memfd_create", "write"])
def test_arrays_of_all_sizes_arrive(monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    sent = drawn()
    with monkeypatch.context() as patched:
        if without:  # on such a system, or where memory is short
            patched.setattr(messages, "os", _Without(without))
        head, arrays = exchanged(("text", sent))
    assert head == "text"
    assert all(np.array_equal(a, b) for a, b in zip(arrays, sent, strict=True))


def test_large_arrays_do_not_go_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[int] = []
    before = messages.send_handle
    monkeypatch.setattr(messages, "send_handle", lambda *args: (there.append(1), before(*args)))
    exchanged(drawn())
    assert len(there) == sum(size >= messages.SHARED for size in SIZES)


def test_no_descriptor_is_left() -> None:
    exchanged(drawn())
    before = len(os.listdir("/proc/self/fd"))
    exchanged(drawn())
    assert len(os.listdir("/proc/self/fd")) <= before


class _Without:
    """The module `os`, in which one function is refused."""

    def __init__(self, name: str) -> None:
        setattr(self, name, refused)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
