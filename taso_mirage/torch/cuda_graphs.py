"""Runs as CUDA graphs: a run for sizes that occur again is captured, with memory of its own, and
replayed if that is faster, its copies included."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock, RLock, local
from typing import Any

import torch

from taso_mirage.torch.comparison import check_equal, seconds
from taso_mirage.torch.functionalization import copy_strided

TensorCall = Callable[[Sequence[Any]], list[Any]]
"""Results on tensors that lie on the GPU."""
SIZES = 16
"""The number of sets of sizes that are remembered: each may have a graph, with memory of its
own."""
ROUNDS = 7
"""Runs of both ways, of which the median counts."""
COPIED = 1 << 26
"""Bytes of inputs and results from which on nothing is captured: copying them takes about as long
as the starts that a graph saves, and their memory would be there twice."""
CAPTURING = 3
"""The number of runs until there is a graph: ONNX Runtime captures the second one."""
TURN = RLock()
"""The lock of a thread that runs sessions on the GPU, opens one, or captures a run: a captured CUDA
graph would contain the work of other threads on its stream, and requests for memory fail
meanwhile."""
HERE = local()
"""The memory of each thread's graphs."""
FAILED: list[Any] = []
"""Graphs whose capture failed: PyTorch may read them until its process ends."""


class CapturedRun:
    """A captured run for inputs like these. `run` reads and writes this memory: inputs are copied
    into it before, and results out of it afterwards. `kept` is all memory of tensors that it reads
    or writes."""

    def __init__(
        self, run: Callable[[], None], given: Sequence[Any], found: Sequence[Any], kept: Sequence[Any] = ()
    ) -> None:
        self._run, self._given, self._found, self._kept = run, given, found, kept
        for _ in range(CAPTURING):
            run()

    def __call__(self, held: Sequence[Any]) -> list[Any]:
        for own, each in zip(self._given, held, strict=True):
            own.copy_(each)  # in the order of the caller's stream
        self._run()
        return [each.clone() for each in self._found]


class _OfThread:
    """The graphs of a thread by stream and sizes while they are free; None after the first call."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], list[TensorCall] | None] = {}


class CapturedWhereFaster:
    """Calls that are captured if that is faster, which is measured at the second call of a set of
    sizes. Each thread has graphs of its own for each stream until it ends, as ONNX Runtime keeps
    them so, and the memory of a graph is in the order of one stream."""

    def __init__(self, plain: TensorCall, capture: Callable[[Sequence[Any]], TensorCall]) -> None:
        self._plain, self._capture = plain, capture
        self._here, self._lock = local(), Lock()
        self._threads: weakref.WeakSet[_OfThread] = weakref.WeakSet()

    def __call__(self, held: Sequence[Any]) -> list[Any]:
        known = self._known()
        sizes = (_stream(), *[each.shape for each in held])
        if sizes not in known:
            if self.count() < SIZES:
                known[sizes] = None
            return self._plain(held)
        free = known[sizes]
        if free is None:
            known[sizes] = []  # a failed capture is not tried again
            free = known[sizes] = self._choose(held)
        try:
            call = free.pop()
        except IndexError:
            return self._plain(held)
        found = call(held)
        free.append(call)
        return found

    def count(self) -> int:
        """The remembered sets of sizes of all threads."""
        with self._lock:
            return sum(len(each.known) for each in self._threads)

    def _known(self) -> dict[tuple[Any, ...], list[TensorCall] | None]:
        try:
            own: _OfThread = self._here.graphs
        except AttributeError:
            own = self._here.graphs = _OfThread()
            with self._lock:
                self._threads.add(own)
        return own.known

    def _choose(self, held: Sequence[Any]) -> list[TensorCall]:
        """The graph, if its results are the same and it is faster."""
        plain = self._plain(held)
        if sum(each.nbytes for each in (*held, *plain)) >= COPIED:
            return []
        try:
            with torch.inference_mode(False), torch.no_grad():  # the memory of a graph is written in every mode
                captured = self._capture(held)
            check_equal(captured(held), plain, lambda: None)
        except Exception:  # ONNX Runtime's errors share no base class, and Inductor raises those of its parts
            return []
        times = [[seconds(partial(call, held), True) for call in (self._plain, captured)] for _ in range(ROUNDS)]
        slow, replayed = map(statistics.median, zip(*times, strict=True))
        return [captured] if replayed < slow else []


def record(plain: TensorCall, held: Sequence[Any]) -> CapturedRun:
    """Calls for inputs like these as one of PyTorch's CUDA graphs, in the order of the current
    stream; other threads may ask for memory meanwhile.

    Raises the errors of the calls, and RuntimeError where something in them cannot be captured.
    """
    given = [copy_strided(each) for each in held]
    current = torch.cuda.current_stream(0)
    with TURN, torch.cuda.stream(current):  # if a capture fails, its own stream stays current:
        apart = torch.cuda.Stream(0, priority=-1)  # hence one that is hardly used
        apart.wait_stream(current)
        with torch.cuda.stream(apart):
            for _ in range(CAPTURING):  # libraries choose kernels and allocate memory at first calls
                plain(given)
        with _own_workspaces():
            graph, found = _graph_of(partial(plain, given), apart, _pool(current))
        current.wait_stream(apart)
        return CapturedRun(graph.replay, given, found, (graph,))


def _graph_of(call: Callable[[], list[Any]], stream: Any, pool: Any) -> tuple[Any, list[Any]]:
    """The graph of a call, and its results."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            return graph, call()
    except Exception:
        with suppress(RuntimeError):  # PyTorch has done it if the capture itself succeeded
            HERE.pools.clear()  # the pool stays in use for pinned memory, which cannot be freed
            torch._C._cuda_endAllocateToPool(0, pool)
            FAILED.append(graph)
            torch._C._cuda_releasePool(0, pool)
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
                torch.zeros(1, device="cuda:0")  # the generator believes to be captured until a capture succeeds
        raise


def _pool(stream: Any) -> Any:
    """The memory of all graphs of this thread on a stream: they run one after the other, and
    nobody reads a result later than the copy of it."""
    try:
        pools: dict[int, Any] = HERE.pools
    except AttributeError:
        pools = HERE.pools = {}
    key = int(stream.cuda_stream)
    if key not in pools:
        pools[key] = torch.cuda.graph_pool_handle()
    return pools[key]


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Give the products of a captured graph workspaces of the graph's own memory: PyTorch would
    free its own where it captures graphs itself, and a replay would read freed memory."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def _stream() -> int:
    """The address of the stream that is current on the GPU."""
    return int(torch.cuda.current_stream(0).cuda_stream) if torch.cuda.is_initialized() else 0
