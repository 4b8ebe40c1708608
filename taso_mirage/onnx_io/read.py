"""ONNX to terms: every node becomes its operator's term, or an `opaque` term that keeps the node as it is."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from taso_mirage.dims import Dim, Symbolic, parse_dim, symbol, symbols
from taso_mirage.errors import IllTyped, InvalidModel, TasoMirageError, Undecidable, Unsupported
from taso_mirage.folding import fold_small
from taso_mirage.ir import ABSENT, Graph, Node, Tensor, constant, variable, weight
from taso_mirage.model import Model, Origin, Weight
from taso_mirage.ops import Call, by_onnx, get

SMALL_INTEGERS = 1024
"""Integer constants up to this many elements live inside the terms (shapes, axes); larger ones are weights."""


class OpaqueCall:
    """The ONNX node behind an opaque term, with the names of the outer values that its bodies use."""

    def __init__(self, node: ir.Node, captured: tuple[str, ...]) -> None:
        self.node = node
        self.captured = captured

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(o.name or "" for o in self.node.outputs)

    def __repr__(self) -> str:
        return f"{self.node.domain}::{self.node.op_type}" if self.node.domain else str(self.node.op_type)


def from_ir(source: ir.Model) -> Model:
    """The terms of an ONNX model. `source` is kept as the header and must not be changed afterwards."""
    reader = _Reader(source)
    reader.read()
    return Model(
        graph=Graph(tuple(reader.inputs), tuple(reader.value(v) for v in source.graph.outputs)),
        weights=reader.weights,
        output_names=tuple(str(v.name) for v in source.graph.outputs),
        opsets=dict(source.opset_imports),
        header=source,
        names=reader.names,
        origins=reader.origins,
        opaque=reader.reasons,
    )


class _Reader:
    def __init__(self, source: ir.Model) -> None:
        self.source = source
        self.terms: dict[ir.Value, Node] = {}
        self.inputs: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self.names: dict[Node, str] = {}
        self.origins: dict[Node, Origin] = {}
        self.reasons: dict[Node, str] = {}
        self.known_sizes: set[str] = set()
        self.fresh = 0

    def read(self) -> None:
        graph = self.source.graph
        overridable = self.source.ir_version >= 4
        inputs = [v for v in graph.inputs if overridable or not v.is_initializer()]
        for value in inputs:
            self._input(value)
        for value in graph.initializers.values():
            if value not in self.terms:
                self._initializer(value)
        for node in graph:
            self._node(node)
        if len(set(map(id, graph.outputs))) != len(graph.outputs):
            raise InvalidModel("the graph lists one output twice; remove the duplicate")

    # ------------------------------------------------------------ values

    def value(self, value: ir.Value) -> Node:
        if value not in self.terms:
            raise InvalidModel(f"the value {value.name!r} is used but nothing computes it")
        return self.terms[value]

    def _input(self, value: ir.Value) -> None:
        term = variable(str(value.name), self._type(value))
        self.terms[value] = term
        self.inputs.append(term)

    def _initializer(self, value: ir.Value) -> None:
        if value.const_value is None:
            raise InvalidModel(f"the initializer {value.name!r} has no data")
        self.terms[value] = self._tensor(str(value.name), value.const_value)

    def _tensor(self, name: str, tensor: ir.TensorProtocol) -> Node:
        dtype = _dtype(tensor.dtype)
        shape = tuple(int(n) for n in tensor.shape.numpy())
        count = int(np.prod(shape))
        if dtype != "string" and (
            count == 1 or (count <= SMALL_INTEGERS and dtype.startswith(("int", "uint", "bool")))
        ):
            return constant(np.asarray(tensor.numpy()).reshape(shape))
        self.weights[name] = tensor
        term = weight(name, Tensor(dtype, shape))
        self.names[term] = name
        return term

    def _type(self, value: ir.Value) -> Tensor:
        if not isinstance(value.type, ir.TensorType):
            return Tensor("unknown" if value.type is None else str(value.type), None)
        if value.shape is None:
            return Tensor(_dtype(value.type.dtype), None)
        dims = tuple(self._dim(d) for d in value.shape)
        return Tensor(_dtype(value.type.dtype), dims)

    def _dim(self, dim: int | ir.SymbolicDim) -> Dim:
        """A dim whose symbols can be read off a tensor when the model runs; others become symbols of their own."""
        if isinstance(dim, int):
            return dim
        text = dim.value
        parsed = self._fresh_symbol() if not text else parse_dim(text)
        if isinstance(parsed, Symbolic) and not symbols(parsed) <= self.known_sizes:
            pure = len(symbols(parsed)) == 1 and parsed == symbol(next(iter(symbols(parsed))))
            parsed = symbol(_identifier(text or str(parsed))) if pure or text else parsed
        if isinstance(parsed, Symbolic):
            self.known_sizes |= symbols(parsed)
        return parsed

    def _fresh_symbol(self) -> Symbolic:
        self.fresh += 1
        return symbol(f"unnamed_{self.fresh}")

    @cached_property
    def _inferred(self) -> dict[str, ir.Value]:
        """Values by name after symbolic shape inference by the library; asked for only when an opaque node needs it."""
        from onnx_shape_inference import infer_symbolic_shapes

        logging.getLogger("onnx_shape_inference").setLevel(logging.ERROR)
        try:
            inferred = infer_symbolic_shapes(self.source.clone(), warn_on_missing=False)
        except Exception:  # the library fails on exotic operators; a missing type only makes more nodes opaque
            return {}
        return {str(o.name): o for node in inferred.graph for o in node.outputs}

    # ------------------------------------------------------------ nodes

    def _node(self, node: ir.Node) -> None:
        try:
            term = self._known(node)
        except (Unsupported, IllTyped, Undecidable) as error:
            term = self._opaque(node, str(error))
        used = [o for o in node.outputs if o.name]
        if isinstance(term.type, tuple):
            for i, output in enumerate(node.outputs):
                self._bind(output, get("item").term(term, index=i))
        elif used:
            self._bind(node.outputs[0], term)
        metadata = dict(node.metadata_props)
        self.origins.setdefault(term, Origin(node.name, node.doc_string, metadata))

    def _bind(self, output: ir.Value, term: Node) -> None:
        self.terms[output] = term
        if output.name:
            self.names.setdefault(term, output.name)

    def _known(self, node: ir.Node) -> Node:
        if (node.domain, node.op_type, node.overload) in self.source.functions:
            raise Unsupported("a call of a function of the model")
        if node.domain == "" and node.op_type == "Constant":
            return self._constant(node)
        candidates = by_onnx().get((node.domain, node.op_type), ())
        if not candidates:
            raise Unsupported("no operator specification")
        call = Call(
            node.op_type,
            tuple(ABSENT if v is None else self._operand(v) for v in node.inputs),
            {name: _attribute(name, a) for name, a in node.attributes.items()},
            self.source.opset_imports.get(node.domain, 0),
            node.domain,
            max((i + 1 for i, o in enumerate(node.outputs) if _is_used(o)), default=1),
        )
        reasons: list[TasoMirageError] = []
        for op in candidates:
            try:
                return fold_small(op.from_onnx(call))
            except (Unsupported, IllTyped, Undecidable) as error:
                reasons.append(error)
        raise reasons[0]

    def _operand(self, value: ir.Value) -> Node:
        term = self.value(value)
        if isinstance(term.type, Tensor) and term.type.shape is None:
            raise Unsupported(f"the operand {value.name} has no known rank ({term.type.dtype})")
        return term

    def _constant(self, node: ir.Node) -> Node:
        output = node.outputs[0]
        (name, attribute), *_ = node.attributes.items()
        if name == "value":
            return self._tensor(str(output.name), attribute.as_tensor())
        kinds: dict[str, Any] = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64}
        kinds["value_ints"] = np.int64
        if name not in kinds:
            raise Unsupported(f"Constant with {name}")
        array = np.array(_attribute(name, attribute), kinds[name])
        return self._tensor(str(output.name), ir.tensor(array, name=output.name))

    def _opaque(self, node: ir.Node, reason: str) -> Node:
        captured = list(dict.fromkeys(_captured(node)))
        args = [ABSENT if v is None else self.value(v) for v in node.inputs] + [self.value(v) for v in captured]
        types = tuple(self._output_type(o) for o in node.outputs)
        call = OpaqueCall(node, tuple(str(v.name) for v in captured))
        single = len(types) == 1
        term = Node("opaque", tuple(args), (("call", call),), lambda: types[0] if single else types)
        self.reasons[term] = reason
        return term

    def _output_type(self, value: ir.Value) -> Tensor:
        if value.type is None or value.shape is None or any(_nameless(d) for d in value.shape):
            found = self._inferred.get(str(value.name))
            if found is not None and found.type is not None:
                return self._type(found)
        return self._type(value)


def _nameless(dim: int | ir.SymbolicDim) -> bool:
    return not isinstance(dim, int) and dim.value is None


def _is_used(value: ir.Value) -> bool:
    return bool(value.name) and (value.is_graph_output() or bool(value.uses()))


def _captured(node: ir.Node) -> Iterable[ir.Value]:
    """The outer values that the bodies of a node use (If, Loop, Scan)."""
    bodies = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    inside: set[ir.Value] = set()
    seen: list[ir.Value] = []
    while bodies:
        body = bodies.pop()
        inside.update(body.inputs, body.initializers.values())
        seen += [v for v in body.outputs if v is not None]
        for inner in body:
            inside.update(inner.outputs)
            seen += [v for v in inner.inputs if v is not None]
            bodies += [a.as_graph() for a in inner.attributes.values() if a.type == ir.AttributeType.GRAPH]
    return [v for v in seen if v not in inside]


def _attribute(name: str, attribute: ir.Attr) -> Any:
    kinds = ir.AttributeType
    if attribute.is_ref():
        raise Unsupported(f"the attribute {name} refers to a function's attribute")
    if attribute.type in (kinds.INT, kinds.FLOAT, kinds.STRING):
        return attribute.value
    if attribute.type in (kinds.INTS, kinds.FLOATS, kinds.STRINGS):
        return tuple(attribute.value)
    if attribute.type == kinds.TENSOR:
        return attribute.as_tensor().numpy()
    raise Unsupported(f"the attribute {name} is a {attribute.type.name.lower()}")


def _dtype(dtype: ir.DataType) -> str:
    if dtype == ir.DataType.STRING:
        return "string"
    try:
        return dtype.numpy().name
    except TypeError:
        return dtype.name.lower()


def _identifier(text: str) -> str:
    return text if text.isidentifier() else "d_" + re.sub(r"\W", "_", text)
