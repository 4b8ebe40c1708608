"""Runs from PyTorch as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import taso_mirage  # noqa: E402
from taso_mirage.torch import cuda_graphs  # noqa: E402
from taso_mirage.torch.cuda_graphs import CAPTURING, SIZES, CapturedRun, CapturedWhereFaster, record  # noqa: E402


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[Any, float]:
    """Seconds by call."""
    known: dict[Any, float] = {}
    monkeypatch.setattr(cuda_graphs, "seconds", lambda call, cuda: known[call.func])
    return known


def twice(held: Sequence[Any]) -> list[Any]:
    return [held[0] * 2]


class Graph:
    """A captured run: it reads and writes its own memory."""

    def __init__(self, scale: float = 2.0) -> None:
        self.scale, self.runs = scale, 0

    def made(self, held: Sequence[Any]) -> CapturedRun:
        given, found = [each.clone() for each in held], [torch.empty_like(held[0])]

        def run() -> None:
            self.runs += 1
            found[0].copy_(given[0] * self.scale)

        return CapturedRun(run, given, found)


def remembered(graph: Graph, times: dict[Any, float], seconds: float) -> Callable[[Sequence[Any]], Any]:
    def capture(held: Sequence[Any]) -> CapturedRun:
        made = graph.made(held)
        times[made] = seconds
        return made

    return capture


def test_what_would_be_copied_for_long_is_not_captured(
    times: dict[Any, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "COPIED", 24)
    graph, times[twice] = Graph(), 2.0
    calls = CapturedWhereFaster(twice, remembered(graph, times, 1.0))
    for size in (3, 3, 2, 2):  # three numbers and as many results are 24 bytes
        assert torch.equal(calls([torch.ones(size)])[0], torch.full((size,), 2.0))
    assert [free for each in (calls._known(),) for free in each.values()] == [[], [*times][1:]]


def test_what_is_faster_captured_is_replayed_on_new_inputs_into_new_memory(times: dict[Any, float]) -> None:
    graph, times[twice] = Graph(), 2.0
    calls = CapturedWhereFaster(twice, remembered(graph, times, 1.0))
    inputs = [torch.full((3,), float(i)) for i in range(5)]
    found = [calls([each])[0] for each in inputs]
    assert all(torch.equal(one, each * 2) for one, each in zip(found, inputs, strict=True))
    assert graph.runs == CAPTURING + 1 + 4  # compared once; the first call ran plainly


def test_what_was_captured_in_inference_mode_is_replayed_out_of_it(times: dict[Any, float]) -> None:
    graph, times[twice] = Graph(), 2.0
    calls = CapturedWhereFaster(twice, remembered(graph, times, 1.0))
    for mode in (torch.inference_mode, torch.inference_mode, torch.no_grad):
        with mode():
            (found,) = calls([torch.ones(3)])
            assert torch.equal(found, torch.full((3,), 2.0))
    assert graph.runs == CAPTURING + 1 + 2
    assert not found.is_inference()


def test_what_fails_to_be_captured_is_not_tried_again(times: dict[Any, float]) -> None:
    times[twice], made = 2.0, count()

    def failing(held: Sequence[Any]) -> CapturedRun:
        next(made)
        raise AssertionError("of the compiler's parts")

    calls = CapturedWhereFaster(twice, failing)
    for _ in range(4):
        assert torch.equal(calls([torch.ones(3)])[0], torch.full((3,), 2.0))
    assert next(made) == 1


def test_what_is_slower_captured_is_not(times: dict[Any, float]) -> None:
    graph, times[twice] = Graph(), 2.0
    calls = CapturedWhereFaster(twice, remembered(graph, times, 3.0))
    for i in range(5):
        assert torch.equal(calls([torch.full((3,), float(i))])[0], torch.full((3,), 2.0 * i))
    assert graph.runs == CAPTURING + 1


@pytest.mark.parametrize("scale", [2.5, None])
def test_what_differs_or_cannot_be_captured_runs_plainly(scale: float | None, times: dict[Any, float]) -> None:
    def refused(held: Sequence[Any]) -> CapturedRun:
        raise RuntimeError("no graph")

    times[twice] = 2.0
    calls = CapturedWhereFaster(twice, refused if scale is None else remembered(Graph(scale), times, 1.0))
    for _ in range(4):
        assert torch.equal(calls([torch.ones(3)])[0], torch.full((3,), 2.0))


def counted(times: dict[Any, float]) -> tuple[CapturedWhereFaster, Iterator[int]]:
    """Calls that are faster captured, and the counter of graphs."""
    times[twice], made = 2.0, count()

    def capture(held: Sequence[Any]) -> CapturedRun:
        next(made)
        return remembered(Graph(), times, 1.0)(held)

    return CapturedWhereFaster(twice, capture), made


def test_each_set_of_sizes_has_its_graph_and_there_are_not_too_many(times: dict[Any, float]) -> None:
    calls, made = counted(times)
    for size in (*range(1, SIZES + 9), *range(1, SIZES + 9)):
        assert calls([torch.ones(size)])[0].shape == (size,)
    assert next(made) == SIZES


def test_a_graph_in_use_is_not_taken_by_another_thread(times: dict[Any, float]) -> None:
    """The nested call stands for another call that comes while the graph runs."""
    times[twice] = 2.0
    calls: CapturedWhereFaster

    class Nested(Graph):
        def made(self, held: Sequence[Any]) -> CapturedRun:
            whole = super().made(held)
            run = whole._run

            def both() -> None:
                if self.runs > CAPTURING:
                    inner.append(calls([torch.full((3,), 7.0)])[0])
                run()

            whole._run = both
            return whole

    inner: list[Any] = []
    calls = CapturedWhereFaster(twice, remembered(Nested(), times, 1.0))
    for i in range(4):
        assert torch.equal(calls([torch.full((3,), float(i))])[0], torch.full((3,), 2.0 * i))
    assert inner
    assert all(torch.equal(each, torch.full((3,), 14.0)) for each in inner)


def test_each_thread_has_its_graphs(times: dict[Any, float]) -> None:
    calls, made = counted(times)
    with ThreadPoolExecutor(1) as thread:
        for kind in (map, thread.map):
            assert all(torch.equal(each, torch.full((3,), 2.0)) for (each,) in kind(calls, [[torch.ones(3)]] * 4))
    assert next(made) == 2


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_a_gpu
def test_calls_on_a_gpu_are_captured() -> None:
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(8)))
    model = model.cuda().eval()
    ours = taso_mirage.optimize(model, torch.randn(4, 64, device="cuda"), budget=5, kernels="off", fallback="eager")
    kept = []
    with torch.no_grad():
        for i in range(20):
            x = torch.randn(4 + i % 2, 64, device="cuda")
            kept.append((ours(x), model(x)))
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    graphs = [program._calls._graphs for graph in ours._graphs for program in graph._programs]
    assert any(free for each in graphs for free in each._known().values())


@on_a_gpu
def test_a_recorded_call_needs_nothing_that_others_let_go() -> None:
    """PyTorch's own graphs let memory go when they are captured."""
    w = torch.randn(512, 512, device="cuda", dtype=torch.float16)
    given = [torch.randn(256, 512, device="cuda", dtype=torch.float16) for _ in range(4)]
    with torch.no_grad():
        made = record(lambda held: [(held[0] @ w).relu() @ w], given[:1])
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        found = [made([x])[0] for x in given]
        for one, x in zip(found, given, strict=True):
            torch.testing.assert_close(one, (x @ w).relu() @ w)


@on_a_gpu
def test_where_nothing_can_be_recorded_the_stream_is_the_same() -> None:
    x, stream = torch.ones(4, device="cuda"), torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        record(lambda held: [held[0] * held[0].sum().item()], [x])
    assert torch.cuda.current_stream() == stream
    torch.randn(4, device="cuda")
    large = torch.empty(1 << 28, device="cuda")
    kept = torch.cuda.memory_reserved()
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < kept - (1 << 28)
    assert torch.equal(record(lambda held: [held[0] + 1], [x])([x])[0], x + 1)
