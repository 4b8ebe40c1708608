"""Loops of ONNX as terms of their bodies (`op_specs/scan.py`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.dims import Dim, symbols
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import (
    ABSENT,
    Graph,
    Node,
    Tensor,
    constant,
    is_constant,
    is_named_weight,
    substitute,
    topological,
    variable,
    weight,
)
from taso_mirage.onnx_io.bodies import Body, bodies_of, has_bodies, kind_of, scan_axes
from taso_mirage.onnx_io.read import OpaqueCall
from taso_mirage.operators.ops import known_elements, term, traits

MOST = 1 << 20
"""The largest number of steps of a loop that reads no sequence."""
SINCE = 9
"""The opset from which on a Scan has no batch of its own."""


@dataclass(frozen=True, slots=True)
class ReadLoop:
    """A loop as a term `scan`, and the weights of its body, which are operands of the term."""

    term: Node
    weights: Mapping[str, Weight]


STEP = variable("step of a loop", Tensor("int64", ()))
"""The place of a step in the sequences of a loop, in equalities that hold for every place."""


BOUND = re.compile(r"(?P<whose>step|state (?P<number>\d+)) of a loop(?P<depth> at depth (?P<level>\d+))?")
"""The names of the variables of loops: a place, and the states. Without a depth they stand in
equalities, for a loop at any depth."""


def step_at(depth: int) -> Node:
    """The place of a step in the terms of a loop so many levels inside of a model."""
    return variable(f"step of a loop at depth {depth}", Tensor("int64", ()))


def state_leaves(given: Sequence[Node], depth: int = 0) -> list[Node]:
    """Variables for the states of a loop so many levels inside of a model."""
    where = f" at depth {depth}" if depth else ""
    return [variable(f"state {i} of a loop{where}", x.tensor) for i, x in enumerate(given)]


OF_BODIES = re.compile(rf"(input )*({BOUND.pattern}|input \d+ of a body at depth \d+)")
"""The names of variables of bodies, and those that inputs of a model have in their place."""


def bound_at(leaf: Node, depth: int) -> Node:
    """A variable of equalities in terms at a depth: the place and the states of loops are at this
    depth."""
    name = leaf.attr("name")
    found = BOUND.fullmatch(name)
    return leaf if found is None or found["depth"] else variable(f"{name} at depth {depth}", leaf.tensor)


def not_bound(leaf: Node) -> Node:
    """An input of a model, by a name that no variable of a body has, and that no other input
    gets."""
    name = leaf.attr("name")
    return leaf if OF_BODIES.fullmatch(name) is None else variable(f"input {name}", leaf.tensor)


def renumbered(state: Node, number: int) -> Node:
    """The variable of a state with another number."""
    found = BOUND.fullmatch(state.attr("name"))
    return state if found is None else variable(f"state {number} of a loop{found['depth'] or ''}", state.tensor)


def step_leaves(loop: Node, args: Sequence[Node], depth: int = 0) -> tuple[Node, tuple[Node, ...]]:
    """The place of a step, and the terms that the inputs of a loop's body stand for: variables for
    states, elements of the sequences at that place, and the other operands. Without a depth the
    place is `STEP`."""
    states, end = loop.attr("states"), loop.attr("states") + loop.attr("sequences")
    step = step_at(depth) if depth else STEP
    elements = [term("gather", x, step, axis=0) for x in args[states:end]]
    return step, (*state_leaves(args[:states], depth), *elements, *args[end:])


def values_before(first: Node, values: Node, backward: int) -> Node:
    """The values of a state before each step, by its value before the first step and its new values
    in all steps."""
    count, start = values.shape[0], int(bool(backward))
    return _steps_of(_all_values(first, values, backward), start, start + count)


def value_after(first: Node, values: Node, backward: int) -> Node:
    """The value of a state after the last step, also where there is no step."""
    last = 0 if backward else values.shape[0]
    return term("squeeze", _steps_of(_all_values(first, values, backward), last, last + 1), axes=(0,))


def _all_values(first: Node, values: Node, backward: int) -> Node:
    parts = (term("unsqueeze", first, axes=(0,)), values)
    return term("concat", *(reversed(parts) if backward else parts), axis=0)


def _steps_of(whole: Node, start: Dim, end: Dim) -> Node:
    return term("slice", whole, starts=(start,), ends=(end,), axes=(0,), steps=(1,))


@dataclass(frozen=True, slots=True)
class CountedLoop:
    """A Scan along first axes, or a Loop of a known number of steps that no condition ends: its
    body and the outputs of a step, the place of its first state among the operands, and the numbers
    of states and of steps."""

    body: Body
    outputs: tuple[Node, ...]
    first: int
    states: int
    count: Dim
    backward: int

    def leaves(self, args: Sequence[Node], depth: int) -> tuple[Node, ...]:
        """The terms that the formal inputs of the body stand for, by the operands of the loop: of a
        Loop the place of the step and true before the states, of a Scan elements after them."""
        end, formal = self.first + self.states, len(self.body.formal)
        states = state_leaves(args[self.first : end], depth)
        if self.first:
            return (step_at(depth), constant(True), *states)
        return (*states, *(term("gather", x, step_at(depth), axis=0) for x in args[end:formal]))


def counted_loop(model: Model, node: Node) -> CountedLoop | None:
    """The loop of a node with the facts of an induction over its steps; None where it has none."""
    if not has_bodies(node) or kind_of(node) == "If" or model.opset < SINCE:
        return None
    body = next(bodies_of(model, node), None)
    if body is None or ABSENT in node.args[2 if kind_of(node) == "Loop" else 0 : len(node.attr("call").node.inputs)]:
        return None
    found = _counted_scan(node, body) if kind_of(node) == "Scan" else _counted_trips(node, body)
    if found is None:
        return None
    given = node.args[found.first : found.first + found.states]
    return found if [x.type for x in given] == [o.type for o in found.outputs[: found.states]] else None


def _counted_scan(node: Node, body: Body) -> CountedLoop | None:
    call: OpaqueCall = node.attr("call")
    backward, count = _direction(node), int(call.node.attributes["num_scan_inputs"].as_int())
    states = len(call.node.inputs) - count
    if backward is None or not isinstance(node.args[states].type, Tensor) or node.args[states].tensor.shape is None:
        return None
    return CountedLoop(body, body.model.graph.outputs, 0, states, node.args[states].shape[0], backward)


def _counted_trips(node: Node, body: Body) -> CountedLoop | None:
    trips, condition, *states = node.args[: len(node.attr("call").node.inputs)]
    known = None if trips is ABSENT else known_elements(trips)
    goes_on, (first, *outputs) = body.model.graph.inputs[1], body.model.graph.outputs
    lasts = (condition is ABSENT or _is_true(condition)) and (first is goes_on or _is_true(first))
    if known is None or not lasts:
        return None
    return CountedLoop(body, tuple(outputs), 2, len(states), known[0], 0)


def with_scans(model: Model) -> Model:
    """The model with each of its loops as a term of its body, where it has such a term."""
    table, origins, weights = dict[Node, Node](), dict(model.origins), dict(model.weights)
    for node in model.nodes() if any(map(has_bodies, model.nodes())) else ():
        (current,) = substitute((node,), table)
        found = as_scan(replace(model, weights=weights), current)
        if found is not None:
            weights.update(found.weights)
            table[node] = found.term
            origins |= {found.term: origins[node]} if node in origins else {}
    if not table:
        return model
    outputs = substitute(model.graph.outputs, table)
    return replace(model.with_graph(outputs, weights), origins=origins)


def as_scan(model: Model, node: Node) -> ReadLoop | None:
    """The term that computes a Scan or a Loop of a model; None for other nodes, and for a loop that
    has no such term: a body with operators that have no definition, or with sizes that only a run
    knows; a Scan along other axes than the first, or with steps in both directions; a Loop with a
    condition, or whose counter does more than choose the elements of sequences of its length."""
    counted = counted_loop(model, node)
    if counted is None or any(n.op == "opaque" for n in counted.body.model.nodes()):
        return None
    try:
        made = (_of_loop if counted.first else _of_scan)(model, node, counted)
    except (IllTyped, Undecidable, Unsupported):
        return None
    return made if made is not None and made.term.type == node.type and _has_sizes(made.term.attr("body")) else None


def _direction(node: Node) -> int | None:
    """Whether a Scan begins with the last elements; None where its operands differ in that, or are
    not read along their first axes."""
    call: OpaqueCall = node.attr("call")
    count = int(call.node.attributes["num_scan_inputs"].as_int())
    outputs = len(call.node.outputs) - len(call.node.inputs) + count
    inward, outward = (
        _numbers(call.node, f"scan_{side}_directions", n) for side, n in (("input", count), ("output", outputs))
    )
    axes = [*scan_axes(node, count), *_numbers(call.node, "scan_output_axes", outputs)]
    found = {*inward, *outward}
    return found.pop() if len(found) == 1 and not any(axes) else None


def _numbers(node: ir.Node, name: str, count: int) -> list[int]:
    attribute = node.attributes.get(name)
    return [0] * count if attribute is None else [int(n) for n in attribute.as_ints()]


def _has_sizes(body: Graph) -> bool:
    """Whether the sizes of all terms of a body are known, or follow from those of its inputs."""
    given = {str(dim) for leaf in body.inputs for dim in leaf.shape}
    types = [t for n in body if n is not ABSENT for t in _tensors(n)]
    return all(t.shape is not None and all(symbols(n) <= given for n in t.shape) for t in types)


def _tensors(node: Node) -> tuple[Tensor, ...]:
    return node.type if isinstance(node.type, tuple) else (node.tensor,)


def _of_scan(model: Model, node: Node, counted: CountedLoop) -> ReadLoop:
    body = counted.body
    outer, weights = _captured(model, body)
    leaves = dict(zip(body.model.graph.inputs[: len(body.formal)], node.args, strict=False))
    return _read(_Step(leaves, outer, counted.outputs, counted.states, counted.backward), weights)


def _of_loop(model: Model, node: Node, counted: CountedLoop) -> ReadLoop | None:
    body = counted.body
    counter, goes_on, *formal = body.model.graph.inputs[: len(body.formal)]
    outer, weights = _captured(model, body)
    rest = substitute(counted.outputs, {goes_on: constant(True)})
    elements = {
        n: outer[n.args[0]]
        for n in topological(rest)
        if traits(n).lowering is Lowering.GATHER and n.args[1] is counter and n.args[0] in outer and n.attr("axis") == 0
    }
    if any(x.shape[0] != counted.count for x in elements.values()):
        return None
    leaves = {n: variable(f"element {i}", n.tensor) for i, n in enumerate(elements)}
    rest = substitute(rest, leaves)
    if counter in topological(rest):
        return None
    if not leaves:
        places = _places(counted.count)
        if places is None:
            return None
        elements, leaves = {counter: places}, {counter: variable("element 0", counter.tensor)}
    states = node.args[counted.first : counted.first + counted.states]
    given = {**dict(zip(formal, states, strict=True)), **{leaves[n]: x for n, x in elements.items()}}
    return _read(_Step(given, outer, rest, counted.states, 0, 1), weights)


def _places(count: Dim) -> Node | None:
    """The sequence of the places of steps, for a loop that reads no other one; None where only a
    run knows their number, or there are none or too many."""
    return constant(np.arange(count)) if isinstance(count, int) and 0 < count <= MOST else None


def _is_true(node: Node) -> bool:
    return is_constant(node) and bool(node.attr("value").numpy().all())


def _captured(model: Model, body: Body) -> tuple[dict[Node, Node], dict[str, Weight]]:
    """The outer terms of the values that a body captures, and of its own weights, and those."""
    outer = {leaf: body.captured[leaf.attr("name")] for leaf in body.model.graph.inputs[len(body.formal) :]}
    weights: dict[str, Weight] = {}
    for leaf in (n for n in body.model.nodes() if is_named_weight(n)):
        name = leaf.attr("name")
        if name in body.captured:
            outer[leaf] = body.captured[name]
            continue
        own = _free_name(model, name)
        weights[own] = body.model.weights[name]
        outer[leaf] = weight(own, leaf.tensor)
    return outer, weights


@dataclass(frozen=True, slots=True)
class _Step:
    """A body over leaves: the operands of the states and of the sequences by theirs, the outer
    terms of the others, and the outputs."""

    given: Mapping[Node, Node]
    outer: Mapping[Node, Node]
    outputs: Sequence[Node]
    states: int
    backward: int
    counted: int = 0


def _read(step: _Step, weights: Mapping[str, Weight]) -> ReadLoop:
    used = set(topological(step.outputs))
    leaves = {**step.given, **{leaf: outer for leaf, outer in step.outer.items() if leaf in used}}
    inputs = {leaf: variable(f"x{i}", leaf.tensor) for i, leaf in enumerate(leaves)}
    made = term(
        "scan",
        *leaves.values(),
        body=Graph(tuple(inputs.values()), substitute(step.outputs, inputs)),
        states=step.states,
        sequences=len(step.given) - step.states,
        backward=step.backward,
        counted=step.counted,
    )
    return ReadLoop(made, weights)


def _free_name(model: Model, name: str) -> str:
    """A name that no weight of a model has."""
    while name in model.weights:
        name += "_"
    return name
