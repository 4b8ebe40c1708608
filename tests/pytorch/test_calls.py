"""Calls of sessions on the memory of tensors: in the order of streams, from several threads. A
recorder plays the GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import onnx_ir
import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
pytest.importorskip("onnxscript")

import taso_mirage  # noqa: E402
from taso_mirage.torch import calls as of_sessions  # noqa: E402
from taso_mirage.torch.calls import BoundCalls, OpenSession  # noqa: E402
from taso_mirage.torch.cuda_graphs import CapturedWhereFaster  # noqa: E402
from taso_mirage.torch.export import to_onnx  # noqa: E402

CPU = torch.device("cpu")
X = torch.linspace(-2, 2, 28).reshape(4, 7)


class Linear(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 + 1


class Places(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.nonzero(x > 0)


class Watched:
    """A session that says when it runs."""

    def __init__(self, session: Any, runs: Any) -> None:
        self._session, self._runs = session, runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, *given: Any) -> None:
        self._runs()
        self._session.run_with_iobinding(*given)


def opened(folder: Path, module: Any, runs: Any = lambda: None) -> tuple[OpenSession, list[str], list[str]]:
    model = to_onnx(module, [X], [frozenset({0})]).model
    onnx_ir.save(model, folder / "model.onnx")
    names = [[str(each.name) for each in part] for part in (model.graph.inputs, model.graph.outputs)]
    return OpenSession(Watched(taso_mirage.session(folder / "model.onnx"), runs)), names[0], names[1]


def bound(folder: Path, module: Any, stream: Any = None, runs: Any = lambda: None) -> BoundCalls:
    session, inputs, results = opened(folder, module, runs)
    return BoundCalls([session], inputs, results, CPU, stream, owning=True)


class Stream:
    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def wait_stream(self, other: Stream) -> None:
        self.said.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that PyTorch gets for a GPU."""
    found: list[str] = []
    current = Stream("the caller's", found)

    @contextmanager
    def device(wanted: Any) -> Iterator[None]:
        found.append("device")
        yield
        found.append("device as before")

    @contextmanager
    def stream(own: Stream) -> Iterator[None]:
        found.append(f"on {own.name}")
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return found


ORDER = ["device", "ours waits for the caller's", "run", "the caller's waits for ours", "device as before"]


def test_runs_are_behind_what_came_before_and_before_what_comes(said: list[str], tmp_path: Path) -> None:
    calls = bound(tmp_path, Linear(), Stream("ours", said), lambda: said.append("run"))
    (found,) = calls([X])
    assert said == ORDER
    assert torch.equal(found, X * 2 + 1)
    said.clear()
    (found,) = calls([X.t().contiguous().t()])  # copied where the runs are
    assert said == [*ORDER[:2], "on ours", *ORDER[2:]]
    assert torch.equal(found, X * 2 + 1)


def test_after_an_error_the_caller_still_waits(said: list[str], tmp_path: Path) -> None:
    calls = bound(tmp_path, Linear(), Stream("ours", said))
    with pytest.raises(RuntimeError):
        calls([X[:, :3]])
    assert said[-2:] == ["on ours", "the caller's waits for ours"]
    assert torch.equal(calls([X])[0], X * 2 + 1)


def test_memory_of_the_runtime_is_read_where_the_runs_are(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime gives the memory to the next run, whatever stream would still read it."""
    given: list[Any] = []
    plain = of_sessions._tensor
    monkeypatch.setattr(of_sessions, "_tensor", lambda *each: given.append(plain(*each)) or given[-1])  # type: ignore[func-returns-value]
    calls = bound(tmp_path, Places(), Stream("ours", said), lambda: said.append("run"))
    (found,) = calls([X])
    assert said == [*ORDER[:3], "on ours", *ORDER[3:]]
    assert torch.equal(found, torch.nonzero(X > 0))
    assert found.data_ptr() != given[0].data_ptr()


def test_nobody_runs_while_another_does(said: list[str], tmp_path: Path) -> None:
    """The rule holds for runs of any model: a graph that is captured would hold it, or fail."""
    started, other = Event(), Event()
    beside = []

    def first() -> None:
        started.set()
        beside.append(other.wait(0.3))

    one = bound(tmp_path, Linear(), Stream("ours", said), first)
    two = bound(tmp_path, Linear(), Stream("another", said), other.set)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(one, [X])
        assert started.wait(600)
        threads.submit(two, [X]).result()
        running.result()
    assert beside == [False]


def test_a_binding_that_another_thread_took_is_made_anew(tmp_path: Path) -> None:
    class Taken(list[Any]):
        """The content at the moment of the look."""

        def __bool__(self) -> bool:
            return True

    calls = bound(tmp_path, Linear())
    calls._parts[0]._bindings = Taken()
    assert torch.equal(calls([X])[0], X * 2 + 1)


def test_a_gpu_reads_only_what_begins_at_16_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"), data_ptr=lambda: 0x7F0000000008)
    assert not of_sessions._is_aligned(tensor)
    monkeypatch.setattr(of_sessions, "_is_aligned", lambda tensor: tensor.data_ptr() % 16 == 0)
    read: list[Any] = []
    plain = of_sessions._Binding.read

    def kept(binding: Any, name: str, tensor: Any) -> None:
        read.append(tensor.data_ptr())
        plain(binding, name, tensor)

    monkeypatch.setattr(of_sessions._Binding, "read", kept)
    calls = bound(tmp_path, Linear())
    for first in range(4):
        assert torch.equal(calls([X[first:]])[0], X[first:] * 2 + 1)
    assert not any(place % 16 for place in read)
    assert read[0] == X.data_ptr()


@pytest.mark.parametrize("whole", [False, True])
def test_a_negative_view_is_read_as_what_it_is(whole: bool, tmp_path: Path) -> None:
    session, *names = opened(tmp_path, Linear())
    calls = of_sessions.HostCalls(session.session) if whole else BoundCalls([session], *names, CPU, owning=True)
    assert torch.equal(calls([torch._neg_view(X)])[0], 1 - X * 2)


def test_graphs_of_a_thread_go_with_it() -> None:
    def same(held: Sequence[Any]) -> list[Any]:
        return list(held)

    calls = CapturedWhereFaster(same, lambda held: same)
    calls([X])
    gc.freeze()  # objects of other tests, which the collector would look at for seconds
    for _ in range(3):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(calls, [X]).result()
            assert calls.count() == 2
        gc.collect()
        assert calls.count() == 1
