"""Integer inputs of a model that index a table, with its number of rows: ids of tokens, positions
and types."""

from __future__ import annotations

from typing import Any

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import ABSENT, Graph, topological
from taso_mirage.meanings.lookups import INDICES, NO_NAMES, IndexMeaning
from taso_mirage.operators.interpret import interpret_term


def indexed_rows(graph: Graph) -> dict[str, int]:
    """By name of an input of integers: the rows of the smallest table that they index."""
    meaning = IndexMeaning()
    notes = {n: frozenset((str(n.attr("name")),)) for n in graph.inputs if n.dtype in INDICES}
    for node in topological(graph.outputs) if notes else ():
        if node.op == "opaque" or not any(a in notes for a in node.args):
            continue
        args: list[Any] = [None if a is ABSENT else (a.type, notes.get(a, NO_NAMES)) for a in node.args]
        try:
            _, note = interpret_term(node, meaning, args)
        except (IllTyped, Unsupported, TypeError, ValueError):  # a tuple of parts, an unknown rank: nothing is known
            continue
        if note:
            notes[node] = note
    return meaning.rows
