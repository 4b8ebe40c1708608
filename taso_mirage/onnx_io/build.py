"""Small models built around terms: a bare graph to measure or test, and one opaque term alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_computed, variable
from taso_mirage.onnx_io.declarations import declare
from taso_mirage.onnx_io.in_double import in_double
from taso_mirage.onnx_io.originals import copy_model, copy_value
from taso_mirage.onnx_io.read import OpaqueCall
from taso_mirage.onnx_io.walk import bodies, called_functions
from taso_mirage.operators.ops import get


def standalone(graph: Graph, opsets: Mapping[str, int], weights: Mapping[str, Weight] | None = None) -> Model:
    """A model around a bare graph (to measure or test it), with typed inputs and outputs and its
    own header."""
    names = tuple(f"output_{i}" for i in range(len(graph.outputs)))
    inputs = [ir.Value(name=n.attr("name")) for n in graph.inputs]
    outputs = [ir.Value(name=name) for name in names]
    for value, node in zip((*inputs, *outputs), (*graph.inputs, *graph.outputs), strict=True):
        declare(value, node.tensor)
    shell = ir.Graph(inputs, outputs, nodes=[], opset_imports=dict(opsets), name="graph")
    header = ir.Model(shell, ir_version=10, producer_name="taso_mirage")
    kept = {n: n.attr("name") for n in graph if n.op == "weight"}
    return Model(graph, dict(weights or {}), names, dict(opsets), header, names=kept)


def isolated(
    model: Model, node: Node, values: Mapping[Node, Any] | None = None, double: bool = False
) -> tuple[Model, dict[Node, Node]]:
    """A model of one opaque term alone, and which of its inputs stands for which operand of the
    original. Operands of unknown type have the type of their values. With `double`, all float
    inputs and results are float64; the runtime may not support this."""
    call: OpaqueCall = node.attr("call")
    leaves: dict[Node, Node] = {}
    for arg in node.args:
        wide = double and arg is not ABSENT and is_computed(arg.dtype)
        if arg is not ABSENT and (wide or arg.op not in ("constant", "weight")) and arg not in leaves.values():
            type = Tensor("float64", arg.tensor.shape) if wide else arg.tensor
            leaves[variable(f"operand_{len(leaves)}", type)] = arg
    inverse = {old: new for new, old in leaves.items()}
    attrs = node.attrs
    if double and bodies(call.node):
        attrs = (("call", OpaqueCall(in_double(call.node), call.captured, call.opsets)),)
    alone = Node("opaque", tuple(inverse.get(a, a) for a in node.args), attrs, lambda: node.type)
    several = isinstance(alone.type, tuple)
    used = [i for i, name in enumerate(call.outputs) if name]
    outputs = tuple(get("item").term(alone, index=i) for i in used) if several else (alone,)
    names = tuple(f"output_{i}" for i in used)
    inputs = [ir.Value(name=n.attr("name")) for n in leaves]
    for value, (leaf, arg) in zip(inputs, leaves.items(), strict=True):
        _declare_like(value, leaf if leaf.dtype != arg.dtype else arg)
        if value.type is None and arg in (values or {}):
            value.type = _stated(arg.dtype) or _type_of((values or {})[arg])
    results = [ir.Value(name=n, type=_result(call.node.outputs[i], double)) for n, i in zip(names, used, strict=True)]
    header: ir.Model = model.header
    shell = ir.Graph(inputs, results, nodes=[], opset_imports=dict(model.opsets), name="graph")
    functions = [f.clone() for f in called_functions(header, [call.node])]
    single = ir.Model(shell, ir_version=header.ir_version, functions=functions)
    return Model(Graph(tuple(leaves), outputs), model.weights, names, model.opsets, single), leaves


def _result(value: ir.Value, double: bool) -> ir.TypeProtocol | None:
    """The type of a result; in double precision that of float64 in place of other floats."""
    dtype = value.dtype
    return (
        ir.TensorType(ir.DataType.DOUBLE) if double and dtype is not None and dtype.is_floating_point() else value.type
    )


def observing(model: Model, terms: Sequence[Node]) -> Model:
    """A model that gives the values of some terms of another one, on the same inputs."""
    header: ir.Model = model.header
    inputs = [copy_value(v) for v in header.graph.inputs if str(v.name) in model.input_names]
    names = tuple(f"observed_{i}" for i in range(len(terms)))
    outputs = [ir.Value(name=name) for name in names]
    for value, term in zip(outputs, terms, strict=True):
        _declare_like(value, term)
        value.shape = None
    shell = ir.Graph(inputs, outputs, nodes=[], opset_imports=dict(model.opsets), name="graph")
    graph = Graph(model.graph.inputs, tuple(terms))
    return replace(model, graph=graph, output_names=names, header=copy_model(header, shell))


def excerpt(model: Model, graph: Graph, weights: Mapping[str, Weight] | None = None) -> Model:
    """A model of a graph over its own inputs, made of terms of another model. It has the operator
    versions and kernels of that model, the functions that the terms call, and its weights or given
    ones."""
    header: ir.Model = model.header
    names = tuple(f"value_{i}" for i in range(len(graph.outputs)))
    inputs = [ir.Value(name=n.attr("name")) for n in graph.inputs]
    outputs = [ir.Value(name=name) for name in names]
    for value, node in zip((*inputs, *outputs), (*graph.inputs, *graph.outputs), strict=True):
        _declare_like(value, node)
        if node.op == "input":
            declare(value, node.tensor)
    shell = ir.Graph(inputs, outputs, nodes=[], opset_imports=dict(model.opsets), name="graph")
    functions, said = [f.clone() for f in called_functions(header, _opaque_nodes(graph))], dict(header.metadata_props)
    header = ir.Model(shell, ir_version=header.ir_version, functions=functions, metadata_props=said)
    kept = {n: n.attr("name") for n in graph if n.op == "weight"}
    given = model.weights if weights is None else weights
    own = {"graph": graph, "weights": given, "output_names": names, "header": header, "names": kept}
    none: dict[str, Any] = {
        "origins": {},
        "sizes": {},
        "integers": {},
        "rows": {},
        "shares": (),
        "scales": {},
        "defaults": {},
    }
    return replace(model, **own, **none, source=None)


def _opaque_nodes(graph: Graph) -> Iterator[ir.Node]:
    """The ONNX nodes of a graph's opaque terms, and of those in bodies."""
    for node in graph:
        if node.op == "opaque":
            yield node.attr("call").node
        for _, value in node.attrs:
            yield from _opaque_nodes(value) if isinstance(value, Graph) else ()


