"""A node with bodies in double precision: its bodies compute with float64 in place of other
floats."""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np
import onnx_ir as ir

from taso_mirage.onnx_io.bodies import host
from taso_mirage.onnx_io.originals import copy_attribute
from taso_mirage.onnx_io.walk import bodies, bodies_below, defined_values

DTYPES = frozenset({"to", "dtype", "output_dtype"})
"""Attributes that name a dtype of a result."""
NARROW = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
"""The dtypes of floats in whose place float64 computes."""
FORMAL = 1
"""The place of the condition among the inputs of a Loop's body."""


def in_double(node: ir.Node) -> ir.Node:
    """The node with float64 in its bodies, in no graph; the runtime may not support it."""
    made = host(node, [copy_attribute(a) for a in node.attributes.values()])
    for graph in bodies(made):
        _widen(graph)
    return made


def ends_by_numbers(node: ir.Node) -> bool:
    """Whether a node is a Loop whose steps end by a computed condition, or has one in its bodies:
    in another precision it may have another number of steps."""
    if node.op_type == "Loop":
        (body,) = bodies(node)
        goes_on, condition = body.outputs[0], body.inputs[FORMAL]
        made = goes_on.producer()
        kept = goes_on is condition or (made is not None and made.op_type == "Identity" and made.inputs[0] is condition)
        if not (kept or (made is not None and made.op_type == "Constant") or goes_on.is_initializer()):
            return True
    return any(ends_by_numbers(inner) for graph in bodies(node) for inner in graph)


def _widen(graph: ir.Graph) -> None:
    for value in defined_values(graph):
        if value.type is not None:
            value.type = _wide_type(value.type)
        if value.const_value is not None:
            value.const_value = _wide_tensor(value.const_value)
    for each in bodies_below(graph):
        for node in each:
            _widen_attributes(node.attributes)


def _widen_attributes(attributes: MutableMapping[str, ir.Attr]) -> None:
    """Replace dtypes and numbers; those of a node Constant become tensors."""
    for name, attribute in [*attributes.items()]:
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            attributes[name] = ir.AttrTensor(name, _wide_tensor(attribute.as_tensor()))
        elif name in DTYPES and ir.DataType(attribute.as_int()) in NARROW:
            attributes[name] = ir.AttrInt64(name, ir.DataType.DOUBLE.value)
        elif name in ("value_float", "value_floats"):
            del attributes[name]
            attributes["value"] = ir.AttrTensor("value", ir.Tensor(np.asarray(attribute.value, np.float64)))


def _wide_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float64), name=tensor.name) if tensor.dtype in NARROW else tensor


def _wide_type(type: ir.TypeProtocol) -> ir.TypeProtocol:
    if isinstance(type, (ir.SequenceType, ir.OptionalType)):
        return type.__class__(_wide_type(type.elem_type))
    return ir.TensorType(ir.DataType.DOUBLE) if type.dtype in NARROW else type
