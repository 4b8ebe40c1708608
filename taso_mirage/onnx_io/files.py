"""Models in files: loading with clear errors, and saving that never leaves a half-written file."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from taso_mirage.errors import InvalidModel, InvalidOption, OutputError
from taso_mirage.ir.model import Model
from taso_mirage.onnx_io.external import DataFiles, checked_tensor, opened_model
from taso_mirage.onnx_io.kernels import without_stamp
from taso_mirage.onnx_io.originals import in_memory
from taso_mirage.onnx_io.outputs import move, remove, same_file, workspace
from taso_mirage.onnx_io.protos import MAP_TYPES, from_proto, restore
from taso_mirage.onnx_io.read import as_data, from_ir
from taso_mirage.onnx_io.serialization import as_onnx, serialize, source_of
from taso_mirage.onnx_io.streaming import save_inside
from taso_mirage.onnx_io.walk import change_tensors, check_expansion, check_functions
from taso_mirage.onnx_io.write import to_ir
from taso_mirage.system.files import refuse_irregular

EXTERNAL_ABOVE = 1_500_000_000
"""The largest number of bytes of weights inside the model file; more are stored in a separate file
(protobuf is limited to 2 GB)."""
INSIDE_UP_TO = 256
"""The largest number of bytes of a weight that stays in the model file even if others are stored
separately."""

ADDRESS = re.compile(r"[a-z]+:/")
"""The beginning of an address, as a path has it."""
READ_FROM = "taso_mirage.read_from"
"""Where the path of a model that was read is kept in its `meta`."""


def load(path: str | Path, trust_kernels: bool = False) -> Model:
    """Read an ONNX file.

    Weights stay mapped. Raises InvalidModel with the problem and the next step.

    Fused kernels in the file are code. Unless they are trusted, their ordinary operators replace
    them, and `kernels.dropped` reports this.
    """
    return _loaded(Path(path), lambda source: from_ir(source, trust_kernels))


def load_as_data(path: Path) -> Model:
    """Load a model with everything that the file carries, kernels included, as data: none of it
    runs."""
    return _loaded(path, as_data)


def _loaded(path: Path, read: Callable[[ir.Model], Model]) -> Model:
    if not _exists(path):
        step = "download it, and name the file" if ADDRESS.match(str(path)) else "check the path"
        raise InvalidModel(f"{path}: no such file; {step}")
    if path.is_dir():
        raise InvalidModel(f"{path} is a folder; name the .onnx file inside it")
    with opened_model(path) as (file, data):
        source = _parsed(file, path)
        source.meta[READ_FROM] = str(path.resolve())
        without_stamp(source)
        return accepted(source, str(path), data.tensor, read)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or contains a zero byte
        return False


def accepted(
    source: ir.Model, name: str, tensors: Callable[[Any], Any], read: Callable[[ir.Model], Model] = from_ir
) -> Model:
    """The terms of a model from outside; every tensor passes through `tensors`.

    Messages of InvalidModel begin with the name.
    """
    try:
        _validate(source)
        change_tensors(source, tensors)
        _sort(source)
        return read(source)
    except InvalidModel as error:
        raise InvalidModel(f"{name}: {error}") from None
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RuntimeError,
        OSError,
    ) as error:
        raise InvalidModel(f"{name} is damaged: {type(error).__name__}: {_first_line(error)}") from None


def from_memory(given: onnx.ModelProto | ir.Model, trust_kernels: bool = False) -> Model:
    """The terms of a model in memory, which is not changed.

    Weights in files are read if an onnx-ir model states their folder; a ModelProto does not know
    its folder.
    """
    if isinstance(given, ir.Model):
        source = _copied(given)
    elif not isinstance(given, onnx.ModelProto):
        kinds = "an onnx.ModelProto, an onnx_ir.Model, or a path"
        raise InvalidOption(f"{type(given).__name__} is no model; give {kinds}")
    else:
        copy = onnx.ModelProto()
        copy.CopyFrom(given)
        source = _converted(copy, "the model")
    return accepted(source, "the model", _in_its_folder, lambda source: from_ir(source, trust_kernels))


def _copied(given: ir.Model) -> ir.Model:
    try:
        made = given.clone()
    except (RuntimeError, ValueError, LookupError) as error:
        raise InvalidModel(f"the model is damaged: {_first_line(_cause(error))}") from None
    made.meta.update(given.meta)
    return made


def _in_its_folder(tensor: Any) -> Any:
    if not isinstance(tensor, ir.ExternalTensor):
        return checked_tensor(tensor)
    if not str(tensor.base_dir):
        raise InvalidModel(
            f"the weight {tensor.name!r} lies in the file {tensor.location}; give the model's path instead"
        )
    with DataFiles.of(Path(tensor.base_dir)) as data:
        return data.tensor(tensor)


def like(model: Model, given: onnx.ModelProto | ir.Model, source: bool = False) -> onnx.ModelProto | ir.Model:
    """The model as an object of the kind that was given; with `source` as it was read."""
    if isinstance(given, ir.Model):
        return source_of(model) if source else to_ir(model)
    return onnx.ModelProto.FromString(serialize(model, source))


FORMATS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a PyTorch checkpoint or another zip archive", "torch.onnx.export(module, args, 'model.onnx')"),
    (4, b"TFL3", "a TensorFlow Lite model", "python -m tf2onnx.convert --tflite MODEL --output model.onnx"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as of Keras", "keras_model.export('model.onnx', format='onnx')"),
    (8, b"{", "a file of safetensors, which has weights and no graph", "torch.onnx.export of the module that loads it"),
    (0, b"GGUF", "a GGUF file, which has weights and no graph", "an exporter of the model's library"),
    (0, b"\x80", "a Python pickle, such as of PyTorch", "torch.onnx.export(module, args, 'model.onnx')"),
    (0, b"ftrtengine", "a TensorRT engine", "the ONNX model that it was built from"),
    (4, b"ORTM", "a model in ONNX Runtime's own format", "the ONNX model that it was converted from"),
)
"""Formats that are no ONNX: the offset and bytes that identify them, their name, and the way to an
ONNX model."""
FIRST = b"\x08"
"""The first byte of an ONNX model in a file, the tag of its version."""


def _parsed(file: BinaryIO, path: Path) -> ir.Model:
    head = file.read(16)
    file.seek(0)
    for offset, magic, name, remedy in FORMATS if not head.startswith(FIRST) else ():
        if head[offset:].startswith(magic):
            raise InvalidModel(f"{path} is {name}, and no ONNX model; export it first: {remedy}")
    try:
        proto = onnx.load(file, format="protobuf", load_external_data=False)
    except MemoryError:
        raise
    except OSError as error:
        raise InvalidModel(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # protobuf raises many kinds of errors for damaged bytes
        raise _damaged(str(path), error) from None
    return _converted(proto, str(path))


def _converted(proto: onnx.ModelProto, name: str) -> ir.Model:
    try:
        return from_proto(proto)
    except (MemoryError, InvalidModel):
        raise
    except Exception as error:  # onnx-ir also raises many kinds of errors
        raise _damaged(name, error) from None


def _damaged(name: str, error: Exception) -> InvalidModel:
    said = f"{name} is no ONNX model, or is truncated: {_first_line(_cause(error))}"
    return InvalidModel(f"{said}; download or export it again")


def _cause(error: BaseException) -> BaseException:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _validate(source: ir.Model) -> None:
    newest = onnx.defs.onnx_opset_version()
    opset = source.opset_imports.get("", source.opset_imports.get("ai.onnx"))
    if not source.opset_imports:
        raise InvalidModel(
            "it imports no operator set, so it is no ONNX model, or is truncated; download or export it again"
        )
    if opset is not None and not 1 <= opset <= newest:
        raise InvalidModel(f"opset {opset} is not known (1 to {newest} are); convert the model or update onnx")
    if not source.graph.outputs:
        raise InvalidModel("it has no outputs, so there is nothing to compute; export it again")
    check_functions(source)
    check_expansion(source)


def _sort(source: ir.Model) -> None:
    """Nodes after their operands.

    ONNX demands it; ONNX Runtime reads other models too, and its converter to half precision writes
    them.
    """
    seen: set[ir.Node | None] = {None}
    for node in RecursiveGraphIterator(source.graph):
        if any(x is not None and x.producer() not in seen for x in node.inputs):
            break
        seen.add(node)
    else:
        return
    try:
        source.graph.sort()
    except ValueError:
        raise InvalidModel("some of its nodes use each other's results in a circle") from None


def save(model: Model, path: str | Path, source: bool = False, without: Collection[str] = ()) -> list[Path]:
    """Write the model, atomically; large or external weights go to `NAME.data` beside it.

    Returns the files written.

    `source` and `without` are those of `serialization.as_onnx`.

    If weights of `model` were read from that very file, they are valid no more: load the new one.
    """
    path = Path(path)
    made = as_onnx(model, source, without)
    change_tensors(made, in_memory, attributes_only=True)
    tensors = [v.const_value for graph in made.graphs() for v in graph.initializers.values()]
    outside = {id(t) for t in tensors if t is not None and t.nbytes > INSIDE_UP_TO}
    change_tensors(made, lambda tensor: tensor if id(tensor) in outside else in_memory(tensor))
    tensors = [v.const_value for graph in made.graphs() for v in graph.initializers.values()]
    external = any(isinstance(t, ir.ExternalTensor) for t in tensors)
    external = external or sum(t.nbytes for t in tensors if t is not None) > EXTERNAL_ABOVE
    return write_files(made, path, external)


def _refuse_foreign_data(made: ir.Model, path: Path, data: Path) -> None:
    """Raise OutputError if the data file beside the output belongs to another model, so that it is
    not overwritten."""
    if not data.exists():
        return
    refuse_irregular(data)
    own = made.meta.get(READ_FROM) == str(path.resolve())
    tensors = [v.const_value for graph in made.graphs() for v in graph.initializers.values()]
    read = any(isinstance(t, ir.ExternalTensor) and Path(t.path).resolve() == data.resolve() for t in tensors)
    if (read and not own) or not path.exists():
        raise OutputError(
            f"cannot write {path}: {data.name} beside it belongs to another model; choose another output name"
        )


def write_files(made: ir.Model, path: Path, external: bool) -> list[Path]:
    """Write into a new folder beside the target, flush, then rename.

    The model is moved last, and its weight files never have the names of the old ones, so at any
    moment either the old model or the new one exists with its own weights.
    """
    if external:
        _refuse_foreign_data(made, path, path.parent / f"{path.name}.data")
    data, old = _free_name(path), _replaced_data(path)
    sources = [v.const_value for graph in made.graphs() for v in graph.initializers.values()]
    try:
        with workspace(path) as folder:
            if external:
                options = {"external_data": data, "size_threshold_bytes": INSIDE_UP_TO}
                ir.save(made, folder / path.name, format="protobuf", **options)
            else:
                save_inside(made, folder / path.name)
            if made.meta.get(MAP_TYPES):
                proto = onnx.load(folder / path.name, load_external_data=False)
                onnx.save(restore(proto, made), folder / path.name)
            names = [data] if external and (folder / data).exists() else []
            move(folder, path.parent, [*names, path.name])
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
    except OutputError:
        raise
    except Exception as error:  # onnx-ir and protobuf raise many kinds of errors for models that cannot be written
        raise OutputError(f"cannot write {path}: {_first_line(_cause(error))}") from None
    for tensor in sources if names else []:
        if isinstance(tensor, ir.ExternalTensor) and Path(tensor.path).resolve() in old:
            tensor.invalidate()  # its file goes
    remove(old if names else ())
    return [path.parent / name for name in [*names, path.name]]


def data_beside(path: Path) -> list[Path]:
    """The weight files that `write_files` writes beside a model."""
    pattern = re.compile(re.escape(path.name) + r"(\.[0-9a-f]{8})?\.data")
    return [each for each in sorted(path.parent.glob("*.data")) if pattern.fullmatch(each.name)]


def _free_name(path: Path) -> str:
    """The name of a model's file of weights; another one where there is such a file already."""
    first = f"{path.name}.data"
    return f"{path.name}.{secrets.token_hex(4)}.data" if (path.parent / first).exists() else first