def _declare_like(value: ir.Value, node: Node) -> None:
    """The ONNX type of a term: an opaque one has its own (it may be a sequence), others that of
    their tensor."""
    source, index = (node.args[0], node.attr("index")) if node.op == "item" else (node, 0)
    if source.op == "opaque":
        made: ir.Node = source.attr("call").node
        value.type = made.outputs[index].type
        if value.type is None and made.op_type == "If" and bodies(made):  # it may be optional
            value.type = bodies(made)[0].outputs[index].type
    if value.type is None:
        declare(value, Tensor(node.dtype, None))


def _stated(dtype: str) -> ir.TypeProtocol | None:
    """The ONNX type that a dtype is the text of: `Sequence(Tensor(FLOAT))`; None for another
    dtype."""
    word, _, rest = dtype.removesuffix(")").partition("(")
    if word == "Tensor":
        return ir.TensorType(ir.DataType[rest]) if rest in {*ir.DataType.__members__} - {"UNDEFINED"} else None
    make = {"Sequence": ir.SequenceType, "Optional": ir.OptionalType}.get(word)
    inner = _stated(rest) if make else None
    return make(inner) if make and inner else None


def _type_of(value: Any) -> ir.TypeProtocol | None:
    """The ONNX type of a value that the runtime gave: an array or a sequence of them; None for an
    empty sequence or optional, and for maps, which onnx-ir has no word for."""
    if isinstance(value, list):
        inner = _type_of(value[0]) if value else None
        return None if inner is None else ir.SequenceType(inner)
    if value is None or isinstance(value, dict):
        return None
    array = np.asarray(value)
    return ir.TensorType(ir.DataType.STRING if array.dtype.kind in "OSU" else ir.DataType.from_numpy(array.dtype))
