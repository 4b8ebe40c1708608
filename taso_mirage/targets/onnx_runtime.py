"""ONNX Runtime, for the targets that run on it: with `cuda/session.py` the only module that imports
it.

From version 1.29 on, its wheels for Linux start a thread at import that sends usage data. It is
disabled in processes that import this module first, because models are private and the thread
disturbs measurements. An existing value of ORT_DISABLE_TELEMETRY is kept.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import numpy as np

from taso_mirage.devices.cpu.options import FULL_LEVEL
from taso_mirage.devices.cuda.options import PROVIDER as CUDA
from taso_mirage.devices.stamp import Provider
from taso_mirage.errors import RunFailed, RunRefused, RuntimeUnavailable
from taso_mirage.ir.terms import Tensor, numpy_dtype
from taso_mirage.runtime.register import carries_kernels, register
from taso_mirage.targets.protocol import STANDARD, ZEROS, Arrays, Source, Trusted, plain

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
DOMAINS = STANDARD | {"com.microsoft"}
"""The domains of the runtime's operators."""
EXTENSIONS = {
    "bfloat16": (16, np.uint16),
    "float8_e4m3fn": (17, np.uint8),
    "float8_e4m3fnuz": (18, np.uint8),
    "float8_e5m2": (19, np.uint8),
    "float8_e5m2fnuz": (20, np.uint8),
}
"""Floats that numpy does not have: ONNX's numbers, and the integers of as many bits."""
PAIRS = {"uint4": 21, "int4": 22}
"""Integers of which two are in a byte, the first in the low bits: ONNX's numbers."""
WEIGHTS = "weights"
"""The file of large weights beside a model that the runtime wrote: protobuf ends at 2 GB."""


def inference_session(
    source: Source,
    providers: Sequence[Provider],
    alone: bool = False,
    apart: Mapping[str, Any] | None = None,
    dump: str = "",
    level: str = FULL_LEVEL,
    profile: str = "",
    threads: int = 0,
    resting: bool = False,
    packed: bool = True,
    beside: str = "/",
) -> Any:
    """An `onnxruntime.InferenceSession` at the runtime's full optimization level, or a lower one.

    `apart`: the result of `ort_values`; `dump`: a file for the model that the runtime makes of this
    one, with its weights beside it; `profile`: the beginning of the name of a file of its profiler;
    `threads`: of a run, with the caller's; 0: as many as there are cores; `resting`: threads sleep
    between runs; `packed`: weights are copied in the order in which kernels read them; `beside`:
    the folder in which the locations of weights of a source in bytes begin.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = resting_options() if resting else onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    if dump:
        options.optimized_model_filepath = dump
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    if not packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if alone:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if isinstance(plain(source), bytes):
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", beside)
    if apart:
        options.add_external_initializers(list(apart), list(apart.values()))
    return opened_session(source, providers, options)


def opened_session(
    source: Source, providers: Sequence[Provider], options: Any = None, threads: int = 0, level: str = FULL_LEVEL
) -> Any:
    """The only function that creates an `onnxruntime.InferenceSession`, also in a user's process,
    with the user's options, if given. `threads`: of a run, unless the options say so; `level`: the
    highest level of the runtime's optimizations.

    The library of kernels is registered only for a `Trusted` model; for other models the functions
    of the kernels run. A file is read as ONNX, independent of its name and first bytes.
    """
    import onnxruntime

    options = options or onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.intra_op_num_threads or threads
    highest = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.graph_optimization_level = min(options.graph_optimization_level, highest, key=int)
    options.add_session_config_entry("session.load_model_format", "ONNX")
    model = plain(source)
    if isinstance(source, Trusted) and carries_kernels(model):
        register(options, model, cuda=CUDA in {each if isinstance(each, str) else each[0] for each in providers})
    try:
        return onnxruntime.InferenceSession(model, options, providers=list(providers), enable_fallback=0)
    except Exception as error:  # the errors of onnxruntime have no common base class
        raise refused("load", error) from None


def check_provider(session: Any, provider: str) -> None:
    """Raise RuntimeUnavailable unless a session has the provider."""
    if provider not in session.get_providers():
        raise RuntimeUnavailable(
            f"ONNX Runtime has no working {provider} on this machine; `taso-mirage doctor` shows what works"
        )


def resting_options() -> Any:
    """Options of a session whose threads stop waiting for work when a run ends, so that they do not
    use the cores of others."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def ort_values(arrays: Arrays) -> dict[str, Any]:
    """The arrays as values of the runtime; they keep their addresses while a session has these
    values."""
    return {name: ort_value(array) for name, array in arrays.items()}


def ort_value(array: Any) -> Any:
    """An array in a form that the runtime accepts, also of dtypes that numpy does not have."""
    from onnxruntime import OrtValue

    whole = np.ascontiguousarray(array).reshape(np.shape(array))
    if whole.dtype.kind in "OUS":
        return _texts_value(whole)
    if whole.dtype.name in PAIRS:
        return _pairs_value(whole)
    if whole.dtype.name not in EXTENSIONS:
        return OrtValue.ortvalue_from_numpy(whole)
    number, bits = EXTENSIONS[whole.dtype.name]
    return OrtValue.ortvalue_from_numpy_with_onnx_type(whole.view(bits), number)


def _texts_value(array: Any) -> Any:
    """Texts as a value of the runtime. Its Python interface makes none, but a run gives them."""
    from taso_mirage.onnx_io.protos import model_holding  # a session's process starts without it

    return opened_session(model_holding(array), ["CPUExecutionProvider"]).run_with_ort_values(None, {})[0]


