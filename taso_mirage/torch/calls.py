"""A session as a function of tensors: it reads their memory, and gives tensors of PyTorch. A call
costs microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch

from taso_mirage.targets.cuda.session import PLAIN, graph_run
from taso_mirage.torch.captured import CapturedRun, CapturedWhereFaster

DTYPES = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.bfloat16: 16,
}
"""ONNX's numbers of PyTorch's dtypes."""
NAMED = {f"tensor({str(dtype).removeprefix('torch.')})": dtype for dtype in DTYPES} | {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
}
"""PyTorch's dtypes by ONNX Runtime's names of types."""
NOWHERE = 256
"""The address of a result without elements: a binding takes no 0."""
DimPlace = tuple[int, int]
"""An input and one of its dims, by their numbers."""


class Calls(Protocol):
    """Calls of a session; they may come from several threads."""

    @property
    def owning(self) -> bool:
        """Whether results are in memory that PyTorch gave, so that none shares it with
        anything."""

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """The results on these tensors and integers, in the session's order; raises what ONNX
        Runtime raises."""


class HostCalls:
    """Calls on a CPU, through arrays of numpy, without a copy.

    The memory of results is the runtime's, which keeps what was let go; the system would have to
    clear what PyTorch asked for anew.
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
        return each.detach().numpy() if each.requires_grad else each.numpy()
    return np.array(each, np.int64)


class BoundCalls:
    """Calls on the memory that tensors have, with a binding that stays while the same memory comes
    again.

    On CUDA runs are in the order of `stream`, a `torch.cuda.Stream`. Where the whole model runs
    `alone` on the GPU, nobody waits for the end of a run, and runs are captured where that is
    faster.
    """

    def __init__(self, session: Any, device: Any, stream: Any = None, alone: bool = False) -> None:
        self._session, self._device, self._stream = session, device, stream
        self._unwaited = graph_run(PLAIN, waits=False) if alone else None
        self._waited = graph_run(PLAIN) if alone else None
        self._numbers = count(1)
        self._turn = Lock()
        self._names = [each.name for each in session.get_inputs()]
        self._places = _places(session, device)
        self._results = _results(session)
        self._bindings: list[_Binding] = []
        self.owning = device.type == "cuda" and all(each.dims is not None for each in self._results)
        self._whole = alone and self.owning and all(place == device for place in self._places)
        self._graphs = CapturedWhereFaster(self._plain, self._captured)

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        held = [each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in given]
        held = [each.detach().to(place).contiguous() for each, place in zip(held, self._places, strict=True)]
        return self._graphs(held) if self._whole else self._plain(held, self._waited)

    def _plain(self, held: Sequence[Any], options: Any = None) -> list[Any]:
        """The results of a run that is not captured."""
        binding = self._bindings.pop() if self._bindings else _Binding(self._session.io_binding())
        for name, each in zip(self._names, held, strict=True):
            binding.read(name, each)
        found = [binding.written(each, held, self._device) for each in self._results] if self.owning else []
        for each in self._results if not self.owning else ():
            binding.io.bind_output(each.name, self._device.type, 0)
        self._run(binding.io, options or self._unwaited)
        if not self.owning:
            pairs = zip(binding.io.get_outputs(), self._results, strict=True)
            found = [_tensor(value, result.dtype) for value, result in pairs]
            binding.io.clear_binding_outputs()  # it would keep them
        self._bindings.append(binding)
        return found

    def _captured(self, held: Sequence[Any]) -> CapturedRun:
        """A run that is captured, for inputs like these."""
        binding = _Binding(self._session.io_binding())
        given = [each.clone() for each in held]
        for name, each in zip(self._names, given, strict=True):
            binding.read(name, each)
        found = [binding.written(each, given, self._device) for each in self._results]
        return CapturedRun(
            partial(self._run, binding.io, graph_run(str(next(self._numbers)), waits=False)), given, found
        )

    def _run(self, io: Any, options: Any) -> None:
        """A run behind what the current stream does, and before what it will do; one at a time on
        a GPU, as another's would become a part of a graph that is captured."""
        if self._stream is None:
            self._session.run_with_iobinding(io, options)
            return
        current = torch.cuda.current_stream(self._device)
        with self._turn:
            self._stream.wait_stream(current)
            try:
                self._session.run_with_iobinding(io, options)
            finally:
                current.wait_stream(self._stream)


def _places(session: Any, device: Any) -> list[Any]:
    """Where a session reads each input.

    What lies elsewhere is copied when it is bound, and not again where the binding stays.
    """
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
        """Its sizes for these inputs."""
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
