"""ONNX to terms: every node becomes its operator's term, or an `opaque` term that keeps the node as
it is."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import onnx_ir as ir

from taso_mirage.errors import IllTyped, InvalidModel, TasoMirageError, Undecidable, Unsupported
from taso_mirage.ir.dims import Dim, symbols
from taso_mirage.ir.model import Model, Origin, Weight
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, variable, weight
from taso_mirage.onnx_io.attributes import attribute_value, meant, plain_attributes, told, what_it_does
from taso_mirage.onnx_io.branches import branch_taken, refuses
from taso_mirage.onnx_io.constants import inside_terms, uniform
from taso_mirage.onnx_io.declared import declared_elsewhere
from taso_mirage.onnx_io.input_requirements import known_words, share_inputs
from taso_mirage.onnx_io.kernels import without_kernels
from taso_mirage.onnx_io.places import FilePlace, numbered_nodes, results_of_nodes, values_at_places
from taso_mirage.onnx_io.states import without_zeros
from taso_mirage.onnx_io.typed_nodes import typed
from taso_mirage.onnx_io.types_microsoft import MICROSOFT_TYPES
from taso_mirage.onnx_io.types_ml import ML_TYPES
from taso_mirage.onnx_io.types_of_refused import REFUSED_TYPES
from taso_mirage.onnx_io.types_of_shapes import SHAPE_TYPES
from taso_mirage.onnx_io.types_onnx import ONNX_TYPES
from taso_mirage.onnx_io.value_types import ValueTypes, dtype_name
from taso_mirage.onnx_io.walk import bodies, dead_nodes, outer_values
from taso_mirage.operators.folding import fold_small
from taso_mirage.operators.ops import Call, by_onnx, get, known_elements, load_specs
from taso_mirage.operators.table_indices import indexed_rows

BROKEN = "the node does not fit the operator's mapping"
"""The beginning of the reason if a mapping failed with an unexpected error: a damaged node, or a
bug in the mapping."""


class OpaqueCall:
    """The ONNX node behind an opaque term, with the outer values that its bodies use, and the
    domains that these need beside the model's own."""

    def __init__(self, node: ir.Node, captured: tuple[ir.Value, ...], opsets: Mapping[str, int] | None = None) -> None:
        self.node = node
        self.captured = captured
        self.opsets = dict(opsets or {})

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(o.name or "" for o in self.node.outputs)

    def __repr__(self) -> str:
        return f"{self.node.domain}::{self.node.op_type}" if self.node.domain else str(self.node.op_type)


def from_ir(source: ir.Model, trust_kernels: bool = False) -> Model:
    """The terms of an ONNX model.

    `source` is kept as the header and must not be changed afterwards. Fused kernels in it are code.
    Unless they are trusted, a copy with their ordinary operators is read instead.
    """
    return as_data(source, True) if trust_kernels else as_data(without_kernels(source))


def as_data(source: ir.Model, trusted: bool = False) -> Model:
    """Read a model with all of its content. Code stays data, unless it is `trusted`."""
    return _model(_read(source), trusted)


def with_values(source: ir.Model, known: Mapping[FilePlace, Node], trusted: bool = False) -> Model:
    """A model read with all of its content, where these results of nodes are other terms. It tells
    the terms of all results (`Model.results`), and so do its bodies."""
    numbered = numbered_nodes(source.graph)
    reader = _read(source, values_at_places(numbered, known))
    return replace(_model(reader, trusted), results=results_of_nodes(numbered, known, reader.terms))


def _model(reader: _Reader, trusted: bool) -> Model:
    source = reader.source
    graph = Graph(tuple(reader.inputs), tuple(reader.value(v) for v in source.graph.outputs))
    return Model(
        graph=graph,
        weights=reader.weights,
        output_names=tuple(str(v.name) for v in source.graph.outputs),
        opsets=reader.opsets,
        header=source,
        names=reader.names,
        origins=reader.origins,
        opaque=reader.reasons,
        rows=indexed_rows(graph),
        shares=share_inputs(source),
        words=known_words(source),
        defaults=reader.defaults,
        trusted=trusted,
    )


def _read(source: ir.Model, known: Mapping[ir.Value, Node] | None = None) -> _Reader:
    """A reader that has read the model, with equal terms of the types that the file declares for
    any of their values. `known` are the terms of some results of nodes."""
    elsewhere: Mapping[ir.Value, ir.Value] = {}
    left: Collection[ir.Graph] = ()
    while True:
        reader = _Reader(source, elsewhere, known or {}, left)
        reader.read()
        more = declared_elsewhere(reader.terms)
        if more.keys() <= elsewhere.keys() and reader.left.issubset(left):
            return reader
        elsewhere, left = {**elsewhere, **more}, reader.left


