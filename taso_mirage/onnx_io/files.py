"""Models in files: loading with clear errors, and saving that never leaves a half-written file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from taso_mirage.errors import InvalidModel, OutputError
from taso_mirage.model import Model
from taso_mirage.onnx_io.read import from_ir
from taso_mirage.onnx_io.write import to_ir

EXTERNAL_ABOVE = 1_500_000_000
"""Bytes of weights above which they go into a file beside the model (protobuf ends at 2 GB)."""


def load(path: str | Path) -> Model:
    """Read an ONNX file. Weights stay mapped. Raises InvalidModel with what is wrong and what to do."""
    path = Path(path)
    if not path.exists():
        raise InvalidModel(f"{path}: no such file")
    if path.is_dir():
        raise InvalidModel(f"{path} is a folder; name the .onnx file inside it")
    try:
        source = ir.load(path, format="protobuf")
    except MemoryError:
        raise
    except OSError as error:
        raise InvalidModel(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # protobuf and onnx-ir raise many kinds on damaged bytes
        raise InvalidModel(f"{path} is no ONNX model, or is truncated: {_first_line(error)}") from None
    try:
        _validate(source, path)
        return from_ir(source)
    except InvalidModel as error:
        raise InvalidModel(f"{path}: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        raise InvalidModel(f"{path} is damaged: {type(error).__name__}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _validate(source: ir.Model, path: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    opset = source.opset_imports.get("")
    if not source.opset_imports:
        raise InvalidModel("it imports no operator set, so it is no ONNX model, or it is truncated")
    if opset is not None and not 1 <= opset <= newest:
        raise InvalidModel(f"opset {opset} is not known (1 to {newest} are); convert the model or update onnx")
    for graph in source.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                _validate_external(value.const_value, path)


def _validate_external(tensor: ir.ExternalTensor, path: Path) -> None:
    location = Path(tensor.location)
    folder = path.resolve().parent
    file = (folder / location).resolve()
    if location.is_absolute() or not file.is_relative_to(folder):
        raise InvalidModel(f"the weight {tensor.name!r} points outside the model's folder: {tensor.location}")
    if not file.is_file():
        raise InvalidModel(f"the weight {tensor.name!r} is in {tensor.location}, which is missing beside the model")
    needed = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
    if file.stat().st_size < needed:
        raise InvalidModel(
            f"{tensor.location} has {file.stat().st_size} bytes; the weight {tensor.name!r} ends at {needed}: truncated"
        )


def save(model: Model, path: str | Path) -> list[Path]:
    """Write the model, atomically; large or external weights go to `NAME.data` beside it. Returns the files written."""
    path = Path(path)
    built = to_ir(model)
    tensors = [v.const_value for v in built.graph.initializers.values() if v.const_value is not None]
    external = any(isinstance(t, ir.ExternalTensor) for t in tensors)
    external = external or sum(t.nbytes for t in tensors) > EXTERNAL_ABOVE
    return write_files(built, path, external)


def write_files(built: ir.Model, path: Path, external: bool) -> list[Path]:
    """Write into a folder of its own beside the target, flush, then rename: data first, so that a model never lacks it."""
    data = f"{path.name}.data"
    try:
        with _workspace(path) as folder:
            ir.save(built, folder / path.name, format="protobuf", external_data=data if external else None)
            names = [data] if external and (folder / data).exists() else []
            written = []
            for name in [*names, path.name]:
                _flush(folder / name)
                os.replace(folder / name, path.parent / name)
                written.append(path.parent / name)
            return written
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise OutputError(f"cannot write {path}: {_first_line(error)}") from None


@contextmanager
def _workspace(path: Path) -> Iterator[Path]:
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: the folder {path.parent} does not exist")
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        yield Path(folder)


def _flush(file: Path) -> None:
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


def check_writable(path: Path) -> None:
    """Fail before the work, not after it, when the output cannot be written."""
    try:
        with _workspace(path) as folder:
            (folder / "probe").write_bytes(b"")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None


def checked(proto: Any) -> None:
    """onnx's own checker on serialized bytes or a path."""
    onnx.checker.check_model(proto)
