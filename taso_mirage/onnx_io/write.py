"""Terms to ONNX: names, header, opsets and opaque nodes come back as they were; sizes are computed from input shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from taso_mirage.dims import Dim, Floor, Monomial, Symbolic, symbol
from taso_mirage.errors import Unsupported
from taso_mirage.ir import ABSENT, Graph, Node, Tensor, numpy_dtype, topological, variable
from taso_mirage.model import Model, Origin, Weight
from taso_mirage.onnx_io.read import OpaqueCall
from taso_mirage.ops import get


def to_ir(model: Model) -> ir.Model:
    """A new ONNX model; nothing of it is shared with `model.header` but the bytes of weights and functions."""
    return _Writer(model).write()


def serialize(model: Model) -> bytes:
    """The ONNX file as bytes, weights inside. ValueError above protobuf's 2 GB."""
    built = ir.external_data.load_to_model(to_ir(model))
    return bytes(ir.to_proto(built).SerializeToString())


class _Writer:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.header: ir.Model = model.header
        self.values: dict[Node, ir.Value] = {}
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self.sizes: dict[Dim, ir.Value] = {}
        self.sources: dict[Symbolic, tuple[Node, int]] = {}
        self.taken: set[str] = set()
        self.domains: dict[str, int] = dict(model.opsets)
        self.counter = 0
        self.pinned: dict[Node, str] = {}
        self.aliases: set[str] = set()

    def write(self) -> ir.Model:
        self._reserve_names()
        inputs = [self._input(old) for old in self.header.graph.inputs]
        for node in self._order():
            self._emit(node)
        outputs = [self._output(i, old) for i, old in enumerate(self.header.graph.outputs)]
        old = self.header.graph
        graph = ir.Graph(
            [v for v in inputs if v is not None],
            outputs,
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            name=old.name,
            doc_string=old.doc_string,
            opset_imports=self.domains,
            metadata_props=dict(old.metadata_props),
        )
        if self.header.ir_version < 4:  # there, every initializer is an input too
            graph.inputs.extend(v for v in self.initializers.values() if not v.is_graph_input())
        return self._model(graph)

    def _model(self, graph: ir.Graph) -> ir.Model:
        old = self.header
        return ir.Model(
            graph,
            ir_version=old.ir_version,
            producer_name=old.producer_name,
            producer_version=old.producer_version,
            domain=old.domain,
            model_version=old.model_version,
            doc_string=old.doc_string,
            functions=[f.clone() for f in old.functions.values()],
            metadata_props=dict(old.metadata_props),
        )

    # ------------------------------------------------------------ names

    def _reserve_names(self) -> None:
        """Outputs and what bodies capture keep their names; inner values keep theirs unless one of those wants it."""
        self.taken |= {str(v.name) for v in self.header.graph.inputs}
        for name, node in zip(self.model.output_names, self.model.graph.outputs, strict=True):
            self.taken.add(name)
            if node.op not in ("input", "weight", "constant", "extents"):
                self.pinned.setdefault(node, name)
        for node in topological(self.model.graph.outputs):
            if node.op == "opaque":
                self._pin_captured(node)
        for graph in self.header.graphs():
            if graph is not self.header.graph:
                self.taken |= {str(o.name) for n in graph for o in n.outputs} | {str(v.name) for v in graph.inputs}
                self.taken |= set(graph.initializers)

    def _pin_captured(self, node: Node) -> None:
        call: OpaqueCall = node.attr("call")
        for arg, name in zip(node.args[len(call.node.inputs) :], call.captured, strict=True):
            if arg.op != "input" and arg not in self.pinned and name not in self.taken:
                self.pinned[arg] = name
                self.taken.add(name)

    def _name(self, node: Node) -> str:
        if node in self.pinned:
            return self.pinned[node]
        wanted = self.model.names.get(node)
        if wanted is not None and wanted not in self.taken:
            self.taken.add(wanted)
            return wanted
        return self._fresh(node.op)

    def _fresh(self, stem: str) -> str:
        while True:
            self.counter += 1
            name = f"{stem}_{self.counter}"
            if name not in self.taken:
                self.taken.add(name)
                return name

    # ------------------------------------------------------------ order

    def _order(self) -> list[Node]:
        """Operands first, and the tensor that a size is read from before whatever needs the size."""
        terms = topological((*self.model.graph.inputs, *self.model.graph.outputs))
        for node in terms:
            if isinstance(node.type, Tensor):
                for axis, dim in enumerate(node.type.shape or ()):
                    if isinstance(dim, Symbolic):
                        self.sources.setdefault(dim, (node, axis))
        return terms

    # ------------------------------------------------------------ values

    def _input(self, old: ir.Value) -> ir.Value | None:
        name = str(old.name)
        term = next((n for n in self.model.graph.inputs if n.attr("name") == name), None)
        if term is None:
            return None  # an initializer of an old model that lists it as an input
        value = _copy(old)
        if old.is_initializer():
            value.const_value = old.const_value
            self.initializers[name] = value
        self.values[term] = value
        return value

    def _output(self, i: int, old: ir.Value) -> ir.Value:
        node, name = self.model.graph.outputs[i], self.model.output_names[i]
        value = self.values[node]
        if value.name != name:
            (value,) = self._append("Identity", [value], {}, [name])
        value.type, value.doc_string = old.type, old.doc_string
        value.shape = None if old.shape is None else old.shape.copy()
        value.metadata_props.update(old.metadata_props)
        return value

    def _value(self, node: Node) -> ir.Value | None:
        return None if node is ABSENT else self.values[node]

    def _emit(self, node: Node) -> None:
        if node in self.values or node is ABSENT:
            return
        if node.op == "weight":
            self.values[node] = self._initializer(node)
        elif node.op == "constant":
            self.values[node] = self._constant(node.attr("value").numpy(), self._name(node))
        elif node.op == "extents":
            self.values[node] = self._extents(node)
        elif node.op == "opaque":
            self._opaque(node)
        elif node.op != "item":
            self._operator(node)

    def _initializer(self, node: Node) -> ir.Value:
        tensor = self.model.weights[node.attr("name")]
        if not isinstance(tensor, ir.TensorProtocol):
            tensor = ir.Tensor(np.ascontiguousarray(tensor.numpy()))
        return self._add_initializer(tensor, self._name(node))

    def _constant(self, array: Any, name: str) -> ir.Value:
        return self._add_initializer(ir.Tensor(np.ascontiguousarray(array).reshape(array.shape)), name)

    def _add_initializer(self, tensor: Any, name: str) -> ir.Value:
        if name in self.initializers:
            return self.initializers[name]
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        self.initializers[name] = value
        return value

    def _append(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attrs: dict[str, Any],
        names: Sequence[str],
        types: Sequence[Tensor] = (),
        domain: str = "",
        origin: Origin | None = None,
    ) -> tuple[ir.Value, ...]:
        outputs = [ir.Value(name=n) for n in names]
        for value, type in zip(outputs, types, strict=False):
            _declare(value, type)
        origin = origin or Origin(None, None, {})
        node = ir.Node(
            domain,
            op_type,
            list(inputs),
            [ir.convenience.convert_attribute(k, v) for k, v in attrs.items()],
            outputs=outputs,
            name=origin.name or f"{op_type}_{names[0]}",
            doc_string=origin.doc,
            metadata_props=dict(origin.metadata),
        )
        self.nodes.append(node)
        return tuple(outputs)

    def _operator(self, node: Node) -> None:
        op = get(node.op)
        call = op.to_onnx(node, self.domains.setdefault(op.domain, 1))
        for arg in call.args:
            for inner in topological([arg], stop=self.values):
                self._emit(inner)
        names = self._output_names(node)
        types = node.type if isinstance(node.type, tuple) else (node.tensor,)
        attrs = {k: _onnx_attribute(v) for k, v in call.attrs.items()}
        values = self._append(
            call.op_type,
            [self._value(a) for a in call.args],
            attrs,
            names,
            types,
            call.domain,
            self.model.origins.get(node),
        )
        self._bind(node, values)

    def _output_names(self, node: Node) -> list[str]:
        if isinstance(node.type, tuple):
            return [self._name(get("item").term(node, index=i)) for i in range(len(node.type))]
        return [self._name(node)]

    def _bind(self, node: Node, values: Sequence[ir.Value]) -> None:
        if not isinstance(node.type, tuple):
            self.values[node] = values[0]
            return
        for i, value in enumerate(values):
            self.values[get("item").term(node, index=i)] = value

    def _opaque(self, node: Node) -> None:
        call: OpaqueCall = node.attr("call")
        old, count = call.node, len(call.node.inputs)
        for arg, name in zip(node.args[count:], call.captured, strict=True):
            if self.values[arg].name != name and name not in self.aliases:
                self._append("Identity", [self.values[arg]], {}, [name], [arg.tensor])
                self.aliases.add(name)
        names = self._output_names(node)
        names = [n if o else "" for n, o in zip(names, call.outputs, strict=True)]
        outputs = [ir.Value(name=n, type=o.type, shape=o.shape) for n, o in zip(names, old.outputs, strict=True)]
        origin = self.model.origins.get(node, Origin(old.name, old.doc_string, dict(old.metadata_props)))
        self.nodes.append(
            ir.Node(
                old.domain,
                old.op_type,
                [self._value(a) for a in node.args[:count]],
                [_clone_attribute(a) for a in old.attributes.values()],
                overload=old.overload,
                outputs=outputs,
                name=origin.name,
                doc_string=origin.doc,
                metadata_props=dict(origin.metadata),
            )
        )
        self._bind(node, outputs)

    # ------------------------------------------------------------ sizes

    def _extents(self, node: Node) -> ir.Value:
        dims, name = node.attr("values"), self._name(node)
        parts = [self._size(d) for d in dims]
        if node.attr("scalar"):
            shape = self._constant(np.array([], np.int64), self._fresh("scalar"))
            return self._append("Reshape", [parts[0], shape], {}, [name], [node.tensor])[0]
        return self._append("Concat", parts, {"axis": 0}, [name], [node.tensor])[0]

    def _size(self, dim: Dim) -> ir.Value:
        """A one-element int64 vector that holds `dim` when the model runs."""
        if dim not in self.sizes:
            self.sizes[dim] = self._compute_size(dim)
        return self.sizes[dim]

    def _compute_size(self, dim: Dim) -> ir.Value:
        if isinstance(dim, int):
            return self._constant(np.array([dim], np.int64), self._fresh("size"))
        if dim in self.sources and self.sources[dim][0] in self.values:
            return self._read_size(*self.sources[dim])
        total: ir.Value | None = None
        for monomial, coefficient in dim.terms:
            term = self._monomial(monomial, coefficient)
            total = term if total is None else self._arithmetic("Add", total, term)
        if total is None:
            raise Unsupported(f"the size {dim} is empty")
        return total

    def _read_size(self, node: Node, axis: int) -> ir.Value:
        if self.model.opset >= 15:
            attrs = {"start": axis, "end": axis + 1}
            return self._append("Shape", [self.values[node]], attrs, [self._fresh("size")], [Tensor("int64", (1,))])[0]
        (shape,) = self._append(
            "Shape", [self.values[node]], {}, [self._fresh("shape")], [Tensor("int64", (node.tensor.rank,))]
        )
        index = self._constant(np.array([axis], np.int64), self._fresh("axis"))
        return self._arithmetic("Gather", shape, index)

    def _monomial(self, monomial: Monomial, coefficient: int) -> ir.Value:
        factors = [atom for atom, power in monomial for _ in range(power)]
        values = [] if coefficient == 1 and factors else [self._size(coefficient)]
        for atom in factors:
            if isinstance(atom, Floor):
                values.append(self._arithmetic("Div", self._size(atom.numerator), self._size(atom.denominator)))
            elif symbol(atom) in self.sources:
                values.append(self._size(symbol(atom)))
            else:
                raise Unsupported(f"no tensor of the model has a dimension {atom}")
        product = values[0]
        for value in values[1:]:
            product = self._arithmetic("Mul", product, value)
        return product

    def _arithmetic(self, op_type: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return self._append(op_type, [a, b], {}, [self._fresh("size")], [Tensor("int64", (1,))])[0]


def _copy(old: ir.Value) -> ir.Value:
    shape = None if old.shape is None else old.shape.copy()
    return ir.Value(
        name=old.name, type=old.type, shape=shape, doc_string=old.doc_string, metadata_props=dict(old.metadata_props)
    )


def _clone_attribute(attribute: ir.Attr) -> ir.Attr:
    if attribute.type != ir.AttributeType.GRAPH or attribute.is_ref():
        return attribute
    return ir.AttrGraph(attribute.name, attribute.as_graph().clone(allow_outer_scope_values=True))


def _onnx_attribute(value: Any) -> Any:
    return ir.tensor(value) if isinstance(value, np.ndarray) else list(value) if isinstance(value, tuple) else value


def _declare(value: ir.Value, type: Tensor) -> None:
    try:
        value.type = ir.TensorType(ir.DataType.from_numpy(numpy_dtype(type.dtype)))
    except (TypeError, AttributeError):
        return  # strings, sequences and the like: shape inference of the reader's tool will know
    if type.shape is not None:
        value.shape = ir.Shape([d if isinstance(d, int) else str(d) for d in type.shape])


def standalone(graph: Graph, opsets: Mapping[str, int], weights: Mapping[str, Weight] | None = None) -> Model:
    """A model around a bare graph (to measure or test it), with typed inputs and outputs and a header of its own."""
    names = tuple(f"output_{i}" for i in range(len(graph.outputs)))
    inputs = [ir.Value(name=n.attr("name")) for n in graph.inputs]
    outputs = [ir.Value(name=name) for name in names]
    for value, node in zip((*inputs, *outputs), (*graph.inputs, *graph.outputs), strict=True):
        _declare(value, node.tensor)
    shell = ir.Graph(inputs, outputs, nodes=[], opset_imports=dict(opsets), name="graph")
    header = ir.Model(shell, ir_version=10, producer_name="taso_mirage")
    return Model(graph, dict(weights or {}), names, dict(opsets), header)


def isolated(model: Model, node: Node) -> tuple[Model, dict[Node, Node]]:
    """A model of one opaque term alone, and which of its inputs stands for which operand of the original."""
    call: OpaqueCall = node.attr("call")
    leaves: dict[Node, Node] = {}
    for arg in node.args:
        if arg is not ABSENT and arg.op not in ("constant", "weight") and arg not in leaves.values():
            leaves[variable(f"operand_{len(leaves)}", arg.tensor)] = arg
    inverse = {old: new for new, old in leaves.items()}
    alone = Node("opaque", tuple(inverse.get(a, a) for a in node.args), node.attrs, lambda: node.type)
    several = isinstance(alone.type, tuple)
    used = [i for i, name in enumerate(call.outputs) if name]
    outputs = tuple(get("item").term(alone, index=i) for i in used) if several else (alone,)
    names = tuple(f"output_{i}" for i in used)
    inputs = [ir.Value(name=n.attr("name")) for n in leaves]
    for value, arg in zip(inputs, leaves.values(), strict=True):
        _declare_like(value, arg)
    results = [ir.Value(name=n, type=call.node.outputs[i].type) for n, i in zip(names, used, strict=True)]
    header: ir.Model = model.header
    shell = ir.Graph(inputs, results, nodes=[], opset_imports=dict(model.opsets), name="graph")
    functions = [f.clone() for f in header.functions.values()]
    single = ir.Model(shell, ir_version=header.ir_version, functions=functions)
    return Model(Graph(tuple(leaves), outputs), model.weights, names, model.opsets, single), leaves


def _declare_like(value: ir.Value, node: Node) -> None:
    """The ONNX type of a term: an opaque one has its own (it may be a sequence), others that of their tensor."""
    source, index = (node.args[0], node.attr("index")) if node.op == "item" else (node, 0)
    if source.op == "opaque":
        value.type = source.attr("call").node.outputs[index].type
    if value.type is None:
        _declare(value, Tensor(node.dtype, None))
