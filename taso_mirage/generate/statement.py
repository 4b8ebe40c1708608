"""Candidates as equations that can be read: patterns with explicit attributes, and one typing in
letters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from taso_mirage.generate.enumeration import INPUT, Table
from taso_mirage.generate.family import Operator
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, topological, variable
from taso_mirage.operators.expressions import Expr, uniform_value
from taso_mirage.operators.ops import traits
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.text import show_equation

_Given = tuple[tuple[str, Tensor], ...]


def stated_equation(table: Table, left: Sequence[int], right: Sequence[int]) -> tuple[str, _Given] | None:
    """`lhs == rhs` for candidates of a table, the side that binds all variables on the left (the
    larger one if both do), and the types of the variables. None where both sides are one term once
    composite operators are spelled out."""
    writer = _Writer(table)
    sides = [[writer.pattern(c) for c in side] for side in (left, right)]
    if all(a is b for a, b in zip(*sides, strict=True)):
        return None
    graphs = [Graph(tuple(n for n in topological(side) if n.op == "input"), tuple(side)) for side in sides]
    names = [{n.attr("name") for n in g.inputs} for g in graphs]
    larger = sum(1 for n in graphs[1] if n.args) > sum(1 for n in graphs[0] if n.args)
    if not names[1] <= names[0] or (larger and names[0] == names[1] and len(left) == 1):
        graphs, names = graphs[::-1], names[::-1]
    if not names[1] <= names[0]:
        return None
    kinds = {name: kind.tensor for name, _, kind in table.family.inputs}
    called = dict(zip((n.attr("name") for n in graphs[0].inputs), NAMES, strict=False))
    given = tuple((called[n.attr("name")], kinds[n.attr("name")]) for n in graphs[0].inputs)
    text = show_equation(Equation("", graphs[0], graphs[1]))
    return re.sub(r"\b(" + "|".join(called) + r")\b(?!=)", lambda m: called[m[0]], text), given


NAMES = ("x", "y", "z", "w", "v", "u", "t", "q", "o", "l")


class _Writer:
    def __init__(self, table: Table) -> None:
        self.table = table
        self._known: dict[int, Node] = {}

    def pattern(self, candidate: int) -> Node:
        """The untyped term of a candidate; sizes in attributes are letters, parts of a split are
        dims of variables."""
        if candidate not in self._known:
            self._known[candidate] = self._build(candidate)
        return self._known[candidate]

    def _build(self, candidate: int) -> Node:
        columns, table = self.table.all, self.table
        number = int(columns.op[candidate])
        if number == INPUT:
            return variable(table.family.inputs[int(columns.kept[candidate])][0])
        operator = table.family.operators[number]
        below = self.below(candidate)
        found = table.applied(number, tuple(int(columns.kind[c]) for c in below))
        assert found is not None
        operands = dict(zip(operator.operands, map(self.pattern, below), strict=True))
        parts = self.parts(below[0], operator.part_of) if operator.part_of is not None else None
        return _untyped(found[0], operands, parts)

    def below(self, candidate: int) -> list[int]:
        """The operands of a candidate, as candidates."""
        columns = self.table.all
        return [int(self.table.candidate[a]) for a in columns.args[candidate] if a >= 0]

    def parts(self, candidate: int, axis: int) -> tuple[str, str] | None:
        """The sizes of both halves of an axis that was cut: those of the parts that were
        concatenated there."""
        number = int(self.table.all.op[candidate])
        if number == INPUT:
            return None
        operator, below = self.table.family.operators[number], self.below(candidate)
        if operator.cut == axis:
            return self.extent(below[0], axis), self.extent(below[1], axis)
        for operand, source in self._sources(operator, number, below)[axis]:
            if self.table.all.cuts[below[operand]] >> source & 1:
                return self.parts(below[operand], source)
        return None

    def extent(self, candidate: int, axis: int) -> str:
        """A dim of a term as an expression of the dims of variables."""
        columns, table = self.table.all, self.table
        number = int(columns.op[candidate])
        if number == INPUT:
            return f"dim({table.family.inputs[int(columns.kept[candidate])][0]}, {axis})"
        operator, below = table.family.operators[number], self.below(candidate)
        if operator.cut == axis:
            return " + ".join(self.extent(c, axis) for c in below)
        if operator.part_of == axis:
            halves = self.parts(below[0], axis)
            if halves is not None:
                return halves[operator.half]
        sources = self._sources(operator, number, below)[axis]
        if sources:
            return self.extent(below[sources[0][0]], sources[0][1])
        return str((table.kinds[int(columns.kind[candidate])].tensor.shape or ())[axis])

    def _sources(self, operator: Operator, number: int, below: list[int]) -> list[list[tuple[int, int]]]:
        return self.table.sources(number, tuple(int(self.table.all.kind[c]) for c in below))


def _untyped(term: Node, operands: Mapping[str, Node], parts: tuple[str, str] | None) -> Node:
    done: dict[Node, Node] = {}
    for node in topological([term]):
        if node.op == "input":
            done[node] = operands[node.attr("name")]
        elif node is ABSENT:
            done[node] = node
        elif node.op == "constant":
            done[node] = Node("splat", (), (("value", uniform_value(node)),))
        else:
            attrs = tuple((k, _attribute(node, k, v, parts)) for k, v in node.attrs)
            done[node] = Node(node.op, tuple(done[a] for a in node.args), attrs)
    return done[term]


def _attribute(node: Node, key: str, value: Any, parts: tuple[str, str] | None) -> Any:
    if parts is not None and key == traits(node).parts:
        return Expr(f"({parts[0]}, {parts[1]})")
    if isinstance(value, Symbolic):
        return Expr(str(value))
    if isinstance(value, tuple) and any(isinstance(v, Symbolic) for v in value):
        return Expr(f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})")
    return value
