"""A model in ONNX Runtime's CUDA provider.

If the whole model runs on the GPU, a run is captured as a CUDA graph and replayed; inputs and
outputs stay on the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

from taso_mirage.devices.cuda.options import DEFAULT, EXACT_SIZES, GRAPH, PROVIDER, ROUNDED, TF32, USER_STREAM
from taso_mirage.devices.stamp import Stamp, read_stamp
from taso_mirage.errors import RunFailed
from taso_mirage.ir.terms import Tensor
from taso_mirage.runtime.register import metadata
from taso_mirage.targets.cuda.libraries import load_libraries
from taso_mirage.targets.onnx_runtime import (
    bind_there,
    check_provider,
    fixed_input_types,
    inference_session,
    ort_values,
    refused,
    run_session,
)
from taso_mirage.targets.protocol import Arrays, Source, plain

PLAIN = "-1"
"""The annotation of a run that neither captures nor replays a CUDA graph."""


class CudaSession:
    """See `protocol.RuntimeSession`.

    If operands are rounded to TF32, `run` uses a second session that does not round.
    """

    def __init__(self, source: Source, options: dict[str, str], alone: bool, apart: Arrays) -> None:
        self._apart, self._graphs = ort_values(apart), count(1)
        load_libraries()
        self._session, self.captures = self._opened(source, options, alone)
        self._exact = self._session
        if ROUNDED in options.items():
            self._exact, _ = self._opened(source, {**options, TF32: "0"}, alone)

    def _opened(self, source: Source, options: dict[str, str], alone: bool) -> tuple[Any, bool]:
        """A session, and whether its runs can be captured."""
        try:
            found, captures = inference_session(source, [_provider(options, "1")], alone, self._apart), True
        except RunFailed:
            if alone:
                raise
            # parts of the model run on the CPU, so no graph can be captured
            found, captures = inference_session(source, [_provider(options, "0")], False, self._apart), False
        check_provider(found, PROVIDER)
        return found, captures

    def run(self, inputs: Arrays) -> list[Any]:
        return run_session(self._exact, inputs, graph_run(PLAIN) if self.captures else None)

    def inputs(self) -> dict[str, Tensor]:
        return fixed_input_types(self._session)

    def prepared(self, inputs: Arrays) -> Callable[[], float]:
        return self.bound(inputs)

    def bound(self, inputs: Arrays) -> Callable[[], float]:
        if not self.captures:
            return _Bound(self._session, dict(inputs), None)
        try:
            return _Bound(self._session, dict(inputs), str(next(self._graphs)))
        except RunFailed:  # a result that depends on no input is copied, which a graph cannot contain
            return _Bound(self._session, dict(inputs), PLAIN)


class _Bound:
    """Runs with inputs and outputs at fixed addresses on the device, as CUDA graphs require; each
    run has its own graph."""

    def __init__(self, session: Any, feed: dict[str, Any], graph: str | None) -> None:
        self.session, self.options = session, None if graph is None else graph_run(graph)
        outputs = run_session(session, feed, None if graph is None else graph_run(PLAIN))
        self.binding = session.io_binding()
        self.kept = [bind_there(self.binding, name, array) for name, array in feed.items()]
        for output, array in zip(session.get_outputs(), outputs, strict=True):
            self.kept.append(bind_there(self.binding, output.name, array, out=True))
        self.binding.synchronize_inputs()
        for _ in range(3):  # a graph is captured at the second run
            self()

    def __call__(self) -> float:
        start = time.perf_counter()
        try:
            self.session.run_with_iobinding(self.binding, self.options)
        except Exception as error:
            raise refused("run", error) from None
        return time.perf_counter() - start


def session_on_stream(model: Source, stream: int, tf32: bool) -> tuple[Any, bool]:
    """A session of this process on a file, with its kernels if it is `Trusted`. Its runs are
    ordered on a CUDA stream, given by its address. The second result is whether the whole model
    runs on the GPU: then runs can be captured as CUDA graphs (`graph_run`), but not on CUDA's
    default stream.

    `tf32`: products and convolutions in single precision may round their operands to 10 bits.
    Raises RunFailed, RuntimeUnavailable.
    """
    made = dict((read_stamp(metadata(plain(model))) or Stamp("cuda", DEFAULT)).options)
    options = {**made, USER_STREAM: str(stream), **EXACT_SIZES, TF32: str(int(tf32))}
    load_libraries()
    try:
        found, alone = inference_session(model, [_provider(options, "1")], alone=True), True
    except RunFailed:
        found, alone = inference_session(model, [_provider(options, "0")]), False
    check_provider(found, PROVIDER)
    return found, alone


def _provider(options: dict[str, str], graph: str) -> tuple[str, dict[str, str]]:
    return PROVIDER, {**options, GRAPH: graph}


def graph_run(annotation: str, waits: bool = True) -> Any:
    """The options of a run that captures, or replays, the CUDA graph of this annotation, and waits
    for the GPU or does not."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    if not waits:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    options.add_run_config_entry("gpu_graph_id", annotation)
    return options