class _Reader:
    def __init__(
        self,
        source: ir.Model,
        elsewhere: Mapping[ir.Value, ir.Value],
        known: Mapping[ir.Value, Node],
        left: Collection[ir.Graph],
    ) -> None:
        overridable = source.ir_version >= 4
        given = [v for v in source.graph.inputs if overridable or not v.is_initializer()]
        self.source, self.known, self.dead = source, known, dead_nodes(source.graph, left)
        self.left = set(left)
        """The branches that are not taken."""
        self.types = ValueTypes(source, elsewhere, given)
        self.terms: dict[ir.Value, Node] = {}
        self.inputs: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self.defaults: dict[str, Weight] = {}
        self.names: dict[Node, str] = {}
        self.origins: dict[Node, Origin] = {}
        self.reasons: dict[Node, str] = {}
        self.opaque: dict[tuple[Hashable, ...], Node] = {}
        """Opaque terms, by their content and their operands."""
        self.opsets = {"" if d == "ai.onnx" else d: version for d, version in source.opset_imports.items()}
        self.refused: set[Node] = set()
        """Terms that the runtime does not run, with these ranks."""
        self.tried = 0
        """Ifs of which both branches were read."""

    def read(self) -> None:
        for value in self.types.inputs:
            self._input(value)
        self.inside(self.source.graph)

    def inside(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            if value not in self.terms:
                self._initializer(value)
        for node in graph:
            self.node(node)

    def copied(self) -> Self:
        """A copy of the reader that continues from this state."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set | list):
                setattr(other, name, value.copy())
        other.types = self.types.copied()
        return other

    # ------------------------------------------------------------ values

    def value(self, value: ir.Value) -> Node:
        if value not in self.terms:
            later = value.producer() is not None and value.producer().graph is self.source.graph
            why = "before it is computed: the nodes are not sorted" if later else "but nothing computes it"
            raise InvalidModel(f"the value {value.name!r} is used {why}")
        return self.terms[value]

    def _input(self, value: ir.Value) -> None:
        term = variable(str(value.name), self.types.inputs[value])
        self.terms[value] = term
        self.inputs.append(term)
        if value.is_initializer():
            self.defaults[str(value.name)] = _stored(value)

    def _initializer(self, value: ir.Value) -> None:
        self.terms[value] = self._tensor(str(value.name), _stored(value))

    def _tensor(self, name: str, tensor: ir.TensorProtocol) -> Node:
        dtype = dtype_name(tensor.dtype)
        shape = tuple(int(n) for n in tensor.shape.numpy())
        if inside_terms(tensor, dtype, int(np.prod(shape))):
            term = constant(np.asarray(tensor.numpy()).reshape(shape))
            self.names.setdefault(term, name)
            return term
        if dtype == "bool" and uniform(flat := tensor.numpy().reshape(-1)):  # a mask without effect
            return get("expand").term(constant(flat[:1].reshape(())), shape=shape)
        name = self._free_name(name, tensor)
        self.weights[name] = tensor
        term = weight(name, Tensor(dtype, shape))
        self.names[term] = name
        return term

    def _free_name(self, name: str, tensor: ir.TensorProtocol) -> str:
        """A unique name of a weight; two branches of an If may use the same name."""
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        return next(n for n in names if self.weights.get(n, tensor) is tensor)

    # ------------------------------------------------------------ nodes

    def put(self, node: ir.Node, branch: ir.Graph) -> None:
        """A branch in the place of an If."""
        self.inside(branch)
        for inner, output in zip(branch.outputs, node.outputs, strict=True):
            self._bind(output, self.value(inner))

    def node(self, node: ir.Node) -> None:
        if node in self.dead:
            return
        inner = bodies(node)
        known = not self.left.isdisjoint(inner)
        branch = next(each for each in inner if each not in self.left) if known else branch_taken(self, node)
        if branch is not None:
            self.left |= {*inner} - {branch}
            self.put(node, branch)
            return
        try:
            term = self._whole(node, self._known(node))
        except (Unsupported, IllTyped, Undecidable) as error:
            term = self._opaque(node, str(error))
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
            term = self._opaque(node, f"{BROKEN}: {type(error).__name__}: {error}")
        used = [o for o in node.outputs if self._is_used(o)]
        if isinstance(term.type, tuple):
            outputs = node.outputs if len(term.type) >= len(node.outputs) else used
            for i, output in enumerate(outputs[: len(term.type)]):
                self._bind(output, get("item").term(term, index=i))
        elif node.outputs[0].name:
            self._bind(node.outputs[0], term)
        metadata = dict(node.metadata_props)
        self.origins.setdefault(term, Origin(node.name, node.doc_string, metadata))

    def _bind(self, output: ir.Value, term: Node) -> None:
        self.terms[output] = term = self.known.get(output, term)
        if output.name:
            self.names.setdefault(term, output.name)

    def _known(self, node: ir.Node) -> Node:
        if self._is_call(node):
            raise Unsupported("a call of a function of the model")
        if node.device_configurations:
            raise Unsupported("the model places the node on devices")
        if node.domain == "" and node.op_type in ("Constant", "Identity"):  # which values of any type have
            return self._constant(node) if node.op_type == "Constant" else self.value(node.inputs[0])
        candidates = [c for c in by_onnx().get((node.domain, node.op_type), ()) if not c.traits.stays]
        if not candidates:
            raise Unsupported("no operator specification")
        attrs = {name: meant(name, attribute_value(name, a)) for name, a in node.attributes.items()}
        call = self._call(node, tuple(ABSENT if v is None else self._operand(v) for v in node.inputs), attrs)
        reasons: list[TasoMirageError] = []
        for op in candidates:
            try:
                return self._writable(self._readable(fold_small(op.from_onnx(call))), call.args)
            except (Unsupported, IllTyped, Undecidable) as error:
                reasons.append(error)
        raise reasons[0]

    def _call(self, node: ir.Node, args: tuple[Node, ...], attrs: dict[str, Any]) -> Call:
        return Call(
            node.op_type,
            args,
            attrs,
            self.opsets.get(node.domain, 0),
            node.domain,
            max((i + 1 for i, o in enumerate(node.outputs) if self._is_used(o)), default=1),
            len(node.outputs),
            tuple(i for i, o in enumerate(node.outputs) if not self._is_used(o)),
            self.weights,
        )

    def _whole(self, node: ir.Node, term: Node) -> Node:
        """The term, if it has all outputs of the node that something may use."""
        needed, there = sum(map(self._is_used, node.outputs)), len(term.type) if isinstance(term.type, tuple) else 1
        if needed > there:
            raise Unsupported(f"{needed} of its outputs are used; the operator gives {there}")
        return term

    def _is_used(self, value: ir.Value) -> bool:
        """Whether an output of the model may depend on a value."""
        readers = (use.node for use in value.uses())
        return bool(value.name) and (value.is_graph_output() or any(n not in self.dead for n in readers))

    def _readable(self, term: Node) -> Node:
        """Whether sizes, which become terms without operands, can be read from an input at run
        time."""
        sizes = None if term.op == "constant" else known_elements(term)
        for name in sorted({s for dim in sizes or () for s in symbols(dim)} - self.types.input_sizes):
            raise Unsupported(f"the size {name} is known only when the model runs")
        return term

    def _writable(self, term: Node, operands: Collection[Node]) -> Node:
        """Return the term if the model's opsets can express all of it. Raises Unsupported
        otherwise."""
        waiting, seen, specs = [term], set(operands), load_specs()
        while waiting:
            node = waiting.pop()
            if node not in seen and (op := specs.get(node.op)) is not None and op.onnx is not None:
                op.to_onnx(node, self.opsets.get(op.domain, 1))
            waiting += [a for a in node.args if node not in seen]
            seen.add(node)
        return term

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
        floats: dict[str, Any] = dict.fromkeys(("value_float", "value_floats"), np.float32)
        kinds = floats | dict.fromkeys(("value_int", "value_ints"), np.int64)
        if name not in kinds:
            raise Unsupported(f"Constant with {name}")
        array = np.array(attribute_value(name, attribute), kinds[name])
        return self._tensor(str(output.name), ir.tensor(array, name=output.name))

    def _opaque(self, node: ir.Node, reason: str) -> Node:
        captured = list(dict.fromkeys(v for body in bodies(node) for v in outer_values(body)))
        given = [ABSENT if v is None else self.value(v) for v in node.inputs]
        args = [*without_zeros(node, given), *(self.value(v) for v in captured)]
        does = None if self._is_call(node) else what_it_does(node)
        if does is not None and (twin := self.opaque.get((does, *args))) is not None:
            return twin
        types = self._output_types(node, args[: len(node.inputs)])
        call = OpaqueCall(node, tuple(captured))
        single = len(types) == 1
        term = Node("opaque", tuple(args), (("call", call),), lambda: types[0] if single else types)
        self.reasons[term] = reason
        if does is not None:
            self.opaque[(does, *args)] = term
        if refuses(node, args[: len(node.inputs)]):
            self.refused.add(term)
        return term

    def _is_call(self, node: ir.Node) -> bool:
        """Whether a node calls a function of the model."""
        return (node.domain, node.op_type, node.overload) in self.source.functions

    def _output_types(self, node: ir.Node, args: list[Node]) -> tuple[Tensor, ...]:
        """By a rule from the operands' types, else from the file or the library."""
        found = None
        if not self._is_call(node):
            found = typed(TYPE_RULES, self._call(node, tuple(args), plain_attributes(node)), len(node.outputs))
        if found is None:
            return tuple(told(node, self.types.output(o)) for o in node.outputs)
        names: dict[str, Dim] = {}
        return tuple(self.types.ruled(o, t, names) for o, t in zip(node.outputs, found, strict=True))


TYPE_RULES = {
    key: rule
    for table in (ONNX_TYPES, REFUSED_TYPES, SHAPE_TYPES, MICROSOFT_TYPES, ML_TYPES)
    for key, rule in table.rules.items()
}
"""The sources of the types of opaque nodes."""


def _stored(value: ir.Value) -> ir.TensorProtocol:
    if value.const_value is None:
        raise InvalidModel(f"the initializer {value.name!r} has no data")
    return value.const_value
