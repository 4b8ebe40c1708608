"""A canonical order of operands that commute. An operator takes the same time in each order, so
without it only noise would choose one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from taso_mirage.ir.terms import Node, topological, with_args
from taso_mirage.operators.expressions import is_weight, uniform_value
from taso_mirage.operators.ops import load_specs


def commuting(node: Node) -> bool:
    """Whether a term is the same with its two operands in the other order."""
    op = load_specs().get(node.op)
    return len(node.args) == 2 and op is not None and op.commutative


def in_one_order(node: Node) -> Node:
    """A term whose commuting operands are in canonical order: by everything on which their time
    depends."""
    return with_args(node, tuple(sorted(node.args, key=_looks))) if commuting(node) else node


def _looks(operand: Node) -> tuple[bool, str, float]:
    value = uniform_value(operand)
    return is_weight(operand), str(operand.type), 0.0 if value is None else float(value)


def up_to_order(states: Iterable[tuple[Node, ...]]) -> Iterator[tuple[Node, ...]]:
    """The first of each set of graphs that differ only in the order of commuting operands."""
    numbers, seen = dict[tuple[Any, ...], int](), set[tuple[int, ...]]()
    for state in states:
        placed: dict[Node, int] = {}
        for node in topological(state):
            args = [placed[a] for a in node.args]
            row = (node.op, node.type, node.attrs, tuple(sorted(args) if commuting(node) else args))
            placed[node] = numbers.setdefault(row if args else (node,), len(numbers))
        key = tuple([placed[o] for o in state])
        if key not in seen:
            seen.add(key)
            yield state
