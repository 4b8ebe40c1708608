"""A loop over steps in a block of a kernel: its states lie in two buffers each, the old and the new
one, which change places after every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from taso_mirage.emit.cpu.finders import Finders
from taso_mirage.emit.cpu.lazy_tensors import BufferSizes, CppBuffer, LoopValue, Map, base_value
from taso_mirage.emit.cpu.loop_schedule import Root
from taso_mirage.emit.cpu.step_layouts import same_in_all_steps, state_strides
from taso_mirage.emit.cpu.step_meaning import StepMeaning
from taso_mirage.emit.cpu.step_objects import StepObjects
from taso_mirage.emit.cpu.step_operands import KernelStages, StepOperands, named_pointer, values_of
from taso_mirage.emit.statements import For, Statement, v
from taso_mirage.ir.mugraph import product_factor, usual_size
from taso_mirage.ir.terms import Graph, Node, topological

AHEAD = 4
"""The number of steps between the request for the elements of a step and this step."""
SEVERAL = 4
"""The least number of steps in which two threads take part: the halves of a matrix are copied
first."""
MANY = 4
"""The least number of readers of each element of a value that is computed once, in memory."""


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
    operands = StepOperands(node, tiles)
    states = operands.states
    strides = _strides(body, operands)
    old, new = (_rooms(function, operands.buffers[:states], strides, hint) for hint in ("state", "next"))
    made = function.stage([(x, room, False) for x, room in zip(operands.buffers, old, strict=False)])
    made += [named_pointer(f"old_{room.name}", v[room.name], room, "") for room in old]
    made += [named_pointer(f"new_{room.name}", v[room.name], room, "") for room in new]
    inside, elements = operands.elements(v.step)
    inside = [*operands.ahead(v.step, AHEAD), *inside]
    before = [CppBuffer(x.dtype, x.shape, f"before{i}", x.strides) for i, x in enumerate(old)]
    after = [CppBuffer(x.dtype, x.shape, f"after{i}", x.strides) for i, x in enumerate(new)]
    inside += [
        named_pointer(s.name, v[f"old_{x.name}"], x, "const ", " __restrict") for s, x in zip(before, old, strict=True)
    ]
    inside += [named_pointer(n.name, v[f"new_{x.name}"], x, "", " __restrict") for n, x in zip(after, new, strict=True)]
    lazy = StepMeaning(function.lazy.tables)
    objects = StepObjects(operands.others, function.alone and usual_size(operands.count) >= SEVERAL)
    finders = Finders(lazy, objects, usual_size(operands.count))
    others = [_in_order(function, x, before, made) for x in operands.others]
    given = [*before, *elements, *others]
    values: list[LoopValue] = values_of(lazy, lazy.constant, body, given, finders.value)
    made += _before(function, values, [*before, *elements])
    roots: list[Root] = []
    for part, y in zip(parts, targets, strict=True):
        if part >= states:
            at, place = operands.output(part, y, v.step)
            inside.append(at)
            roots.append((values[part], place, False))
    rows = [(x, function.memory.allocate(x, hint="row")) for x in _rows(values)]
    function.memory.objects = objects
    inside += function.stage(roots, [*rows, *zip(values[:states], after, strict=True)])
    inside += [v["std::swap"](v[f"old_{a.name}"], v[f"new_{b.name}"]) for a, b in zip(old, new, strict=True)]
    function.memory.objects = None
    made += objects.made
    made.append(For("step", v.numbers(product_factor(operands.count)), tuple(inside)))
    ends = [
        (replaced(old[part], f"old_{old[part].name}"), y, False)
        for part, y in zip(parts, targets, strict=True)
        if part < states
    ]
    return [*made, *function.stage(ends)]


def _strides(body: Graph, operands: StepOperands) -> list[BufferSizes]:
    """The strides of the states, by the sums of a step over them."""
    lazy = StepMeaning()
    values = values_of(
        lazy,
        lazy.constant,
        body,
        [*operands.buffers[: operands.states], *operands.elements(v.step)[1], *operands.others],
    )
    return [state_strides(values, x.shape) for x in operands.buffers[: operands.states]]


def _in_order(function: KernelStages, x: CppBuffer, states: Sequence[CppBuffer], made: list[Statement]) -> CppBuffer:
    """Return an operand of all steps in the order of a state of its shape: itself, or a copy, which
    is made before the first step."""
    state = next((s for s in states if s.shape == x.shape and not s.dense), None)
    if state is None:
        return x
    copy = function.memory.allocate(x, state.strides, "fixed")
    function.used.add(copy.name)
    made += function.stage([(x, copy, False)])
    return copy


def _before(function: KernelStages, values: Sequence[LoopValue], varying: Sequence[CppBuffer]) -> list[Statement]:
    """The values that are computed once, before the first step, each in the order of a state of its
    shape."""
    memory, strides = function.memory, {x.shape: x.strides for x in varying if x.name.startswith("before")}
    fixed = {x: memory.allocate(x, strides.get(x.shape), "fixed") for x in same_in_all_steps(values, varying)}
    made = function.stage([(x, place, False) for x, place in fixed.items()])
    function.memory.buffers.update(fixed)
    return made


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


def _rooms(
    function: KernelStages, states: Iterable[CppBuffer], strides: Iterable[BufferSizes], hint: str
) -> list[CppBuffer]:
    found = [function.memory.allocate(x, own, hint) for x, own in zip(states, strides, strict=True)]
    function.used |= {room.name for room in found}
    return found
