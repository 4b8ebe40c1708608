"""The types that a file declares for its values, with the names that it has for dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir

from taso_mirage.ir.dims import Dim, symbols
from taso_mirage.ir.terms import Node, Tensor, numpy_dtype

DimNames: TypeAlias = Mapping[str, str | None]
"""For symbols of dims that a file names otherwise, the file's name; None where it has none."""
NOT_RENAMED: DimNames = MappingProxyType({})


def file_names(terms: Mapping[str, Node], inputs: Sequence[ir.Value]) -> DimNames:
    """The names in a file of the dims of its inputs, where they are no symbols: a name such as
    "batch.0" is no identifier. `terms`: the inputs by name."""
    found: dict[str, str | None] = {}
    for value in inputs:
        node = terms.get(str(value.name))
        shape = node.type.shape if node is not None and isinstance(node.type, Tensor) else None
        if shape is None or value.shape is None:
            continue
        for dim, said in zip(shape, value.shape, strict=True):
            text = None if isinstance(said, int) else said.value
            if not isinstance(dim, int) and str(dim) != text:
                found |= {str(dim): text, **{name: None for name in symbols(dim) if name != str(dim)}}
    return found


def inner_names(names: Mapping[Node, str], values: Mapping[str, ir.Value]) -> DimNames:
    """The names in a file of sizes that no input has, where they are no symbols: "u0 + 128", for
    example. `names` are those of the values of terms."""
    found: dict[str, str | None] = {}
    for node, name in names.items():
        value, type = values.get(name), node.type
        if (
            value is None
            or value.shape is None
            or not isinstance(type, Tensor)
            or len(type.shape or ()) != len(value.shape)
        ):
            continue
        for dim, said in zip(type.shape or (), value.shape, strict=True):
            text = None if isinstance(said, int) else said.value
            if text is not None and not text.isidentifier() and not isinstance(dim, int) and symbols(dim) == {str(dim)}:
                found[str(dim)] = text
    return found


def declare(value: ir.Value, type: Tensor, names: DimNames = NOT_RENAMED) -> None:
    """Set a value's type. A dim over symbols that the file names otherwise is left out, because a
    reader would take its names for those of other sizes."""
    try:
        string = type.dtype == "string"
        dtype = ir.DataType.STRING if string else ir.DataType.from_numpy(numpy_dtype(type.dtype))
    except TypeError:
        return  # sequences and similar types are left to the shape inference of the reader
    value.type = ir.TensorType(dtype)
    if type.shape is not None:
        value.shape = ir.Shape([_written(d, names) for d in type.shape])


def declare_unknown(value: ir.Value, type: Tensor, names: DimNames) -> None:
    """Set the type of a value that has sizes without a name, or no shape: a reader would name them
    otherwise than the declared values behind it."""
    free = any(not isinstance(dim, int) for dim in type.shape or ())
    if free and (value.shape is None or value.shape.has_unknown_dim()):
        declare(value, type, names)


def _written(dim: Dim, names: DimNames) -> int | str | None:
    if isinstance(dim, int):
        return dim
    text = str(dim)
    if not names or names.keys().isdisjoint({text, *symbols(dim)}):
        return text
    return names.get(text)
