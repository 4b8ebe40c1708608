"""A traversal of a complete ONNX model: graphs, functions, and the bodies inside of both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, TypeAlias

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from taso_mirage.errors import InvalidModel

MOST_NODES = 10_000_000
"""The largest number of nodes of a model after its functions are inlined."""
Part: TypeAlias = ir.Graph | ir.Function


def graphs_inside(source: ir.Model) -> Iterator[Part]:
    """The main graph, every function, and every body of a node inside of them, and so on."""
    waiting: list[Part] = [source.graph, *source.functions.values()]
    while waiting:
        part = waiting.pop()
        yield part
        for attributes in attributes_of(part):
            for attribute in attributes.values():
                waiting += graphs_of(attribute)


def inline(source: ir.Model, criteria: Callable[[ir.Function], bool]) -> None:
    """Inline some functions of a model, in place. Its outputs keep their texts and metadata, which
    onnx_ir drops of a call's results."""
    said = [(value.doc_string, dict(value.metadata_props)) for value in source.graph.outputs]
    _name_omitted_results(source)
    InlinePass(criteria=criteria)(source)
    for value, (text, metadata) in zip(source.graph.outputs, said, strict=True):
        value.doc_string = text
        value.metadata_props.update(metadata)


def _name_omitted_results(source: ir.Model) -> None:
    """Name the results of calls that nothing uses: onnx_ir takes their name, which is empty, for
    the function's own values, which the function may use."""
    nodes = [node for part in graphs_inside(source) for node in part]
    taken = {value.name for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}
    names = (name for i in itertools.count() if (name := f"omitted_{i}") not in taken)
    for node in nodes:
        for value in node.outputs if node.op_identifier() in source.functions else ():
            value.name = value.name or next(names)


def attributes_of(part: Part) -> Iterator[MutableMapping[str, ir.Attr]]:
    """The attributes of every node of a graph, not of its bodies; of a function their defaults,
    too."""
    if isinstance(part, ir.Function):
        yield part.attributes
    for node in part:
        yield node.attributes


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs inside a node (If, Loop, Scan)."""
    return [graph for attribute in node.attributes.values() for graph in graphs_of(attribute)]


def graphs_of(attribute: ir.Attr) -> list[ir.Graph]:
    """The graphs that an attribute is."""
    if attribute.is_ref() or attribute.value is None:
        return []
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []


def bodies_below(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and the bodies of its nodes, and so on."""
    waiting = [graph]
    while waiting:
        each = waiting.pop()
        yield each
        for node in each:
            waiting += bodies(node)


def defined_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that a graph and the bodies below it define."""
    for each in bodies_below(graph):
        yield from (*each.inputs, *each.initializers.values())
        for node in each:
            yield from node.outputs


def dead_nodes(graph: ir.Graph, without: Iterable[ir.Graph] = ()) -> set[ir.Node]:
    """The nodes of a graph whose results only such nodes use, all nodes of their bodies, and those
    of the bodies in `without`. Other bodies capture all that is used in them."""
    dead = {node for body in without for node in body.all_nodes()}
    for node in reversed([*graph]):  # readers before what they read
        if not any(o.is_graph_output() or any(use.node not in dead for use in o.uses()) for o in node.outputs):
            dead.add(node)
            dead.update(inner for body in bodies(node) for inner in body.all_nodes())
    return dead


def values_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    """The values of a graph that have names, not those of its bodies."""
    outputs = (o for node in graph for o in node.outputs if o.name)
    return {str(v.name): v for v in (*graph.inputs, *graph.initializers.values(), *outputs)}


def outer_values(graph: ir.Graph) -> list[ir.Value]:
    """The values that a graph and the bodies below it use and do not define."""
    inside, used = set(defined_values(graph)), dict[ir.Value, None]()
    for each in bodies_below(graph):
        used |= dict.fromkeys(each.outputs)
        for node in each:
            used |= dict.fromkeys(v for v in node.inputs if v is not None)
    return [v for v in used if v not in inside]


def change_tensors(source: ir.Model, change: Callable[[Any], Any], attributes_only: bool = False) -> None:
    """Replace every tensor t by `change(t)`: initializers and attributes, anywhere in a model."""
    for part in graphs_inside(source):
        if isinstance(part, ir.Graph) and not attributes_only:
            for value in part.initializers.values():
                value.const_value = change(value.const_value)
        for attributes in attributes_of(part):
            for name, attribute in [*attributes.items()]:
                if attribute.is_ref() or attribute.value is None:
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    if (new := change(attribute.value)) is not attribute.value:
                        attributes[name] = ir.AttrTensor(name, new, doc_string=attribute.doc_string)
                elif attribute.type == ir.AttributeType.TENSORS:
                    made = [change(each) for each in attribute.value]
                    if any(new is not old for new, old in zip(made, attribute.value, strict=True)):
                        attributes[name] = ir.AttrTensors(name, made, doc_string=attribute.doc_string)


def check_functions(source: ir.Model) -> None:
    """Raise InvalidModel for a function that uses a value before it is computed in the function; a
    function has no access to the graph that calls it."""
    for function in source.functions.values():
        name = f"{function.domain}::{function.name}"
        _check_scope(function, set(), name)


def _check_scope(part: Part, known: set[ir.Value], name: str) -> None:
    """All of a function or of a body inside of it; `known` are the values until there."""
    known.update(part.inputs)
    known.update(part.initializers.values() if isinstance(part, ir.Graph) else ())
    for node in part:
        _check_known(node.inputs, known, name)
        for body in bodies(node):
            _check_scope(body, known, name)
        known.update(node.outputs)
    _check_known(part.outputs, known, name)


def _check_known(values: Iterable[ir.Value | None], known: set[ir.Value], name: str) -> None:
    for value in values:
        if value is not None and value not in known:
            raise InvalidModel(
                f"the function {name} uses the value {value.name!r}, which nothing in it has computed by then"
            )


def called_functions(source: ir.Model, nodes: Iterable[ir.Node]) -> Iterator[ir.Function]:
    """The functions of a model that nodes call, themselves or by way of others."""
    met: set[Any] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        waiting += [inner for body in bodies(node) for inner in body]
        key = node.op_identifier()
        if key in source.functions and key not in met:
            met.add(key)
            yield source.functions[key]
            waiting += source.functions[key]


def check_expansion(source: ir.Model) -> None:
    """Raise InvalidModel for functions that call each other in a circle, or whose calls expand to
    more than MOST_NODES nodes."""
    calls: dict[Any, list[Any]] = {}
    own: dict[Any, int] = {}
    for key, root in ((None, source.graph), *source.functions.items()):
        nodes = list(root.all_nodes())
        own[key] = len(nodes)
        calls[key] = [n.op_identifier() for n in nodes if n.op_identifier() in source.functions]
    total: dict[Any, int] = {}
    waiting: list[Any] = [*calls]
    inside: set[Any] = set()
    while waiting:
        key = waiting[-1]
        left = [] if key in total else [c for c in dict.fromkeys(calls[key]) if c not in total]
        if left and key in inside:
            raise InvalidModel(f"the function {left[0][0]}::{left[0][1]} calls itself, by way of others or not")
        if left:
            inside.add(key)
            waiting += left
            continue
        waiting.pop()
        total[key] = own[key] + sum(total[c] for c in calls[key])
        if total[key] > MOST_NODES:
            name = "the graph" if key is None else f"the function {key[0]}::{key[1]}"
            raise InvalidModel(f"the calls of functions in {name} expand to more than {MOST_NODES} nodes")
