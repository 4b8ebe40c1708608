"""Requirements of a model on its inputs: numbers with which it compares integers to choose a
branch, floats that must be between 0 and 1, such as a detector's thresholds, and texts that it
knows."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from taso_mirage.ir.model import Model
from taso_mirage.onnx_io.walk import graphs_inside

COMPARES = frozenset("Equal Less Greater LessOrEqual GreaterOrEqual".split())
CARRIES = frozenset("Cast Identity Squeeze Unsqueeze Reshape Flatten".split())
"""Operators that preserve the numbers of their operand."""
PARTS = CARRIES | {"Slice", "Gather", "Split"}
"""Operators that select some of the numbers; a model may have all of its thresholds in one
input."""
SHARES = {"NonMaxSuppression": (3, 4), "Dropout": (1,)}
"""Operands that must be between 0 and 1, by operator: thresholds of overlap and scores, and the
ratio of dropped elements."""


def compared_numbers(model: Model) -> dict[str, list[int]]:
    """For every input that is compared with whole numbers, in the model or in a body of one of its
    nodes, these numbers."""
    source: ir.Model = model.header
    found: dict[str, list[int]] = {}
    for part in graphs_inside(source):
        for node in part:
            if node.domain == "" and node.op_type in COMPARES and len(node.inputs) == 2:
                for value, other in (node.inputs, node.inputs[::-1]):
                    name, number = input_of(value), _number(other)
                    if name is not None and number is not None and number not in found.setdefault(name, []):
                        found[name].append(number)
    return found


def share_inputs(source: ir.Model) -> frozenset[str]:
    """The names of inputs, of the model and of bodies, whose floats must be between 0 and 1."""
    nodes = [node for part in graphs_inside(source) for node in part if node.domain == ""]
    asked = [node.inputs[i] for node in nodes for i in SHARES.get(node.op_type, ()) if i < len(node.inputs)]
    return frozenset(name for value in asked if (name := input_of(value, PARTS)) is not None)


def known_words(source: ir.Model) -> dict[str, tuple[str, ...]]:
    """By name of an input of texts: those that operators look for in it, in their attributes or
    other operands."""
    texts = {str(value.name) for value in source.graph.inputs if value.dtype == ir.DataType.STRING}
    found: dict[str, dict[str, None]] = {}
    for node in (node for part in graphs_inside(source) for node in part) if texts else ():
        for name in texts.intersection(map(input_of, node.inputs)):
            found.setdefault(name, {}).update(dict.fromkeys(_words(node)))
    return {name: tuple(words) for name, words in found.items() if words}


def _words(node: ir.Node) -> Iterator[str]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.STRINGS and not attribute.is_ref():
            yield from attribute.as_strings()
    for value in node.inputs:
        if value is not None and value.const_value is not None and value.const_value.dtype == ir.DataType.STRING:
            yield from (each.decode(errors="replace") for each in np.ravel(value.const_value.numpy()))


def input_of(value: ir.Value | None, carries: Collection[str] = CARRIES) -> str | None:
    """The input of the model that a value is, or whose numbers it has by operators of these
    types."""
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type not in carries or not producer.inputs:
            return None
        value = producer.inputs[0]
    return str(value.name) if value is not None and value.is_graph_input() else None


def _number(value: ir.Value | None) -> int | None:
    """The whole number that a value always is."""
    while value is not None and value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in {*CARRIES, "Constant"}:
            return None
        if producer.op_type == "Constant":
            return _written(producer)
        value = producer.inputs[0]
    return None if value is None or value.const_value is None else _whole(value.const_value)


def _written(node: ir.Node) -> int | None:
    attributes = node.attributes
    if "value" in attributes and not attributes["value"].is_ref():
        return _whole(attributes["value"].as_tensor())
    if "value_int" in attributes and not attributes["value_int"].is_ref():
        return int(attributes["value_int"].value)
    return None


def _whole(tensor: ir.TensorProtocol) -> int | None:
    if tensor.size != 1 or not tensor.dtype.is_integer():
        return None
    return int(tensor.numpy().reshape(()))
