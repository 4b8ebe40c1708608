"""Models as terms that are equal for two loads of equal files: weights are named by their content,
and a node without a definition is a term of its content over its operands and its bodies' outputs.

The outputs of a body are terms over the captured outer terms and over its formal inputs, which are
variables named by their positions. A fact about all values of these variables holds in every
iteration. Therefore two nodes with bodies are equal if their other parts are equal and their
bodies' outputs are equal terms. A result of a loop is a node of the states on which it depends, so
what a loop computes besides makes no difference. Operators whose definition is a loop are opened as
that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.content import Draw, NodeContent
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import (
    ABSENT,
    Graph,
    Node,
    is_part,
    substitute,
    topological,
    variable,
    weight,
    with_args,
)
from taso_mirage.onnx_io.attributes import attribute_value, meant
from taso_mirage.onnx_io.bodies import Body, bodies_of, has_bodies
from taso_mirage.onnx_io.content import NodeReader, array_digest, may_draw
from taso_mirage.onnx_io.loops import (
    CountedLoop,
    bound_at,
    counted_loop,
    not_bound,
    state_leaves,
    step_leaves,
)
from taso_mirage.onnx_io.opened_loops import OpenedLoop, ResultsOfLoops
from taso_mirage.onnx_io.read import OpaqueCall
from taso_mirage.operators.interpret import definition
from taso_mirage.operators.ops import Call, by_onnx, get, traits


@dataclass(slots=True)
class Opened:
    """The terms of a model, or of a body `depth` levels inside of it, as those in which two loads
    meet.

    `leaves` are the inputs here. `arrays` gets the weights by their new names, `draws` the nodes
    that draw by theirs, which are other ones where `matched` says so. `results` gets those of
    loops, also of loops inside of bodies. `path` leads to the body, by results of nodes and
    attributes.
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
    loops: dict[Node, OpenedLoop] = field(default_factory=dict)
    results: dict[Node, tuple[OpenedLoop, int]] = field(default_factory=dict)
    done: dict[Node, Node] = field(default_factory=dict)

    def __call__(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """The terms for some of the model's."""
        nodes = tuple(nodes)
        for node in topological(nodes, stop=self.done):
            self.done[node] = self._opened(node)
        return tuple(self.done[n] for n in nodes)

    def whole(self) -> tuple[Node, ...]:
        """The terms of the model's outputs, and of all of its nodes: results of a loop are no terms
        over what it computes besides, and a rewrite may take that and something else together."""
        made = self(self.model.nodes())
        return (*self(self.model.graph.outputs), *(each for each in made if each not in self.loops))

    def _opened(self, node: Node) -> Node:
        if node in self.leaves:
            return self.leaves[node]
        if node.op == "input":
            return not_bound(node) if node in self.model.graph.inputs else bound_at(node, self.depth)
        if node.op == "weight":
            return weight(self.name(node.attr("name")), node.tensor)
        args = tuple(self.done[a] for a in node.args)
        if node.op == "opaque":
            return self._opaque(node, args)
        return self._of_operator(with_args(node, args))

    def _of_operator(self, node: Node) -> Node:
        """A term over terms that are opened."""
        if traits(node).lowering is Lowering.STEPS:
            return self._term_loop(node)
        if not is_part(node):
            return node
        if traits(node.args[0]).stays:
            return self._defined(node)
        loop = self.loops.get(node.args[0])
        if loop is None:
            return node
        return self._result(loop, node.attr("index"))

    def _result(self, loop: OpenedLoop, index: int) -> Node:
        made = loop.result(index)
        self.results.setdefault(made, (loop, index))
        return made

    def renumbered(self, most: int) -> Iterator[tuple[Node, Node]]:
        """The results of loops of up to so many states, each with itself by other names of its
        variables."""
        for made, (loop, index) in self.results.items():
            if len(loop.firsts) <= most:
                yield from ((made, each) for each in loop.renumbered(index, most))

    def _defined(self, node: Node) -> Node:
        """A result of an operator whose definition is a loop."""
        inner = definition(node, parts=True)
        if inner is None:
            raise Unsupported(f"{node.args[0].op} has no definition by other operators")
        done = {a: a for a in node.args[0].args}
        for each in topological([inner], stop=done):
            done[each] = self._of_operator(with_args(each, tuple(done[a] for a in each.args)))
        return done[inner]

    def name(self, name: str) -> str:
        """The name of a weight: the digest of its content."""
        if name not in self.names:
            given = self.weights[name]
            self.names[name] = array_digest(given.numpy())
            self.arrays[self.names[name]] = given
        return self.names[name]

    @property
    def depth(self) -> int:
        """The level of loops here."""
        return len(self.path) + 1

    def at(self, depth: int) -> Opened:
        """A view of the model whose loops are at another level."""
        return replace(self, path=(("", ""),) * (depth - 1))

    def loop_of(self, term: Node) -> OpenedLoop:
        """A loop that is a term of its body over opened terms; its results are among those of
        loops."""
        made = self._term_loop(term)
        loop = self.loops[made] if made in self.loops else self.results[made][0]
        for index in range(len(loop.types)):
            self._result(loop, index)
        return loop

    def _term_loop(self, term: Node) -> Node:
        """A loop that is a term of its body."""
        body: Graph = term.attr("body")
        leaves = step_leaves(term, term.args, self.depth)[1]
        outputs = substitute(body.outputs, dict(zip(body.inputs, leaves, strict=True)))
        states = term.attr("states")
        return self._loop(term.args[:states], outputs, term.args[states].shape[0], term.attr("backward"), term)

    def _node_loop(self, counted: CountedLoop, term: Node, args: Sequence[Node]) -> Node:
        """A loop that is a node, whose body is opened over the leaves of a step."""
        made = self.inside(counted.body, term, tuple(args))
        self.bodies[term, counted.body.attribute] = made
        states = args[counted.first : counted.first + counted.states]
        return self._loop(states, made(counted.outputs), counted.count, counted.backward, term)

    def _loop(self, firsts: Sequence[Node], outputs: Sequence[Node], count: Dim, backward: int, term: Node) -> Node:
        """A loop, or its only result."""
        types = term.type if isinstance(term.type, tuple) else (term.tensor,)
        depth, steps = self.depth, f"{count} steps{' from the last one' * backward}"
        leaves = state_leaves(firsts, depth)
        made = OpenedLoop(firsts, leaves, outputs, steps, types, ResultsOfLoops(depth), count, backward)
        if not isinstance(term.type, tuple):
            return self._result(made, 0)
        content = NodeContent("a loop", made.steps, (("body", len(outputs)),))
        loop = Node("opaque", (*firsts, *outputs), (("call", content),), term.type)
        self.loops[loop] = made
        return loop

    def _opaque(self, term: Node, args: tuple[Node, ...]) -> Node:
        counted = counted_loop(self.model, term)
        if counted is not None:
            return self._node_loop(counted, term, args)
        call: OpaqueCall = term.attr("call")
        stays = self._that_stays(term, args[: len(call.node.inputs)])
        if stays is not None:
            return stays if isinstance(term.type, tuple) else self._defined(get("item").term(stays, index=0))
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

    def _that_stays(self, term: Node, args: tuple[Node, ...]) -> Node | None:
        """The term of a node whose operator's definition is a loop."""
        node: ir.Node = term.attr("call").node
        found = [each for each in by_onnx().get((node.domain, node.op_type), ()) if each.traits.stays]
        if not found or (node.domain, node.op_type, node.overload) in self.model.header.functions:
            return None
        attrs = {name: meant(name, attribute_value(name, a)) for name, a in node.attributes.items()}
        try:
            made = found[0].from_onnx(Call(node.op_type, args, attrs, self.model.opsets.get(node.domain, 0)))
        except (IllTyped, Undecidable, Unsupported):
            return None
        types = term.type if isinstance(term.type, tuple) else (term.type,)
        return made if isinstance(made.type, tuple) and made.type[: len(types)] == types else None

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
        shared = (self.arrays, self.draws, self.matched)
        return Opened(body.model, body.model.weights, leaves, *shared, path=path, results=self.results)


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
