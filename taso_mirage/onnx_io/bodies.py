"""Bodies of If, Loop and Scan as separate models, and back. A captured value is a weight of that
model if it is a weight outside, otherwise an input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, substitute, variable
from taso_mirage.onnx_io.declarations import declare
from taso_mirage.onnx_io.originals import as_tensor, copy_attribute, copy_model, copy_value, recapture
from taso_mirage.onnx_io.read import OpaqueCall, as_data, with_values
from taso_mirage.onnx_io.walk import bodies, bodies_below, defined_values, outer_values
from taso_mirage.onnx_io.write import to_ir

KINDS = frozenset({"If", "Loop", "Scan"})
ROUNDS = 4
"""The largest number of rounds that weaken the types of a loop's carried values until the body
preserves them."""


@dataclass(frozen=True, slots=True)
class Body:
    """A body of an opaque term: its attribute, the body as a model, whose first inputs are the
    `formal` ones, and the captured outer terms by their names in it."""

    attribute: str
    model: Model
    formal: tuple[str, ...]
    captured: Mapping[str, Node]

    @property
    def inputs(self) -> Mapping[str, Node]:
        """The outer terms of the model's inputs, without the formal ones."""
        return {n: self.captured[n] for n in self.model.input_names if n in self.captured}


def has_bodies(term: Node) -> bool:
    """Whether a term is an If, a Loop or a Scan."""
    if term.op != "opaque":
        return False
    node: ir.Node = term.attr("call").node
    return node.domain == "" and node.op_type in KINDS and bool(bodies(node))


def kind_of(term: Node) -> str:
    """ "If", "Loop" or "Scan"."""
    return str(term.attr("call").node.op_type)


def label_of(model: Model, term: Node) -> str:
    """The name of a node in messages about it."""
    origin = model.origins.get(term)
    name = (origin.name if origin is not None else None) or next(iter(term.attr("call").outputs), "")
    return f"{kind_of(term)} {name!r}"


def bodies_of(model: Model, term: Node) -> Iterator[Body]:
    """The bodies of a term that can be separate models, because all of their inputs are tensors."""
    call: OpaqueCall = term.attr("call")
    for attribute in call.node.attributes.values():
        if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
            try:
                yield _Reading(model, term, attribute.name).body()
            except Unsupported:
                continue


class _Reading:
    """One body that is read."""

    def __init__(self, model: Model, term: Node, attribute: str) -> None:
        call: OpaqueCall = term.attr("call")
        self.model, self.term, self.attribute, self.call = model, term, attribute, call
        self.old: ir.Graph = call.node.attributes[attribute].as_graph()
        count = len(call.node.inputs)
        used = {id(v) for v in outer_values(self.old)}
        pairs = zip(call.captured, term.args[count:], strict=True)
        self.captured = {str(v.name): (v, arg) for v, arg in pairs if id(v) in used}
        self.operands = term.args[:count]

    def body(self) -> Body:
        """The body, with types of its formal inputs that hold in every iteration."""
        kind = kind_of(self.term)
        if kind == "If":
            return self._read(())
        if kind == "Loop":
            return self._settled([Tensor("int64", ()), Tensor("bool", ())], self.operands[2:], [], 1)
        count = int(self.call.node.attributes["num_scan_inputs"].as_int())
        states, scanned = self.operands[: len(self.operands) - count], self.operands[len(self.operands) - count :]
        axes = scan_axes(self.term, count)
        elements = [_element(each.tensor, axis) for each, axis in zip(scanned, axes, strict=True)]
        return self._settled([], states, elements, 0)

    def _settled(self, first: Sequence[Tensor], carried: Sequence[Node], last: Sequence[Tensor], skipped: int) -> Body:
        """Find types of the carried values that hold in every iteration: they begin as the types of
        the operands, and a size that the body changes becomes any size."""
        if any(not isinstance(each.type, Tensor) or each is ABSENT for each in carried):
            raise Unsupported("a carried value is no tensor")
        types = [each.tensor for each in carried]
        for _ in range(ROUNDS):
            found = self._read((*first, *types, *last))
            given = [o.type for o in found.model.graph.outputs[skipped : skipped + len(types)]]
            weaker = [_common(a, b, f"carried_{i}") for i, (a, b) in enumerate(zip(types, given, strict=True))]
            if weaker == types:
                return found
            types = weaker
        raise Unsupported("the types of carried values do not settle")

    def _read(self, types: Sequence[Tensor]) -> Body:
        if len(types) != len(self.old.inputs) or any(t.dtype.startswith(("Seq", "Opt", "unk")) for t in types):
            raise Unsupported("the body has other inputs")
        graph = self.old.clone(allow_outer_scope_values=True)
        for value, type in zip(graph.inputs, types, strict=True):
            declare(value, type)
            if value.type is None:
                raise Unsupported(f"the input {value.name!r} is no tensor")
            if type.shape is None:
                value.shape = None
        formal = tuple(str(v.name) for v in graph.inputs)
        inner = {old: self._outside(name, arg) for name, (old, arg) in self.captured.items()}
        _point(graph, inner)
        for value in inner.values():
            if value.const_value is None:
                graph.inputs.append(value)
            else:
                graph.initializers.add(value)
        _end_in_nodes(graph)
        graph.opset_imports.update(self.model.opsets)
        read = self._as_model(copy_model(self.model.header, graph))
        return Body(self.attribute, read, formal, {name: arg for name, (_, arg) in self.captured.items()})

    def _as_model(self, source: ir.Model) -> Model:
        """The body read as the model is: with what is known about results of nodes, or without."""
        told = self.model.results
        if told is None:
            return as_data(source, self.model.trusted)
        return with_values(source, told.inside(told.body(self.call.node, self.attribute)), self.model.trusted)

    def _outside(self, name: str, arg: Node) -> ir.Value:
        """A captured value: an initializer where it is known, else an input."""
        value = ir.Value(name=name)
        if not isinstance(arg.type, Tensor):
            raise Unsupported(f"the captured {name!r} is no tensor")
        declare(value, arg.type)
        if value.type is None:
            raise Unsupported(f"the captured {name!r} is no tensor")
        if arg.op == "weight":
            value.const_value = as_tensor(self.model.weights[arg.attr("name")])
        elif arg.op == "constant":
            value.const_value = ir.Tensor(arg.attr("value").numpy(), name=name)
        return value


