"""The boxes of a program's outputs: the elements of a box are computed in one way (PET, OSDI'21,
section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

from taso_mirage.ir.terms import Node, topological
from taso_mirage.meanings.boxes import BOXES, Cut, Splits
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.traits import Box


def splits(outputs: Sequence[Node], env: Mapping[Node, Cut] | None = None) -> list[Splits]:
    """The split points of every output of a program of fixed sizes.

    Raises Unsupported where an operator is not multi-linear.
    """
    known = dict(env or {})
    for node in topological(outputs, stop=known.keys()):
        if node.op in ("input", "weight") and node not in known:
            known[node] = BOXES.leaf(node.tensor)
    found = interpret(outputs, BOXES, known)
    return [found[o].splits for o in outputs]


def boxes(shape: Sequence[int], points: Splits) -> Iterator[Box]:
    """All boxes of a tensor, in row order."""
    edges = [[0, *sorted(s), n] for n, s in zip(shape, points, strict=True)]
    return product(*[list(pairwise(e)) for e in edges])
