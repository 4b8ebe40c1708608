"""A captured graph in ONNX Runtime: exported, optimized, compared with eager PyTorch, and run on
the memory that tensors have."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from taso_mirage.api import optimize
from taso_mirage.errors import InvalidOption, TasoMirageError, Unsupported
from taso_mirage.report.result import Result
from taso_mirage.targets.onnx_runtime import first_line
from taso_mirage.targets.packaging import session
from taso_mirage.torch.export import ChangesInPlace, OnnxForm, sizes_of, to_onnx
from taso_mirage.torch.halves import Captured, Halves, halves

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
_VERSION = attrgetter("_version")
NEAR = 8.0
"""How many times as far from float64 as eager PyTorch a result may be that differs from eager."""
COMPARED = 3
"""At so many sizes the first run is compared with eager PyTorch."""


class Program:
    """A graph with these weights as they are, for the sizes that it holds for.

    It computes what the inner half does; `outer` is the other one, if there is any. Raises
    Unsupported with the reason where the graph has to stay in eager PyTorch.
    """

    def __init__(self, captured: Captured, cut: Halves, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        self._device = _device(arguments)
        cut, self._module, model = _exported(captured, cut, arguments)
        self.outer, self._changed = cut.outer, cut.changed
        self._places, self._inputs = tuple(cut.weights.values()), cut.inputs
        self._weights = [arguments[i] for i in self._places]
        self._state = _state(self._weights)
        given = [arguments[i] for i in self._inputs]
        self._sizes, self._names = model.sizes, model.names
        reference = self._reference(given)
        self.result, self._session = self._optimized(model.model, given, options)
        self._outputs = [(each.name, each.type == "tensor(bool)") for each in self._session.get_outputs()]
        self._kept: frozenset[int] = frozenset()
        self._compared = {sizes_of(given)}
        found = self._run(given)
        _check_equal(found, reference, partial(_exact, self._module, given))
        self._kept = _kept(given, found, self._run(given))

    def stale(self) -> bool:
        """Whether a weight was changed in place after it became a part of the model."""
        return _state(self._weights) != self._state

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether it is for these weights and for the sizes of these inputs."""
        mine = all(arguments[i] is weight for i, weight in zip(self._places, self._weights, strict=True))
        return mine and self._sizes.hold([arguments[i] for i in self._inputs])

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        _check_apart(self._changed, arguments)
        given = [arguments[i] for i in self._inputs]
        found = self._run(given)
        if len(self._compared) < COMPARED and (sizes := sizes_of(given)) not in self._compared:
            _check_equal(found, self._reference(given), partial(_exact, self._module, given))
            self._compared.add(sizes)
        return found

    def _run(self, given: Sequence[Any]) -> list[Any]:
        binding, place = self._session.io_binding(), self._device.type
        held = [torch.tensor(each) if isinstance(each, int) else each.contiguous() for each in given]
        for name, each in zip(self._names, held, strict=True):
            binding.bind_input(name, each.device.type, 0, DTYPES[each.dtype], tuple(each.shape), each.data_ptr())
        for name, _ in self._outputs:
            binding.bind_output(name, place, 0)
        if place == "cuda":
            torch.cuda.current_stream().synchronize()  # ONNX Runtime has a stream of its own
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's errors share no base class of its own
            raise Unsupported(f"ONNX Runtime does not run it at {sizes_of(given)}: {first_line(error)}") from error
        found = [torch.from_dlpack(value) for value in binding.get_outputs()]
        found = [
            each.view(torch.bool) if truth else each for each, (_, truth) in zip(found, self._outputs, strict=True)
        ]
        return [each.clone() if i in self._kept else each for i, each in enumerate(found)]

    def _optimized(self, model: Any, given: Sequence[Any], options: Mapping[str, Any]) -> tuple[Result, Any]:
        """What the optimizer made of a model, measured and checked on these inputs too, and a
        session on it with its kernels."""
        asked = {"target": self._device.type, "inputs": [dict(zip(self._names, map(_array, given), strict=True))]}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            try:
                _, result = optimize(model, output=path, return_result=True, **asked, **options)
                return result, session(path, trust_kernels=True)
            except InvalidOption:
                raise
            except TasoMirageError as error:
                raise Unsupported(f"its model does not run: {error}") from error

    def _reference(self, given: Sequence[Any]) -> Any:
        """What eager PyTorch gives.

        A graph that draws random numbers is refused.
        """
        devices = [0] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.no_grad():
            before = _random(devices)
            found = self._module(*given)
            if any(not torch.equal(one, other) for one, other in zip(before, _random(devices), strict=True)):
                raise Unsupported("it draws random numbers (model.eval() turns dropout off)")
        return found


