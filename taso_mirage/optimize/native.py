"""ONNX Runtime: the only module that imports it, but for its version. It runs in the child process (`child.py`): sessions and prepared
runs have numbers there.

From 1.29 on its wheels for Linux start a thread at import that sends usage data. It is off in processes that import this module first:
models are their users' own, and the thread is in the way of measurements. A value that ORT_DISABLE_TELEMETRY has is left as it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import RunFailed, RunRefused, RuntimeUnavailable
from taso_mirage.ir import Tensor
from taso_mirage.optimize.target import CPU, Target
from taso_mirage.runtime.register import carries_kernels, register

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
Arrays = Mapping[str, NDArray[Any]]
PLAIN = "-1"
"""The annotation of a run that neither captures nor replays a CUDA graph."""
SETTLED = 0.003
"""Seconds that a model runs before a run counts, where others ran before it."""


class NativeSession:
    """A model loaded at ONNX Runtime's full optimization level.

    On CUDA a run of the same inputs is captured as a CUDA graph and replayed, where the whole model runs there; `captures` says
    whether it does. With `alone` a model that would run partly on the CPU is refused; only with `library` kernels that a model carries
    are compiled and run, else their functions do. `apart`: weights that the source leaves out (`onnx_io.serialize_apart`).
    """

    def __init__(
        self,
        source: bytes | str,
        target: Target = CPU,
        alone: bool = False,
        library: bool = False,
        apart: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.target, self.captures, self._apart = target, target.gpu, _values(apart or {})
        self._graphs = count(1)
        if target.gpu:
            _load_libraries()
        try:
            self._session = _inference_session(source, target, self.captures, alone, library, self._apart)
        except RunFailed:
            if not target.gpu or alone:
                raise
            self.captures = False  # parts run on the CPU: no graph can be captured
            self._session = _inference_session(source, target, False, False, library, self._apart)
        if target.provider not in self._session.get_providers():
            raise RuntimeUnavailable(
                f"ONNX Runtime has no working {target.provider} on this machine; `taso-mirage doctor` shows what works"
            )

    def run(self, inputs: Arrays) -> list[Any]:
        """The outputs, in the order of the model."""
        try:
            return list(self._session.run(None, dict(inputs), _graph(PLAIN) if self.captures else None))
        except Exception as error:
            raise _refused("run", error) from None

    def inputs(self) -> dict[str, Tensor]:
        """The types of the inputs; dims that are not fixed are refused."""
        found: dict[str, Tensor] = {}
        for each in self._session.get_inputs():
            if not all(isinstance(d, int) for d in each.shape):
                raise RunFailed(f"the input {each.name!r} has a dim without a fixed size: {each.shape}")
            found[each.name] = Tensor(_dtype(each.type), tuple(each.shape))
        return found

    def prepared(self, inputs: Arrays) -> Callable[[], float]:
        """A function that runs the model on these inputs and returns the wall seconds; on CUDA they stay on the device."""
        feed = dict(inputs)
        if self.target.gpu:
            return self.bound(inputs)
        self.run(feed)

        def timed() -> float:
            start = time.perf_counter()
            self._session.run(None, feed)
            return time.perf_counter() - start

        return timed

    def bound(self, inputs: Arrays) -> Callable[[], float]:
        """As `prepared`, with inputs and outputs in place: a plain run takes a microsecond for each of them and copies every output,
        which a term within a model does not; a small term would seem to cost several times what it does."""
        if self.target.gpu:
            return _Bound(self._session, dict(inputs), str(next(self._graphs)) if self.captures else None)
        binding = self._session.io_binding()
        try:
            for name, array in inputs.items():
                binding.bind_cpu_input(name, array)
            for output in self._session.get_outputs():
                binding.bind_output(output.name)
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise _refused("run", error) from None

        def timed() -> float:
            start = time.perf_counter()
            self._session.run_with_iobinding(binding)
            return time.perf_counter() - start

        return timed


class _Bound:
    """Runs with inputs and outputs at fixed places on the device, as a CUDA graph asks for; every one is a graph of its own."""

    def __init__(self, session: Any, feed: dict[str, Any], graph: str | None) -> None:
        import onnxruntime

        self.session, self.options = session, None if graph is None else _graph(graph)
        outputs = session.run(None, feed, None if graph is None else _graph(PLAIN))
        self.binding = session.io_binding()
        self.kept = []
        for name, array in feed.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0)
            self.binding.bind_ortvalue_input(name, value)
            self.kept.append(value)
        for output, array in zip(session.get_outputs(), outputs, strict=True):
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0)
            self.binding.bind_ortvalue_output(output.name, value)
            self.kept.append(value)
        self.binding.synchronize_inputs()
        for _ in range(3):  # a graph is captured at the second run
            self()

    def __call__(self) -> float:
        start = time.perf_counter()
        try:
            self.session.run_with_iobinding(self.binding, self.options)
        except Exception as error:
            raise _refused("run", error) from None
        return time.perf_counter() - start


def _dtype(text: str) -> str:
    """Our name of ONNX Runtime's `tensor(float)`."""
    name = text.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name)


