"""Conversion between ONNX files and onnx-ir. Data that onnx-ir cannot represent (sparse weights,
map types) bypasses it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from taso_mirage.errors import InvalidModel

MOST_DENSE = 1 << 28
"""The largest number of elements of a sparse weight."""
MAP_TYPES = "taso_mirage.map_types"
"""Key in `meta` of a header: the types, by value name, that onnx-ir has no class for, as protobuf
bytes."""


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """onnx-ir's model.

    Sparse weights become dense, as in every runtime. `proto` is changed.
    """
    if proto.training_info:
        raise InvalidModel("it carries training graphs; export it for inference")
    for text in _texts(proto):
        if not isinstance(text, str):  # protobuf returns text that is not UTF-8 as bytes
            raise InvalidModel(f"it is damaged: the text {text!r} is no UTF-8")
    _check_names(proto)
    _name_outputs_of_calls(proto)
    for graph in _graphs(proto):
        _densify(graph)
    types = {v.name: v.type.SerializeToString() for v in _infos(proto.graph) if _has_map(v.type)}
    for graph in _graphs(proto):
        for info in _infos(graph):
            if _has_map(info.type):
                info.ClearField("type")
    model = ir.from_proto(proto)
    model.meta[MAP_TYPES] = types
    return model


def _check_names(proto: onnx.ModelProto) -> None:
    """Raise InvalidModel for functions of the same name, or for inputs or outputs of the same name,
    because onnx-ir keeps only one of them."""
    seen: set[tuple[str, ...]] = set()
    for each in proto.functions:
        name, key = f"{each.domain}::{each.name}", (each.domain, each.name, each.overload)
        if key in seen:
            raise InvalidModel(f"two functions are called {name}")
        seen.add(key)
        for values in (each.input, each.output):
            if len({*values}) < len(values) or "" in values:
                raise InvalidModel(f"the function {name} has inputs or outputs of the same name, or of none")


def _name_outputs_of_calls(proto: onnx.ModelProto) -> None:
    """Name the last outputs of calls of the model's functions that have no name.

    onnx-ir leaves them out, and ONNX Runtime refuses a call with fewer outputs than the
    function.
    """
    functions = {(f.domain, f.name, f.overload) for f in proto.functions}
    taken = {*_texts(proto)} if functions else set()
    fresh = (name for name in map("unused_{}".format, count()) if name not in taken)
    for part in (*_graphs(proto), *proto.functions):
        for node in part.node:
            if (node.domain, node.op_type, node.overload) in functions:
                last = max((i for i, name in enumerate(node.output) if name), default=-1)
                node.output[last + 1 :] = [next(fresh) for _ in node.output[last + 1 :]]


def restore(proto: onnx.ModelProto, header: ir.Model) -> onnx.ModelProto:
    """Restore the types that `from_proto` removed."""
    types: dict[str, bytes] = header.meta.get(MAP_TYPES, {})
    for info in _infos(proto.graph) if types else ():
        if info.name in types:
            info.type.ParseFromString(types[info.name])
    return proto


def _texts(proto: onnx.ModelProto) -> Iterator[Any]:
    """All names, domains and documentation strings of a model."""
    yield from (proto.producer_name, proto.producer_version, proto.domain, proto.doc_string)
    yield from (o.domain for o in proto.opset_import)
    yield from (text for p in proto.metadata_props for text in (p.key, p.value))
    for function in proto.functions:
        yield from (function.name, function.domain, function.doc_string, *function.input, *function.output)
    for graph in (*_graphs(proto), *proto.functions):
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, node.doc_string, *node.input, *node.output)
            yield from (text for a in node.attribute for text in (a.name, a.doc_string, a.ref_attr_name))
    for graph in _graphs(proto):
        yield from (graph.name, graph.doc_string, *(t.name for t in graph.initializer))
        for info in _infos(graph):
            yield from (info.name, info.doc_string, *(d.dim_param for d in info.type.tensor_type.shape.dim))


def _infos(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)


def _has_map(type: onnx.TypeProto) -> bool:
    kind = type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _has_map(getattr(type, kind).elem_type)
    return bool(kind == "map_type")


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and every body, bodies inside functions included (functions themselves are no
    graphs)."""
    waiting: list[Any] = [proto.graph, *proto.functions]
    while waiting:
        graph = waiting.pop()
        if isinstance(graph, onnx.GraphProto):
            yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(attribute.g)
                waiting.extend(attribute.graphs)
            _densify_constant(node)


def _densify(graph: onnx.GraphProto) -> None:
    graph.initializer.extend(_dense(sparse) for sparse in graph.sparse_initializer)
    del graph.sparse_initializer[:]


def _densify_constant(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            if onnx.TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
                raise InvalidModel(
                    f"a sparse tensor of the node {node.name!r} lies in another file; store it in the model"
                )
        if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
            attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
            attribute.t.CopyFrom(_dense(attribute.sparse_tensor))
            attribute.ClearField("sparse_tensor")


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    name = sparse.values.name
    if onnx.TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
        raise InvalidModel(
            f"the sparse weight {name!r} lies in another file, which no runtime reads; store it in the model"
        )
    if min(sparse.dims, default=0) < 0 or prod(sparse.dims) > MOST_DENSE:
        raise InvalidModel(
            f"the sparse weight {name!r} of {list(sparse.dims)} has more than {MOST_DENSE} elements when dense"
        )
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    result = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 2:
        result[tuple(indices.T)] = values
    else:
        result.reshape(-1)[indices] = values
    return onnx.numpy_helper.from_array(result, name)


def opset_of(ir_version: int) -> int:
    """The default opset of the first release with an IR version, for models that import none."""
    opsets = (int(row[2]) for row in onnx.helper.VERSION_TABLE if row[1] >= ir_version)
    return next(opsets, int(onnx.defs.onnx_opset_version()))


def model_holding(array: Any) -> bytes:
    """A model without inputs whose only output is an array, also of texts."""
    helper = onnx.helper
    tensor = onnx.numpy_helper.from_array(array if array.dtype.kind != "U" else array.astype(object), "y")
    output = helper.make_tensor_value_info("y", tensor.data_type, array.shape)
    graph = helper.make_graph([helper.make_node("Constant", [], ["y"], value=tensor)], "texts", [], [output])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    )
