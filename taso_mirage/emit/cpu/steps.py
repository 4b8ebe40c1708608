"""A loop over steps in a block of a kernel: its states lie in two buffers each, the old and the new
one, which change places after every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning
from taso_mirage.emit.cpu.lazy_tensors import CppBuffer, LoopValue, Map, base_value
from taso_mirage.emit.cpu.loop_schedule import Memory, Root
from taso_mirage.emit.cpu.nests import memory_type
from taso_mirage.emit.cpu.step_meaning import StepMeaning
from taso_mirage.emit.statements import Expression, For, Let, Statement, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import product_factor, usual_size
from taso_mirage.ir.terms import ABSENT, Graph, Node, topological
from taso_mirage.operators.interpret import interpret_term

MANY = 4
"""The least number of readers of each element of a value that is computed once, in memory."""


class KernelStages(Protocol):
    """The function of a kernel that the steps are a part of."""

    lazy: LazyMeaning
    memory: Memory
    used: set[str]

    def stage(self, roots: Sequence[Root], kept: Sequence[tuple[LoopValue, CppBuffer]] = ()) -> list[Statement]:
        """The statements that compute some values."""


def step_statements(
    function: KernelStages,
    node: Node,
    parts: Sequence[int],
    tiles: Mapping[Node, LoopValue],
    targets: Sequence[CppBuffer],
) -> list[Statement]:
    """The statements of a loop over steps; `targets` are the places of the results with the numbers
    `parts`.

    Raises Unsupported for operands that do not lie in memory.
    """
    body: Graph = node.attr("body")
    states, count = node.attr("states"), node.args[node.attr("states")].shape[0]
    given = [tiles.get(a) for a in node.args]
    buffers = [x for x in given if isinstance(x, CppBuffer)]
    if len(buffers) < len(given):
        raise Unsupported("a loop over steps of tensors that do not lie in memory")
    old, new = (_rooms(function, buffers[:states], hint) for hint in ("state", "next"))
    made = function.stage([(x, room, False) for x, room in zip(buffers, old, strict=False)])
    made += [_pointer(f"old_{room.name}", v[room.name], room, "") for room in old]
    made += [_pointer(f"new_{room.name}", v[room.name], room, "") for room in new]
    at: Expression = v.step
    if node.attr("backward"):
        at = v[f"({product_factor(count)} - 1 - step)"]
    inside, elements = list[Statement](), list[CppBuffer]()
    for i, x in enumerate(buffers[states : states + node.attr("sequences")]):
        elements.append(CppBuffer(x.dtype, x.shape[1:], f"element{i}", x.strides[1:]))
        start = v[x.name] + x.start + at * product_factor(x.strides[0])
        inside.append(_pointer(f"element{i}", start, x, "const ", " __restrict"))
    before = [CppBuffer(x.dtype, x.shape, f"before{i}", x.strides) for i, x in enumerate(old)]
    after = [CppBuffer(x.dtype, x.shape, f"after{i}", x.strides) for i, x in enumerate(new)]
    inside += [
        _pointer(s.name, v[f"old_{x.name}"], x, "const ", " __restrict") for s, x in zip(before, old, strict=True)
    ]
    inside += [_pointer(n.name, v[f"new_{x.name}"], x, "", " __restrict") for n, x in zip(after, new, strict=True)]
    values = _values(
        StepMeaning(function.lazy.tables), body, [*before, *elements, *buffers[states + node.attr("sequences") :]]
    )
    roots: list[Root] = []
    for part, y in zip(parts, targets, strict=True):
        if part >= states:
            place = CppBuffer(y.dtype, y.shape[1:], f"output{part}", y.strides[1:])
            inside.append(
                _pointer(place.name, v[y.name] + y.start + at * product_factor(y.strides[0]), y, "", " __restrict")
            )
            roots.append((values[part], place, False))
    rows = [(x, function.memory.allocate(x, hint="row")) for x in _rows(values)]
    inside += function.stage(roots, [*rows, *zip(values[:states], after, strict=True)])
    inside += [v["std::swap"](v[f"old_{a.name}"], v[f"new_{b.name}"]) for a, b in zip(old, new, strict=True)]
    made.append(For("step", v.numbers(product_factor(count)), tuple(inside)))
    ends = [
        (replaced(old[part], f"old_{old[part].name}"), y, False)
        for part, y in zip(parts, targets, strict=True)
        if part < states
    ]
    return [*made, *function.stage(ends)]


def _rows(values: Sequence[LoopValue]) -> list[LoopValue]:
    """The computed values that others of many times their elements read, such as a row for all rows
    of a state: each of their elements is computed once, not for each of these."""
    found: dict[LoopValue, None] = {}
    for value in topological(values):
        for arg in map(base_value, value.args):
            several = usual_size(arg.count) > 1 and usual_size(value.count) >= MANY * usual_size(arg.count)
            if isinstance(arg, Map) and isinstance(value, Map) and several:
                found[arg] = None
    return list(found)


def replaced(x: CppBuffer, name: str) -> CppBuffer:
    """A buffer of the same elements by another pointer."""
    return CppBuffer(x.dtype, x.shape, name, x.strides)


def _rooms(function: KernelStages, states: Iterable[CppBuffer], hint: str) -> list[CppBuffer]:
    found = [function.memory.allocate(x, hint=hint) for x in states]
    function.used |= {room.name for room in found}
    return found


def _pointer(name: str, value: Expression, x: CppBuffer, const: str, restrict: str = "") -> Let:
    return Let(name, value, f"{const}{memory_type(x.dtype)}*{restrict}")


def _values(lazy: LazyMeaning, body: Graph, given: Sequence[LoopValue]) -> list[LoopValue]:
    """The values of the body's outputs."""
    found: dict[Node, LoopValue | None] = {ABSENT: None, **dict(zip(body.inputs, given, strict=True))}
    for node in body:
        if node not in found:
            made = lazy.constant(node.attr("value")) if node.op == "constant" else None
            found[node] = made or interpret_term(node, lazy, [found[a] for a in node.args])
    return [x for o in body.outputs if (x := found[o]) is not None]
