"""Sessions as a function of tensors: they read their memory, and give tensors of PyTorch. A call
costs microseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from taso_mirage.errors import Unsupported
from taso_mirage.targets.cuda.session import PLAIN, graph_run
from taso_mirage.torch.cuda_graphs import TURN, CapturedRun, CapturedWhereFaster

INTEGERS = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool
FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
DTYPES = {each: int(from_torch_dtype(each)) for each in (*INTEGERS, *FLOATS)}
"""ONNX's numbers of PyTorch's dtypes."""
NAMED = {f"tensor({str(dtype).removeprefix('torch.')})": dtype for dtype in DTYPES} | {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
}
"""PyTorch's dtypes by ONNX Runtime's names of types."""
NOWHERE = 256
"""The address of a result without elements: a binding takes no 0."""
ALIGNED = 16
"""Bytes that kernels on a GPU read at once; they end the process if memory is not aligned to
that."""
DimPlace = tuple[int, int]
"""An input and one of its dims, by their numbers."""


class Calls(Protocol):
    """Calls of a session; they may come from several threads."""

    @property
    def owning(self) -> bool:
        """Whether results are in memory that PyTorch allocated, so that no two share memory."""

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """The results on these tensors and integers, in the session's order; raises ONNX Runtime's
        errors."""


class HostCalls:
    """Calls on a CPU, through arrays of numpy, without a copy.

    The memory of results is the runtime's, which keeps freed memory; the system would have to clear
    new memory that PyTorch asked for.
    """

    owning = False

    def __init__(self, session: Any) -> None:
        self._run = session.run
        self._names = [each.name for each in session.get_inputs()]

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        found = self._run(None, dict(zip(self._names, map(_array, given), strict=True)))
        return [torch.from_numpy(each) for each in found]


def _array(each: Any) -> Any:
    if isinstance(each, torch.Tensor):
        return (each.detach() if each.requires_grad else each).resolve_neg().numpy()
    return np.array(each, np.int64)


class BoundCalls:
    """Calls of sessions, one after the other, on the memory of tensors: each session reads inputs,
    and the results of the sessions before it, by name, and nothing is copied between them.

    `owning`: see `Calls`. On CUDA runs are in the order of `stream`, a `torch.cuda.Stream`. Where
    every session runs `alone` on the GPU, nobody waits for the end of a run, and runs are captured
    where that is faster.
    """

    def __init__(
        self,
        sessions: Sequence[OpenSession],
        inputs: Sequence[str],
        results: Sequence[str],
        device: Any,
        stream: Any = None,
        owning: bool = False,
    ) -> None:
        self._inputs, self._results, self._device, self._stream = inputs, results, device, stream
        self.owning = owning
        self._turn: AbstractContextManager[Any] = nullcontext() if stream is None else TURN
        self._parts = [_BoundSession(each, device, stream, owning) for each in sessions]
        self._whole = all(part.whole for part in self._parts)
        self._numbers = count(1)
        self._graphs = CapturedWhereFaster(partial(self._plain, waits=False), self._capture)

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        held = [each.detach() if isinstance(each, torch.Tensor) else torch.tensor(each) for each in given]
        with self._turn:
            return self._graphs(held) if self._whole else self._plain(held)

    def _plain(self, held: Sequence[Any], waits: bool = True) -> list[Any]:
        """The results of runs that are not captured."""
        values = dict(zip(self._inputs, held, strict=True))
        with self._stream_order():
            for part in self._parts:
                part.run(values, waits)
        return [values[name] for name in self._results]

    def _capture(self, held: Sequence[Any]) -> CapturedRun:
        """A captured run for inputs like these."""
        given = [torch.empty(each.shape, dtype=each.dtype, device=self._device) for each in held]
        for own, each in zip(given, held, strict=True):
            own.copy_(each)
        values, number = dict(zip(self._inputs, given, strict=True)), next(self._numbers)
        runs = [part.capture(values, number) for part in self._parts]

        def run() -> None:
            with self._stream_order():
                for each in runs:
                    each()

        return CapturedRun(run, given, [values[name] for name in self._results], tuple(values.values()))

    @contextmanager
    def _stream_order(self) -> Iterator[None]:
        """Runs inside come after the work on the current stream so far, and before its later
        work."""
        if self._stream is None:
            yield
            return
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.device(self._device):  # the runtime leaves its own device current
            self._stream.wait_stream(current)
            try:
                yield
            finally:
                current.wait_stream(self._stream)


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session; `alone`: whether all of it runs on the GPU, and runs may be captured there."""

    session: Any
    alone: bool = False


