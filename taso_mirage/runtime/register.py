"""Loading a model with its kernels: `providers = register(options, model)`; and the metadata of the
file, read without loading it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taso_mirage.devices import stamp
from taso_mirage.devices.stamp import Provider, Stamp
from taso_mirage.errors import InvalidModel, RuntimeUnavailable
from taso_mirage.runtime.compilation import compile_kernels, library

PLAN_FORMAT = 1
"""The version of plans and metadata; cpp/plan.h has the same."""
FORMAT_KEY = "taso_mirage.format"
SOURCE_KEY = "taso_mirage.cpp."
"""The prefix of the metadata key of a kernel's C++; the name of its function follows."""
_Source = bytes | str | Path


def register(options: Any, model: _Source | None = None, *, cuda: bool | None = None) -> list[Provider]:
    """Let sessions with these `onnxruntime.SessionOptions` run a model's kernels; without this call
    they run the functions instead. Returns the providers with the options with which the model was
    measured, without a CUDA graph (see `taso_mirage.session`): `onnxruntime.InferenceSession(model,
    options, providers=register(options, model))`.

    `model` is the file or its bytes. Its kernels for the CPU, in C++, are compiled once for this
    machine. **Registration compiles and runs code from the model, as loading any custom-operator
    library does: register only models that you trust.** Without `model` only kernels for CUDA are
    available, which are already compiled.

    `cuda`: whether the session has the CUDA provider; None: whether the machine has a GPU. For a
    session on the CPU of a machine with a GPU, pass False; then ONNX Runtime uses the functions of
    the nodes for CUDA.

    Raises InvalidModel for kernels of a newer version and for unknown options, and
    RuntimeUnavailable without a C++ compiler or with an ONNX Runtime before 1.18.
    """
    wanted = _wanted(model, cuda)
    kernels = None if model is None else build_kernels(model)
    if kernels is not None:
        options.add_session_config_entry("taso_mirage.kernels", str(kernels))
    if cuda is not None:
        options.add_session_config_entry("taso_mirage.cuda", str(int(cuda)))
    try:
        options.register_custom_ops_library(str(library()))
    except Exception as error:  # the errors of onnxruntime have no common base class
        raise RuntimeUnavailable(f"ONNX Runtime refuses the kernels' library: {error}") from None
    return wanted.providers()


def _wanted(model: _Source | None, cuda: bool | None) -> Stamp:
    """The model's stamp, unless the session has another provider."""
    found = None if model is None else stamp.read_stamp(metadata(model))
    if cuda is None:
        return found or Stamp()
    named = "cuda" if cuda else "cpu"
    return found if found is not None and found.target == named else Stamp(named, stamp.DEFAULTS[named])


def carries_kernels(model: _Source) -> bool:
    """Whether a model has nodes that need `register`."""
    return FORMAT_KEY in metadata(model)


def build_kernels(model: _Source, folder: Path | None = None) -> Path | None:
    """Compile the C++ kernels of a model for this machine: a library, or None if the model has
    none.

    A program without Python names the file in the session's config entry `taso_mirage.kernels`,
    then registers `library()`. Raises as `register`.
    """
    from taso_mirage.emit.cpu.native_kernel import FLAGS

    known = metadata(model)
    version = known.get(FORMAT_KEY, str(PLAN_FORMAT))
    if version != str(PLAN_FORMAT):
        raise InvalidModel(
            f"the model's kernels have format {version}, this version reads {PLAN_FORMAT}; update taso-mirage"
        )
    sources = [text for key, text in sorted(known.items()) if key.startswith(SOURCE_KEY)]
    return compile_kernels(sources, FLAGS, folder) if sources else None


def metadata(model: _Source) -> dict[str, str]:
    """The metadata of an ONNX file.

    Only that is read: a model may have gigabytes. Raises InvalidModel where it is no ONNX file.
    """
    try:
        if isinstance(model, bytes):
            return dict(_entries(memoryview(model)))
        with Path(model).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            view = memoryview(content)
            try:
                return dict(_entries(view))
            finally:
                view.release()
    except FileNotFoundError:
        raise InvalidModel(f"{model!s}: no such file; check the path") from None
    except (OSError, ValueError, IndexError) as error:
        shown = f"{len(model)} bytes" if isinstance(model, bytes) else model
        raise InvalidModel(
            f"{shown}: the metadata cannot be read, so it is no ONNX model, or is truncated: {error}"
        ) from None


METADATA, KEY, VALUE = 14, 1, 2
"""Fields of ModelProto and of StringStringEntryProto."""


def _entries(view: memoryview) -> Iterator[tuple[str, str]]:
    for field, start, end in _fields(view, 0, len(view)):
        if field == METADATA:
            entry = {f: bytes(view[a:b]).decode() for f, a, b in _fields(view, start, end)}
            yield entry.get(KEY, ""), entry.get(VALUE, "")


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The number and the extent of every field with a length of a protobuf message."""
    while at < end:
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(view, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size, at = _varint(view, at)
            if at + size > end:
                raise ValueError(f"a field of {size} bytes at {at} ends behind {end}")
            yield tag >> 3, at, at + size
            at += size
        else:
            raise ValueError(f"no field can be of kind {kind}")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError(f"no number at {at}")
