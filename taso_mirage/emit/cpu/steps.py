"""A loop over steps in a block of a kernel: its states lie in two buffers each, the old and the new
one, which change places after every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning
from taso_mirage.emit.cpu.lazy_tensors import BestColumn, CppBuffer, LoopValue, Map, base_value
from taso_mirage.emit.cpu.loop_schedule import Memory, Root
from taso_mirage.emit.cpu.nests import memory_type
from taso_mirage.emit.cpu.step_meaning import StepMeaning
from taso_mirage.emit.statements import Expression, For, Let, Statement, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import product_factor, usual_size
from taso_mirage.ir.terms import ABSENT, Graph, Node, topological
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.rewriting.forms import RegionPattern

MANY = 4
"""The least number of readers of each element of a value that is computed once, in memory."""
BEST = RegionPattern("argmax(matmul(x, w), axis=1, keepdims=k)")
ENOUGH, DEEPEST, FEWEST = 16, 65_536, 512
"""The least number of steps for which a matrix is read in advance, the largest number of its rows,
whose sums have 32 bits, and the least number of columns."""


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
    fixed = buffers[states + node.attr("sequences") :]
    finders = Finders(dict(zip(body.inputs[len(body.inputs) - len(fixed) :], fixed, strict=True)), usual_size(count))
    values = _values(StepMeaning(function.lazy.tables), body, [*before, *elements, *fixed], finders)
    made += finders.made
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


@dataclass
class Finders:
    """The objects that find, in each step, the column of an operand `fixed` of all steps whose
    product with a row is the largest (`best_column.h`): each reads its operand once, before the
    first step."""

    fixed: Mapping[Node, CppBuffer]
    steps: int
    made: list[Statement] = field(default_factory=list)

    def value(self, node: Node, lazy: LazyMeaning, found: Mapping[Node, LoopValue | None]) -> LoopValue | None:
        """The value of a term that is such a column; None for others."""
        read = BEST.match(node) if self.steps >= ENOUGH else None
        b = None if read is None else self.fixed.get(read["w"])
        x = None if read is None else found[read["x"]]
        if b is None or x is None or node.attr("select_last_index") or not _fits(x, b):
            return None
        name, depth, columns = f"finder{len(self.made)}", *b.shape
        type = f"BestColumn<{depth}, {columns}>"
        self.made.append(Let(name, v[type](v[b.name] + b.start, product_factor(b.strides[0])), type))
        value = BestColumn(node.dtype, x.shape[:1], ("mk", "kn", "m"), args=(x, b), finder=name)
        return lazy.reshape(value, node.shape)


def _fits(x: LoopValue, b: CppBuffer) -> bool:
    """Whether `best_column.h` has code for a matrix, and rows that it is multiplied with."""
    if len(x.shape) != 2 or len(b.shape) != 2 or x.dtype != "float32" or b.strides[1] != 1:
        return False
    depth, columns = b.shape
    known = isinstance(depth, int) and isinstance(columns, int)
    return known and usual_size(depth) % 4 == 0 and usual_size(depth) <= DEEPEST and usual_size(columns) >= FEWEST


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


def _values(lazy: LazyMeaning, body: Graph, given: Sequence[LoopValue], finders: Finders) -> list[LoopValue]:
    """The values of the body's outputs."""
    found: dict[Node, LoopValue | None] = {ABSENT: None, **dict(zip(body.inputs, given, strict=True))}
    for node in body:
        if node not in found:
            made = lazy.constant(node.attr("value")) if node.op == "constant" else finders.value(node, lazy, found)
            found[node] = made or interpret_term(node, lazy, [found[a] for a in node.args])
    return [x for o in body.outputs if (x := found[o]) is not None]
