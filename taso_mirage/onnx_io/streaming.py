"""Writing a model with its weights inside, one weight at a time. The bytes are those that protobuf
writes, with the memory of the largest weight instead of three times that of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from taso_mirage.onnx_io.serialization import APART

ABOVE = 1 << 16
"""The number of bytes from which a weight is written separately."""
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Numbers of fields: of a model's graph, of a graph's weights, and of a weight's bytes
(onnx.proto).

A message is its fields in the order of their numbers.
"""
LENGTH = 2
"""The wire type of a field whose length comes first (protobuf's encoding)."""


def save_inside(made: ir.Model, path: Path) -> None:
    """Write a model to a file; the values of its large weights are empty after it.

    Raises the errors of onnx-ir and protobuf.
    """
    apart: dict[str, Any] = {}
    for name, value in made.graph.initializers.items():
        old = value.const_value
        if old is not None and old.nbytes > ABOVE and old.dtype in APART and _is_raw(old):
            apart[name] = old
            value.const_value = ir.Tensor(np.zeros(0, old.dtype.numpy()), name=old.name, doc_string=old.doc_string)
            value.const_value.metadata_props.update(old.metadata_props)
    proto = ir.to_proto(made)
    weights = [_weight(each, apart.get(each.name)) for each in proto.graph.initializer]
    proto.graph.ClearField("initializer")
    graph = _split(proto.graph, INITIALIZER)
    parts = [*graph[:1], *(part for weight in weights for part in weight), *graph[1:]]
    before, after = _split(proto, GRAPH)
    with path.open("wb") as file:
        for part in (before, _field(GRAPH, sum(map(_size, parts))), *parts, after):
            file.write(part if isinstance(part, bytes) else part.tobytes())


def _is_raw(tensor: Any) -> bool:
    """Whether protobuf stores a tensor's bytes as they are in memory."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return bool(tensor.raw.HasField("raw_data"))
    return isinstance(tensor, ir.Tensor)  # its values are in memory


def _weight(proto: Any, tensor: Any) -> list[Any]:
    """The parts of a weight in its graph, whose bytes come from a tensor, if there is one."""
    if tensor is None:
        whole = proto.SerializeToString(deterministic=True)
        return [_field(INITIALIZER, len(whole)), whole]
    proto.ClearField("dims")
    proto.dims.extend(tensor.shape.numpy())
    before, after = _split(proto, RAW_DATA)
    raw = _field(RAW_DATA, tensor.nbytes)
    length = len(before) + len(raw) + tensor.nbytes + len(after)
    return [_field(INITIALIZER, length), before, raw, tensor, after]


def _split(message: Any, number: int) -> tuple[bytes, bytes]:
    """A message's bytes before and after a field, without it."""
    halves = []
    for before in (True, False):
        half = type(message)()
        half.CopyFrom(message)
        for field in message.DESCRIPTOR.fields:
            if field.number == number or (field.number < number) != before:
                half.ClearField(field.name)
        halves.append(half.SerializeToString(deterministic=True))
    return halves[0], halves[1]


def _size(part: Any) -> int:
    return len(part) if isinstance(part, bytes) else int(part.nbytes)


def _field(number: int, length: int) -> bytes:
    """The beginning of a field of a length: its number, and its length, in groups of 7 bits from
    the lowest on."""
    found = bytearray((number << 3 | LENGTH,))
    while length > 0x7F:
        found.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*found, length))
