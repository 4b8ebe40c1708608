"""Places of values in a file, and what is known about the values there.

A body that is read as a model of its own is a copy of the file's graph, so its values have no
identity. Their places are the same in every reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from taso_mirage.ir.terms import Node

FilePlace: TypeAlias = tuple[tuple[int, int | str], ...]
"""A result of a node: the numbers of the node and of the result, after the number of the node and
the attribute of each body around it that is a model of its own."""


@dataclass(frozen=True, slots=True)
class NodeResults:
    """The results of the nodes of a graph that was read: those that were known to be constants, in
    the bodies, too, and the terms of all that have one."""

    known: Mapping[FilePlace, Node]
    terms: Mapping[FilePlace, Node]
    numbers: Mapping[ir.Node, int]

    def body(self, node: ir.Node, attribute: str) -> tuple[int, str] | None:
        """The first part of the places in a body; None for a node that the file does not have."""
        number = self.numbers.get(node)
        return None if number is None else (number, attribute)

    def inside(self, body: tuple[int, str] | None) -> dict[FilePlace, Node]:
        """The known results in a body, by their places there."""
        return {place[1:]: term for place, term in self.known.items() if len(place) > 1 and place[0] == body}


def numbered_nodes(graph: ir.Graph) -> dict[ir.Node, int]:
    """The nodes of a graph and of the bodies in it, with their numbers."""
    return {node: i for i, node in enumerate(graph.all_nodes())}


def results_of_nodes(
    given: Mapping[ir.Node, int], known: Mapping[FilePlace, Node], terms: Mapping[ir.Value, Node]
) -> NodeResults:
    """The results of numbered nodes that have these terms."""
    found: dict[FilePlace, Node] = {
        ((number, i),): terms[value]
        for node, number in given.items()
        for i, value in enumerate(node.outputs)
        if value in terms
    }
    return NodeResults(known, found, given)


def values_at_places(given: Mapping[ir.Node, int], known: Mapping[FilePlace, Node]) -> dict[ir.Value, Node]:
    """The known results that are in no body of its own, by their values in the file."""
    nodes = [*given]
    return {nodes[place[0][0]].outputs[int(place[0][1])]: term for place, term in known.items() if len(place) == 1}