def _exported(captured: Captured, cut: Halves, arguments: Sequence[Any]) -> tuple[Halves, Any, OnnxForm]:
    """The halves, with those arguments outside of the inner one that the exporter finds to be
    changed in place; the inner half with its weights, and as a model."""
    module = cut.frozen(captured, arguments)
    given = [arguments[i] for i in cut.inputs]
    try:
        return cut, module, to_onnx(module, given, cut.free)
    except ChangesInPlace as changes:
        if cut.changed or not changes.weights <= set(cut.weights):  # more than arguments
            raise Unsupported(str(changes)) from changes
        places = {cut.inputs[i] for i in changes.inputs} | {cut.weights[name] for name in changes.weights}
        return _exported(captured, halves(captured, places), arguments)


def _check_apart(changed: Sequence[int], arguments: Sequence[Any]) -> None:
    """Refuse what is changed in place and shares memory with another argument."""
    memories = [each.untyped_storage().data_ptr() for each in arguments if isinstance(each, torch.Tensor)]
    for i in changed:
        if memories.count(arguments[i].untyped_storage().data_ptr()) > 1:
            raise Unsupported("it changes an argument in place that shares memory with another")


def _kept(given: Sequence[Any], first: Sequence[Any], second: Sequence[Any]) -> frozenset[int]:
    """The outputs whose memory is not theirs alone, as that of a constant: seen in two runs on the
    same inputs."""
    places = [each.data_ptr() for each in (*given, *first, *second) if isinstance(each, torch.Tensor)]
    return frozenset(i for i, each in enumerate(second) if each.numel() and places.count(each.data_ptr()) > 1)


def _random(devices: Sequence[int]) -> list[Any]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def _state(weights: Sequence[Any]) -> tuple[Any, ...]:
    """What differs when one of them was changed in place."""
    try:
        return tuple(map(_VERSION, weights)), tuple(map(torch.Tensor.data_ptr, weights))
    except RuntimeError:
        raise Unsupported("its weights were made in inference mode, so changes of them cannot be seen") from None


def _device(tensors: Sequence[Any]) -> Any:
    """The device of all tensors."""
    devices = {each.device for each in tensors if isinstance(each, torch.Tensor)}
    if len(devices) > 1:
        raise Unsupported(f"its tensors are on {' and '.join(sorted(map(str, devices)))}")
    device = devices.pop() if devices else torch.device("cpu")
    if device.type not in ("cpu", "cuda") or device.index:
        raise Unsupported(f"it is on {device}; cpu and cuda:0 are supported")
    if torch.is_autocast_enabled(device.type):
        raise Unsupported("autocast is on; give the model the dtype instead, as model.half()")
    unknown = [str(each.dtype) for each in tensors if isinstance(each, torch.Tensor) and each.dtype not in DTYPES]
    if unknown:
        raise Unsupported(f"it has a tensor of {unknown[0]}")
    return device


def _array(each: Any) -> Any:
    if isinstance(each, int):
        return np.array(each, np.int64)
    each = each.detach().cpu()
    if each.dtype == torch.bfloat16:
        return each.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return each.numpy()


def _check_equal(ours: Sequence[Any], theirs: Sequence[Any], exact: Callable[[], Sequence[Any] | None]) -> None:
    """Integers are equal; other numbers to half of their digits, of the largest, or nearly as close
    to float64 as those of eager PyTorch: the mean of a normalized batch is rounding alone."""
    for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            raise Unsupported(
                f"its result {i} is {one.dtype}{list(one.shape)}, in eager PyTorch {other.dtype}{list(other.shape)}"
            )
        if not other.is_floating_point():
            if not torch.equal(one, other):
                raise Unsupported(f"its result {i} is not equal to that of eager PyTorch")
            continue
        wide = [each.double() for each in (one, other)]
        finite = other.isfinite()
        largest = float(wide[1][finite].abs().max()) if finite.any() else 0.0
        tolerance = torch.finfo(other.dtype).eps ** 0.5 * largest
        if not torch.allclose(*wide, rtol=0.0, atol=tolerance, equal_nan=True):
            known = exact()
            if known is None or not _as_near(wide[0], wide[1], known[i]):
                error = float((wide[0] - wide[1]).abs().max())
                raise Unsupported(
                    f"its result {i} differs from eager PyTorch by {error:.3g}, the largest is {largest:.3g}"
                )


def _as_near(ours: Any, theirs: Any, exact: Any) -> bool:
    """Whether ours is as near to float64, but for a small factor; never where that is not
    finite."""
    if exact.dtype != torch.float64 or exact.shape != ours.shape:
        return False
    errors = [float((each - exact).abs().max()) for each in (ours, theirs)]
    return errors[0] <= NEAR * errors[1]


def _exact(module: Any, given: Sequence[Any]) -> Sequence[Any] | None:
    """What eager PyTorch gives in float64, if it runs so."""
    wide = [each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in given]
    try:
        with torch.no_grad():
            found: Sequence[Any] = copy.deepcopy(module).double()(*wide)
    except RuntimeError:  # a graph may name its dtype
        return None
    return found