def scan_axes(term: Node, count: int) -> list[int]:
    """The axes along which a Scan goes through its scanned inputs."""
    attribute = term.attr("call").node.attributes.get("scan_input_axes")
    return [0] * count if attribute is None else [int(a) for a in attribute.as_ints()]


def _element(type: Tensor, axis: int) -> Tensor:
    if type.shape is None:
        return type
    dims = list(type.shape)
    del dims[axis]
    return Tensor(type.dtype, tuple(dims))


def _common(a: Tensor, b: Any, label: str) -> Tensor:
    """A type that includes both; a dim in which they differ has any size."""
    if not isinstance(b, Tensor) or a.dtype != b.dtype:
        raise Unsupported("a carried value changes its dtype, or is no tensor")
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Tensor(a.dtype, None)
    dims = (x if x == y else symbol(f"{label}_{i}") for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)))
    return Tensor(a.dtype, tuple(dims))


def _point(graph: ir.Graph, to: Mapping[ir.Value, ir.Value]) -> None:
    """Replace some values that a graph and its bodies use."""
    for i, output in enumerate(graph.outputs):
        if output in to:
            graph.outputs[i] = to[output]
    for node in graph:
        for i, value in enumerate(node.inputs):
            if value in to:
                node.replace_input_with(i, to[value])
        recapture(node, to)


def _end_in_nodes(graph: ir.Graph) -> None:
    """Insert an Identity for each output that is an input, a weight, or another output, because the
    runtime rejects such bodies."""
    own = {v for node in graph for v in node.outputs}
    names = {str(v.name) for v in defined_values(graph)}
    seen: set[ir.Value] = set()
    for i, output in enumerate(graph.outputs):
        if output not in own or output in seen:
            name = _unique(f"{output.name}_given", names)
            given = ir.Value(name=name, type=output.type, shape=output.shape)
            graph.append(ir.Node("", "Identity", [output], outputs=[given], name=name))
            graph.outputs[i] = given
        seen.add(graph.outputs[i])


def _unique(name: str, taken: set[str]) -> str:
    found = next(n for n in itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1))) if n not in taken)
    taken.add(found)
    return found


# ---------------------------------------------------------------- and back


@dataclass(frozen=True, slots=True)
class ChangedBody:
    """A body and the model that replaces it. `outside`: the outer terms of its weights that move
    out of it, by their names in it. `moved`: the outer terms of other terms that move out."""

    body: Body
    model: Model
    outside: Mapping[str, Node]
    moved: Mapping[Node, Node] = field(default_factory=dict)


def with_bodies(model: Model, term: Node, changed: Sequence[ChangedBody]) -> Node:
    """The term with other bodies; they capture the values that they share with the outer graph."""
    call: OpaqueCall = term.attr("call")
    taken = {str(v.name) for v in defined_values(model.header.graph)}
    values = dict(zip(call.captured, term.args[len(call.node.inputs) :], strict=True))
    made: dict[str, ir.Graph] = {}
    opsets = dict(call.opsets)
    for each in changed:
        graph, more = _as_body(model, call, each)
        _separate(graph, call.node.attributes[each.body.attribute].as_graph(), taken)
        opsets |= {d: v for d, v in graph.opset_imports.items() if d not in model.opsets}
        graph.opset_imports.clear()
        made[each.body.attribute] = graph
        values |= more
    attributes = [
        ir.AttrGraph(name, made[name]) if name in made else copy_attribute(a)
        for name, a in call.node.attributes.items()
    ]
    node = host(call.node, attributes)
    captured = tuple(dict.fromkeys(v for body in bodies(node) for v in outer_values(body)))
    args = (*term.args[: len(call.node.inputs)], *(values[v] for v in captured))
    return Node("opaque", args, (("call", OpaqueCall(node, captured, opsets)),), lambda: term.type)