def optimized(content: bytes, target: Target, path: str) -> None:
    """Write the model that the runtime makes of a model, with its fusions and layouts, to a file."""
    _inference_session(content, target, False, False, True, {}, path)


def _graph(annotation: str) -> Any:
    """The options of a run that captures, or replays, the CUDA graph of this annotation."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", annotation)
    return options


def _load_libraries() -> None:
    """Find the CUDA libraries that came as Python packages."""
    import io

    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        with redirect_stdout(io.StringIO()):  # it prints what it does not find
            onnxruntime.preload_dlls()


def _values(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """As the runtime takes them: they stay where they are, for as long as a session has these."""
    from onnxruntime import OrtValue

    return {name: OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def _inference_session(
    source: bytes | str,
    target: Target,
    captures: bool,
    alone: bool,
    library: bool,
    apart: Mapping[str, Any],
    dump: str = "",
) -> Any:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    if dump:
        options.optimized_model_filepath = dump
    if alone:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if library and carries_kernels(source):
        register(options, source, cuda=target.gpu)
    provider: Any = target.provider
    if target.gpu:
        provider = (target.provider, {**dict(target.options), "enable_cuda_graph": "1" if captures else "0"})
    try:
        if apart:
            options.add_external_initializers(list(apart), list(apart.values()))
        return onnxruntime.InferenceSession(source, options, providers=[provider], enable_fallback=0)
    except Exception as error:  # onnxruntime's errors share no base class of its own
        raise _refused("load", error) from None


def _refused(what: str, error: Exception) -> RunFailed:
    short = "allocat" in str(error) or isinstance(error, MemoryError)
    return (RunFailed if short else RunRefused)(f"ONNX Runtime cannot {what} the model: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 400 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400]


def turn(run: Callable[[], float]) -> float:
    start = time.perf_counter()
    first = run()  # with cold caches: not counted
    if first > 10 * SETTLED:
        return run()
    counted: list[float] = []
    while len(counted) < 5:
        taken = run()
        if time.perf_counter() - start > SETTLED:
            counted.append(taken)
    return float(np.median(counted))


def providers() -> list[str]:
    """The execution providers that this ONNX Runtime was built with."""
    import onnxruntime

    return list(onnxruntime.get_available_providers())


def version() -> str:
    """ONNX Runtime's version."""
    import onnxruntime

    return str(onnxruntime.__version__)


# ---------------------------------------------------------------- what the child process keeps, by number

_NUMBERS = count(1)
_SESSIONS: dict[int, NativeSession] = {}
_RUNS: dict[int, Callable[[], float]] = {}


def open_session(
    source: bytes | str, target: Target, alone: bool, library: bool, apart: Mapping[str, NDArray[Any]]
) -> tuple[int, bool]:
    """The number of a new session, and whether it captures CUDA graphs."""
    session, number = NativeSession(source, target, alone, library, apart), next(_NUMBERS)
    _SESSIONS[number] = session
    return number, session.captures


def run(number: int, inputs: Arrays) -> list[Any]:
    return _SESSIONS[number].run(inputs)


def input_types(number: int) -> dict[str, Tensor]:
    return _SESSIONS[number].inputs()


def prepare(number: int, inputs: Arrays, bound: bool) -> int:
    """The number of a new prepared run of a session."""
    own = {name: np.array(array) for name, array in inputs.items()}  # where numpy would have put them
    session, made = _SESSIONS[number], next(_NUMBERS)
    _RUNS[made] = session.bound(own) if bound else session.prepared(own)
    return made


def once(number: int) -> float:
    """Seconds of one prepared run."""
    return _RUNS[number]()


def turn_of(number: int) -> float:
    """Seconds of a prepared run, see `turn`."""
    return turn(_RUNS[number])


def let_go(numbers: Iterable[int]) -> None:
    """Forget sessions and prepared runs."""
    for number in numbers:
        _SESSIONS.pop(number, None)
        _RUNS.pop(number, None)
