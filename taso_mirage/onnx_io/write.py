"""Terms to ONNX: names, header and opaque nodes are unchanged; sizes are computed from input
shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, DimMonomial, Floor, Symbolic, symbol
from taso_mirage.ir.model import Model, Origin
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor
from taso_mirage.onnx_io.declarations import declare, declare_unknown, file_names, inner_names
from taso_mirage.onnx_io.originals import as_tensor, copy_attribute, copy_model, copy_value, placed_devices, recapture
from taso_mirage.onnx_io.protos import opset_of
from taso_mirage.onnx_io.read import OpaqueCall
from taso_mirage.onnx_io.walk import bodies, defined_values, values_by_name
from taso_mirage.operators.ops import Call, get

ANNOTATION = "quant_parameter_tensor_names"
"""The key in `meta` under which onnx-ir stores a value's quantization annotation."""


FREE = frozenset({"Constant", "Identity"})
"""Standard operators that the runtime does not support."""


def reads_smaller(model: Model) -> bool:
    """Whether writing the model again gives fewer nodes (folded sizes and constants, no dead nodes)
    or fewer inputs. The runtime computes in advance from weights, but not from inputs."""
    if has_fixed_inputs(model):
        return True
    after, before = (
        sum(not (node.domain == "" and node.op_type in FREE) for node in each.graph)
        for each in (to_ir(model), model.header)
    )
    return after < before


def has_fixed_inputs(model: Model) -> bool:
    """Whether inputs of the model that was read are weights."""
    return model.source is not None and len(model.header.graph.inputs) < len(model.source.graph.inputs)


def to_ir(model: Model) -> ir.Model:
    """A new ONNX model, which shares only the bytes of weights with `model.header`."""
    return _Writer(model).write()


def value_names(model: Model) -> dict[str, Node]:
    """The names that `to_ir` gives to values of the graph, each with its term."""
    writer = _Writer(model)
    writer.write()
    return {str(value.name): node for node, value in writer.values.items()}


