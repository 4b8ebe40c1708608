"""Weights of equal content: a list of them, and a model that has each only once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import Node, substitute, topological
from taso_mirage.operators.work import size

SAMPLE = 1024
"""The number of elements of a weight that are compared first. They distinguish most pairs, so few
weights are read completely."""
DEFAULTS_ARE_INPUTS = 4
"""The IR version before which every weight is an input of the model, too."""


def duplicate_weights(model: Model, most: float = math.inf) -> dict[Node, Node]:
    """Each weight of `most` elements at most whose content equals that of an earlier weight of the
    graph, with the earlier one."""
    found: dict[Node, Node] = {}
    alike: dict[object, list[Node]] = {}
    for node in model.nodes():
        if node.op != "weight" or node.dtype == "string" or size(node.tensor) > most:
            continue
        content = _bits(model.weights, node)
        step = max(content.size // SAMPLE, 1)
        others = alike.setdefault((node.type, content[::step].tobytes()), [])
        same = next((other for other in others if np.array_equal(_bits(model.weights, other), content)), None)
        if same is None:
            others.append(node)
        else:
            found[node] = same
    return found


def shared_weights(model: Model) -> Model:
    """The model with every weight once, unless its weights are inputs that a user may replace."""
    table = duplicate_weights(model) if model.header.ir_version >= DEFAULTS_ARE_INPUTS else {}
    if not table:
        return model
    old = model.nodes()
    new = dict(zip(old, substitute(old, table), strict=True))
    return with_terms_replaced(model, table, new)


def with_terms_replaced(model: Model, gone: Mapping[Node, Node], new: Mapping[Node, Node]) -> Model:
    """The model with a `new` term for each of its terms, and the weights that these read; facts
    about terms move with them, except those about terms that are `gone`."""
    outputs = tuple(new[output] for output in model.graph.outputs)
    kept = {n.attr("name") for n in topological(outputs) if n.op == "weight"}
    return replace(
        model.with_graph(outputs, {name: each for name, each in model.weights.items() if name in kept}),
        names=_moved(model.names, gone, new),
        origins=_moved(model.origins, gone, new),
        opaque=_moved(model.opaque, gone, new),
    )


def _moved(known: Mapping[Node, Any], gone: Mapping[Node, Node], new: Mapping[Node, Node]) -> dict[Node, Any]:
    """Transfer facts about terms to the terms that replaced them. If two terms became one, the
    facts about the first are kept."""
    found: dict[Node, Any] = {}
    for node, value in known.items():
        if node not in gone:
            found.setdefault(new.get(node, node), value)
    return found


def _bits(weights: Mapping[str, Weight], node: Node) -> NDArray[np.uint8]:
    """The bytes of a weight. Compared as bytes, NaN equals itself, and 0 differs from -0."""
    array = np.ascontiguousarray(weights[node.attr("name")].numpy())
    return array.reshape(-1).view(np.uint8)
