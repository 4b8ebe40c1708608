"""Names of terms in printed graphs: identifiers that follow the model's own names, so that texts of
two similar graphs differ where the graphs do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from keyword import iskeyword

from taso_mirage.ir.terms import ABSENT, LEAVES, Graph, Node, topological

UNNAMED = "value"
"""The stem of terms that no named term uses."""


def identifiers(graph: Graph, names: Mapping[Node, str]) -> dict[Node, str]:
    """An identifier for each term of a graph, no two the same.

    A leaf has its own name and a term that of `names`. Terms without a name are numbered after the
    first named term that uses them.
    """
    order = [*graph.inputs, *(n for n in topological(graph.outputs) if n is not ABSENT)]
    order = list(dict.fromkeys(order))
    known = {n: n.attr("name") if n.op in LEAVES else names[n] for n in order if n.op in LEAVES or n in names}
    stems = _stems(order, {node: identifier(name) for node, name in known.items()})
    found: dict[Node, str] = {}
    taken: set[str] = set()
    counts: dict[str, int] = {}
    for node in (*(n for n in order if n in known), *(n for n in order if n not in known)):
        stem = stems[node]
        name = stem if node in known else f"{stem}_1"
        while name in taken:
            counts[stem] = counts.get(stem, 1) + 1
            name = f"{stem}_{counts[stem]}"
        taken.add(name)
        found[node] = name
    return found


def _stems(order: Sequence[Node], known: Mapping[Node, str]) -> dict[Node, str]:
    """For every term its name, or that of the first named term above it."""
    stems: dict[Node, str] = dict(known)
    for node in reversed(order):
        stem = stems.setdefault(node, UNNAMED)
        for arg in node.args:
            stems.setdefault(arg, stem)
    return stems


def identifier(name: str) -> str:
    """A name of a model as an identifier."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII) or UNNAMED
    return f"_{found}" if found[0].isdigit() or iskeyword(found) else found