def _pairs_value(array: Any) -> Any:
    from onnxruntime import OrtValue

    value = OrtValue.ortvalue_from_shape_and_type(array.shape, PAIRS[array.dtype.name], "cpu")
    each = np.resize(array.astype(np.uint8) & 15, array.size + array.size % 2)
    content = (each[::2] | each[1::2] << 4).tobytes()
    ctypes.memmove(value.data_ptr(), content, len(content))
    return value


def run_of(session: Any, inputs: Arrays, options: Any = None) -> Callable[[], Sequence[Any]]:
    """A run whose inputs are converted already; its outputs are as the runtime gives them."""
    given = {np.asarray(array).dtype.name for array in inputs.values()}
    if (EXTENSIONS.keys() | PAIRS.keys()) & {*given, *map(_dtype, (each.type for each in session.get_outputs()))}:
        return partial(session.run_with_ort_values, None, ort_values(inputs), options)
    return partial(session.run, None, dict(inputs), options)


def run_session(session: Any, inputs: Arrays, options: Any = None) -> list[Any]:
    """The outputs of a run, as arrays; raises RunFailed."""
    try:
        values = run_of(session, inputs, options)()
    except Exception as error:
        raise refused("run", error) from None
    return [_array(value, _dtype(out.type)) for value, out in zip(values, session.get_outputs(), strict=True)]


def bind_there(binding: Any, name: str, array: Any, out: bool = False) -> Any:
    """Bind an input to a copy of an array on the GPU, or an output to memory of its size there,
    which is given back: the binding does not keep it."""
    from onnxruntime import OrtValue

    number, bits = EXTENSIONS.get(array.dtype.name, (array.dtype, array.dtype))
    value = OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape).view(bits), "cuda", 0)
    bind = binding.bind_output if out else binding.bind_input
    bind(name, "cuda", 0, number, array.shape, value.data_ptr())
    return value


def _array(value: Any, dtype: str) -> Any:
    """A run's output as an array, from its bytes if the runtime cannot convert its dtype."""
    if not hasattr(value, "data_ptr"):
        return value
    if dtype not in EXTENSIONS and dtype not in PAIRS:
        return value.numpy()
    shape, whole = tuple(value.shape()), numpy_dtype(dtype)
    if dtype in PAIRS:
        count = prod(shape)
        each = np.frombuffer(ctypes.string_at(value.data_ptr(), -(-count // 2)) if count else b"", np.uint8)
        return np.stack([each & 15, each >> 4], -1).reshape(-1)[:count].astype(whole).reshape(shape)
    content = ctypes.string_at(value.data_ptr(), prod(shape) * whole.itemsize) if prod(shape) else b""
    return np.frombuffer(content, whole).reshape(shape)


def fixed_input_types(session: Any) -> dict[str, Tensor]:
    """The types of the inputs; dims that are not fixed are refused."""
    found: dict[str, Tensor] = {}
    for each in session.get_inputs():
        if not all(isinstance(d, int) for d in each.shape):
            raise RunFailed(f"the input {each.name!r} has a dim without a fixed size: {each.shape}")
        found[each.name] = Tensor(_dtype(each.type), tuple(each.shape))
    return found


def _dtype(text: str) -> str:
    """Our name of ONNX Runtime's `tensor(float)`."""
    name = text.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name.replace("float8e", "float8_e"))


def runtime_nodes(source: Source, providers: Sequence[Provider], zeros: int = 0) -> int:
    """The number of nodes into which the runtime turns a model, with its fusions and layouts.
    `zeros`: the bytes of the file of zeros in which it has weights."""
    from taso_mirage.onnx_io.files import node_count  # a session's process starts without it

    with tempfile.TemporaryDirectory() as folder:
        return node_count(dumped_graph(source, providers, folder, zeros))


def dumped_graph(source: Source, providers: Sequence[Provider], folder: str, zeros: int = 0) -> str:
    """The file of the model that the runtime makes of this one, in an empty folder, without its
    large weights: writing them takes most of the time where there are some. `zeros`: the bytes of
    the file of zeros in which it has weights."""
    path = os.path.join(folder, "optimized.onnx")
    if zeros:
        with open(os.path.join(folder, ZEROS), "wb") as file:
            file.truncate(zeros)
    with suppress(OSError, NotImplementedError):  # a system without links gets the weights, too
        os.symlink(os.devnull, os.path.join(folder, WEIGHTS))
    inference_session(source, providers, dump=path, packed=False, beside=folder)
    return path


def refused(what: str, error: Exception, runtime: str = "ONNX Runtime") -> RunFailed:
    """The error of a runtime that cannot load or run a model."""
    short = "allocat" in str(error) or isinstance(error, MemoryError)
    return (RunFailed if short else RunRefused)(f"{runtime} cannot {what} the model: {first_line(error)}")


PLACE = re.compile(r"/\S*onnxruntime\S*:\d+ [^()]*\([^()]*\)(?: const)?(?: \[with [^\]]*\])? ")
"""A pattern of the source position and function at the beginning of the runtime's errors."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 400 characters, without places in the runtime's
    source: its message on dims comes after them."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return PLACE.sub("", line)[:400]


def installed_providers() -> list[str]:
    """The execution providers that this ONNX Runtime was built with."""
    import onnxruntime

    return list(onnxruntime.get_available_providers())


def starts(content: bytes, provider: str) -> bool:
    """Whether a session on a model really uses a provider here."""
    from taso_mirage.targets.cuda.libraries import load_libraries

    if provider not in ("CPUExecutionProvider", "AzureExecutionProvider"):
        load_libraries()
    try:
        check_provider(inference_session(content, [provider]), provider)
    except RuntimeUnavailable:
        return False
    return True


def onnx_runtime_version() -> str:
    """ONNX Runtime's version."""
    import onnxruntime

    return str(onnxruntime.__version__)
