"""Messages between processes: large arrays go through shared memory, and arrive without it too."""

from __future__ import annotations

import os
import threading
from multiprocessing import Pipe
from pathlib import Path
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
    through: list[int] = []
    monkeypatch.setattr(
        messages, "bytearray", lambda content: through.append(len(content)) or bytes(content), raising=False
    )
    exchanged(drawn())
    assert through
    assert max(through) < messages.SHARED


def test_no_descriptor_is_left() -> None:
    exchanged(drawn())
    before = len(os.listdir("/proc/self/fd"))
    exchanged(drawn())
    assert len(os.listdir("/proc/self/fd")) <= before


def mapped(path: Path, mode: Any = "r", offset: int = 4097) -> Any:
    content = np.random.default_rng(1).integers(0, 255, 3 * messages.SHARED, dtype=np.uint8)
    path.write_bytes(content.tobytes())
    return np.memmap(path, np.uint8, mode, offset=offset, shape=(2 * messages.SHARED,))


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of buffers that are copied."""
    there: list[int] = []
    copied = messages._in_memory
    monkeypatch.setattr(messages, "_in_memory", lambda view: (there.append(view.nbytes), copied(view))[1])
    return there


def test_what_is_mapped_from_a_file_is_not_copied(tmp_path: Path, copies: list[int]) -> None:
    sent = mapped(tmp_path / "weights")
    found = exchanged(np.asarray(sent))
    assert np.array_equal(found, sent)
    assert not copies
    assert not found.flags.writeable


def test_many_buffers_of_a_file_take_one_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of mappings is read once, too."""
    path, read, handles = tmp_path / "weights", list[Path](), list[int]()
    mapped(path)
    parts = [np.memmap(path, np.uint8, "r", offset=i, shape=(messages.SHARED + i,)) for i in range(5)]
    handle, text = messages.send_handle, Path.read_text
    monkeypatch.setattr(messages, "send_handle", lambda c, d, p: (handles.append(d), handle(c, d, p)))
    monkeypatch.setattr(Path, "read_text", lambda path, **k: (read.append(path), text(path, **k))[1])
    own = np.ones(messages.SHARED, np.uint8)
    found = exchanged([*map(np.asarray, parts), own])
    assert all(np.array_equal(a, b) for a, b in zip(found, [*parts, own], strict=True))
    assert len(handles) == 2
    assert read == [messages.MAPPINGS]


def test_a_file_in_the_place_of_another_is_not_read(tmp_path: Path, copies: list[int]) -> None:
    sent = mapped(tmp_path / "weights")
    (tmp_path / "other").write_bytes(bytes(3 * messages.SHARED))
    os.replace(tmp_path / "other", tmp_path / "weights")
    assert np.array_equal(exchanged(np.asarray(sent)), sent)
    assert copies


def test_a_pipe_with_the_name_of_a_deleted_file_is_not_waited_for(tmp_path: Path, copies: list[int]) -> None:
    sent = mapped(tmp_path / "weights")
    (tmp_path / "weights").unlink()
    os.mkfifo(tmp_path / "weights (deleted)")  # as the system calls the file now
    assert np.array_equal(exchanged(np.asarray(sent)), sent)
    assert copies


def test_what_was_changed_in_memory_arrives_so(tmp_path: Path, copies: list[int]) -> None:
    sent = mapped(tmp_path / "weights", "c")
    sent[5] ^= 1
    assert np.array_equal(exchanged(np.asarray(sent)), sent)
    assert copies


class _Without:
    """The module `os`, in which one function is refused."""

    def __init__(self, name: str) -> None:
        setattr(self, name, refused)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
