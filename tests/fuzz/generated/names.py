"""Names of values and nodes: plain ones, those of exporters, and odd ones; scopes repeat names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import onnx

ODD = (
    "Ω{}",
    "{}",
    " {}",
    "a b {}",
    "x:{}",
    "/a/{}/",
    "None{}",
    "True.{}",
    "'{}'",
    "{}\t",
    "é/{}:0",
    "-{}",
    "n" * 300 + "{}",
)
PLAIN = ("v{}", "/model/layer.{}/Add_output_0", "t_{}", "onnx::MatMul_{}")


def rename(model: onnx.ModelProto, random: Random) -> None:
    """Names by one scheme for a model. Bodies side by side use the same names, and so do
    functions."""
    odd = random.random() < 0.15
    schemes = ODD if odd else (random.choice(PLAIN),)
    prefix = random.choice(("", "", "inner_"))

    def new(number: int, depth: int) -> str:
        return prefix * depth + random.choice(schemes).format(number)

    counter = [0]
    _graph(model.graph, {}, new, counter, 0)
    for function in model.functions:
        known: dict[str, str] = {}
        count = [0]
        for name in function.input:
            known[name] = _next(new, count, 0)
        for node in function.node:
            _node(node, known, new, count, 0)
        function.input[:] = [known[name] for name in function.input]
        function.output[:] = [known[name] for name in function.output]
    _label(model, random)


def _next(new: Callable[[int, int], str], counter: list[int], depth: int) -> str:
    counter[0] += 1
    return new(counter[0], depth)


def _graph(
    graph: onnx.GraphProto, outer: Mapping[str, str], new: Callable[[int, int], str], counter: list[int], depth: int
) -> None:
    own = {each.name: _next(new, counter, depth) for each in (*graph.initializer, *graph.input)}
    known = {**outer, **own}
    for each in (*graph.initializer, *graph.input):
        each.name = own[each.name]
    for node in graph.node:
        _node(node, known, new, counter, depth)
    for each in graph.output:
        each.name = known[each.name]


def _node(
    node: onnx.NodeProto, known: dict[str, str], new: Callable[[int, int], str], counter: list[int], depth: int
) -> None:
    node.input[:] = [known[name] if name else "" for name in node.input]
    most = counter[0]
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            inside = [counter[0]]  # the names of the other body again
            _graph(attribute.g, known, new, inside, depth + 1)
            most = max(most, inside[0])
    counter[0] = most
    for place, name in enumerate(node.output):
        if name:
            known[name] = node.output[place] = _next(new, counter, depth)


def _label(model: onnx.ModelProto, random: Random) -> None:
    """Names of nodes: none, their operators', or those of their results."""
    kind = random.randrange(3)
    for number, node in enumerate(model.graph.node):
        node.name = ("", f"{node.op_type}_{number}", node.output[0])[kind]