class _Writer:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.header: ir.Model = model.header
        self.values: dict[Node, ir.Value] = {}
        self.done: set[Node] = {ABSENT}
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self.sizes: dict[Dim, ir.Value] = {}
        self.sources: dict[Symbolic, tuple[ir.Value, int, int]] = {}
        self.taken: set[str] = set()
        self.domains: dict[str, int] = dict(model.opsets)
        self.counter = 0
        self.pinned: dict[Node, str] = {}
        self.old = values_by_name(self.header.graph)
        terms = {n.attr("name"): n for n in model.graph.inputs}
        self.dims = {**inner_names(model.names, self.old), **file_names(terms, self.header.graph.inputs)}

    def write(self) -> ir.Model:
        self._reserve_names()
        terms = {n.attr("name"): n for n in self.model.graph.inputs}
        inputs = {str(old.name): self._input(old, terms.get(str(old.name))) for old in self.header.graph.inputs}
        for node in self.model.graph.outputs:
            self._require(node)
        outputs = [self._output(i, old) for i, old in enumerate(self.header.graph.outputs)]
        self._annotate()
        old = self.header.graph
        graph = ir.Graph(
            self._graph_inputs(inputs),
            outputs,
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            name=old.name,
            doc_string=old.doc_string,
            opset_imports=self.domains,
            metadata_props=dict(old.metadata_props),
        )
        return copy_model(self.header, graph)

    def _graph_inputs(self, inputs: Mapping[str, ir.Value | None]) -> list[ir.Value]:
        if self.header.ir_version >= 4:
            return [v for v in inputs.values() if v is not None]
        every: dict[str, ir.Value | None] = {**inputs, **self.initializers}  # every initializer is an input too
        return [v for v in every.values() if v is not None]

    # ------------------------------------------------------------ names

    def _reserve_names(self) -> None:
        """Outputs keep their names; inner values too, unless an output or a body has it."""
        self.taken |= set(self.model.input_names)
        for name, node in zip(self.model.output_names, self.model.graph.outputs, strict=True):
            self.taken.add(name)
            leaf = node.op in ("weight", "constant", "extents")
            if node.op != "input" and (not leaf or self.model.names.get(node) == name):
                self.pinned.setdefault(node, name)
        for node in self.model.nodes():
            for body in bodies(node.attr("call").node) if node.op == "opaque" else ():
                self.taken |= {str(value.name) for value in defined_values(body)}

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
            if name not in self.taken and name not in self.old:
                self.taken.add(name)
                return name

    # ------------------------------------------------------------ values

    def _input(self, old: ir.Value, term: Node | None) -> ir.Value | None:
        if term is None:
            return None  # an initializer of an old model that lists it as an input
        value = copy_value(old)
        if old.is_initializer():
            value.const_value = old.const_value
            self.initializers[str(old.name)] = value
        self._bind(term, (value,))
        return value

    def _output(self, i: int, old: ir.Value) -> ir.Value:
        node, name = self.model.graph.outputs[i], self.model.output_names[i]
        value = self.values[node]
        if value.name != name:
            (value,) = self._append("Identity", [value], {}, [name])
        value.type, value.doc_string = old.type, old.doc_string
        value.shape = None if old.shape is None else old.shape.copy()
        value.metadata_props.update(old.metadata_props)
        value.meta.update(old.meta)
        return value

    def _value(self, node: Node) -> ir.Value | None:
        return None if node is ABSENT else self.values[node]

    def _require(self, node: Node) -> None:
        """Write a term after its operands, if it is not written yet. Iterative: models are deep."""
        stack = [node]
        while stack:
            term = stack[-1]
            waiting = [a for a in reversed(term.args) if a not in self.done] if term not in self.done else []
            stack.extend(waiting)
            if not waiting:
                stack.pop()
                self._emit(term)

    def _emit(self, node: Node) -> None:
        if node in self.done:
            return
        self.done.add(node)
        if node.op == "weight":
            self._bind(node, (self._initializer(node),))
        elif node.op == "constant":
            self._bind(node, (self._constant(node.attr("value").numpy(), self._name(node)),))
        elif node.op == "extents":
            self._bind(node, (self._extents(node),))
        elif node.op == "opaque":
            self._opaque(node)
        elif node.op != "item":
            self._operator(node)

    def _initializer(self, node: Node) -> ir.Value:
        return self._add_initializer(as_tensor(self.model.weights[node.attr("name")]), self._name(node))

    def _constant(self, array: Any, name: str) -> ir.Value:
        return self._add_initializer(ir.Tensor(np.ascontiguousarray(array).reshape(array.shape)), name)

    def _add_initializer(self, tensor: Any, name: str) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        self._describe(value)
        self.initializers[name] = value
        return value

    def _describe(self, value: ir.Value) -> None:
        """Copy the original's metadata and named dims to a value that keeps its name."""
        old = self.old.get(str(value.name))
        if old is None or (value.type is not None and old.type is not None and old.type != value.type):
            return
        value.doc_string = old.doc_string
        value.metadata_props.update(old.metadata_props)
        value.meta.update(old.meta)
        if old.shape is not None and value.const_value is None and not old.shape.has_unknown_dim():
            value.shape = old.shape.copy()

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
            if value.name:
                declare(value, type, self.dims)
                self._describe(value)
        if domain not in self.domains:
            self.domains[domain] = opset_of(self.header.ir_version) if domain == "" else 1
        origin = origin or Origin(None, None, {})
        node = ir.Node(
            domain,
            op_type,
            list(inputs),
            [ir.convenience.convert_attribute(k, v, _numbers(v)) for k, v in attrs.items()],
            outputs=outputs,
            name=origin.name or f"{op_type}_{names[0]}",
            doc_string=origin.doc,
            metadata_props=dict(origin.metadata),
        )
        self.nodes.append(node)
        return tuple(outputs)

    def _operator(self, node: Node) -> None:
        op = get(node.op)
        call: Call = op.to_onnx(node, self.domains.get(op.domain, 1))
        for arg in call.args:
            self._require(arg)
        names = self._output_names(node)
        types = node.type if isinstance(node.type, tuple) else (node.tensor,)
        attrs = {
            k: self._body(v, node.args[len(node.args) + len(call.args) - len(v.inputs) :])
            if isinstance(v, Graph)
            else _onnx_attribute(v)
            for k, v in call.attrs.items()
        }
        for i in call.blank:
            names.insert(i, "")
        values = self._append(
            call.op_type,
            [self._value(a) for a in call.args],
            attrs,
            names,
            _spread(types, call.blank),
            call.domain,
            self.model.origins.get(node),
        )
        self._bind(node, [v for i, v in enumerate(values) if i not in call.blank])

    def _body(self, body: Graph, captured: Sequence[Node]) -> ir.Graph:
        """The graph of a loop's step; its last inputs are values that it captures."""
        formal = body.inputs[: len(body.inputs) - len(captured)]
        inputs = [ir.Value(name=self._fresh("element")) for _ in formal]
        for value, node in zip(inputs, formal, strict=True):
            declare(value, node.tensor, self.dims)
        names = tuple([self._fresh("step") for _ in body.outputs])
        shell = ir.Graph([], [], nodes=[], opset_imports=dict(self.domains))
        writer = _Writer(Model(body, {}, names, self.domains, copy_model(self.header, shell)))
        writer.taken, writer.domains, writer.counter, writer.dims = self.taken, self.domains, self.counter, self.dims
        outer = [self.values[node] for node in captured]
        for leaf, value in zip(body.inputs, (*inputs, *outer), strict=True):
            writer._bind(leaf, (value,))
        for output, name in zip(body.outputs, names, strict=True):
            if output.args:
                writer.pinned.setdefault(output, name)
        outputs = [writer._step_output(*each) for each in zip(body.outputs, names, strict=True)]
        self.counter = writer.counter
        own = list(writer.initializers.values())
        return ir.Graph(inputs, outputs, nodes=writer.nodes, initializers=own, name=self._fresh("body"))

    def _step_output(self, node: Node, name: str) -> ir.Value:
        """An output of a body, which is a value of its own."""
        self._require(node)
        value = self.values[node]
        if value.name != name:
            (value,) = self._append("Identity", [value], {}, [name], [node.tensor])
        return value

    def _output_names(self, node: Node) -> list[str]:
        if isinstance(node.type, tuple):
            return [self._name(get("item").term(node, index=i)) for i in range(len(node.type))]
        return [self._name(node)]

    def _bind(self, node: Node, values: Sequence[ir.Value]) -> None:
        self.done.add(node)
        if isinstance(node.type, tuple):
            for i, value in enumerate(values):
                self._bind(get("item").term(node, index=i), (value,))
            return
        self.values[node] = values[0]
        shape = node.type.shape if isinstance(node.type, Tensor) and values[0].name else None
        for axis, dim in enumerate(shape or ()):
            if isinstance(dim, Symbolic):
                self.sources.setdefault(dim, (values[0], axis, len(shape or ())))

    def _opaque(self, node: Node) -> None:
        call: OpaqueCall = node.attr("call")
        old, count = call.node, len(call.node.inputs)
        names = [n if o else "" for n, o in zip(self._output_names(node), call.outputs, strict=True)]
        outputs = [ir.Value(name=n, type=o.type, shape=o.shape) for n, o in zip(names, old.outputs, strict=True)]
        types = node.type if isinstance(node.type, tuple) else (node.type,)
        for value, type in zip(outputs, types, strict=False):
            if value.name and isinstance(type, Tensor):
                declare_unknown(value, type, self.dims)
            self._describe(value)
        inputs = [self._value(a) for a in node.args[:count]]
        captured = dict(zip(call.captured, (self.values[a] for a in node.args[count:]), strict=True))
        self.domains |= {d: v for d, v in call.opsets.items() if d not in self.domains}
        origin = self.model.origins.get(node, Origin(old.name, old.doc_string, dict(old.metadata_props)))
        new = ir.Node(
            old.domain,
            old.op_type,
            inputs,
            [copy_attribute(a) for a in old.attributes.values()],
            overload=old.overload,
            outputs=outputs,
            name=origin.name,
            doc_string=origin.doc,
            metadata_props=dict(origin.metadata),
        )
        recapture(new, captured)
        values = dict(zip((*old.inputs, *old.outputs), (*inputs, *outputs), strict=True))
        new.device_configurations = placed_devices(old, values)
        self.nodes.append(new)
        self._bind(node, outputs)

    def _annotate(self) -> None:
        """Quantization annotations name other tensors: those that nothing else uses come back under
        their names."""
        written = [*self.values.values(), *self.initializers.values()]
        wanted = {n for v in written for n in (v.meta.get(ANNOTATION) or {}).values()}
        for name in sorted(wanted - {str(v.name) for v in written}):
            old = self.old.get(name)
            if old is not None and old.const_value is not None:
                self._add_initializer(old.const_value, name)

    # ------------------------------------------------------------ sizes

    def _extents(self, node: Node) -> ir.Value:
        dims, name = node.attr("values"), self._name(node)
        parts = [self._size(d) for d in dims]
        if node.attr("scalar"):
            shape = self._constant(np.array([], np.int64), self._fresh("scalar"))
            return self._append("Reshape", [parts[0], shape], {}, [name], [node.tensor])[0]
        return parts[0] if len(parts) == 1 else self._append("Concat", parts, {"axis": 0}, [name], [node.tensor])[0]

    def _size(self, dim: Dim) -> ir.Value:
        """A one-element int64 vector that holds `dim` when the model runs."""
        if dim not in self.sizes:
            self.sizes[dim] = self._compute_size(dim)
        return self.sizes[dim]

    def _compute_size(self, dim: Dim) -> ir.Value:
        if isinstance(dim, int):
            return self._constant(np.array([dim], np.int64), self._fresh("size"))
        if dim in self.sources:
            return self._read_size(*self.sources[dim])
        terms = [self._monomial(monomial, coefficient) for monomial, coefficient in dim.terms]
        return reduce(partial(self._arithmetic, "Add"), terms)

    def _read_size(self, value: ir.Value, axis: int, rank: int) -> ir.Value:
        if self.model.opset >= 15:
            attrs = {"start": axis, "end": axis + 1}
            return self._append("Shape", [value], attrs, [self._fresh("size")], [Tensor("int64", (1,))])[0]
        (shape,) = self._append("Shape", [value], {}, [self._fresh("shape")], [Tensor("int64", (rank,))])
        index = self._constant(np.array([axis], np.int64), self._fresh("axis"))
        return self._arithmetic("Gather", shape, index)

    def _monomial(self, monomial: DimMonomial, coefficient: int) -> ir.Value:
        factors = [atom for atom, power in monomial for _ in range(power)]
        values = [] if coefficient == 1 and factors else [self._size(coefficient)]
        for atom in factors:
            if isinstance(atom, Floor):
                values.append(self._floor(atom))
            elif symbol(atom) in self.sources:
                values.append(self._size(symbol(atom)))
            else:
                raise Unsupported(f"no tensor that is computed before has a dimension {atom}")
        return reduce(partial(self._arithmetic, "Mul"), values)

    def _floor(self, atom: Floor) -> ir.Value:
        """A quotient that rounds down. ONNX's Div rounds to zero, so if the numerator may be
        negative, 1 is subtracted for a negative remainder."""
        top, bottom = self._size(atom.numerator), self._size(atom.denominator)
        quotient = self._arithmetic("Div", top, bottom)
        if all(c >= 0 for _, c in atom.numerator.terms):
            return quotient
        rest = self._arithmetic("Sub", top, self._arithmetic("Mul", quotient, bottom))
        zero = self._constant(np.zeros(1, np.float32), self._fresh("size"))
        signed = self._append("Cast", [rest], {"to": 1}, [self._fresh("size")], [Tensor("float32", (1,))])[0]
        below = self._append("Less", [signed, zero], {}, [self._fresh("size")], [Tensor("bool", (1,))])[0]
        one = self._append("Cast", [below], {"to": 7}, [self._fresh("size")], [Tensor("int64", (1,))])[0]
        return self._arithmetic("Sub", quotient, one)

    def _arithmetic(self, op_type: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return self._append(op_type, [a, b], {}, [self._fresh("size")], [Tensor("int64", (1,))])[0]


def _numbers(value: Any) -> ir.AttributeType | None:
    """The type of several integers, which is distinguished from all others only after slow
    questions (is it a graph?)."""
    several = isinstance(value, tuple | list) and all(isinstance(n, int) for n in value)
    return ir.AttributeType.INTS if several else None


def _onnx_attribute(value: Any) -> Any:
    return ir.tensor(value) if isinstance(value, np.ndarray) else list(value) if isinstance(value, tuple) else value


def _spread(types: Sequence[Tensor], blank: Sequence[int]) -> list[Tensor]:
    """Types with a place for every output that is left out."""
    spread = list(types)
    for i in blank:
        spread.insert(i, Tensor("absent", ()))
    return spread
