"""Models as terms that are equal for two loads of equal files: weights are named by their content,
and a node without a definition is a term of its content over its operands and its bodies' outputs.

The outputs of a body are terms over the captured outer terms and over its formal inputs, which are
variables named by their positions. A fact about all values of these variables holds in every
iteration. Therefore two nodes with bodies are equal if their other parts are equal and their
bodies' outputs are equal terms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from taso_mirage.ir.content import Draw, NodeContent
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node, substitute, topological, variable, weight, with_args
from taso_mirage.onnx_io.bodies import Body, bodies_of, has_bodies
from taso_mirage.onnx_io.content import NodeReader, array_digest, may_draw
from taso_mirage.onnx_io.loops import STEP, CountedLoop, counted_loop, step_at, step_leaves
from taso_mirage.onnx_io.read import OpaqueCall
from taso_mirage.operators.ops import traits


@dataclass(slots=True)
class Opened:
    """The terms of a model, or of a body `depth` levels inside of it, as those in which two loads
    meet.

    `leaves` are the inputs here. `arrays` gets the weights by their new names, `draws` the nodes
    that draw by theirs, which are other ones where `matched` says so. `path` leads to the body, by
    results of nodes and attributes.
    """

    model: Model
    weights: Mapping[str, Weight]
    leaves: dict[Node, Node] = field(default_factory=dict)
    arrays: dict[str, Weight] = field(default_factory=dict)
    draws: dict[Draw, list[ir.Node]] = field(default_factory=dict)
    matched: Mapping[Draw, Draw] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    path: tuple[tuple[str, str], ...] = ()
    bodies: dict[tuple[Node, str], Opened] = field(default_factory=dict)
    """The bodies of nodes that were opened, by the node and the attribute."""
    done: dict[Node, Node] = field(default_factory=dict)

    def __call__(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """The terms for some of the model's."""
        nodes = tuple(nodes)
        for node in topological(nodes, stop=self.done):
            self.done[node] = self._opened(node)
        return tuple(self.done[n] for n in nodes)

    def _opened(self, node: Node) -> Node:
        if node in self.leaves:
            return self.leaves[node]
        if node is STEP:
            return step_at(len(self.path) + 1)
        if node.op == "weight":
            return weight(self.name(node.attr("name")), node.tensor)
        args = tuple(self.done[a] for a in node.args)
        if traits(node).lowering is Lowering.STEPS:
            return self._term_loop(node, args)
        return self._opaque(node, args) if node.op == "opaque" else with_args(node, args)

    def name(self, name: str) -> str:
        """The name of a weight: the digest of its content."""
        if name not in self.names:
            given = self.weights[name]
            self.names[name] = array_digest(given.numpy())
            self.arrays[self.names[name]] = given
        return self.names[name]

    def _term_loop(self, term: Node, args: Sequence[Node]) -> Node:
        """A loop that is a term of its body."""
        body: Graph = term.attr("body")
        leaves = step_leaves(term, args, len(self.path) + 1)[1]
        outputs = substitute(body.outputs, dict(zip(body.inputs, leaves, strict=True)))
        states = term.attr("states")
        return _loop(args[:states], outputs, args[states].shape[0], term.attr("backward"), term)

    def _node_loop(self, counted: CountedLoop, term: Node, args: Sequence[Node]) -> Node:
        """A loop that is a node, whose body is opened over the leaves of a step."""
        made = self.inside(counted.body, term, tuple(args))
        self.bodies[term, counted.body.attribute] = made
        states = args[counted.first : counted.first + counted.states]
        outputs = made(counted.outputs)
        return _loop(states, outputs, counted.count, counted.backward, term)

    def _opaque(self, term: Node, args: tuple[Node, ...]) -> Node:
        counted = counted_loop(self.model, term)
        if counted is not None:
            return self._node_loop(counted, term, args)
        call: OpaqueCall = term.attr("call")
        header: ir.Model = self.model.header
        reader = NodeReader(header.functions, {**self.model.opsets, **call.opsets})
        opened = self._bodies(term, args)
        outputs = {name: each(each.model.graph.outputs) for name, each in opened.items()}
        digest = reader.operator(call.node, outputs)
        count = len(call.node.inputs)
        outer = dict(zip(call.captured, args[count:], strict=True))
        captured = [outer[v] for v in reader.outer]
        bodies = tuple((name, len(found)) for name, found in outputs.items())
        content = NodeContent(repr(call), digest, bodies, self._draw(call.node))
        inside = [node for found in outputs.values() for node in found]
        return Node("opaque", (*args[:count], *captured, *inside), (("call", content),), term.type)

    def _draw(self, node: ir.Node) -> Draw | None:
        """The random draw of a node; None if the node draws nothing."""
        if not may_draw(node):
            return None
        draw = Draw(self.path, node.domain, node.op_type, _first_result(node))
        nodes = self.draws.setdefault(draw, [])
        nodes += [node] if node not in nodes else []
        return self.matched.get(draw, draw)

    def _bodies(self, term: Node, args: tuple[Node, ...]) -> dict[str, Opened]:
        """The bodies that are models of their own."""
        found = {}
        for body in sorted(bodies_of(self.model, term), key=lambda b: b.attribute) if has_bodies(term) else ():
            made = self.inside(body, term, args)
            self.bodies[term, body.attribute] = found[body.attribute] = made
        return found

    def inside(self, body: Body, term: Node, args: tuple[Node, ...]) -> Opened:
        """A body of a node that has these operands here."""
        call: OpaqueCall = term.attr("call")
        named = zip((str(v.name) for v in call.captured), args[len(call.node.inputs) :], strict=True)
        outer = dict(named)
        leaves, path = {}, (*self.path, (_first_result(call.node), body.attribute))
        counted = counted_loop(self.model, term)
        steps = () if counted is None else counted.leaves(args, len(path))
        for i, leaf in enumerate(body.model.graph.inputs):
            name = leaf.attr("name")
            formal = variable(f"input {i} of a body at depth {len(path)}", leaf.tensor)
            formal = _as(steps[i], leaf) if i < len(steps) else formal
            leaves[leaf] = formal if name in body.formal else _as(outer[name], leaf)
        return Opened(body.model, body.model.weights, leaves, self.arrays, self.draws, self.matched, path=path)