def _replaced_data(path: Path) -> set[Path]:
    """The files of `data_beside` that hold weights of the model at a path and of no other model
    there."""
    there = data_beside(path)
    if not there:
        return set()
    used = [_named(each) for each in path.parent.glob("*.onnx") if not same_file(each, path)]
    own = _named(path)
    return {each.resolve() for each in there if each in own and not any(each in others for others in used)}


def _named(path: Path) -> list[Path]:
    """The files of a model, without those that cannot be read."""
    try:
        return files_of(path) if path.is_file() else []
    except InvalidModel:
        return []


def save_proto(proto: onnx.ModelProto, path: Path, external: bool) -> None:
    """Write a model as it is, atomically; if it is to be external, its large tensors to `NAME.data`
    beside it."""
    data, old = _free_name(path), _replaced_data(path)
    refuse_irregular(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with workspace(path) as folder:
            onnx.save(proto, folder / path.name, save_as_external_data=external, location=data if external else None)
            names = [data] if external else []
            move(folder, path.parent, [*names, path.name])
        remove(old if external else ())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None


def data_files(model: Model) -> set[Path]:
    """The files beside a model that its weights were read from."""
    found: set[Path] = set()

    def look(tensor: Any) -> Any:
        if isinstance(tensor, ir.ExternalTensor):
            found.add(Path(tensor.path).resolve())
        return tensor

    change_tensors(model.header, look)
    return found


def files_of(path: Path) -> list[Path]:
    """A model's file, and those beside it that its weights lie in, by name; InvalidModel where it
    cannot be read."""
    places: set[str] = set()

    def look(tensor: Any) -> Any:
        if isinstance(tensor, ir.ExternalTensor):
            places.add(str(tensor.location))
        return tensor

    with opened_model(path) as (file, _):
        change_tensors(_parsed(file, path), look)
    return [path, *(path.parent / place for place in sorted(places))]


def checked(proto: bytes | str) -> None:
    """onnx's own checker on a serialized model or a path; InvalidModel with its first line."""
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise InvalidModel(f"onnx's checker rejects the model: {_first_line(error)}") from None


def node_count(path: str) -> int:
    """How many nodes the graph of a file has."""
    import onnx

    return len(onnx.load(path, load_external_data=False).graph.node)
