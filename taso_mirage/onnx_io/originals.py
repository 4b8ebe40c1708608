"""Parts of the original model that are written unchanged: values, attributes with their bodies,
devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from taso_mirage.ir.model import StoredWeight
from taso_mirage.onnx_io.walk import bodies


def in_memory(tensor: Any) -> Any:
    """A tensor that does not point to a file beside the model; its bytes may still be mapped."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)


_TENSORS: WeakKeyDictionary[StoredWeight, ir.Tensor] = WeakKeyDictionary()


def as_tensor(weight: Any) -> Any:
    """A weight as a tensor of onnx-ir: the same one at every call."""
    if isinstance(weight, ir.TensorProtocol):
        return weight
    if weight not in _TENSORS:
        array = weight.numpy()
        _TENSORS[weight] = ir.Tensor(
            np.ascontiguousarray(array).reshape(array.shape)
        )  # numpy turns rank 0 into a vector
    return _TENSORS[weight]


def copy_model(old: ir.Model, graph: ir.Graph) -> ir.Model:
    """A model with another graph and all other parts of the old model; functions are copied."""
    made = ir.Model(
        graph,
        ir_version=old.ir_version,
        producer_name=old.producer_name,
        producer_version=old.producer_version,
        domain=old.domain,
        model_version=old.model_version,
        doc_string=old.doc_string,
        functions=[f.clone() for f in old.functions.values()],
        metadata_props=dict(old.metadata_props),
        device_configurations=old.device_configurations,
    )
    made.meta.update(old.meta)
    return made


def copy_value(old: ir.Value) -> ir.Value:
    """A graph input as it was."""
    shape = None if old.shape is None else old.shape.copy()
    value = ir.Value(
        name=old.name, type=old.type, shape=shape, doc_string=old.doc_string, metadata_props=dict(old.metadata_props)
    )
    value.meta.update(old.meta)
    return value


def copy_attribute(attribute: ir.Attr) -> ir.Attr:
    """An attribute whose bodies are clones."""
    if attribute.is_ref():
        return attribute
    if attribute.type == ir.AttributeType.GRAPH:
        clone = attribute.as_graph().clone(allow_outer_scope_values=True)
        return ir.AttrGraph(attribute.name, clone, doc_string=attribute.doc_string)
    if attribute.type == ir.AttributeType.GRAPHS:
        clones = [g.clone(allow_outer_scope_values=True) for g in attribute.as_graphs()]
        return ir.AttrGraphs(attribute.name, clones, doc_string=attribute.doc_string)
    return attribute


def recapture(new: ir.Node, captured: Mapping[ir.Value, ir.Value]) -> None:
    """Point the cloned bodies' uses of outer values to the values of the new model."""
    waiting = bodies(new)
    while waiting and captured:
        body = waiting.pop()
        for i, output in enumerate(body.outputs):
            if output in captured:
                body.outputs[i] = captured[output]
        for inner in body:
            for i, value in enumerate(inner.inputs):
                if value in captured:
                    inner.replace_input_with(i, captured[value])
            waiting += bodies(inner)


def placed_devices(old: ir.Node, values: Mapping[ir.Value | None, ir.Value | None]) -> tuple[Any, ...]:
    """The node's device configurations, which refer to the new values."""
    found = []
    for each in old.device_configurations:
        specs = (dataclasses.replace(s, value=values.get(s.value, s.value)) for s in each.sharding_specs)
        found.append(dataclasses.replace(each, sharding_specs=tuple(specs)))
    return tuple(found)