class _BoundSession:
    """Runs of one session, with bindings that are used again for the same memory.

    `allocates`: results are in memory that PyTorch allocated. `whole`: so are the operands and
    results of the runs, and the sizes of the results are known before a run.
    """

    def __init__(self, opened: OpenSession, device: Any, stream: Any, allocates: bool) -> None:
        self._session, self._device, self._stream, self._allocates = opened.session, device, stream, allocates
        self._options = {waits: graph_run(PLAIN, waits) if opened.alone else None for waits in (True, False)}
        self._names = [each.name for each in self._session.get_inputs()]
        self._places = _places(self._session, device)
        self._results = _results(self._session)
        self._sized = allocates and all(each.dims is not None for each in self._results)
        self.whole = opened.alone and self._sized and all(place == device for place in self._places)
        self._bindings: list[_Binding] = []

    def run(self, values: dict[str, Any], waits: bool) -> None:
        """Add the results of a run that is not captured to the values."""
        held = [self._there(values[name], place) for name, place in zip(self._names, self._places, strict=True)]
        try:
            binding = self._bindings.pop()
        except IndexError:  # other threads use all bindings
            binding = _Binding(self._session.io_binding())
        found = self._bind(binding, held)
        self._session.run_with_iobinding(binding.io, self._options[waits])
        values |= found or self._fetch(binding)
        self._bindings.append(binding)

    def capture(self, values: dict[str, Any], number: int) -> Callable[[], None]:
        """A captured run, as the graph of this number, on these values; its results are added to
        them."""
        binding = _Binding(self._session.io_binding())
        values |= self._bind(binding, [values[name] for name in self._names])
        return partial(self._session.run_with_iobinding, binding.io, graph_run(str(number), waits=False))

    def _bind(self, binding: _Binding, held: Sequence[Any]) -> dict[str, Any]:
        """The results, as tensors that the run writes; none if only the run tells their sizes."""
        for name, operand in zip(self._names, held, strict=True):
            binding.read(name, operand)
        if self._sized:
            return {each.name: binding.written(each, held, self._device) for each in self._results}
        for each in self._results:
            binding.io.bind_output(each.name, self._device.type, 0)
        return {}

    def _fetch(self, binding: _Binding) -> dict[str, Any]:
        """The results of a run, in memory that the runtime allocated."""
        values = zip(binding.io.get_outputs(), self._results, strict=True)
        found = {result.name: _tensor(value, result.dtype) for value, result in values}
        binding.io.clear_binding_outputs()  # the binding would keep them alive
        return {name: self._copy(each) for name, each in found.items()} if self._allocates else found

    def _copy(self, tensor: Any) -> Any:
        """The results in memory of PyTorch: the runtime gives its own memory to the next run,
        without regard to the streams that still read it."""
        made = torch.empty_like(tensor)
        with self._in_its_order():
            made.copy_(tensor)
        return made

    def _there(self, tensor: Any, place: Any) -> Any:
        """A tensor as the session reads it."""
        if tensor.device == place and tensor.is_contiguous() and not tensor.is_neg() and _is_aligned(tensor):
            return tensor
        with self._in_its_order():  # the memory is used again only after the run
            moved = tensor.to(place).contiguous().resolve_neg()
            return moved if _is_aligned(moved) else moved.clone()

    def _in_its_order(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _is_aligned(tensor: Any) -> bool:
    return tensor.device.type != "cuda" or int(tensor.data_ptr()) % ALIGNED == 0


def _places(session: Any, device: Any) -> list[Any]:
    """The memory in which a session reads each input.

    A value in other memory is copied when it is bound, and not again while the binding is used.
    Raises Unsupported where ONNX Runtime is older than 1.24, which does not tell.
    """
    if not hasattr(session, "get_input_memory_infos"):
        raise Unsupported("it needs ONNX Runtime 1.24 or newer, which says where a session reads its inputs")
    names = [each.name.lower() for each in session.get_input_memory_infos()]
    return [device if device.type in name and "pinned" not in name else torch.device("cpu") for name in names]


@dataclass(frozen=True, slots=True)
class _Result:
    """A result of a session: `dims` are numbers or places in the inputs, None where only a run can
    tell."""

    name: str
    dtype: Any
    dims: tuple[int | DimPlace, ...] | None

    def shape(self, held: Sequence[Any]) -> tuple[int, ...]:
        """The tensor's sizes for these inputs."""
        return tuple([dim if isinstance(dim, int) else held[dim[0]].shape[dim[1]] for dim in self.dims or ()])


def _results(session: Any) -> list[_Result]:
    places: dict[Any, DimPlace] = {}
    for i, given in enumerate(session.get_inputs()):
        for axis, dim in enumerate(given.shape):
            if isinstance(dim, str):
                places.setdefault(dim, (i, axis))
    found = []
    for each in session.get_outputs():
        dims = [dim if isinstance(dim, int) else places.get(dim) for dim in each.shape]
        known = [dim for dim in dims if dim is not None]
        found.append(_Result(each.name, NAMED.get(each.type), tuple(known) if len(known) == len(dims) else None))
    return found


@dataclass(slots=True)
class _Binding:
    """A binding with the memory that its inputs are bound to."""

    io: Any
    bound: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def read(self, name: str, tensor: Any) -> None:
        """Bind an input to a tensor's memory."""
        place = tensor.data_ptr(), tensor.shape
        if self.bound.get(name) != place:
            self.io.bind_input(name, tensor.device.type, 0, DTYPES[tensor.dtype], place[1], place[0])
            self.bound[name] = place

    def written(self, result: _Result, held: Sequence[Any], device: Any) -> Any:
        """A new tensor that a result is bound to."""
        made = torch.empty(result.shape(held), dtype=result.dtype, device=device)
        place = made.data_ptr() or NOWHERE
        self.io.bind_output(result.name, device.type, 0, DTYPES[made.dtype], made.shape, place)
        return made


def _tensor(value: Any, dtype: Any) -> Any:
    made = torch.from_dlpack(value)
    return made.view(torch.bool) if dtype == torch.bool else made
