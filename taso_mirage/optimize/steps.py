"""What was done to a model, step by step, so that any prefix can be replayed (to find the first step that breaks it)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taso_mirage.ir import Node, topological, with_args


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite: the equations behind it, and the terms that were replaced by terms of the same type."""

    equations: tuple[str, ...]
    old: tuple[Node, ...]
    new: tuple[Node, ...]


def replay(outputs: Sequence[Node], steps: Iterable[Step]) -> tuple[Node, ...]:
    """`outputs` after the steps. Terms are interned, so what a step replaced is found by identity.

    Each sweep is linear; a sweep is repeated only while a replacement uncovers a term that a later step replaced.
    """
    table = {old: new for step in steps for old, new in zip(step.old, step.new, strict=True) if old is not new}
    current = tuple(outputs)
    for _ in range(len(table) + 1):
        swept = _sweep(current, table)
        if swept == current:
            break
        current = swept
    return current


def _sweep(outputs: tuple[Node, ...], table: dict[Node, Node]) -> tuple[Node, ...]:
    done: dict[Node, Node] = {}
    for node in topological(outputs):
        current, seen = with_args(node, tuple(done[a] for a in node.args)), set[Node]()
        while current in table and current not in seen:
            seen.add(current)
            current = table[current]
        done[node] = current
    return tuple(done[o] for o in outputs)