def host(old: ir.Node, attributes: Sequence[ir.Attr]) -> ir.Node:
    """A node like the old one with other attributes, in no graph."""
    inputs = [None if v is None else ir.Value(name=v.name, type=v.type, shape=v.shape) for v in old.inputs]
    outputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in old.outputs]
    node = ir.Node(
        old.domain,
        old.op_type,
        inputs,
        attributes,
        overload=old.overload,
        outputs=outputs,
        name=old.name,
        doc_string=old.doc_string,
        metadata_props=dict(old.metadata_props),
    )
    return node


def _as_body(model: Model, call: OpaqueCall, changed: ChangedBody) -> tuple[ir.Graph, dict[ir.Value, Node]]:
    """The graph of a body, and the outer terms of the values that it captures."""
    body = changed.body
    found, outside = _with_inputs(changed, _shared(model, changed))
    graph = to_ir(found).graph
    known = {str(v.name): v for v in call.captured}
    captured: dict[ir.Value, Node] = {}
    to: dict[ir.Value, ir.Value] = {}
    for value in graph.inputs[len(body.formal) :]:
        name = str(value.name)
        if name in outside:
            to[value] = ir.Value(name=name, type=value.type, shape=value.shape)
            captured[to[value]] = outside[name]
        else:
            to[value] = known[name]
    del graph.inputs[len(body.formal) :]
    for value, old in zip(graph.inputs, call.node.attributes[body.attribute].as_graph().inputs, strict=True):
        value.type, value.shape = old.type, None if old.shape is None else old.shape.copy()
    _point(graph, to)
    return graph, captured


def _shared(model: Model, changed: ChangedBody) -> dict[str, Node]:
    """The outer terms of a body's weights: those that it captured, as they were, and those that are
    outside from now on."""
    found = dict(changed.outside)
    for name, new in changed.model.weights.items():
        arg = changed.body.captured.get(name)
        if arg is not None and arg.op == "weight" and new is changed.body.model.weights.get(name):
            found[name] = arg
    return found


def _with_inputs(changed: ChangedBody, shared: Mapping[str, Node]) -> tuple[Model, dict[str, Node]]:
    """The model with inputs in the place of shared weights and of moved terms, and the outer terms
    of these inputs."""
    model = changed.model
    leaves = {n: shared[n.attr("name")] for n in model.nodes() if n.op == "weight" and n.attr("name") in shared}
    leaves |= changed.moved
    taken = {str(v.name) for v in defined_values(model.header.graph)} | set(model.names.values())
    table, outside = dict[Node, Node](), dict[str, Node]()
    header: ir.Model = model.header
    inputs = [copy_value(v) for v in header.graph.inputs]
    for leaf, term in leaves.items():
        stem = leaf.attr("name") if leaf.op == "weight" else model.names.get(leaf, "invariant")
        name = _unique(f"{stem}_outside", taken)
        table[leaf] = variable(name, leaf.tensor)
        outside[name] = term
        value = ir.Value(name=name)
        declare(value, leaf.tensor)
        inputs.append(value)
    outputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in header.graph.outputs]
    old = header.graph
    shell = ir.Graph(
        inputs, outputs, nodes=[], opset_imports=dict(model.opsets), name=old.name, doc_string=old.doc_string
    )
    graph = Graph((*model.graph.inputs, *table.values()), substitute(model.graph.outputs, table))
    moved = dict(zip(model.nodes(), substitute(model.nodes(), table), strict=True))
    names = {moved.get(n, n): name for n, name in model.names.items() if n not in changed.moved}
    origins = {moved.get(n, n): origin for n, origin in model.origins.items()}
    return replace(model, graph=graph, header=copy_model(header, shell), names=names, origins=origins), outside


def _separate(graph: ir.Graph, old: ir.Graph, taken: set[str]) -> None:
    """Rename the values of a body that have a name of the outer graph, because a body may not
    define a name of a graph around it. A value that had the name in the old body keeps it."""
    before = {str(v.name) for v in defined_values(old)}
    for each in bodies_below(graph):
        for value in [*each.inputs, *each.initializers.values(), *(o for node in each for o in node.outputs)]:
            name = str(value.name or "")
            if name and name not in before:
                fresh = _unique(name, taken)
                if fresh != name:
                    value.name = fresh


def own_weights(changed: Model, body: Body) -> dict[str, Weight]:
    """The weights of a changed body that it does not share with the outer graph."""
    used = {str(n.attr("name")) for n in changed.nodes() if n.op == "weight"}
    captured = {name for name, arg in body.captured.items() if arg.op == "weight"}
    old = body.model.weights
    return {n: w for n, w in changed.weights.items() if n in used and not (n in captured and w is old.get(n))}
