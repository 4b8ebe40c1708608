"""A model in OpenVINO's CPU plugin: the only module that imports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from taso_mirage.devices.openvino.options import PLACE, SERIAL, properties
from taso_mirage.errors import RunFailed, RuntimeUnavailable
from taso_mirage.ir.terms import Tensor
from taso_mirage.targets.onnx_runtime import refused
from taso_mirage.targets.protocol import Arrays, Source, plain, timed, worked

INSTALL = "OpenVINO is not installed: pip install 'taso-mirage[openvino]'"
LEAVES = frozenset(("Parameter", "Input", "Output", "Result", "Const", "Constant"))
"""Kinds of nodes of a compiled model that do not run."""


class OpenVinoSession:
    """See `protocol.RuntimeSession`."""

    captures = False

    def __init__(self, source: Source, options: Mapping[str, str]) -> None:
        self._model = compiled_model(source, options)
        self._request = self._model.create_infer_request()
        self._timed = worked if SERIAL in options.items() else timed

    def run(self, inputs: Arrays) -> list[Any]:
        try:
            found = self._request.infer(self._feed(inputs), share_inputs=True, share_outputs=False)
            return [np.array(found[port]) for port in self._model.outputs]
        except Exception as error:
            raise _refused("run", error) from None

    def inputs(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for port in self._model.inputs:
            if port.get_partial_shape().is_dynamic:
                shape = port.get_partial_shape()
                raise RunFailed(f"the input {port.get_any_name()!r} has a dim without a fixed size: {shape}")
            dtype = np.dtype(port.get_element_type().to_dtype()).name
            found[port.get_any_name()] = Tensor(dtype, tuple(port.get_shape()))
        return found

    def prepared(self, inputs: Arrays) -> Callable[[], float]:
        feed = self._feed(inputs)
        self.run(inputs)
        return partial(self._timed, partial(self._request.infer, feed, share_inputs=True, share_outputs=False))

    def bound(self, inputs: Arrays) -> Callable[[], float]:
        return partial(self._timed, _Bound(self._model.create_infer_request(), self._feed(inputs)))

    def _feed(self, inputs: Arrays) -> dict[Any, Any]:
        """The arrays by the model's ports; a port has the names of all that is the same tensor."""
        return {port: inputs[next(n for n in port.get_names() if n in inputs)] for port in self._model.inputs}


class _Bound:
    """Runs with bound inputs and outputs."""

    def __init__(self, request: Any, feed: Mapping[Any, Any]) -> None:
        self.request = request
        self.kept = {port: np.ascontiguousarray(array) for port, array in feed.items()}
        try:
            for port, array in self.kept.items():
                request.set_tensor(port, _openvino().Tensor(array, shared_memory=True))
            self()
        except Exception as error:
            raise _refused("run", error) from None

    def __call__(self) -> None:
        self.request.start_async()
        self.request.wait()


def compiled_model(source: Source, options: Mapping[str, str]) -> Any:
    """An `openvino.CompiledModel`.

    Raises RuntimeUnavailable where OpenVINO is missing, RunFailed where it does not take the model.
    """
    core = _openvino().Core()
    try:
        return core.compile_model(core.read_model(plain(source)), PLACE, properties(options.items()))
    except Exception as error:  # OpenVINO raises RuntimeError for every problem
        raise _refused("load", error) from None


def openvino_nodes(source: Source, options: Mapping[str, str]) -> int:
    """The number of nodes of a compiled model that run."""
    found = compiled_model(source, options).get_runtime_model().get_ops()
    return sum(str(each.get_rt_info()["layerType"].astype(str)) not in LEAVES for each in found)


def openvino_version() -> str:
    """OpenVINO's version. Raises RuntimeUnavailable where it is missing."""
    return str(_openvino().__version__).partition("-")[0]


def _openvino() -> Any:
    try:
        import openvino
    except ImportError:
        raise RuntimeUnavailable(INSTALL) from None
    return openvino


def _refused(what: str, error: Exception) -> RunFailed:
    """The error of OpenVINO, without the places in its source that it names first."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from ")]
    return refused(what, RuntimeError(lines[0] if lines else error), "OpenVINO")