def _loop(states: Sequence[Node], outputs: Sequence[Node], count: Dim, backward: int, term: Node) -> Node:
    """A loop as a node of its first states and of one step: the outputs of its body as terms over
    variables for the states, the elements of the sequences at a variable place, and the other
    operands. What is equal for all values of these is equal in every step, and so are the states,
    by induction: they begin as equal ones."""
    said = f"{count} steps{' from the last one' * backward}, {len(states)} states"
    content = NodeContent("a loop", said, (("body", len(outputs)),))
    return Node("opaque", (*states, *outputs), (("call", content),), term.type)


def _as(outer: Node, leaf: Node) -> Node:
    """An outer term where a body has other names for its sizes."""
    if outer.type == leaf.type or outer is ABSENT:
        return outer
    return Node("opaque", (outer,), (("call", NodeContent(f"sizes {leaf.type}", str(leaf.type))),), leaf.type)


def _first_result(node: ir.Node) -> str:
    return next((o.name for o in node.outputs if o.name), "")


def opened(model: Model, matched: Mapping[Draw, Draw] | None = None) -> Opened:
    """The terms of a whole model."""
    return Opened(model, model.weights, matched=matched or {})


def matching(first: Collection[Draw], second: Iterable[Draw]) -> dict[Draw, Draw]:
    """Assign a different draw of the first model to each draw of a second one: the draw with the
    same name, otherwise in their order, because a writer may rename values."""
    second = [*second]
    left = [draw for draw in first if draw not in second]
    found = {}
    for draw in second if left else ():
        same = next((each for each in left if each.kind == draw.kind), None)
        if same is not None and draw not in first:
            left.remove(same)
            found[draw] = same
    return found
