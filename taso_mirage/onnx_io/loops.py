"""Loops of ONNX as terms of their bodies (`op_specs/scan.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, substitute, variable, weight
from taso_mirage.onnx_io.bodies import Body, bodies_of, has_bodies, kind_of, scan_axes
from taso_mirage.onnx_io.read import OpaqueCall
from taso_mirage.operators.ops import term

SINCE = 9
"""The opset from which on a Scan has no batch of its own."""


@dataclass(frozen=True, slots=True)
class ReadLoop:
    """A loop as a term `scan`, and the weights of its body, which are operands of the term."""

    term: Node
    weights: Mapping[str, Weight]


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
    """The term that computes a Scan of a model; None for other nodes, and for a Scan that has no
    such term: a body with operators that have no definition, or with sizes that only a run knows,
    sequences along other axes than the first, steps in both directions."""
    if not has_bodies(node) or kind_of(node) != "Scan" or model.opset < SINCE:
        return None
    backward = _direction(node)
    body = next(bodies_of(model, node), None)
    if backward is None or body is None or not _is_computed(body):
        return None
    try:
        made = _term(model, node, body, backward)
    except (IllTyped, Undecidable, Unsupported):
        return None
    return made if made.term.type == node.type else None


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


def _is_computed(body: Body) -> bool:
    """Whether all terms of a body have definitions and known sizes."""
    return all(
        node.op != "opaque"
        and all(isinstance(n, int) for t in _tensors(node) for n in t.shape or (None,) * (t.shape is None))
        for node in body.model.nodes()
        if node is not ABSENT
    )


def _tensors(node: Node) -> tuple[Tensor, ...]:
    return node.type if isinstance(node.type, tuple) else (node.tensor,)


def _term(model: Model, node: Node, body: Body, backward: int) -> ReadLoop:
    call: OpaqueCall = node.attr("call")
    count = int(call.node.attributes["num_scan_inputs"].as_int())
    operands = node.args[: len(call.node.inputs)]
    if ABSENT in operands:
        raise Unsupported("a Scan without an operand")
    formal = body.model.graph.inputs[: len(body.formal)]
    leaves, weights = dict[Node, Node](), dict[str, Weight]()
    for leaf in body.model.graph.inputs[len(body.formal) :]:
        leaves[leaf] = body.captured[leaf.attr("name")]
    for leaf in (n for n in body.model.nodes() if n.op == "weight"):
        name = leaf.attr("name")
        outer = body.captured.get(name)
        if outer is None:
            own = _free_name(model, name)
            weights[own] = body.model.weights[name]
            outer = weight(own, leaf.tensor)
        leaves[leaf] = outer
    leaves = {leaf: outer for leaf, outer in leaves.items() if leaf in set(body.model.nodes())}
    inputs = [variable(f"x{i}", leaf.tensor) for i, leaf in enumerate((*formal, *leaves))]
    outputs = substitute(body.model.graph.outputs, dict(zip((*formal, *leaves), inputs, strict=True)))
    made = term(
        "scan",
        *operands,
        *leaves.values(),
        body=Graph(tuple(inputs), outputs),
        states=len(operands) - count,
        sequences=count,
        backward=backward,
    )
    return ReadLoop(made, weights)


def _free_name(model: Model, name: str) -> str:
    """A name that no weight of a model has."""
    while name in model.weights:
        name += "_"
    return name
