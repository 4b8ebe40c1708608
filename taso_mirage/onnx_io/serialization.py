"""Models as ONNX's own objects and bytes: as they are, as they were read, or without some
attributes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from taso_mirage.errors import InvalidModel
from taso_mirage.ir.model import Model, Weight
from taso_mirage.onnx_io.external import FileOfZeros, FilesInPlace
from taso_mirage.onnx_io.originals import in_memory
from taso_mirage.onnx_io.protos import restore
from taso_mirage.onnx_io.walk import attributes_of, change_tensors, graphs_inside
from taso_mirage.onnx_io.write import to_ir

APART = frozenset(
    getattr(ir.DataType, name)
    for name in "FLOAT FLOAT16 DOUBLE INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL".split()
)
"""Types of weights that numpy has too."""


def source_of(model: Model) -> ir.Model:
    """The unchanged ONNX model that was read. Optimized models are compared with it, and it is
    written if no rewrite helps."""
    header: ir.Model = model.source or model.header
    try:
        copy = header.clone()
    except RuntimeError as error:  # values that nothing computes, in a function
        cause = str(error.__cause__ or error).strip().splitlines()
        raise InvalidModel(f"the model uses a value that it does not compute: {(cause or ['?'])[-1][:300]}") from None
    copy.meta.update(header.meta)
    return copy


def as_onnx(model: Model, source: bool = False, without: Collection[str] = ()) -> ir.Model:
    """A new ONNX model, or with `source` the one that was read; nodes `without` attributes of these
    names have their defaults."""
    made = source_of(model) if source else to_ir(model)
    for part in graphs_inside(made) if without else ():
        for attributes in attributes_of(part):
            for name in without:
                attributes.pop(name, None)
    return made


def serialize(model: Model, source: bool = False, without: Collection[str] = ()) -> bytes:
    """The ONNX file as bytes, weights inside; see `as_onnx`.

    ValueError above protobuf's 2 GB.
    """
    return _bytes(as_onnx(model, source, without))


def serialize_apart(
    model: Model,
    source: bool = False,
    without: Collection[str] = (),
    above: int = 1 << 12,
    files: FilesInPlace | FileOfZeros | None = None,
    aligned: int = 1,
) -> tuple[bytes, dict[str, Weight]]:
    """Serialize a model without the main graph's weights of more than `above` bytes.

    Those that lie in a file, at a multiple of `aligned` bytes, stay there if `files` are given, or
    are in a file of zeros. The others are returned by name: the model says that they lie in a file,
    which does not exist.

    Copying them is most of the work for a large model. A weight is the same object in all models
    that share it, and in the model as it was read.
    """
    made = as_onnx(model, source, without)
    outside, apart = list[str](), dict[str, Weight]()
    for name, value in made.graph.initializers.items():
        old = value.const_value
        if old is None or old.nbytes <= above:
            continue
        kept = None if files is None else files.tensor(old, aligned)
        if kept is None and old.dtype in APART:
            apart[name] = old
            kept = ir.ExternalTensor(
                name, 0, old.nbytes, old.dtype, shape=old.shape, name=name, doc_string=old.doc_string
            )
        if kept is not None:
            value.const_value = kept
            outside.append(name)
    return _bytes(made, outside), apart


def serialize_types(model: Model, source: bool = False, above: int = 1 << 20) -> bytes:
    """Serialize a model with the main graph's weights of more than `above` bytes as typed inputs,
    for a checker, which does not read numbers."""
    made = as_onnx(model, source)
    for name, value in list(made.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.nbytes <= above:
            continue
        del made.graph.initializers[name]
        value.const_value, value.type, value.shape = None, ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
        if not value.is_graph_input():
            made.graph.inputs.append(value)
    return _bytes(made)


def _bytes(made: ir.Model, outside: Iterable[str] = ()) -> bytes:
    kept = {id(made.graph.initializers[name].const_value) for name in outside}
    change_tensors(made, lambda tensor: tensor if id(tensor) in kept else in_memory(tensor))
    try:
        proto = ir.to_proto(made)
    except ir.serde.SerdeError as error:
        cause = str(error.__cause__ or error).strip().splitlines()
        raise InvalidModel(f"the model cannot be written: {(cause or ['?'])[0][:300]}") from None
    return bytes(restore(proto, made).SerializeToString(deterministic=True))
