"""Files and the targets on which they were measured: the stamp of a result, and opening a file as
it was measured."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from taso_mirage.devices import stamp
from taso_mirage.devices.stamp import Stamp
from taso_mirage.errors import InvalidOption
from taso_mirage.ir.model import Model
from taso_mirage.onnx_io.originals import copy_model
from taso_mirage.runtime.register import metadata
from taso_mirage.targets.known import target as target_named
from taso_mirage.targets.protocol import Target, Trusted


def stamped(model: Model, target: Target) -> Model:
    """The model with the stamp of the target that it was measured on.

    A file without one is for the CPU, where all sessions are alike.
    """
    if target.stamp == Stamp():
        return model
    header = copy_model(model.header, model.header.graph)
    header.metadata_props.update(target.stamp.metadata())
    return replace(model, header=header)


def session(
    model: str | Path | bytes,
    target: str | None = None,
    *,
    trust_kernels: bool = False,
    cuda_graph: bool = False,
    options: Any = None,
) -> Any:
    """A session on a file that `taso-mirage optimize` wrote, or on its bytes, as it was measured:
    an `onnxruntime.InferenceSession` with the provider and its options, or for openvino an
    `openvino.CompiledModel`.

    `target`: another target than that of the file, with its default options. `trust_kernels`:
    compile and run the fused kernels in the file. **This runs code from the file: use it only for
    models that you trust.** Without it the kernels' functions of ordinary operators run.
    `cuda_graph`: capture runs as a CUDA graph if the whole model runs on the GPU, as in the
    measurement. Inputs and outputs must then be bound (`io_binding`), because a plain `run` would
    return the outputs of the first run again. `options`: your own `onnxruntime.SessionOptions`.

    Raises InvalidModel for a file that requests unknown options, InvalidOption for anything but a
    file, and RuntimeUnavailable if its runtime is missing.
    """
    if not isinstance(model, str | PathLike | bytes):
        given = type(model).__name__
        raise InvalidOption(f"{given} is no file; give its path, or the bytes of a model: model.SerializeToString()")
    source = model if isinstance(model, bytes) else fspath(model)
    wanted = _wanted(source, target)
    return target_named(wanted.target).opened(Trusted(source) if trust_kernels else source, wanted, cuda_graph, options)


def _wanted(source: str | bytes, name: str | None) -> Stamp:
    """The stamp by which a file is opened.

    Raises InvalidModel for a file that is no ONNX: runtimes read other formats, too.
    """
    said = metadata(source)
    return (stamp.read_stamp(said) or Stamp()) if name is None else target_named(name).stamp


def opening(path: Path, made: Stamp, kernels: bool) -> str:
    """The line of Python that opens a file as it was measured."""
    said = [repr(str(path))]
    said += ["trust_kernels=True"] if kernels else []
    said += ["cuda_graph=True"] if made.graph else []
    return f"taso_mirage.session({', '.join(said)})"
